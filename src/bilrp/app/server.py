"""The server: a collection (or a pair) behind its door, on one port, until it is told to stop."""

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
from uvicorn.protocols.http.h11_impl import H11Protocol

from bilrp.app import additions, pair_session, routes
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import ThreadLimiter
from bilrp.app.security import MAX_REQUEST_BYTES, READ_TIMEOUT_SECONDS, AccessPolicy, SecurityMiddleware
from bilrp.collection import Collection
from bilrp.encoder import Encoder
from bilrp.errors import InputError, describe_error
from bilrp.inputs import Item

MAX_CONNECTIONS = 400  # connections at once; beyond, they are told to come again
SOCKET_BACKLOG = 512  # who may knock before the server answers
HEADER_TIMEOUT_SECONDS = 10.0  # seconds until the head of a request is whole
SHUTDOWN_TIMEOUT_SECONDS = 1.0  # that requests under way have to end by themselves


def make_collection_app(
    collection: Collection,
    policy: AccessPolicy,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
    timeout_seconds: float = READ_TIMEOUT_SECONDS,
    max_pending: int | None = None,
    add: bool = False,
) -> Any:
    """The app on a collection, as an ASGI application; `add`: queries become items when asked."""
    if add:
        additions.check_writable(collection)
    desk, counter = (
        (JobQueue() if max_pending is None else JobQueue(max_pending=max_pending)),
        ThreadLimiter(),
    )
    app = routes.CollectionRoutes(CollectionSession(collection, retain_uploads=add), desk, counter)
    return assemble_app(
        [*app.make_routes(), *routes.make_static_routes()],
        desk,
        policy,
        max_bytes=max_bytes,
        timeout_seconds=timeout_seconds,
    )


def make_pair_app(encoder: Encoder, a: Item, b: Item, policy: AccessPolicy) -> Any:
    """The app on one pair, as an ASGI application."""
    desk, counter = JobQueue(), ThreadLimiter()
    return assemble_app(
        [
            *pair_session.make_routes(pair_session.PairSession(encoder, a, b), desk, counter),
            *routes.make_static_routes(),
        ],
        desk,
        policy,
    )


def assemble_app(
    route_table: Sequence[Route],
    queue: JobQueue,
    policy: AccessPolicy,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
    timeout_seconds: float = READ_TIMEOUT_SECONDS,
) -> Any:
    """Routes behind a door."""

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        yield
        queue.close()

    def missing(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        said = {404: "there is no such page", 405: "this is not asked that way"}
        return JSONResponse({"error": said.get(status, "something went wrong")}, status)

    handlers: dict[Any, Any] = {404: missing, 405: missing}
    inner = Starlette(routes=list(route_table), lifespan=living, exception_handlers=handlers)
    return SecurityMiddleware(inner, policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds)


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP whose head must be whole within some seconds: a slow client can't hold a connection for ever."""

    header_timeout_seconds = HEADER_TIMEOUT_SECONDS
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def _update_timer(self) -> None:
        """A request that is being answered is no longer late."""
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
    """A socket that takes visitors already: port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(SOCKET_BACKLOG)  # a browser may come before the server has started: it waits
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {describe_error(error)}; try another --port"
        ) from None
    return bound


class Server(uvicorn.Server):
    """uvicorn, which stops without an error message for each request under way.

    uvicorn cancels requests and then reports them as failures of the application. Here their connections are closed
    first, so that nobody waits for an answer.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(self._end_requests(SHUTDOWN_TIMEOUT_SECONDS))
        await super().shutdown(sockets)  # at once after a second Ctrl-C
        ending.cancel()
        await self._end_requests(0)

    async def _end_requests(self, seconds: float) -> None:
        state = self.server_state
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=seconds)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # connections hear of it before their requests do
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=SHUTDOWN_TIMEOUT_SECONDS)


def make_server(app: Any, *, protocol: type[H11Protocol] = HeaderTimeoutProtocol) -> Server:
    """A server that is not running yet."""

    async def cancellable(scope: Any, receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):  # only `Server` cancels requests, when it stops
            await app(scope, receive, send)

    config = uvicorn.Config(
        cancellable, http=protocol, ws="none", loop="asyncio", log_level="error", access_log=False, server_header=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=15, timeout_graceful_shutdown=10, lifespan="on",
    )  # fmt: skip
    return Server(config)


def run(
    make_app: Callable[[AccessPolicy], Any],
    *,
    host: str,
    port: int,
    on_started: Callable[[str], None],
    writable: bool = False,
) -> None:
    """Serve until interrupted.

    Args:
        make_app: builds the ASGI application for an access policy.
        host: the address to listen on.
        port: its port; 0 is any that is free.
        on_started: called with the address to open.
        writable: the application changes files when asked, so that a token is needed on every address.
    """
    bound = bind_socket(host, port)
    door = AccessPolicy.for_host(host, bound.getsockname()[1], writable=writable)
    shown = "127.0.0.1" if door.accepts_any_address else host
    app = make_app(door)
    on_started(door.format_url(shown))
    make_server(app).run(sockets=[bound])
