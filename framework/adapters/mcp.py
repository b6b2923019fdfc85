"""Capabilities backed by tools of MCP servers, over stdio and streamable HTTP.

MCP servers are not trusted. Results carry the label ``untrusted``, texts are cut and sanitized, a
tool without annotations is assumed to have the effect ``once``, and a tool that changed since it
was reviewed needs an approval.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import httpx2
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer, Server
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field, ValidationError

from capgraph.adapters.credentials import Credentials, current_user
from capgraph.adapters.external_text import (
    capability_name,
    is_http_url,
    sanitize_schema,
    sanitize_text,
)
from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.capability import BaseCapability
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.errors import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.base.errors import ValidationError as DeclarationError
from capgraph.base.ports import Attempt, Caller, CallNext, PermissionMode
from capgraph.base.spec import Effect
from capgraph.base.step_context import StepContext
from capgraph.base.value_context import ValueContext
from capgraph.configs.logger import get_logger
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.plain_data import validation_messages
from capgraph.helpers.threads import run_in_thread
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.step_execution import enclosing_execution
from capgraph.planning.json_parameters import json_parameters

IDEMPOTENCY_META_KEY = "capgraph/idempotency-key"
"""Key in a call's ``_meta`` that holds the idempotency key, for servers that support it."""
_UNKNOWN_OUTCOME_CODES = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR)
"""Error codes after which the tool may have run or not, such as a gateway's."""
_ASKED_MARKER = "asked"
_MAX_CONNECTIONS = 200
"""Maximum number of open connections to a server with a connection for each user."""
_MAX_MASKED_TOKENS = 4
"""Number of a user's latest tokens that are masked in texts from the server."""
_current_call: contextvars.ContextVar[_ToolCall | None] = contextvars.ContextVar(
    "capgraph_mcp", default=None
)


class ToolResult(CapabilityContext):
    """Result of a tool without an output schema.

    Attributes:
        text: All text of the result.
        content: Content blocks (text, images, resources) as the server sent them.
        DECLARED_FIELDS: Fields that planners may refer to.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")
    DECLARED_FIELDS: ClassVar[tuple[str, ...]] = ("text",)
    text: str = ""
    content: list[dict[str, Any]] = Field(default_factory=list)

    def get_summary(self) -> str:
        """Return the text of the result, or the content types if the result has no text."""
        types = ", ".join(str(block.get("type")) for block in self.content)
        return self.text or types or "nothing"


_NO_TOOLS: Mapping[str, str] = MappingProxyType({})


class McpCapabilities(list[type[BaseCapability]]):
    """Capabilities of one MCP server, which share a connection that is opened on demand.

    The connection is closed by ``aclose()``, at the end of ``async with``, and with the event loop.

    Attributes:
        pins: Digest of each tool by its name on the server. Pass stored pins to the next
            ``mcp_capabilities`` to detect tools that changed in between.
        omitted_tools: Reason of each tool that cannot be a capability, by its name on the server.
    """

    def __init__(
        self,
        capabilities: Collection[type[BaseCapability]],
        pins: Mapping[str, str],
        server: _Server,
        omitted_tools: Mapping[str, str] = _NO_TOOLS,
    ) -> None:
        super().__init__(capabilities)
        self.pins: dict[str, str] = dict(pins)
        self.omitted_tools: dict[str, str] = dict(omitted_tools)
        self._server = server

    async def aclose(self) -> None:
        """Close the connection to the MCP server. The next tool call opens a new connection."""
        await self._server.aclose()

    async def __aenter__(self) -> McpCapabilities:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@validate_arguments
async def mcp_capabilities(
    server: StdioServerParameters | str | Any,
    *,
    prefix: str = "",
    allow: Collection[str] | None = None,
    effects: Mapping[str, Effect] | None = None,
    permission: PermissionMode | str | Mapping[str, PermissionMode | str] | None = None,
    pins: Mapping[str, str] | None = None,
    timeout_seconds: float = 60.0,
    sends_externally: bool = True,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    credentials: Credentials | None = None,
    mode: str = "auto",
    **declarations: Any,
) -> McpCapabilities:
    """Connect to an MCP server and return its tools as capabilities.

    A tool whose schema is invalid or refers to another document is omitted with a warning,
    unless ``allow`` lists it. A graph does not pick up tools that the server adds later. To use
    new tools, build a new graph with the same checkpointer. Its registry comes from
    ``registry.with_(*await mcp_capabilities(server))``.

    Args:
        server: ``StdioServerParameters``, the URL of a streamable HTTP server, a server object
            in this process, or a function that returns an ``mcp`` transport.
        prefix: Prefix of the capability names, to avoid clashes between servers.
        allow: Names of the tools to use. Default: all.
        effects: Effects by tool name, which override the annotations.
        permission: Permission that callers need, for all tools or by tool name.
        pins: Digests of the reviewed tools; see :class:`McpCapabilities`. A step whose tool
            differs or is not listed needs an approval.
        timeout_seconds: Timeout for each call and for connecting to the server.
        sends_externally: True if the tools' arguments leave the organization.
        headers: HTTP headers for each request to a URL, such as ``Authorization``.
        auth: ``httpx2.Auth`` for each request to a URL, such as
            ``mcp.client.auth.OAuthClientProvider``.
        credentials: Provider of access tokens for the users on whose behalf the tools act. Each
            user has a separate connection whose requests carry the user's token. The tools are
            listed with ``headers`` and ``auth`` instead.
        mode: Protocol mode of ``mcp.Client``. Use ``legacy`` for a server whose tools elicit
            input while they run, which the newest protocol does not support.
        **declarations: Declarations of :class:`~capgraph.base.spec.Declarations`,
            ``max_attempts``, and so on, each as one value for all tools or values by tool name.
            ``examples`` must be given by tool name.

    Raises:
        CapabilityError: The server cannot be reached.
        ConfigurationError: The argument is not a server, or the server has no tool of a given
            name.
        ValidationError: A declaration is unknown or invalid, or a tool in ``allow`` has an
            invalid schema.
    """
    check_names("mcp_capabilities", declarations, accepted_names("mcp"))
    if not isinstance(declarations.get("examples", {}), Mapping):
        raise DeclarationError(
            f"mcp_capabilities: examples is {declarations['examples']!r:.80}: expected a mapping from"
            " tool names to examples.",
            fix='Pass examples={"tool": ["a request that needs it"]}.',
        )
    server_types = (StdioServerParameters, Server, MCPServer, AbstractAsyncContextManager)
    if not (is_http_url(server) or callable(server) or isinstance(server, server_types)):
        raise ConfigurationError(
            f"{server!r:.200} is not an MCP server.",
            fix="Pass StdioServerParameters, the URL of a server (http://…/mcp), or a server object.",
        )
    if auth is not None and not (is_http_url(server) and isinstance(auth, httpx2.Auth)):
        raise ConfigurationError(
            f"auth is {auth!r:.80}: expected httpx2.Auth and the URL of a server.",
            fix="Pass auth=OAuthClientProvider(…) with a URL, or remove it.",
        )
    if credentials is not None and not (
        is_http_url(server) and isinstance(credentials, Credentials)
    ):
        raise ConfigurationError(
            f"credentials is {type(credentials).__name__}: expected Credentials and the URL of a"
            " server.",
            fix="Pass credentials=TokenExchange(…) with a URL, or remove it.",
        )
    hub = _Server(server, timeout_seconds, headers or {}, auth, mode, credentials)
    declared = {
        **declarations,
        "permission": permission,
        "sends_externally": sends_externally,
        "timeout_seconds": timeout_seconds,
    }
    async with AsyncExitStack() as stack:
        stack.push_async_callback(hub.aclose)
        tools = await hub.list_tools()
        by_tool = [effects or {}, *(v for v in declared.values() if isinstance(v, Mapping))]
        if unknown := sorted({*(allow or ()), *chain(*by_tool)} - set(tools)):
            raise ConfigurationError(
                f"The MCP server has no tools named {unknown}. The available tools are "
                f"{sorted(tools)}.",
                fix="Use the server's names, without the prefix.",
            )
        omitted_tools = {} if allow is not None else _find_unusable_tools(tools, hub)
        chosen_names = {*tools} - {*omitted_tools} if allow is None else {*allow}
        selected = {name: tool for name, tool in tools.items() if name in chosen_names}
        digests = {name: tool_digest(tool) for name, tool in selected.items()}
        capabilities: dict[str, type[BaseCapability]] = {}
        for name, tool in selected.items():
            pin = digests[name] if pins is None else pins.get(name, "")
            own_name = capability_name(name, prefix, capabilities)
            client = _ToolClient(hub, name, pin, (effects or {}).get(name) or tool_effect(tool))
            capabilities[own_name] = _tool_to_capability(
                own_name, tool, client, _select_tool_declarations(name, declared)
            )
        stack.pop_all()
    return McpCapabilities(list(capabilities.values()), digests, hub, omitted_tools)


def _find_unusable_tools(tools: Mapping[str, Tool], server: _Server) -> dict[str, str]:
    """Find tools whose schema is invalid, and return the reason for each tool name.

    A warning is logged for each of these tools.
    """
    reasons = {}
    for name, tool in tools.items():
        try:
            json_parameters(name, sanitize_schema(tool.input_schema))
        except DeclarationError as exc:
            reasons[name] = str(exc)
            get_logger("adapters", "mcp").warning(
                "The tool %r of %s is omitted: %s", name, server, exc
            )
    return reasons


def _select_tool_declarations(name: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Select the declarations that apply to one tool.

    Values that are not mappings apply to all tools. Mappings contain a value for each tool
    name.
    """
    own_values = {}
    for declaration, value in declared.items():
        if not isinstance(value, Mapping):
            own_values[declaration] = value
        elif name in value:
            own_values[declaration] = value[name]
    return own_values


def _tool_to_capability(
    name: str, tool: Tool, client: _ToolClient, declared: dict[str, Any]
) -> type[BaseCapability]:
    # A plain string is passed on, so that validation rejects it as everywhere else.
    for key, always in (("labels", "untrusted"), ("behaviors", _PinCheck(client))):
        values = declared.get(key, ())
        declared[key] = (always, *values) if isinstance(values, (list, tuple, set)) else values
    return capability_from_schema(
        name,
        sanitize_text(tool.description or tool.title or "")
        or f"{name}, a tool of {client.server}.",
        sanitize_schema(tool.input_schema),
        client.call,
        provides=_result_type(name, tool.output_schema),
        effect=client.effect,
        **declared,
    )


def tool_effect(tool: Tool) -> Effect:
    """Derive the effect of a tool (``none``, ``idempotent``, or ``once``) from its annotations.

    Without annotations, the effect is ``once``.

    >>> from mcp_types import Tool, ToolAnnotations
    >>> hints = ToolAnnotations(idempotent_hint=True, destructive_hint=False)
    >>> tool_effect(Tool(name="put", input_schema={"type": "object"}, annotations=hints))
    'idempotent'
    """
    hints = tool.annotations
    if hints is None:
        return "once"
    if hints.read_only_hint:
        return "none"
    return "idempotent" if hints.idempotent_hint and not hints.destructive_hint else "once"


def tool_digest(tool: Tool) -> str:
    """Compute a digest of a tool's name, schemas, and annotations, to detect changes."""
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    return compute_digest([tool.name, tool.input_schema, tool.output_schema, hints])


def _result_type(name: str, schema: Mapping[str, Any] | None) -> type[CapabilityContext]:
    context_type = f"{name}_result".replace("-", "_").upper()
    if schema is None:
        return type(name, (ToolResult,), {"CONTEXT_TYPE": context_type, "__module__": __name__})
    content_field = {"content": {"type": "array", "items": {"type": "object"}}}
    full_schema = {**schema, "properties": {**content_field, **schema.get("properties", {})}}
    if schema.get("type") != "object":
        full_schema = {
            "type": "object",
            "properties": {"value": schema},
            "$defs": schema.get("$defs", {}),
        }

    fields = tuple(schema.get("properties", ()))

    class StructuredResult(ValueContext if schema.get("type") != "object" else CapabilityContext):  # type: ignore[misc]
        CONTEXT_TYPE: ClassVar[str] = context_type
        DECLARED_FIELDS: ClassVar[tuple[str, ...]] = fields
        model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return full_schema

    StructuredResult.__name__ = StructuredResult.__qualname__ = name
    return StructuredResult


def _read_result(result: CallToolResult, tool: Tool) -> dict[str, Any]:
    blocks = [b.model_dump(mode="json", by_alias=True, exclude_none=True) for b in result.content]
    if tool.output_schema is None:
        structured = result.structured_content
        extra = {"structured": structured} if structured is not None else {}
        return {"text": _text_of_result(result), "content": blocks, **extra}
    if tool.output_schema.get("type") != "object":
        return {"value": result.structured_content}
    # The text repeats the structured content, so only other blocks are added.
    other_blocks = [block for block in blocks if block["type"] != "text"]
    return {**({"content": other_blocks} if other_blocks else {}), **result.structured_content}


def _text_of_result(result: CallToolResult) -> str:
    return "\n".join(str(b.text) for b in result.content if b.type == "text")


# --- calls ---------------------------------------------------------------------------------------


class _PinCheck:
    """Middleware that requires an approval before a changed or unreviewed tool is called."""

    stage = "validate"

    def __init__(self, client: _ToolClient) -> None:
        self._client = client

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        reason = ""
        # If the server is unreachable, the call itself fails and is retried.
        with suppress(CapabilityError):
            reason = self._client.describe_change(await self._client.server.list_tools())
        return await call_next(
            replace(attempt, approval_reasons=(*attempt.approval_reasons, reason))
            if reason
            else attempt
        )


@dataclass
class _ToolCall:
    """MCP tool call in flight, with its open question and the number of answered questions."""

    connection: _Connection
    tool: Tool
    answer_count: int = 0
    open_question: tuple[dict[str, Any], asyncio.Future[ElicitResult]] | None = None
    questions: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[ElicitResult]]] = field(
        default_factory=asyncio.Queue
    )
    task: asyncio.Task[CallToolResult] = field(init=False)


@dataclass(frozen=True)
class _ToolClient:
    """Client for one tool of an MCP server.

    Attributes:
        server: Server of the tool.
        name: Name of the tool on the server.
        pin: Digest of the reviewed tool, or an empty string if the tool was not reviewed.
        effect: Effect of the tool.
    """

    server: _Server
    name: str
    pin: str
    effect: Effect

    def describe_change(self, tools: Mapping[str, Tool]) -> str:
        """Describe how the tool differs from its reviewed version.

        Returns an empty string if the tool is unchanged or no longer exists.
        """
        tool = tools.get(self.name)
        if tool is None or tool_digest(tool) == self.pin:
            return ""
        subject = f"The tool {self.name!r} of {self.server}"
        names = sanitize_text(", ".join(tool.input_schema.get("properties") or {})) or "none"
        if not self.pin:
            return f"{subject} has not been reviewed. Its parameters are: {names}."
        return (
            f"{subject} changed since it was reviewed: its schemas or annotations differ. Its"
            f" parameters are now: {names}."
        )

    async def call(self, values: dict[str, Any], step: StepContext) -> dict[str, Any]:
        """Call the MCP tool for a step and return the tool's output.

        Raises:
            CapabilityError: The tool failed, no longer exists, or changed, or the server cannot be
                reached. Only the last case is retried.
            ConnectionError: The connection was lost after the call was sent.
        """
        user = await self.server.authorize()
        connection = await self.server.get_connection(user)
        call = connection.suspended_calls.pop(step.idempotency_key, None)
        if call is None:
            tools = connection.tools or await self.server.list_tools(user)
            step_run = enclosing_execution()
            is_approved = step_run is not None and step_run.approval is not None
            change = "" if is_approved else self.describe_change(tools)
            if self.name not in tools or change:
                raise CapabilityError(
                    change or f"The tool {self.name!r} no longer exists on {self.server}.",
                    fix="Call mcp_capabilities again, and build a new graph.",
                    severity=ErrorSeverity.REPLANNING,
                )
            if self._must_not_repeat(connection) and await _has_asked_before(step):
                self._raise_unknown_outcome(
                    "the call that asked a question was lost with its process", None
                )
            call = self._start_call(_ToolCall(connection, tools[self.name]), values, step)
        connection.calls.append(call)
        try:
            result = await self._wait_for_result(call, step)
        except GraphBubbleUp:
            connection.suspended_calls[step.idempotency_key] = call
            if self._must_not_repeat(connection):
                await step.once(_ASKED_MARKER, lambda: True)
            raise
        except BaseException:
            call.task.cancel()
            raise
        finally:
            connection.calls.remove(call)
        if result.is_error:
            reason = connection.mask(sanitize_text(_text_of_result(result), 4_000))
            reason = reason or "no reason was given"
            raise CapabilityError(f"The tool {self.name!r} of {self.server} failed: {reason}")
        output: dict[str, Any] = connection.mask(_read_result(result, call.tool))
        return output

    def _must_not_repeat(self, connection: _Connection) -> bool:
        """Return True if a tool call that was lost with its process must not be repeated.

        This applies to tools with the effect ``once`` on servers with an older protocol version.
        """
        return (
            self.effect == "once"
            and connection.client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        )

    def _start_call(self, call: _ToolCall, values: dict[str, Any], step: StepContext) -> _ToolCall:
        step_context = contextvars.copy_context()

        async def notify(progress: float, total: float | None, message: str | None) -> None:
            text = sanitize_text(message or f"{progress:g}" + (f" of {total:g}" if total else ""))
            text = call.connection.mask(text)
            step_context.run(step.notify, text, progress / total if total else None)

        context = contextvars.Context()
        context.run(_current_call.set, call)
        key: Any = {IDEMPOTENCY_META_KEY: step.idempotency_key} if self.effect != "none" else None
        coroutine = call.connection.client.call_tool(
            self.name, values, progress_callback=notify, meta=key
        )
        call.task = asyncio.get_running_loop().create_task(coroutine, context=context)
        # Retrieve the exception, because a suspended call may never be awaited.
        call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return call

    async def _wait_for_result(self, call: _ToolCall, step: StepContext) -> CallToolResult:
        """Wait for the result of a tool call. Questions from the server interrupt the step."""
        for _ in range(call.answer_count):
            interrupt(None)  # replays an answer that the call already received
        while True:
            if call.open_question is None:
                question = asyncio.ensure_future(call.questions.get())
                try:
                    await asyncio.wait({call.task, question}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    question.cancel()
                if not question.done():
                    return self._read_outcome(call)
                call.open_question = question.result()
            payload, answer = call.open_question
            try:
                result = _read_answer(interrupt(self._question_payload(payload)), payload)
            except ValidationError as exc:  # ask again, with the problems
                call.open_question = ({**payload, "problems": validation_messages(exc)}, answer)
            else:
                call.open_question = None
                answer.set_result(result)
            call.answer_count += 1

    def _question_payload(self, question: dict[str, Any]) -> dict[str, Any]:
        return {
            "kind": "mcp_elicitation",
            "server": str(self.server),
            "tool": self.name,
            **question,
        }

    def _read_outcome(self, call: _ToolCall) -> CallToolResult:
        try:
            return call.task.result()
        except MCPError as exc:
            if exc.code not in _UNKNOWN_OUTCOME_CODES:
                raise CapabilityError(
                    f"The tool {self.name!r} of {self.server} rejected the call:"
                    f" {sanitize_text(exc.message)}"
                ) from exc
            if exc.code == CONNECTION_CLOSED:
                call.connection.close()
                self._raise_unknown_outcome("the connection was lost during the call", exc)
            self._raise_unknown_outcome(f"the call was aborted ({sanitize_text(exc.message)})", exc)
        except (RuntimeError, ValidationError) as exc:
            problem = (
                f"the result does not match its output schema ({sanitize_text(str(exc), 300)})"
            )
            if self.effect == "once":
                self._raise_unknown_outcome(problem, exc)
            raise CapabilityError(
                f"The tool {self.name!r} of {self.server} failed: {problem}."
            ) from exc

    def _raise_unknown_outcome(self, problem: str, cause: BaseException | None) -> NoReturn:
        # ConnectionError means that the outcome is unknown and the effect must not be repeated.
        raise ConnectionError(
            f"The outcome of the tool {self.name!r} of {self.server} is unknown: {problem}."
        ) from cause


async def _has_asked_before(step: StepContext) -> bool:
    """Return True if the server asked a question during this tool call in an earlier process."""

    def not_yet() -> None:
        raise _NotAskedError("No question is recorded.")

    try:
        return bool(await step.once(_ASKED_MARKER, not_yet))
    except _NotAskedError:
        return False


class _NotAskedError(CapabilityError):
    """Raised by :func:`_has_asked_before` if no question is recorded for the tool call."""


def _read_answer(answer: Any, question: Mapping[str, Any]) -> ElicitResult:
    """Convert a user's answer to the result of an MCP elicitation.

    The answer is an object (also as JSON text), the value of the only field, or a refusal.

    Raises:
        ValidationError: The answer does not match the requested schema.
    """
    if answer is None or answer is False:
        return ElicitResult(action="decline")
    schema = question.get("schema") or {}
    properties = schema.get("properties") or {}
    only = next(iter(properties)) if len(properties) == 1 else None
    if isinstance(answer, str) and (only is None or properties[only].get("type") != "string"):
        with suppress(ValueError):
            answer = json.loads(answer)
    if isinstance(answer, Mapping) and answer.get("action") in ("decline", "cancel"):
        return ElicitResult(action=answer["action"])
    if isinstance(answer, Mapping) and answer.get("action") == "accept":
        answer = answer.get("content") or {}
    elif not isinstance(answer, Mapping):
        answer = {only: answer} if only is not None else {}
    content = json_parameters("answer", schema).model_validate(answer).model_dump(by_alias=True)
    return ElicitResult(action="accept", content=content)


# --- connections ---------------------------------------------------------------------------------


class _Connection:
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
        self.calls: list[_ToolCall] = []
        self.suspended_calls: dict[str, _ToolCall] = {}
        self.error: Exception | None = None
        self.ready, self.closing = asyncio.Event(), asyncio.Event()
        self.task = loop.create_task(self._run(open_client), context=contextvars.Context())

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
        """Request that the connection be closed, without waiting until it is closed."""
        self.closing.set()
        if not self.ready.is_set():
            self.task.cancel()

    def mask(self, value: Any) -> Any:
        """Mask the user's access tokens in a value that the server returned."""
        if isinstance(value, Mapping):
            return {self.mask(name): self.mask(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.mask(item) for item in value]
        if isinstance(value, str) and self._auth is not None:
            for token in self._auth.tokens:
                value = value.replace(token, "***")
        return value

    async def _on_elicitation(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        waiting = [*self.calls, *self.suspended_calls.values()]
        call = _current_call.get() or (waiting[0] if len(waiting) == 1 else None)
        if call is None:
            return ErrorData(code=INVALID_REQUEST, message="The question belongs to no known call.")
        payload: dict[str, Any] = {"message": sanitize_text(params.message, 4_000)}
        if params.mode == "form":
            payload["schema"] = params.requested_schema
        else:
            payload["url"] = sanitize_text(params.url, 2_000)
        answer: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()
        call.questions.put_nowait((self.mask(payload), answer))
        return await answer


class _UserAuth(httpx2.Auth):
    """HTTP authentication that adds a user's access token to each request.

    Attributes:
        tokens: Most recent tokens, which are masked in text from the server.
    """

    def __init__(self, credentials: Credentials, user: Caller) -> None:
        self._credentials, self._user = credentials, user
        self.tokens: deque[str] = deque(maxlen=_MAX_MASKED_TOKENS)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the user's token to a request, and retry once with a new token if it is rejected."""
        token = await self._credentials.get_token(self._user)
        response = yield self._with_token(request, token)
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            token = await self._credentials.get_token(self._user, rejected=token)
            yield self._with_token(request, token)

    def _with_token(self, request: httpx2.Request, token: str) -> httpx2.Request:
        if token not in self.tokens:
            self.tokens.append(token)
        request.headers["Authorization"] = f"Bearer {token}"
        return request


class _Server:
    """MCP server with a separate connection for each event loop.

    With per-user credentials, each user also has a separate connection.
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
        self._headers, self._auth, self._credentials = headers, auth, credentials
        self._connections: dict[
            tuple[asyncio.AbstractEventLoop, str | None, str | None], _Connection
        ] = {}

    async def authorize(self) -> Caller | None:
        """Return the user on whose behalf the current step runs, or ``None`` without credentials.

        Raises:
            CapabilityError: The run has no authenticated user, or the user has no token.
        """
        if self._credentials is None:
            return None
        user = current_user(f"{str(self)[0].upper()}{str(self)[1:]}")
        # Requested here, because an error inside of the transport would lose its severity.
        await self._credentials.get_token(user)
        return user

    def __str__(self) -> str:
        if isinstance(self._target, str):
            return f"the MCP server {self._target.partition('?')[0]}"
        # Arguments may contain secrets, so only the program's name is shown.
        label = getattr(self._target, "command", None) or getattr(self._target, "name", "")
        return f"the MCP server {PurePath(str(label)).name}".strip()

    async def get_connection(self, user: Caller | None = None) -> _Connection:
        """Return the connection for the current event loop and user, and open one if necessary.

        Raises:
            CapabilityError: The server cannot be reached. Nothing was sent, so the step may be
                retried.
        """
        tenant, user_id = (None, None) if user is None else (user.tenant, user.user_id)
        key = (asyncio.get_running_loop(), tenant, user_id)
        connection = self._connections.pop(key, None)
        if connection is None or connection.closing.is_set() or connection.task.done():
            self._close_unused()
            auth = self._auth
            if self._credentials is not None and user is not None:
                auth = _UserAuth(self._credentials, user)
            connection = _Connection(
                partial(self._create_client, auth), auth if user is not None else None
            )
        self._connections[key] = connection  # the last one is the one used last
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
        """List the server's current tools, with caching for as long as the server allows.

        Raises:
            CapabilityError: The server does not list its tools.
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
            f"{str(self)[0].upper()}{str(self)[1:]} {problem}.",
            fix="Check that it is running, and read its log.",
            severity=ErrorSeverity.RETRIABLE,
        )


def _root_message(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return sanitize_text(str(exc) or type(exc).__name__, 300)
