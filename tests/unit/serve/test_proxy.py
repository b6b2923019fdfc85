"""A reverse proxy in front of the real server: only ``serve.proxy.trusted`` is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import ValidationError

from capgraph import build_graph
from capgraph.configs.settings import ProxySettings, ServeSettings, Settings
from capgraph.serve.app import create_app
from capgraph.serve.server import Server, open_listening_socket, socket_url
from capgraph.serve.tokens import issue_token


@asynccontextmanager
async def running(auth: Any = None, **serve: Any) -> AsyncIterator[str]:
    """Run the server of the command line on loopback."""
    settings = Settings(serve=ServeSettings(**serve))
    graph = build_graph([], checkpointer=InMemorySaver(), settings=settings)
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
        running(tokens, proxy=proxy, logins_per_minute=2) as address,
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
