"""Between a request and a question: what was sent is checked, what is quick is answered, what is long gets in line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bilrp.app.job_queue import RETRY_AFTER_SECONDS, Job, JobQueue, QueueFull
from bilrp.app.security import HTTPError
from bilrp.errors import BilrpError, describe_error

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

MAX_JSON_BYTES = 256 * 1024
MAX_PARALLEL_REQUESTS = 4  # quick answers on their way, each on a thread
MAX_WAITING_REQUESTS = 64  # quick answers that may wait
MAX_REQUEST_REGIONS = 4096  # regions of one question


class ThreadLimiter:
    """Quick answers: a few at once, some waiting, then busy."""

    def __init__(self) -> None:
        self.capacity = anyio.CapacityLimiter(MAX_PARALLEL_REQUESTS)
        self.pending = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        if self.pending >= MAX_WAITING_REQUESTS + MAX_PARALLEL_REQUESTS:
            raise QueueFull
        self.pending += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self.capacity)
        finally:
            self.pending -= 1


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object that was sent; anything else is refused."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPError(415, "send JSON, as application/json")
    body = await receive_body(request, MAX_JSON_BYTES, f"a question has at most {MAX_JSON_BYTES // 1024} KB")
    try:
        found = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise HTTPError(400, "this is no JSON") from None
    if not isinstance(found, dict):
        raise HTTPError(400, "a question is a JSON object")
    return found


async def receive_body(request: Request, limit: int, message: str) -> bytes:
    """A small body; no more of it is held than `limit` bytes, beyond which it is refused in these words."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise HTTPError(413, message)
    return bytes(body)


def _reject_constant(name: str) -> float:
    raise ValueError(name)


def get_str(body: dict[str, Any], name: str, default: str | None = None) -> str:
    """A short text of a question."""
    found = body.get(name, default)
    if not isinstance(found, str) or len(found) > 1000:
        raise HTTPError(422, f"{name} is missing, or no short text")
    return found


def parse_int(value: object, name: str, default: int, maximum: int) -> int:
    """A whole number from 0 to `maximum`; more is `maximum`."""
    if value is None or value == "":
        return default
    digits = isinstance(value, str) and value.isascii() and value.isdigit()
    if not isinstance(value, int | str) or isinstance(value, bool) or not (isinstance(value, int) or digits):
        raise HTTPError(422, f"{name} is a whole number")
    if len(str(value)) > 12 or int(value) < 0:
        raise HTTPError(422, f"{name} is a whole number from 0 to {maximum}")
    return min(int(value), maximum)


def get_regions(body: dict[str, Any], name: str) -> tuple[int, ...]:
    """Numbers of regions, each once."""
    found = body.get(name) or []
    whole = isinstance(found, list) and all(isinstance(r, int) and not isinstance(r, bool) for r in found)
    if not whole or len(found) > MAX_REQUEST_REGIONS or any(not 0 <= r < 2**31 for r in found):
        raise HTTPError(422, f"{name} is a list of region numbers, at most {MAX_REQUEST_REGIONS}")
    return tuple(dict.fromkeys(found))


def get_similarity(body: dict[str, Any], collection: Collection) -> str:
    similarity = body.get("similarity")
    if similarity not in ("cosine", "dot", None):
        raise HTTPError(422, "similarity is cosine or dot")
    return collection.resolve_similarity(similarity)


def client_id(request: Request) -> str:
    """Who asks: a word that a tab thought of for itself, else the connection."""
    said = request.headers.get("x-bilrp-visitor", "")
    if said.isascii() and said.isalnum() and len(said) <= 40:
        return said
    return f"{request.client.host}:{request.client.port}" if request.client else ""


def dump_json(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def error_response(error: Exception) -> Response:
    """Whatever went wrong as a status and one line."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    status = error.status if isinstance(error, HTTPError) else 422 if isinstance(error, BilrpError) else 500
    said = str(error) if isinstance(error, BilrpError) else f"{type(error).__name__}: {describe_error(error)}"
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if isinstance(error, QueueFull) else None
    return JSONResponse({"error": said}, status, headers)


def _dump_line(values: Any) -> bytes:
    return dump_json(values) + b"\n"


async def respond(
    request: Request,
    limiter: ThreadLimiter,
    queue: JobQueue,
    work: Callable[[], Any],
    *,
    ready: bool = False,
    persistent: bool = False,
) -> Response:
    """At once where everything is there, else in line: lines of JSON, the last has the answer (or the error)."""
    if ready:
        found = await limiter.run(work)
        return Response(_dump_line({"answer": found}), media_type="application/x-ndjson")
    ticket = queue.submit(client_id(request), work, persistent=persistent)
    watch = asyncio.ensure_future(_cancel_on_disconnect(request, ticket))
    try:
        first = await ticket.next_event()
    except BaseException:
        ticket.cancelled.set()
        watch.cancel()
        raise
    if isinstance(first.get("error"), Exception):
        watch.cancel()
        raise first["error"]
    return StreamingResponse(_stream_events(first, ticket, watch), media_type="application/x-ndjson")


async def _cancel_on_disconnect(request: Request, job: Job) -> None:
    """Wait until the visitor leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancelled.set()


async def _stream_events(
    first: dict[str, Any], job: Job, watcher: asyncio.Future[None]
) -> AsyncIterator[bytes]:
    try:
        news = first
        while True:
            if isinstance(news.get("error"), Exception):
                shown = error_response(news["error"])
                said = json.loads(bytes(shown.body))
                yield _dump_line(said | {"status": shown.status_code})
                return
            yield _dump_line(news)
            if "answer" in news:
                return
            news = await job.next_event()
    finally:
        watcher.cancel()
        job.cancelled.set()
