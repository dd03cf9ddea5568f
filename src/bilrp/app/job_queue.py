"""The queue where long work waits its turn: one piece at a time, few in line, one of each visitor, none of who has left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bilrp.app.security import HTTPError
from bilrp.progress import report_progress_to

MAX_PENDING_JOBS = 12  # pieces of work in line; who comes then is told to come again
RETRY_AFTER_SECONDS = 2  # seconds after which that makes sense


class Cancelled(Exception):
    """The visitor is gone: nobody waits for this work."""


class QueueFull(HTTPError):
    """Too many are waiting."""

    def __init__(self) -> None:
        super().__init__(503, "busy: too many are waiting; try again in a moment")


@dataclass(eq=False)
class Job:
    """One piece of work and its place in line."""

    client: str
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    persistent: bool = False  # once begun it is finished, whoever leaves and whatever is asked next
    events: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def emit(self, **event: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)

    def on_progress(self, what: str, done: int, total: int) -> None:
        if self.cancelled.is_set() and not self.persistent:
            raise Cancelled
        self.emit(what=what, done=done, total=total)

    async def next_event(self) -> dict[str, Any]:
        """What happened since: {waiting}, {what, done, total}, and at last {answer} or {error}."""
        return await self.events.get()


class JobQueue:
    """One worker. A visitor's newer question takes the place of an older one that is not answered yet.

    >>> queue = JobQueue(max_pending=1)
    >>> async def ask():
    ...     return await queue.submit("me", lambda: 6 * 7).next_event()
    >>> with ThreadPoolExecutor(1) as elsewhere:  # here a loop may be running already
    ...     elsewhere.submit(asyncio.run, ask()).result()
    {'answer': 42}
    """

    def __init__(self, *, max_pending: int = MAX_PENDING_JOBS) -> None:
        self.max_pending, self.completed_count, self.cancelled_count = max_pending, 0, 0
        self.jobs: list[Job] = []  # the first is at work
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bilrp-jobs")

    def submit(self, client: str, work: Callable[[], Any], *, persistent: bool = False) -> Job:
        """Get in line; QueueFull where that is full. What is persistent takes no other question's place, and none
        takes its.
        """
        ticket = Job(client, work, asyncio.get_running_loop(), persistent=persistent)
        with self._lock:
            for other in self.jobs:
                if other.client == client and not (persistent or other.persistent):
                    other.cancelled.set()
            for other in [other for other in self.jobs[1:] if other.cancelled.is_set()]:
                self.jobs.remove(other)  # now: nothing of it waits for the worker
                self._drop(other)
            if len(self.jobs) > self.max_pending:
                raise QueueFull
            if self.jobs:
                ticket.emit(waiting=len(self.jobs))
            else:
                self._worker.submit(self._run_all)
            self.jobs.append(ticket)
        return ticket

    def _drop(self, job: Job) -> None:
        self.cancelled_count += 1
        job.emit(error=HTTPError(409, "a newer question took the place of this one"))

    def _run_all(self) -> None:
        """Whoever is in line, until nobody is."""
        with self._lock:
            ticket: Job | None = self.jobs[0]
        while ticket is not None:
            self._run(ticket)
            with self._lock:
                del self.jobs[0]
                ticket = self.jobs[0] if self.jobs else None

    def _run(self, job: Job) -> None:
        try:
            if job.cancelled.is_set():
                raise Cancelled
            with report_progress_to(job.on_progress):
                found = job.work()
            self.completed_count += 1
            job.emit(answer=found)
        except Cancelled:
            with self._lock:
                self._drop(job)
        except Exception as error:
            job.emit(error=error)

    def close(self) -> None:
        """Nobody is served any more."""
        with self._lock:
            for ticket in self.jobs:
                ticket.cancelled.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
