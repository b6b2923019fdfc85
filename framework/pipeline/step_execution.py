"""What the stages of one attempt share, beside the attempt itself."""

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
"""What comes out of the outer stages; ``None`` for a step that was put off to another run."""

NextStage = Callable[["StepExecution", Attempt], Awaitable[Any]]
"""What stands inside a stage."""

PreStage = Callable[["StepExecution", Attempt], Awaitable[Attempt | StepResult]]
"""A stage that has nothing to do after the ones inside it: it prepares the attempt, or ends it."""


STOPPED: Any = object()
"""Given in place of a result when another step failed for good while this one waited."""


def _never(_begun: bool = False) -> bool:
    return False


def _unbounded() -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class TurnControl:
    """How a turn bounds, stops, and suspends its steps.

    Attributes:
        seconds_left: Returns how long the turn may still run steps; ``None`` for no bound.
        should_stop: Returns True if no further try may begin because something else failed for good. Its
            argument is True if a try has begun.
        is_draining: Returns True if the process is to stop.
        can_wait: True if a step may wait for a moment or an event while the turn goes on.
    """

    seconds_left: Callable[[], float | None] = _unbounded
    should_stop: Callable[[bool], bool] = _never
    is_draining: Callable[[], bool] = _never
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """How an entry point wants results read.

    Attributes:
        state_keys: Keys of the state of a graph of one's own; ``None`` for those of ``AgentState``.
        keeps_dictionary: True if a returned dictionary stays as it is: outside of any graph.
        raw_errors: True if what the capability raises is raised as it is.
        context_classes: Collects the classes of returned context objects; ``None`` for nobody.
    """

    state_keys: frozenset[str] | None = None
    keeps_dictionary: bool = False
    raw_errors: bool = False
    context_classes: dict[str, type[CapabilityContext]] | None = None


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What an entry point brings for an attempt.

    Attributes:
        view: The state as it stands.
        ledger: Effects, waits and agreements of the turn.
        plan_keys: Keys of the plan's steps.
        failures: Failed tries of the step so far.
        control: How the turn bounds, stops, and suspends the step.
        result_options: How the result is read.
        notify: Takes a step's progress; ``None`` for the stream of the run.
        budget: Where the turn's tries are counted.
        missing_state_keys: Keys of the state that are not here: they stayed with the turn, on another worker.
        labels: Labels of what whoever asks has heard, with their sources.
        work: The asker's own work, which the capability's body only runs.
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


class StepApproval(NamedTuple):
    """The agreement of people to a step.

    Attributes:
        question: What they agreed to.
        expires_at: When it lapses, by the graph's clock; ``None`` for never.
    """

    question: ApprovalRequest
    expires_at: float | None = None


class BodyResult(NamedTuple):
    """What a capability's body returned.

    Attributes:
        value: The value, unsorted.
        source: Where it comes from.
    """

    value: Any
    source: Source = "run"


@dataclass(slots=True)
class AttemptState:
    """One try of a step, as far as it has come.

    Attributes:
        started_at: Loop time at which it began.
        short_circuit_source: Source of a result that was given to it; ``None`` if it runs.
        body_result: What the body returned, whatever failed afterwards; written by ``call``.
        stored_outputs: Outputs that the body handed over with ``store``; written by ``call``.
        timed_out: True if a time limit of ours ended it, so that nobody knows how far it came;
            written by ``timeout``.
        effect: Name of its effect in the ledger; written by ``idempotency``.
        is_replayed_effect: True if the ledger gave the result; written by ``idempotency``.
        result: What the stages inside of ``finalize`` gave; written by ``finalize``.
        contexts: The result, sorted and checked; written by ``finalize``.
        failure: The last exception with its classification; written by ``finalize``.
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
        """Where its result comes from."""
        if self.short_circuit_source is not None or self.is_replayed_effect:
            return self.short_circuit_source or "ledger"
        return self.body_result.source if self.body_result is not None else "run"


@dataclass(slots=True)
class StepExecution:
    """One run of the stages.

    Attributes:
        spec: What the capability declares.
        config: What an operator decided.
        context: What the asker brought.
        outer: The attempt inside which this one runs.
        key: Key of the step.
        bounded: Whether a budget is asked about it, and about what goes on inside.
        flow: Knows the labels of data; the outer attempt's where the graph has none of its own.
        labels: Labels of what it is given, and of what attempts inside it gave, with their sources;
            written by :func:`hear`.
        nested_effects: The effects that attempts inside had, as the state keeps them; written by the runner.
        approval: What people agreed to; ``None`` when nobody was asked; written by ``authorize``.
        has_started: True if a try has begun; written by :meth:`begin`.
        slot: The slot in which it runs, its own or the outer one's; written by ``acquire``.
        announced_attempt: Number of the last try that an event announced; written by ``finalize``.
        effect_done: True if the effect happened; written by :meth:`happened`.
        nested_effect_done: True if an attempt inside acted once; written by :meth:`act`, of a remote
            step by ``away``.
        request_counts: How often its body asked for each capability, by LangGraph's task; written by
            :func:`nth_request`.
        attempt_state: The present try; written by :meth:`begin_try`.
    """

    spec: CapabilitySpec
    config: RunnerConfig
    context: AttemptContext
    outer: StepExecution | None = None
    key: str = ""
    bounded: bool = False
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
        """The state as it stands."""
        return self.context.view

    def elapsed_seconds(self) -> float:
        """Return how long the present try has taken."""
        return _loop_time() - self.attempt_state.started_at

    def begin_attempt(
        self, short_circuit_source: Source | None = None, effect: str | None = None
    ) -> None:
        """Begin another try; nothing of the last one counts any more."""
        self.attempt_state = AttemptState(_loop_time(), short_circuit_source, effect=effect)

    def mark_started(self) -> None:
        """Remember that a try has begun, here or on another worker."""
        self.has_started = True

    def mark_effect_done(self) -> None:
        """Remember that the effect happened, so that no later failure may repeat it."""
        self.effect_done = True

    def should_stop(self) -> bool:
        """Tell whether no further try may begin."""
        return self.context.control.should_stop(self.has_started)

    async def record_effect(self) -> None:
        """Have the step, and those around it, know that it acted once."""
        self.mark_effect_done()
        durable, outer = self.context.ledger.is_durable, self.outer
        while outer is not None:
            # Another try of it finds what is kept; another plan would act anew.
            if not outer.nested_effect_done:
                await outer.context.ledger.record_nested_effect(outer.key)
            outer.nested_effect_done = True
            outer.effect_done, outer = outer.effect_done or not durable, outer.outer

    async def has_nested_effect(self) -> bool:
        """Return whether an attempt inside acted once, also in an earlier process."""
        self.nested_effect_done = (
            self.nested_effect_done or await self.context.ledger.has_nested_effect(self.key)
        )
        return self.nested_effect_done


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class _ExecutionPosition(NamedTuple):
    """A step that is executing, and whether its body runs or a middleware around it."""

    execution: StepExecution
    in_body: bool


_position: ContextVar[_ExecutionPosition | None] = ContextVar("capgraph_step", default=None)


LABELS_KEY = "capgraph_labels"
"""Where labels stand beside words, or beside what is kept of a task."""


class LabelScope(NamedTuple):
    """What a member of a team, or a node of a workflow, has before it that others have read.

    Attributes:
        inherited: Labels of it, with their sources.
        collected: Takes up the labels of what it reads itself.
        make_flow: Gives what knows the labels where nothing else does.
    """

    inherited: Mapping[str, str]
    collected: dict[str, str]
    make_flow: Callable[[], FlowPolicy]

    @property
    def labels(self) -> dict[str, str]:
        """All that whoever works here has heard."""
        return {**self.inherited, **self.collected}


def current_label_scope() -> LabelScope | None:
    """Return what the member at work has before it; a graph around hears by the team's attempt."""
    hearing: LabelScope | None = run_context().labels
    return hearing


def propagate_labels(labels: Mapping[str, str]) -> None:
    """Have whatever goes on around carry the labels of something that was read here."""
    outer, around = enclosing_execution(), current_label_scope()
    if outer is not None:
        outer.labels = {**labels, **outer.labels}
    if around is not None:
        around.collected.update(labels)


def current_execution() -> StepExecution | None:
    """Return the run of the stages that the caller belongs to; ``None`` outside of any."""
    step = _position.get()
    return step.execution if step is not None else None


def requested_work() -> Any:
    """Return the work that the asker of the executing step gave its body to do."""
    job = current_execution()
    return job.context.work if job is not None else None


def count_nested_request(outer: StepExecution, task_namespace: str, name: str) -> int:
    """Return how often a step's body has asked for a capability, this time included.

    Args:
        outer: The step.
        task_namespace: LangGraph's task that asks: a graph inside the body has some of its own.
        name: The capability.
    """
    outer.request_counts[task_namespace, name] += 1
    return outer.request_counts[task_namespace, name]


def enclosing_execution() -> StepExecution | None:
    """Return the run of the stages whose body is running, which is that of a nested attempt."""
    step = _position.get()
    if step is None:
        return None
    return step.execution if step.in_body else step.execution.outer


def execution_scope(job: StepExecution) -> AbstractContextManager[None]:
    """Let a middleware know which run of the stages it stands in."""
    return set_context_variable(_position, _ExecutionPosition(job, in_body=False))


def body_scope(job: StepExecution | None) -> AbstractContextManager[None]:
    """Let nested attempts know in which body they run; ``None`` for that of no step."""
    return set_context_variable(
        _position, _ExecutionPosition(job, in_body=True) if job is not None else None
    )


def claimed_effects(results: Mapping[str, Mapping[str, Any]], keys: Collection[str]) -> set[str]:
    """Name the effects that steps of the present plan stand for already."""
    return {
        effect for key in keys if (effect := (results.get(key) or {}).get("effect")) is not None
    }
