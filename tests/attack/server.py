"""A package index on this machine, as hostile or as slow as it is told to be, and a package with a trap in it."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bilrp.encoders.downloads import Package

PAYLOAD = b"weights of a toy\n" * 1000
SETUP = """
import pathlib; pathlib.Path({witness!r}).write_text('setup.py ran')
from setuptools import setup; setup(name='toy', version='1.0')
"""


def sdist(witness: Path) -> bytes:
    """A source archive whose setup.py leaves a trace when anything builds it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        files = {
            "toy-1.0/setup.py": SETUP.format(witness=str(witness)).encode(),
            "toy-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
            "toy-1.0/../../outside.txt": b"a name that climbs",
            "toy-1.0/toy/weights.bin": PAYLOAD,
        }
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def package(
    archive: bytes, filename: str = "toy-1.0.tar.gz", member: str = "toy-1.0/toy/weights.bin"
) -> Package:
    return Package(
        "Toy", "1.0", filename, sha256=hashlib.sha256(archive).hexdigest(), size=len(archive),
        members={member: hashlib.sha256(PAYLOAD).hexdigest()},
    )  # fmt: skip


class Server:
    """An index on this machine; `routes` says what each path answers: bytes, or a function of the handler."""

    def __init__(self) -> None:
        self.routes: dict[str, bytes | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, dict(self.headers)))
                answer = outer.routes.get(self.path)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(404 if answer is None else 200)
                self.send_header(
                    "Content-Type", "text/html" if self.path.endswith("/") else "application/gzip"
                )
                self.send_header("Content-Length", str(len(answer or b"")))
                self.end_headers()
                self.wfile.write(answer or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def simple(server: Server, archive: bytes, *, link: str | None = None, name: str = "toy-1.0.tar.gz") -> None:
    """A page as PEP 503 asks, and the file."""
    link = link or f"../../files/{name}#sha256={hashlib.sha256(archive).hexdigest()}"
    server.routes["/simple/toy/"] = f'<!doctype html><a href="{link}">{name}</a>'.encode()
    server.routes[f"/files/{name}"] = archive
