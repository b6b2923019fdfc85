"""Authentication by bearer token, session cookie, one-time link, or trusted proxy."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser

from capgraph.base.ports import Caller, normalize_user_id
from capgraph.configs.settings import ProxySettings, ServeSettings
from capgraph.helpers.clock import SystemClock
from capgraph.serve.tokens import TokenFile
from capgraph.stores.atomic_values import AtomicValueStore, MemoryValues

SESSION_COOKIE = "capgraph_session"
LOCAL_CALLER = Caller("local", authenticated=True)
"""The user of a loopback server, who logs in with the one-time link."""

_SESSION_CACHE_SECONDS = 2.0
"""Seconds that a session is cached before the database is read again."""
_MAX_CACHED_SESSIONS = 10_000


class Identity(Protocol):
    """Interface for custom authentication. Pass an implementation to ``create_app(auth=…)``."""

    async def caller(self, scope: Mapping[str, Any]) -> Caller | None:
        """Return the caller of an ASGI request, or ``None`` if the request is not authenticated."""


@dataclass(frozen=True, slots=True)
class _Session:
    caller: Caller
    expires_at: float
    token: str | None = None


class Sessions:
    """Browser login sessions, stored under a hash of the session cookie.

    Sessions in a database survive a restart and are shared by all server processes that use it.

    Args:
        seconds: Lifetime of a session.
        values: Storage of the sessions; in memory by default.
    """

    def __init__(self, seconds: float, values: AtomicValueStore | None = None) -> None:
        self.seconds: float = seconds
        self._values = values or MemoryValues()
        self._clock = SystemClock()
        self._cache: dict[str, tuple[_Session | None, float]] = {}

    async def open(self, caller: Caller, token: str | None = None) -> str:
        """Create a login session and return the value of its cookie."""
        session = secrets.token_urlsafe(32)
        stored = {"caller": asdict(caller), "ends": time.time() + self.seconds, "token": token}
        await self._store(session, stored)
        return session

    async def find(self, session: str) -> _Session | None:
        """Return an active login session, or ``None`` if it does not exist or has ended."""
        name = _session_key(session)
        session_found, checked_at = self._cache.get(name, (None, 0.0))
        if not checked_at or time.monotonic() - checked_at > _SESSION_CACHE_SECONDS:
            stored, _ = await self._values.aread(name, self._clock)
            record = stored.get(name)
            session_found = record and _Session(
                Caller(**record["caller"]), record["ends"], record["token"]
            )
            if len(self._cache) >= _MAX_CACHED_SESSIONS:
                self._cache.clear()
            self._cache[name] = session_found, time.monotonic()
        return (
            session_found
            if session_found is not None and session_found.expires_at > time.time()
            else None
        )

    async def close(self, session: str) -> None:
        """End a login session, which invalidates its cookie."""
        await self._store(session, None)

    async def _store(self, session: str, value: dict[str, Any] | None) -> None:
        name = _session_key(session)
        await self._values.achange(name, lambda *_: (value, self.seconds, None), self._clock)
        self._cache.pop(name, None)


def _session_key(session: str) -> str:
    return f"session/{hashlib.sha256(session.encode()).hexdigest()}"


class Authenticator:
    """Default :class:`Identity`, which accepts tokens, sessions, a one-time link, or a proxy.

    Args:
        settings: Settings of the server.
        tokens: Token file; without it, users log in with the one-time link.
        base_url: Public URL of the server; ``https`` makes the session cookie secure.
        values: Storage of the sessions; in memory by default.
    """

    def __init__(
        self,
        settings: ServeSettings,
        tokens: TokenFile | None = None,
        base_url: str = "",
        values: AtomicValueStore | None = None,
    ) -> None:
        self.tokens = tokens
        # Where users log in, the user 'local' does not exist.
        alone = tokens is None and not settings.authenticates_users
        # Sessions of 'local' are not stored: they must not be valid on another server that uses
        # the same database.
        self.sessions: Sessions = Sessions(settings.session_hours * 3600, None if alone else values)
        self.link = secrets.token_urlsafe(32) if alone else None
        self.uses_https: bool = base_url.startswith("https:")
        self._proxy = settings.proxy

    async def caller(self, scope: Mapping[str, Any]) -> Caller | None:
        """Return the caller of an ASGI request, or ``None`` if the request is not authenticated."""
        headers = Headers(scope=scope)  # type: ignore[arg-type]
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme:
            # An Authorization header always takes precedence over the browser's cookie.
            token_owner = (
                await self.authenticate_token(token.strip()) if scheme.lower() == "bearer" else None
            )
            return None if token_owner is None else token_owner[0]
        if self._proxy is not None and self._proxy.user_header is not None:
            return proxy_caller(scope, headers, self._proxy)
        session = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE)
        active_session = await self.sessions.find(session) if session else None
        if active_session is None:
            return None
        is_revoked = active_session.token is not None and not (
            self.tokens is not None and await self.tokens.is_active(active_session.token)
        )
        if is_revoked and session:
            await self.sessions.close(session)
        return None if is_revoked else active_session.caller

    async def current(self, caller: Caller) -> Caller | None:
        """Return a user with their current role, or ``None`` if their token is no longer valid."""
        if self.tokens is None or caller.user_id is None:
            return caller
        return await self.tokens.current(caller)

    async def authenticate_token(self, token: str) -> tuple[Caller, str] | None:
        """Return the owner and the hash of an access token, or ``None`` for an invalid token."""
        return await self.tokens.caller(token) if self.tokens is not None and token else None

    def redeem_link(self, link: str) -> Caller | None:
        """Return the local user for a valid one-time login link, and invalidate the link."""
        if self.link is None or not secrets.compare_digest(self.link.encode(), link.encode()):
            return None
        self.link = None
        return LOCAL_CALLER


def proxy_caller(scope: Mapping[str, Any], headers: Headers, proxy: ProxySettings) -> Caller | None:
    """Return the user named in a trusted proxy's headers, or ``None`` for other requests."""
    client = scope.get("client")
    if client is None or not proxy.trusts(client[0]):
        return None
    header_names = (proxy.user_header, proxy.role_header, proxy.tenant_header)
    header_values = [headers.getlist(header) if header else [] for header in header_names]
    if any(len(values) > 1 for values in header_values):
        return None  # a repeated header may come from the client instead of the proxy
    user, role, tenant = (values[0].strip() if values else "" for values in header_values)
    name = stored_user_id(user, fold_case=proxy.fold_case)
    return None if name is None else Caller(name, role or None, tenant or None, authenticated=True)


def stored_user_id(name: str, *, fold_case: bool) -> str | None:
    """Return the storage ID for a user of a proxy or provider, or ``None`` if it is invalid.

    Args:
        name: User ID that the proxy or provider sent.
        fold_case: True if IDs that differ only in case belong to the same user.

    >>> stored_user_id(" USER1 ", fold_case=True), stored_user_id(" USER1 ", fold_case=False)
    ('user1', 'USER1')
    """
    stripped = normalize_user_id(name) if fold_case else name.strip()
    return stripped if stripped and stripped.isprintable() else None


def client_address(scope: Mapping[str, Any], headers: Headers, proxy: ProxySettings | None) -> str:
    """Return the client's IP address as reported by a trusted proxy, or the connection's peer.

    The client's address is the last one in ``X-Forwarded-For`` that is not a trusted proxy,
    because clients can forge all earlier addresses.
    """
    client = scope.get("client")
    if client is None:
        return "unknown"
    address: str = client[0]
    if proxy is not None and proxy.trusts(address):
        listed = ",".join(headers.getlist("x-forwarded-for")).split(",")
        for hop in reversed([hop.strip() for hop in listed if hop.strip()]):
            address = hop
            if not proxy.trusts(hop):
                break
    return address


def caller_of(request: HTTPConnection) -> Caller:
    """Return the authenticated caller of a request."""
    found: Caller = request.scope["capgraph.caller"]
    return found
