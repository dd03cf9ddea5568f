"""The desk where long work waits its turn: one piece at a time, few in line, one of each visitor, none of who has left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bilrp.app.security import Refused
from bilrp.progress import watched

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
    lasting: bool = False  # once begun it is finished, whoever leaves and whatever is asked next
    news: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    gone: threading.Event = field(default_factory=threading.Event)

    def tell(self, **news: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self.loop.call_soon_threadsafe(self.news.put_nowait, news)

    def watch(self, what: str, done: int, total: int) -> None:
        if self.gone.is_set() and not self.lasting:
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
    >>> with ThreadPoolExecutor(1) as elsewhere:  # here a loop may be running already
    ...     elsewhere.submit(asyncio.run, ask()).result()
    {'answer': 42}
    """

    def __init__(self, *, waiting: int = WAITING) -> None:
        self.waiting, self.done, self.dropped = waiting, 0, 0
        self.line: list[Ticket] = []  # the first is at work
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bilrp-desk")

    def ask(self, visitor: str, work: Callable[[], Any], *, lasting: bool = False) -> Ticket:
        """Get in line; Busy where that is full. What is lasting takes no other question's place, and none takes its."""
        ticket = Ticket(visitor, work, asyncio.get_running_loop(), lasting=lasting)
        with self._lock:
            for other in self.line:
                if other.visitor == visitor and not (lasting or other.lasting):
                    other.gone.set()
            for other in [other for other in self.line[1:] if other.gone.is_set()]:
                self.line.remove(other)  # now: nothing of it waits for the worker
                self._drop(other)
            if len(self.line) > self.waiting:
                raise Busy
            if self.line:
                ticket.tell(waiting=len(self.line))
            else:
                self._worker.submit(self._serve_all)
            self.line.append(ticket)
        return ticket

    def _drop(self, ticket: Ticket) -> None:
        self.dropped += 1
        ticket.tell(error=Refused(409, "a newer question took the place of this one"))

    def _serve_all(self) -> None:
        """Whoever is in line, until nobody is."""
        with self._lock:
            ticket: Ticket | None = self.line[0]
        while ticket is not None:
            self._serve(ticket)
            with self._lock:
                del self.line[0]
                ticket = self.line[0] if self.line else None

    def _serve(self, ticket: Ticket) -> None:
        try:
            if ticket.gone.is_set():
                raise Left
            with watched(ticket.watch):
                found = ticket.work()
            self.done += 1
            ticket.tell(answer=found)
        except Left:
            with self._lock:
                self._drop(ticket)
        except Exception as error:
            ticket.tell(error=error)

    def close(self) -> None:
        """Nobody is served any more."""
        with self._lock:
            for ticket in self.line:
                ticket.gone.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
