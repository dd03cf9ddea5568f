"""Many uploads: one client does not delay another, and what they leave in memory is bounded."""

from __future__ import annotations

import asyncio
import gc
import io
import select
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from server_helpers import ServerProcess, build_index, run_server
from starlette.requests import Request

from bilrp import collection
from bilrp.app import collection_session, server
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import QueueFull
from bilrp.app.uploads import MAX_UPLOADS, Uploads

WIDE, HIGH = 1600, 1200  # pixels, all of which are stored for the screen


def jpeg(number: int) -> bytes:
    """A photograph of one colour, another for each number."""
    buffer = io.BytesIO()
    Image.new("RGB", (WIDE, HIGH), (number % 16 * 16, number // 16 % 16 * 16, 128)).save(
        buffer, "JPEG", quality=95
    )
    return buffer.getvalue()


def post(address: str, length: int, body: bytes) -> socket.socket:
    """A connection with an upload of that length, of which only `body` is sent."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port), 120)
    head = (
        "POST /api/query HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: image/jpeg",
        f"Content-Length: {length}",
    )
    connection.sendall("\r\n".join((*head, "", "")).encode() + body)
    return connection


@pytest.mark.parametrize("slow", [6, MAX_UPLOADS + 4])
def test_slow_uploads_delay_no_other_client(photographs: collection.Collection, slow: int) -> None:
    """Who sends a whole picture is answered while the others are still sending theirs."""
    with run_server(partial(server.make_collection_app, photographs, timeout_seconds=60)) as address:
        connections = [post(address, 1000, b"abc") for _ in range(slow)]
        with post(address, len(jpeg(0)), jpeg(0)) as honest:
            assert honest.recv(15) == b"HTTP/1.1 200 OK"
        waiting = list(connections)
        while len(waiting) > min(slow, MAX_UPLOADS):  # of 16 places, the oldest lose theirs
            for connection in select.select(waiting, [], [], 60)[0]:
                assert b" 503 " in connection.recv(100)
                waiting.remove(connection)
        assert select.select(waiting, [], [], 0)[0] == [], "no other is answered yet"
        for connection in connections:
            connection.close()


def upload(client: str, receive: Callable[[], Any]) -> Request:
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": (client, 1)}
    return Request(scope, receive)


def run_in_new_loop(coroutine: Any) -> Any:
    """Run a coroutine where no loop is running: this thread may have one already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def test_the_client_with_most_uploads_loses_its_oldest() -> None:
    async def run() -> list[str]:
        uploads, ended, never = Uploads(limit=4), list[str](), asyncio.Event()

        async def arrive(name: str) -> None:
            async def receive() -> Any:
                await never.wait()

            try:
                await uploads.read(upload(name[0], receive), Path.read_bytes)
            except QueueFull:
                ended.append(name)

        tasks = []
        for name in ("a1", "b1", "a2", "a3", "b2", "c1", "a4"):
            tasks.append(asyncio.ensure_future(arrive(name)))
            for _ in range(20):
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ended

    assert run_in_new_loop(run()) == ["a1", "b1", "a2"]


def test_uploads_are_read_one_at_a_time_and_clients_take_turns() -> None:
    started, go, order, inside = threading.Event(), threading.Event(), list[str](), list[int]()

    def read(file: Path) -> None:
        inside.append(1)
        started.set()
        go.wait(120)
        order.append(file.read_text())
        assert len(inside) == 1
        inside.pop()

    async def run() -> None:
        uploads = Uploads()

        async def arrive(name: str) -> None:
            async def receive() -> Any:
                return {"type": "http.request", "body": name.encode(), "more_body": False}

            await uploads.read(upload(name[0], receive), read)

        tasks = [asyncio.ensure_future(arrive(name)) for name in ("a1", "a2", "a3", "a4", "b1", "c1")]
        while not started.is_set():
            await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(*tasks)

    run_in_new_loop(run())
    assert order[0] == "a1" and set(order[1:3]) == {"b1", "c1"} and order[3:] == ["a2", "a3", "a4"]


def save_photograph(path: Path, number: int) -> Path:
    file = path / f"{number}.jpg"
    file.write_bytes(jpeg(number))
    return file


def test_dropped_uploads_leave_neither_parts_nor_picture(
    photographs: collection.Collection, tmp_path: Path
) -> None:
    session, views = CollectionSession(photographs), []
    for number in range(2 * collection_session.MAX_QUERIES):
        key, _ = session.add_query(save_photograph(tmp_path, number), "a.jpg")
        views.append(weakref.ref(session.view(key)))
        session.parts(key)
        session.sparse_parts(key)
    gc.collect()
    alive = [view() is not None for view in views]
    assert alive == [False] * collection_session.MAX_QUERIES + [True] * collection_session.MAX_QUERIES
    assert session.cached_bytes >= 2 * collection_session.MAX_QUERIES * WIDE * HIGH * 3, (
        "a picture is counted where it is stored"
    )


def test_bytes_of_queries_and_of_parts_are_bounded(
    photographs: collection.Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = WIDE * HIGH * 3
    monkeypatch.setattr(collection_session, "MAX_QUERY_BYTES", 4 * picture)
    monkeypatch.setattr(collection_session, "MAX_PARTS_BYTES", 3 * picture)
    for keep_raw in (False, True):
        session, key = CollectionSession(photographs, retain_uploads=keep_raw), ""
        for number in range(6):
            key, _ = session.add_query(save_photograph(tmp_path, number), "a.jpg")
            session.parts(key)
            assert session.query_bytes <= 4 * picture and session._parts.nbytes <= 3 * picture
        assert len(session._queries) == 3 and len(session._parts._entries) == 2
        assert len(session.get_query(key).raw) == (len(jpeg(5)) if keep_raw else 0)


def resident(process: int) -> int:
    """Bytes of memory that a process has now."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory of a process is read from /proc")
def test_memory_levels_off_over_rounds_of_uploads(folder: Path, tmp_path: Path) -> None:
    """Each round brings more pictures than are held, and has each explained; from the second on nothing is added."""
    each = collection_session.MAX_QUERIES + 6
    with ServerProcess(tmp_path, build_index(tmp_path, folder / "cat")) as serving:
        levels = []
        for start in range(0, 4 * each, each):
            for number in range(start, start + each):
                status, query = serving.request(f"/api/query?name={number}.jpg", jpeg(number))
                assert status == 200
                assert serving.request("/api/side", {"id": query["id"]})[0] == 200
            levels.append(resident(serving.process.pid))
        serving.stop(signal.SIGTERM)
    print(f"MB after each round of {each}: {[level // 10**6 for level in levels]}")
    one_round = each * WIDE * HIGH * 3
    assert levels[-1] - levels[1] < one_round / 2, levels
