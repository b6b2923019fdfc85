"""What every agent is: a graph that works on a task, and the doors to it."""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NotRequired
from uuid import uuid4

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
    """What an agent's graph leaves behind."""

    steps: NotRequired[list[dict[str, Any]]]
    metadata: NotRequired[dict[str, Any]]


class RunState(TaskInput, RunOutput):
    """The state of an agent's graph; the conversation outlives a run on the same thread."""

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
"""What a run begins with on a thread that had another one."""


class BaseAgent:
    """Something that works on a task, as a graph.

    ``execute``, ``stream_execute`` and ``resume_from`` run the graph that :meth:`compile` gives, so
    what stands around an agent holds for each of them. A subclass of one's own writes ``execute``
    and ``stream_execute``, and nothing else: both then pass the same door. A nested call,
    ``self.execute(subtask)``, is a run of its own and passes the behaviors again. Two calls are the
    work of the running method itself: ``super().execute(…)``, and ``self.stream_execute(task)``
    from ``execute`` (or the reverse) with the same task.

    Args:
        model: A chat model.
        tools: LangChain tools.
        tool_registry: The same, under the name that other systems have for it.
        behaviors: What stands around a run: objects with hooks, and shipped behaviours.
        services: What ``bind`` decided: then every call of a tool is a step of its own, under
            permissions, guards, limits, ledger and audit, and model calls are counted.
        checkpoint_manager: A ``CheckpointManager`` or a LangGraph saver, for ``resume_from``.
        state_store: Where the steps of each run are written, under
            ``agent:<agent_id>:<execution_id>:steps``.
        agent_id: Its name; that of the class when not given.

    Raises:
        ConfigurationError: Tools are given twice, or something is no tool.

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
        if tools is not None and tool_registry is not None:
            raise ConfigurationError(
                f"{type(self).__name__} got tools and tool_registry.", fix="Give one of them."
            )
        self.model = model
        self.tools = list(tools if tools is not None else tool_registry or ())
        self.behaviors = [b() if isinstance(b, type) else b for b in behaviors or ()]
        self.services = services
        self.checkpoint_manager = checkpoint_manager
        self.state_store = state_store
        if agent_id:
            self.agent_id = agent_id

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.agent_id or "agent_id" not in vars(cls):
            cls.agent_id = cls.__name__
        # What a subclass writes itself is the work; whoever calls it comes in by the door.
        for name, door in (
            ("execute", BaseAgent._execute_graph),
            ("stream_execute", BaseAgent._stream_graph),
        ):
            if name in vars(cls):
                setattr(cls, name, run_through_graph(door, vars(cls)[name]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.agent_id}>"

    @property
    def reads_context(self) -> bool:
        """True if a subclass wrote the work, which reads ``context``; a model reads only the task."""
        return hasattr(type(self).execute, "own")

    # --- the graph ------------------------------------------------------------------------

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> AgentGraph:
        """Return the agent as a graph that takes ``task`` and leaves ``output``, ``success``, ``error``.

        Args:
            checkpointer: Where runs are kept; inside another graph that one's is used.
            **options: What LangGraph's ``compile`` takes besides, such as ``store``.
        """
        graph = self._build_work_graph()
        if self.behaviors or self.services is not None:
            inner = compile_graph(graph, name=self.agent_id, store=options.get("store"))
            graph = build_attempt_graph(
                inner,
                self.agent_id,
                self.behaviors,
                self.services,
                state_schema=RunState,
                output_schema=RunOutput,
                to_conversation=self._to_conversation,
            )
        return compile_graph(graph, checkpointer=checkpointer, name=self.agent_id, **options)

    def _build_work_graph(self) -> StateGraph[Any, Any, Any, Any]:
        """Return the graph of the work alone: what a subclass wrote, else what its kind does."""
        own = getattr(type(self).execute, "own", None)
        return self._build() if own is None else self._build_override_graph("execute", own)

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        """Return the graph of this kind of agent."""
        raise ConfigurationError(
            f"{type(self).__name__} does nothing.",
            fix="Write 'async def execute(self, task, context=None)' and 'stream_execute'.",
        )

    def _build_override_graph(
        self, method: str, override: Callable[..., Any]
    ) -> StateGraph[Any, Any, Any, Any]:
        """Return the graph that runs a method of a subclass, or the one that streams."""

        async def work(state: RunState, runtime: Runtime[Any]) -> dict[str, Any]:
            task = state["task"]
            stream = getattr(type(self).stream_execute, "own", None)
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
        """Run what a subclass streams itself, and make a result of it."""
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
        """Return the messages of a run that the next run on the thread is shown."""
        return to_conversation(task, answer)

    def _read_steps(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the steps so far, by a state of the agent's own graph."""
        return list(values.get("steps") or ())

    # --- the doors ------------------------------------------------------------------------

    @validate_arguments
    async def execute(self, task: str, context: Any = None) -> AgentResult:
        """Work on a task.

        Args:
            task: What is to be done.
            context: What the tools find as ``Runtime.context``.

        Returns:
            What came of it. ``metadata["execution_id"]`` names the run; one that waits for a
            person is no success, and ``metadata["interrupts"]`` has what is asked.
        """
        inside = is_running_override(self)
        given = {"task": task, "streamed": False}
        return await self._await_result(
            self._run_graph(given, uuid4().hex, context, unwrapped=inside)
        )

    @validate_arguments
    async def _execute_graph(self, task: str, context: Any = None) -> AgentResult:
        """Run the whole graph, also from inside a method that a subclass wrote."""
        given = {"task": task, "streamed": False}
        return await self._await_result(self._run_graph(given, uuid4().hex, context))

    @validate_arguments
    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        """Work on a task, and yield each step when it is done; takes what :meth:`execute` takes.

        The last step tells the output in ``observation``, or why there is none.
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
        told = 0
        given = {"task": task, "streamed": True}
        run = self._run_graph(given, uuid4().hex, context, streamed=True, unwrapped=unwrapped)
        # Whoever stops reading ends the run.
        async with aclosing(run):
            async for item in run:
                if isinstance(item, AgentStep):
                    told += 1
                    yield item
                    continue
                for step in (*item.steps[told:], *_closing_steps(item)):
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
        """Go on with a run that was cut short, or waits for a person.

        What is done is not done again. One that has ended passes what stands around the agent again.

        Args:
            execution_id: ``metadata["execution_id"]`` of the run.
            from_step: Go on behind this step, counted from 0; behind the last one when not given.
            answer: What the person says.
            context: As for :meth:`execute`.

        Raises:
            ValueError: Nothing is kept of the run, or not as far as that.
        """
        if self.checkpoint_manager is None:
            raise ValueError(
                f"{self!r} keeps no runs. Fix: give it checkpoint_manager=CheckpointManager(…)."
            )
        thread: Any = {"configurable": {"thread_id": execution_id}}
        graph = self._get_graph()
        if graph.checkpointer is None:
            values = await restore_state(
                self.checkpoint_manager, execution_id, from_step, self._read_steps
            )
            given: Any = {**values, "going_on": True}
            if self._is_wrapped:
                given = {"task": values["task"], "given": given}
            elif values.get("success") is not None:
                return self._build_result(values, execution_id)
            return await self._await_result(self._run_graph(given, execution_id, context))
        found = await graph.aget_state(thread)
        if found.created_at is None:
            raise ValueError(
                f"Nothing is kept of a run {execution_id!r}. Fix: give metadata['execution_id'] of"
                " a result."
            )
        given = None if answer is None else Command(resume=answer)
        at = None
        if from_step is not None:
            past = await find_state_after_step(
                graph, thread, from_step, self._read_steps, is_wrapped=self._is_wrapped
            )
            at, given = past.config, None
            if self._is_wrapped:
                given = {"task": found.values["task"], "given": {**past.values, "going_on": True}}
                at = None
        elif not found.next:
            if not self._is_wrapped:
                return self._build_result(found.values, execution_id)
            given = {"task": found.values["task"], "given": dict(found.values)}
        return await self._await_result(
            self._run_graph(given, execution_id, context, checkpoint_config=at)
        )

    # --- running --------------------------------------------------------------------------

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
        """Run the graph: yields the steps that are done, and at the end what came of it."""
        graph = compile_graph(self._build(), name=self.agent_id) if unwrapped else self._get_graph()
        nested = current_runtime() is not None
        config: Any = checkpoint_config if checkpoint_config is not None else {}
        if not nested and checkpoint_config is None:
            owner = {"agent_id": self.agent_id}  # by which a saver's checkpoints are found
            config = {"configurable": {"thread_id": execution_id}, "metadata": owner}
        depth = 1 if self._is_wrapped and not unwrapped else 0
        # The graph itself streams first. Its namespace is longer inside another graph, and longer
        # again from the second call in one node of that graph on.
        below: int | None = None
        keeps = self.checkpoint_manager if graph.checkpointer is None and not nested else None
        values: Mapping[str, Any] = {}
        told = 0
        asked: dict[str, Interrupt] = {}
        modes: Any = ["values", "custom"] if streamed else ["values"]
        stream: Any = graph.astream(
            graph_input, config, context=context, stream_mode=modes, subgraphs=bool(depth)
        )
        async with aclosing(stream):
            async for item in stream:
                found: Any = item if depth else ((), *item)
                namespace, mode, chunk = found
                below = len(namespace) if below is None else below
                if mode == "custom":
                    if len(namespace) != below + depth:
                        continue  # of a nested call
                    if streamed and isinstance(chunk, Mapping) and STEP_KEY in chunk:
                        told += 1
                        yield AgentStep(**chunk[STEP_KEY])
                    continue
                if len(namespace) == below:  # several tasks may ask, one after the other
                    asked |= {item.id: item for item in chunk.get(INTERRUPT, ())}
                    values = {**values, **chunk, INTERRUPT: list(asked.values())}
                if len(namespace) != below + depth:
                    continue
                if keeps is not None:
                    await keeps.save(
                        self.agent_id, snapshot_state(chunk), execution_id=execution_id
                    )
                if streamed and chunk.get("success") is None and INTERRUPT not in chunk:
                    for step in self._read_steps(chunk)[told:]:
                        told += 1
                        yield AgentStep(**step)
        result = self._build_result(values, execution_id)
        if self.state_store is not None:
            key = f"agent:{self.agent_id}:{execution_id}:steps"
            await self.state_store.set(key, result.to_plain()["steps"])
        yield result

    async def _await_result(self, run: AsyncIterator[AgentStep | AgentResult]) -> AgentResult:
        found: Any = None
        async for item in run:
            found = item
        assert isinstance(found, AgentResult)
        return found

    def _build_result(self, values: Mapping[str, Any], execution_id: str) -> AgentResult:
        asked = values.get(INTERRUPT)
        if asked:
            told = "; ".join(str(item.value) for item in asked)
            result = AgentResult(
                None,
                AgentResult.coerce({"output": None, "steps": self._read_steps(values)}).steps,
                {"interrupts": [item.value for item in asked]},
                success=False,
                error=f"A person is asked: {told:.500}. Fix: answer with resume_from(…, answer=…).",
            )
        else:
            result = AgentResult.coerce({"output": None, **values})
        if self.response_format is not None and result.success:
            result.output = self.response_format.model_validate(result.output)
        result.metadata = {**result.metadata, "execution_id": execution_id}
        propagate_labels(result.metadata.get("labels", {}))  # also of a run that was kept
        return result


def _closing_steps(result: AgentResult) -> list[AgentStep]:
    """Return the step that tells how a run ended, where the last one does not."""
    last = result.steps[-1] if result.steps else None
    if result.success:
        text = str(result.output)
        told = last is not None and last.observation == text
        return [] if told else [AgentStep("", FINAL_ANSWER, {"answer": text}, text)]
    known = {**result.metadata, "success": False, "error": result.error}
    action = "Question" if "interrupts" in result.metadata else "Failed"
    return [AgentStep("", action, {}, str(result.error), known)]
