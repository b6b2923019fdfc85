"""OAuth server for tests, and the mailbox that accepts its tokens over MCP and over A2A."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from logging import LogRecord
from pathlib import Path
from typing import Any

import httpx
import jwt
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.utils.errors import InvalidParamsError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import AnyHttpUrl, BaseModel
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from capgraph.adapters import (
    AuthorizationCode,
    TokenExchange,
    mcp_capabilities,
    signed_subject,
)
from tests.support.a2a_server import Agent, app
from tests.support.listening import on_loopback

BASE_URL = "http://127.0.0.1"
"""URL of the served agent, as users see it."""
SERVICE_HEADERS = {"Authorization": "Bearer service-token"}
_EFFECTS = dict.fromkeys(("read_mail", "ask", "fail"), "none")


class Folder(BaseModel):
    folder: str


class Provider:
    """Authorization server with PKCE, refresh tokens, and token exchange, and its MCP server.

    Attributes:
        tokens: User of each valid access and refresh token.
        secrets: Every code and token that the server issued or received.
        grants: Types of the grants that clients requested, in their order.
        subjects: Subject tokens that were exchanged.
        refuses: True if users refuse to authorize the agent.
        expires_in: Lifetime of access tokens in seconds.
    """

    def __init__(self) -> None:
        self.url = ""
        key = ec.generate_private_key(ec.SECP256R1())
        self.public_key = key.public_key()
        self.key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        self.challenges: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        self.secrets: set[str] = set()
        self.grants: list[str] = []
        self.subjects: list[str] = []
        self.refuses = False
        self.expires_in = 3600

    @property
    def users(self) -> list[str]:
        """Users with a valid access token, sorted."""
        return sorted(user for token, user in self.tokens.items() if token.startswith("access"))

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
        form = {name: str(value) for name, value in (await request.form()).items()}
        grant = form["grant_type"].rpartition(":")[2]
        self.grants.append(grant)
        if grant == "token-exchange":
            user, error = self._read_subject(form), "access_denied"
        elif grant == "refresh_token":
            user, error = self.tokens.pop(form["refresh_token"], ""), "invalid_grant"
        else:
            user, error = self._read_code(form), "invalid_grant"
        if not user:
            return JSONResponse({"error": error}, 400)
        access = f"access-token-{user}-{len(self.secrets)}"
        fields: dict[str, Any] = {"access_token": access, "token_type": "Bearer"}
        if grant != "token-exchange":
            fields["refresh_token"] = f"refresh-token-{user}-{len(self.secrets)}"
        issued = {fields[name] for name in ("access_token", "refresh_token") if name in fields}
        self.tokens |= dict.fromkeys(issued, user)
        self.secrets |= issued
        return JSONResponse({**fields, "expires_in": self.expires_in})

    def _read_code(self, form: dict[str, str]) -> str:
        """Return the user of a code, or an empty text if the verifier is wrong."""
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        is_valid = self.challenges.pop(form["code"], None) == challenge
        return form["code"].rpartition("-")[2] if is_valid else ""

    def _read_subject(self, form: dict[str, str]) -> str:
        """Return the user of a subject token. The user ``eve`` has no mailbox."""
        assert form["audience"] == "mail"
        subject = form["subject_token"]
        self.subjects.append(subject)
        self.secrets.add(subject)
        audience = f"{self.url}/token"
        user = str(jwt.decode(subject, self.public_key, ["ES256"], audience=audience)["sub"])
        return "" if user == "eve" else user

    async def verify_token(self, token: str) -> AccessToken | None:
        user = "service" if token == "service-token" else self.tokens.get(token)
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

    def authorization_code(self, **options: Any) -> AuthorizationCode:
        return AuthorizationCode(
            "mail",
            authorization_url=f"{self.url}/authorize",
            token_url=f"{self.url}/token",
            client_id="agent",
            base_url=BASE_URL,
            **options,
        )

    def token_exchange(self) -> TokenExchange:
        subject = signed_subject(self.key, issuer="agent", audience=f"{self.url}/token")
        return TokenExchange(
            f"{self.url}/token",
            client_id="agent",
            client_secret="secret",
            subject_token=subject,
            audience="mail",
        )


@asynccontextmanager
async def listening_provider() -> AsyncIterator[Provider]:
    provider = Provider()
    async with on_loopback(provider.make_app):
        yield provider


@asynccontextmanager
async def mail_tools(provider: Provider, credentials: Any, **options: Any) -> Any:
    """Open the tools of the provider's MCP server, which lists them for a service token."""
    options = {"headers": SERVICE_HEADERS, "effects": _EFFECTS, **options}
    async with await mcp_capabilities(
        f"{provider.url}/mcp", credentials=credentials, **options
    ) as tools:
        yield tools


class MailAgent(Agent):
    """A2A agent that reads the mail of the user whose token it receives.

    A careless agent returns the token, too.

    Attributes:
        provider: Issuer of the tokens.
        authorizations: Header ``Authorization`` of each request, by the request's path.
    """

    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self.provider = provider
        self.authorizations: list[tuple[str, str]] = []

    def make_app(self, url: str) -> ASGIApp:
        """Return the application, which serves its card to everybody."""
        agent = app(self, url)

        async def check_token(scope: Scope, receive: Receive, send: Send) -> None:
            accepts = True
            if scope["type"] == "http":
                header = Headers(scope=scope).get("authorization", "")
                self.authorizations.append((scope["path"], header))
                is_user = header.removeprefix("Bearer ") in self.provider.tokens
                accepts = is_user or scope["path"].startswith("/.well-known/")
            await (agent if accepts else Response(status_code=401))(scope, receive, send)

        return check_token

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        header = context.call_context.state["headers"]["authorization"]
        user = self.provider.tokens[header.removeprefix("Bearer ")]
        text = context.get_user_input()
        self.told.append(text)
        if text == "Refuse.":
            raise InvalidParamsError(f"refused {header}")
        if "folder" not in text and context.current_task is None:
            message = new_text_message(f"mail of {user}, read with {header}")
            await event_queue.enqueue_event(message)
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def message(part: str) -> Any:
            return updater.new_agent_message([new_text_part(part)])

        await updater.start_work(message(f"reading with {header}"))
        if "folder" in text:
            await updater.requires_input(message(f"Which folder for {header}?"))
        else:
            part = new_text_part(f"{text} of {user}, read with {header}")
            await updater.add_artifact([part])
            await updater.complete()


async def confirm(browser: httpx.AsyncClient, url: str, mailbox: str) -> httpx.Response:
    """Open the link of a question in a user's browser, and confirm at the authorization server."""
    page = await browser.get(url)
    assert page.status_code == 302
    async with httpx.AsyncClient(cookies={"mailbox": mailbox}) as elsewhere:
        redirect = await elsewhere.get(page.headers["location"])
    # Browsers omit strict cookies here, and so does this one the header with its user.
    headers = {"x-user": "", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    return await browser.get(redirect.headers["location"], headers=headers)


async def api_text(client: httpx.AsyncClient, thread: str) -> str:
    """Return all that the API shows of a thread: state, history, questions, and events of runs."""
    paths = [f"/api/threads/{thread}{part}" for part in ("", "/state", "/history")]
    runs = (await client.get(paths[0])).json()["runs"]
    paths += ["/api/questions", *(f"/api/runs/{run['run_id']}/events" for run in runs)]
    return "".join([(await client.get(path)).text for path in paths])


def stored_text(folder: Path, database: Path, logs: Iterable[LogRecord]) -> str:
    """Return the contents of a database and its files, and what capgraph logged.

    The provider and the test's browser log in the same process, so their records are left out.
    """
    with sqlite3.connect(database) as connection:
        text = "\n".join(connection.iterdump())
    for file in folder.iterdir():
        text += file.read_bytes().decode("latin-1")
    own = [one for one in logs if not one.name.startswith(("mcp.server", "httpcore"))]
    own = [one for one in own if not (one.name == "httpx" and "code=" in one.getMessage())]
    return text + "".join(str(one.__dict__) for one in own)


def assert_absent(secrets: Iterable[str], text: str) -> None:
    """Assert that a text contains no secret, neither as it is, as JSON, nor as SQL writes bytes."""
    for secret in secrets:
        for form in (secret, json.dumps(secret)[1:-1], secret.encode().hex().upper()):
            assert form not in text
