"""The compiled graph of an agent."""

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
    """Compiled LangGraph graph that allows only one active run per thread.

    The graph validates the caller's input and holds the thread's lease (exclusive right to run)
    during a run. ``ainvoke``, ``astream``, and the synchronous methods have the same signatures
    as in LangGraph.

    Args:
        services: ``Services`` of the graph. Without them, callers may send any input.
        **attributes: Arguments of ``CompiledStateGraph``.
    """

    def __init__(self, *, services: Services | None = None, **attributes: Any) -> None:
        # LangGraph copies graphs by passing their attributes.
        persistence: Persistence | None = attributes.pop("_persistence", None)
        super().__init__(**attributes)
        self.services = services
        if persistence is None and services is not None:
            persistence = services.persistence
        self._persistence: Persistence | None = persistence
        if self.persistence is not None:
            self._register_persistence(self.persistence)

    @property
    def persistence(self) -> Persistence | None:
        """Persistence layer for the graph's saver, or ``None`` if the graph has no saver."""
        saver = self.checkpointer
        if not isinstance(saver, BaseCheckpointSaver):
            return None
        if self._persistence is None or not self._persistence.belongs_to(saver):
            self._persistence = Persistence.of(saver)
        return self._persistence

    def _register_persistence(self, persistence: Persistence) -> None:
        scale = self.services.settings.scale if self.services is not None else None
        persistence.register_graph(self.channels, scale)

    def _persistence_of(self, config: Mapping[str, Any]) -> Persistence | None:
        return Persistence.for_run(config, self.persistence) if find_saver(self, config) else None

    def answer_of(self, out: Mapping[str, Any]) -> AnswerT:
        """Return a turn's structured answer as a Pydantic model.

        The model is ``answer_type`` or is created from the JSON schema of the turn.

        Args:
            out: Result of ``ainvoke``, or ``values`` of a state snapshot.

        Raises:
            ValidationError: The turn has no structured answer, because it failed or asked a
                question.
        """
        answer_type = self.services.answer_type_of(out) if self.services is not None else None
        value = out.get("execution_answer")
        if answer_type is None or value is None:
            status = (out.get("execution_outcome") or {}).get("status", "unfinished")
            raise ValidationError(
                f"The turn has no typed answer: its status is {status!r}.",
                fix="Read out['execution_outcome'] and the last message."
                if answer_type is not None
                else "Pass answer_type= to build_graph.",
                facts={"status": status},
            )
        return cast("AnswerT", answer_type.model_validate(value))

    def subscribe(
        self, sink: Sink, events: Collection[str | type[Any]] | None = None
    ) -> Callable[[], None]:
        """Subscribe a sink to the events of this graph's runs.

        Args:
            sink: Object with ``emit(event)``, as for ``build_graph(sinks=…)``.
            events: Types of the events to send, as ``event_type`` names or classes of
                ``capgraph.telemetry``. ``None`` sends all events.

        Returns:
            A function that unsubscribes the sink.

        Raises:
            ConfigurationError: The sink has no ``emit``, or the graph has no services.

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
                "Cannot subscribe to a graph that has no services, because it emits no events.",
                fix="Create it with build_graph or open_graph.",
            )
        return self.services.events.subscribe(sink, events)

    async def warm_up(self) -> None:
        """Perform slow initialization before the first request. Calling this method is optional.

        The method fits the selector that works without a model and imports the ``libraries`` of all
        capabilities.

        >>> import asyncio
        >>> from capgraph import build_graph
        >>> asyncio.run(build_graph([]).warm_up())
        """
        if self.services is not None:
            await self.services.warm_up()

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the graph and yield its stream, holding the lease of the thread.

        The arguments are those of LangGraph's ``astream``.

        Raises:
            ThreadBusyError: Another run holds the thread's lease.
            ValidationError: The input contains a key that callers may not send.
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

        def run(graph_input: Any) -> AsyncIterator[Any]:
            return super(AgentGraph, self).astream(graph_input, *others, **kwargs)

        stream = run(inputs)
        if persistence is not None and "thread_id" in config.get("configurable", {}):
            if persistence is not self._persistence:
                self._register_persistence(persistence)  # of an outer graph or a server
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

    async def aget_state(self, config: RunnableConfig, **options: Any) -> StateSnapshot:
        """Return the current state of a thread.

        The arguments are those of LangGraph's ``aget_state``.

        Raises:
            ValidationError: The configuration has no thread ID.
        """
        return await super().aget_state(self._with_thread_id(config), **options)

    def aget_state_history(
        self, config: RunnableConfig, **options: Any
    ) -> AsyncIterator[StateSnapshot]:
        """Yield the saved states of a thread, newest first. See :meth:`aget_state`."""
        return super().aget_state_history(self._with_thread_id(config), **options)

    def _with_thread_id(self, config: RunnableConfig) -> RunnableConfig:
        own: Any = self.config or {}
        config = config or {}
        named = {**(own.get("configurable") or {}), **(config.get("configurable") or {})}
        found: RunnableConfig = {**config, "configurable": named}
        if find_saver(self, found) is not None:
            require_thread_id(found)
        return found

    async def abulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Update the state of a thread manually between runs.

        LangGraph calls this method to implement ``update_state``.

        Raises:
            InfrastructureError: An update contains an unknown key, or a key that only the graph may
                write.
            ThreadBusyError: Another run holds the thread's lease.
            ValidationError: The configuration has no thread ID, or a value is invalid.
        """
        config = self._with_thread_id(config)
        merged = merged_config(self, config)
        persistence = self._persistence_of(merged)
        if not config["configurable"].get("checkpoint_ns"):  # a graph inside has keys of its own
            last = await last_writer(persistence.saver, merged) if persistence is not None else None
            supersteps = [[self._validate_update(one, last) for one in step] for step in supersteps]
        if persistence is None:
            return await super().abulk_update_state(config, supersteps)
        async with hold_lease(persistence, merged):
            return await super().abulk_update_state(config, supersteps)

    def _validate_update(self, update: StateUpdate, last: str | None) -> StateUpdate:
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
    """Convert a compiled LangGraph graph to an :class:`AgentGraph`."""
    return copy_graph_as(AgentGraph, graph, services=services)
