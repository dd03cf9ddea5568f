"""The desk where long work waits its turn: one piece at a time, few in line, one of each visitor, none of who has left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bilrp.app.guard import Refused
from bilrp.engine.progress import watched

WAITING = 12  # pieces of work in line; who comes then is told to come again
AGAIN = 2  # seconds after which that makes sense


class Left(Exception):
    """The visitor is gone: nobody waits for this work."""


class Busy(Refused):
    """Too many are waiting."""

    def __init__(self) -> None:
        super().__init__(503, "busy: too many are waiting; try again in a moment")


@dataclass(eq=False)
class Ticket:
    """One piece of work and its place in line."""

    visitor: str
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    news: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    gone: threading.Event = field(default_factory=threading.Event)

    def tell(self, **news: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self.loop.call_soon_threadsafe(self.news.put_nowait, news)

    def watch(self, what: str, done: int, total: int) -> None:
        if self.gone.is_set():
            raise Left
        self.tell(what=what, done=done, total=total)

    async def next(self) -> dict[str, Any]:
        """What happened since: {waiting}, {what, done, total}, and at last {answer} or {error}."""
        return await self.news.get()


class Desk:
    """One worker. A visitor's newer question takes the place of an older one that is not answered yet.

    >>> desk = Desk(waiting=1)
    >>> async def ask():
    ...     return await desk.ask("me", lambda: 6 * 7).next()
    >>> asyncio.run(ask())
    {'answer': 42}
    """

    def __init__(self, *, waiting: int = WAITING) -> None:
        self.waiting, self.line, self.done, self.dropped = waiting, [], 0, 0
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bilrp-desk")

    def ask(self, visitor: str, work: Callable[[], Any]) -> Ticket:
        """Get in line; Busy where that is full."""
        ticket = Ticket(visitor, work, asyncio.get_running_loop())
        with self._lock:
            for other in self.line:
                if other.visitor == visitor:
                    other.gone.set()
            if sum(not other.gone.is_set() for other in self.line) > self.waiting:
                raise Busy
            self.line.append(ticket)
            if len(self.line) > 1:
                ticket.tell(waiting=len(self.line) - 1)
        self._worker.submit(self._serve, ticket)
        return ticket

    def _serve(self, ticket: Ticket) -> None:
        try:
            if ticket.gone.is_set():
                raise Left
            with watched(ticket.watch):
                found = ticket.work()
            self.done += 1
            ticket.tell(answer=found)
        except Left:
            self.dropped += 1
            ticket.tell(error=Refused(409, "a newer question took the place of this one"))
        except Exception as error:
            ticket.tell(error=error)
        finally:
            with self._lock:
                self.line.remove(ticket)

    def close(self) -> None:
        """Nobody is served any more."""
        with self._lock:
            for ticket in self.line:
                ticket.gone.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
