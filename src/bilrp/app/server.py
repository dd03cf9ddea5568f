"""HTTP server of a collection or a pair: the ASGI applications and the uvicorn server that runs them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bilrp.app import additions, openapi, pair_session, routes
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import MAX_PENDING_JOBS, JobQueue
from bilrp.app.request_handling import ThreadLimiter
from bilrp.app.security import MAX_REQUEST_BYTES, READ_TIMEOUT_SECONDS, AccessPolicy, SecurityMiddleware
from bilrp.collection import Collection
from bilrp.encoder import Encoder
from bilrp.errors import InputError, describe_error
from bilrp.inputs import Item

MAX_CONNECTIONS = 400  # at once; further ones get 503
SOCKET_BACKLOG = 512
HEADER_TIMEOUT_SECONDS = 10.0  # for the complete header of a request
SHUTDOWN_TIMEOUT_SECONDS = 1.0  # for requests in progress to finish


def make_collection_app(
    collection: Collection,
    policy: AccessPolicy,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
    timeout_seconds: float = READ_TIMEOUT_SECONDS,
    max_pending: int = MAX_PENDING_JOBS,
    add: bool = False,
) -> ASGIApp:
    """Return the ASGI application of a collection.

    Args:
        collection: the collection to serve.
        policy: which requests are accepted.
        max_bytes: largest request body.
        timeout_seconds: time for a request body to arrive.
        max_pending: slow requests that may wait.
        add: allow clients to add queries to the collection.
    """
    if add:
        additions.check_writable(collection)
    queue, session = JobQueue(max_pending=max_pending), CollectionSession(collection, retain_uploads=add)
    handlers = routes.CollectionRoutes(session, queue, ThreadLimiter())
    documents = openapi.make_document_routes(openapi.COLLECTION_OPERATIONS, has_token=bool(policy.token))
    table = [*handlers.make_routes(), *documents]
    return assemble_app(table, queue, policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds)


def make_pair_app(encoder: Encoder, a: Item, b: Item, policy: AccessPolicy) -> ASGIApp:
    """Return the ASGI application of one pair.

    Args:
        encoder, a, b: the encoder, and the inputs.
        policy: which requests are accepted.
    """
    session, queue = pair_session.PairSession(encoder, a, b), JobQueue()
    documents = openapi.make_document_routes(openapi.PAIR_OPERATIONS, has_token=bool(policy.token))
    return assemble_app(
        [*pair_session.make_routes(session, queue, ThreadLimiter()), *documents], queue, policy
    )


def assemble_app(
    route_table: Sequence[Route],
    queue: JobQueue,
    policy: AccessPolicy,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
    timeout_seconds: float = READ_TIMEOUT_SECONDS,
) -> ASGIApp:
    """Return an ASGI application of these routes and the static files, behind the security middleware.

    Args:
        route_table: the routes.
        queue: closed when the application stops.
        policy, max_bytes, timeout_seconds: as for `make_collection_app`.
    """

    @asynccontextmanager
    async def close_queue_at_exit(_: Starlette) -> AsyncIterator[None]:
        yield
        queue.close()

    def report_missing(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        messages = {404: "no such page", 405: "method not allowed"}
        return JSONResponse({"error": messages.get(status, "internal error")}, status)

    handlers: dict[Any, Any] = {404: report_missing, 405: report_missing}
    all_routes = [*route_table, *routes.make_static_routes()]
    inner = Starlette(routes=all_routes, lifespan=close_queue_at_exit, exception_handlers=handlers)
    return SecurityMiddleware(inner, policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds)


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP protocol with a timeout for request headers, so that slow clients cannot hold connections open."""

    header_timeout_seconds = HEADER_TIMEOUT_SECONDS
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def _update_timer(self) -> None:
        """Run the timer only while no request is being answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        elif not answering and self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._header_timer = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
        super().connection_lost(exc)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(SOCKET_BACKLOG)  # a browser that connects before the server has started waits
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {describe_error(error)}; try another --port"
        ) from None
    return listener


class Server(uvicorn.Server):
    """uvicorn server that stops without an error message for each request in progress.

    uvicorn cancels requests and reports them as failures of the application. Here their connections are closed first.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_requests = asyncio.ensure_future(self._end_requests(SHUTDOWN_TIMEOUT_SECONDS))
        await super().shutdown(sockets)  # returns at once after a second Ctrl-C
        end_requests.cancel()
        await self._end_requests(0)

    async def _end_requests(self, seconds: float) -> None:
        state = self.server_state
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=seconds)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # connections notice it before their requests do
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=SHUTDOWN_TIMEOUT_SECONDS)


def make_server(app: ASGIApp, *, protocol: type[H11Protocol] = HeaderTimeoutProtocol) -> Server:
    """Return a server that is not running yet."""

    async def run_app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unless_cancelled(message: Message) -> None:
            # After a second Ctrl-C the event loop cancels Starlette's lifespan task, which reports that as a failure.
            if message["type"] != "lifespan.shutdown.failed" or "CancelledError" not in message["message"]:
                await send(message)

        with suppress(asyncio.CancelledError):  # `Server` cancels requests only when it stops
            await app(scope, receive, send_unless_cancelled)

    config = uvicorn.Config(
        run_app, http=protocol, ws="none", loop="asyncio", log_level="error", access_log=False, server_header=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=15, timeout_graceful_shutdown=10, lifespan="on",
    )  # fmt: skip
    return Server(config)


def run(
    make_app: Callable[[AccessPolicy], ASGIApp],
    *,
    host: str,
    port: int,
    on_started: Callable[[str], None],
    writable: bool = False,
) -> None:
    """Serve until interrupted.

    Args:
        make_app: builds the ASGI application for an access policy.
        host, port: where to listen; port 0 chooses a free one.
        on_started: called with the URL to open.
        writable: requests can change files, so that a token is needed on every address.
    """
    listener = bind_socket(host, port)
    policy = AccessPolicy.for_host(host, listener.getsockname()[1], writable=writable)
    app = make_app(policy)
    on_started(policy.format_url("127.0.0.1" if policy.accepts_any_address else host))
    make_server(app).run(sockets=[listener])
