"""Logging in with a real provider on loopback."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from capgraph import build_graph
from capgraph.configs.settings import OidcSettings, ServeSettings, Settings
from capgraph.serve.app import create_app
from capgraph.serve.identity import Authenticator
from capgraph.serve.routes import login, oidc
from capgraph.serve.security import SecurityMiddleware
from capgraph.stores.threads import iter_thread_ids
from tests.support.listening import on_loopback
from tests.unit.serve.test_security_middleware import HOST, client, health, who


class FakeProvider:
    """An OpenID Connect provider that lets everybody in as Ada."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "1"})
        self.published: RSAKey | None = None
        self.asked: dict[str, Any] = {}
        self.change: dict[str, Any] = {}
        self.issuer = ""

    def app(self) -> Starlette:
        async def about(_: Request) -> JSONResponse:
            here = self.issuer
            return JSONResponse(
                {
                    "issuer": here,
                    "authorization_endpoint": f"{here}/authorize",
                    "token_endpoint": f"{here}/token",
                    "jwks_uri": f"{here}/keys",
                }
            )

        async def keys(_: Request) -> JSONResponse:
            return JSONResponse(KeySet([self.published or self.key]).as_dict(private=False))

        async def authorize(request: Request) -> RedirectResponse:
            self.asked = dict(request.query_params)
            back = self.asked["redirect_uri"]
            return RedirectResponse(f"{back}?code=c&state={self.asked['state']}", 303)

        async def token(request: Request) -> JSONResponse:
            given = {k: v[0] for k, v in parse_qs((await request.body()).decode()).items()}
            digest = hashlib.sha256(given["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if given["code"] != "c" or challenge != self.asked["code_challenge"]:
                return JSONResponse({"error": "invalid_grant"}, 400)
            claims = {
                "iss": self.issuer,
                "aud": "capgraph",
                "sub": "ada",
                "iat": int(time.time()),
                "exp": int(time.time()) + 60,
                "nonce": self.asked["nonce"],
                "groups": ["operator"],
                **self.change,
            }
            signed = jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)
            return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": signed})

        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", about),
                Route("/keys", keys),
                Route("/authorize", authorize),
                Route("/token", token, methods=["POST"]),
            ]
        )


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    found = FakeProvider()
    async with on_loopback(lambda _: found.app()) as found.issuer:
        yield found


SECRET = "signs cookies of logins, 32 bytes"


def served(
    provider: FakeProvider, secret: str = SECRET, *, fold_case: bool = False, **more: Any
) -> Any:
    own = OidcSettings(
        issuer=provider.issuer, client_id="capgraph", role_claim="groups", fold_case=fold_case
    )
    settings = ServeSettings(oidc=own, base_url=HOST, session_secret=SecretStr(secret), **more)
    logins = Authenticator(settings)
    paths = [Route("/api/who", who), Route("/healthz", health)]
    app = Starlette(
        routes=[*paths, *login.routes(logins, oidc=True), *oidc.routes(logins, own, settings)]
    )
    return SecurityMiddleware(app, settings, logins)


async def come_back(asking: httpx.AsyncClient, provider: FakeProvider) -> httpx.Response:
    """Go to the provider and back, as a browser does."""
    sent = await asking.get("/login/oidc")
    assert sent.status_code == 302, sent.text
    return await return_from(sent, asking)


async def return_from(sent: httpx.Response, asking: httpx.AsyncClient) -> httpx.Response:
    """Log in at the provider to which a client was sent, and come back."""
    async with httpx.AsyncClient() as browser:
        back = await browser.get(sent.headers["location"])
    parts = urlsplit(back.headers["location"])
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    return await asking.get(f"{parts.path}?{parts.query}", headers=headers)


async def test_login_with_a_valid_id_token(provider: FakeProvider) -> None:
    async with client(served(provider)) as asking:
        assert (await come_back(asking, provider)).status_code == 303
        found = (await asking.get("/api/who")).json()
        assert (found["user"], found["role"]) == ("ada", "operator")
        assert provider.asked["code_challenge_method"] == "S256"
        assert "login-oidc" in (await asking.get("/login")).text


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"exp": 1},
        {"nonce": "old"},
        {"sub": None},
        {"sub": ["ada"]},
        {"sub": "\u00ad"},
        {"sub": "a\u200bda"},
    ],
)
async def test_invalid_id_tokens_are_rejected(
    provider: FakeProvider, change: dict[str, Any]
) -> None:
    provider.change = change
    async with client(served(provider)) as asking:
        assert (await come_back(asking, provider)).status_code == 401
        assert (await asking.get("/api/who")).status_code == 401


@pytest.mark.parametrize(("fold_case", "stored"), [(True, "ada"), (False, "ADA")])
async def test_user_ids_are_stored_in_one_spelling(
    provider: FakeProvider, fold_case: bool, stored: str
) -> None:
    provider.change = {"sub": " \uff21DA" if fold_case else " ADA"}
    async with client(served(provider, fold_case=fold_case)) as asking:
        assert (await come_back(asking, provider)).status_code == 303
        assert (await asking.get("/api/who")).json()["user"] == stored


async def test_unpublished_key_is_rejected(
    provider: FakeProvider,
) -> None:
    provider.published = RSAKey.generate_key(2048, {"kid": "1"})
    async with client(served(provider)) as asking:
        assert (await come_back(asking, provider)).status_code == 401


@pytest.mark.parametrize("kid", ["1", "2"])
async def test_rotated_key_is_fetched_at_the_next_login(provider: FakeProvider, kid: str) -> None:
    async with client(served(provider)) as asking:
        assert (await come_back(asking, provider)).status_code == 303
        old, provider.key = provider.key, RSAKey.generate_key(2048, {"kid": kid})
        assert (await come_back(asking, provider)).status_code == 303
        provider.published, provider.key = provider.key, old
        assert (await come_back(asking, provider)).status_code == 401


async def test_login_can_complete_at_another_process(provider: FakeProvider) -> None:
    async with client(served(provider)) as first, client(served(provider)) as second:
        sent = await first.get("/login/oidc")
        second.cookies.update(first.cookies)
        assert (await return_from(sent, second)).status_code == 303


async def test_login_with_another_session_secret_is_rejected(provider: FakeProvider) -> None:
    async with client(served(provider)) as first, client(served(provider, "other" * 8)) as second:
        sent = await first.get("/login/oidc")
        second.cookies.update(first.cookies)
        assert (await return_from(sent, second)).status_code == 401


async def test_provider_logins_are_rate_limited(provider: FakeProvider) -> None:
    async with client(served(provider, logins_per_minute=3)) as asking:
        codes = [(await asking.get("/login/oidc")).status_code for _ in range(5)]
        assert codes[:3] == [302] * 3
        assert codes[4] == 429


async def test_login_from_another_browser_is_rejected(provider: FakeProvider) -> None:
    app = served(provider)
    async with client(app) as victim, client(app) as attacker:
        sent = await attacker.get("/login/oidc")
        state = parse_qs(urlsplit(sent.headers["location"]).query)["state"][0]
        assert (await victim.get(f"/login/oidc/callback?code=c&state={state}")).status_code == 401
        assert (await attacker.get("/login/oidc/callback?code=c&state=made-up")).status_code == 401


async def test_unavailable_provider_is_reported() -> None:
    away = FakeProvider()
    away.issuer = "http://127.0.0.1:9"
    async with client(served(away)) as asking:
        found = await asking.get("/login/oidc")
        assert found.status_code == 502
        assert "is unavailable" in found.text


async def test_provider_is_configured_by_settings(
    provider: FakeProvider,
) -> None:
    own = OidcSettings(issuer=provider.issuer, client_id="capgraph")
    settings = Settings(serve=ServeSettings(oidc=own, base_url=HOST))
    graph = build_graph([], checkpointer=InMemorySaver(), settings=settings)
    app = await asyncio.to_thread(create_app, graph)
    assert app.state.link is None
    async with app.router.lifespan_context(app), client(app) as asking:
        assert "login-oidc" in (await asking.get("/")).text
        assert (await come_back(asking, provider)).status_code == 303
        made = await asking.post("/api/threads", headers={"origin": HOST})
        assert made.status_code == 201
        kept = [thread async for thread in iter_thread_ids(graph.checkpointer)]
        # Not as it is in the database: whoever else logs in has names of his own.
        assert kept != [made.json()["thread_id"]]
        assert kept[0].endswith(made.json()["thread_id"])
