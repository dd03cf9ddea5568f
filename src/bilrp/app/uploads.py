"""Uploads: each is received into a temporary file; files are read one at a time, one per client waiting."""

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

MAX_UPLOADS = 16  # received or waiting at once: 512 MB on disk

Read = TypeVar("Read")


class Uploads:
    """Requests with a file as their body.

    Bodies are written to disk as they arrive, so slow uploads take no memory and do not block others. When `limit` uploads
    are in progress, the oldest one of the client with the most is cancelled. Decoding a large image takes up to 1 GB, so
    one file is read at a time, and each client has one file waiting.
    """

    def __init__(self, limit: int = MAX_UPLOADS) -> None:
        self.limit = limit
        self._slots: list[tuple[str, asyncio.Timeout]] = []  # oldest first
        self._client_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reader = anyio.CapacityLimiter(1)

    async def read(self, request: Request, read: Callable[[Path], Read]) -> Read:
        """Receive the request body into a temporary file and call `read` with its path on a worker thread."""
        client, timeout = request.client.host if request.client else "", asyncio.timeout(None)
        with tempfile.NamedTemporaryFile(prefix="bilrp-query-") as file:
            try:
                async with timeout:
                    slot = self._acquire_slot(client, timeout)
                    try:
                        async for piece in request.stream():
                            file.write(piece)
                        file.flush()
                        if not file.tell():
                            raise HTTPError(422, "the file is empty")
                        client_lock = self._client_locks.setdefault(client, asyncio.Lock())
                        async with client_lock:
                            self._release_slot(slot)  # a file being read is not cancelled for another upload
                            path = Path(file.name)
                            return await anyio.to_thread.run_sync(read, path, limiter=self._reader)
                    finally:
                        self._release_slot(slot)
            except TimeoutError:
                if timeout.expired():
                    raise QueueFull from None
                raise

    def _acquire_slot(self, client: str, timeout: asyncio.Timeout) -> tuple[str, asyncio.Timeout]:
        """Take a slot; `timeout` expires if the slot is needed for another client's upload."""
        if len(self._slots) >= self.limit:
            clients = [name for name, _ in self._slots]
            longest = max(clients, key=clients.count)
            oldest = next(slot for slot in self._slots if slot[0] == longest)
            self._release_slot(oldest)
            oldest[1].reschedule(asyncio.get_running_loop().time())
        slot = (client, timeout)
        self._slots.append(slot)
        return slot

    def _release_slot(self, slot: tuple[str, asyncio.Timeout]) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
