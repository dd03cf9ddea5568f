"""Job queue for slow requests: one worker, a bounded queue, one pending job per client.

Jobs of disconnected clients are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bilrp.app.security import HTTPError
from bilrp.progress import report_progress_to

MAX_PENDING_JOBS = 12  # further requests get 503 and Retry-After
RETRY_AFTER_SECONDS = 2


class Cancelled(Exception):
    """The client disconnected or sent a newer request."""


class QueueFull(HTTPError):
    """Too many requests are waiting."""

    def __init__(self) -> None:
        super().__init__(503, "busy: too many requests are waiting; try again in a moment")


@dataclass(eq=False)
class Job:
    """One unit of work with the events that it emits.

    Args:
        client: id of the client that asked for it.
        work: returns the answer, called on the worker thread.
        loop: event loop of the request.
        persistent: once started, the job finishes even if the client disconnects or sends another request.
    """

    client: str
    work: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    persistent: bool = False
    events: asyncio.Queue[dict[str, object]] = field(default_factory=asyncio.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def emit(self, **event: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Emit the progress of this job, as a hook of `bilrp.progress`; raise Cancelled if its client has gone.

        Args:
            what, done, total: What is being done, and the steps done of all.
        """
        if self.cancelled.is_set() and not self.persistent:
            raise Cancelled
        self.emit(what=what, done=done, total=total)

    async def next_event(self) -> dict[str, object]:
        """Return the next event: {waiting}, {what, done, total}, and finally {answer} or {error}."""
        return await self.events.get()


class JobQueue:
    """Queue with one worker. A client's newer job replaces its older one that is not finished.

    >>> queue = JobQueue(max_pending=1)
    >>> async def ask():
    ...     return await queue.submit("me", lambda: 6 * 7).next_event()
    >>> with ThreadPoolExecutor(1) as pool:  # this thread may already run an event loop
    ...     pool.submit(asyncio.run, ask()).result()
    {'answer': 42}
    """

    def __init__(self, *, max_pending: int = MAX_PENDING_JOBS) -> None:
        self.max_pending, self.completed_count, self.cancelled_count = max_pending, 0, 0
        self.jobs: list[Job] = []  # the first one is running
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bilrp-jobs")

    def submit(self, client: str, work: Callable[[], object], *, persistent: bool = False) -> Job:
        """Enqueue a job, or raise QueueFull. It replaces the client's pending job unless either is persistent.

        Args:
            client, work, persistent: as for `Job`.
        """
        job = Job(client, work, asyncio.get_running_loop(), persistent=persistent)
        with self._lock:
            for other in self.jobs:
                if other.client == client and not (persistent or other.persistent):
                    other.cancelled.set()
            for other in [other for other in self.jobs[1:] if other.cancelled.is_set()]:
                self.jobs.remove(other)
                self._drop(other)
            if len(self.jobs) > self.max_pending:
                raise QueueFull
            if self.jobs:
                job.emit(waiting=len(self.jobs))
            else:
                self._worker.submit(self._run_all)
            self.jobs.append(job)
        return job

    def _drop(self, job: Job) -> None:
        self.cancelled_count += 1
        job.emit(error=HTTPError(409, "cancelled: a newer request replaced this one"))

    def _run_all(self) -> None:
        """Run jobs until the queue is empty."""
        with self._lock:
            job: Job | None = self.jobs[0]
        while job is not None:
            event = self._run(job)
            with self._lock:
                del self.jobs[0]  # before its client knows, whose next request would wait for it
                following = self.jobs[0] if self.jobs else None
                if event is None:
                    self._drop(job)
            if event is not None:
                job.emit(**event)
            job = following

    def _run(self, job: Job) -> dict[str, object] | None:
        """Return {answer} or {error}; None if the job was cancelled."""
        try:
            if job.cancelled.is_set():
                return None
            with report_progress_to(job.on_progress):
                answer = job.work()
        except Cancelled:
            return None
        except Exception as error:
            return {"error": error}
        self.completed_count += 1
        return {"answer": answer}

    def close(self) -> None:
        """Cancel all jobs and stop the worker."""
        with self._lock:
            for job in self.jobs:
                job.cancelled.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
