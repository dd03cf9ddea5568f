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
from bilrp.app.request_handling import Counter
from bilrp.app.job_queue import Desk
from bilrp.app.security import MOST_BYTES, PATIENCE, Door, Guard
from bilrp.app.collection_session import Shelf
from bilrp.collection import Collection
from bilrp.encoder import Encoder
from bilrp.errors import InputError, reason
from bilrp.inputs import Item

VISITORS = 400  # connections at once; beyond, they are told to come again
BACKLOG = 512  # who may knock before the server answers
HEAD_PATIENCE = 10.0  # seconds until the head of a request is whole
STOP_SECONDS = 1.0  # that requests under way have to end by themselves


def collected(
    found: Collection,
    door: Door,
    *,
    most: int = MOST_BYTES,
    patience: float = PATIENCE,
    waiting: int | None = None,
    add: bool = False,
) -> Any:
    """The app on a collection, as an ASGI application; `add`: queries become items when asked."""
    if add:
        additions.check(found)
    desk, counter = (Desk() if waiting is None else Desk(waiting=waiting)), Counter()
    app = routes.Collected(Shelf(found, keep_raw=add), desk, counter)
    return assembled([*app.routes(), *routes.shared()], desk, door, most=most, patience=patience)


def paired(encoder: Encoder, a: Item, b: Item, door: Door) -> Any:
    """The app on one pair, as an ASGI application."""
    desk, counter = Desk(), Counter()
    return assembled([*pair_session.routes(pair_session.Live(encoder, a, b), desk, counter), *routes.shared()], desk, door)


def assembled(
    table: Sequence[Route], desk: Desk, door: Door, *, most: int = MOST_BYTES, patience: float = PATIENCE
) -> Any:
    """Routes behind a door."""

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        yield
        desk.close()

    def missing(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        said = {404: "there is no such page", 405: "this is not asked that way"}
        return JSONResponse({"error": said.get(status, "something went wrong")}, status)

    handlers: dict[Any, Any] = {404: missing, 405: missing}
    inner = Starlette(routes=list(table), lifespan=living, exception_handlers=handlers)
    return Guard(inner, door, most=most, patience=patience)


class Impatient(H11Protocol):
    """HTTP whose head must be whole within some seconds: a slow client can't hold a connection for ever."""

    head_patience = HEAD_PATIENCE
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """A request that is being answered is no longer late."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not answering and self._late is None:
            self._late = self.loop.call_later(self.head_patience, self._give_up)

    def _give_up(self) -> None:
        self._late = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes visitors already: port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)  # a browser may come before the server has started: it waits
    except OSError as error:
        bound.close()
        raise InputError(f"cannot listen on {host}:{port}: {reason(error)}; try another --port") from None
    return bound


class Server(uvicorn.Server):
    """uvicorn, which stops without an error message for each request under way.

    uvicorn cancels requests and then reports them as failures of the application. Here their connections are closed
    first, so that nobody waits for an answer.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(self._end_requests(STOP_SECONDS))
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
            await asyncio.wait(list(state.tasks), timeout=STOP_SECONDS)


def server(app: Any, *, protocol: type[H11Protocol] = Impatient) -> Server:
    """A server that is not running yet."""

    async def cancellable(scope: Any, receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):  # only `Server` cancels requests, when it stops
            await app(scope, receive, send)

    config = uvicorn.Config(
        cancellable, http=protocol, ws="none", loop="asyncio", log_level="error", access_log=False, server_header=False,
        limit_concurrency=VISITORS, timeout_keep_alive=15, timeout_graceful_shutdown=10, lifespan="on",
    )  # fmt: skip
    return Server(config)


def run(
    make: Callable[[Door], Any],
    *,
    host: str,
    port: int,
    started: Callable[[str], None],
    writable: bool = False,
) -> None:
    """Serve until interrupted.

    Args:
        make: builds the ASGI application for an access policy.
        host: the address to listen on.
        port: its port; 0 is any that is free.
        started: called with the address to open.
        writable: the application changes files when asked, so that a token is needed on every address.
    """
    bound = listening(host, port)
    door = Door.at(host, bound.getsockname()[1], writable=writable)
    shown = "127.0.0.1" if door.anywhere else host
    app = make(door)
    started(door.address(shown))
    server(app).run(sockets=[bound])
