"""Between a request and a question: what was sent is checked, what is quick is answered, what is long gets in line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bilrp.app.job_queue import AGAIN, Busy, Desk, Ticket
from bilrp.app.security import Refused
from bilrp.errors import BilrpError, reason

MOST_JSON = 256 * 1024
AT_ONCE = 4  # quick answers on their way, each on a thread
QUEUE = 64  # quick answers that may wait
WINDOW = 4096  # regions of one question


class Counter:
    """Quick answers: a few at once, some waiting, then busy."""

    def __init__(self) -> None:
        self.limit = anyio.CapacityLimiter(AT_ONCE)
        self.inside = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        if self.inside >= QUEUE + AT_ONCE:
            raise Busy
        self.inside += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self.limit)
        finally:
            self.inside -= 1


async def json_of(request: Request) -> dict[str, Any]:
    """The JSON object that was sent; anything else is refused."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise Refused(415, "send JSON, as application/json")
    body = await receive_body(request, MOST_JSON, f"a question has at most {MOST_JSON // 1024} KB")
    try:
        found = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "this is no JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "a question is a JSON object")
    return found


async def receive_body(request: Request, limit: int, refusal: str) -> bytes:
    """A small body; no more of it is held than `limit` bytes, beyond which it is refused in these words."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise Refused(413, refusal)
    return bytes(body)


def _no_number(name: str) -> float:
    raise ValueError(name)


def word(given: dict[str, Any], name: str, default: str | None = None) -> str:
    """A short text of a question."""
    found = given.get(name, default)
    if not isinstance(found, str) or len(found) > 1000:
        raise Refused(422, f"{name} is missing, or no short text")
    return found


def number(text: object, name: str, default: int, most: int) -> int:
    """A whole number from 0 to `most`; more is `most`."""
    if text is None or text == "":
        return default
    digits = isinstance(text, str) and text.isascii() and text.isdigit()
    if not isinstance(text, int | str) or isinstance(text, bool) or not (isinstance(text, int) or digits):
        raise Refused(422, f"{name} is a whole number")
    if len(str(text)) > 12 or int(text) < 0:
        raise Refused(422, f"{name} is a whole number from 0 to {most}")
    return min(int(text), most)


def regions(given: dict[str, Any], name: str) -> tuple[int, ...]:
    """Numbers of regions, each once."""
    found = given.get(name) or []
    whole = isinstance(found, list) and all(isinstance(r, int) and not isinstance(r, bool) for r in found)
    if not whole or len(found) > WINDOW or any(not 0 <= r < 2**31 for r in found):
        raise Refused(422, f"{name} is a list of region numbers, at most {WINDOW}")
    return tuple(dict.fromkeys(found))


def similarity(given: dict[str, Any]) -> str:
    found = given.get("similarity", "cosine")
    if found not in ("cosine", "dot"):
        raise Refused(422, "similarity is cosine or dot")
    return found


def visitor(request: Request) -> str:
    """Who asks: a word that a tab thought of for itself, else the connection."""
    said = request.headers.get("x-bilrp-visitor", "")
    if said.isascii() and said.isalnum() and len(said) <= 40:
        return said
    return f"{request.client.host}:{request.client.port}" if request.client else ""


def plainly(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def refusal(error: Exception) -> Response:
    """Whatever went wrong as a status and one line."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    status = error.status if isinstance(error, Refused) else 422 if isinstance(error, BilrpError) else 500
    said = str(error) if isinstance(error, BilrpError) else f"{type(error).__name__}: {reason(error)}"
    headers = {"retry-after": str(AGAIN)} if isinstance(error, Busy) else None
    return JSONResponse({"error": said}, status, headers)


def _line(values: Any) -> bytes:
    return plainly(values) + b"\n"


async def answered(
    request: Request,
    counter: Counter,
    desk: Desk,
    work: Callable[[], Any],
    *,
    ready: bool = False,
    lasting: bool = False,
) -> Response:
    """At once where everything is there, else in line: lines of JSON, the last has the answer (or the error)."""
    if ready:
        found = await counter.run(work)
        return Response(_line({"answer": found}), media_type="application/x-ndjson")
    ticket = desk.ask(visitor(request), work, lasting=lasting)
    watch = asyncio.ensure_future(_gone(request, ticket))
    try:
        first = await ticket.next()
    except BaseException:
        ticket.gone.set()
        watch.cancel()
        raise
    if isinstance(first.get("error"), Exception):
        watch.cancel()
        raise first["error"]
    return StreamingResponse(_told(first, ticket, watch), media_type="application/x-ndjson")


async def _gone(request: Request, ticket: Ticket) -> None:
    """Wait until the visitor leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    ticket.gone.set()


async def _told(first: dict[str, Any], ticket: Ticket, watch: asyncio.Future[None]) -> AsyncIterator[bytes]:
    try:
        news = first
        while True:
            if isinstance(news.get("error"), Exception):
                shown = refusal(news["error"])
                said = json.loads(bytes(shown.body))
                yield _line(said | {"status": shown.status_code})
                return
            yield _line(news)
            if "answer" in news:
                return
            news = await ticket.next()
    finally:
        watch.cancel()
        ticket.gone.set()
