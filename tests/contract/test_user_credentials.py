"""Tools of an MCP server and an A2A agent that require the access token of their user."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import httpx
import jwt
import pytest
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from capgraph import build_graph
from capgraph.adapters import TokenExchange, mcp_capabilities, open_registry, remote_capability
from capgraph.base.errors import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from tests.support.listening import on_loopback
from tests.support.oauth import (
    SERVICE_HEADERS,
    MailAgent,
    assert_absent,
    listening_provider,
    mail_tools,
    stored_text,
)
from tests.support.served import asked, ended, served


async def run_tool(client: httpx.AsyncClient, name: str, task: str = "Read.") -> tuple[str, str]:
    """Run a tool in a new thread. Return the outcome, and all that the API shows of the run."""
    plan = {"steps": [{"context_key": "mail", "capability": name, "task_objective": task}]}
    thread, run = await asked(client, plan)
    outcome = await ended(client, run)
    events = (await client.get(f"/api/runs/{run}/events")).text
    thread_text = (await client.get(f"/api/threads/{thread}")).text
    return outcome, events + thread_text


async def test_each_user_gets_the_own_token_which_is_stored_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "capgraph")
    database = tmp_path / "threads.db"
    async with (
        listening_provider() as provider,
        mail_tools(provider, provider.token_exchange()) as tools,
        AsyncSqliteSaver.from_conn_string(str(database)) as saver,
        served(*tools, saver=saver) as client_of,
    ):
        clients = {name: await client_of(name) for name in ("ann", "bob")}
        runs = await asyncio.gather(
            *(run_tool(client, "read_mail") for name, client in clients.items())
        )
        for (name, client), (outcome, shown) in zip(clients.items(), runs, strict=True):
            assert outcome == "completed"
            assert f"mail of {name}, read with ***" in shown
            # The second run uses the same token.
            assert (await run_tool(client, "read_mail"))[0] == "completed"
        failed, shown_failure = await run_tool(clients["ann"], "fail")
        assert failed != "completed"
        assert "cannot read with ***" in shown_failure
        assert provider.users == ["ann", "bob"]
    shown = shown_failure + "".join(shown for _, shown in runs)
    shown += stored_text(tmp_path, database, caplog.records)
    assert "mail of ann" in shown
    assert_absent(provider.secrets, shown)


async def test_a_token_that_the_server_rejects_is_renewed_once() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider, provider.token_exchange()) as tools,
        served(*tools) as client_of,
    ):
        client = await client_of("ann")
        assert (await run_tool(client, "read_mail"))[0] == "completed"
        provider.tokens.clear()  # revokes the token
        assert (await run_tool(client, "read_mail"))[0] == "completed"
        assert len(provider.subjects) == 2


async def test_runs_without_a_token_fail_before_the_server_is_called() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider, provider.token_exchange()) as tools,
    ):
        async with served(*tools) as client_of:
            outcome, shown = await run_tool(await client_of("eve"), "read_mail")
            assert outcome == "failed"
            assert "access_denied" in shown
        graph = build_graph(tools)
        steps = [{"context_key": "mail", "capability": "read_mail", "task_objective": "Read."}]
        # A caller can write any user ID into the configurable of a graph without a server.
        claimed = {"configurable": {"thread_id": "1", "user_id": "ann"}}
        out = await graph.ainvoke(
            {"messages": [], "planning_execution_plan": {"steps": steps}}, claimed
        )
        assert not out["execution_step_results"]["mail"]["success"]
        assert provider.users == []


async def test_settings_declare_credentials() -> None:
    async with listening_provider() as provider:
        credentials = {
            "token_url": f"{provider.url}/token",
            "client_id": "agent",
            "client_secret": "secret",
            "issuer": "agent",
            "signing_key": provider.key,
            "audience": "mail",
        }
        server = {
            "url": f"{provider.url}/mcp",
            "headers": SERVICE_HEADERS,
            "credentials": credentials,
            "effects": {"read_mail": "none"},
        }
        settings = Settings.model_validate({"mcp": [server]})
        assert provider.key not in json.dumps(settings.model_dump(mode="json"))
        async with open_registry(settings) as registry, served(registry=registry) as client_of:
            client = await client_of("ann", tenant="acme")
            assert (await run_tool(client, "read_mail"))[0] == "completed"
        (subject,) = provider.subjects
        claims = jwt.decode(subject, options={"verify_signature": False})
        assert (claims["iss"], claims["sub"], claims["tenant"]) == ("agent", "ann", "acme")
        credentials["signing_key"] = "no key"
        with pytest.raises(ConfigurationError) as invalid:
            async with open_registry(Settings.model_validate({"mcp": [server]})):
                pass
        assert "no key" not in str(invalid.value)


async def test_an_a2a_agent_receives_the_token_of_the_user() -> None:
    received: list[str | None] = []

    async def refuse(request: Request) -> JSONResponse:
        received.append(request.headers.get("authorization"))
        return JSONResponse({}, 404)

    app = Starlette(routes=[Route("/{path:path}", refuse)])
    async with listening_provider() as provider, on_loopback(lambda _: app) as url:
        agent = remote_capability(f"{url}/a2a", "remote", credentials=provider.token_exchange())
        async with served(agent) as client_of:
            for name in ("ann", "bob"):
                await run_tool(await client_of(name), "remote")
        assert {*received} == {f"Bearer {token}" for token in provider.tokens}
        assert provider.users == ["ann", "bob"]


async def test_an_a2a_agent_receives_a_renewed_token_and_its_texts_are_masked() -> None:
    async with listening_provider() as provider:
        mail = MailAgent(provider)
        async with on_loopback(mail.make_app) as url:
            agent = remote_capability(f"{url}/", "remote", credentials=provider.token_exchange())
            async with served(agent) as client_of:
                client = await client_of("ann")
                for count in (1, 2):
                    outcome, shown = await run_tool(client, "remote")
                    assert (outcome, len(provider.subjects)) == ("completed", count)
                    assert "mail of ann, read with Bearer ***" in shown
                    assert_absent(provider.secrets, shown)
                    provider.tokens.clear()  # revokes the token
                outcome, shown = await run_tool(client, "remote", "Refuse.")
                assert outcome == "failed"
                assert "which rejected the message, reported a failure: refused Bearer ***" in shown
                assert_absent(provider.secrets, shown)


async def test_credentials_require_the_url_of_a_server() -> None:
    exchange = TokenExchange("http://x/token", client_id="a", subject_token=lambda _: "")
    with pytest.raises(ConfigurationError):
        await mcp_capabilities(MCPServer("x"), credentials=exchange)
    with pytest.raises(ConfigurationError):
        TokenExchange("file:///x", client_id="a", subject_token=lambda _: "")
    with pytest.raises(ConfigurationError):
        await mcp_capabilities("http://x/mcp", credentials="token")
    with pytest.raises(CapabilityError) as unreachable:
        await TokenExchange(
            "http://127.0.0.1:9/token", client_id="a", subject_token=lambda _: "secret-subject"
        ).get_token(Caller("ann", authenticated=True))
    assert unreachable.value.severity is ErrorSeverity.RETRIABLE
    assert "secret-subject" not in str(unreachable.value)
