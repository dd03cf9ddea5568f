"""Download one document or image from an address that the user gave, with bounded size and time.

Only http and https, also after redirects. An address inside a private network is fetched only from the host that the user
named: a manifest from elsewhere cannot make this machine ask its neighbours.
"""

from __future__ import annotations

import ipaddress
import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import urlsplit

from bilrp.errors import InputError, to_printable

TIMEOUT_SECONDS = 30.0  # without an answer
MAX_SECONDS = 300.0  # for one document
MAX_REDIRECTS = 5
CHUNK_BYTES = 1 << 16
USER_AGENT = "bilrp"


def is_address(source: object) -> bool:
    """Return whether a source is an http or https address.

    >>> is_address("https://example.org/manifest.json"), is_address("manifest.json")
    (True, False)
    """
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def split_address(address: str) -> tuple[str, int | None]:
    """Return the host and the port of an address; the host is empty if there is none.

    >>> split_address("https://example.org:8000/manifest.json")
    ('example.org', 8000)
    """
    try:
        parts = urlsplit(address)
        return parts.hostname or "", parts.port
    except ValueError as error:  # an unclosed [, or a port that is no number
        raise InputError(f"{to_printable(address)}: not an address ({to_printable(error)})") from None


def fetch(address: str, *, kinds: tuple[str, ...], max_bytes: int, host: str = "") -> bytes:
    """Return what is at an address.

    Args:
        address: An http or https address.
        kinds: Beginnings of the content types that are accepted.
        max_bytes: Largest size.
        host: The host that the user named, which may be in a private network.
    """
    shown = to_printable(address)
    _check_address(address, host)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor,
    ):  # fmt: skip
        opener.add_handler(handler())
    opener.add_handler(_CheckedRedirects(host))
    request = urllib.request.Request(address, headers={"User-Agent": USER_AGENT})
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            kind = (response.headers.get_content_type() or "").lower()
            if not kind.startswith(kinds):
                raise InputError(f"{shown}: expected {' or '.join(kinds)}, got {to_printable(kind)}")
            return _read(response, shown, max_bytes)
    except urllib.error.HTTPError as error:
        raise InputError(f"{shown}: the server answered {error.code} {to_printable(error.reason)}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"{shown}: cannot be fetched ({to_printable(reason)})") from None


def _read(response: IO[bytes], shown: str, max_bytes: int) -> bytes:
    """Read a response in chunks, up to `max_bytes` and `MAX_SECONDS`."""
    data, deadline = bytearray(), time.monotonic() + MAX_SECONDS
    while chunk := response.read(CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes:
            raise InputError(f"{shown}: more than {max_bytes // 1_000_000} MB")
        if time.monotonic() > deadline:
            raise InputError(f"{shown}: takes more than {MAX_SECONDS:.0f} s")
    return bytes(data)


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects to http and https only, each address checked as the first."""

    max_redirections = MAX_REDIRECTS

    def __init__(self, host: str) -> None:
        self.host = host

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.lower().startswith("https:"):
            raise InputError(f"{to_printable(req.full_url)}: redirects from https to another scheme")
        _check_address(newurl, self.host)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(address: str, host: str) -> None:
    """Raise for other schemes, and for private networks unless the user named the host."""
    shown = to_printable(address)
    hostname, port = split_address(address)
    if not is_address(address) or not hostname:
        raise InputError(f"{shown}: only http and https addresses are fetched")
    if hostname == host:
        return
    try:
        entries = socket.getaddrinfo(hostname, port or 80, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise InputError(f"{shown}: not an address") from None
    except OSError:
        return  # a proxy may know it; else connecting fails
    if not all(ipaddress.ip_address(entry[4][0]).is_global for entry in entries):
        raise InputError(
            f"{shown}: an address in a private network, which only a manifest from that host may name"
        )
