"""Requests of any bytes to a running server: no answer without the token, no redirect elsewhere, no upload delays others."""

from __future__ import annotations

import io
import random
import select
import socket
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

from PIL import Image

from app.server_helpers import run_server, tiny_encoder
from attack.budget import measure_cost
from attack.table import Row
from bilrp import collection
from bilrp.app import server

TRIALS = 40
PIECES = (
    b"/", b"//", b"\\", b"%09", b"%0a", b"%0d%0a", b"%00", b"%5c", b"%2f", b"%20", b"\t", b"\x00", b"\xff", b"%c2%85", b"..",
    b"evil.com", b"http:", b"@", b":80", b"%40evil.com", b"item", b"api/about", b";", b"%f0%9f%90%88", b"%ed%a0%80", b"%",
)  # fmt: skip
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"get", b"\xff")


class Client:
    """Raw requests on connections of their own."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None and parts.port is not None
        self.address, self.host = (parts.hostname, parts.port), parts.netloc
        self.token = parse_qs(parts.query)["token"][0]

    def send(self, method: bytes, path: bytes, body: bytes = b"", **headers: str) -> socket.socket:
        connection = socket.create_connection(self.address, 60)
        fields = {"host": self.host, "content-length": str(len(body)), **headers}
        head = b"".join(f"{name.replace('_', '-')}: {value}\r\n".encode() for name, value in fields.items())
        connection.sendall(method + b" " + path + b" HTTP/1.1\r\n" + head + b"\r\n" + body)
        return connection

    def ask(
        self, method: bytes, path: bytes, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str]]:
        """(status, headers); status 0: the connection was closed without an answer."""
        with self.send(method, path, body, connection="close", **headers) as connection:
            received = b""
            while piece := connection.recv(65536):
                received += piece
        lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split()[1]) if received else 0, fields

    def upload(self, body: bytes, **headers: str) -> socket.socket:
        return self.send(b"POST", b"/api/query", body, authorization=f"Bearer {self.token}", **headers)


def attack(seed: int, path: Path) -> Row:
    draw, row = random.Random(seed), Row("requests")
    pictures = [Image.effect_noise((32, 32), 40 + k).convert("RGB") for k in range(3)]
    indexed = collection.build(pictures, tiny_encoder(), path / "noise.lance")
    buffer = io.BytesIO()
    pictures[0].save(buffer, "PNG")
    with (
        run_server(partial(server.make_collection_app, indexed, add=True), writable=True) as address,
        measure_cost() as cost,
    ):
        client = Client(address)
        trials = (_redirect, _without_token, _upload, _slow)
        for _ in range(TRIALS):
            trial = draw.choices(trials, (12, 12, 12, 1))[0]
            wrong = trial(client, draw, buffer.getvalue())
            if wrong is None:
                row.right += 1
            else:
                row.failed("wrong", f"seed {seed}: {trial.__name__.strip('_')}: {wrong}")
        if client.ask(b"GET", b"/api/about", authorization=f"Bearer {client.token}")[0] != 200:
            row.failed("unexpected error", f"seed {seed}: the server does not answer any more")
    if cost.bytes > 10**9:
        row.failed("over budget", f"seed {seed}: {cost}")
    return row


def _redirect(client: Client, draw: random.Random, picture: bytes) -> str | None:
    path = b"/" + b"".join(draw.choices(PIECES, k=draw.randrange(1, 6)))
    status, headers = client.ask(b"GET", path + b"?token=" + client.token.encode())
    base, onward = f"http://{client.host}/", headers.get("location", "/").replace("\\", "/")
    if status == 303 and urlsplit(urljoin(base, onward)).netloc != client.host:
        return f"{path!r} is sent on to {onward!r}"
    return None if status in (303, 400, 401) else f"{path!r} is answered by {status}"


def _without_token(client: Client, draw: random.Random, picture: bytes) -> str | None:
    wrong = draw.choice(["", client.token[:-1], client.token.swapcase(), client.token + "x", "*", "\xff"])
    port, method = client.address[1], draw.choice(METHODS)
    path = draw.choice(
        [b"/", b"/api/query", b"/api/add", b"/api/items", b"/web/main.js", b"/api/export/html"]
    )
    headers = {
        "authorization": f"Bearer {wrong}",
        "cookie": f"bilrp-{port}={wrong}",
        "content_type": "image/png",
    }
    status, _ = client.ask(method, path, picture if method == b"POST" else b"", **headers)
    return (
        None
        if status == 0 or 400 <= status < 500
        else f"{method!r} {path!r} {wrong!r} is answered by {status}"
    )


def _upload(client: Client, draw: random.Random, picture: bytes) -> str | None:
    body = bytearray(picture[: draw.randrange(1, len(picture) + 1)])
    for _ in range(draw.randrange(4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    kind = draw.choice(["image/png", "application/octet-stream", "text/plain", "application/json", "x"])
    with client.upload(bytes(body), content_type=kind) as connection:
        status = int(connection.recv(12)[9:])
    return None if status in (200, 413, 415, 422) else f"{kind} is answered by {status}"


def _slow(client: Client, draw: random.Random, picture: bytes) -> str | None:
    """A whole picture is answered before uploads that never end are given up."""
    count = draw.randrange(4, 24)
    connections = [client.upload(b"", content_type="image/png", content_length="999") for _ in range(count)]
    with client.upload(picture, content_type="image/png") as honest:
        status = honest.recv(12)
    late = [
        connection
        for connection in select.select(connections, [], [], 0)[0]
        if b" 408" in connection.recv(12)
    ]
    for connection in connections:
        connection.close()
    return (
        None
        if status.endswith(b"200") and not late
        else f"{count} slow uploads: {status!r}, {len(late)} late"
    )
