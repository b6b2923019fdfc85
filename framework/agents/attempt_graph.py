"""Graph that runs an agent's own graph as one attempt of the step pipeline."""

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
    """State of one agent run.

    Attributes:
        execute: Function that runs the agent's own graph.
        execution_id: ID of the run.
        result: Result of the run, including changes by behaviors.
        error: Exception that the run raised.
        summary: Summary of the conversation.
        values: Final state of the agent's graph.
        labels: Provenance labels of the data returned by the agent's tools, including data from
            before the run was resumed.
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
    name: str,
    behaviors: Sequence[Any],
    services: Services | None,
    *,
    state_schema: Any,
    output_schema: Any,
    to_conversation: Callable[[str, Mapping[str, Any], Any], list[Any]],
) -> Any:
    """Build a single-node graph that runs an agent's graph as one attempt.

    Args:
        agent_graph: Compiled graph of the agent.
        agent_id: ID of the agent, which is passed to hooks.
        name: Name of the agent's capability. A resumed run must use the same name.
        behaviors: Middleware around the run.
        services: Services returned by ``bind``, or None.
        state_schema: State schema of both graphs.
        output_schema: Output schema of both graphs.
        to_conversation: Function that converts the task, the final state, and the answer to the
            messages that later runs see.
    """
    spec = _create_run_capability(agent_id, name, behaviors, services).capability_spec
    run_services = _select_run_services(services, unbound_services(spec))
    # Model tokens are not streamed until a guardrail has checked the answer.
    guarded = any(isinstance(one, TurnGuardrail) for one in behaviors)
    guarded = guarded or (services is not None and services.guard is not None)

    async def run(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        stored_state = state.get("given") or {}
        conversation = state.get("conversation") or []

        async def work() -> AgentResult:
            if stored_state.get("success") is not None:
                return AgentResult.coerce(stored_state)
            inputs = {"conversation": conversation, **stored_state, "task": state["task"]}
            inputs |= {name: state.get(name) for name in ("streamed", "summary")}
            values: dict[str, Any] = {"output": None}
            # The caller of the outer graph reads the steps from the streamed state.
            streams_messages = not guarded and excludes_subgraph_messages()
            modes: Any = ["values", "messages"] if streams_messages else ["values"]
            async with member_scope(services, name):
                stream: Any = agent_graph.astream(inputs, stream_mode=modes)
                async for mode, part in stream:
                    if mode == "values":
                        values |= part
                    elif not isinstance(part[0], HumanMessage):
                        write_message(part[0])
            current.summary = values.get("summary")
            current.values = values
            result = AgentResult.coerce(values)
            tool_labels = collect_labels(
                {"messages": [*conversation, *(values.get("messages") or ())]}
            )
            current.labels = {**result.metadata.get("labels", {}), **tool_labels}
            return result

        current = _AgentRun(work, get_execution_id(runtime) or uuid4().hex)  # the run has no thread
        step: Any = {"task_objective": state["task"]}
        record = await run_standalone_step(spec, step, services=run_services, work=current)
        if record.error is not None:
            info = runtime.execution_info
            if record.attempts > 1 and info is not None:
                # A resumed run starts with all of its attempts.
                ledger = run_services.ledger(run_services.view({}), visit_id=info.task_id)
                await ledger.record_failure(record.key, 0, 0.0, run_services.clock.now())
            raise current.error or CapabilityError(failure_message(record) or "")
        output = record.contexts[_OUTPUT_TYPE][record.key]
        result = current.result or AgentResult(output, metadata={"source": record.source})
        if result.to_plain()["output"] != output:
            result = result.with_output(output)
        answer = result.output if result.success else result.error
        messages = to_conversation(state["task"], current.values, answer)
        if current.labels:
            messages[-1] = attach_labels(messages[-1], current.labels)
            result.metadata = {**result.metadata, "labels": current.labels}
        conversation_update = {"given": None, "conversation": messages, "summary": current.summary}
        return {**result.to_plain(), **conversation_update}

    return single_node_graph("agent", run, state_schema, output_schema=output_schema)


def get_execution_id(runtime: Runtime[Any]) -> str:
    """Return the ID of the current run, derived from the thread ID.

    Inside another graph, the ID also contains the checkpoint namespace.
    """
    config_values = current_configurable()
    namespace = str(config_values.get("checkpoint_ns") or "").rpartition("|")[0]
    return "/".join(part for part in (str(config_values.get("thread_id") or ""), namespace) if part)


def _select_run_services(services: Services | None, unbound: Services) -> Services:
    """Return the services for an agent's run, with only the settings that apply to whole runs.

    The run does not occupy a concurrency slot, because its model calls and tool calls do.
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


def _create_run_capability(
    agent_id: str, run_name: str, middleware: Sequence[Any], services: Services | None
) -> Any:
    """Create the capability that represents a whole run of an agent."""
    hooks = [_AgentHooks(b, agent_id) if _is_plain_hooks(b) else b for b in middleware]
    limits = services.limits if services is not None else None

    class Run(BaseCapability):
        name = run_name
        description = f"Runs the agent {run_name}."
        provides = (_OUTPUT_TYPE,)
        behaviors = (_ErrorRecorder(), *hooks)
        timeout_seconds = (limits.run_timeout_seconds if limits else None) or 86_400.0

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            """Return a retry policy with a single attempt.

            A run calls tools, so only ``RetryBehavior`` repeats it.
            """
            return {"max_attempts": 1}

        async def execute(self) -> Any:
            run, job = _current_run(), current_execution()
            assert job is not None
            spending = current_spending()
            # Model calls use the enclosing step's reservation if there is one, or else the run's.
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
            # A failed result must not be cached.
            return output if run.result.success else BodyResult(output, "fallback")

    return capability_node(Run)


def _is_plain_hooks(behavior: Any) -> bool:
    """Return True if a behavior defines hooks but no middleware stage."""
    if hasattr(behavior, "stage") or hasattr(behavior, "parts"):
        return False
    return any(hasattr(behavior, n) for n in ("before_execute", "after_execute", "on_error"))


class _ErrorRecorder(BaseBehavior):
    """Behavior that records a run's exception, so that the agent's caller receives it."""

    def on_error(self, context: BehaviorContext, error: Exception) -> None:
        _current_run().error = error


class _AgentHooks:
    """Wrapper that calls behavior hooks with the agent's result instead of the step's output."""

    def __init__(self, behavior: Any, agent_id: str) -> None:
        self._behavior, self._agent_id = behavior, agent_id

    def __repr__(self) -> str:
        return repr(self._behavior)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behavior, name)

    async def before_execute(self, context: BehaviorContext) -> Any:
        context.agent_id, context.execution_id = self._agent_id, _current_run().execution_id
        return await self._call_hook("before_execute", context)

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        run = _current_run()
        if run.result is None:  # the result comes from a cache
            run.result = AgentResult(result, metadata={"source": "cache"})
        old = run.result.to_plain()
        replacement = await self._call_hook("after_execute", context, run.result)
        if replacement is not None and replacement is not run.result:
            is_result = isinstance(replacement, AgentResult) or hasattr(replacement, "success")
            run.result = (
                AgentResult.coerce(replacement)
                if is_result
                else run.result.with_output(replacement)
            )
        new = run.result.to_plain()
        return None if new["output"] == old["output"] else {_OUTPUT_TYPE: new["output"]}

    async def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        fallback = await self._call_hook("on_error", context, error)
        if fallback is None:
            return None
        run = _current_run()
        run.result = AgentResult.coerce(fallback)
        run.result.metadata = {**run.result.metadata, "source": "fallback"}
        return {_OUTPUT_TYPE: run.result.to_plain()["output"]}

    async def _call_hook(self, name: str, *arguments: Any) -> Any:
        method = getattr(self._behavior, name, None)
        return None if method is None else await maybe_await(method(*arguments))
