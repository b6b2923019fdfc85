"""What the stages of one attempt share, beside the attempt itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from capgraph.base.budget import TurnBudget
from capgraph.base.context import CapabilityContext
from capgraph.base.ports import Attempt, Failure, FlowPolicy, Question, Source, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.run_context import run_context
from capgraph.configs.scoped import scoped
from capgraph.pipeline.capacity import Slot
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.pipeline.equipment import Equipment
from capgraph.state.turn_view import TurnView

Result = StepRecord | Question | None
"""What comes out of the outer stages; ``None`` for a step that was put off to another run."""

Inner = Callable[["Job", Attempt], Awaitable[Any]]
"""What stands inside a stage."""

Gate = Callable[["Job", Attempt], Awaitable[Attempt | Result]]
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
        stops: Returns True if no further try may begin because something else failed for good. Its
            argument is True if a try has begun.
        draining: Returns True if the process is to stop.
        may_wait: True if a step may wait for a moment or an event while the turn goes on.
    """

    seconds_left: Callable[[], float | None] = _unbounded
    stops: Callable[[bool], bool] = _never
    draining: Callable[[], bool] = _never
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class ResultReading:
    """How an entry point wants results read.

    Attributes:
        state_keys: Keys of the state of a graph of one's own; ``None`` for those of ``AgentState``.
        unsorted: True if a returned dictionary stays as it is: outside of any graph.
        raw_errors: True if what the capability raises is raised as it is.
        types: Collects the classes of returned context objects; ``None`` for nobody.
    """

    state_keys: frozenset[str] | None = None
    unsorted: bool = False
    raw_errors: bool = False
    types: dict[str, type[CapabilityContext]] | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """What an entry point brings for an attempt.

    Attributes:
        view: The state as it stands.
        ledger: Effects, waits and agreements of the turn.
        plan_keys: Keys of the plan's steps.
        failures: Failed tries of the step so far.
        control: How the turn bounds, stops, and suspends the step.
        reading: How the result is read.
        notify: Takes a step's progress; ``None`` for the stream of the run.
        budget: Where the turn's tries are counted.
        absent: Keys of the state that are not here: they stayed with the turn, on another worker.
        labels: Labels of what whoever asks has heard, with their sources.
        work: The asker's own work, which the capability's body only runs.
    """

    view: TurnView
    ledger: EffectLedger
    plan_keys: Collection[str] = ()
    failures: int = 0
    control: TurnControl = TurnControl()
    reading: ResultReading = ResultReading()
    notify: Callable[[str, float | None], None] | None = None
    budget: TurnBudget = field(default_factory=TurnBudget)
    absent: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    work: Any = None


class Agreement(NamedTuple):
    """The agreement of people to a step.

    Attributes:
        question: What they agreed to.
        until: When it lapses, by the graph's clock; ``None`` for never.
    """

    question: Question
    until: float | None = None


class Returned(NamedTuple):
    """What a capability's body returned.

    Attributes:
        value: The value, unsorted.
        source: Where it comes from.
    """

    value: Any
    source: Source = "run"


@dataclass(slots=True)
class Try:
    """One try of a step, as far as it has come.

    Attributes:
        began: Loop time at which it began.
        given: Source of a result that was given to it; ``None`` if it runs.
        returned: What the body returned, whatever failed afterwards; written by ``call``.
        stored: Outputs that the body handed over with ``store``; written by ``call``.
        cut_off: True if a time limit of ours ended it, so that nobody knows how far it came;
            written by ``timeout``.
        effect: Name of its effect in the ledger; written by ``idempotency``.
        is_repeated: True if the ledger gave the result; written by ``idempotency``.
        result: What the stages inside of ``finalize`` gave; written by ``finalize``.
        contexts: The result, sorted and checked; written by ``finalize``.
        failure: The last exception with its classification; written by ``finalize``.
    """

    began: float
    given: Source | None = None
    returned: Returned | None = None
    stored: list[Any] = field(default_factory=list)
    cut_off: bool = False
    effect: str | None = None
    is_repeated: bool = False
    result: Any = None
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failure: tuple[BaseException, Failure] | None = None

    @property
    def source(self) -> Source:
        """Where its result comes from."""
        if self.given is not None or self.is_repeated:
            return self.given or "ledger"
        return self.returned.source if self.returned is not None else "run"


@dataclass(slots=True)
class Job:
    """One run of the stages.

    Attributes:
        spec: What the capability declares.
        equipment: What an operator decided.
        door: What the asker brought.
        outer: The attempt inside which this one runs.
        key: Key of the step.
        bounded: Whether a budget is asked about it, and about what goes on inside.
        flow: Knows the labels of data; the outer attempt's where the graph has none of its own.
        labels: Labels of what it is given, and of what attempts inside it gave, with their sources;
            written by :func:`hear`.
        inside: The effects that attempts inside had, as the state keeps them; written by the runner.
        agreement: What people agreed to; ``None`` when nobody was asked; written by ``authorize``.
        begun: True if a try has begun; written by :meth:`begin`.
        slot: The slot in which it runs, its own or the outer one's; written by ``acquire``.
        announced: Number of the last try that an event announced; written by ``finalize``.
        effect_done: True if the effect happened; written by :meth:`happened`.
        acted_inside: True if an attempt inside acted once; written by :meth:`act`, of a remote
            step by ``away``.
        asked: How often its body asked for each capability, by LangGraph's task; written by
            :func:`nth_request`.
        current: The present try; written by :meth:`begin_try`.
    """

    spec: CapabilitySpec
    equipment: Equipment
    door: Door
    outer: Job | None = None
    key: str = ""
    bounded: bool = False
    flow: FlowPolicy | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    inside: dict[str, Any] = field(default_factory=dict)
    agreement: Agreement | None = None
    begun: bool = False
    slot: Slot | None = None
    announced: int = 0
    effect_done: bool = False
    acted_inside: bool = False
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    current: Try = field(default_factory=lambda: Try(_loop_time()))

    @property
    def view(self) -> TurnView:
        """The state as it stands."""
        return self.door.view

    def seconds(self) -> float:
        """Return how long the present try has taken."""
        return _loop_time() - self.current.began

    def begin_try(self, given: Source | None = None, effect: str | None = None) -> None:
        """Begin another try; nothing of the last one counts any more."""
        self.current = Try(_loop_time(), given, effect=effect)

    def begin(self) -> None:
        """Remember that a try has begun, here or on another worker."""
        self.begun = True

    def happened(self) -> None:
        """Remember that the effect happened, so that no later failure may repeat it."""
        self.effect_done = True

    def stopping(self) -> bool:
        """Tell whether no further try may begin."""
        return self.door.control.stops(self.begun)

    async def act(self) -> None:
        """Have the step, and those around it, know that it acted once."""
        self.happened()
        durable, outer = self.door.ledger.durable, self.outer
        while outer is not None:
            # Another try of it finds what is kept; another plan would act anew.
            if not outer.acted_inside:
                await outer.door.ledger.act_inside(outer.key)
            outer.acted_inside = True
            outer.effect_done, outer = outer.effect_done or not durable, outer.outer

    async def has_acted_inside(self) -> bool:
        """Return whether an attempt inside acted once, also in an earlier process."""
        self.acted_inside = self.acted_inside or await self.door.ledger.acted_inside(self.key)
        return self.acted_inside


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class _Executing(NamedTuple):
    """A step that is executing, and whether its body runs or a middleware around it."""

    job: Job
    in_body: bool


_STEP: ContextVar[_Executing | None] = ContextVar("capgraph_step", default=None)


LABELS = "capgraph_labels"
"""Where labels stand beside words, or beside what is kept of a task."""


class Hearing(NamedTuple):
    """What a member of a team, or a node of a workflow, has before it that others have read.

    Attributes:
        before: Labels of it, with their sources.
        told: Takes up the labels of what it reads itself.
        flow: Gives what knows the labels where nothing else does.
    """

    before: Mapping[str, str]
    told: dict[str, str]
    flow: Callable[[], FlowPolicy]

    @property
    def labels(self) -> dict[str, str]:
        """All that whoever works here has heard."""
        return {**self.before, **self.told}


def current_hearing() -> Hearing | None:
    """Return what the member at work has before it; a graph around hears by the team's attempt."""
    hearing: Hearing | None = run_context().labels
    return hearing


def hear(labels: Mapping[str, str]) -> None:
    """Have whatever goes on around carry the labels of something that was read here."""
    outer, around = outer_job(), current_hearing()
    if outer is not None:
        outer.labels = {**labels, **outer.labels}
    if around is not None:
        around.told.update(labels)


def current_job() -> Job | None:
    """Return the run of the stages that the caller belongs to; ``None`` outside of any."""
    step = _STEP.get()
    return step.job if step is not None else None


def requested_work() -> Any:
    """Return the work that the asker of the executing step gave its body to do."""
    job = current_job()
    return job.door.work if job is not None else None


def nth_request(outer: Job, task: str, name: str) -> int:
    """Return how often a step's body has asked for a capability, this time included.

    Args:
        outer: The step.
        task: LangGraph's task that asks: a graph inside the body has some of its own.
        name: The capability.
    """
    outer.asked[task, name] += 1
    return outer.asked[task, name]


def outer_job() -> Job | None:
    """Return the run of the stages whose body is running, which is that of a nested attempt."""
    step = _STEP.get()
    if step is None:
        return None
    return step.job if step.in_body else step.job.outer


def standing_in(job: Job) -> AbstractContextManager[None]:
    """Let a middleware know which run of the stages it stands in."""
    return scoped(_STEP, _Executing(job, in_body=False))


def in_body_of(job: Job | None) -> AbstractContextManager[None]:
    """Let nested attempts know in which body they run; ``None`` for that of no step."""
    return scoped(_STEP, _Executing(job, in_body=True) if job is not None else None)


def kept_effects(results: Mapping[str, Mapping[str, Any]], keys: Collection[str]) -> set[str]:
    """Name the effects that steps of the present plan stand for already."""
    return {
        effect for key in keys if (effect := (results.get(key) or {}).get("effect")) is not None
    }
