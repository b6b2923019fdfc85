"""Capabilities as an MCP server: the same stages, whoever calls."""

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
from capgraph.adapters.mcp import IDEMPOTENCY_META_KEY
from capgraph.adapters.request import request_schema
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
from capgraph.registry import Registry
from capgraph.stores.async_checks import require_async_saver

CallerResolver = Callable[[ServerRequestContext[Any, Any]], Caller]
_MAX_OPEN_QUESTIONS = 1_000
"""How many questions wait for their answers in memory; the oldest goes first."""


@validate_arguments
def as_mcp_server(
    capabilities: Registry | Services | Iterable[Any],
    *,
    name: str = "capgraph",
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    caller: Caller | CallerResolver | None = None,
    **options: Any,
) -> MCPServer[Any]:
    """Offer capabilities as the tools of an MCP server.

    Each call passes the stages of a step: permissions, limits, guards, ledger. What needs a
    person's agreement is asked by elicitation; a client that has none is refused, and nothing runs.
    A call that carries a key in ``_meta["capgraph/idempotency-key"]`` is done once, however often it
    comes: the answer is that of the first.

    The server is one of the package ``mcp``: ``run("stdio")``, ``run("streamable-http", port=…)``, or
    ``streamable_http_app()`` for a web server of one's own.

    Args:
        capabilities: A registry, capabilities, or what ``bind`` made of them with an operator's
            decisions.
        name: What the server calls itself.
        checkpointer: Keeps questions and effects for longer than this process; in memory when not
            given.
        caller: Who asks, for permissions and records: one for all, or a function of the request; whom
            the server's own authentication knows, when not given.
        **options: As ``mcp.server.MCPServer`` takes them, such as ``auth`` and ``instructions``.

    Raises:
        UnknownOptionError: An option is unknown; the message holds the nearest name.
        ConfigurationError: The saver is synchronous.

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
    """What the tools of a server are, and how each is called."""

    def __init__(
        self,
        services: Services,
        checkpointer: BaseCheckpointSaver[Any] | None,
        caller: Caller | CallerResolver | None,
    ) -> None:
        self.services = services
        self._saver = checkpointer or InMemorySaver()
        self._forgets = checkpointer is None
        self._caller = caller
        self._graphs: dict[str, TaskGraph] = {}
        self._open: dict[str, None] = {}

    def list_tools(self) -> list[Tool]:
        """Describe all capabilities."""
        registry = self.services.registry
        return [capability_tool(spec, registry) for spec in registry.capabilities.values()]

    async def call(
        self, spec: CapabilitySpec, arguments: Mapping[str, Any], context: Context[Any, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Run a capability, or go on with it when an answer came."""
        caller = self._resolve_caller(context.request_context)
        key = (context.request_context.meta or {}).get(IDEMPOTENCY_META_KEY)
        thread = context.request_state
        if thread is None:
            given = [caller.user_id, spec.name, key] if key else uuid.uuid4().hex
            thread = f"mcp/{compute_digest(given)}"
        config: Any = {"configurable": {"thread_id": thread, **configurable_for(caller)}}
        graph = self._graph(spec)
        found = await graph.aget_state(config)
        answers: Any = context.input_responses or {}
        if not _is_answered(found, spec):
            what: Any = {"task": dict(arguments)}
            while True:
                if asked := {one.id: one.value for one in found.interrupts}:
                    answers = answers or await self._ask(asked, context, thread)
                    if isinstance(answers, (CallToolResult, InputRequiredResult)):
                        return answers
                    said = {
                        name: read_answer(name, value, answers) for name, value in asked.items()
                    }
                    what, answers = Command(resume=said), {}
                elif found.next:
                    what = None  # another process began with it
                await _wait_for_cleanup(self._run(graph, what, config, context))
                found = await graph.aget_state(config)
                if not found.interrupts:
                    break
        if not key:
            await self._discard_thread(thread)
        if found.values.get("success", True):
            return call_result(found.values.get("output"))
        return call_result(str(found.values.get("error")), is_error=True)

    async def _ask(
        self, questions: Mapping[str, Any], context: Context[Any, Any], thread: str
    ) -> Mapping[str, Any] | CallToolResult | InputRequiredResult:
        if not supports_elicitation(context):
            await self._discard_thread(thread)
            return call_result(
                "A person has to decide first, and this client cannot ask one."
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
        known = 0.0
        async for event in graph.astream(graph_input, config, stream_mode="custom"):
            if isinstance(event, Mapping) and event.get("event_type") == "step_progress":
                # Each has to be more than the one before.
                fraction = event.get("progress")
                known = max(fraction, known + 1e-6) if fraction is not None else known + 1e-6
                await context.report_progress(known, 1.0, event.get("message"))

    def _graph(self, spec: CapabilitySpec) -> TaskGraph:
        if spec.name not in self._graphs:
            made = task_graph(spec.cls, services=self.services)
            self._graphs[spec.name] = made.copy({"checkpointer": self._saver})
        return self._graphs[spec.name]

    def _resolve_caller(self, request: ServerRequestContext[Any, Any]) -> Caller:
        if self._caller is not None:
            return self._caller(request) if callable(self._caller) else self._caller
        token = get_access_token()
        if token is None:
            return Caller()
        return Caller(token.subject or token.client_id, authenticated=True)

    async def _track_question(self, thread: str) -> None:
        if self._forgets:
            self._open[thread] = None
            if len(self._open) > _MAX_OPEN_QUESTIONS:
                await self._discard_thread(next(iter(self._open)))

    async def _discard_thread(self, thread: str) -> None:
        self._open.pop(thread, None)
        if self._forgets:
            await self._saver.adelete_thread(thread)


class _CapabilityServer(MCPServer[Any]):
    """An MCP server whose tools are capabilities."""

    def __init__(self, tools: _CapabilityTools, **options: Any) -> None:
        super().__init__(**options)
        self._offer = tools

    async def list_tools(self) -> list[Tool]:
        return self._offer.list_tools()

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        spec = self._offer.services.registry.capabilities.get(name)
        if spec is None or context is None:
            raise ToolError(f"No tool is called {name!r}.")
        try:
            return await self._offer.call(spec, arguments, context)
        except CapgraphError as exc:
            raise ToolError(self._offer.services.masker.text(str(exc))) from exc


async def _wait_for_cleanup(run: Coroutine[Any, Any, None]) -> None:
    """Wait for a run; cancel it once when whoever waits is cancelled, and let it clean up.

    The package cancels again and again until a task has ended, which cuts LangGraph's own end short.
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
    """Describe a capability as a tool."""
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
    """Tell whether a call was made before; a failure is an answer only where work acts once."""
    ended = bool(snapshot.values) and not snapshot.next
    return ended and (snapshot.values.get("success", True) or spec.effect == "once")


def call_result(output: Any, *, is_error: bool = False) -> CallToolResult:
    """Return what a tool gave, or why it gave nothing."""
    if is_error:
        return CallToolResult(content=[TextContent(text=str(output))], is_error=True)
    data = output if isinstance(output, Mapping) else {"value": output}
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return CallToolResult(content=[TextContent(text=text)], structured_content=data)
