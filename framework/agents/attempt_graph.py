"""What stands around an agent's run: the pipeline's own stages, with the run as one attempt."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from capgraph.adapters.request import collect_labels, failure_message
from capgraph.agents.result import AgentResult
from capgraph.agents.tool_calls import attach_labels
from capgraph.base import BaseCapability, capability_node
from capgraph.base.errors import CapabilityError
from capgraph.base.ports import BehaviorContext, TurnGuardrail
from capgraph.behaviors.base import BaseBehavior
from capgraph.engine.bind import unbound_services
from capgraph.engine.capability_node import member_scope, run_standalone_step
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import SyncGraph, single_node_graph
from capgraph.governance.budget_enforcement import current_spending
from capgraph.helpers.async_calls import maybe_await
from capgraph.langgraph_compat import excludes_subgraph_messages, write_message
from capgraph.pipeline.capacity import Capacity
from capgraph.pipeline.run_config import current_configurable
from capgraph.pipeline.runner import StepRunner
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.pipeline.step_execution import (
    BodyResult,
    body_scope,
    current_execution,
    propagate_labels,
    requested_work,
)

_OUTPUT_TYPE = "AGENT_OUTPUT"


@dataclass(slots=True)
class _AgentRun:
    """One run of an agent.

    Attributes:
        execute: Runs the agent's own graph.
        execution_id: Names it.
        result: What came of it, as behaviours left it.
        error: What was raised.
        summary: What is known of the conversation in short.
        values: The state in which its graph ended.
        labels: Labels of what its tools told it, also before this run was gone on with.
    """

    execute: Callable[[], Awaitable[AgentResult]]
    execution_id: str
    result: AgentResult | None = None
    error: Exception | None = None
    summary: dict[str, Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def _current_run() -> _AgentRun:
    run: _AgentRun = requested_work()
    return run


def build_attempt_graph(
    agent_graph: SyncGraph[Any],
    agent_id: str,
    behaviors: Sequence[Any],
    services: Services | None,
    *,
    state_schema: Any,
    output_schema: Any,
    to_conversation: Callable[[str, Mapping[str, Any], Any], list[Any]],
) -> Any:
    """Return a graph with one node that runs an agent's own graph as one attempt.

    Args:
        agent_graph: The agent's own graph.
        agent_id: Names the agent.
        behaviors: What stands around its run.
        services: What ``bind`` decided, if it was given something.
        state_schema: The state of both.
        output_schema: What they leave behind.
        to_conversation: Makes the messages of a run that the next one is shown, of its task, its state and
            its answer.
    """
    spec = _agent_capability(agent_id, behaviors, services).capability_spec
    under = _run_services(services, unbound_services(spec))
    # The words of a model are not shown before a guard has seen the answer.
    guarded = any(isinstance(one, TurnGuardrail) for one in behaviors)
    guarded = guarded or (services is not None and services.guard is not None)

    async def run(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        given = state.get("given") or {}
        before = state.get("conversation") or []

        async def work() -> AgentResult:
            if given.get("success") is not None:
                return AgentResult.coerce(given)
            inputs = {"conversation": before, **given, "task": state["task"]}
            inputs |= {name: state.get(name) for name in ("streamed", "summary")}
            found: dict[str, Any] = {"output": None}
            # The whole state is streamed, for whoever looks at the steps from outside.
            passes_on = not guarded and excludes_subgraph_messages()
            modes: Any = ["values", "messages"] if passes_on else ["values"]
            async with member_scope(services, agent_id):
                stream: Any = agent_graph.astream(inputs, stream_mode=modes)
                async for mode, part in stream:
                    if mode == "values":
                        found |= part
                    elif not isinstance(part[0], HumanMessage):
                        write_message(part[0])
            current.summary = found.get("summary")
            current.values = found
            result = AgentResult.coerce(found)
            heard = collect_labels({"messages": [*before, *(found.get("messages") or ())]})
            current.labels = {**result.metadata.get("labels", {}), **heard}
            return result

        current = _AgentRun(
            work, get_execution_id(runtime) or uuid4().hex
        )  # nothing keeps this run
        step: Any = {"task_objective": state["task"]}
        record = await run_standalone_step(spec, step, services=under, work=current)
        if record.error is not None:
            info = runtime.execution_info
            if record.attempts > 1 and info is not None:
                # Whoever resumes the run has all tries again.
                ledger = under.ledger(under.view({}), visit_id=info.task_id)
                await ledger.record_failure(record.key, 0, 0.0, under.clock.now())
            raise current.error or CapabilityError(failure_message(record) or "")
        gave = record.contexts[_OUTPUT_TYPE][record.key]
        result = current.result or AgentResult(gave, metadata={"source": record.source})
        if result.to_plain()["output"] != gave:
            result = result.with_output(gave)
        answer = result.output if result.success else result.error
        said = to_conversation(state["task"], current.values, answer)
        if current.labels:
            said[-1] = attach_labels(said[-1], current.labels)
            result.metadata = {**result.metadata, "labels": current.labels}
        left = {"given": None, "conversation": said, "summary": current.summary}
        return {**result.to_plain(), **left}

    return single_node_graph("agent", run, state_schema, output_schema=output_schema)


def get_execution_id(runtime: Runtime[Any]) -> str:
    """Return what names a run: its thread, and inside another graph the task as well."""
    known = current_configurable()
    space = str(known.get("checkpoint_ns") or "").rpartition("|")[0]
    return "/".join(part for part in (str(known.get("thread_id") or ""), space) if part)


def _run_services(services: Services | None, unbound: Services) -> Services:
    """Return what the run itself is under: of an operator's decisions all that is about runs.

    It takes no slot, for it only waits for its model and its tools, which have slots of their own.
    """
    settings = (services or unbound).settings
    boundless = settings.limits.model_copy(update={"max_parallel": sys.maxsize})
    equipment = RunnerConfig(
        unbound.registry,
        settings.model_copy(update={"limits": boundless}),
        clock=(services or unbound).clock,
        capacity=Capacity(),
    )
    return replace(
        services or unbound,
        runner=StepRunner(equipment),
        permissions=None,
        flow=None,
        policy_engines=(),
        rebind=None,
    )


def _agent_capability(agent_id: str, middleware: Sequence[Any], services: Services | None) -> Any:
    """Make the capability that stands for an agent's run."""
    hooks = [_AgentHooks(b) if _is_plain_hooks(b) else b for b in middleware]
    limits = services.limits if services is not None else None

    class Run(BaseCapability):
        name = agent_id
        description = f"Runs the agent {agent_id}."
        provides = (_OUTPUT_TYPE,)
        behaviors = (_ErrorRecorder(), *hooks)
        timeout_seconds = (limits.run_timeout_seconds if limits else None) or 86_400.0

        async def execute(self) -> Any:
            run, job = _current_run(), current_execution()
            assert job is not None
            spending = current_spending()
            # Model calls draw on what is held: of the step around the agent, or else for its run.
            holds = (
                nullcontext()
                if spending is None or spending.current_reservations()
                else spending.reserve_for(job.key)
            )
            async with holds:
                with body_scope(job.outer):
                    run.result = await run.execute()
                    propagate_labels(run.labels)
            output = {_OUTPUT_TYPE: run.result.to_plain()["output"]}
            # Nothing that a cache should keep.
            return output if run.result.success else BodyResult(output, "fallback")

    return capability_node(Run)


def _is_plain_hooks(behavior: Any) -> bool:
    """Tell whether something has hooks and no stage; what has neither is refused like a step's."""
    if hasattr(behavior, "stage") or hasattr(behavior, "parts"):
        return False
    return any(hasattr(behavior, n) for n in ("before_execute", "after_execute", "on_error"))


class _ErrorRecorder(BaseBehavior):
    """Remembers what was raised, for whoever called the agent."""

    def on_error(self, context: BehaviorContext, error: Exception) -> None:
        _current_run().error = error


class _AgentHooks:
    """The hooks of a behaviour, which are given the agent's result."""

    def __init__(self, behavior: Any) -> None:
        self._behavior = behavior

    def __repr__(self) -> str:
        return repr(self._behavior)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behavior, name)

    async def before_execute(self, context: BehaviorContext) -> None:
        context.execution_id = _current_run().execution_id
        await self._call_hook("before_execute", context)

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        run = _current_run()
        if run.result is None:  # it was there already
            run.result = AgentResult(result, metadata={"source": "cache"})
        before = run.result.to_plain()
        found = await self._call_hook("after_execute", context, run.result)
        if found is not None and found is not run.result:
            plain = isinstance(found, AgentResult) or hasattr(found, "success")
            run.result = AgentResult.coerce(found) if plain else run.result.with_output(found)
        after = run.result.to_plain()
        return None if after["output"] == before["output"] else {_OUTPUT_TYPE: after["output"]}

    async def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        found = await self._call_hook("on_error", context, error)
        if found is None:
            return None
        run = _current_run()
        run.result = AgentResult.coerce(found)
        run.result.metadata = {**run.result.metadata, "source": "fallback"}
        return {_OUTPUT_TYPE: run.result.to_plain()["output"]}

    async def _call_hook(self, name: str, *arguments: Any) -> Any:
        method = getattr(self._behavior, name, None)
        return None if method is None else await maybe_await(method(*arguments))
