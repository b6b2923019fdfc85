"""Tools of MCP servers as capabilities, over stdio and streamable HTTP.

What a server says of itself is believed only where that costs nothing: results carry the label
``untrusted``, texts are cut and cleaned, a tool without annotations counts as one that acts once,
and a tool that is not any more what was looked at is called only when a person agrees.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import PurePath
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
from capgraph.base.ports import Attempt, CallNext, PermissionMode
from capgraph.base.spec import Effect
from capgraph.base.step_context import StepContext
from capgraph.base.value_context import ValueContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.plain_data import validation_messages
from capgraph.helpers.threads import run_in_thread
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.step_execution import enclosing_execution
from capgraph.planning.json_parameters import json_parameters

IDEMPOTENCY_META_KEY = "capgraph/idempotency-key"
"""Where a call carries the key of its effect, for servers that know what to do with one."""
_UNKNOWN_OUTCOME_CODES = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR)
"""Errors that do not say whether the tool did its work; a gateway's are among them."""
_ASKED_MARKER = "asked"
_current_call: contextvars.ContextVar[_ToolCall | None] = contextvars.ContextVar(
    "capgraph_mcp", default=None
)


class ToolResult(CapabilityContext):
    """What a tool gave that declares no form for it.

    Attributes:
        text: All its text.
        content: Its blocks (text, images, resources) as the server sent them.
        DECLARED_FIELDS: The fields that a planner is told of.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")
    DECLARED_FIELDS: ClassVar[tuple[str, ...]] = ("text",)
    text: str = ""
    content: list[dict[str, Any]] = Field(default_factory=list)

    def get_summary(self) -> str:
        """Return the text; without any, what kinds of content there are."""
        kinds = ", ".join(str(block.get("type")) for block in self.content)
        return self.text or kinds or "nothing"


class McpCapabilities(list[type[BaseCapability]]):
    """Capabilities of one server, which share a connection that is opened when it is needed.

    It is closed by ``aclose()``, at the end of ``async with``, and with the event loop.

    Attributes:
        pins: Name of each tool on the server, and a digest of what was looked at. Kept by an
            operator and given to the next ``mcp_capabilities``, it shows what changed since.
    """

    def __init__(
        self,
        capabilities: Collection[type[BaseCapability]],
        pins: Mapping[str, str],
        server: _Server,
    ) -> None:
        super().__init__(capabilities)
        self.pins: dict[str, str] = dict(pins)
        self._server = server

    async def aclose(self) -> None:
        """Close the connection; the next step that needs it opens another."""
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
    mode: str = "auto",
    **declarations: Any,
) -> McpCapabilities:
    """Return the tools of an MCP server as capabilities.

    Tools that come later are for a new graph: ``registry.with_(*await mcp_capabilities(server))``
    on the same saver.

    Args:
        server: ``StdioServerParameters``, the URL of a server that speaks streamable HTTP, a server
            object in this process, or a function that returns a transport of ``mcp``.
        prefix: Stands before the tools' names, where those of several servers would clash.
        allow: Names of the tools to take; all when not given.
        effects: Tool name to the effect that it has, in place of what its annotations say.
        permission: What a caller must be allowed to use them; or tool name to that.
        pins: What was looked at before, see :class:`McpCapabilities`. A step of a tool that is
            another one now, or is not among them, asks a person first.
        timeout_seconds: Seconds that one call, or the way to the server, may take.
        sends_externally: Whether what the tools are given leaves the house.
        headers: What a server behind a URL is sent with each request, such as ``Authorization``.
        mode: As for ``mcp.Client``; ``legacy`` for a server whose tools ask while they run, which
            the newest protocol no longer has.
        **declarations: What :class:`~capgraph.base.spec.Declarations` lists, ``max_attempts`` and
            so on: a value for all tools, or tool name to value. ``examples`` differ by tool.

    Raises:
        CapabilityError: The server cannot be reached.
        ConfigurationError: It is no server, or a name in ``allow``, ``effects`` or a declaration is
            none of its tools.
        ValidationError: A declaration is unknown or malformed.
    """
    check_names("mcp_capabilities", declarations, accepted_names("mcp"))
    if not isinstance(declarations.get("examples", {}), Mapping):
        raise DeclarationError(
            f"mcp_capabilities: examples is {declarations['examples']!r:.80}, the same for each tool.",
            fix='Write examples={"tool": ["a request that needs it"]}.',
        )
    kinds = (StdioServerParameters, Server, MCPServer, AbstractAsyncContextManager)
    if not (is_http_url(server) or callable(server) or isinstance(server, kinds)):
        raise ConfigurationError(
            f"{server!r:.200} is no MCP server.",
            fix="Give StdioServerParameters, the URL of a server (http://…/mcp), or a server object.",
        )
    hub = _Server(server, timeout_seconds, headers or {}, mode)
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
                f"The MCP server has no tools {unknown}; it has {sorted(tools)}.",
                fix="Use names as the server has them, without the prefix.",
            )
        wanted = {name: tool for name, tool in tools.items() if allow is None or name in allow}
        found = {name: tool_digest(tool) for name, tool in wanted.items()}
        made: dict[str, type[BaseCapability]] = {}
        for name, tool in wanted.items():
            pin = found[name] if pins is None else pins.get(name, "")
            known = capability_name(name, prefix, made)
            caller = _ToolClient(hub, name, pin, (effects or {}).get(name) or tool_effect(tool))
            made[known] = _tool_to_capability(
                known, tool, caller, _tool_declarations(name, declared)
            )
        stack.pop_all()
    return McpCapabilities(list(made.values()), found, hub)


def _tool_declarations(name: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declarations of one tool: those that hold for all, and its own."""
    found = {}
    for declaration, value in declared.items():
        if not isinstance(value, Mapping):
            found[declaration] = value
        elif name in value:
            found[declaration] = value[name]
    return found


def _tool_to_capability(
    name: str, tool: Tool, caller: _ToolClient, declared: dict[str, Any]
) -> type[BaseCapability]:
    # A lone text stays one, so that it is refused like anywhere else.
    for key, always in (("labels", "untrusted"), ("behaviors", _PinCheck(caller))):
        more = declared.get(key, ())
        declared[key] = (always, *more) if isinstance(more, (list, tuple, set)) else more
    return capability_from_schema(
        name,
        sanitize_text(tool.description or tool.title or "")
        or f"{name}, a tool of {caller.server}.",
        sanitize_schema(tool.input_schema),
        caller.call,
        provides=_result_type(name, tool.output_schema),
        effect=caller.effect,
        **declared,
    )


def tool_effect(tool: Tool) -> Effect:
    """Read the effect of a tool from its annotations; one that is silent acts once.

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
    """Name what matters of a tool: its name, its schemas, its annotations."""
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    return compute_digest([tool.name, tool.input_schema, tool.output_schema, hints])


def _result_type(name: str, schema: Mapping[str, Any] | None) -> type[CapabilityContext]:
    kind = f"{name}_result".replace("-", "_").upper()
    if schema is None:
        return type(name, (ToolResult,), {"CONTEXT_TYPE": kind, "__module__": __name__})
    inside = {"content": {"type": "array", "items": {"type": "object"}}}
    whole = {**schema, "properties": {**inside, **schema.get("properties", {})}}
    if schema.get("type") != "object":
        whole = {
            "type": "object",
            "properties": {"value": schema},
            "$defs": schema.get("$defs", {}),
        }

    fields = tuple(schema.get("properties", ()))

    class Structured(ValueContext if schema.get("type") != "object" else CapabilityContext):  # type: ignore[misc]
        CONTEXT_TYPE: ClassVar[str] = kind
        DECLARED_FIELDS: ClassVar[tuple[str, ...]] = fields
        model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return whole

    Structured.__name__ = Structured.__qualname__ = name
    return Structured


def _read_result(result: CallToolResult, tool: Tool) -> dict[str, Any]:
    blocks = [b.model_dump(mode="json", by_alias=True, exclude_none=True) for b in result.content]
    if tool.output_schema is None:
        structured = result.structured_content
        more = {"structured": structured} if structured is not None else {}
        return {"text": _text_of_result(result), "content": blocks, **more}
    if tool.output_schema.get("type") != "object":
        return {"value": result.structured_content}
    # Its text repeats what is structured; anything else would be lost.
    other = [block for block in blocks if block["type"] != "text"]
    return {**({"content": other} if other else {}), **result.structured_content}


def _text_of_result(result: CallToolResult) -> str:
    return "\n".join(str(b.text) for b in result.content if b.type == "text")


# --- calls ---------------------------------------------------------------------------------------


class _PinCheck:
    """Has a person agree before a tool is called that is not what was looked at."""

    stage = "validate"

    def __init__(self, caller: _ToolClient) -> None:
        self._caller = caller

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        why = ""
        # A server that is away is for the call to find, which is tried again.
        with suppress(CapabilityError):
            why = self._caller.describe_change(await self._caller.server.list_tools())
        return await call_next(
            replace(attempt, approval_reasons=(*attempt.approval_reasons, why)) if why else attempt
        )


@dataclass
class _ToolCall:
    """One call in flight: what the server asks meanwhile, and what was answered so far."""

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
    """Calls one tool.

    Attributes:
        server: Where it is.
        name: Its name there.
        pin: The digest of what was looked at.
        effect: Its effect.
    """

    server: _Server
    name: str
    pin: str
    effect: Effect

    def describe_change(self, tools: Mapping[str, Tool]) -> str:
        """Say what is not as it was looked at; empty where nothing is."""
        tool = tools.get(self.name)
        if tool is None or tool_digest(tool) == self.pin:
            return ""
        what = f"the tool {self.name!r} of {self.server}"
        takes = sanitize_text(", ".join(tool.input_schema.get("properties") or {})) or "nothing"
        if not self.pin:
            return f"Nobody has looked at {what} yet; it takes {takes}."
        return (
            f"T{what[1:]} is not what was looked at: its schemas or its annotations changed. It takes"
            f" {takes} now."
        )

    async def call(self, values: dict[str, Any], step: StepContext) -> dict[str, Any]:
        """Call the tool for a step.

        Raises:
            CapabilityError: It failed, with the server's text; it is gone or changed; or the server
                cannot be reached (then the step is tried again).
            ConnectionError: The connection was lost after the call was sent.
        """
        line = await self.server.get_connection()
        call = line.parked.pop(step.idempotency_key, None)
        if call is None:
            tools = line.tools or await self.server.list_tools()
            job = enclosing_execution()
            why = self.describe_change(tools) if job is None or job.approval is None else ""
            if self.name not in tools or why:
                raise CapabilityError(
                    why or f"The tool {self.name!r} is no longer among those of {self.server}.",
                    fix="Make the capabilities again (mcp_capabilities), and a graph of them.",
                    severity=ErrorSeverity.REPLANNING,
                )
            if self._must_not_repeat(line) and await _has_asked_before(step):
                self._raise_unknown_outcome("The call in which it asked is gone", None)
            call = self._start_call(_ToolCall(line, tools[self.name]), values, step)
        line.calls.append(call)
        try:
            result = await self._wait_for_result(call, step)
        except GraphBubbleUp:
            line.parked[step.idempotency_key] = call
            if self._must_not_repeat(line):
                await step.once(_ASKED_MARKER, lambda: True)
            raise
        except BaseException:
            call.task.cancel()
            raise
        finally:
            line.calls.remove(call)
        if result.is_error:
            said = sanitize_text(_text_of_result(result), 4_000) or "no reason was given"
            raise CapabilityError(f"The tool {self.name!r} of {self.server} failed: {said}")
        return _read_result(result, call.tool)

    def _must_not_repeat(self, connection: _Connection) -> bool:
        """Tell whether a call that asked, and that nobody holds any more, must not be made again."""
        return (
            self.effect == "once"
            and connection.client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        )

    def _start_call(self, call: _ToolCall, values: dict[str, Any], step: StepContext) -> _ToolCall:
        inside = contextvars.copy_context()

        async def notify(progress: float, total: float | None, message: str | None) -> None:
            said = sanitize_text(message or f"{progress:g}" + (f" of {total:g}" if total else ""))
            inside.run(step.notify, said, progress / total if total else None)

        context = contextvars.Context()
        context.run(_current_call.set, call)
        key: Any = {IDEMPOTENCY_META_KEY: step.idempotency_key} if self.effect != "none" else None
        sent = call.connection.client.call_tool(
            self.name, values, progress_callback=notify, meta=key
        )
        call.task = asyncio.get_running_loop().create_task(sent, context=context)
        # Of a call that waits for an answer nobody may ever ask how it ended.
        call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return call

    async def _wait_for_result(self, call: _ToolCall, step: StepContext) -> CallToolResult:
        """Wait for the end of a call; what the server asks meanwhile is this step's question."""
        for _ in range(call.answer_count):
            interrupt(None)  # an answer that the call has had already
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
            shown, answer = call.open_question
            try:
                given = _read_answer(interrupt(self._question_payload(shown)), shown)
            except ValidationError as exc:  # it is asked again
                call.open_question = ({**shown, "problems": validation_messages(exc)}, answer)
            else:
                call.open_question = None
                answer.set_result(given)
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
                    f"{self.server} refused a call of {self.name!r}: {sanitize_text(exc.message)}"
                ) from exc
            if exc.code == CONNECTION_CLOSED:
                call.connection.close()
                self._raise_unknown_outcome(
                    f"The connection was lost in a call of {self.name!r}", exc
                )
            self._raise_unknown_outcome(
                f"A call of {self.name!r} broke off ({sanitize_text(exc.message)})", exc
            )
        except (RuntimeError, ValidationError) as exc:
            told = f"{self.name!r} gave a result that it does not declare ({sanitize_text(str(exc), 300)})"
            if self.effect == "once":
                self._raise_unknown_outcome(told, exc)
            raise CapabilityError(f"{self.server}: {told}.") from exc

    def _raise_unknown_outcome(self, problem: str, cause: BaseException | None) -> NoReturn:
        # A type that means "nobody knows", where the effect is one that must not be repeated.
        raise ConnectionError(f"{self.server}: {problem}.") from cause


async def _has_asked_before(step: StepContext) -> bool:
    """Tell whether an earlier process was asked something in this step's call."""

    def not_yet() -> None:
        raise _NotAskedError("Nothing was asked.")

    try:
        return bool(await step.once(_ASKED_MARKER, not_yet))
    except _NotAskedError:
        return False


class _NotAskedError(CapabilityError):
    """Said inside of :func:`_has_asked`."""


def _read_answer(answer: Any, question: Mapping[str, Any]) -> ElicitResult:
    """Read a person's answer: values by name (also as JSON text), the only value, or a refusal.

    Raises:
        ValidationError: It does not fit what is asked for.
    """
    if answer is None or answer is False:
        return ElicitResult(action="decline")
    schema = question.get("schema") or {}
    inside = schema.get("properties") or {}
    only = next(iter(inside)) if len(inside) == 1 else None
    if isinstance(answer, str) and (only is None or inside[only].get("type") != "string"):
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
    """One open connection. A task of its own opens and closes it: who asked first may be gone."""

    def __init__(self, open_client: Callable[[AsyncExitStack], Awaitable[Client]]) -> None:
        loop = asyncio.get_running_loop()
        self.tools: dict[str, Tool] = {}
        self.calls: list[_ToolCall] = []
        self.parked: dict[str, _ToolCall] = {}
        self.failed: Exception | None = None
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
                while self.calls:  # what runs may still end
                    await asyncio.wait({call.task for call in self.calls})
                for call in self.parked.values():
                    call.task.cancel()
        except Exception as exc:
            self.failed = exc
        finally:
            self.ready.set()

    def close(self) -> None:
        """Give it up, without waiting until it is closed."""
        self.closing.set()
        if not self.ready.is_set():
            self.task.cancel()

    async def _on_elicitation(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        waiting = [*self.calls, *self.parked.values()]
        call = _current_call.get() or (waiting[0] if len(waiting) == 1 else None)
        if call is None:
            return ErrorData(code=INVALID_REQUEST, message="It is not clear which call asks.")
        shown: dict[str, Any] = {"message": sanitize_text(params.message, 4_000)}
        if params.mode == "form":
            shown["schema"] = params.requested_schema
        else:
            shown["url"] = sanitize_text(params.url, 2_000)
        answer: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()
        call.questions.put_nowait((shown, answer))
        return await answer


class _Server:
    """A server, with one connection for each event loop that uses it."""

    def __init__(self, target: Any, timeout: float, headers: Mapping[str, str], mode: str) -> None:
        self._target, self._timeout, self._headers, self._mode = target, timeout, headers, mode
        self._lines: dict[asyncio.AbstractEventLoop, _Connection] = {}

    def __str__(self) -> str:
        if isinstance(self._target, str):
            return f"the MCP server {self._target.partition('?')[0]}"
        # Arguments may hold what nobody should read.
        named = getattr(self._target, "command", None) or getattr(self._target, "name", "")
        return f"the MCP server {PurePath(str(named)).name}".strip()

    async def get_connection(self) -> _Connection:
        """Return the open connection of this event loop.

        Raises:
            CapabilityError: There is none to be had; nothing was sent, so it may be tried again.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None or line.closing.is_set() or line.task.done():
            for ended in [one for one in self._lines if one.is_closed()]:
                self._lines.pop(ended, None)
            line = self._lines[loop] = _Connection(self._create_client)
        try:
            async with asyncio.timeout(self._timeout):
                await line.ready.wait()
        except TimeoutError as exc:
            line.close()
            raise self._unavailable_error(f"did not answer within {self._timeout:g} s") from exc
        if line.failed is not None:
            line.close()
            raise self._unavailable_error(
                f"cannot be reached ({_root_message(line.failed)})"
            ) from line.failed
        return line

    async def list_tools(self) -> dict[str, Tool]:
        """Return the tools as the server has them now; for as long as it says, from memory.

        Raises:
            CapabilityError: It does not say.
        """
        line = await self.get_connection()
        found: dict[str, Tool] = {}
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    page = await line.client.list_tools(cursor=cursor)
                    found |= {tool.name: tool for tool in page.tools}
                    if (cursor := page.next_cursor) is None:
                        break
        except TimeoutError as exc:
            line.close()
            raise self._unavailable_error(
                f"did not name its tools within {self._timeout:g} s"
            ) from exc
        except Exception as exc:  # of the protocol, the transport or pydantic
            line.close()
            raise self._unavailable_error(
                f"does not name its tools ({_root_message(exc)})"
            ) from exc
        line.tools = found
        return found

    async def aclose(self) -> None:
        """Close the connection of this event loop."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            line.close()
            await asyncio.wait({line.task})

    async def _create_client(self, stack: AsyncExitStack) -> Client:
        target = self._target
        if isinstance(target, str):
            # Made in a thread, because certificates are read from files.
            limits = httpx2.Timeout(self._timeout, read=None)  # a call has a limit of its own
            make = partial(httpx2.AsyncClient, headers=dict(self._headers), timeout=limits)
            http = await stack.enter_async_context(await run_in_thread(make))
            target = streamable_http_client(target, http_client=http)
        elif isinstance(target, StdioServerParameters):
            target = stdio_client(target)
        return Client(target() if inspect.isroutine(target) else target, mode=self._mode)

    def _unavailable_error(self, problem: str) -> CapabilityError:
        return CapabilityError(
            f"{str(self)[0].upper()}{str(self)[1:]} {problem}.",
            fix="See whether it runs and what it writes to its log.",
            severity=ErrorSeverity.RETRIABLE,
        )


def _root_message(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return sanitize_text(str(exc) or type(exc).__name__, 300)
