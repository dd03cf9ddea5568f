"""Hostile indexes and killed downloads: no code runs, no wrong file is cached, no process or file is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest import mock

from attack.mutate import mutate_bytes
from attack.server import PAYLOAD, Server, package, sdist, simple
from attack.table import Row
from bilrp.encoders import downloads
from bilrp.errors import BilrpError

TRIALS = 12  # a round; each starts a Python process
SLOW = 0.02  # seconds between pieces of a file that is fetched and killed

FETCHING = """
import sys
from attack.server import package
from bilrp.encoders import downloads
archive = open(sys.argv[1], "rb").read()
print("begun", flush=True)
downloads.fetch(package(archive))
"""


def attack(seed: int, path: Path) -> Row:
    draw, row, server = random.Random(seed), Row("fetches"), Server()
    archive = sdist(path / "executed")
    expected = package(archive)
    settings = {
        "PIP_INDEX_URL": f"{server.url}/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_TIMEOUT": "2", "PIP_RETRIES": "0",
    }  # fmt: skip
    try:
        for trial in range(TRIALS):
            simple(server, archive)
            harm = _damage(draw, server, archive, path)
            description = f"seed {seed} trial {trial} ({harm})"
            try:
                with mock.patch.dict(os.environ, settings):
                    data = downloads.download(expected)
            except BilrpError as error:
                row.refused += "\n" not in str(error)
                if "\n" in str(error):
                    row.failed("unexpected error", f"{description}: more than one line: {error}")
                continue
            except Exception as error:
                row.failed("unexpected error", f"{description}: {type(error).__name__}: {error}")
                continue
            if data == archive and downloads.extract_members(data, expected) == {
                "toy-1.0/toy/weights.bin": PAYLOAD
            }:
                row.right += 1
            else:
                row.failed("wrong", f"{description}: another file was taken")
            if (path / "executed").exists():
                row.failed("executed", description)
    finally:
        server.close()
    return row


def _damage(draw: random.Random, server: Server, archive: bytes, path: Path) -> str:
    """Change what the index says or sends."""
    file, page = "/files/toy-1.0.tar.gz", "/simple/toy/"
    secret = path / "toy-1.0.tar.gz"
    secret.write_bytes(archive)
    elsewhere = (secret.as_uri(), "ftp://x/", file, "http://[", "//", "\\\\")
    ways: dict[str, Callable[[], object]] = {
        "another file": lambda: server.routes.update({file: mutate_bytes(archive, draw)}),
        "another page": lambda: server.routes.update({page: mutate_bytes(bytes(server.routes[page]), draw)}),  # type: ignore[arg-type]
        "a page of JSON": lambda: server.routes.update(
            {page: mutate_bytes(b'{"files": [{"filename": "toy-1.0.tar.gz", "url": "../../files/toy-1.0.tar.gz"}]}', draw)}
        ),
        "random page": lambda: server.routes.update({page: draw.randbytes(draw.randrange(5000))}),
        "a redirect": lambda: server.routes.update({file: _redirect(draw.choice(elsewhere))}),
        "a status": lambda: server.routes.update({draw.choice((file, page)): _status(draw.randrange(100, 600))}),
        "a short answer": lambda: server.routes.update({file: _short(archive[: draw.randrange(len(archive))])}),
        "nothing": lambda: None,
    }  # fmt: skip
    way = draw.choice(list(ways))
    ways[way]()
    return way


def _redirect(to: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.end_headers()

    return answer


def _status(code: int) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.end_headers()

    return answer


def _short(data: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data) + 100))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def kill(draw: random.Random, row: Row, location: Path, seed: int, count: int) -> None:
    """Fetches killed at any moment, also while pip runs: its process ends too, and the next fetch leaves nothing."""
    server, cache, passing = Server(), location / "cache", location / "passing"
    passing.mkdir(parents=True)
    archive = sdist(location / "executed")
    (location / "archive").write_bytes(archive)
    simple(server, archive)
    server.routes["/files/toy-1.0.tar.gz"] = _slow(archive)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_INDEX_URL": f"{server.url}/simple", "PIP_CONFIG_FILE": os.devnull, "BILRP_CACHE": str(cache),
        "TMPDIR": str(passing), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    command = [sys.executable, "-P", "-c", FETCHING, str(location / "archive")]
    try:
        for trial in range(count):
            child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=location)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(draw.uniform(0.0, 2.5))
            others = _children(child.pid)
            child.send_signal(signal.SIGKILL)
            child.communicate()
            until = time.monotonic() + 10  # a busy machine takes its time to end one
            while any(map(_lives, others)) and time.monotonic() < until:
                time.sleep(0.05)
            description = f"seed {seed} fetch {trial}"
            if living := [each for each in others if _lives(each)]:
                row.failed("leftover files", f"{description}: {len(living)} processes go on")
            elif stored := [
                p for p in cache.rglob("*") if p.is_file() and p.read_bytes() != PAYLOAD and not _partial(p)
            ]:
                row.failed("lost", f"{description}: {stored[0].name} is torn")
            else:
                row.right += 1
        server.routes["/files/toy-1.0.tar.gz"] = archive
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=location, check=False
        )
        results = [path for folder in (passing, cache) for path in folder.rglob("*") if path.is_file()]
        left = [path.name for path in results if path.name != "weights.bin"]
        if done.returncode or left:
            row.failed("leftover files", f"seed {seed}: after the next fetch: {left} {done.stderr[-200:]}")
        if (location / "executed").exists():
            row.failed("executed", f"seed {seed}: setup.py ran")
    finally:
        server.close()


def _slow(data: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for position in range(0, len(data), 16):
                handler.wfile.write(data[position : position + 16])
                time.sleep(SLOW)
        except OSError:  # the client is gone
            pass

    return answer


def _partial(path: Path) -> bool:
    from bilrp.io.files import is_partial

    return is_partial(path)


def _children(process: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
