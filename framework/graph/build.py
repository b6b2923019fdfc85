"""``build_graph``: from a registry to an ordinary compiled LangGraph graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime

from framework.engine.ready_queue import run_step_task
from framework.engine.services import Services
from framework.graph.compiled import with_sync_calls
from framework.graph.strategies import choose_strategies
from framework.graph.validate import validate
from framework.langgraph_compat import STRICT_RESUME, lent_saver, saves_as_it_goes
from framework.pipeline.journal import Journal
from framework.registry import Registry
from framework.state import AgentState
from framework.telemetry.metered import METER

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from configs.settings import Settings
    from framework.base.clock import Clock

_NEXT = {
    "begin_turn": "task_extraction",
    "task_extraction": "classifier",
    "classifier": "orchestrator",
    "orchestrator": "router",
}


def build_graph(
    registry: Registry,
    model: str | BaseChatModel | Mapping[str, Any] | None = None,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    store: BaseStore | None = None,
    settings: Settings | None = None,
    *,
    embeddings: Any = None,
    clock: Clock | None = None,
    **strategies: Any,
) -> CompiledStateGraph[AgentState, Any, AgentState, AgentState]:
    """Build the graph of an agent.

    Making a chat model reads files. Where an event loop runs, use :func:`open_graph`, or
    ``await asyncio.to_thread(build_graph, …)``.

    Args:
        registry: What the agent is made of.
        model: ``"provider:name"``, a chat model, or one of these for each role (``extraction``,
            ``selection``, ``planning``, ``answer``, ``capability``). ``None`` takes the settings';
            without any, the agent runs offline.
        checkpointer: Saver that keeps threads; without one nothing outlives a call.
        store: LangGraph store for what is kept across threads.
        settings: All other settings; the defaults when not given.
        embeddings: LangChain ``Embeddings`` for the offline choice of capabilities.
        clock: Source of time.
        **strategies: ``selector``, ``extractor``, ``planner`` or ``answerer`` of one's own.

    Returns:
        A compiled LangGraph graph. Every way to run, stream, draw and resume one works on it.

    Raises:
        RegistryError: The registry does not fit together; lists every problem.
        ConfigurationError: A model cannot be made from its description.
        MissingExtraError: A model's package is not installed.

    >>> import asyncio
    >>> from framework import Registry, build_graph
    >>> graph = build_graph(Registry())
    >>> out = asyncio.run(graph.ainvoke({"messages": [("user", "Sing a song")]}))
    >>> out["messages"][-1].content.splitlines()[0]
    'Nothing here can do that: Sing a song'
    """
    if settings is None:
        from configs.settings import load_settings

        settings = load_settings()
    validate(registry)
    services = Services(
        registry=registry,
        settings=settings,
        step_tasks={name: _step_task(name) for name in registry.capabilities},
        journal=lambda: _journal(checkpointer),
        **choose_strategies(registry, settings, model, embeddings, strategies),
    )
    if clock is not None:
        services.clock = clock
    builder: StateGraph[AgentState, Any, AgentState, AgentState] = StateGraph(AgentState)
    _add_infrastructure(builder, services)
    _add_capabilities(builder, services)
    _add_edges(builder)
    graph = with_sync_calls(
        builder.compile(checkpointer=checkpointer, store=store, name=settings.name)
    )
    # Plans are bounded by the settings; this only keeps LangGraph's own bound out of the way.
    config: RunnableConfig = {
        "recursion_limit": 1000,
        "configurable": STRICT_RESUME,
        "callbacks": [METER],
    }
    return graph.with_config(config)


def _add_infrastructure(builder: Any, services: Services) -> None:
    for name, spec in services.registry.infrastructure.items():
        destinations: tuple[str, ...] | None = None
        if name == "router":
            destinations = (
                "router",
                "task_extraction",
                "classifier",
                "orchestrator",
                "approval",
                "respond",
                "clarify",
                "error",
                *services.registry.capabilities,
            )
        builder.add_node(
            name,
            _bound(spec.cls.langgraph_node, name, services),
            metadata={
                "kind": "infrastructure",
                "description": spec.description,
                "execute_in": "workflow",
            },
            destinations=destinations,
        )


def _add_capabilities(builder: Any, services: Services) -> None:
    for name, spec in services.registry.capabilities.items():
        builder.add_node(
            name,
            _bound(spec.cls.langgraph_node, name, services),
            metadata={
                "kind": "capability",
                "description": spec.description,
                "effect": spec.effect,
                "provides": list(spec.provides),
                "requires": [need.type for need in spec.requires],
                "execute_in": "activity",
            },
        )
        builder.add_edge(name, "router")


def _add_edges(builder: Any) -> None:
    builder.add_edge(START, "begin_turn")
    builder.add_conditional_edges(
        "begin_turn", _after_begin, ["task_extraction", "orchestrator", "router"]
    )
    for name in ("task_extraction", "classifier", "orchestrator"):
        following = _NEXT[name]
        if following == "router":
            builder.add_edge(name, "router")
        else:
            builder.add_conditional_edges(name, _unless_failed(name), [following, "router"])
    builder.add_edge("approval", "router")
    for name in ("respond", "clarify"):
        builder.add_conditional_edges(name, _end_unless_failed(name), [END, "router"])
    builder.add_edge("error", END)


def _after_begin(state: AgentState) -> str:
    if state.get("control_has_error"):
        return "router"
    return "orchestrator" if state.get("planning_execution_plan") else "task_extraction"


def _unless_failed(name: str) -> Callable[[AgentState], str]:
    def decide(state: AgentState) -> str:
        return "router" if _failed_in(state, name) else _NEXT[name]

    return decide


def _end_unless_failed(name: str) -> Callable[[AgentState], str]:
    def decide(state: AgentState) -> str:
        return "router" if _failed_in(state, name) else END

    return decide


def _failed_in(state: AgentState, name: str) -> bool:
    info = state.get("control_error_info") or {}
    return bool(state.get("control_has_error")) and info.get("node_name") == name


def _bound(
    node: Callable[..., Awaitable[Any]], name: str, services: Services
) -> Callable[[AgentState], Awaitable[Any]]:
    async def run(state: AgentState) -> Any:
        return await node(state, services=services)

    run.__name__ = name
    run.__doc__ = node.__doc__
    return run


def _step_task(name: str) -> Any:
    async def run(payload: dict[str, Any]) -> dict[str, Any] | None:
        return await run_step_task(payload)

    run.__name__ = run.__qualname__ = name
    decorate: Any = task(name=name)
    return decorate(run)


def _journal(checkpointer: BaseCheckpointSaver[Any] | None) -> Journal:
    """Return the journal of the running thread; a server may have brought its own saver."""
    try:
        config = get_config()
    except RuntimeError:
        return Journal()
    info = get_runtime().execution_info
    found = None
    if info is not None and saves_as_it_goes(config):
        found = (info.checkpoint_ns.rpartition("|")[0], info.checkpoint_id)
    return Journal(
        lent_saver(config) or checkpointer,
        (config.get("configurable") or {}).get("thread_id"),
        checkpoint=found,
    )
