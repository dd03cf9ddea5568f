"""Whatever is sent: a clear status, nothing of the file system, and the server lives on."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from server_helpers import PORT, make_client, post_query, run_server

from bilrp.app import server
from bilrp.app.job_queue import JobQueue, QueueFull
from bilrp.app.security import SECURITY_HEADERS, AccessPolicy, HTTPError

HOST = f"127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def client(photographs):
    with make_client(photographs, max_bytes=2**20) as test_client:
        yield test_client


@pytest.fixture(autouse=True)
def lives_on(client):
    yield
    assert client.get("/api/about").json()["count"] == 30


TRAVERSALS = [
    "/web/../server.py", "/web/..%2fserver.py", "/web/%2e%2e/%2e%2e/errors.py", "/page/..%5c..%5cerrors.py",
    "/web//etc/passwd", "/page/%2fetc%2fpasswd", "/web/main.js%00.css", "/web/page.html", "/page/page.html", "/web/",
    "/api/items/..%2f..%2fetc%2fpasswd/thumbnail", "/api/items/%2fetc%2fpasswd/picture", "/api/items/../../x/thumbnail",
    "/api/items/etc/passwd/picture", "/api/items/0/thumbnail", "/api/items/-1/picture", "/api/nothing", "/.git/config",
]  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out(client, path):
    reply = client.get(path)
    assert reply.status_code == 404 and "root:" not in reply.text and "import" not in reply.text
    assert "error" in reply.json()


def test_a_source_path_is_not_an_id(client, photographs, folder):
    inside = str(folder / "cat" / "cat-0.jpg")
    assert photographs.position(inside) is not None
    for key in (inside, inside[1:], "cat-0.jpg", "0", "", "q" + "0" * 31, "' OR '1'='1", "f" * 32, "F" * 32):
        assert client.post("/api/neighbours", json={"id": key}).status_code == 404, key


NAMES = [
    "evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:9999", f"127.0.0.1.evil.example:{PORT}",
    f"evil@127.0.0.1:{PORT}", "", f"localhost:{PORT}/x", f"[::1:{PORT}", f"10.0.0.1:{PORT}", "127.0.0.1:99999999",
]  # fmt: skip


@pytest.mark.parametrize("host", NAMES)
def test_another_host_is_refused(client, host):
    reply = client.get("/api/about", headers={"host": host})
    assert reply.status_code == 421 and "count" not in reply.text


ORIGINS = [
    "http://evil.example",
    "null",
    f"https://{HOST}",
    "http://127.0.0.1:9999",
    f"http://localhost:{PORT}",
    "x",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_origin_is_refused(client, photographs, origin):
    for reply in (
        client.post("/api/neighbours", json={"id": photographs.ids[0]}, headers={"origin": origin}),
        client.get("/api/about", headers={"origin": origin}),
    ):
        assert reply.status_code == 403 and "access-control-allow-origin" not in reply.headers


def test_a_cross_site_request_is_refused_and_a_link_is_not(client):
    foreign = {"sec-fetch-site": "cross-site"}
    assert client.get("/api/about", headers=foreign).status_code == 403
    assert client.get("/api/about", headers={"sec-fetch-site": "same-site"}).status_code == 403
    assert client.get("/", headers=foreign | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert client.post("/api/map", headers=foreign | {"sec-fetch-mode": "navigate"}).status_code == 403
    own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert client.get("/api/about", headers=own).status_code == 200


BODIES = [
    (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b"NaN", 400), (b'{"id": NaN}', 400), (b"\xff\xfe", 400),
    (b"[" * 100_000, 400), (b'{"id": 3}', 422), (b'{"id": "x"}', 404), (b'{"id": ["x"]}', 422),
    (b'{"id": "' + b"f" * 5000 + b'"}', 422), (b'{"id": "%s", "part": "all"}', 422), (b'{"id": "%s", "part": [-1]}', 422),
    (b'{"id": "%s", "part": [99999]}', 422), (b'{"id": "%s", "part": [1.5]}', 422), (b'{"id": "%s", "part": [true]}', 422),
    (b'{"id": "%s", "k": "many"}', 422), (b'{"id": "%s", "k": -3}', 422), (b'{"id": "%s", "similarity": "__class__"}', 422),
    (b'{"id": "%s", "part": [' + b"1," * 5000 + b"1]}", 422), (b" " * 300_000, 413),
    (b'{"id": "%s", "k": 99999999999999999999999}', 422),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), BODIES, ids=range(len(BODIES)))
def test_bad_questions_are_refused(client, photographs, body, status):
    body = body.replace(b"%s", photographs.ids[0].encode())
    reply = client.post("/api/neighbours", content=body, headers={"content-type": "application/json"})
    message = json.loads(reply.text.strip().splitlines()[-1])
    assert status in (reply.status_code, message.get("status")) and len(message["error"]) < 200


def test_a_wrong_method_or_path_is_refused(client, photographs):
    assert client.post("/api/neighbours", content=b"id=1").status_code == 415
    assert client.get("/api/neighbours").status_code == 405
    assert client.put("/api/about").status_code == client.delete("/").status_code == 405
    assert client.get("/api/items?offset=-1").status_code == 422
    assert client.get("/api/items?limit=9e9").status_code == 422
    assert len(client.get("/api/items?limit=999999").json()["items"]) == 30
    assert (
        client.get("/api/items?group=none").status_code
        == client.get("/api/groups?name=none").status_code
        == 404
    )
    for against in ([], "x", [3], [{"id": photographs.ids[0]}] * 25, None):
        reply = client.post("/api/heat", json={"id": photographs.ids[0], "against": against})
        assert reply.status_code == 422, against
    assert (
        client.post("/api/contrast", json={"id": photographs.ids[0], "first": {}, "second": 3}).status_code
        == 422
    )
    assert client.get(f"/api/export/html?a={photographs.ids[29]}&b={photographs.ids[28]}").status_code == 409


def png(wide: int, high: int) -> bytes:
    """A picture that says it is huge and is a few bytes long."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    packed = zlib.compress(bytes(200_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


UPLOADS = [
    (b"", "image/png", 422), (b"no picture", "image/png", 422), (png(100_000, 100_000), "image/png", 422),
    (png(60_000, 60_000)[:-30], "image/png", 422), (b"<svg onload='alert(1)'/>", "image/svg+xml", 422),
    (b"%!PS-Adobe-3.0 EPSF-3.0", "image/eps", 422), (b"\x80\x04cos\nsystem\n", "application/octet-stream", 422),
    (bytes(2**20 + 1), "image/png", 413), (b"a text", "text/plain", 415), (b"x", "multipart/form-data", 415),
    (b"x", "", 415), (b"\xff\xff", "text/plain", 422),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "status"), UPLOADS, ids=range(len(UPLOADS)))
def test_bad_uploads_are_refused(client, body, kind, status):
    reply = client.post("/api/query?name=../../x", content=body, headers={"content-type": kind})
    assert reply.status_code == status and "/tmp" not in reply.text and "Traceback" not in reply.text


def test_a_body_without_a_length_is_counted_as_it_comes(client):
    pieces = (bytes(2**18) for _ in range(8))
    reply = client.post("/api/query", content=pieces, headers={"content-type": "image/png"})
    assert reply.status_code == 413


def test_few_queries_are_kept_and_the_oldest_are_dropped(photographs, folder):
    from PIL import Image

    with make_client(photographs) as client:
        keys = []
        for number in range(30):
            buffer = io.BytesIO()
            Image.new("RGB", (16, 16), (number, 0, 0)).save(buffer, "PNG")
            sent = client.post("/api/query", content=buffer.getvalue(), headers={"content-type": "image/png"})
            keys.append(sent.json()["id"])
        known = [client.get(f"/api/items/{key}/thumbnail").status_code for key in keys]
        assert known == [404] * 6 + [200] * 24


def test_every_answer_has_the_security_headers(client):
    for path, status in (("/", 200), ("/api/about", 200), ("/web/main.js", 200), ("/none", 404)):
        reply = client.get(path)
        assert reply.status_code == status
        assert all(reply.headers[name] for name in SECURITY_HEADERS)
        assert "unsafe" not in reply.headers["content-security-policy"] and "server" not in reply.headers


def test_a_token_is_required_beyond_loopback(photographs):
    policy = AccessPolicy.for_host("192.168.1.9", PORT)
    assert policy.token and len(policy.token) > 24
    with make_client(photographs, policy=policy, host=f"192.168.1.9:{PORT}") as client:
        assert client.get("/api/about").status_code == client.get("/?token=wrong").status_code == 401
        assert client.get("/api/about", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/about", headers={"cookie": "bilrp=wrong"}).status_code == 401
        assert client.post(f"/api/map?token={policy.token}").status_code == 401
        reply = client.get("/api/about", headers={"authorization": f"Bearer {policy.token}"})
        assert reply.status_code == 200
        arrived = client.get(f"/?token={policy.token}", follow_redirects=False)
        assert arrived.status_code == 303 and arrived.headers["location"] == "/"
        assert (
            "HttpOnly" in arrived.headers["set-cookie"] and "SameSite=Strict" in arrived.headers["set-cookie"]
        )
        assert client.get("/api/about").status_code == 200  # by the cookie
        evil = client.get(f"//evil.example/?token={policy.token}", follow_redirects=False)
        assert not evil.headers.get("location", "/").startswith("//")


def test_open_to_every_address_a_name_is_still_refused(photographs):
    policy = AccessPolicy.for_host("0.0.0.0", PORT)
    word = {"authorization": f"Bearer {policy.token}"}
    with make_client(photographs, policy=policy, host=f"10.1.2.3:{PORT}") as client:
        assert client.get("/api/about", headers=word).status_code == 200
        assert client.get("/api/about", headers=word | {"host": f"evil.example:{PORT}"}).status_code == 421


# ------------------------------------------------------------ over a real socket


class Hasty(server.HeaderTimeoutProtocol):
    header_timeout_seconds = 0.3


def socket_to(address: str) -> socket.socket:
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.settimeout(120)
    return connection


def test_a_client_that_never_finishes_its_headers_is_disconnected(photographs):
    with run_server(partial(server.make_collection_app, photographs), protocol=Hasty) as address:
        name = urlsplit(address).netloc.encode()
        with socket_to(address) as slow:  # a head that never ends
            slow.sendall(b"GET / HTTP/1.1\r\nHost: " + name + b"\r\nX: ")
            assert slow.recv(1000) == b""
        with socket_to(address) as silent:
            assert silent.recv(1000) == b""


class Calm(server.HeaderTimeoutProtocol):
    header_timeout_seconds = 600.0


def test_a_client_that_never_sends_a_body_gets_an_error(photographs):
    with run_server(
        partial(server.make_collection_app, photographs, timeout_seconds=0.5), protocol=Calm
    ) as address:
        name = urlsplit(address).netloc.encode()
        with socket_to(address) as slow:  # a body that never comes
            slow.sendall(
                b"POST /api/query HTTP/1.1\r\nHost: " + name
                + b"\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\nabc"
            )  # fmt: skip
            assert b" 408 " in slow.recv(1000)
        with socket_to(address) as rude:
            rude.sendall(b"\x16\x03\x01 no http at all\r\n\r\n")
            assert b" 400 " in rude.recv(1000)
        with socket_to(address) as polite:
            polite.sendall(b"GET /api/about HTTP/1.1\r\nHost: " + name + b"\r\nConnection: close\r\n\r\n")
            assert polite.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_full_queue_is_busy_and_closed_connections_are_not_served(photographs):
    """One job runs; two may wait, the third gets 503, and jobs of closed connections are dropped."""
    started, go = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        go.wait(120)
        return "done"

    async def run() -> list[object]:
        queue = JobQueue(max_pending=2)
        first = queue.submit("first", slow)
        started.wait(120)
        second, third = queue.submit("second", lambda: 2), queue.submit("third", lambda: 3)
        with pytest.raises(QueueFull):
            queue.submit("fourth", lambda: 4)
        second.cancelled.set()  # left
        repeated = queue.submit("third", lambda: "newer")  # takes the place of the older question
        go.set()
        events = [await job.next_event() for job in (first, repeated)]
        while "answer" not in events[1]:
            events[1] = await repeated.next_event()
        dropped = [await third.next_event()]
        while "error" not in dropped[0]:
            dropped[0] = await third.next_event()
        error = dropped[0]["error"]
        assert isinstance(error, HTTPError)
        queue.close()
        return [
            events[0]["answer"],
            events[1]["answer"],
            error.status,
            queue.completed_count,
            queue.cancelled_count,
        ]

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop already
        assert thread.submit(asyncio.run, run()).result() == ["done", "newer", 409, 2, 2]


def test_a_client_that_disconnects_ends_the_work(photographs, monkeypatch):
    """The engine itself is stopped in the middle: it reports progress, and learns that the client is gone."""
    from bilrp.app.collection_session import CollectionSession
    from bilrp.progress import progress_bar

    started, ended, hung_up = threading.Event(), threading.Event(), threading.Event()

    def endless(self: CollectionSession, key: str) -> None:
        try:
            with progress_bar(False) as bar:
                bar.start("regions", 10**9)
                started.set()
                while True:
                    hung_up.wait(0.01)
                    bar.advance()
        finally:
            ended.set()

    monkeypatch.setattr(CollectionSession, "parts", endless)
    with run_server(partial(server.make_collection_app, photographs)) as address:
        name = urlsplit(address).netloc.encode()
        body = json.dumps({"id": photographs.ids[0]}).encode()
        with socket_to(address) as leaving:
            leaving.sendall(
                b"POST /api/side HTTP/1.1\r\nHost: " + name + b"\r\nContent-Type: application/json\r\n"
                b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
            )  # fmt: skip
            assert started.wait(120)
            assert b'"what":"regions"' in leaving.recv(4000) + leaving.recv(4000)
        assert ended.wait(120)


def test_a_full_queue_answers_503_with_retry_after(photographs):
    with make_client(photographs, max_pending=-1) as client:
        reply = client.post("/api/side", json={"id": photographs.ids[0]})
        assert reply.status_code == 503 and reply.headers["retry-after"] and "busy" in reply.json()["error"]
        assert (
            post_query(client, "/api/neighbours", id=photographs.ids[0])["of"] == 30
        )  # what is quick is answered


def test_answers_do_not_disclose_paths(client, photographs, folder: Path):
    replies = [client.get(p).text for p in ("/api/about", "/api/items", "/api/groups?name=cat")]
    replies += [client.post("/api/side", json={"id": photographs.ids[0]}).text]
    assert not any(str(folder) in text or str(Path(photographs.path).parent) in text for text in replies)
