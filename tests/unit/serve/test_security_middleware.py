"""What every request passes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from capgraph.configs.settings import ProxySettings, ServeSettings
from capgraph.serve.identity import SESSION_COOKIE, Authenticator, caller_of
from capgraph.serve.routes import login
from capgraph.serve.security import SecurityMiddleware
from capgraph.serve.tokens import TokenFile, issue_token, revoke_token

HOST = "http://127.0.0.1:8000"


async def who(request: Request) -> JSONResponse:
    caller = caller_of(request)
    body = await request.body()
    return JSONResponse({"user": caller.user_id, "role": caller.role, "bytes": len(body)})


async def told(request: Request) -> StreamingResponse:
    """Tell without end, and log whoever listens out after the second word."""

    async def words() -> AsyncIterator[str]:
        for number in count(1):
            if number == 3:
                await request.app.state.sessions.close(request.cookies[SESSION_COOKIE])
                request.app.state.sessions._cache.clear()
            yield f"data: {number}\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(words(), media_type="text/event-stream")


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"ok": True})


def made(settings: ServeSettings | None = None, tokens: TokenFile | None = None, **options: Any):
    settings = settings or ServeSettings()
    logins = Authenticator(settings, tokens, settings.base_url or "")
    paths = [Route("/api/who", who, methods=["GET", "POST"]), Route("/healthz", health)]
    app = Starlette(routes=[*paths, Route("/api/told", told), *login.routes(logins)])
    app.state.sessions = logins.sessions
    return SecurityMiddleware(
        app, settings, logins, style_hashes=[login.STYLE_HASH], **options
    ), logins


def client(app: Any, address: str = "127.0.0.1", url: str = HOST) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url=url)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def token(token_file: Path) -> str:
    return issue_token(token_file, "ada", role="operator")


@pytest.fixture
def tokens(token: str, token_file: Path) -> TokenFile:
    return TokenFile(token_file)


@pytest.fixture
def served(tokens: TokenFile):
    return made(tokens=tokens)


@pytest.fixture
async def ada(served: Any, token: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client(served[0]) as found:
        found.headers["authorization"] = f"Bearer {token}"
        yield found


async def test_token_determines_the_caller(ada: httpx.AsyncClient) -> None:
    found = await ada.post("/api/who", json={"user": "bob", "role": "admin"})
    assert (found.json()["user"], found.json()["role"]) == ("ada", "operator")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic YWRhOmFkYQ=="},
        {"cookie": f"{SESSION_COOKIE}=made-up"},
        {"x-forwarded-user": "ada"},
    ],
)
async def test_unauthenticated_request_reveals_nothing(
    served: Any, headers: dict[str, str]
) -> None:
    async with client(served[0]) as asking:
        for path in ("/api/who", "/api/nothing", "/openapi.json", "/loginx"):
            found = await asking.get(path, headers=headers)
            assert found.status_code == 401, path
            assert found.headers["content-type"] == "application/problem+json"
            assert found.headers["www-authenticate"] == "Bearer"
            assert found.json()["code"] == "CG-LOGIN"
        assert (await asking.get("/healthz", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "ada@127.0.0.1", "", "127.0.0.1:x", "10.0.0.1"],
)
async def test_unknown_host_is_misdirected(ada: httpx.AsyncClient, host: str) -> None:
    found = await ada.get("/api/who", headers={"host": host})
    assert (found.status_code, found.json()["code"]) == (421, "CG-HOST")


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8000"])
async def test_local_host_names_are_accepted(ada: httpx.AsyncClient, host: str) -> None:
    assert (await ada.get("/api/who", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "file://127.0.0.1:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
async def test_cross_origin_request_is_rejected_despite_token(
    ada: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    for method in ("GET", "POST"):
        found = await ada.request(method, "/api/who", headers=headers)
        assert (found.status_code, found.json()["code"]) == (403, "CG-ORIGIN")
        assert headers.get("origin", "") in found.json()["detail"]


async def test_own_and_allowed_origins_are_accepted(token: str, tokens: TokenFile) -> None:
    settings = ServeSettings(allowed_origins=["https://app.example"])
    app, _ = made(settings, tokens)
    async with client(app) as asking:
        asking.headers["authorization"] = f"Bearer {token}"
        for headers in (
            {"origin": HOST, "sec-fetch-site": "same-origin"},
            {"origin": "https://app.example", "sec-fetch-site": "cross-site"},
        ):
            assert (await asking.post("/api/who", headers=headers)).status_code == 200


async def test_websockets_and_unknown_scopes_are_rejected(served: Any) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await served[0]({"type": "websocket", "path": "/api/who", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    sent.clear()
    await served[0]({"type": "webtransport", "path": "/api/who"}, receive, send)
    assert sent == []


async def test_oversized_bodies_are_rejected_chunked_or_not(token: str, tokens: TokenFile) -> None:
    app, _ = made(ServeSettings(max_body_bytes=100), tokens)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"0123456789"

    async with client(app) as asking:
        asking.headers["authorization"] = f"Bearer {token}"
        assert (await asking.post("/api/who", content=b"x" * 100)).json()["bytes"] == 100
        for content in (b"x" * 101, chunks()):
            found = await asking.post("/api/who", content=content)
            assert (found.status_code, found.json()["code"]) == (413, "CG-TOO-LARGE")
        found = await asking.post("/api/who", content=b"x", headers={"content-length": "-1"})
        assert found.status_code == 413


async def test_every_response_has_security_headers(served: Any) -> None:
    async with client(served[0]) as asking:
        for path in ("/healthz", "/api/who", "/login", "/nowhere"):
            found = await asking.get(path)
            policy = found.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "require-trusted-types-for 'script'" in policy
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["x-frame-options"] == "DENY"
            assert found.headers["cache-control"] == "no-store"


async def test_requests_are_rate_limited(token: str, tokens: TokenFile) -> None:
    settings = ServeSettings(requests_per_minute=3)
    app, _ = made(settings, tokens)
    async with client(app) as asking:
        asking.headers["authorization"] = f"Bearer {token}"
        codes = [(await asking.get("/api/who")).status_code for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]
        assert (await asking.get("/healthz", headers={"authorization": ""})).status_code == 200


async def test_logins_are_limited_by_address(tokens: TokenFile) -> None:
    app, _ = made(ServeSettings(logins_per_minute=2), tokens)
    async with client(app) as asking:
        codes = [(await asking.post("/login", data={"token": "x"})).status_code for _ in range(3)]
        assert codes == [401, 401, 429]


# --- sessions -------------------------------------------------------------------------------------


async def test_login_creates_a_new_session_that_ends_with_its_token(
    served: Any, token: str, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capgraph.serve.tokens._REFRESH_SECONDS", 0.0)
    async with client(served[0]) as asking:
        asking.cookies.set(SESSION_COOKIE, "chosen-by-somebody", domain="127.0.0.1")
        found = await asking.post("/login", data={"token": token})
        assert (found.status_code, found.headers["location"]) == (303, "/")
        cookie = found.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "chosen-by-somebody" not in cookie
        session = cookie.split("=", 1)[1].split(";")[0]
        asking.cookies.clear()
        mine = {"cookie": f"{SESSION_COOKIE}={session}"}
        assert (await asking.get("/api/who", headers=mine)).json()["user"] == "ada"
        wrong = {**mine, "authorization": "Bearer wrong"}
        assert (await asking.get("/api/who", headers=wrong)).status_code == 401
        await asyncio.to_thread(revoke_token, token_file, "ada")
        assert (await asking.get("/api/who", headers=mine)).status_code == 401


async def test_stream_ends_with_its_login(
    served: Any, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capgraph.serve.security._RECHECK_SECONDS", 0.0)
    async with client(served[0]) as asking:
        found = await asking.post("/login", json={"token": token})
        mine = {"cookie": found.headers["set-cookie"].split(";")[0]}
        asking.cookies.clear()
        told = await asking.get("/api/told", headers=mine)
    assert told.text == "data: 1\n\ndata: 2\n\n"


async def test_logout_ends_the_session(served: Any, token: str) -> None:
    async with client(served[0]) as asking:
        found = await asking.post("/login", json={"token": token})
        mine = {"cookie": found.headers["set-cookie"].split(";")[0]}
        asking.cookies.clear()
        assert (await asking.post("/logout", headers=mine)).status_code == 303
        assert (await asking.get("/api/who", headers=mine)).status_code == 401


async def test_one_time_link_works_once() -> None:
    app, logins = made()
    link = logins.link
    async with client(app) as asking:
        assert (await asking.get("/login?link=wrong")).status_code == 401
        await asking.head(f"/login?link={link}")  # a preview does not use it up
        found = await asking.get(f"/login?link={link}&thread=a/b")
        assert (found.status_code, found.headers["location"]) == (303, "/?thread=a%2Fb")
        assert (await asking.get("/api/who")).json()["user"] == "local"
    async with client(app) as other:
        assert (await other.get(f"/login?link={link}")).status_code == 401
        assert (await other.get("/api/who")).status_code == 401


async def test_cookie_is_secure_behind_tls(token: str, tokens: TokenFile) -> None:
    settings = ServeSettings(base_url="https://agent.example")
    app, _ = made(settings, tokens)
    async with client(app, url="https://agent.example") as asking:
        found = await asking.post("/login", data={"token": token})
        assert "Secure" in found.headers["set-cookie"]
        assert found.headers["strict-transport-security"]


# --- a proxy --------------------------------------------------------------------------------------


async def test_only_trusted_proxies_are_believed() -> None:
    proxy = ProxySettings(trusted=["10.0.0.9"], role_header="x-role")
    app, _ = made(ServeSettings(proxy=proxy, allowed_hosts=["agent.example"]))
    said = {"x-forwarded-user": "ada", "x-role": "operator"}
    async with client(app, "10.0.0.9", "http://agent.example") as asking:
        assert (await asking.get("/api/who", headers=said)).json() == {
            "user": "ada",
            "role": "operator",
            "bytes": 0,
        }
        assert (await asking.get("/api/who")).status_code == 401
        for name, value in (("x-forwarded-user", "eve"), ("x-role", "admin")):
            twice = [(name, value), *said.items()]  # the proxy's stands behind the client's
            assert (await asking.get("/api/who", headers=twice)).status_code == 401
    async with client(app, "10.0.0.8", "http://agent.example") as asking:
        assert (await asking.get("/api/who", headers=said)).status_code == 401
