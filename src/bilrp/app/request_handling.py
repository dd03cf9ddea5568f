"""Parse and check requests; answer quick ones at once and slow ones through the job queue."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bilrp.answers.http_shapes import SimilarityName
from bilrp.app.job_queue import RETRY_AFTER_SECONDS, Job, JobQueue, QueueFull
from bilrp.app.security import HTTPError
from bilrp.errors import BilrpError, describe_error

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

T = TypeVar("T")

MAX_JSON_BYTES = 256 * 1024
MAX_PARALLEL_REQUESTS = 4  # quick requests, each on a thread
MAX_WAITING_REQUESTS = 64  # quick requests
MAX_REQUEST_REGIONS = 4096  # in one list
MAX_CONDITIONS = 16  # on the metadata, in one request
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")


class ThreadLimiter:
    """Runs quick requests on a few threads; raises QueueFull when too many are waiting."""

    def __init__(self) -> None:
        self.capacity = anyio.CapacityLimiter(MAX_PARALLEL_REQUESTS)
        self.pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        if self.pending >= MAX_WAITING_REQUESTS + MAX_PARALLEL_REQUESTS:
            raise QueueFull
        self.pending += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self.capacity)
        finally:
            self.pending -= 1


async def read_json(request: Request) -> dict[str, object]:
    """Return the JSON object in the request body; 400, 413 or 415 for anything else."""
    if media_type(request) != "application/json":
        raise HTTPError(415, "send JSON with content-type application/json")
    raw = await receive_body(
        request, MAX_JSON_BYTES, f"a request has at most {MAX_JSON_BYTES // 1024} KB of JSON"
    )
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise HTTPError(400, "send a JSON object")
    return body


def parse_json(raw: bytes | str) -> object:
    """Parse JSON without NaN and infinities; 400 for anything else."""
    try:
        return json.loads(raw, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise HTTPError(400, "invalid JSON") from None


def media_type(request: Request) -> str:
    """Return the content type without its parameters."""
    return request.headers.get("content-type", "").split(";")[0].strip()


async def receive_body(request: Request, limit: int, message: str) -> bytes:
    """Return the request body of at most `limit` bytes; raise 413 with `message` as soon as more arrives.

    Args:
        request: the request.
        limit: maximum number of bytes.
        message: the reason in the 413 response.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise HTTPError(413, message)
    return bytes(body)


def _reject_constant(name: str) -> float:
    raise ValueError(name)


def get_str(body: Mapping[str, object], name: str) -> str:
    """Return a string of a JSON body, of at most 1000 characters; 422 for anything else."""
    value = body.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise HTTPError(422, f"{name} must be a string of at most 1000 characters")
    return value


def parse_int(value: object, name: str, default: int, maximum: int) -> int:
    """Parse an integer from a JSON body or a URL; larger ones become `maximum`, None and "" the default.

    Args:
        value: the value from the request.
        name: name of the value, for the error message.
        default: result for a missing value.
        maximum: larger values are reduced to it.
    """
    if value is None or value == "":
        return default
    if not isinstance(value, int | str) or not re.fullmatch("[0-9]{1,12}", str(value)):
        raise HTTPError(422, f"{name} must be an integer from 0 to {maximum}")
    return min(int(value), maximum)


def get_regions(body: Mapping[str, object], name: str) -> tuple[int, ...]:
    """Return a list of region numbers without duplicates."""
    regions = body.get(name) or []
    if (
        not isinstance(regions, list)
        or len(regions) > MAX_REQUEST_REGIONS
        or not all(type(r) is int and 0 <= r < 2**31 for r in regions)
    ):
        raise HTTPError(422, f"{name} must be a list of at most {MAX_REQUEST_REGIONS} region numbers")
    return tuple(dict.fromkeys(regions))


def get_where(conditions: object, columns: Mapping[str, str]) -> str | None:
    """Return conditions on the metadata as SQL for Lance; None without any.

    Clients send columns, comparisons and values, never SQL: that would reach columns that they must not see.

    Args:
        conditions: a list of {column, op, value}, from JSON.
        columns: {column: type} that may be compared.

    >>> get_where([{"column": "year", "op": ">", "value": 2019}], {"year": "int64"})
    '`year` > 2019'
    """
    if conditions is None or conditions == []:
        return None
    if not isinstance(conditions, list) or len(conditions) > MAX_CONDITIONS:
        raise HTTPError(422, f"filters must be a list of at most {MAX_CONDITIONS} conditions")
    return " AND ".join(_format_condition(each, columns) for each in conditions)


def _format_condition(condition: object, columns: Mapping[str, str]) -> str:
    if not isinstance(condition, dict):
        raise HTTPError(422, "a filter is {column, op, value}")
    column, op, value = get_str(condition, "column"), get_str(condition, "op"), condition.get("value")
    kind = columns.get(column)
    if kind is None or "`" in column:
        raise HTTPError(
            422, f"there is no column {column[:60]!r}: choose one of {', '.join(columns) or 'none'}"
        )
    if op == "contains" and kind == "string":
        return f"contains(lower(`{column}`), {quote_sql(get_str(condition, 'value').lower())})"
    if op not in COMPARISONS:
        raise HTTPError(422, f"op must be one of {', '.join(COMPARISONS)}, or contains for texts")
    if value is None and op in ("=", "!="):
        return f"`{column}` IS {'NOT ' * (op == '!=')}NULL"
    if kind == "bool" and isinstance(value, bool):
        return f"`{column}` {op} {str(value).lower()}"
    if kind in ("int64", "double") and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) > 2**53:
            raise HTTPError(422, f"{column}: a number must be between ±2^53")
        return f"`{column}` {op} {value!r}"
    if kind == "string":
        return f"`{column}` {op} {quote_sql(get_str(condition, 'value'))}"
    raise HTTPError(422, f"{column} is {kind}: compare it with a value of this type")


def quote_sql(text: str) -> str:
    """Return a text as a literal of SQL.

    >>> quote_sql("it's")
    "'it''s'"
    """
    return "'" + text.replace("\0", "").replace("'", "''") + "'"


def get_similarity(body: Mapping[str, object], collection: Collection) -> SimilarityName:
    similarity = body.get("similarity")
    if similarity is not None and not (isinstance(similarity, str) and similarity in ("cosine", "dot")):
        raise HTTPError(422, "similarity is cosine or dot")
    return collection.resolve_similarity(similarity)


def client_id(request: Request) -> str:
    """Return the client id: the header X-Bilrp-Visitor if it is valid, else host:port."""
    name = request.headers.get("x-bilrp-visitor", "")
    if name.isascii() and name.isalnum() and len(name) <= 40:
        return name
    return f"{request.client.host}:{request.client.port}" if request.client else ""


def dump_json(values: object) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def error_response(error: Exception) -> Response:
    """Turn an exception into a status code and a JSON object with one line."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    status = error.status if isinstance(error, HTTPError) else 422 if isinstance(error, BilrpError) else 500
    message = (
        str(error) if isinstance(error, BilrpError) else f"{type(error).__name__}: {describe_error(error)}"
    )
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if isinstance(error, QueueFull) else None
    return JSONResponse({"error": message}, status, headers)


def _dump_line(values: object) -> bytes:
    return dump_json(values) + b"\n"


async def respond(
    request: Request,
    limiter: ThreadLimiter,
    queue: JobQueue,
    work: Callable[[], object],
    *,
    ready: bool = False,
    persistent: bool = False,
) -> Response:
    """Answer with lines of JSON: progress events, and in the last line the answer or the error.

    Args:
        request: the request.
        limiter, queue: run the work: at once if it is ready, else as a job.
        work: returns the answer as JSON values.
        ready: the work is quick, because everything it needs is in memory.
        persistent: do not cancel the work if the client disconnects.
    """
    if ready:
        answer = await limiter.run(work)
        return Response(_dump_line({"answer": answer}), media_type="application/x-ndjson")
    job = queue.submit(client_id(request), work, persistent=persistent)
    watcher = asyncio.ensure_future(_cancel_on_disconnect(request, job))
    try:
        first = await job.next_event()
    except BaseException:
        job.cancelled.set()
        watcher.cancel()
        raise
    if isinstance(error := first.get("error"), Exception):
        watcher.cancel()
        raise error
    return StreamingResponse(_stream_events(first, job, watcher), media_type="application/x-ndjson")


async def _cancel_on_disconnect(request: Request, job: Job) -> None:
    """Wait until the client disconnects, then cancel its job."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancelled.set()


async def _stream_events(
    first: dict[str, object], job: Job, watcher: asyncio.Future[None]
) -> AsyncIterator[bytes]:
    try:
        event = first
        while True:
            if isinstance(error := event.get("error"), Exception):
                response = error_response(error)
                yield _dump_line(json.loads(bytes(response.body)) | {"status": response.status_code})
                return
            yield _dump_line(event)
            if "answer" in event:
                return
            event = await job.next_event()
    finally:
        watcher.cancel()
        job.cancelled.set()
