"""Who is let in: the token, where a browser is sent after it, and what a server that writes asks for."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from server_helpers import PORT, ServerProcess, build_index, make_client

from bilrp.app.security import AccessPolicy

HOST = "192.168.1.9"
PATHS = [
    "/%09/evil.com", "/%0a/evil.com", "/%0d/evil.com", "/%0d%0aset-cookie:x", "//evil.com", "/%2fevil.com",
    "/%5cevil.com", "/%09%5cevil.com", "///evil.com", "/%20/evil.com", "/%00/evil.com", "/%7f/evil.com",
    "/%c2%85/evil.com", "/%e2%80%a8/evil.com", "/..//evil.com", "/%2e%2e//evil.com", "/http:evil.com",
    "/%f0%9f%90%88", "/%ff", "/a%3fb%23c", "/item/0a", "/",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_redirect_after_a_token_stays_on_this_server(photographs: Any, path: str) -> None:
    policy = AccessPolicy.for_host(HOST, PORT)
    with make_client(photographs, policy=policy, host=f"{HOST}:{PORT}") as client:
        base = f"http://{HOST}:{PORT}"
        reply = client.get(f"{base}{path}?token={policy.token}", follow_redirects=False)
    assert reply.status_code == 303 and reply.headers.get_list("set-cookie") != []
    onward = reply.headers["location"]
    assert re.fullmatch(r"/([!-.0-~][!-~]*)?", onward) and "\\" not in onward
    for seen in (onward, onward.replace("\\", "/")):  # urljoin drops tabs and line breaks as browsers do
        assert urlsplit(urljoin(base, seen)).netloc == f"{HOST}:{PORT}"


@pytest.mark.browser
def test_a_browser_stays_on_this_server_after_a_token(chromium: Any, folder: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, build_index(tmp_path, folder / "cat"), "--add") as serving:
        tab = chromium.new_page()
        requested: list[str] = []
        tab.on("request", lambda request: requested.append(request.url))
        tab.goto(f"http://{serving.netloc}/%09/evil.com?token={serving.token}", timeout=90_000)
        assert {urlsplit(url).netloc for url in requested} == {serving.netloc} and len(requested) >= 2
        tab.goto(serving.address, timeout=90_000)
        tab.wait_for_selector(".grid li img", timeout=90_000)  # thumbnails come by the cookie
        assert tab.url == f"http://{serving.netloc}/"
        tab.close()


@pytest.mark.slow
def test_a_server_that_adds_needs_its_token_on_loopback_too(folder: Path, tmp_path: Path) -> None:
    name, picture = build_index(tmp_path, folder / "cat"), (folder / "coffee" / "coffee-0.jpg").read_bytes()
    with ServerProcess(tmp_path, name, "--add") as serving:
        token, wrong = serving.token, {"authorization": "Bearer wrong"}
        assert urlsplit(serving.address).hostname == "127.0.0.1" and len(token) > 24
        for path, body in (
            ("/api/about", None),
            ("/api/query", picture),
            ("/api/add", {"id": "q" + "0" * 31}),
        ):
            status, answer = serving.request(path, body, **wrong)
            assert status == 401 and "token" in answer["error"], path
        status, query = serving.request("/api/query?name=coffee.jpg", picture)
        assert status == 200 and serving.request("/api/add", {"id": query["id"]})[1]["answer"]["new"]
        assert token not in "".join(serving.stop(signal.SIGTERM))
    with ServerProcess(tmp_path, name) as reading:
        assert reading.token == "" and reading.request("/api/about")[0] == 200, "looking at it needs none"


def test_two_servers_on_one_host_keep_their_tokens_apart() -> None:
    first, second = (AccessPolicy.for_host("127.0.0.1", port, writable=True) for port in (PORT, PORT + 1))
    assert first.cookie_name != second.cookie_name
    both = "; ".join(f"{policy.cookie_name}={policy.token}" for policy in (first, second))
    for policy in (first, second):
        assert policy.check("GET", {"host": f"127.0.0.1:{policy.port}", "cookie": both}, "/", "") is None
