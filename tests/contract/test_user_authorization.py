"""Tools of an MCP server and an A2A agent whose access token each user grants on an OAuth server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Mount, Route

from capgraph import build_graph
from capgraph.adapters import open_registry, remote_capability
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from capgraph.serve import create_app
from tests.support.a2a_server import Agent, app
from tests.support.listening import on_loopback
from tests.support.oauth import (
    BASE_URL,
    SERVICE_HEADERS,
    MailAgent,
    Provider,
    api_text,
    assert_absent,
    confirm,
    listening_provider,
    mail_tools,
    stored_text,
)
from tests.support.served import asked, ended, served

_PLAN = {"steps": [{"context_key": "mail", "capability": "read_mail", "task_objective": "Read."}]}
_ASK_PLAN = {"steps": [{"context_key": "mail", "capability": "ask", "task_objective": "Ask."}]}


@pytest.fixture(params=["mcp", "a2a"])
def protocol(request: Any) -> str:
    return str(request.param)


@asynccontextmanager
async def mail_agent(provider: Provider, credentials: Any) -> AsyncIterator[Any]:
    """Serve the agent of the mailbox; gives the agent and the capability that calls it."""
    agent = MailAgent(provider)
    async with on_loopback(agent.make_app) as url:
        yield agent, remote_capability(f"{url}/", "read_mail", credentials=credentials)


@asynccontextmanager
async def mail_capabilities(
    protocol: str, provider: Provider, credentials: Any = None
) -> AsyncIterator[list[Any]]:
    """Open the capability ``read_mail``, and over MCP the others of the mailbox."""
    credentials = credentials or provider.authorization_code()
    if protocol == "mcp":
        async with mail_tools(provider, credentials) as tools:
            yield [*tools]
    else:
        async with mail_agent(provider, credentials) as (_, capability):
            yield [capability]


async def question_of(client: httpx.AsyncClient) -> dict[str, Any]:
    (question,) = (await client.get("/api/questions")).json()["items"]
    return dict(question)


async def last_run(client: httpx.AsyncClient, thread: str, after: str) -> str:
    """Wait for a run after the given one, and return the status with which it ends."""
    while True:
        found = (await client.get(f"/api/threads/{thread}")).json()["runs"]
        latest = found[0]["run_id"]
        if latest != after:
            return await ended(client, latest)
        await asyncio.sleep(0.02)


async def result_of(client: httpx.AsyncClient, thread: str, kind: str = "READ_MAIL_RESULT") -> Any:
    state = (await client.get(f"/api/threads/{thread}/state")).json()
    (data,) = state["capability_context_data"][kind].values()
    return data["result"] if "result" in data else data["output"]


async def test_user_grants_a_token_which_is_stored_nowhere_else(
    protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("capgraph", "authlib", "a2a.client", "langgraph"):
        caplog.set_level(logging.DEBUG, name)
    database = tmp_path / "threads.db"
    async with (
        listening_provider() as provider,
        mail_capabilities(protocol, provider) as capabilities,
        AsyncSqliteSaver.from_conn_string(str(database)) as saver,
        served(*capabilities, saver=saver) as client_of,
    ):
        ann = await client_of("ann")
        thread, run = await asked(ann, _PLAN)
        assert await ended(ann, run) == "waiting"
        question = await question_of(ann)
        assert question["kind"] == "authorization"
        assert question["url"] == f"{BASE_URL}/authorize/mail"
        page = await confirm(ann, question["url"], "ann")
        assert page.status_code == 200
        assert await last_run(ann, thread, run) == "completed"
        assert (await result_of(ann, thread)).startswith("mail of ann, read with ")
        # The second run uses the same token, which other users do not get.
        assert await ended(ann, (await asked(ann, _PLAN))[1]) == "completed"
        bob = await client_of("bob")
        assert await ended(bob, (await asked(bob, _PLAN))[1]) == "waiting"
        assert provider.grants == ["authorization_code"]
        shown = await api_text(ann, thread)
    shown += stored_text(tmp_path, database, caplog.records)
    assert "mail of ann" in shown
    assert_absent(provider.secrets, shown)


async def test_questions_of_the_tool_follow_the_authorization() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider, provider.authorization_code(), mode="legacy") as tools,
        served(*tools) as client_of,
    ):
        ann = await client_of("ann")
        thread, run = await asked(ann, _ASK_PLAN)
        assert await ended(ann, run) == "waiting"
        # An answer without an authorization asks again.
        question = await question_of(ann)
        path = f"/api/questions/{question['question_id']}"
        again = (await ann.post(path, json={"answer": "done"})).json()["run_id"]
        assert await ended(ann, again) == "waiting"
        await confirm(ann, (await question_of(ann))["url"], "ann")
        assert await last_run(ann, thread, again) == "waiting"
        question = await question_of(ann)
        assert question["kind"] == "mcp_elicitation"
        path = f"/api/questions/{question['question_id']}"
        last = (await ann.post(path, json={"answer": {"folder": "Inbox"}})).json()["run_id"]
        assert await ended(ann, last) == "completed"
        assert await result_of(ann, thread, "ASK_RESULT") == "Inbox of ann"


async def test_questions_of_an_a2a_agent_follow_the_authorization(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("capgraph", "a2a.client", "langgraph"):
        caplog.set_level(logging.DEBUG, name)
    database = tmp_path / "threads.db"
    plan = {"steps": [{**_PLAN["steps"][0], "task_objective": "Read a folder."}]}
    async with (
        listening_provider() as provider,
        mail_agent(provider, provider.authorization_code()) as (agent, capability),
        AsyncSqliteSaver.from_conn_string(str(database)) as saver,
        served(capability, saver=saver) as client_of,
    ):
        ann = await client_of("ann")
        thread, run = await asked(ann, plan)
        assert await ended(ann, run) == "waiting"
        assert agent.authorizations == []
        question = await question_of(ann)
        path = f"/api/questions/{question['question_id']}"
        again = (await ann.post(path, json={"answer": "done"})).json()["run_id"]
        assert await ended(ann, again) == "waiting"
        await confirm(ann, (await question_of(ann))["url"], "ann")
        assert await last_run(ann, thread, again) == "waiting"
        question = await question_of(ann)
        assert (question["kind"], question["message"]) == (
            "a2a_input",
            "Which folder for Bearer ***?",
        )
        path = f"/api/questions/{question['question_id']}"
        last = (await ann.post(path, json={"answer": "Inbox"})).json()["run_id"]
        shown = await api_text(ann, thread)
        assert await ended(ann, last) == "completed"
        assert await result_of(ann, thread) == "Inbox of ann, read with Bearer ***"
        assert agent.told == ["Read a folder.", "Inbox"]
        shown += await api_text(ann, thread)
    shown += stored_text(tmp_path, database, caplog.records)
    assert_absent(provider.secrets, shown)


async def test_a_token_is_sent_to_the_origin_of_its_agent_only() -> None:
    """A card of another origin, and a redirection to one, fail before the token is sent there."""
    stolen: list[str | None] = []

    async def steal(request: Request) -> JSONResponse:
        stolen.append(request.headers.get("authorization"))
        return JSONResponse({})

    thief = Starlette(routes=[Route("/{path:path}", steal, methods=["GET", "POST"])])
    async with listening_provider() as provider, on_loopback(lambda _: thief) as elsewhere:
        credentials = provider.authorization_code()
        token = {"access_token": "access-token-ann", "expires_at": time.time() + 3600}
        await credentials.store_token(Caller("ann", authenticated=True), token)
        redirect = RedirectResponse(f"{elsewhere}/rpc", 307)
        for make_app in (
            lambda _: app(Agent(), elsewhere),
            lambda url: Starlette(
                routes=[Route("/rpc", redirect, methods=["POST"]), Mount("/", app(Agent(), url))]
            ),
        ):
            async with on_loopback(make_app) as url:
                agent = remote_capability(f"{url}/", "read_mail", credentials=credentials)
                async with served(agent) as client_of:
                    ann = await client_of("ann")
                    assert await ended(ann, (await asked(ann, _PLAN))[1]) == "failed"
        assert stolen == []


async def test_refusal_ends_the_step(protocol: str) -> None:
    async with (
        listening_provider() as provider,
        mail_capabilities(protocol, provider) as capabilities,
        served(*capabilities) as client_of,
    ):
        ann = await client_of("ann")
        provider.refuses = True
        thread, run = await asked(ann, _PLAN)
        await ended(ann, run)
        page = await confirm(ann, (await question_of(ann))["url"], "ann")
        assert page.status_code == 403
        assert await last_run(ann, thread, run) == "failed"
        assert provider.grants == []


async def test_nobody_authorizes_for_another_user(protocol: str) -> None:
    async with (
        listening_provider() as provider,
        mail_capabilities(protocol, provider) as capabilities,
        served(*capabilities) as client_of,
    ):
        ann, eve = await client_of("ann"), await client_of("eve")
        _, run = await asked(ann, _PLAN)
        await ended(ann, run)
        # The token of a browser belongs to the user of that browser, not to the user of the link.
        assert (await confirm(eve, (await question_of(ann))["url"], "eve")).status_code == 200
        assert (await question_of(ann))["kind"] == "authorization"
        # A callback that the browser did not start is refused.
        forged = await ann.get("/authorize/mail/callback?code=code-7-eve&state=x")
        assert forged.status_code == 400
        assert (await ann.get("/authorize/other")).status_code == 404
        # A link of another site shows a page that repeats the request with the cookie.
        nobody = await client_of("")
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        reload = await nobody.get("/authorize/mail", headers=headers)
        assert reload.headers["refresh"] == "0; url=?reload=1"
        assert (await nobody.get("/authorize/mail?reload=1")).status_code == 401
        assert provider.grants == ["authorization_code"]


async def test_expired_tokens_are_refreshed_and_revoked_ones_are_granted_again(
    protocol: str,
) -> None:
    caller = Caller("ann", authenticated=True)
    async with listening_provider() as provider:
        credentials = provider.authorization_code()
        async with (
            mail_capabilities(protocol, provider, credentials) as capabilities,
            served(*capabilities) as client_of,
        ):
            ann = await client_of("ann")
            provider.expires_in = 1
            thread, run = await asked(ann, _PLAN)
            await ended(ann, run)
            await confirm(ann, (await question_of(ann))["url"], "ann")
            assert await last_run(ann, thread, run) == "completed"
            assert {*provider.grants[1:]} == {"refresh_token"}
            provider.expires_in = 3600
            await credentials.store_token(
                caller, {"access_token": "revoked", "expires_at": time.time() + 3600}
            )
            _, run = await asked(ann, _PLAN)
            assert await ended(ann, run) == "waiting"
            assert (await question_of(ann))["kind"] == "authorization"


async def test_processes_share_tokens_in_an_encrypted_database(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tokens.db'}"
    caller = Caller("ann", authenticated=True)
    options = {"store": store, "encryption_key": "a secret of 24 letters..."}
    provider = Provider()
    provider.url = "http://127.0.0.1:9"
    token = {"access_token": "secret-token", "expires_at": time.time() + 600}
    await provider.authorization_code(**options).store_token(caller, token)
    assert await provider.authorization_code(**options).get_token(caller) == "secret-token"
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"user-token:mail:" in stored
    assert b"secret-token" not in stored
    with pytest.raises(ConfigurationError):
        provider.authorization_code(store=store)


async def test_settings_declare_an_authorization() -> None:
    async with listening_provider() as provider:
        authorization = {
            "name": "mail",
            "authorization_url": f"{provider.url}/authorize",
            "token_url": f"{provider.url}/token",
            "client_id": "agent",
        }
        server = {
            "url": f"{provider.url}/mcp",
            "headers": SERVICE_HEADERS,
            "authorization": authorization,
            "effects": {"read_mail": "none"},
        }
        settings = Settings.model_validate({"mcp": [server], "serve": {"base_url": BASE_URL}})
        async with (
            open_registry(settings) as registry,
            served(registry=registry, settings=settings) as client_of,
        ):
            ann = await client_of("ann")
            _, run = await asked(ann, _PLAN)
            assert await ended(ann, run) == "waiting"
            assert (await question_of(ann))["url"] == f"{BASE_URL}/authorize/mail"


async def test_two_authorizations_of_one_name_are_refused() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider, provider.authorization_code()) as some,
        mail_tools(provider, provider.authorization_code(), prefix="other_") as others,
    ):
        graph = build_graph([*some, *others], checkpointer=InMemorySaver())
        with pytest.raises(ConfigurationError):
            create_app(graph)
