"""Tools of an MCP server whose access token each user grants on a page of an OAuth server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from pydantic import AnyHttpUrl, BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Mount, Route

from capgraph import build_graph
from capgraph.adapters import AuthorizationCode, mcp_capabilities, open_registry
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from capgraph.serve import create_app
from tests.support.listening import on_loopback
from tests.support.served import asked, ended, served

_SERVICE = {"Authorization": "Bearer service-token"}
_PLAN = {"steps": [{"context_key": "mail", "capability": "read_mail", "task_objective": "Read."}]}
_ASK_PLAN = {"steps": [{"context_key": "mail", "capability": "ask", "task_objective": "Ask."}]}
_BASE = "http://127.0.0.1"


class Folder(BaseModel):
    folder: str


class Provider:
    """Authorization server with PKCE and refresh tokens, and the MCP server of a mailbox."""

    def __init__(self) -> None:
        self.url = ""
        self.challenges: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        self.secrets: set[str] = set()
        self.grants: list[str] = []
        self.refuses = False
        self.expires_in = 3600

    async def authorize(self, request: Request) -> RedirectResponse:
        """Authorize the user whom the browser names by the cookie ``mailbox``."""
        query = request.query_params
        back = f"{query['redirect_uri']}?state={query['state']}"
        if self.refuses:
            return RedirectResponse(f"{back}&error=access_denied", 303)
        code = f"code-{len(self.challenges)}-{request.cookies['mailbox']}"
        self.challenges[code] = query["code_challenge"]
        self.secrets.add(code)
        return RedirectResponse(f"{back}&code={code}", 303)

    async def token(self, request: Request) -> JSONResponse:
        form = await request.form()
        self.grants.append(str(form["grant_type"]))
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if self.challenges.pop(str(form["code"]), None) != challenge:
                return JSONResponse({"error": "invalid_grant"}, 400)
            user = str(form["code"]).rpartition("-")[2]
        else:
            user = self.tokens.pop(str(form["refresh_token"]), "")
            if not user:
                return JSONResponse({"error": "invalid_grant"}, 400)
        access = f"access-token-{user}-{len(self.tokens)}"
        refresh = f"refresh-token-{user}-{len(self.tokens)}"
        self.tokens |= {access: user, refresh: user}
        self.secrets |= {access, refresh}
        fields = {"access_token": access, "refresh_token": refresh, "token_type": "Bearer"}
        return JSONResponse({**fields, "expires_in": self.expires_in})

    async def verify_token(self, token: str) -> AccessToken | None:
        user = "service" if token == "service-token" else self.tokens.get(token)
        if user is None:
            return None
        return AccessToken(token=token, client_id="agent", scopes=[], subject=user)

    def make_app(self, url: str) -> Starlette:
        self.url = url
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(url),
            resource_server_url=AnyHttpUrl(f"{url}/mcp"),
            validate_token_resource=False,
        )
        server = MCPServer("mail", auth=auth, token_verifier=self)

        @server.tool()
        async def read_mail() -> str:
            """Read the user's mail."""
            access = get_access_token()
            assert access is not None
            return f"mail of {access.subject}"

        @server.tool()
        async def ask(context: Context) -> str:
            """Ask for a folder of the user's mail."""
            access = get_access_token()
            assert access is not None
            result = await context.elicit("Which folder?", Folder)
            assert result.action == "accept"
            return f"{result.data.folder} of {access.subject}"

        mail = server.streamable_http_app()
        routes = [
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
            Mount("/", mail),
        ]
        lifespan: Any = mail.router.lifespan_context
        return Starlette(routes=routes, lifespan=lambda _: lifespan(mail))

    def credentials(self, **options: Any) -> AuthorizationCode:
        return AuthorizationCode(
            "mail",
            authorization_url=f"{self.url}/authorize",
            token_url=f"{self.url}/token",
            client_id="agent",
            base_url=_BASE,
            **options,
        )


@asynccontextmanager
async def listening_provider() -> AsyncIterator[Provider]:
    provider = Provider()
    async with on_loopback(provider.make_app):
        yield provider


@asynccontextmanager
async def mail_tools(provider: Provider, credentials: Any = None, **options: Any) -> Any:
    async with await mcp_capabilities(
        f"{provider.url}/mcp",
        credentials=credentials or provider.credentials(),
        headers=_SERVICE,
        effects={"read_mail": "none", "ask": "none"},
        **options,
    ) as tools:
        yield tools


async def confirm(browser: httpx.AsyncClient, url: str, mailbox: str) -> httpx.Response:
    """Open the link of a question in a user's browser, and confirm at the authorization server."""
    page = await browser.get(url)
    assert page.status_code == 302
    async with httpx.AsyncClient(cookies={"mailbox": mailbox}) as elsewhere:
        redirect = await elsewhere.get(page.headers["location"])
    # Browsers omit strict cookies here, and so does this one the header with its user.
    headers = {"x-user": "", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    return await browser.get(redirect.headers["location"], headers=headers)


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
    return data["result"]


async def test_user_grants_a_token_which_is_stored_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("capgraph", "authlib"):
        caplog.set_level(logging.DEBUG, name)
    database = tmp_path / "threads.db"
    async with (
        listening_provider() as provider,
        mail_tools(provider) as tools,
        AsyncSqliteSaver.from_conn_string(str(database)) as saver,
        served(*tools, saver=saver) as client_of,
    ):
        ann, shown = await client_of("ann"), ""
        thread, run = await asked(ann, _PLAN)
        assert await ended(ann, run) == "waiting"
        question = await question_of(ann)
        assert question["kind"] == "authorization"
        assert question["url"] == f"{_BASE}/authorize/mail"
        page = await confirm(ann, question["url"], "ann")
        assert page.status_code == 200
        assert await last_run(ann, thread, run) == "completed"
        assert await result_of(ann, thread) == "mail of ann"
        # The second run uses the same token, which other users do not get.
        assert await ended(ann, (await asked(ann, _PLAN))[1]) == "completed"
        bob = await client_of("bob")
        assert await ended(bob, (await asked(bob, _PLAN))[1]) == "waiting"
        assert provider.grants == ["authorization_code"]
        for path in ("", "/state", "/history"):
            shown += (await ann.get(f"/api/threads/{thread}{path}")).text
        for found in (await ann.get(f"/api/threads/{thread}")).json()["runs"]:
            shown += (await ann.get(f"/api/runs/{found['run_id']}/events")).text
    with sqlite3.connect(database) as connection:
        shown += "\n".join(connection.iterdump())
    for file in tmp_path.iterdir():
        shown += file.read_bytes().decode("latin-1")
    own = [one for one in caplog.records if not one.name.startswith(("mcp.server", "httpcore"))]
    # The provider and the test's browser log in this process, too.
    own = [one for one in own if not (one.name == "httpx" and "code=" in one.getMessage())]
    shown += "".join(str(one.__dict__) for one in own)
    assert "mail of ann" in shown
    for secret in provider.secrets:
        assert secret not in shown
        assert secret.encode().hex().upper() not in shown  # as SQL writes bytes


async def test_questions_of_the_tool_follow_the_authorization() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider, mode="legacy") as tools,
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


async def test_refusal_ends_the_step() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider) as tools,
        served(*tools) as client_of,
    ):
        ann = await client_of("ann")
        provider.refuses = True
        thread, run = await asked(ann, _PLAN)
        await ended(ann, run)
        page = await confirm(ann, (await question_of(ann))["url"], "ann")
        assert page.status_code == 403
        assert await last_run(ann, thread, run) == "failed"
        assert provider.grants == []


async def test_nobody_authorizes_for_another_user() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider) as tools,
        served(*tools) as client_of,
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


async def test_expired_tokens_are_refreshed_and_revoked_ones_are_granted_again() -> None:
    caller = Caller("ann", authenticated=True)
    async with listening_provider() as provider:
        credentials = provider.credentials()
        async with mail_tools(provider, credentials) as tools, served(*tools) as client_of:
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
    await provider.credentials(**options).store_token(caller, token)
    assert await provider.credentials(**options).get_token(caller) == "secret-token"
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"user-token:mail:" in stored
    assert b"secret-token" not in stored
    with pytest.raises(ConfigurationError):
        provider.credentials(store=store)


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
            "headers": _SERVICE,
            "authorization": authorization,
            "effects": {"read_mail": "none"},
        }
        settings = Settings.model_validate({"mcp": [server], "serve": {"base_url": _BASE}})
        async with (
            open_registry(settings) as registry,
            served(registry=registry, settings=settings) as client_of,
        ):
            ann = await client_of("ann")
            _, run = await asked(ann, _PLAN)
            assert await ended(ann, run) == "waiting"
            assert (await question_of(ann))["url"] == f"{_BASE}/authorize/mail"


async def test_two_authorizations_of_one_name_are_refused() -> None:
    async with (
        listening_provider() as provider,
        mail_tools(provider) as some,
        mail_tools(provider, prefix="other_") as others,
    ):
        graph = build_graph([*some, *others], checkpointer=InMemorySaver())
        with pytest.raises(ConfigurationError):
            create_app(graph)
