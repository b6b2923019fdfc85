"""A reverse proxy in front of the real server: only ``serve.proxy.trusted`` is believed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import ValidationError

from capgraph import build_graph
from capgraph.configs.settings import OidcSettings, ProxySettings, ServeSettings, Settings
from capgraph.serve.app import create_app
from capgraph.serve.server import Server, open_listening_socket, socket_url
from capgraph.serve.tokens import issue_token
from tests.support.reverse_proxy import proxied
from tests.support.served import OpenValve, read_level


@asynccontextmanager
async def running(*capabilities: Any, auth: Any = None, **serve: Any) -> AsyncIterator[str]:
    """Run the server of the command line on loopback."""
    settings = Settings(serve=ServeSettings(**serve))
    graph = build_graph(capabilities, checkpointer=InMemorySaver(), settings=settings)
    app = await asyncio.to_thread(lambda: create_app(graph, auth=auth, host="127.0.0.1"))
    listening = open_listening_socket("127.0.0.1", 0)
    ready = asyncio.Event()
    server = Server(app, listening, ready.set)
    task = asyncio.create_task(server.listen())
    await asyncio.wait_for(ready.wait(), 20)
    yield socket_url(listening)
    server.should_exit = True
    await task


async def status(address: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=address) as asking:
        return (await asking.get("/api/threads", headers=named)).status_code


async def test_untrusted_clients_cannot_set_proxy_headers() -> None:
    async with running(proxy=ProxySettings(trusted=["10.0.0.9"])) as address:
        forged = {"x_forwarded_for": "10.0.0.9", "x_forwarded_user": "ada"}
        assert await status(address, **forged) == 401


@pytest.mark.parametrize("is_stripped", [True, False])
async def test_server_below_a_path(tmp_path: Any, is_stripped: bool) -> None:
    tokens = tmp_path / "tokens.json"
    token = await asyncio.to_thread(issue_token, tokens, "ada")
    proxy = ProxySettings(trusted=["127.0.0.1"], user_header=None)
    public: list[str] = []
    async with (
        proxied(lambda: public, prefix="/agent", is_stripped=is_stripped) as url,
        running(
            *(read_level, OpenValve),
            auth=tokens,
            proxy=proxy,
            base_url=None if is_stripped else url.replace("http:", "https:"),
            oidc=OidcSettings(issuer="https://login.example", client_id="c"),
        ) as address,
        httpx.AsyncClient(base_url=url) as browser,
    ):
        public.append(address)
        secure = url.replace("http:", "https:")
        page = await browser.get("/")
        assert page.status_code == 200
        assert 'action="/agent/login"' in page.text
        assert 'href="/agent/login/oidc"' in page.text
        login = await browser.post("/login", data={"token": token})
        assert login.headers["location"] == "/agent/"
        assert "Path=/agent;" in login.headers["set-cookie"]
        assert "Secure" in login.headers["set-cookie"]
        cookie = login.headers["set-cookie"].split(";")[0]
        console = await browser.get("/", headers={"cookie": cookie})
        for path in re.findall(r'(?:href|src)="([^"]+[.](?:js|css))"', console.text):
            found = await browser.get(urljoin(f"{url}/", path), headers={"cookie": cookie})
            assert found.status_code == 200
        browser.headers["authorization"] = f"Bearer {token}"
        card = (await browser.get("/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"] == f"{secure}/a2a"
        body = {"messages": [{"role": "user", "content": "open the valve of the tank"}]}
        streamed = {**body, "stream": True}
        async with browser.stream("POST", "/v1/chat/completions", json=streamed) as stream:
            assert f"{secure}/?thread=" in "".join([part async for part in stream.aiter_text()])
        assert (await browser.get("/api/threads?limit=1")).json()["items"]
        if not is_stripped:
            assert (await browser.get(url)).headers["location"].endswith("/agent/")
        logout = await browser.post("/logout")
        assert logout.headers["location"] == "/agent/"


@pytest.mark.parametrize("trusted", [True, False])
async def test_only_a_trusted_proxy_sets_the_public_url(trusted: bool) -> None:
    proxy = ProxySettings(trusted=["127.0.0.1" if trusted else "10.0.0.9"])
    async with (
        running(proxy=proxy, allowed_hosts=["agent.example"]) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):

        async def card_url(**headers: str) -> Any:
            named = {f"x-forwarded-{name}": value for name, value in headers.items()}
            answer = await client.get("/.well-known/agent-card.json", headers=named)
            if answer.status_code != 200:
                return answer.status_code
            return answer.json()["supportedInterfaces"][0]["url"]

        own = f"{address}a2a"
        public = await card_url(host="agent.example", proto="https", prefix="/a/b/")
        assert public == ("https://agent.example/a/b/a2a" if trusted else own)
        assert await card_url(host="evil.example") == (421 if trusted else own)
        assert await card_url(prefix="/a//evil.example") == (400 if trusted else own)


async def test_trusted_proxy_sets_user_and_address() -> None:
    async with running(proxy=ProxySettings(trusted=["127.0.0.0/8"])) as address:
        said = {"x_forwarded_for": "203.0.113.7", "x_forwarded_user": "ada"}
        assert await status(address, **said) == 200


@pytest.mark.parametrize("trusted", [[], ["127.0.0.1"]])
async def test_login_attempts_count_by_trusted_address(tmp_path: Any, trusted: list[str]) -> None:
    tokens = tmp_path / "tokens.json"
    await asyncio.to_thread(issue_token, tokens, "ada")
    proxy = ProxySettings(trusted=trusted, user_header=None) if trusted else None
    async with (
        running(auth=tokens, proxy=proxy, logins_per_minute=2) as address,
        httpx.AsyncClient(base_url=address) as asking,
    ):

        async def guess(hops: str) -> int:
            headers = {"x-forwarded-for": hops}
            found = await asking.post("/login", data={"token": "wrong"}, headers=headers)
            return found.status_code

        assert [await guess("203.0.113.1") for _ in range(2)] == [401, 401]
        # What the client wrote itself stands before what the proxy added.
        assert await guess("198.51.100.9, 203.0.113.1") == 429
        assert await guess("203.0.113.2") == (401 if trusted else 429)


def test_invalid_address_cannot_be_trusted() -> None:
    with pytest.raises(ValidationError):
        ProxySettings(trusted=["proxy.example"])
