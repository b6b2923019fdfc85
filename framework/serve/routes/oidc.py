"""Logging in with OpenID Connect: authorization code with PKCE, state and nonce."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from capgraph.base import require_extra
from capgraph.base.ports import Caller
from capgraph.configs.errors import CapgraphError
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import OidcSettings
from capgraph.serve.identity import Logins
from capgraph.serve.routes.login import logged_in, login_page

_COOKIE = "capgraph_login"
_MINUTES = 10.0
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_FRESH = 3600.0


class LoginFailedError(CapgraphError):
    """Somebody could not be logged in by the provider."""

    code = "CG-LOGIN"


@dataclass(slots=True)
class _Begun:
    """A login that was begun, and is not through."""

    verifier: str
    nonce: str
    ends: float


@dataclass(slots=True)
class Provider:
    """One OpenID Connect provider.

    Attributes:
        settings: Which one, and what it calls this server.
        callback: Where it sends people back.
    """

    settings: OidcSettings
    callback: str | None = None
    _begun: dict[str, _Begun] = field(default_factory=dict)
    _known: tuple[float, dict[str, Any], Any] | None = None

    async def begin(self, callback: str) -> tuple[str, str]:
        """Return where to send somebody, and the state that comes back with them.

        Raises:
            LoginFailedError: The provider cannot be asked.
        """
        about, _ = await self._about()
        now = time.monotonic()
        self._begun = {state: one for state, one in self._begun.items() if one.ends > now}
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        self._begun[state] = _Begun(verifier, nonce, now + _MINUTES * 60)
        async with await asyncio.to_thread(self._client, callback) as client:
            url, _ = client.create_authorization_url(
                about["authorization_endpoint"], state=state, code_verifier=verifier, nonce=nonce
            )
        return str(url), state

    async def end(self, callback: str, state: str, code: str) -> Caller:
        """Return who has logged in.

        Raises:
            LoginFailedError: This login was not begun here, or the provider says something else.
        """
        begun = self._begun.pop(state, None)
        if begun is None or begun.ends < time.monotonic():
            raise LoginFailedError("This login was not begun here.", fix="Begin again at /login.")
        about, keys = await self._about()
        try:
            async with await asyncio.to_thread(self._client, callback) as client:
                token = await client.fetch_token(
                    about["token_endpoint"], code=code, code_verifier=begun.verifier
                )
            claims = self._claims(token["id_token"], keys, begun.nonce)
        except Exception as exc:
            get_logger("serve", "oidc").warning("A login failed: %s", exc)
            raise LoginFailedError("The provider did not confirm the login.") from exc
        return self._caller(claims)

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        own = self.settings
        name = claims.get(own.user_claim)
        if not isinstance(name, str) or not name:
            raise LoginFailedError(
                f"The provider names nobody in the claim {own.user_claim!r}.",
                fix="Set serve.oidc.user_claim.",
            )

        def read(claim: str | None) -> str | None:
            found = claims.get(claim) if claim else None
            found = found[0] if isinstance(found, list) and len(found) == 1 else found
            return found if isinstance(found, str) else None

        return Caller(name, read(own.role_claim), read(own.tenant_claim), authenticated=True)

    def _claims(self, token: str, keys: Any, nonce: str) -> Mapping[str, Any]:
        from joserfc import jwt

        found = jwt.decode(token, keys, algorithms=_ALGORITHMS)
        registry = jwt.JWTClaimsRegistry(
            leeway=30,
            iss={"essential": True, "value": self.settings.issuer},
            aud={"essential": True, "value": self.settings.client_id},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        registry.validate(found.claims)
        claims: Mapping[str, Any] = found.claims
        return claims

    def _client(self, callback: str) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        own = self.settings
        secret = own.client_secret.get_secret_value() if own.client_secret else None
        return AsyncOAuth2Client(
            own.client_id,
            secret,
            scope=" ".join(own.scopes),
            redirect_uri=callback,
            code_challenge_method="S256",
            token_endpoint_auth_method=None if secret else "none",
            timeout=10,
        )

    # Making a client reads the certificates of the system: not on the event loop.
    def _plain_client(self) -> Any:
        import httpx

        return httpx.AsyncClient(timeout=10)

    async def _about(self) -> tuple[dict[str, Any], Any]:
        if self._known is not None and self._known[0] > time.monotonic():
            return self._known[1], self._known[2]
        from joserfc.jwk import KeySet

        issuer = self.settings.issuer
        try:
            async with await asyncio.to_thread(self._plain_client) as client:
                url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
                about = (await client.get(url)).raise_for_status().json()
                keys = (await client.get(about["jwks_uri"])).raise_for_status().json()
            if about.get("issuer") != issuer:
                raise ValueError(f"it calls itself {about.get('issuer')!r}")
            found = KeySet.import_key_set(keys)
        except Exception as exc:
            get_logger("serve", "oidc").warning("The provider cannot be asked: %s", exc)
            raise LoginFailedError(
                f"The provider {issuer!r} cannot be asked.", fix="Check serve.oidc.issuer."
            ) from exc
        self._known = (time.monotonic() + _FRESH, about, found)
        return about, found


def routes(logins: Logins, settings: OidcSettings, base_url: str | None = None) -> list[Route]:
    """Return the routes of a provider's logins.

    Args:
        logins: Begins the sessions.
        settings: The provider.
        base_url: Under which address people reach the server.

    Raises:
        MissingExtraError: The extra ``oidc`` is not installed.
    """
    require_extra("authlib", "oidc")
    from joserfc import jwk, jwt  # noqa: F401 - read from the disk here, not in a request

    provider = Provider(settings)

    def callback_of(request: Request) -> str:
        return f"{(base_url or str(request.base_url)).rstrip('/')}/login/oidc/callback"

    async def begin(request: Request) -> Response:
        try:
            url, state = await provider.begin(callback_of(request))
        except LoginFailedError as exc:
            return login_page(str(exc), 502, oidc=True)
        answer = RedirectResponse(url, 303)
        # It comes back from the provider's site, where a strict cookie would stay away.
        answer.set_cookie(
            _COOKIE,
            state,
            max_age=int(_MINUTES * 60),
            path="/login/oidc",
            httponly=True,
            samesite="lax",
            secure=logins.secure,
        )
        return answer

    async def end(request: Request) -> Response:
        state = request.query_params.get("state", "")
        mine = secrets.compare_digest(request.cookies.get(_COOKIE, "").encode(), state.encode())
        try:
            if not state or not mine:
                raise LoginFailedError("This login was begun elsewhere.")
            code = request.query_params.get("code", "")
            caller = await provider.end(callback_of(request), state, code)
        except LoginFailedError as exc:
            return login_page(str(exc), 401, oidc=True)
        answer = logged_in(logins, caller)
        answer.delete_cookie(_COOKIE, path="/login/oidc")
        return answer

    return [Route("/login/oidc", begin), Route("/login/oidc/callback", end)]
