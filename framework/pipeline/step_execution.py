"""State that the stages of one step execution share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from capgraph.base.context import CapabilityContext
from capgraph.base.ports import ApprovalRequest, Attempt, Failure, FlowPolicy, Source, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.base.turn_budget import TurnBudget
from capgraph.configs.context_variables import set_context_variable
from capgraph.configs.run_context import run_context
from capgraph.pipeline.capacity import Slot
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.state.turn_view import TurnView

StepResult = StepRecord | ApprovalRequest | None
"""Result of the outer stages. ``None`` if another run continues the step."""

NextStage = Callable[["StepExecution", Attempt], Awaitable[Any]]
"""Function that runs the stages inside the current one."""

PreStage = Callable[["StepExecution", Attempt], Awaitable[Attempt | StepResult]]
"""Stage without work after the inner stages. It returns a prepared attempt, or the final result."""


STOPPED: Any = object()
"""Result of a step that did not start because another step failed permanently."""


def _never(_has_started: bool = False) -> bool:
    return False


def _unbounded() -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class TurnControl:
    """Functions by which a turn limits, stops, and suspends its steps.

    Attributes:
        seconds_left: Returns the remaining time for the turn's steps in seconds; ``None`` without a
            limit.
        should_stop: Returns True if no further attempt may start because another step failed
            permanently. The argument is True if an attempt of this step has started.
        is_draining: Returns True if the process is shutting down.
        can_wait: True if a step may wait for a time or an event while the turn continues.
    """

    seconds_left: Callable[[], float | None] = _unbounded
    should_stop: Callable[[bool], bool] = _never
    is_draining: Callable[[], bool] = _never
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Options of an entry point for processing results.

    Attributes:
        state_keys: State keys of a custom graph; ``None`` for the keys of ``AgentState``.
        keeps_dictionary: True if a returned dictionary is not split, because no graph is running.
        raw_errors: True if exceptions of the capability are raised unchanged.
        context_classes: Dictionary that collects the classes of returned context objects, or
            ``None``.
    """

    state_keys: frozenset[str] | None = None
    keeps_dictionary: bool = False
    raw_errors: bool = False
    context_classes: dict[str, type[CapabilityContext]] | None = None


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """Data and services that an entry point supplies for an attempt.

    Attributes:
        view: Current state of the turn.
        ledger: Effects, waits, and approvals of the turn.
        plan_keys: Context keys of the plan's steps.
        failures: Number of failed attempts of the step so far.
        control: Functions by which the turn limits, stops, and suspends the step.
        result_options: Options for processing the result.
        notify: Receives progress messages; ``None`` sends them to the stream of the run.
        budget: Counter of the turn's attempts.
        missing_state_keys: State keys that were not transferred to this worker.
        labels: Labels of the data that the caller has read, with their sources.
        work: Work of the caller that the capability's body runs.
        extra_arguments: Arguments that the caller of a node adds to those of ``execute``.
    """

    view: TurnView
    ledger: EffectLedger
    plan_keys: Collection[str] = ()
    failures: int = 0
    control: TurnControl = TurnControl()
    result_options: ResultOptions = ResultOptions()
    notify: Callable[[str, float | None], None] | None = None
    budget: TurnBudget = field(default_factory=TurnBudget)
    missing_state_keys: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    work: Any = None
    extra_arguments: Mapping[str, Any] = field(default_factory=dict)


class StepApproval(NamedTuple):
    """Approval of a step.

    Attributes:
        question: Request that was approved.
        expires_at: Expiry time by the graph's clock; ``None`` if the approval does not expire.
    """

    question: ApprovalRequest
    expires_at: float | None = None


class BodyResult(NamedTuple):
    """Return value of a capability's body.

    Attributes:
        value: Value before normalization.
        source: Source of the value.
    """

    value: Any
    source: Source = "run"


@dataclass(slots=True)
class AttemptState:
    """State of the current attempt.

    Attributes:
        started_at: Event loop time of the start.
        short_circuit_source: Source of a short-circuit result; ``None`` if the capability runs.
        body_result: Return value of the body, also if a later stage failed. Written by ``call``.
        stored_outputs: Outputs that the body passed to ``store``. Written by ``call``.
        timed_out: True if a time limit ended the attempt, so that its progress is unknown. Written
            by ``timeout``.
        effect: Name of the effect's record in the ledger. Written by ``idempotency``.
        is_replayed_effect: True if the result comes from the ledger. Written by ``idempotency``.
        result: Result of the stages inside ``finalize``. Written by ``finalize``.
        contexts: Normalized and validated context data. Written by ``finalize``.
        failure: Last exception with its classification. Written by ``finalize``.
    """

    started_at: float
    short_circuit_source: Source | None = None
    body_result: BodyResult | None = None
    stored_outputs: list[Any] = field(default_factory=list)
    timed_out: bool = False
    effect: str | None = None
    is_replayed_effect: bool = False
    result: Any = None
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failure: tuple[BaseException, Failure] | None = None

    @property
    def source(self) -> Source:
        """Source of the result."""
        if self.short_circuit_source is not None or self.is_replayed_effect:
            return self.short_circuit_source or "ledger"
        return self.body_result.source if self.body_result is not None else "run"


@dataclass(slots=True)
class StepExecution:
    """State of one run through the stages.

    Attributes:
        spec: Declaration of the capability.
        config: Configuration of the runner.
        context: Data and services from the entry point.
        outer: Execution whose body requested this one; ``None`` at the top level.
        key: Context key of the step.
        has_budget: True if a budget applies to the step and to its nested executions.
        flow: Policy for data labels, inherited from the outer execution if the graph has none.
        labels: Labels of inputs and of results of nested executions, with their sources. Written by
            :func:`propagate_labels`.
        nested_effects: Effects of nested executions in the form of the state. Written by the
            runner.
        approval: Approval of the step; ``None`` if none was required. Written by ``authorize``.
        has_started: True if an attempt has started. Written by :meth:`mark_started`.
        slot: Concurrency slot of the step or of the outer one. Written by ``acquire``.
        announced_attempt: Number of the last attempt with an event. Written by ``finalize``.
        effect_done: True if the effect happened. Written by :meth:`mark_effect_done`.
        nested_effect_done: True if a nested execution had an effect. Written by
            :meth:`record_effect`, and by ``remote_dispatch`` for a remote step.
        request_counts: Number of requests of the body for each capability, by LangGraph task.
            Written by :func:`count_nested_request`.
        attempt_state: State of the current attempt. Written by :meth:`begin_attempt`.
    """

    spec: CapabilitySpec
    config: RunnerConfig
    context: AttemptContext
    outer: StepExecution | None = None
    key: str = ""
    has_budget: bool = False
    flow: FlowPolicy | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    nested_effects: dict[str, Any] = field(default_factory=dict)
    approval: StepApproval | None = None
    has_started: bool = False
    slot: Slot | None = None
    announced_attempt: int = 0
    effect_done: bool = False
    nested_effect_done: bool = False
    request_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    attempt_state: AttemptState = field(default_factory=lambda: AttemptState(_loop_time()))

    @property
    def view(self) -> TurnView:
        """Current state of the turn."""
        return self.context.view

    def elapsed_seconds(self) -> float:
        """Return the duration of the current attempt in seconds."""
        return _loop_time() - self.attempt_state.started_at

    def begin_attempt(
        self, short_circuit_source: Source | None = None, effect: str | None = None
    ) -> None:
        """Reset the attempt state for another attempt."""
        self.attempt_state = AttemptState(_loop_time(), short_circuit_source, effect=effect)

    def mark_started(self) -> None:
        """Record that an attempt has started, on this worker or another one."""
        self.has_started = True

    def mark_effect_done(self) -> None:
        """Record that the effect happened, so that no later failure repeats it."""
        self.effect_done = True

    def should_stop(self) -> bool:
        """Return whether no further attempt may start."""
        return self.context.control.should_stop(self.has_started)

    async def record_effect(self) -> None:
        """Record an effect of this step in this execution and in all outer ones."""
        self.mark_effect_done()
        durable, outer = self.context.ledger.is_durable, self.outer
        while outer is not None:
            # A retry of the outer step finds these records. Another plan would repeat the effect.
            if not outer.nested_effect_done:
                await outer.context.ledger.record_nested_effect(outer.key)
            outer.nested_effect_done = True
            outer.effect_done, outer = outer.effect_done or not durable, outer.outer

    async def has_nested_effect(self) -> bool:
        """Return whether a nested execution had an effect, in this process or an earlier one."""
        self.nested_effect_done = (
            self.nested_effect_done or await self.context.ledger.has_nested_effect(self.key)
        )
        return self.nested_effect_done


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class _ExecutionPosition(NamedTuple):
    """Running execution, and whether its body or a middleware runs."""

    execution: StepExecution
    in_body: bool


_position: ContextVar[_ExecutionPosition | None] = ContextVar("capgraph_step", default=None)


LABELS_KEY = "capgraph_labels"
"""Key of data labels in message metadata and saved task results."""


class LabelScope(NamedTuple):
    """Data labels that a team member or a workflow node has read.

    Attributes:
        inherited: Labels of data that was read before, with their sources.
        collected: Labels of data that was read inside the scope.
        make_flow: Creates a flow policy if the graph has none.
    """

    inherited: Mapping[str, str]
    collected: dict[str, str]
    make_flow: Callable[[], FlowPolicy]

    @property
    def labels(self) -> dict[str, str]:
        """All labels that apply in the scope."""
        return {**self.inherited, **self.collected}


def current_label_scope() -> LabelScope | None:
    """Return the label scope of the running team member or workflow node."""
    hearing: LabelScope | None = run_context().labels
    return hearing


def propagate_labels(labels: Mapping[str, str]) -> None:
    """Add the labels of data that was read here to the enclosing execution and label scope."""
    outer, scope = enclosing_execution(), current_label_scope()
    if outer is not None:
        outer.labels = {**labels, **outer.labels}
    if scope is not None:
        scope.collected.update(labels)


def current_execution() -> StepExecution | None:
    """Return the running step execution; ``None`` outside a step."""
    step = _position.get()
    return step.execution if step is not None else None


def requested_work() -> Any:
    """Return the work that the caller passed to the running step's body."""
    execution = current_execution()
    return execution.context.work if execution is not None else None


def count_nested_request(outer: StepExecution, task_namespace: str, name: str) -> int:
    """Count a request of a step's body for a capability, and return the new count.

    Args:
        outer: Execution whose body makes the request.
        task_namespace: LangGraph task that makes the request. A graph inside the body has its own
            tasks.
        name: Name of the capability.
    """
    outer.request_counts[task_namespace, name] += 1
    return outer.request_counts[task_namespace, name]


def enclosing_execution() -> StepExecution | None:
    """Return the execution whose body is running; it is the outer one of a nested execution."""
    step = _position.get()
    if step is None:
        return None
    return step.execution if step.in_body else step.execution.outer


def execution_scope(execution: StepExecution) -> AbstractContextManager[None]:
    """Return a context manager that makes an execution the current one for a middleware."""
    return set_context_variable(_position, _ExecutionPosition(execution, in_body=False))


def body_scope(execution: StepExecution | None) -> AbstractContextManager[None]:
    """Return a context manager that marks a body as running; ``None`` for code outside of steps."""
    return set_context_variable(
        _position, _ExecutionPosition(execution, in_body=True) if execution is not None else None
    )


def claimed_effects(results: Mapping[str, Mapping[str, Any]], keys: Collection[str]) -> set[str]:
    """Return the names of the effects that the plan's finished steps have already claimed."""
    return {
        effect for key in keys if (effect := (results.get(key) or {}).get("effect")) is not None
    }
