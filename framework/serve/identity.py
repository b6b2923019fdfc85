"""Who asks: by a token, a session, or a proxy that is trusted. Never by what a request says."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser

from capgraph.base.ports import Caller
from capgraph.configs.settings import ProxySettings, ServeSettings
from capgraph.helpers.clock import SystemClock
from capgraph.serve.tokens import TokenFile
from capgraph.stores.atomic_values import AtomicValueStore, MemoryValues

SESSION_COOKIE = "capgraph_session"
LOCAL_CALLER = Caller("local", authenticated=True)
"""Whoever came by the one-time link of a server on loopback."""

_SESSION_CACHE_SECONDS = 2.0
"""So long a session is not looked for again in the database."""
_MAX_CACHED_SESSIONS = 10_000


class Identity(Protocol):
    """Says who asks; one of one's own can be given to ``create_app(auth=…)``."""

    async def caller(self, scope: Mapping[str, Any]) -> Caller | None:
        """Return who asks with an ASGI request; ``None`` for nobody that is known."""


@dataclass(frozen=True, slots=True)
class _Session:
    caller: Caller
    expires_at: float
    token: str | None = None


class Sessions:
    """Logins of browsers, stored by a hash of what the cookie holds.

    Server processes over one database share them, and they outlive a restart.

    Args:
        seconds: How long one lasts.
        values: Where they are stored; in this process when not given.
    """

    def __init__(self, seconds: float, values: AtomicValueStore | None = None) -> None:
        self.seconds: float = seconds
        self._values = values or MemoryValues()
        self._clock = SystemClock()
        self._cache: dict[str, tuple[_Session | None, float]] = {}

    async def open(self, caller: Caller, token: str | None = None) -> str:
        """Begin a session, and return what the cookie holds; never an id that somebody brought."""
        session = secrets.token_urlsafe(32)
        stored = {"caller": asdict(caller), "ends": time.time() + self.seconds, "token": token}
        await self._store(session, stored)
        return session

    async def find(self, session: str) -> _Session | None:
        """Return a session that has not ended; another process may have ended it just now."""
        name = _session_key(session)
        found, looked = self._cache.get(name, (None, 0.0))
        if not looked or time.monotonic() - looked > _SESSION_CACHE_SECONDS:
            stored, _ = await self._values.aread(name, self._clock)
            one = stored.get(name)
            found = one and _Session(Caller(**one["caller"]), one["ends"], one["token"])
            if len(self._cache) >= _MAX_CACHED_SESSIONS:
                self._cache.clear()
            self._cache[name] = found, time.monotonic()
        return found if found is not None and found.expires_at > time.time() else None

    async def close(self, session: str) -> None:
        """End a session."""
        await self._store(session, None)

    async def _store(self, session: str, value: dict[str, Any] | None) -> None:
        name = _session_key(session)
        await self._values.achange(name, lambda *_: (value, self.seconds, None), self._clock)
        self._cache.pop(name, None)


def _session_key(session: str) -> str:
    return f"session/{hashlib.sha256(session.encode()).hexdigest()}"


class Authenticator:
    """The shipped :class:`Identity`: tokens, sessions, the one-time link, a trusted proxy.

    Args:
        settings: How the server answers.
        tokens: The file of tokens; without one there is the one-time link.
        base_url: Where the server is reached; ``https`` makes the cookie a secure one.
        values: Where sessions are stored; in this process when not given.
    """

    def __init__(
        self,
        settings: ServeSettings,
        tokens: TokenFile | None = None,
        base_url: str = "",
        values: AtomicValueStore | None = None,
    ) -> None:
        self.tokens = tokens
        # Where people log in as themselves there is no user 'local' beside them.
        alone = tokens is None and not settings.authenticates_users
        # A session of 'local' is no login at another server over the same database.
        self.sessions: Sessions = Sessions(settings.session_hours * 3600, None if alone else values)
        self.link = secrets.token_urlsafe(32) if alone else None
        self.uses_https: bool = base_url.startswith("https:")
        self._proxy = settings.proxy

    async def caller(self, scope: Mapping[str, Any]) -> Caller | None:
        """Return who asks; see :class:`Identity`."""
        headers = Headers(scope=scope)  # type: ignore[arg-type]
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme:
            # Who brings a token is not taken for the one whose cookie the browser adds.
            found = (
                await self.authenticate_token(token.strip()) if scheme.lower() == "bearer" else None
            )
            return None if found is None else found[0]
        if self._proxy is not None and self._proxy.user_header is not None:
            return proxy_caller(scope, headers, self._proxy)
        session = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE)
        known = await self.sessions.find(session) if session else None
        if known is None:
            return None
        gone = known.token is not None and not (
            self.tokens is not None and await self.tokens.is_active(known.token)
        )
        if gone and session:
            await self.sessions.close(session)
        return None if gone else known.caller

    async def authenticate_token(self, token: str) -> tuple[Caller, str] | None:
        """Return whose token it is, with what stands for it."""
        return await self.tokens.caller(token) if self.tokens is not None and token else None

    def redeem_link(self, link: str) -> Caller | None:
        """Take the one-time link, which ends by that."""
        if self.link is None or not secrets.compare_digest(self.link.encode(), link.encode()):
            return None
        self.link = None
        return LOCAL_CALLER


def proxy_caller(scope: Mapping[str, Any], headers: Headers, proxy: ProxySettings) -> Caller | None:
    """Return whom a trusted proxy names; nobody where the request comes from elsewhere."""
    client = scope.get("client")
    if client is None or not proxy.trusts(client[0]):
        return None
    named = (proxy.user_header, proxy.role_header, proxy.tenant_header)
    said = [headers.getlist(header) if header else [] for header in named]
    if any(len(values) > 1 for values in said):
        return None  # one of them is what the client said, and not the proxy
    user, role, tenant = (values[0].strip() if values else "" for values in said)
    return Caller(user, role or None, tenant or None, authenticated=True) if user else None


def client_address(scope: Mapping[str, Any], headers: Headers, proxy: ProxySettings | None) -> str:
    """Return from where a request comes: what a trusted proxy says, else who opened the connection.

    Of ``X-Forwarded-For`` the last address counts that no trusted proxy has: those before it are
    whatever the client wrote.
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
    """Return who asks, in a route behind the shield."""
    found: Caller = request.scope["capgraph.caller"]
    return found
