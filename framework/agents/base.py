"""Base class of agents: the graph that runs a task, and the methods that run that graph."""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from threading import Lock
from typing import Annotated, Any, NotRequired
from uuid import uuid4
from weakref import WeakValueDictionary

from langchain_core.messages import AnyMessage, BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Interrupt

from capgraph.agents.attempt_graph import build_attempt_graph
from capgraph.agents.overrides import OverrideCall, is_running_override, run_through_graph
from capgraph.agents.result import FINAL_ANSWER, AgentResult, AgentStep, to_conversation
from capgraph.agents.snapshots import find_state_after_step, restore_state, snapshot_state
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import KeyValueStore
from capgraph.base.task_schemas import TaskInput, TaskOutput
from capgraph.configs.run_context import override_run_context
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import SyncGraph, compile_graph, single_node_graph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import INTERRUPT, Checkpointer
from capgraph.pipeline.run_config import current_runtime
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.stores.checkpoints import CheckpointManager

AgentGraph = SyncGraph[Any]
STEP_KEY = "agent_step"


class RunOutput(TaskOutput):
    """Output of an agent's graph."""

    steps: NotRequired[list[dict[str, Any]]]
    metadata: NotRequired[dict[str, Any]]


class RunState(TaskInput, RunOutput):
    """State of an agent's graph.

    The ``conversation`` is kept across all runs of a thread.
    """

    conversation: NotRequired[Annotated[list[AnyMessage], operator.add]]
    summary: NotRequired[dict[str, Any] | None]
    going_on: NotRequired[bool]
    streamed: NotRequired[bool]
    given: NotRequired[dict[str, Any] | None]


RUN_DEFAULTS: dict[str, Any] = {
    "steps": [],
    "metadata": {},
    "output": None,
    "success": None,
    "error": None,
}
"""State values that reset the output of an earlier run on the same thread."""


_default_ids: WeakValueDictionary[str, BaseAgent] = WeakValueDictionary()
_default_ids_lock = Lock()


def _claim_default_id(agent: BaseAgent) -> str:
    """Reserve a default ID for an agent, with a numeric suffix if the ID is already in use.

    IDs are unique within the process.
    """
    name = type(agent).agent_id
    with _default_ids_lock:
        candidates = (name if number == 1 else f"{name}#{number}" for number in count(1))
        agent_id = next(one for one in candidates if one not in _default_ids)
        _default_ids[agent_id] = agent
    return agent_id


class BaseAgent:
    """Agent that works on a task and compiles to a LangGraph graph.

    ``execute``, ``stream_execute`` and ``resume_from`` run the graph that :meth:`compile` returns,
    so behaviors and services apply to each of them. A custom agent overrides ``execute`` and
    ``stream_execute``; calls of these methods run the graph as well.

    A nested call of ``self.execute(subtask)`` is a separate run, so the behaviors apply to it
    again. ``super().execute(…)`` is part of the same run, as is ``self.stream_execute(task)`` in
    ``execute`` (or the reverse) with the same task.

    Args:
        model: A LangChain chat model.
        tools: LangChain tools, functions or capabilities.
        tool_registry: Alternative name of ``tools``.
        behaviors: Middleware around each run: objects with hooks, or behaviors of
            ``capgraph.behaviors``.
        services: Services returned by ``bind``. Each tool call then runs as a step under their
            permissions, guardrails, limits, effect records and audit, and model calls count toward
            budgets.
        checkpoint_manager: A ``CheckpointManager`` or a LangGraph checkpointer, required by
            ``resume_from``.
        state_store: Store for the steps of each run, under
            ``agent:<agent_id>:<execution_id>:steps``.
        agent_id: ID of the agent. Defaults to the class name. If other agents with this default
            exist in the process, a number follows, such as ``ReActAgent#2``.

    Raises:
        ConfigurationError: The class does not override ``execute``, both ``tools`` and
            ``tool_registry`` are passed, or an item is not a tool.

    >>> import asyncio
    >>> class Echo(BaseAgent):
    ...     async def execute(self, task, context=None):
    ...         return AgentResult(task.upper())
    ...     async def stream_execute(self, task, context=None):
    ...         yield AgentStep("", "echo", observation=task.upper())
    >>> asyncio.run(Echo().execute("hello")).output
    'HELLO'
    """

    model: Any = None
    tools: Sequence[Any] = ()
    behaviors: Sequence[Any] = ()
    services: Services | None = None
    checkpoint_manager: Any = None
    state_store: Any = None
    response_format: Any = None
    agent_id: str = ""
    graph_name: str = ""
    """Name of the graph, and of the agent in a team. A default name has no number."""
    _compiled: AgentGraph | None = None

    @validate_arguments
    def __init__(
        self,
        model: Any = None,
        *,
        tools: Iterable[Any] | None = None,
        tool_registry: Iterable[Any] | None = None,
        behaviors: Iterable[Any] | None = None,
        services: Services | None = None,
        checkpoint_manager: CheckpointManager | BaseCheckpointSaver[Any] | None = None,
        state_store: KeyValueStore | None = None,
        agent_id: str | None = None,
    ) -> None:
        self._require_work()
        if tools is not None and tool_registry is not None:
            raise ConfigurationError(
                f"{type(self).__name__} has both tools and tool_registry: both have the same meaning.",
                fix="Pass one of them.",
            )
        self.model = model
        self.tools = list(tools if tools is not None else tool_registry or ())
        self.behaviors = [b() if isinstance(b, type) else b for b in behaviors or ()]
        self.services = services
        self.checkpoint_manager = checkpoint_manager
        self.state_store = state_store
        self.graph_name = agent_id or type(self).agent_id
        self.agent_id = agent_id or _claim_default_id(self)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.agent_id or "agent_id" not in vars(cls):
            cls.agent_id = cls.__name__
        cls.graph_name = cls.agent_id
        # An overridden method runs inside the graph, so that behaviors apply to calls of it.
        for name, entry_point in (
            ("execute", BaseAgent._execute_graph),
            ("stream_execute", BaseAgent._stream_graph),
        ):
            if name in vars(cls):
                setattr(cls, name, run_through_graph(entry_point, vars(cls)[name]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.agent_id}>"

    @property
    def reads_context(self) -> bool:
        """True if a subclass overrides ``execute``, which may read the ``context`` argument."""
        return hasattr(type(self).execute, "override")

    # --- Graph ----------------------------------------------------------------------------

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> AgentGraph:
        """Compile the agent to a LangGraph graph.

        The graph has the input ``task`` and the outputs ``output``, ``success``, and ``error``.

        Args:
            checkpointer: Checkpointer of the graph. A subgraph uses the checkpointer of its parent
                graph.
            **options: Additional arguments of LangGraph's ``compile``, such as ``store``.
        """
        graph = self._build_work_graph()
        if self.behaviors or self.services is not None:
            agent_graph = compile_graph(graph, name=self.graph_name, store=options.get("store"))
            graph = build_attempt_graph(
                agent_graph,
                self.agent_id,
                self.graph_name,
                self.behaviors,
                self.services,
                state_schema=RunState,
                output_schema=RunOutput,
                to_conversation=self._to_conversation,
            )
        return compile_graph(graph, checkpointer=checkpointer, name=self.graph_name, **options)

    def _build_work_graph(self) -> StateGraph[Any, Any, Any, Any]:
        """Build the agent's graph without behaviors.

        The graph calls the overridden ``execute`` method if a subclass defines one.
        """
        override = getattr(type(self).execute, "override", None)
        return (
            self._build() if override is None else self._build_override_graph("execute", override)
        )

    def _require_work(self) -> None:
        """Raise a ConfigurationError if the agent's class does not define what a run does."""
        kind = type(self)
        names = ("_build", "compile", "execute")
        if all(getattr(kind, name) is getattr(BaseAgent, name) for name in names):
            raise ConfigurationError(
                f"{kind.__name__} cannot run: it does not override 'execute'.",
                fix="Add 'async def execute(self, task, context=None)' and 'stream_execute'.",
            )

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        """Build the agent's graph if ``execute`` is not overridden."""
        self._require_work()
        raise NotImplementedError

    def _build_override_graph(
        self, method: str, override: Callable[..., Any]
    ) -> StateGraph[Any, Any, Any, Any]:
        """Build a graph that calls an overridden method of the agent.

        A streaming run calls an overridden ``stream_execute`` if the agent has one.
        """

        async def work(state: RunState, runtime: Runtime[Any]) -> dict[str, Any]:
            task = state["task"]
            stream = getattr(type(self).stream_execute, "override", None)
            if state.get("streamed") and stream is not None:
                with override_run_context(
                    running_method=OverrideCall(self, "stream_execute", task)
                ):
                    result = await self._collect_stream(stream(self, task, runtime.context))
            else:
                with override_run_context(running_method=OverrideCall(self, method, task)):
                    result = AgentResult.coerce(await override(self, task, runtime.context))
            return result.to_plain()

        return single_node_graph("work", work, RunState, output_schema=RunOutput)

    async def _collect_stream(self, stream: AsyncIterator[AgentStep]) -> AgentResult:
        """Run an overridden ``stream_execute`` and combine its steps into an agent result."""
        write = get_stream_writer()
        steps: list[AgentStep] = []
        async for item in stream:
            steps.append(item)
            write({STEP_KEY: item.to_plain()})
        last = steps[-1] if steps else AgentStep("", FINAL_ANSWER)
        return AgentResult(last.observation or last.thought, steps)

    def _to_conversation(
        self, task: str, values: Mapping[str, Any], answer: Any
    ) -> list[BaseMessage]:
        """Return the messages of this run that later runs of the thread see."""
        return to_conversation(task, answer)

    def _read_steps(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the steps recorded so far in the state of the agent's graph."""
        return list(values.get("steps") or ())

    # --- Entry points ---------------------------------------------------------------------

    @validate_arguments
    async def execute(self, task: str, context: Any = None) -> AgentResult:
        """Run a task.

        Args:
            task: Text of the task.
            context: Value of ``Runtime.context`` for the agent's tools.

        Returns:
            The result. ``metadata["execution_id"]`` identifies the run. If the run waits for human
            input, ``success`` is False and ``metadata["interrupts"]`` contains the questions.
        """
        unwrapped = is_running_override(self)
        graph_input = {"task": task, "streamed": False}
        return await self._await_result(
            self._run_graph(graph_input, uuid4().hex, context, unwrapped=unwrapped)
        )

    @validate_arguments
    async def _execute_graph(self, task: str, context: Any = None) -> AgentResult:
        """Run the agent's complete graph, even during an overridden method of the agent."""
        graph_input = {"task": task, "streamed": False}
        return await self._await_result(self._run_graph(graph_input, uuid4().hex, context))

    @validate_arguments
    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        """Run a task and yield each step as soon as it finishes.

        The arguments are the same as for :meth:`execute`. The last step has the output, or the
        reason why there is no output, in ``observation``.
        """
        async with aclosing(
            self._stream_graph(task, context, unwrapped=is_running_override(self))
        ) as steps:
            async for step in steps:
                yield step

    @validate_arguments
    async def _stream_graph(
        self, task: str, context: Any = None, *, unwrapped: bool = False
    ) -> AsyncGenerator[AgentStep]:
        yielded = 0
        graph_input = {"task": task, "streamed": True}
        run = self._run_graph(graph_input, uuid4().hex, context, streamed=True, unwrapped=unwrapped)
        # Closing the stream cancels the run.
        async with aclosing(run):
            async for item in run:
                if isinstance(item, AgentStep):
                    yielded += 1
                    yield item
                    continue
                for step in (*item.steps[yielded:], *_build_closing_steps(item)):
                    yield step

    @validate_arguments
    async def resume_from(
        self,
        execution_id: str,
        from_step: int | None = None,
        *,
        answer: Any = None,
        context: Any = None,
    ) -> AgentResult:
        """Resume a run that was interrupted or is waiting for human input.

        Finished steps do not run again. For a completed run, only the agent's behaviors run again.

        Args:
            execution_id: ``metadata["execution_id"]`` of the run.
            from_step: Zero-based index of the step to continue after. Defaults to the last step.
            answer: Answer to the question for which the run is waiting.
            context: Value of ``Runtime.context`` for the agent's tools.

        Raises:
            ValueError: The run is not stored, or ``from_step`` does not exist.
        """
        if self.checkpoint_manager is None:
            raise ValueError(
                f"Cannot resume a run of {self!r}: runs are not stored without a "
                "checkpoint_manager. Fix: pass checkpoint_manager=CheckpointManager(…)."
            )
        thread: Any = {"configurable": {"thread_id": execution_id}}
        graph = self._get_graph()
        if graph.checkpointer is None:
            values = await restore_state(
                self.checkpoint_manager, execution_id, from_step, self._read_steps
            )
            graph_input: Any = {**values, "going_on": True}
            if self._is_wrapped:
                graph_input = {"task": values["task"], "given": graph_input}
            elif values.get("success") is not None:
                return self._build_result(values, execution_id)
            return await self._await_result(self._run_graph(graph_input, execution_id, context))
        state_snapshot = await graph.aget_state(thread)
        if state_snapshot.created_at is None:
            raise ValueError(
                f"The run {execution_id!r} is not stored. Fix: pass metadata['execution_id'] of"
                " a result."
            )
        graph_input = None if answer is None else Command(resume=answer)
        checkpoint_config = None
        if from_step is not None:
            past_snapshot = await find_state_after_step(
                graph, thread, from_step, self._read_steps, is_wrapped=self._is_wrapped
            )
            checkpoint_config, graph_input = past_snapshot.config, None
            if self._is_wrapped:
                graph_input = {
                    "task": state_snapshot.values["task"],
                    "given": {**past_snapshot.values, "going_on": True},
                }
                checkpoint_config = None
        elif not state_snapshot.next:
            if not self._is_wrapped:
                return self._build_result(state_snapshot.values, execution_id)
            graph_input = {
                "task": state_snapshot.values["task"],
                "given": dict(state_snapshot.values),
            }
        return await self._await_result(
            self._run_graph(graph_input, execution_id, context, checkpoint_config=checkpoint_config)
        )

    # --- Running the graph ----------------------------------------------------------------

    @property
    def _is_wrapped(self) -> bool:
        return bool(self.behaviors) or self.services is not None

    def _get_graph(self) -> AgentGraph:
        if self._compiled is None:
            manager = self.checkpoint_manager
            saver = manager if isinstance(manager, BaseCheckpointSaver) else None
            self._compiled = self.compile(getattr(manager, "saver", None) or saver)
        return self._compiled

    async def _run_graph(
        self,
        graph_input: Any,
        execution_id: str,
        context: Any,
        *,
        streamed: bool = False,
        checkpoint_config: Any = None,
        unwrapped: bool = False,
    ) -> AsyncGenerator[AgentStep | AgentResult]:
        """Run the agent's graph and yield each finished step, followed by the result of the run."""
        graph = (
            compile_graph(self._build(), name=self.graph_name) if unwrapped else self._get_graph()
        )
        nested = current_runtime() is not None
        config: Any = checkpoint_config if checkpoint_config is not None else {}
        if not nested and checkpoint_config is None:
            owner = {"agent_id": self.agent_id}  # CheckpointManager lists checkpoints by this key
            config = {"configurable": {"thread_id": execution_id}, "metadata": owner}
        depth = 1 if self._is_wrapped and not unwrapped else 0
        # The first chunk comes from this graph itself. Its namespace is longer inside another
        # graph, and longer again from the second call within one node of that graph.
        base_length: int | None = None
        manager = self.checkpoint_manager if graph.checkpointer is None and not nested else None
        values: Mapping[str, Any] = {}
        yielded = 0
        interrupts: dict[str, Interrupt] = {}
        modes: Any = ["values", "custom"] if streamed else ["values"]
        stream: Any = graph.astream(
            graph_input, config, context=context, stream_mode=modes, subgraphs=bool(depth)
        )
        async with aclosing(stream):
            async for item in stream:
                entry: Any = item if depth else ((), *item)
                namespace, mode, chunk = entry
                base_length = len(namespace) if base_length is None else base_length
                if mode == "custom":
                    if len(namespace) != base_length + depth:
                        continue  # the chunk comes from a nested call
                    if streamed and isinstance(chunk, Mapping) and STEP_KEY in chunk:
                        yielded += 1
                        yield AgentStep(**chunk[STEP_KEY])
                    continue
                if (
                    len(namespace) == base_length
                ):  # several tasks may be interrupted, one after another
                    interrupts |= {item.id: item for item in chunk.get(INTERRUPT, ())}
                    values = {**values, **chunk, INTERRUPT: list(interrupts.values())}
                if len(namespace) != base_length + depth:
                    continue
                if manager is not None:
                    await manager.save(
                        self.agent_id, snapshot_state(chunk), execution_id=execution_id
                    )
                if streamed and chunk.get("success") is None and INTERRUPT not in chunk:
                    for step in self._read_steps(chunk)[yielded:]:
                        yielded += 1
                        yield AgentStep(**step)
        result = self._build_result(values, execution_id)
        if self.state_store is not None:
            key = f"agent:{self.agent_id}:{execution_id}:steps"
            await self.state_store.set(key, result.to_plain()["steps"])
        yield result

    async def _await_result(self, run: AsyncIterator[AgentStep | AgentResult]) -> AgentResult:
        result: Any = None
        async for item in run:
            result = item
        assert isinstance(result, AgentResult)
        return result

    def _build_result(self, values: Mapping[str, Any], execution_id: str) -> AgentResult:
        interrupts = values.get(INTERRUPT)
        if interrupts:
            questions = "; ".join(str(item.value) for item in interrupts)
            result = AgentResult(
                None,
                AgentResult.coerce({"output": None, "steps": self._read_steps(values)}).steps,
                {"interrupts": [item.value for item in interrupts]},
                success=False,
                error=f"The run waits for a person: {questions:.500}."
                " Fix: answer with resume_from(…, answer=…).",
            )
        else:
            result = AgentResult.coerce({"output": None, **values})
        if self.response_format is not None and result.success:
            result.output = self.response_format.model_validate(result.output)
        result.metadata = {**result.metadata, "execution_id": execution_id}
        propagate_labels(result.metadata.get("labels", {}))  # include the labels of a stored run
        return result


def _build_closing_steps(result: AgentResult) -> list[AgentStep]:
    """Return the final step, which reports how a run ended.

    The list is empty if the last step already reports the outcome.
    """
    last_step = result.steps[-1] if result.steps else None
    if result.success:
        text = str(result.output)
        is_reported = last_step is not None and last_step.observation == text
        return [] if is_reported else [AgentStep("", FINAL_ANSWER, {"answer": text}, text)]
    metadata = {**result.metadata, "success": False, "error": result.error}
    action = "Question" if "interrupts" in result.metadata else "Failed"
    return [AgentStep("", action, {}, str(result.error), metadata)]
