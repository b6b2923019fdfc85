"""MCP server whose tools are capabilities."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import anyio
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, StateSnapshot
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, TextContent, Tool, ToolAnnotations

from capgraph.adapters.elicitation import (
    elicit_answers,
    is_asked_before_run,
    read_answer,
    supports_elicitation,
)
from capgraph.adapters.mcp_calls import IDEMPOTENCY_META_KEY
from capgraph.adapters.request import parse_request, request_schema
from capgraph.adapters.task_graph import TaskGraph, task_graph
from capgraph.approvals import describe_question
from capgraph.base.errors import CapgraphError
from capgraph.base.ports import Caller
from capgraph.base.spec import CapabilitySpec
from capgraph.engine.bind import bind
from capgraph.engine.services import Services
from capgraph.helpers.argument_validation import check_options, validate_arguments
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.run_config import configurable_for
from capgraph.planning.parameters import check_parameter_types
from capgraph.registry import Registry
from capgraph.stores.async_checks import require_async_saver

CallerResolver = Callable[[ServerRequestContext[Any, Any]], Caller]
_MAX_OPEN_QUESTIONS = 1_000
"""Maximum number of open questions in memory. The oldest is discarded first."""


@validate_arguments
def as_mcp_server(
    capabilities: Registry | Services | Iterable[Any],
    *,
    name: str = "capgraph",
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    caller: Caller | CallerResolver | None = None,
    **options: Any,
) -> MCPServer[Any]:
    """Create an MCP server that exposes capabilities as tools.

    Each call passes through the stages of a step, including permissions, limits, guards, and
    idempotency. Approvals are requested by elicitation. If the client does not support
    elicitation, the call fails and nothing runs. A call with a key in
    ``_meta["capgraph/idempotency-key"]`` runs once, and repeated calls return the first result.

    The server is an ``mcp`` server: run it with ``run("stdio")`` or ``run("streamable-http",
    port=…)``, or mount ``streamable_http_app()`` in a web application.

    Args:
        capabilities: Registry, capabilities, or the services returned by ``bind``.
        name: Name of the server.
        checkpointer: Checkpointer that stores questions and effects. By default, they are stored
            in memory until the process ends.
        caller: Caller for permissions and records, or a function that returns the caller of a
            request. Defaults to the caller that the server authenticated.
        **options: Options of ``mcp.server.MCPServer``, such as ``auth`` and ``instructions``.

    Raises:
        UnknownOptionError: An option is unknown. The message names the closest match.
        ConfigurationError: The checkpointer is synchronous.

    >>> from capgraph import capability_node
    >>> @capability_node
    ... async def double(number: int) -> int:
    ...     '''Double a number.'''
    ...     return 2 * number
    >>> as_mcp_server([double]).name
    'capgraph'
    """
    check_options("as_mcp_server", options, [*_OWN_OPTIONS, *_server_options()])
    require_async_saver(checkpointer)
    if not isinstance(capabilities, Services):
        capabilities = bind(capabilities, checkpointer=checkpointer)
    return _CapabilityServer(
        _CapabilityTools(capabilities, checkpointer, caller), name=name, **options
    )


_OWN_OPTIONS = ("name", "checkpointer", "caller")


def _server_options() -> list[str]:
    return list(inspect.signature(MCPServer.__init__).parameters)[1:]


class _CapabilityTools:
    """Tools of an MCP server, and their execution."""

    def __init__(
        self,
        services: Services,
        checkpointer: BaseCheckpointSaver[Any] | None,
        caller: Caller | CallerResolver | None,
    ) -> None:
        self.services = services
        self._saver = checkpointer or InMemorySaver()
        self._is_ephemeral = checkpointer is None
        self._caller = caller
        self._graphs: dict[str, TaskGraph] = {}
        self._open_threads: dict[str, None] = {}

    def list_tools(self) -> list[Tool]:
        """Return all capabilities as tools."""
        registry = self.services.registry
        return [capability_tool(spec, registry) for spec in registry.capabilities.values()]

    async def call(
        self, spec: CapabilitySpec, arguments: Mapping[str, Any], context: Context[Any, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Run a capability for an MCP tool call, or resume the run with the client's answers.

        Raises:
            ValidationError: A parameter has the wrong type.
        """
        check_parameter_types(spec, parse_request(spec, arguments)[0]["parameters"])
        caller = self._resolve_caller(context.request_context)
        key = (context.request_context.meta or {}).get(IDEMPOTENCY_META_KEY)
        thread = context.request_state
        if thread is None:
            digest_source = [caller.user_id, spec.name, key] if key else uuid.uuid4().hex
            thread = f"mcp/{compute_digest(digest_source)}"
        config: Any = {"configurable": {"thread_id": thread, **configurable_for(caller)}}
        graph = self._graph(spec)
        snapshot = await graph.aget_state(config)
        answers: Any = context.input_responses or {}
        if not _is_answered(snapshot, spec):
            graph_input: Any = {"task": dict(arguments)}
            while True:
                if questions := {question.id: question.value for question in snapshot.interrupts}:
                    answers = answers or await self._ask(questions, context, thread)
                    if isinstance(answers, (CallToolResult, InputRequiredResult)):
                        return answers
                    resume_values = {
                        name: read_answer(name, value, answers) for name, value in questions.items()
                    }
                    graph_input, answers = Command(resume=resume_values), {}
                elif snapshot.next:
                    graph_input = None  # another process started this call
                await _wait_for_cleanup(self._run(graph, graph_input, config, context))
                snapshot = await graph.aget_state(config)
                if not snapshot.interrupts:
                    break
        if not key:
            await self._discard_thread(thread)
        if snapshot.values.get("success", True):
            return call_result(snapshot.values.get("output"))
        return call_result(str(snapshot.values.get("error")), is_error=True)

    async def _ask(
        self, questions: Mapping[str, Any], context: Context[Any, Any], thread: str
    ) -> Mapping[str, Any] | CallToolResult | InputRequiredResult:
        if not supports_elicitation(context):
            await self._discard_thread(thread)
            return call_result(
                "The call needs a decision by a person, but the client does not support elicitation."
                f" {' '.join(map(describe_question, questions.values()))}"
                f"{' Nothing was run.' if all(map(is_asked_before_run, questions.values())) else ''}"
                " Fix: use a client with elicitation.",
                is_error=True,
            )
        answers = await elicit_answers(questions, context, thread)
        if isinstance(answers, InputRequiredResult):
            await self._track_question(thread)
        return answers

    async def _run(
        self, graph: TaskGraph, graph_input: Any, config: Any, context: Context[Any, Any]
    ) -> None:
        progress = 0.0
        async for event in graph.astream(graph_input, config, stream_mode="custom"):
            if isinstance(event, Mapping) and event.get("event_type") == "step_progress":
                # MCP requires that progress increases with each report.
                fraction = event.get("progress")
                progress = (
                    max(fraction, progress + 1e-6) if fraction is not None else progress + 1e-6
                )
                await context.report_progress(progress, 1.0, event.get("message"))

    def _graph(self, spec: CapabilitySpec) -> TaskGraph:
        if spec.name not in self._graphs:
            compiled = task_graph(spec.cls, services=self.services)
            self._graphs[spec.name] = compiled.copy({"checkpointer": self._saver})
        return self._graphs[spec.name]

    def _resolve_caller(self, request: ServerRequestContext[Any, Any]) -> Caller:
        if self._caller is not None:
            return self._caller(request) if callable(self._caller) else self._caller
        token = get_access_token()
        if token is None:
            return Caller()
        return Caller(token.subject or token.client_id, authenticated=True)

    async def _track_question(self, thread: str) -> None:
        if self._is_ephemeral:
            self._open_threads[thread] = None
            if len(self._open_threads) > _MAX_OPEN_QUESTIONS:
                await self._discard_thread(next(iter(self._open_threads)))

    async def _discard_thread(self, thread: str) -> None:
        self._open_threads.pop(thread, None)
        if self._is_ephemeral:
            await self._saver.adelete_thread(thread)


class _CapabilityServer(MCPServer[Any]):
    """MCP server whose tools are capabilities."""

    def __init__(self, tools: _CapabilityTools, **options: Any) -> None:
        super().__init__(**options)
        self._tools = tools

    async def list_tools(self) -> list[Tool]:
        return self._tools.list_tools()

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        spec = self._tools.services.registry.capabilities.get(name)
        if spec is None or context is None:
            raise ToolError(f"Unknown tool {name!r}.")
        try:
            return await self._tools.call(spec, arguments, context)
        except CapgraphError as exc:
            raise ToolError(self._tools.services.masker.text(str(exc))) from exc


async def _wait_for_cleanup(run: Coroutine[Any, Any, None]) -> None:
    """Wait for a run to finish, and cancel it only once if the waiting task is canceled.

    The ``mcp`` package cancels a task repeatedly until the task ends, which would interrupt
    LangGraph's cleanup.
    """
    task = asyncio.create_task(run)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        raise


def capability_tool(spec: CapabilitySpec, registry: Registry) -> Tool:
    """Build the MCP tool definition for a capability."""
    output = registry.context_types.get(spec.provides[0]) if len(spec.provides) == 1 else None
    return Tool(
        name=spec.name,
        description=spec.description,
        input_schema=request_schema(spec, registry.context_types),
        output_schema=None if output is None else output.model_json_schema(mode="serialization"),
        annotations=ToolAnnotations(
            read_only_hint=spec.effect == "none",
            idempotent_hint=spec.effect != "once",
            destructive_hint=spec.effect == "once",
        ),
    )


def _is_answered(snapshot: StateSnapshot, spec: CapabilitySpec) -> bool:
    """Return True if a tool call already has a result.

    The error of a failed call is its result only if the capability has the effect ``once``.
    """
    has_ended = bool(snapshot.values) and not snapshot.next
    return has_ended and (snapshot.values.get("success", True) or spec.effect == "once")


def call_result(output: Any, *, is_error: bool = False) -> CallToolResult:
    """Convert the output or the error of a capability to an MCP call result."""
    if is_error:
        return CallToolResult(content=[TextContent(text=str(output))], is_error=True)
    data = output if isinstance(output, Mapping) else {"value": output}
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return CallToolResult(content=[TextContent(text=text)], structured_content=data)
