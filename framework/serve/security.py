"""Middleware that checks host, origin, rate, login, and body size. It denies by default."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capgraph.adapters.authorization import AUTHORIZATION_PATH
from capgraph.base.errors import LimitError
from capgraph.base.ports import Caller
from capgraph.behaviors.rate_limit import RateLimiter
from capgraph.configs.settings import ServeSettings
from capgraph.serve.forwarded import route_path
from capgraph.serve.identity import Identity, client_address
from capgraph.serve.problems import error_response, problem_response
from capgraph.serve.server import is_loopback

PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/.well-known/agent-card.json", "/", "/login"})
"""Paths that need no login and reveal nothing about users."""

SHARED_PREFIX = "/shared/"
"""Prefix of read-only links to runs, whose tokens replace the login."""

_LINKED_PREFIXES = (SHARED_PREFIX, f"{AUTHORIZATION_PATH}/")
"""Prefixes of pages that links on other sites may open. The pages authenticate users themselves."""
_CALLBACK_PATHS = frozenset({"/login/oidc/callback"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BODY_SECONDS = 30.0
_RECHECK_SECONDS = 4.0
"""Seconds between authentications of the caller of an open stream."""
_LINGER_SECONDS = 5.0
"""Seconds for which the rest of a rejected body is read. A client that is still sending could otherwise lose
the response with the connection.
"""
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
    # With "no-referrer", browsers send "Origin: null" for forms of the page.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_CLOSE = {"connection": "close"}


class SecurityMiddleware:
    """ASGI middleware that authenticates callers and protects all routes of the server.

    Args:
        app: The wrapped application.
        settings: Settings of the server.
        identity: Identity that authenticates callers.
        host: Address that the server listens on; ``None`` behind another server.
        style_hashes: Hashes of inline styles for the content security policy.
        upload_paths: Paths whose endpoints limit the body size themselves.
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
        self._streams: Counter[str] = Counter()
        hashes = "".join(f" '{one}'" for one in style_hashes)
        self._headers = {
            **_HEADERS,
            "content-security-policy": _CONTENT_SECURITY_POLICY.format(styles=hashes),
        }
        if (settings.base_url or "").startswith("https:"):
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or reject it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await _reject_scope(scope, receive, send)
            return
        sent = _ResponseSender(
            send, self._headers, lambda: self._identity.caller(scope), self._acquire_stream
        )
        try:
            await self._handle(scope, receive, sent)
        except ClientDisconnect:
            return
        except Exception as exc:
            if sent.has_started:
                raise
            await error_response(exc)(scope, receive, sent)
        finally:
            if sent.holds_stream:
                self._release_stream(sent.caller)

    def _acquire_stream(self, caller: Caller | None) -> bool:
        """Reserve an event stream for a user. Return False if the user has too many."""
        key = _rate_limit_key(caller, "")
        if self._streams[key] >= self._settings.max_streams_per_user:
            return False
        self._streams[key] += 1
        return True

    def _release_stream(self, caller: Caller | None) -> None:
        key = _rate_limit_key(caller, "")
        self._streams[key] -= 1
        if not self._streams[key]:
            del self._streams[key]

    async def _handle(self, scope: Scope, receive: Receive, send: _ResponseSender) -> None:
        headers = Headers(scope=scope)
        refusal = self._check_origin(scope, headers)
        caller = None if refusal else await self._identity.caller(scope)
        refusal = (
            refusal
            or await self._check_caller(scope, headers, caller)
            or _check_request(scope, headers)
        )
        if refusal is None and route_path(scope) not in self._upload_paths:
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
        """Reject requests with an unknown host name or from a page of a different origin."""
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._hosts.is_known_host(host):
            detail = f"The host {host[:100]!r} is not a name of this server."
            return problem_response(421, "CG-HOST", detail, "Add the name to serve.allowed_hosts.")
        origins = headers.getlist("origin")
        if any(not self._hosts.is_allowed_origin(origin, host) for origin in origins):
            detail = f"The origin {origins[0][:100]!r} is not allowed."
            return problem_response(
                403, "CG-ORIGIN", detail, "Add the origin to serve.allowed_origins."
            )
        sites = headers.getlist("sec-fetch-site")
        is_allowed = any(origin in self._settings.allowed_origins for origin in origins)
        # A login provider redirects users back from its own site, and people follow links in emails.
        path = route_path(scope)
        is_followed = headers.getlist("sec-fetch-mode") == ["navigate"]
        is_open = path in _CALLBACK_PATHS or (is_followed and path.startswith(_LINKED_PREFIXES))
        is_cross_site = any(site not in ("same-origin", "none") for site in sites)
        if is_cross_site and not is_allowed and not is_open:
            return problem_response(403, "CG-ORIGIN", "Cross-site requests are not allowed.")
        return None

    async def _check_caller(
        self, scope: Scope, headers: Headers, caller: Caller | None
    ) -> ASGIApp | None:
        """Reject requests that exceed the rate limit and requests without authentication."""
        address = client_address(scope, headers, self._settings.proxy)
        allowed = await self._rate.try_acquire(_rate_limit_key(caller, address))
        if allowed and _is_login(scope):
            allowed = await self._login_rate.try_acquire(f"address:{address}")
        if not allowed:
            detail = "Too many requests."
            return problem_response(
                429, "CG-RATE-LIMIT", detail, "Wait a few seconds.", {"retry-after": "5"}
            )
        path = route_path(scope)
        is_public = path in PUBLIC_PATHS or path.startswith(("/login/", *_LINKED_PREFIXES))
        if caller is None and not is_public:
            detail = "The request is not authenticated."
            fix = "Send 'Authorization: Bearer TOKEN', or log in at /login."
            return problem_response(401, "CG-LOGIN", detail, fix, {"www-authenticate": "Bearer"})
        return None

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | ASGIApp:
        """Read the complete request body, or return an error response for a large or slow body."""
        limit = self._settings.max_body_bytes

        def too_long() -> ASGIApp:
            detail = f"The body is larger than {limit:,} bytes."
            fix = "Send less data, or increase serve.max_body_bytes."
            return problem_response(413, "CG-TOO-LARGE", detail, fix, _CLOSE)

        content_length = headers.get("content-length", "0")
        if not content_length.isdecimal() or int(content_length) > limit:
            return too_long()
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in _iter_body(receive):
                    body += chunk
                    if len(body) > limit:
                        return too_long()
        except TimeoutError:
            return problem_response(
                408, "CG-TIMEOUT", "Reading the body timed out.", "Send it again.", _CLOSE
            )
        return bytes(body)


class _ResponseSender:
    """Response sender that adds security headers and limits the event streams of each caller.

    An event stream ends if its caller loses access.

    Attributes:
        has_started: True if the response has started.
        holds_stream: True if the response counts as a stream of its caller.
        caller: The caller of the request.
    """

    def __init__(
        self,
        send: Send,
        headers: Mapping[str, str],
        identify: Callable[[], Awaitable[Caller | None]],
        acquire_stream: Callable[[Caller | None], bool],
    ) -> None:
        self._send, self._headers, self._identify = send, headers, identify
        self._acquire_stream = acquire_stream
        self._checked_at = time.monotonic()
        self.has_started = self.holds_stream = self._is_stream = self._is_closed = False
        self.caller: Caller | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if self._is_stream and time.monotonic() - self._checked_at > _RECHECK_SECONDS:
            # A stream ends with the token or the session that opened it.
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
            if self._is_stream and not self._acquire_stream(self.caller):
                await self._refuse_stream()
                return
            self.holds_stream = self._is_stream
        await self._send(message)

    async def _refuse_stream(self) -> None:
        """Send an error response instead of an event stream that exceeds the caller's limit."""
        self._is_closed, self._is_stream = True, False
        detail, fix = "You have too many open event streams.", "Close another stream."
        refusal = problem_response(429, LimitError.code, detail, fix, dict(self._headers))
        headers = refusal.raw_headers
        await self._send(
            {"type": "http.response.start", "status": refusal.status_code, "headers": headers}
        )
        await self._send({"type": "http.response.body", "body": refusal.body})


class HostPolicy:
    """Policy that determines which host names and origins the server accepts.

    Args:
        settings: Settings of the server.
        host: Address that the server listens on; ``None`` behind another server.

    >>> policy = HostPolicy(ServeSettings(), "127.0.0.1")
    >>> policy.is_known_host("127.0.0.1:8000"), policy.is_known_host("evil.example")
    (True, False)
    """

    def __init__(self, settings: ServeSettings, host: str | None) -> None:
        names = {"localhost", "127.0.0.1", "::1", *settings.allowed_hosts}
        base = urlsplit(settings.base_url or "")
        if base.hostname:
            names.add(base.hostname)
        self._loopback = host is not None and is_loopback(host)
        if host is not None and not self._loopback:
            names |= {host, socket.gethostname()}
        self._names = {name.lower() for name in names}
        self._origins = {*settings.allowed_origins}
        if base.netloc:
            self._origins.add(f"{base.scheme}://{base.netloc}")

    def is_known_host(self, header: str) -> bool:
        """Return True if a ``Host`` header contains an accepted name of this server."""
        name = _host_name(header)
        if name in self._names:
            return True
        # DNS rebinding needs a host name, so bare IP addresses are safe.
        return not self._loopback and _is_address(name)

    def is_allowed_origin(self, origin: str, host: str) -> bool:
        """Return True if web pages of an origin may send requests to this server."""
        if origin in self._origins:
            return True
        parts = urlsplit(origin)
        is_same_host = parts.netloc.lower() == host.lower() and bool(parts.netloc)
        return is_same_host and parts.scheme in ("http", "https") and not parts.path.strip("/")


def _host_name(header: str) -> str:
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018 - raises ValueError for an invalid port
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
    """The caller as Starlette's user interface."""

    is_authenticated = True

    def __init__(self, caller: Caller) -> None:
        self.display_name = self.identity = self.username = caller.user_id or ""


def _rate_limit_key(caller: Caller | None, address: str) -> str:
    """Return the rate-limiting key for a user, or for an IP address without a user."""
    return f"address:{address}" if caller is None else f"user:{caller.tenant}/{caller.user_id}"


def _is_login(scope: Scope) -> bool:
    """Return True if a request attempts to log in, rather than only showing the login page."""
    path = route_path(scope)
    if path == "/login":
        return scope["method"] not in _SAFE_METHODS or bool(scope.get("query_string"))
    return path.startswith("/login/")


def _check_request(scope: Scope, headers: Headers) -> ASGIApp | None:
    """Return an error response for a request that no endpoint can handle, or ``None``."""
    if headers.get("upgrade", "").lower() == "websocket":
        return problem_response(403, "CG-METHOD", "WebSockets are not supported.", "Use HTTP.")
    # PostgreSQL cannot store NUL characters.
    if "\0" in scope["path"]:
        return problem_response(404, "CG-NOT-FOUND", "The path contains a NUL character.")
    if b"%00" in scope.get("query_string", b""):
        return problem_response(
            422, "CG-VALIDATION", "The query contains a NUL character.", "Remove it."
        )
    return None


async def _reject_scope(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})


async def _iter_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the chunks of an ASGI request body.

    Raises:
        ClientDisconnect: The client disconnected before the end of the body.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _reject(response: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error response, and complete it after the rest of the request body was read.

    Reading the rest of the body is limited by a timeout.
    """

    async def send_open(message: MutableMapping[str, Any]) -> None:
        last = message["type"] == "http.response.body"
        await send({**message, "more_body": True} if last else message)

    await response(scope, receive, send_open)
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_LINGER_SECONDS):
            async for _ in _iter_body(receive):
                pass
    await send({"type": "http.response.body", "body": b""})


def _replay_body(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_again


def serve_settings(settings: Any) -> ServeSettings:
    """Return the server settings of a settings object, or the defaults for ``None``."""
    found = settings.serve if settings is not None else ServeSettings()
    return ServeSettings(**found) if isinstance(found, Mapping) else found
