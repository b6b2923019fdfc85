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


def _return_false(_has_started: bool = False) -> bool:
    return False


def _return_none() -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class TurnControl:
    """Callbacks that let a turn limit, stop, and suspend its steps.

    Attributes:
        seconds_left: Function that returns the remaining time for the turn's steps in seconds,
            or ``None`` if there is no limit.
        should_stop: Function that returns True if no further attempt may start because another
            step failed permanently. Its argument is True if an attempt of this step has
            started.
        is_draining: Function that returns True if the process is shutting down.
        can_wait: True if a step may wait for a time or an event while the turn continues.
    """

    seconds_left: Callable[[], float | None] = _return_none
    should_stop: Callable[[bool], bool] = _return_false
    is_draining: Callable[[], bool] = _return_false
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Options that control how an entry point processes step results.

    Attributes:
        state_keys: State keys of a custom graph, or ``None`` for the keys of ``AgentState``.
        keeps_dictionary: True to return a dictionary unchanged, because no graph is running.
        raw_errors: True to raise the capability's exceptions unchanged.
        context_classes: Dictionary to which the classes of returned context objects are added,
            or ``None``.
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
        control: Callbacks with which the turn limits, stops, and suspends the step.
        result_options: Options with which the result is processed.
        notify: Function that receives progress messages. ``None`` sends them to the stream of the run.
        budget: Counters of the turn.
        missing_state_keys: State keys that were not transferred to this worker.
        labels: Labels (provenance tags) of the data that the caller has read, with their sources.
        work: Function of the caller that the capability's ``execute`` runs.
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
    """Valid approval of a step.

    Attributes:
        question: Approval request that was granted.
        expires_at: Expiry time on the graph's clock, or ``None`` if the approval does not
            expire.
    """

    question: ApprovalRequest
    expires_at: float | None = None


class BodyResult(NamedTuple):
    """Raw value that a capability's ``execute`` returned.

    Attributes:
        value: Value before normalization.
        source: Origin of the value, such as ``run`` or ``cache``.
    """

    value: Any
    source: Source = "run"


@dataclass(slots=True)
class AttemptState:
    """State of the current attempt.

    Attributes:
        started_at: Event loop time of the start.
        short_circuit_source: Source of a short-circuit result, or ``None`` if the capability runs.
        body_result: Value that ``execute`` returned, even if a later stage failed. Written by ``call``.
        stored_outputs: Outputs that ``execute`` passed to ``store``. Written by ``call``.
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
        """Origin of the step's result, such as ``run``, ``ledger``, or ``cache``."""
        if self.short_circuit_source is not None or self.is_replayed_effect:
            return self.short_circuit_source or "ledger"
        return self.body_result.source if self.body_result is not None else "run"


@dataclass(slots=True)
class StepExecution:
    """State of a step execution, which all stages share.

    Attributes:
        spec: Declarations of the capability.
        config: Configuration of the runner.
        context: Data and services from the entry point.
        outer: Execution whose ``execute`` started this nested execution, or ``None`` at the top level.
        key: Context key of the step.
        has_budget: True if a budget applies to the step and to its nested executions.
        flow: Policy for data labels, inherited from the outer execution if the graph has none.
        labels: Labels of inputs and of results of nested executions, with their sources. Written by
            :func:`propagate_labels`.
        file_labels: Labels of the files that the step's parameters and inputs name, with their
            sources. Written by :func:`~capgraph.pipeline.labeled_data.receive_files`.
        named_texts: Texts in the step's parameters and inputs that may name a file. Written by the
            same function.
        nested_effects: State entries for the effects of nested executions. Written by the runner.
        approval: Approval of the step, or ``None`` if none was required. Written by ``authorize``.
        has_started: True if an attempt has started. Written by :meth:`mark_started`.
        slot: Concurrency slot of this step or of its outer step. Written by ``acquire``.
        announced_attempt: Number of the last attempt with an event. Written by ``finalize``.
        effect_done: True if the effect happened. Written by :meth:`mark_effect_done`.
        nested_effect_done: True if a nested execution had an effect. Written by
            :meth:`record_effect`, and by ``remote_dispatch`` for a remote step.
        request_counts: Number of nested calls of each capability, by LangGraph task. Written by
            :func:`count_nested_request`.
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
    file_labels: Mapping[str, str] = field(default_factory=dict)
    named_texts: frozenset[str] = frozenset()
    nested_effects: dict[str, Any] = field(default_factory=dict)
    approval: StepApproval | None = None
    has_started: bool = False
    slot: Slot | None = None
    announced_attempt: int = 0
    effect_done: bool = False
    nested_effect_done: bool = False
    request_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    attempt_state: AttemptState = field(default_factory=lambda: AttemptState(_read_loop_time()))

    @property
    def view(self) -> TurnView:
        """Current state of the turn."""
        return self.context.view

    def elapsed_seconds(self) -> float:
        """Return the duration of the current attempt in seconds."""
        return _read_loop_time() - self.attempt_state.started_at

    def begin_attempt(
        self, short_circuit_source: Source | None = None, effect: str | None = None
    ) -> None:
        """Reset the attempt state before a new attempt."""
        self.attempt_state = AttemptState(_read_loop_time(), short_circuit_source, effect=effect)

    def mark_started(self) -> None:
        """Record that an attempt of this step has started, locally or on a remote worker."""
        self.has_started = True

    def mark_effect_done(self) -> None:
        """Record that the step's effect happened, so that a later failure does not repeat it."""
        self.effect_done = True

    def should_stop(self) -> bool:
        """Return True if the step must not start another attempt."""
        return self.context.control.should_stop(self.has_started)

    async def record_effect(self) -> None:
        """Record that an effect happened in this execution and in all of its outer executions."""
        self.mark_effect_done()
        durable, outer = self.context.ledger.is_durable, self.outer
        while outer is not None:
            # A retry of the outer step finds these records. Another plan would repeat the effect.
            if not outer.nested_effect_done:
                await outer.context.ledger.record_nested_effect(outer.key)
            outer.nested_effect_done = True
            outer.effect_done, outer = outer.effect_done or not durable, outer.outer

    async def has_nested_effect(self) -> bool:
        """Return True if a nested execution had an effect, in this process or an earlier one."""
        self.nested_effect_done = (
            self.nested_effect_done or await self.context.ledger.has_nested_effect(self.key)
        )
        return self.nested_effect_done


def _read_loop_time() -> float:
    return asyncio.get_running_loop().time()


class _ExecutionPosition(NamedTuple):
    """Running step execution, and whether its ``execute`` or its middleware is running."""

    execution: StepExecution
    in_body: bool


_position: ContextVar[_ExecutionPosition | None] = ContextVar("capgraph_step", default=None)


LABELS_KEY = "capgraph_labels"
"""Key of data labels in message metadata and saved task results."""


class LabelScope(NamedTuple):
    """Labels (provenance tags) of the data that a team member or a workflow node has read.

    Attributes:
        inherited: Labels of data that was read before the scope, with their sources.
        collected: Labels of data that was read inside the scope, with their sources.
        make_flow: Factory of a flow policy for a graph without one.
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
    """Add the labels of newly read data to the running execution and its label scope."""
    outer, scope = enclosing_execution(), current_label_scope()
    if outer is not None:
        outer.labels = {**labels, **outer.labels}
    if scope is not None:
        scope.collected.update(labels)


def current_execution() -> StepExecution | None:
    """Return the running step execution, or ``None`` outside a step."""
    step = _position.get()
    return step.execution if step is not None else None


def requested_work() -> Any:
    """Return the caller's function that the running step's ``execute`` must run.

    The result is ``None`` outside a step or if the caller passed no function.
    """
    execution = current_execution()
    return execution.context.work if execution is not None else None


def count_nested_request(outer: StepExecution, task_namespace: str, name: str) -> int:
    """Count a nested call to a capability, and return the updated count.

    Args:
        outer: Execution whose ``execute`` makes the call.
        task_namespace: LangGraph task that makes the call. A graph inside ``execute`` has its
            own tasks.
        name: Name of the capability.
    """
    outer.request_counts[task_namespace, name] += 1
    return outer.request_counts[task_namespace, name]


def enclosing_execution() -> StepExecution | None:
    """Return the execution whose ``execute`` is running, or ``None`` outside a step.

    This execution becomes the outer execution of a nested call.
    """
    step = _position.get()
    if step is None:
        return None
    return step.execution if step.in_body else step.execution.outer


def execution_scope(execution: StepExecution) -> AbstractContextManager[None]:
    """Return a context manager that makes an execution current while middleware runs."""
    return set_context_variable(_position, _ExecutionPosition(execution, in_body=False))


def body_scope(execution: StepExecution | None) -> AbstractContextManager[None]:
    """Return a context manager that marks a step's ``execute`` as running.

    Pass ``None`` to mark code that runs outside any step.
    """
    return set_context_variable(
        _position, _ExecutionPosition(execution, in_body=True) if execution is not None else None
    )


def claimed_effects(results: Mapping[str, Mapping[str, Any]], keys: Collection[str]) -> set[str]:
    """Return the names of the effect records that the plan's finished steps have claimed."""
    return {
        effect for key in keys if (effect := (results.get(key) or {}).get("effect")) is not None
    }
