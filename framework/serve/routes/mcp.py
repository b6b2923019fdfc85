"""MCP server: its endpoint, sessions, resources, and prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    PromptReference,
    ReadResourceRequestParams,
    ReadResourceResult,
)
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capgraph.base.errors import PersistenceError
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.serve.files import Artifacts, Uploads
from capgraph.serve.openapi import server_version
from capgraph.serve.routes.mcp_prompts import McpPrompts
from capgraph.serve.routes.mcp_resources import McpResources
from capgraph.serve.routes.mcp_tasks import Call, caller_of_call
from capgraph.serve.routes.mcp_tools import McpTools
from capgraph.serve.runs import Runs
from capgraph.serve.threads import Threads

_REQUEST_STATE_SECONDS = 24 * 3600.0
"""Seconds that a client of the latest protocol version has to answer a question."""
_SESSION_IDLE_SECONDS = 30 * 60.0
"""Seconds after the last request after which a session of an earlier protocol version ends."""
_MAX_SESSIONS_PER_USER = 50
"""Maximum number of sessions per user; a further one ends the one that was unused longest."""
_MAX_COMPLETIONS = 100
"""Maximum number of values in a completion, as in the protocol."""


def endpoint(
    runs: Runs,
    threads: Threads,
    services: Services,
    settings: ServeSettings,
    uploads: Uploads | None,
    artifacts: Artifacts,
) -> tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the ``/mcp`` route and the context manager to enter while it is served.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        services: Services of the graph.
        settings: Settings of the server; ``mcp.tools`` selects the capabilities offered as tools.
        uploads: The users' uploads; ``None`` if uploads are disabled.
        artifacts: Artifacts that steps produced.

    Raises:
        ConfigurationError: ``mcp.tools`` contains an unknown capability, ``mcp.task_tools`` an
            unknown tool, or ``mcp.resources`` a file that does not exist.
    """
    resources = McpResources(threads, uploads, artifacts, settings.mcp.resources)
    tools = McpTools(runs, threads, services, settings, resources)
    served = _McpEndpoint(runs, services, settings, tools, resources)
    return [Route("/mcp", served, methods=["GET", "POST", "DELETE"])], served.run


class _McpEndpoint:
    """ASGI application for an MCP server that executes each tool call as a run."""

    def __init__(
        self,
        runs: Runs,
        services: Services,
        settings: ServeSettings,
        tools: McpTools,
        resources: McpResources,
    ) -> None:
        self._runs, self._settings = runs, settings
        self._resources, self._prompts = resources, McpPrompts(services)
        self._server: Server[Any] = Server(
            "capgraph",
            version=server_version(),
            instructions=services.settings.description or None,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
        )
        tools.register(self._server)
        state = RequestStateSecurity.ephemeral(ttl=_REQUEST_STATE_SECONDS)
        self._server.middleware.append(RequestStateBoundary(state, default_audience="capgraph"))
        self._manager: StreamableHTTPSessionManager | None = None
        self._sessions: dict[tuple[str | None, str | None], dict[str, None]] = {}

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the MCP session manager until the server shuts down."""
        started = asyncio.Event()

        async def run_manager() -> None:
            # Host and origin are checked by SecurityMiddleware alone.
            self._manager = StreamableHTTPSessionManager(
                self._server,
                max_request_body_size=self._settings.max_body_bytes,
                session_idle_timeout=_SESSION_IDLE_SECONDS,
            )
            async with self._manager.run():
                started.set()
                await self._runs.wait_closed()

        # A separate task, because the lifespan may be exited by another task than entered it.
        task = asyncio.create_task(run_manager())
        await started.wait()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an MCP request.

        Sessions and open questions are accessible only to the caller who opened them.
        """
        assert self._manager is not None, "the application's lifespan must be entered"
        if self._runs.is_draining:
            raise PersistenceError("The server is shutting down.", fix="Try again in a moment.")
        caller: Caller = scope["capgraph.caller"]
        token = AccessToken(
            token="",
            client_id="capgraph",
            scopes=[],
            subject=caller.user_id,
            claims={"iss": caller.tenant},
        )
        app = AuthContextMiddleware(self._manager.handle_request)
        scope = {**scope, "user": AuthenticatedUser(token)}
        used: list[str] = []
        ended: list[str] = []

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                session = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
                is_ended = scope["method"] == "DELETE" and message["status"] < 300
                (ended if is_ended else used).extend([session] if session is not None else [])
            await send(message)

        try:
            await app(scope, receive, send_and_note)
        finally:  # a client that disconnects has opened its session, too
            for session in ended:
                self._sessions.get((caller.tenant, caller.user_id), {}).pop(session, None)
            for session in used:
                await self._end_oldest_session(app, scope, caller, session)

    async def _end_oldest_session(
        self, app: ASGIApp, scope: Scope, caller: Caller, session: str
    ) -> None:
        """Record the use of an MCP session, and end the user's oldest session above the limit."""
        sessions = self._sessions.setdefault((caller.tenant, caller.user_id), {})
        sessions.pop(session, None)
        sessions[session] = None
        if len(sessions) <= _MAX_SESSIONS_PER_USER:
            return
        oldest = next(iter(sessions))
        del sessions[oldest]
        headers = [(MCP_SESSION_ID_HEADER.encode(), oldest.encode())]

        async def receive_nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def ignore(_: Message) -> None:
            return

        await app({**scope, "method": "DELETE", "headers": headers}, receive_nothing, ignore)

    # --- resources and prompts ------------------------------------------------------------

    async def _list_resources(
        self, call: Call, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        cursor = params.cursor if params is not None else None
        return await self._resources.list_resources(caller_of_call(call), cursor)

    async def _list_resource_templates(
        self, _: Call, __: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return self._resources.list_templates()

    async def _read_resource(
        self, call: Call, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        return await self._resources.read(caller_of_call(call), params.uri)

    async def _list_prompts(
        self, call: Call, _: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        return self._prompts.list_prompts(caller_of_call(call))

    async def _get_prompt(self, call: Call, params: GetPromptRequestParams) -> GetPromptResult:
        return self._prompts.get(caller_of_call(call), params.name, params.arguments or {})

    async def _complete(self, call: Call, params: CompleteRequestParams) -> CompleteResult:
        name, prefix = params.argument.name, params.argument.value
        if isinstance(params.ref, PromptReference):
            values = self._prompts.complete(caller_of_call(call), params.ref.name, name, prefix)
        else:
            values = await self._resources.complete(caller_of_call(call), name, prefix)
        more = len(values) > _MAX_COMPLETIONS
        return CompleteResult(
            completion=Completion(
                values=values[:_MAX_COMPLETIONS], total=len(values), has_more=more
            )
        )
