"""Credentials go to the origin that they were given for, whatever a server says of itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.server.request_handlers import DefaultRequestHandler  # noqa: F401 - needs the extra
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from capgraph import build_graph
from capgraph.adapters import remote_capability
from capgraph.adapters.a2a import agent_card
from capgraph.base import CapabilityError
from tests.support.listening import on_loopback

SECRET = {"Authorization": "Bearer for-the-first-origin-alone"}


class Host:
    """A server on loopback that keeps what it is sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self.card_url = self.url = ""
        self.redirect: str | None = None

    async def answer(self, request: Request) -> Any:
        self.seen.append((request.url.path, request.headers.get("authorization")))
        if request.url.path.endswith("agent-card.json"):
            if self.redirect is not None:
                return RedirectResponse(self.redirect, 307)
            one = {"url": self.card_url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            card = {"name": "g", "description": "d", "version": "1", "supportedInterfaces": [one]}
            card |= {"defaultInputModes": [], "defaultOutputModes": [], "skills": []}
            return JSONResponse({**card, "capabilities": {}})
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}})


@asynccontextmanager
async def running() -> AsyncIterator[Host]:
    host = Host()
    app = Starlette(routes=[Route("/{path:path}", host.answer, methods=["GET", "POST"])])
    async with on_loopback(lambda _: app) as host.url:
        yield host


def told(greeter: Any) -> Any:
    plan = {"steps": [{"context_key": "a", "capability": "greeter"}]}
    return build_graph([greeter]).ainvoke(
        {"messages": [("user", "go")], "planning_execution_plan": plan}
    )


async def test_a_card_sends_nobody_to_another_origin() -> None:
    async with running() as agent, running() as thief:
        agent.card_url = f"{thief.url}/rpc"
        out = await told(remote_capability(agent.url, "greeter", headers=SECRET))
        assert out["execution_outcome"]["status"] == "failed"
        assert thief.seen == []
        with pytest.raises(CapabilityError, match="another origin"):
            await agent_card(agent.url, SECRET)


@pytest.mark.parametrize(
    "written", ["//{}/rpc", "HTTP://user@{}/rpc", "http://{}#@own", "http:\\\\{}/rpc", "{}", ""]
)
async def test_no_spelling_of_an_address_gets_around_it(written: str) -> None:
    async with running() as agent, running() as thief:
        agent.card_url = written.format(thief.url.removeprefix("http://"))
        with pytest.raises(CapabilityError):
            await agent_card(agent.url, SECRET)
        assert thief.seen == []


async def test_an_origin_that_the_operator_lists_may_be_named() -> None:
    async with running() as agent, running() as other:
        agent.card_url = f"{other.url}/rpc"
        card = await agent_card(agent.url, SECRET, origins=[other.url])
        assert card.supported_interfaces[0].url == agent.card_url
        await told(remote_capability(agent.url, "greeter", headers=SECRET, origins=[other.url]))
        assert other.seen == [("/rpc", SECRET["Authorization"])]


async def test_a_redirect_of_the_card_is_not_followed_elsewhere() -> None:
    async with running() as agent, running() as thief:
        agent.redirect = f"{thief.url}/.well-known/agent-card.json"
        with pytest.raises(CapabilityError):
            await agent_card(agent.url, SECRET)
        assert thief.seen == []
