"""Connections to MCP servers, one for each event loop and, with credentials, for each user."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    INVALID_REQUEST,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    Tool,
)

from capgraph.adapters.authorization import authorize_step
from capgraph.adapters.credentials import Credentials, UserAuth, current_user
from capgraph.adapters.external_text import sanitize_text
from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.ports import Caller
from capgraph.base.step_context import StepContext
from capgraph.helpers.threads import run_in_thread

_MAX_CONNECTIONS = 200
"""Maximum number of open connections to a server with a connection for each user."""
current_call: contextvars.ContextVar[McpCall | None] = contextvars.ContextVar(
    "capgraph_mcp", default=None
)
"""Call that the current task executes, to which the server's questions belong."""


@dataclass
class McpCall:
    """MCP tool call in progress, with its open question and the number of answered questions."""

    connection: McpConnection
    tool: Tool
    answer_count: int = 0
    open_question: tuple[dict[str, Any], asyncio.Future[ElicitResult]] | None = None
    questions: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[ElicitResult]]] = field(
        default_factory=asyncio.Queue
    )
    task: asyncio.Task[CallToolResult] = field(init=False)


class McpConnection:
    """Open connection to an MCP server.

    A separate task owns the connection, so that it outlives the step that opened it.
    """

    def __init__(
        self,
        open_client: Callable[[AsyncExitStack], Awaitable[Client]],
        auth: _UserAuth | None = None,
    ) -> None:
        self._auth = auth
        loop = asyncio.get_running_loop()
        self.tools: dict[str, Tool] = {}
        self.calls: list[McpCall] = []
        self.suspended_calls: dict[str, McpCall] = {}
        self.error: Exception | None = None
        self.ready: asyncio.Event = asyncio.Event()
        self.closing: asyncio.Event = asyncio.Event()
        self.task: asyncio.Task[None] = loop.create_task(
            self._run(open_client), context=contextvars.Context()
        )

    client: Client

    async def _run(self, open_client: Callable[[AsyncExitStack], Awaitable[Client]]) -> None:
        try:
            async with AsyncExitStack() as stack:
                self.client = await open_client(stack)
                self.client.elicitation_callback = self._on_elicitation
                await stack.enter_async_context(self.client)
                self.ready.set()
                await self.closing.wait()
                while self.calls:  # let running calls finish
                    await asyncio.wait({call.task for call in self.calls})
                for call in self.suspended_calls.values():
                    call.task.cancel()
        except Exception as exc:
            self.error = exc
        finally:
            self.ready.set()

    def close(self) -> None:
        """Start closing the connection without waiting until it is closed."""
        self.closing.set()
        if not self.ready.is_set():
            self.task.cancel()

    def mask(self, value: Any) -> Any:
        """Mask the user's access tokens in a value returned by the server."""
        return value if self._auth is None else self._auth.mask(value)

    async def _on_elicitation(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        waiting = [*self.calls, *self.suspended_calls.values()]
        call = current_call.get() or (waiting[0] if len(waiting) == 1 else None)
        if call is None:
            return ErrorData(
                code=INVALID_REQUEST, message="The question does not belong to a known call."
            )
        payload: dict[str, Any] = {"message": sanitize_text(params.message, 4_000)}
        if params.mode == "form":
            payload["schema"] = params.requested_schema
        else:
            payload["url"] = sanitize_text(params.url, 2_000)
        answer: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()
        call.questions.put_nowait((self.mask(payload), answer))
        return await answer


class _UserAuth(UserAuth, httpx2.Auth):
    """Authentication of a user for the HTTP library of the MCP SDK."""


_ConnectionKey = tuple[asyncio.AbstractEventLoop, str | None, str | None]


def _connection_key(user: Caller | None) -> _ConnectionKey:
    tenant, user_id = (None, None) if user is None else (user.tenant, user.user_id)
    return asyncio.get_running_loop(), tenant, user_id


class RemoteMcpServer:
    """MCP server with a separate connection for each event loop.

    With per-user credentials, each user also has a separate connection.

    Attributes:
        credentials: Provider of the users' access tokens, or ``None``.
    """

    def __init__(
        self,
        target: Any,
        timeout: float,
        headers: Mapping[str, str],
        auth: Any,
        mode: str,
        credentials: Credentials | None,
    ) -> None:
        self._target, self._timeout, self._mode = target, timeout, mode
        self._headers, self._auth = headers, auth
        self.credentials: Credentials | None = credentials
        self._connections: dict[_ConnectionKey, McpConnection] = {}

    async def authorize(self, step: StepContext) -> Caller | None:
        """Return the user on whose behalf a step runs, or ``None`` without credentials.

        If the user has not granted a token, the step is interrupted to request the authorization.

        Raises:
            CapabilityError: The run has no authenticated user, or the user has no token.
        """
        if self.credentials is None:
            return None
        user = current_user(self._title)
        connection = self._connections.get(_connection_key(user))
        is_started = connection is not None and step.idempotency_key in connection.suspended_calls
        # Request the token here, because an error inside the transport would lose its severity.
        await authorize_step(self.credentials, self._title, step, is_started=is_started)
        return user

    def __str__(self) -> str:
        if isinstance(self._target, str):
            return f"the MCP server {self._target.partition('?')[0]}"
        # Arguments may contain secrets, so only the program's name is shown.
        label = getattr(self._target, "command", None) or getattr(self._target, "name", "")
        return f"the MCP server {PurePath(str(label)).name}".strip()

    @property
    def _title(self) -> str:
        """Name of the server at the start of a sentence."""
        return f"T{str(self)[1:]}"

    async def get_connection(self, user: Caller | None = None) -> McpConnection:
        """Return the connection for the current event loop and user, opening it if necessary.

        Raises:
            CapabilityError: The server cannot be reached. Nothing was sent, so the step may be
                retried.
        """
        key = _connection_key(user)
        connection = self._connections.pop(key, None)
        if connection is None or connection.closing.is_set() or connection.task.done():
            self._close_unused()
            auth = self._auth
            if self.credentials is not None and user is not None:
                auth = _UserAuth(self.credentials, user)
            connection = McpConnection(
                partial(self._create_client, auth), auth if user is not None else None
            )
        self._connections[key] = connection  # move it to the end, as the most recent
        try:
            async with asyncio.timeout(self._timeout):
                await connection.ready.wait()
        except TimeoutError as exc:
            connection.close()
            raise self._unavailable_error(f"did not answer within {self._timeout:g} s") from exc
        if connection.error is not None:
            connection.close()
            raise self._unavailable_error(
                f"cannot be reached ({_root_message(connection.error)})"
            ) from connection.error
        return connection

    def _close_unused(self) -> None:
        """Drop connections of closed event loops, and close idle connections above the maximum.

        The least recently used connections are closed first.
        """
        for key in [key for key in self._connections if key[0].is_closed()]:
            self._connections.pop(key, None)
        loop = asyncio.get_running_loop()
        unused = [
            key
            for key, connection in self._connections.items()
            if key[0] is loop
            and connection.ready.is_set()
            and not connection.calls
            and not connection.suspended_calls
        ]
        for key in unused[: max(0, len(self._connections) - _MAX_CONNECTIONS + 1)]:
            self._connections.pop(key).close()

    async def list_tools(self, user: Caller | None = None) -> dict[str, Tool]:
        """List the server's current tools. The list is cached for as long as the server allows.

        Raises:
            CapabilityError: The server cannot list its tools.
        """
        connection = await self.get_connection(user)
        tools: dict[str, Tool] = {}
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    page = await connection.client.list_tools(cursor=cursor)
                    tools |= {tool.name: tool for tool in page.tools}
                    if (cursor := page.next_cursor) is None:
                        break
        except TimeoutError as exc:
            connection.close()
            raise self._unavailable_error(
                f"did not list its tools within {self._timeout:g} s"
            ) from exc
        except Exception as exc:  # from the protocol, the transport, or pydantic
            connection.close()
            raise self._unavailable_error(f"cannot list its tools ({_root_message(exc)})") from exc
        connection.tools = tools
        return tools

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        loop = asyncio.get_running_loop()
        keys = [key for key in self._connections if key[0] is loop]
        if connections := [self._connections.pop(key) for key in keys]:
            for connection in connections:
                connection.close()
            await asyncio.wait({connection.task for connection in connections})

    async def _create_client(self, auth: Any, stack: AsyncExitStack) -> Client:
        target = self._target
        if isinstance(target, str):
            # Created in a thread, because certificates are read from files.
            limits = httpx2.Timeout(self._timeout, read=None)  # calls have their own time limit
            options = {"headers": dict(self._headers), "auth": auth, "timeout": limits}
            make = partial(httpx2.AsyncClient, **options)
            http = await stack.enter_async_context(await run_in_thread(make))
            target = streamable_http_client(target, http_client=http)
        elif isinstance(target, StdioServerParameters):
            target = stdio_client(target)
        return Client(target() if inspect.isroutine(target) else target, mode=self._mode)

    def _unavailable_error(self, problem: str) -> CapabilityError:
        return CapabilityError(
            f"{self._title} {problem}.",
            fix="Check that it is running, and read its log.",
            severity=ErrorSeverity.RETRIABLE,
        )


def _root_message(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return sanitize_text(str(exc) or type(exc).__name__, 300)
