"""The compiled graph of an agent: its door, and the lease of the thread."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractContextManager, aclosing
from typing import Any, Generic, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot, StateUpdate
from langgraph.typing import ContextT
from pydantic import BaseModel
from typing_extensions import TypeVar

from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.base.ports import Sink
from capgraph.configs.streaming import has_listener
from capgraph.engine.graph_input import (
    find_open_questions,
    refuse_message,
    require_thread_id,
    route_resume,
    validate_input,
)
from capgraph.engine.run_scope import OpenQuestions, end_run, run_scope
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import SyncGraph, copy_graph_as
from capgraph.engine.thread_lease import hold_lease, run_with_lease
from capgraph.langgraph_compat import find_saver, is_task, last_writer, merged_config
from capgraph.stores.persistence import Persistence

_END = object()


AnswerT = TypeVar("AnswerT", bound=BaseModel, default=Any)


class AgentGraph(SyncGraph[ContextT], Generic[ContextT, AnswerT]):
    """A compiled LangGraph graph whose nodes are coroutines, and that runs a thread once at a time.

    ``ainvoke`` and ``astream`` are LangGraph's own, held by the lease of the thread.

    Args:
        services: What the operator decided; without, every input may pass.
        **attributes: What LangGraph's own class takes.
    """

    def __init__(self, *, services: Services | None = None, **attributes: Any) -> None:
        known: Persistence | None = attributes.pop("_persistence", None)  # of the graph it copies
        super().__init__(**attributes)
        self.services = services
        if known is None and services is not None:
            known = services.persistence
        self._persistence: Persistence | None = known
        if self.persistence is not None:
            self._register(self.persistence)

    @property
    def persistence(self) -> Persistence | None:
        """Where the graph stores its threads; ``None`` without a saver of its own."""
        saver = self.checkpointer
        if not isinstance(saver, BaseCheckpointSaver):
            return None
        if self._persistence is None or not self._persistence.belongs_to(saver):
            self._persistence = Persistence.of(saver)
        return self._persistence

    def _register(self, persistence: Persistence) -> None:
        scale = self.services.settings.scale if self.services is not None else None
        persistence.register_graph(self.channels, scale)

    def _persistence_of(self, config: Mapping[str, Any]) -> Persistence | None:
        return Persistence.for_run(config, self.persistence) if find_saver(self, config) else None

    def answer_of(self, out: Mapping[str, Any]) -> AnswerT:
        """Return the answer of a turn as an instance of ``answer_type``.

        Args:
            out: What ``ainvoke`` returned, or the values of a state.

        Raises:
            ValidationError: The turn ended without one: it failed, or asked the person back.
        """
        form = self.services.answer_type if self.services is not None else None
        value = out.get("execution_answer")
        if form is None or value is None:
            status = (out.get("execution_outcome") or {}).get("status", "not ended")
            raise ValidationError(
                f"The turn ({status}) has no answer of a type.",
                fix="Look at out['execution_outcome'] and the last message."
                if form is not None
                else "Give build_graph answer_type=.",
            )
        return cast("AnswerT", form.model_validate(value))

    def subscribe(
        self, sink: Sink, events: Collection[str | type[Any]] | None = None
    ) -> Callable[[], None]:
        """Hand the events of this graph's runs to one more sink from now on.

        Args:
            sink: An object with ``emit(event)``, as for ``build_graph(sinks=…)``.
            events: The kinds that it wants, as ``event_type`` or as classes of
                ``capgraph.telemetry``; all of them when not given.

        Returns:
            A function that takes the sink away again.

        Raises:
            ConfigurationError: The sink has no ``emit``, or the graph no services.

        >>> from capgraph import build_graph
        >>> from capgraph.telemetry import RingBufferSink
        >>> graph, sink = build_graph([]), RingBufferSink()
        >>> unsubscribe = graph.subscribe(sink, events=["turn_finished"])
        >>> _ = graph.invoke({"messages": [("user", "Sing")]})
        >>> [event["event_type"] for event in sink.events]
        ['turn_finished']
        """
        if self.services is None:
            raise ConfigurationError(
                "This graph has no services, so it sends no events.",
                fix="Make it with build_graph or open_graph.",
            )
        return self.services.events.subscribe(sink, events)

    async def warm_up(self) -> None:
        """Do ahead what the first request would wait for; nothing depends on it.

        The offline choice is fitted, and libraries that capabilities name are imported.

        >>> import asyncio
        >>> from capgraph import build_graph
        >>> asyncio.run(build_graph([]).warm_up())
        """
        if self.services is not None:
            await self.services.warm_up()

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the graph and yield what it streams; takes what LangGraph's ``astream`` takes.

        Raises:
            ThreadBusyError: Another run has the thread.
            ValidationError: The input holds what a caller may not send; it is named.
        """
        given, *others = args if args else (kwargs.pop("input", None),)
        config = merged_config(self, others[0] if others else kwargs.get("config"))
        persistence = self._persistence_of(config)
        services, inputs = self.services, given
        inside: AbstractContextManager[None] = contextlib.nullcontext()
        if services is not None:
            inputs = validate_input(given, config, services, has_saver=persistence is not None)
            modes = kwargs.get("stream_mode") or self.stream_mode
            listened = "custom" in modes or (is_task(config) and has_listener())
            answering = isinstance(given, Command) or is_task(config)
            asked: OpenQuestions | None = None
            if persistence is not None and not is_task(config):
                inputs = await route_resume(inputs, persistence.saver, config)
                asked = await find_open_questions(inputs, persistence.saver, config)
            about: Any = {"has_subscriber": listened, "may_answer": answering, "dropped": asked}
            inside = run_scope(services, config, **about)
            if asked is not None and services.settings.approvals.new_message == "keep":
                with inside:
                    refuse_message(asked)

        def run() -> AsyncIterator[Any]:
            return super(AgentGraph, self).astream(inputs, *others, **kwargs)

        stream = run()
        if persistence is not None and "thread_id" in config.get("configurable", {}):
            if persistence is not self._persistence:
                self._register(persistence)  # of an outer graph or a server
            retention = services.retention if services is not None else None
            stream = run_with_lease(persistence, config, inputs, run, retention)
        error: BaseException | None = None
        try:
            async with aclosing(stream):  # type: ignore[type-var]
                while True:
                    with inside:
                        chunk = await anext(stream, _END)
                    if chunk is _END:
                        break
                    yield chunk
        except BaseException as exc:
            error = exc
            raise
        finally:
            await end_run(inside, error)
        if services is not None and not is_task(config):
            await services.events.flush_briefly()

    async def aget_state(self, config: RunnableConfig, **more: Any) -> StateSnapshot:
        """Return the state of a thread; takes what LangGraph's ``aget_state`` takes.

        Raises:
            ValidationError: No thread is named.
        """
        return await super().aget_state(self._of_thread(config), **more)

    def aget_state_history(
        self, config: RunnableConfig, **more: Any
    ) -> AsyncIterator[StateSnapshot]:
        """Yield the states of a thread, the newest first; see :meth:`aget_state`."""
        return super().aget_state_history(self._of_thread(config), **more)

    def _of_thread(self, config: RunnableConfig) -> RunnableConfig:
        own: Any = self.config or {}
        config = config or {}
        named = {**(own.get("configurable") or {}), **(config.get("configurable") or {})}
        found: RunnableConfig = {**config, "configurable": named}
        if find_saver(self, found) is not None:
            require_thread_id(found)
        return found

    async def abulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Change the state of a thread by hand, between its runs.

        Raises:
            InfrastructureError: An update holds a key that the state does not have, or that only
                the graph itself may write.
            ThreadBusyError: The thread is being run.
            ValidationError: No thread is named, or a value has another form than its key.
        """
        config = self._of_thread(config)
        merged = merged_config(self, config)
        persistence = self._persistence_of(merged)
        if not config["configurable"].get("checkpoint_ns"):  # a graph inside has keys of its own
            last = await last_writer(persistence.saver, merged) if persistence is not None else None
            supersteps = [[self._by_hand(one, last) for one in step] for step in supersteps]
        if persistence is None:
            return await super().abulk_update_state(config, supersteps)
        async with hold_lease(persistence, merged):
            return await super().abulk_update_state(config, supersteps)

    def _by_hand(self, update: StateUpdate, last: str | None) -> StateUpdate:
        values = update.values
        if self.services is None:
            return update
        if (update.as_node or last) == "router":
            # It says itself where it goes, which an update does not: the turn would be lost.
            update = update._replace(as_node="approval")
        if not isinstance(values, Mapping):
            return update
        from capgraph.engine.infrastructure_node import check_state_writes

        keys = self.services.runner_config.schema.names
        return update._replace(values=dict(check_state_writes("update_state", values, keys)))


def agent_graph(
    graph: CompiledStateGraph[Any, Any, Any, Any], services: Services | None = None
) -> AgentGraph[Any, Any]:
    """Give a compiled graph its door, the lease and the synchronous calls."""
    return copy_graph_as(AgentGraph, graph, services=services)
