"""What every request passes first: names, origins, sizes, rates and logins. It denies by default."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capgraph.base.ports import Caller
from capgraph.behaviors.rate_limit import RateLimiter
from capgraph.configs.settings import ServeSettings
from capgraph.serve.identity import Identity, client_address
from capgraph.serve.problems import error_response, problem_response

PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/.well-known/agent-card.json", "/", "/login"})
"""What answers without a login, and tells nothing of a user."""

_CALLBACK_PATHS = frozenset({"/login/oidc/callback"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BODY_SECONDS = 30.0
_RECHECK_SECONDS = 4.0
"""So often it is made sure of who listens to a stream."""
_LINGER_SECONDS = 5.0
"""So long a refused body is read: whoever still sends would lose the answer with the connection."""
_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'{styles}",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": of a form on such a page a browser says its origin is null.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_CLOSE = {"connection": "close"}


class SecurityMiddleware:
    """ASGI middleware around the whole server.

    Args:
        app: What is inside.
        settings: How the server answers.
        identity: Says who asks.
        host: On which address the server listens; ``None`` behind somebody else's server.
        style_hashes: Hashes of the styles that pages hold inline, for the policy.
        upload_paths: Paths whose bodies may be longer; who is there bounds them.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        identity: Identity,
        *,
        host: str | None = "127.0.0.1",
        style_hashes: Collection[str] = (),
        upload_paths: Collection[str] = (),
    ) -> None:
        self._app, self._settings, self._identity = app, settings, identity
        self._hosts = HostPolicy(settings, host)
        self._upload_paths = frozenset(upload_paths)
        self._rate = RateLimiter(rpm=settings.requests_per_minute)
        self._login_rate = RateLimiter(rpm=settings.logins_per_minute)
        listed = "".join(f" '{one}'" for one in style_hashes)
        self._headers = {
            **_HEADERS,
            "content-security-policy": _CONTENT_SECURITY_POLICY.format(styles=listed),
        }
        if (settings.base_url or "").startswith("https:"):
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await _reject_scope(scope, receive, send)
            return
        sent = _ResponseSender(send, self._headers, lambda: self._identity.caller(scope))
        try:
            await self._handle(scope, receive, sent)
        except ClientDisconnect:
            return
        except Exception as exc:
            if sent.has_started:
                raise
            await error_response(exc)(scope, receive, sent)

    async def _handle(self, scope: Scope, receive: Receive, send: _ResponseSender) -> None:
        headers = Headers(scope=scope)
        refusal = self._check_origin(scope, headers)
        caller = None if refusal else await self._identity.caller(scope)
        refusal = (
            refusal
            or await self._check_caller(scope, headers, caller)
            or _check_request(scope, headers)
        )
        if refusal is None and scope["path"] not in self._upload_paths:
            body = await self._read_body(headers, receive)
            if isinstance(body, bytes):
                receive = _replay_body(body, receive)
            else:
                refusal = body
        if refusal is not None:
            await _reject(refusal, scope, receive, send)
            return
        scope["capgraph.caller"] = send.caller = caller
        if caller is not None:
            scope["user"] = _AuthenticatedUser(caller)
        await self._app(scope, receive, send)

    def _check_origin(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Refuse what comes by another name, or from another site's page."""
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._hosts.is_known_host(host):
            told = f"This server is not called {host[:100]!r}."
            return problem_response(421, "CG-HOST", told, "Add the name to serve.allowed_hosts.")
        origins = headers.getlist("origin")
        if any(not self._hosts.is_allowed_origin(origin, host) for origin in origins):
            told = f"Pages of {origins[0][:100]!r} may not ask this server."
            return problem_response(
                403, "CG-ORIGIN", told, "Add the origin to serve.allowed_origins."
            )
        sites = headers.getlist("sec-fetch-site")
        known = any(origin in self._settings.allowed_origins for origin in origins)
        # A provider of logins sends people back from its own site.
        foreign = any(site not in ("same-origin", "none") for site in sites)
        if foreign and not known and scope["path"] not in _CALLBACK_PATHS:
            return problem_response(
                403, "CG-ORIGIN", "Another site's page may not ask this server."
            )
        return None

    async def _check_caller(
        self, scope: Scope, headers: Headers, caller: Caller | None
    ) -> ASGIApp | None:
        """Refuse who asks too often, and who is not known."""
        address = client_address(scope, headers, self._settings.proxy)
        who = f"user:{caller.user_id}" if caller is not None else f"address:{address}"
        allowed = await self._rate.try_acquire(who)
        if allowed and _is_login(scope):
            allowed = await self._login_rate.try_acquire(f"address:{address}")
        if not allowed:
            told = "Too many requests."
            return problem_response(
                429, "CG-RATE-LIMIT", told, "Wait a little.", {"retry-after": "5"}
            )
        path = scope["path"]
        if caller is None and path not in PUBLIC_PATHS and not path.startswith("/login/"):
            told = "Nobody is logged in."
            fix = "Send 'Authorization: Bearer TOKEN', or log in at /login."
            return problem_response(401, "CG-LOGIN", told, fix, {"www-authenticate": "Bearer"})
        return None

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | ASGIApp:
        """Return the whole body, or the refusal of one that is too long or too slow."""
        limit = self._settings.max_body_bytes

        def too_long() -> ASGIApp:
            told = f"The body is longer than {limit:,} bytes."
            fix = "Send less, or raise serve.max_body_bytes."
            return problem_response(413, "CG-TOO-LARGE", told, fix, _CLOSE)

        said = headers.get("content-length", "0")
        if not said.isdecimal() or int(said) > limit:
            return too_long()
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in _iter_body(receive):
                    body += part
                    if len(body) > limit:
                        return too_long()
        except TimeoutError:
            return problem_response(
                408, "CG-TIMEOUT", "The body did not come.", "Send it again.", _CLOSE
            )
        return bytes(body)


class _ResponseSender:
    """What is sent, with the security headers on every answer, for as long as who asked may ask."""

    def __init__(
        self,
        send: Send,
        headers: Mapping[str, str],
        identify: Callable[[], Awaitable[Caller | None]],
    ) -> None:
        self._send, self._headers, self._identify = send, headers, identify
        self._checked_at = time.monotonic()
        self.has_started = self._is_stream = self._is_closed = False
        self.caller: Caller | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if self._is_stream and time.monotonic() - self._checked_at > _RECHECK_SECONDS:
            # It ends with the token, or the session, by which it was asked for.
            self._checked_at = time.monotonic()
            if await self._identify() != self.caller:
                self._is_closed, self._is_stream = True, False
                await self._send({"type": "http.response.body"})
        if self._is_closed:
            return
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers.setdefault(name, value)
            self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        await self._send(message)


class HostPolicy:
    """By which names the server may be asked, and by whose pages.

    Args:
        settings: How the server answers.
        host: On which address it listens; ``None`` behind somebody else's server.

    >>> hosts = HostPolicy(ServeSettings(), "127.0.0.1")
    >>> hosts.is_known_host("127.0.0.1:8000"), hosts.is_known_host("evil.example")
    (True, False)
    """

    def __init__(self, settings: ServeSettings, host: str | None) -> None:
        named = {"localhost", "127.0.0.1", "::1", *settings.allowed_hosts}
        base = urlsplit(settings.base_url or "")
        if base.hostname:
            named.add(base.hostname)
        self._loopback = host is not None and is_loopback(host)
        if host is not None and not self._loopback:
            named |= {host, socket.gethostname()}
        self._names = {name.lower() for name in named}
        self._origins = {*settings.allowed_origins}
        if base.netloc:
            self._origins.add(f"{base.scheme}://{base.netloc}")

    def is_known_host(self, header: str) -> bool:
        """Tell whether a ``Host`` names this server."""
        name = _host_name(header)
        if name in self._names:
            return True
        # No name that somebody else's server of names gives can stand for a bare address.
        return not self._loopback and _is_address(name)

    def is_allowed_origin(self, origin: str, host: str) -> bool:
        """Tell whether pages of an origin may ask."""
        if origin in self._origins:
            return True
        parts = urlsplit(origin)
        same = parts.netloc.lower() == host.lower() and bool(parts.netloc)
        return same and parts.scheme in ("http", "https") and not parts.path.strip("/")


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018 - raises for what is no port
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == header and "@" not in header else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _AuthenticatedUser:
    """Who asks, as Starlette and what is built on it know it."""

    is_authenticated = True

    def __init__(self, caller: Caller) -> None:
        self.display_name = self.identity = self.username = caller.user_id or ""


def _is_login(scope: Scope) -> bool:
    """Tell whether a request tries to log in, and does not only open the page."""
    if scope["path"] == "/login":
        return scope["method"] not in _SAFE_METHODS or bool(scope.get("query_string"))
    return str(scope["path"]).startswith("/login/")


def _check_request(scope: Scope, headers: Headers) -> ASGIApp | None:
    """Refuse what nothing here could answer."""
    if headers.get("upgrade", "").lower() == "websocket":
        return problem_response(403, "CG-METHOD", "Nothing here is a websocket.", "Ask over HTTP.")
    # PostgreSQL keeps no such character.
    if "\0" in scope["path"]:
        return problem_response(404, "CG-NOT-FOUND", "Nothing is called so.")
    if b"%00" in scope.get("query_string", b""):
        return problem_response(422, "CG-VALIDATION", "The query holds a NUL.", "Leave it out.")
    return None


async def _reject_scope(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})


async def _iter_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield what comes of a body.

    Raises:
        ClientDisconnect: The client went away before its end.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _reject(response: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, and end when the body was sent."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        last = message["type"] == "http.response.body"
        await send({**message, "more_body": True} if last else message)

    await response(scope, receive, sending)
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_LINGER_SECONDS):
            async for _ in _iter_body(receive):
                pass
    await send({"type": "http.response.body", "body": b""})


def _replay_body(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_again


def serve_settings(settings: Any) -> ServeSettings:
    """Return how the server answers, of whatever settings there are."""
    found = settings.serve if settings is not None else ServeSettings()
    return ServeSettings(**found) if isinstance(found, Mapping) else found
