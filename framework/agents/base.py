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

from capgraph.agents.around import around
from capgraph.agents.kept import behind_step, restored, snapshot
from capgraph.agents.own_methods import OwnCall, runs_own_method, through_the_door
from capgraph.agents.result import FINAL, AgentResult, AgentStep, said_in
from capgraph.base.checked import checked
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import KeyValueStore
from capgraph.base.task import TaskInput, TaskOutput
from capgraph.configs.run_context import using
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import SyncGraph, compiled, one_node
from capgraph.langgraph_compat import INTERRUPT, Checkpointer
from capgraph.pipeline.job import hear
from capgraph.pipeline.run_config import current_runtime
from capgraph.stores.checkpoints import CheckpointManager

AgentGraph = SyncGraph[Any]
STEP = "agent_step"


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


CLEAN: dict[str, Any] = {
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

    @checked
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
        for name, door in (("execute", BaseAgent._enter), ("stream_execute", BaseAgent._stream)):
            if name in vars(cls):
                setattr(cls, name, through_the_door(door, vars(cls)[name]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.agent_id}>"

    @property
    def reads_context(self) -> bool:
        """True if a subclass wrote the work, which reads ``context``; a model reads only the task."""
        return hasattr(type(self).execute, "own")

    # --- the graph ------------------------------------------------------------------------

    @checked
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> AgentGraph:
        """Return the agent as a graph that takes ``task`` and leaves ``output``, ``success``, ``error``.

        Args:
            checkpointer: Where runs are kept; inside another graph that one's is used.
            **options: What LangGraph's ``compile`` takes besides, such as ``store``.
        """
        graph = self._work()
        if self.behaviors or self.services is not None:
            inner = compiled(graph, name=self.agent_id, store=options.get("store"))
            graph = around(
                inner,
                self.agent_id,
                self.behaviors,
                self.services,
                state=RunState,
                output=RunOutput,
                talk=self._talk,
            )
        return compiled(graph, checkpointer=checkpointer, name=self.agent_id, **options)

    def _work(self) -> StateGraph[Any, Any, Any, Any]:
        """Return the graph of the work alone: what a subclass wrote, else what its kind does."""
        own = getattr(type(self).execute, "own", None)
        return self._build() if own is None else self._own_graph("execute", own)

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        """Return the graph of this kind of agent."""
        raise ConfigurationError(
            f"{type(self).__name__} does nothing.",
            fix="Write 'async def execute(self, task, context=None)' and 'stream_execute'.",
        )

    def _own_graph(self, method: str, own: Callable[..., Any]) -> StateGraph[Any, Any, Any, Any]:
        """Return the graph that runs a method of a subclass, or the one that streams."""

        async def work(state: RunState, runtime: Runtime[Any]) -> dict[str, Any]:
            task = state["task"]
            stream = getattr(type(self).stream_execute, "own", None)
            if state.get("streamed") and stream is not None:
                with using(own_method=OwnCall(self, "stream_execute", task)):
                    result = await self._streamed(stream(self, task, runtime.context))
            else:
                with using(own_method=OwnCall(self, method, task)):
                    result = AgentResult.of(await own(self, task, runtime.context))
            return result.to_plain()

        return one_node("work", work, RunState, gives=RunOutput)

    async def _streamed(self, stream: AsyncIterator[AgentStep]) -> AgentResult:
        """Run what a subclass streams itself, and make a result of it."""
        write = get_stream_writer()
        steps: list[AgentStep] = []
        async for item in stream:
            steps.append(item)
            write({STEP: item.to_plain()})
        last = steps[-1] if steps else AgentStep("", FINAL)
        return AgentResult(last.observation or last.thought, steps)

    def _talk(self, task: str, values: Mapping[str, Any], answer: Any) -> list[BaseMessage]:
        """Return the messages of a run that the next run on the thread is shown."""
        return said_in(task, answer)

    def _steps(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the steps so far, by a state of the agent's own graph."""
        return list(values.get("steps") or ())

    # --- the doors ------------------------------------------------------------------------

    @checked
    async def execute(self, task: str, context: Any = None) -> AgentResult:
        """Work on a task.

        Args:
            task: What is to be done.
            context: What the tools find as ``Runtime.context``.

        Returns:
            What came of it. ``metadata["execution_id"]`` names the run; one that waits for a
            person is no success, and ``metadata["interrupts"]`` has what is asked.
        """
        inside = runs_own_method(self)
        given = {"task": task, "streamed": False}
        return await self._result(self._go(given, uuid4().hex, context, inside=inside))

    @checked
    async def _enter(self, task: str, context: Any = None) -> AgentResult:
        """Run the whole graph, also from inside a method that a subclass wrote."""
        given = {"task": task, "streamed": False}
        return await self._result(self._go(given, uuid4().hex, context))

    @checked
    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        """Work on a task, and yield each step when it is done; takes what :meth:`execute` takes.

        The last step tells the output in ``observation``, or why there is none.
        """
        async with aclosing(self._stream(task, context, inside=runs_own_method(self))) as steps:
            async for step in steps:
                yield step

    @checked
    async def _stream(
        self, task: str, context: Any = None, *, inside: bool = False
    ) -> AsyncGenerator[AgentStep]:
        told = 0
        given = {"task": task, "streamed": True}
        run = self._go(given, uuid4().hex, context, streamed=True, inside=inside)
        # Whoever stops reading ends the run.
        async with aclosing(run):
            async for item in run:
                if isinstance(item, AgentStep):
                    told += 1
                    yield item
                    continue
                for step in (*item.steps[told:], *_closing(item)):
                    yield step

    @checked
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
        graph = self._graph()
        if graph.checkpointer is None:
            values = await restored(self.checkpoint_manager, execution_id, from_step, self._steps)
            given: Any = {**values, "going_on": True}
            if self._wrapped:
                given = {"task": values["task"], "given": given}
            elif values.get("success") is not None:
                return self._made(values, execution_id)
            return await self._result(self._go(given, execution_id, context))
        found = await graph.aget_state(thread)
        if found.created_at is None:
            raise ValueError(
                f"Nothing is kept of a run {execution_id!r}. Fix: give metadata['execution_id'] of"
                " a result."
            )
        given = None if answer is None else Command(resume=answer)
        at = None
        if from_step is not None:
            past = await behind_step(graph, thread, from_step, self._steps, nested=self._wrapped)
            at, given = past.config, None
            if self._wrapped:
                given = {"task": found.values["task"], "given": {**past.values, "going_on": True}}
                at = None
        elif not found.next:
            if not self._wrapped:
                return self._made(found.values, execution_id)
            given = {"task": found.values["task"], "given": dict(found.values)}
        return await self._result(self._go(given, execution_id, context, at=at))

    # --- running --------------------------------------------------------------------------

    @property
    def _wrapped(self) -> bool:
        return bool(self.behaviors) or self.services is not None

    def _graph(self) -> AgentGraph:
        if self._compiled is None:
            manager = self.checkpoint_manager
            saver = manager if isinstance(manager, BaseCheckpointSaver) else None
            self._compiled = self.compile(getattr(manager, "saver", None) or saver)
        return self._compiled

    async def _go(
        self,
        given: Any,
        execution_id: str,
        context: Any,
        *,
        streamed: bool = False,
        at: Any = None,
        inside: bool = False,
    ) -> AsyncGenerator[AgentStep | AgentResult]:
        """Run the graph: yields the steps that are done, and at the end what came of it."""
        graph = compiled(self._build(), name=self.agent_id) if inside else self._graph()
        nested = current_runtime() is not None
        config: Any = at if at is not None else {}
        if not nested and at is None:
            owner = {"agent_id": self.agent_id}  # by which a saver's checkpoints are found
            config = {"configurable": {"thread_id": execution_id}, "metadata": owner}
        depth = 1 if self._wrapped and not inside else 0
        # The graph itself streams first. Its namespace is longer inside another graph, and longer
        # again from the second call in one node of that graph on.
        below: int | None = None
        keeps = self.checkpoint_manager if graph.checkpointer is None and not nested else None
        values: Mapping[str, Any] = {}
        told = 0
        asked: dict[str, Interrupt] = {}
        modes: Any = ["values", "custom"] if streamed else ["values"]
        stream: Any = graph.astream(
            given, config, context=context, stream_mode=modes, subgraphs=bool(depth)
        )
        async with aclosing(stream):
            async for item in stream:
                found: Any = item if depth else ((), *item)
                namespace, mode, chunk = found
                below = len(namespace) if below is None else below
                if mode == "custom":
                    if len(namespace) != below + depth:
                        continue  # of a nested call
                    if streamed and isinstance(chunk, Mapping) and STEP in chunk:
                        told += 1
                        yield AgentStep(**chunk[STEP])
                    continue
                if len(namespace) == below:  # several tasks may ask, one after the other
                    asked |= {item.id: item for item in chunk.get(INTERRUPT, ())}
                    values = {**values, **chunk, INTERRUPT: list(asked.values())}
                if len(namespace) != below + depth:
                    continue
                if keeps is not None:
                    await keeps.save(self.agent_id, snapshot(chunk), execution_id=execution_id)
                if streamed and chunk.get("success") is None and INTERRUPT not in chunk:
                    for step in self._steps(chunk)[told:]:
                        told += 1
                        yield AgentStep(**step)
        result = self._made(values, execution_id)
        if self.state_store is not None:
            key = f"agent:{self.agent_id}:{execution_id}:steps"
            await self.state_store.set(key, result.to_plain()["steps"])
        yield result

    async def _result(self, run: AsyncIterator[AgentStep | AgentResult]) -> AgentResult:
        found: Any = None
        async for item in run:
            found = item
        assert isinstance(found, AgentResult)
        return found

    def _made(self, values: Mapping[str, Any], execution_id: str) -> AgentResult:
        asked = values.get(INTERRUPT)
        if asked:
            told = "; ".join(str(item.value) for item in asked)
            result = AgentResult(
                None,
                AgentResult.of({"output": None, "steps": self._steps(values)}).steps,
                {"interrupts": [item.value for item in asked]},
                success=False,
                error=f"A person is asked: {told:.500}. Fix: answer with resume_from(…, answer=…).",
            )
        else:
            result = AgentResult.of({"output": None, **values})
        if self.response_format is not None and result.success:
            result.output = self.response_format.model_validate(result.output)
        result.metadata = {**result.metadata, "execution_id": execution_id}
        hear(result.metadata.get("labels", {}))  # also of a run that was kept
        return result


def _closing(result: AgentResult) -> list[AgentStep]:
    """Return the step that tells how a run ended, where the last one does not."""
    last = result.steps[-1] if result.steps else None
    if result.success:
        text = str(result.output)
        told = last is not None and last.observation == text
        return [] if told else [AgentStep("", FINAL, {"answer": text}, text)]
    known = {**result.metadata, "success": False, "error": result.error}
    action = "Question" if "interrupts" in result.metadata else "Failed"
    return [AgentStep("", action, {}, str(result.error), known)]
