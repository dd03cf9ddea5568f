"""Access control of the server: Host, Origin and token checks, limits on request bodies, and security headers."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from bilrp.errors import InputError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
MAX_REQUEST_BYTES = 32 * 2**20  # a large photo
READ_TIMEOUT_SECONDS = 20.0  # for the whole request body
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class HTTPError(InputError):
    """A rejected request: a status code and a one-line reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class AccessPolicy:
    """Which requests are accepted: the host names of this server, and a token if other users can reach it.

    Args:
        port: the port it listens on.
        hosts: accepted names in the Host header.
        token: required in a cookie, an Authorization header or the URL; None: no token.
        accepts_any_address: it listens on every address of this machine, so that any IP address is accepted as Host.
    """

    port: int
    hosts: tuple[str, ...] = LOCAL_HOSTS
    token: str | None = None
    accepts_any_address: bool = False

    @staticmethod
    def for_host(host: str, port: int, *, writable: bool = False) -> AccessPolicy:
        """Return the access policy of a server that binds to `host`.

        Args:
            host, port: where to listen.
            writable: requests can change files. A token is then needed on the loopback address too, which every
                other user of this machine can reach.
        """
        local = host in LOCAL_HOSTS
        token = secrets.token_urlsafe(24) if writable or not local else None
        return AccessPolicy(
            port, LOCAL_HOSTS if local else (*LOCAL_HOSTS, host.lower()), token, host in ("0.0.0.0", "::", "")
        )

    @property
    def cookie_name(self) -> str:
        """The cookie's name contains the port: browsers send the cookies of a host to all its ports."""
        return f"bilrp-{self.port}"

    def format_url(self, host: str) -> str:
        """Return the URL to open in a browser, with the token."""
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def check(self, method: str, headers: Mapping[str, str], path: str, query: str) -> str | None:
        """Check Host, Origin and token. Return the path to redirect to if the token was in the URL.

        Args:
            method: the HTTP method.
            headers: the request headers, lower-case names.
            path: the decoded URL path.
            query: the URL's query string.
        """
        host = headers.get("host", "")
        if not self._is_known_host(host):
            raise HTTPError(421, "unknown host name: open the URL that the server printed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin != f"http://{host}":
            raise HTTPError(403, "cross-site requests are not allowed")
        is_navigation = headers.get("sec-fetch-mode") == "navigate" and method in ("GET", "HEAD")
        if site not in ("same-origin", "none") and not is_navigation:
            raise HTTPError(403, "cross-site requests are not allowed")
        if self.token is None:
            return None
        token = parse_qs(query).get("token", [""])[0] if method == "GET" else ""
        if token and secrets.compare_digest(token.encode(), self.token.encode()):
            return path
        if not self._has_token(headers):
            raise HTTPError(401, "token required: open the whole URL that the server printed")
        return None

    def _is_known_host(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port or parts.username is not None or parts.path:
            return False
        return name in self.hosts or (self.accepts_any_address and _is_ip_address(name))

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        tokens = [headers.get("authorization", "").removeprefix("Bearer ")]
        with suppress(CookieError):
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
            tokens += [cookie.value] if cookie else []
        expected = (self.token or "").encode()
        return any(secrets.compare_digest(token.encode(), expected) for token in tokens if token)


def local_path(path: str) -> str:
    """Turn a decoded path into a relative URL that stays on this server.

    Browsers ignore tabs and line breaks, read a backslash as a slash, and take a leading // as the start of a host:
    special characters are percent-encoded, and one leading slash remains.

    >>> local_path("/\\t/evil.example"), local_path("//evil.example"), local_path("/item/0a")
    ('/%09/evil.example', '/evil.example', '/item/0a')
    """
    return "/" + quote(path.lstrip("/"), safe="/", errors="replace")


def _is_ip_address(name: str) -> bool:
    """Return whether a host is an IP address, which DNS rebinding cannot redirect."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class SecurityMiddleware:
    """ASGI middleware: access policy, limits on request size and duration, and security headers on every response.

    Args:
        app: the ASGI application.
        policy: which requests are accepted.
        max_bytes: largest request body.
        timeout_seconds: time for the request body to arrive.
    """

    def __init__(
        self,
        app: Any,
        policy: AccessPolicy,
        *,
        max_bytes: int = MAX_REQUEST_BYTES,
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self.app, self.policy, self.max_bytes, self.timeout_seconds = app, policy, max_bytes, timeout_seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        response_started = False

        async def send_secured(message: Message) -> None:
            nonlocal response_started
            if message["type"] == "http.response.start":
                response_started = True
                present = {name for name, _ in message["headers"]}
                extra = [
                    (n.encode(), v.encode()) for n, v in SECURITY_HEADERS.items() if n.encode() not in present
                ]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            if scope["type"] != "http":
                raise HTTPError(400, "only HTTP is supported")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            length = headers.get("content-length", "0")
            if not (length.isascii() and length.isdigit()) or int(length) > self.max_bytes:
                raise self._too_large()
            query = scope["query_string"].decode("latin-1")
            redirect = self.policy.check(scope["method"], headers, scope["path"], query)
            if redirect is not None:
                await self._redirect_with_cookie(redirect, send_secured)
                return
            await self.app(scope, self._limit_body(receive), send_secured)
        except HTTPError as error:
            if not response_started:
                await send_json(send_secured, error.status, {"error": str(error)})

    def _too_large(self) -> HTTPError:
        return HTTPError(413, f"a request has at most {self.max_bytes // 2**20} MB")

    async def _redirect_with_cookie(self, path: str, send: Send) -> None:
        """Move the token from the URL into a cookie."""
        cookie = f"{self.policy.cookie_name}={self.policy.token}; HttpOnly; SameSite=Strict; Path=/"
        await send_json(send, 303, {}, {"location": local_path(path), "set-cookie": cookie})

    def _limit_body(self, receive: Receive) -> Receive:
        """Limit the bytes and the duration of a request body; later messages (the disconnect) are passed on."""
        remaining, complete = self.max_bytes, False
        loop = asyncio.get_running_loop()
        deadline: float | None = None  # starts with the first read: waiting in a queue does not count

        async def receive_limited() -> Message:
            nonlocal deadline, remaining, complete
            if complete:
                return await receive()
            deadline = loop.time() + self.timeout_seconds if deadline is None else deadline
            try:
                async with asyncio.timeout_at(
                    deadline
                ):  # wait_for may swallow a cancellation before Python 3.12
                    message = await receive()
            except TimeoutError:
                raise HTTPError(
                    408, f"the request did not arrive within {self.timeout_seconds:g} seconds"
                ) from None
            if message["type"] == "http.request":
                remaining -= len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if remaining < 0:
                    raise self._too_large()
            return message

        return receive_limited


async def send_json(send: Send, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
    """Send a small JSON response without Starlette.

    Args:
        send: the ASGI send function.
        status, body, headers: the status code, JSON values, and further headers of the response.
    """
    content = json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": content})
