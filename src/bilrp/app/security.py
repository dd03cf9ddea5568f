"""The door of the server: who may come in, how much they may bring, and what the browser is told about every answer."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from bilrp.errors import InputError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
MAX_REQUEST_BYTES = 32 * 2**20  # of a request: a large photograph
READ_TIMEOUT_SECONDS = 20.0  # seconds that the whole of a request may take to arrive
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
    """A request that is not answered: its status, and why in one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class AccessPolicy:
    """Who may come in: the names this server goes by, and the word it asks for where it is open to others.

    >>> AccessPolicy.for_host("127.0.0.1", 8000).token is None, AccessPolicy.for_host("0.0.0.0", 8000).token is None
    (True, False)
    """

    port: int
    hosts: tuple[str, ...] = LOCAL_HOSTS
    token: str | None = None
    accepts_any_address: bool = False  # open on every address of this machine

    @staticmethod
    def for_host(host: str, port: int, *, writable: bool = False) -> AccessPolicy:
        """The access policy of a server that binds to `host`.

        Args:
            host: the address to listen on.
            port: its port.
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
        """Its name has the port: a browser sends the cookies of one host to all of its ports."""
        return f"bilrp-{self.port}"

    def format_url(self, host: str) -> str:
        """What to open in a browser."""
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def check(self, method: str, headers: Mapping[str, str], path: str, query: str) -> str | None:
        """Refuse who has no business here; where a token came with the address, where to go on without it."""
        host = headers.get("host", "")
        if not self._is_known_host(host):
            raise HTTPError(421, "this server goes by another name: open the address it printed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin != f"http://{host}":
            raise HTTPError(403, "this request comes from another site")
        arriving = headers.get("sec-fetch-mode") == "navigate" and method in ("GET", "HEAD")
        if site not in ("same-origin", "none") and not arriving:
            raise HTTPError(403, "this request comes from another site")
        if self.token is None:
            return None
        given = parse_qs(query).get("token", [""])[0] if method == "GET" else ""
        if given and secrets.compare_digest(given.encode(), self.token.encode()):
            return path
        if not self._has_token(headers):
            raise HTTPError(401, "this server asks for its token: open the whole address it printed")
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
        said = headers.get("authorization", "").removeprefix("Bearer ")
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            kept = None
        word = (self.token or "").encode()
        return any(secrets.compare_digest(w.encode(), word) for w in (said, kept.value if kept else "") if w)


def local_path(path: str) -> str:
    """A decoded path as a reference that stays on this server.

    Browsers drop tabs and line breaks, read a backslash as a slash, and take two slashes at the beginning for a host:
    everything that is not plain is percent-encoded, and one slash remains.

    >>> local_path("/\\t/evil.example"), local_path("//evil.example"), local_path("/item/0a")
    ('/%09/evil.example', '/evil.example', '/item/0a')
    """
    return "/" + quote(path.lstrip("/"), safe="/", errors="replace")


def _is_ip_address(name: str) -> bool:
    """An address in numbers can't be pointed elsewhere by a name server."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class SecurityMiddleware:
    """Everything passes here first: the door, the size and the pace of what is sent, and headers on what goes out."""

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
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                said = {name for name, _ in message["headers"]}
                extra = [
                    (n.encode(), v.encode()) for n, v in SECURITY_HEADERS.items() if n.encode() not in said
                ]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            if scope["type"] != "http":
                raise HTTPError(400, "this server speaks HTTP only")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            said = headers.get("content-length", "0")
            if not (said.isascii() and said.isdigit()) or int(said) > self.max_bytes:
                raise HTTPError(413, f"at most {self.max_bytes // 2**20} MB can be sent")
            onward = self.policy.check(
                scope["method"], headers, scope["path"], scope["query_string"].decode("latin-1")
            )
            if onward is not None:
                await self._redirect_with_cookie(onward, sending)
                return
            await self.app(scope, self._limit_body(receive), sending)
        except HTTPError as refused:
            if not begun:
                await send_json(sending, refused.status, {"error": str(refused)})

    async def _redirect_with_cookie(self, path: str, send: Send) -> None:
        """Keep the token in a cookie, and out of the address."""
        kept = f"{self.policy.cookie_name}={self.policy.token}; HttpOnly; SameSite=Strict; Path=/"
        await send_json(send, 303, {}, {"location": local_path(path), "set-cookie": kept})

    def _limit_body(self, receive: Receive) -> Receive:
        """The request as it arrives, up to so many bytes and so many seconds; then whether the visitor is still there."""
        state = {"left": self.max_bytes, "whole": False}
        loop = asyncio.get_running_loop()
        until: float | None = None  # whoever waits for their turn to be read is not late

        async def receiving() -> Message:
            nonlocal until
            if state["whole"]:
                return await receive()
            until = loop.time() + self.timeout_seconds if until is None else until
            try:
                async with asyncio.timeout_at(
                    until
                ):  # wait_for may swallow a cancellation before Python 3.12
                    message = await receive()
            except TimeoutError:
                raise HTTPError(
                    408, f"the request did not arrive within {self.timeout_seconds:g} seconds"
                ) from None
            if message["type"] == "http.request":
                state["left"] -= len(message.get("body", b""))
                state["whole"] = not message.get("more_body", False)
                if state["left"] < 0:
                    raise HTTPError(413, f"at most {self.max_bytes // 2**20} MB can be sent")
            return message

        return receiving


async def send_json(send: Send, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
    """A small answer in JSON, without the framework."""
    text = json.dumps(body).encode()
    about = {"content-type": "application/json", "content-length": str(len(text)), **(headers or {})}
    spelled = [(name.encode(), value.encode("latin-1", "replace")) for name, value in about.items()]
    await send({"type": "http.response.start", "status": status, "headers": spelled})
    await send({"type": "http.response.body", "body": text})
