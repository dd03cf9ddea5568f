"""Uploads: each arrives in a file of its own; they are read one at a time, one of each client in line."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from starlette.requests import Request

from bilrp.app.job_queue import QueueFull
from bilrp.app.security import HTTPError

MAX_UPLOADS = 16  # that arrive or wait at once: 512 MB on disk

Read = TypeVar("Read")


class Uploads:
    """Requests with a file as their body.

    What arrives takes no memory and keeps nobody waiting, however slowly it comes. Where `limit` of them are under way,
    the client that has most of them loses its oldest one. Reading takes up to 1 GB (a large picture), so that one is read
    at a time; in that line each client has one place.
    """

    def __init__(self, limit: int = MAX_UPLOADS) -> None:
        self.limit = limit
        self._slots: list[tuple[str, asyncio.Timeout]] = []  # the oldest first
        self._client_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reader = anyio.CapacityLimiter(1)

    async def read(self, request: Request, read: Callable[[Path], Read]) -> Read:
        """Receive the body of a request in a temporary file, and read that on a worker thread."""
        client, timeout = request.client.host if request.client else "", asyncio.timeout(None)
        with tempfile.NamedTemporaryFile(prefix="bilrp-query-") as file:
            try:
                async with timeout:
                    place = self._acquire_slot(client, timeout)
                    try:
                        async for piece in request.stream():
                            file.write(piece)
                        file.flush()
                        if not file.tell():
                            raise HTTPError(422, "this is empty")
                        client_lock = self._client_locks.setdefault(client, asyncio.Lock())
                        async with client_lock:
                            self._release_slot(place)  # what is being read is not ended for another
                            path = Path(file.name)
                            return await anyio.to_thread.run_sync(read, path, limiter=self._reader)
                    finally:
                        self._release_slot(place)
            except TimeoutError:
                if timeout.expired():
                    raise QueueFull from None
                raise

    def _acquire_slot(self, client: str, timeout: asyncio.Timeout) -> tuple[str, asyncio.Timeout]:
        """A place among those under way; `timeout` ends it where somebody else needs it."""
        if len(self._slots) >= self.limit:
            clients = [name for name, _ in self._slots]
            longest = max(clients, key=clients.count)
            oldest = next(place for place in self._slots if place[0] == longest)
            self._release_slot(oldest)
            oldest[1].reschedule(asyncio.get_running_loop().time())
        place = (client, timeout)
        self._slots.append(place)
        return place

    def _release_slot(self, slot: tuple[str, asyncio.Timeout]) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
