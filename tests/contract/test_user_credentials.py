"""Tools of an MCP server that require the access token of the user for whom they act."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from a2a.helpers import new_text_message
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from capgraph import build_graph
from capgraph.adapters import (
    TokenExchange,
    mcp_capabilities,
    open_registry,
    remote_capability,
    signed_subject,
)
from capgraph.base.errors import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from tests.support.a2a_server import Agent, app
from tests.support.listening import on_loopback
from tests.support.served import asked, ended, served

_SERVICE_TOKEN = "service-token"


def _make_key() -> tuple[str, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem.decode(), key.public_key()


class Provider:
    """Authorization server and MCP server of one provider, which has a mailbox for each user."""

    def __init__(self) -> None:
        self.key, self.public_key = _make_key()
        self.users: dict[str, str] = {}
        self.subjects: list[str] = []
        self.clients: list[str] = []
        self.url = ""

    async def exchange(self, request: Request) -> JSONResponse:
        form = await request.form()
        self.clients.append(request.headers["authorization"])
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
        assert form["audience"] == "mail"
        self.subjects.append(str(form["subject_token"]))
        claims = jwt.decode(
            str(form["subject_token"]), self.public_key, ["ES256"], audience=f"{self.url}/token"
        )
        if claims["sub"] == "eve":
            return JSONResponse({"error": "access_denied"}, 400)
        token = f"token-{claims['sub']}-{len(self.subjects)}-{claims['jti']}"
        self.users[token] = claims["sub"]
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    async def verify_token(self, token: str) -> AccessToken | None:
        user = "service" if token == _SERVICE_TOKEN else self.users.get(token)
        return user and AccessToken(token=token, client_id="agent", scopes=[], subject=user)

    def make_app(self, url: str) -> Starlette:
        self.url = url
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(url),
            resource_server_url=AnyHttpUrl(f"{url}/mcp"),
            validate_token_resource=False,
        )
        server = MCPServer("mail", auth=auth, token_verifier=self)

        @server.tool()
        async def read_mail(context: Context) -> str:
            """Read the user's mail. A careless server returns the token, too."""
            access = get_access_token()
            assert access is not None
            await context.report_progress(0.5, 1.0, f"reading with {access.token}")
            return f"mail of {access.subject}, read with {access.token}"

        @server.tool()
        async def fail() -> str:
            """Fail. A careless server returns the token."""
            access = get_access_token()
            assert access is not None
            raise ToolError(f"cannot read with {access.token}")

        mail = server.streamable_http_app()
        routes = [Route("/token", self.exchange, methods=["POST"]), Mount("/", mail)]
        return Starlette(routes=routes, lifespan=lambda _: mail.router.lifespan_context(mail))

    def credentials(self) -> TokenExchange:
        subject = signed_subject(self.key, issuer="agent", audience=f"{self.url}/token")
        return TokenExchange(
            f"{self.url}/token",
            client_id="agent",
            client_secret="secret",
            subject_token=subject,
            audience="mail",
        )


@asynccontextmanager
async def listening_provider() -> Any:
    provider = Provider()
    async with on_loopback(provider.make_app):
        yield provider


@asynccontextmanager
async def mail_tools(provider: Provider, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {_SERVICE_TOKEN}"}
    options = {"credentials": provider.credentials(), "headers": headers, **options}
    async with await mcp_capabilities(
        f"{provider.url}/mcp", effects={"read_mail": "none", "fail": "none"}, **options
    ) as tools:
        yield tools


async def run_tool(client: httpx.AsyncClient, name: str) -> tuple[str, str]:
    """Run a tool in a new thread. Return the outcome, and all that the API shows of the run."""
    plan = {"steps": [{"context_key": "mail", "capability": name, "task_objective": "Read."}]}
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
        mail_tools(provider) as tools,
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
        assert sorted(provider.users.values()) == ["ann", "bob"]
        secrets = [*provider.users, *provider.subjects]
    with sqlite3.connect(database) as connection:
        stored = "\n".join(connection.iterdump())
    for path in tmp_path.iterdir():
        stored += path.read_bytes().decode("latin-1")
    # The provider logs in this process, too.
    logs = [str(one.__dict__) for one in caplog.records if not one.name.startswith("mcp.server")]
    everything = stored + "".join(logs) + shown_failure + "".join(shown for _, shown in runs)
    assert "mail of ann" in everything
    for secret in secrets:
        assert secret not in everything
        assert secret.encode().hex().upper() not in everything  # as SQL writes bytes


async def test_a_token_that_the_server_rejects_is_renewed_once() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider) as tools,
        served(*tools) as client_of,
    ):
        client = await client_of("ann")
        assert (await run_tool(client, "read_mail"))[0] == "completed"
        provider.users.clear()  # revokes the token
        assert (await run_tool(client, "read_mail"))[0] == "completed"
        assert len(provider.subjects) == 2


async def test_runs_without_a_token_fail_before_the_server_is_called() -> None:
    async with listening_provider() as provider, mail_tools(provider) as tools:
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
        assert provider.users == {}


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
            "headers": {"Authorization": f"Bearer {_SERVICE_TOKEN}"},
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
        agent = remote_capability(f"{url}/a2a", "remote", credentials=provider.credentials())
        async with served(agent) as client_of:
            for name in ("ann", "bob"):
                await run_tool(await client_of(name), "remote")
        assert {*received} == {f"Bearer {token}" for token in provider.users}
        assert len(provider.users) == 2


async def test_an_a2a_agent_receives_a_renewed_token_and_its_texts_are_masked() -> None:
    class Careless(Agent):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            token = context.call_context.state["headers"]["authorization"]
            await event_queue.enqueue_event(new_text_message(f"done with {token}"))

    async with listening_provider() as provider:

        def make_app(url: str) -> ASGIApp:
            agent = app(Careless(), url)

            async def check_token(scope: Scope, receive: Receive, send: Send) -> None:
                token = Headers(scope=scope).get("authorization", "").removeprefix("Bearer ")
                accepts = scope["type"] != "http" or token in provider.users
                await (agent if accepts else Response(status_code=401))(scope, receive, send)

            return check_token

        async with on_loopback(make_app) as url:
            agent = remote_capability(f"{url}/", "remote", credentials=provider.credentials())
            async with served(agent) as client_of:
                client = await client_of("ann")
                for count in (1, 2):
                    outcome, shown = await run_tool(client, "remote")
                    assert (outcome, len(provider.subjects)) == ("completed", count)
                    assert "done with Bearer ***" in shown
                    assert not any(token in shown for token in provider.users)
                    provider.users.clear()  # revokes the token


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
