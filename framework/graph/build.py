"""``build_graph``, which compiles capabilities to a LangGraph graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command
from langgraph.typing import ContextT
from typing_extensions import TypedDict, Unpack

from capgraph.base.errors import ConfigurationError, InfrastructureError
from capgraph.configs.logger import get_logger
from capgraph.engine.bind import as_registry, as_settings, bind
from capgraph.engine.infrastructure_node import update_pairs
from capgraph.engine.ready_queue import run_step_task
from capgraph.engine.services import OperatorOptions, Services
from capgraph.graph.agent_graph import AgentGraph, AnswerT, agent_graph
from capgraph.graph.validate import check_persistence, find_registry_warnings, validate_registry
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import STRICT_RESUME, Checkpointer, cache_task
from capgraph.pipeline.failures import create_refusal_failure, failure_update
from capgraph.planning.planner_traits import planner_traits
from capgraph.prompts.provider import use_prompts
from capgraph.registry import Registry
from capgraph.state import AgentState, StateSchema
from capgraph.stores.async_checks import require_async_store
from capgraph.telemetry.budget_callback import BUDGET_CALLBACK
from capgraph.telemetry.usage_callback import USAGE_CALLBACK

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from capgraph.configs.settings import Settings
    from capgraph.engine.bind import Capabilities

_CHAIN = ("task_extraction", "classifier", "orchestrator")
_CLOSING = ("respond", "clarify", "error")


@validate_arguments
def build_graph(
    registry: Capabilities,
    model: str | BaseChatModel | Mapping[str, Any] | None = None,
    checkpointer: Checkpointer = None,
    store: BaseStore | None = None,
    settings: Settings | None = None,
    *,
    context_schema: type[ContextT] | None = None,
    answer_type: type[AnswerT] | None = None,
    **options: Unpack[OperatorOptions],
) -> AgentGraph[ContextT, AnswerT]:
    """Build an agent as a compiled LangGraph graph.

    Creating a chat model may read files. In a running event loop, use :func:`open_graph` or
    ``await asyncio.to_thread(build_graph, …)``.

    Args:
        registry: Capabilities, or a registry, which is frozen.
        model: Name such as ``"provider:name"``, a chat model, or a mapping from roles
            (``extraction``, ``selection``, ``planning``, ``answer``, ``capability``) to names or
            models. Defaults to the model of the settings. Without a model, the agent runs offline.
        checkpointer: Asynchronous LangGraph saver that stores threads. Without a saver, nothing is
            stored. ``False`` also prevents the use of an outer graph's saver.
        store: LangGraph store for data that threads share.
        settings: Settings of the agent. Defaults to ``Settings()``.
        context_schema: Type of the ``context=`` argument of runs.
        answer_type: Pydantic model of the answer, which requires a chat model. The state contains
            the answer as plain data in ``execution_answer``. ``graph.answer_of(out)`` returns an
            instance.
        **options: See :class:`~capgraph.engine.services.OperatorOptions`: ``behaviors``,
            ``policies``, ``permissions``, ``budget``, ``prices``, ``sinks``, ``audit``,
            ``capacity``, ``state_schema``, ``system_prompt``, ``embeddings``, ``clock``,
            ``selector``, ``extractor``, ``planner``, ``answerer``.

    Returns:
        A compiled LangGraph graph, which supports LangGraph's methods to run, stream, draw, and
        resume.

    Raises:
        RegistryError: The registry is invalid. The message lists all problems.
        ConfigurationError: A model, behavior, policy, or checkpointer is invalid, or
            ``persistence.url`` is set without a checkpointer.
        MissingExtraError: The package of a model is not installed.

    >>> import asyncio
    >>> from capgraph import build_graph
    >>> graph = build_graph([])
    >>> out = asyncio.run(graph.ainvoke({"messages": [("user", "Sing a song")]}))
    >>> out["messages"][-1].content.splitlines()[0]
    'Nothing here can do that: Sing a song'
    """
    known = as_registry(registry)
    settings = as_settings(settings)
    services = bind(
        known,
        model=model,
        settings=settings,
        checkpointer=checkpointer if isinstance(checkpointer, BaseCheckpointSaver) else None,
        answer_type=answer_type,
        **options,
    )
    check_persistence(checkpointer, settings)
    require_async_store(store)
    with use_prompts(services.prompts) if services.prompts is not None else nullcontext():
        validate_registry(known)
    offline = not planner_traits(services.planner).chooses_parameters
    saved = checkpointer not in (None, False)
    warnings = find_registry_warnings(
        known, offline=offline, has_saver=saved, permissions=services.permissions
    )
    if services.system_prompt and not (
        services.chat_model("planning") or services.chat_model("answer")
    ):
        warnings.append(
            "No chat model uses the system_prompt. Fix: configure a model, or remove system_prompt."
        )
    for text in warnings:
        get_logger("framework", "build_graph").warning("%s", text)
    state_schema = options.get("state_schema", AgentState)
    return _compile(services, state_schema, context_schema, checkpointer, store)


def extend_graph(graph: AgentGraph[Any, Any], *capabilities: Any) -> AgentGraph[Any, Any]:
    """Create a copy of a graph with additional capabilities.

    Both graphs share threads, budgets, sinks, and policies, so a thread may alternate between
    them.

    Args:
        graph: Graph that ``build_graph`` returned.
        *capabilities: Additional capabilities.

    Raises:
        RegistryError: A capability is invalid or has the name of a registered one.

    >>> from capgraph import build_graph, capability_node
    >>> @capability_node
    ... def ring() -> str:
    ...     "Ring the bell."
    ...     return "Ding"
    >>> sorted(extend_graph(build_graph([]), ring).services.registry.capabilities)
    ['ring']
    """
    services = graph.services
    assert services is not None
    registry = services.registry.with_()
    for capability in capabilities:
        registry.register(capability)
    validate_registry(registry)
    schema = graph.builder.state_schema
    extended = services.with_registry(registry)
    return _compile(extended, schema, graph.builder.context_schema, graph.checkpointer, graph.store)


def _compile(
    services: Services, state_schema: type[Any], context_schema: Any, checkpointer: Any, store: Any
) -> AgentGraph[Any, Any]:
    """Build and compile the agent graph from its services and state class.

    Raises:
        ConfigurationError: The state class does not extend ``AgentState`` correctly.
    """
    registry = services.registry
    services.step_tasks.update(
        {name: _create_step_task(name, services) for name in registry.capabilities}
    )
    schema = StateSchema.from_class(state_schema)
    ours = StateSchema.from_class(AgentState)
    if not schema.names >= ours.names:
        raise ConfigurationError(
            f"The state class {state_schema.__name__} must contain all keys of AgentState.",
            fix=f"Write class {state_schema.__name__}(AgentState, total=False).",
        )
    if changed := [name for name, key in ours.keys.items() if schema.keys[name] != key]:
        raise ConfigurationError(
            f"The state class {state_schema.__name__} must not redeclare keys of AgentState: {', '.join(changed)}.",
            fix="Remove the declaration, or rename the key if it is your own.",
        )
    builder: Any = StateGraph(
        state_schema,
        context_schema=context_schema,
        input_schema=_create_input_schema(state_schema, schema),
    )
    layout = _NodeOrder(registry)
    _add_infrastructure(builder, services, layout)
    _add_capabilities(builder, services)
    layout.add_edges(builder)
    name = services.settings.name
    compiled = builder.compile(checkpointer=checkpointer, store=store, name=name)
    graph = agent_graph(compiled, services)
    # The settings limit plans, so LangGraph's own limit must never apply.
    config: RunnableConfig = {
        "recursion_limit": 1_000_000,
        "configurable": STRICT_RESUME,
        "callbacks": [USAGE_CALLBACK, BUDGET_CALLBACK]
        if services.budget_policy.budgets
        else [USAGE_CALLBACK],
    }
    return graph.with_config(config)


def _create_input_schema(cls: type[Any], schema: StateSchema) -> Any:
    """Create the input schema of the graph, limited to the state keys that callers may send."""
    hints = get_type_hints(cls, include_extras=True)
    chosen = {name: hints[name] for name in sorted(schema.caller_keys)}
    return TypedDict(f"{cls.__name__}Input", chosen, total=False)  # type: ignore[operator]


class _NodeOrder:
    """Execution order of graph nodes: the built-in chain of roles, plus custom nodes."""

    def __init__(self, registry: Registry) -> None:
        self.before: dict[str, list[str]] = {}
        self.after: dict[str, list[str]] = {}
        for name, spec in registry.infrastructure.items():
            if spec.before:
                self.before.setdefault(spec.before, []).append(name)
            elif spec.after:
                self.after.setdefault(spec.after, []).append(name)
        self.chain = [name for role in _CHAIN for name in self._insert_custom_nodes(role)]
        self.targets = [*registry.infrastructure, *registry.capabilities]

    def _insert_custom_nodes(self, role: str) -> list[str]:
        return [*self.before.get(role, []), role, *self.after.get(role, [])]

    def entry_node(self, target: str) -> str:
        """Return the first custom node that runs before a target node, or the target node."""
        return self.before.get(target, [target])[0]

    def add_edges(self, builder: Any) -> None:
        """Add the regular edges between nodes, and an edge from each failed node to the router."""
        builder.add_edge(START, "begin_turn")
        first = self.chain[0]

        async def after_begin(state: Mapping[str, Any]) -> str | list[str]:
            if state.get("control_goto"):
                return []  # the node has chosen the next node itself
            # The router sends a plan from the caller to the node that checks plans.
            ready = state.get("control_has_error") or state.get("planning_execution_plan")
            return "router" if ready else first

        builder.add_conditional_edges("begin_turn", after_begin, [first, "router"])
        following = [*self.chain[1:], "router"]
        for name, then in zip(self.chain, following, strict=True):
            self._add_edge(builder, name, then)
        builder.add_edge("approval", "router")
        for role in _CLOSING:
            line = self._insert_custom_nodes(role)
            for name, then in zip(line, [*line[1:], END], strict=True):
                self._add_edge(builder, name, then)

    @staticmethod
    def _add_edge(builder: Any, name: str, then: str) -> None:
        if name == "error":
            builder.add_edge(name, then)
            return

        async def decide(state: Mapping[str, Any]) -> str | list[str]:
            if state.get("control_goto"):
                return []  # the node has chosen the next node itself
            info = state.get("control_error_info") or {}
            failed = state.get("control_has_error") and info.get("node_name") == name
            return "router" if failed else then

        builder.add_conditional_edges(name, decide, list(dict.fromkeys([then, "router"])))


def _add_infrastructure(builder: Any, services: Services, layout: _NodeOrder) -> None:
    for name, spec in services.registry.infrastructure.items():
        node = spec.cls.langgraph_node.with_services(services)
        node = _wrap_with_routing(node, layout) if name == "router" else _wrap_with_goto(node)
        builder.add_node(
            name,
            node,
            metadata={"kind": "infrastructure", "description": spec.description},
            destinations=tuple(layout.targets) if name == "router" else None,
        )


def _wrap_with_goto(node: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Wrap a node so that a ``Command(goto=…)`` overrides the node's regular edge."""

    async def run(state: Any) -> Any:
        result = await node(state)
        goes = isinstance(result, Command) and result.goto not in (None, ())
        if not goes:
            if state.get("control_goto") and isinstance(result, Mapping):
                return {**result, "control_goto": None}
            return result
        pairs, goto = _redirect_silent_end(result)
        return Command(update=[*pairs, ("control_goto", str(goto))], goto=goto, graph=result.graph)

    run.__name__ = node.__name__
    return run


def _redirect_silent_end(result: Command[Any]) -> tuple[list[tuple[str, Any]], Any]:
    """Extract the state update and the target node from a command.

    A target of ``END`` is replaced with ``respond`` if the update contains no message, so that
    every turn ends with a message.
    """
    pairs = update_pairs(result.update)
    silent = result.goto == END and not any(key == "messages" for key, _ in pairs)
    return pairs, "respond" if silent else result.goto


def _wrap_with_routing(
    node: Callable[[Any], Awaitable[Any]], layout: _NodeOrder
) -> Callable[[Any], Awaitable[Any]]:
    """Wrap the router node so that its result determines the next node.

    The result is either a ``Command`` or an update that sets ``control_next_node``.
    """

    async def router(state: Any) -> Any:
        result = await node(state)
        if isinstance(result, Command) and result.goto == ():
            result = dict(_redirect_silent_end(result)[0])
        if isinstance(result, Command):
            retried = (state.get("control_error_info") or {}).get("node_name") == result.goto
            if isinstance(result.goto, str) and not retried:
                update, goto = _redirect_silent_end(result)
                return Command(update=update, goto=layout.entry_node(goto))
            return result
        target = result.get("control_next_node")
        if target in (END, "END"):
            target = "respond"  # a turn ends with a message
        if target not in layout.targets:
            error = InfrastructureError(
                f"The router wrote control_next_node={target!r}, which is not a node.",
                fix=f"Use one of: {', '.join(layout.targets)}.",
            )
            failed = failure_update([create_refusal_failure("router", error)])
            return Command(update={**result, **failed}, goto="error")
        return Command(update=result, goto=layout.entry_node(target))

    router.__name__ = "router"
    return router


def _add_capabilities(builder: Any, services: Services) -> None:
    for name, spec in services.registry.capabilities.items():
        builder.add_node(
            name,
            spec.cls.langgraph_node.with_services(services),
            metadata={
                "kind": "capability",
                "description": spec.description,
                "effect": spec.effect,
                "provides": list(spec.provides),
                "requires": [requirement.type for requirement in spec.requires],
            },
        )
        builder.add_edge(name, "router")


def _create_step_task(name: str, services: Services) -> Any:
    async def run(payload: dict[str, Any]) -> dict[str, Any] | None:
        return await run_step_task(payload)

    run.__name__ = run.__qualname__ = name
    cache_task(run, services)
    decorate: Any = task(name=name)
    return decorate(run)
