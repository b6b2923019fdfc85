"""What rooms say to each other: the carriers of a step, and the protocols of rooms above.

An :class:`Attempt` is what somebody asks for; a :class:`StepRecord` is what it left behind, with a
:class:`Failure` when it failed; a :class:`Question` is what a person has to decide first. They are
plain values, so the place where a step is asked for and the place where it runs may be two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from capgraph.base.error_classification import ErrorClassification
from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import ExecutionPlan, PlannedStep

if TYPE_CHECKING:  # messages cost more to import than all of this room
    from langchain_core.messages import BaseMessage
    from pydantic import BaseModel

STAGES = (
    "observe",
    "validate",
    "authorize",
    "retry",
    "finalize",
    "acquire",
    "idempotency",
    "timeout",
    "call",
)
"""The stages that every attempt passes, from the outside in."""


Source = Literal["run", "ledger", "cache", "fallback", "record"]
"""Where a step's result comes from."""


class ShortCircuit(NamedTuple):
    """A result that is there already; ``finalize`` takes it in place of calling what is inside.

    Attributes:
        value: In any form that the capability could have returned.
        source: What the record says of where it comes from.
        is_emitted: Whether listeners were told already that the step ended.
    """

    value: Any
    source: Source
    is_emitted: bool = False


class ForEachElement(NamedTuple):
    """The element of a list for which a copy of a step runs.

    Attributes:
        name: By which name the step means it.
        value: The element, as plain data.
        number: Its place, from 0.
        of: How many elements there are.
    """

    name: str
    value: Any
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request for one step, or for one call of a chat model.

    Attributes:
        capability: Name of the capability; of a model call, the model's role.
        step: The planned step.
        key: Its context key.
        index: Its place in the plan, from 0.
        total: How many steps the plan has.
        number: Which try this is, from 1.
        objective: What it is for.
        inputs: Context type to validated input, filled by ``validate``; of a model call, ``model``
            and ``messages``.
        parameters: Validated parameters (a model, else a dictionary); filled by ``validate``.
        values: The same as plain data, defaults included: what is shown, agreed to, keyed and run.
        idempotency_key: Name of the effect, the same for every try and every plan of the turn.
        kind: ``step`` or ``model``.
        short_circuit: A result that stands in, which whoever stands outside of ``finalize`` hands through it.
        approval_reasons: Why a person has to agree before it runs, in words; added at the stage ``validate``.
        element: For which element of a list it runs; ``None`` for a step of its own.
    """

    capability: str
    step: PlannedStep = field(default_factory=PlannedStep)
    key: str = ""
    index: int = 0
    total: int = 0
    number: int = 1
    objective: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Any = None
    values: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str = ""
    kind: Literal["step", "model"] = "step"
    short_circuit: ShortCircuit | None = None
    approval_reasons: tuple[str, ...] = ()
    element: ForEachElement | None = None

    @property
    def element_values(self) -> dict[str, Any]:
        """What only this copy of a step can refer to, by name."""
        return {} if self.element is None else {self.element.name: self.element.value}

    @property
    def is_replayed(self) -> bool:
        """Whether it is handed back from the record of an earlier run, whole as it was."""
        return self.short_circuit is not None and self.short_circuit.source == "record"

    def event_fields(self) -> dict[str, Any]:
        """Fields that every event of this attempt carries."""
        one = self.element
        return {
            **({"element": one.number, "elements": one.of} if one is not None else {}),
            "context_key": self.key,
            "capability": self.capability,
            "step": self.index + 1,
            "total_steps": self.total,
            "attempt": self.number,
        }


def utc_now_text() -> str:
    """Return the moment as ISO text with its zone."""
    return datetime.now(UTC).isoformat()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step or a node failed, and what that means.

    Attributes:
        severity: Decides what happens next.
        message: What a person is told; secrets are masked.
        original_error: Type and text of what was raised; secrets are masked.
        metadata: Details for developers and for the next planning prompt.
        capability: The capability that failed, or ``None`` for a node.
        node: The node that failed, or ``None`` for a step.
        key: The step's context key.
        retry_policy: What the failing class says about its tries.
        execution_time: Seconds until it failed.
        timestamp: When, as ISO text.
        attempts: Tries so far.
        final: Whether nothing is left to try; a try that another failure cut short has some.
        unclassified: Whether nobody said what it means, so that the severity is the default one.
    """

    severity: ErrorSeverity
    message: str
    original_error: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    capability: str | None = None
    node: str | None = None
    key: str | None = None
    retry_policy: Mapping[str, Any] = field(default_factory=dict)
    execution_time: float = 0.0
    timestamp: str = field(default_factory=utc_now_text)
    attempts: int = 1
    final: bool = True
    unclassified: bool = False

    @property
    def classification(self) -> ErrorClassification:
        """What the failure means."""
        return ErrorClassification(self.severity, self.message, dict(self.metadata))

    def to_state(self) -> dict[str, Any]:
        """Return the plain form, the only one that enters the state."""
        named = {
            "capability_name": self.capability,
            "node_name": self.node,
            "context_key": self.key,
        }
        return {
            **{name: value for name, value in named.items() if value is not None},
            "classification": self.classification.to_dict(),
            "retry_policy": dict(self.retry_policy),
            "original_error": self.original_error or self.message,
            "user_message": self.message,
            "execution_time": self.execution_time,
            "timestamp": self.timestamp,
            "attempts": self.attempts,
            "final": self.final,
        }

    @classmethod
    def from_state(cls, info: Mapping[str, Any]) -> Failure:
        """Read what :meth:`to_state` wrote; what is missing or nonsense is CRITICAL."""
        classification = info.get("classification") or {}
        try:
            severity = ErrorSeverity(classification.get("severity"))
        except ValueError:
            severity = ErrorSeverity.CRITICAL
        return cls(
            severity=severity,
            message=str(info.get("user_message") or info.get("original_error") or ""),
            original_error=str(info.get("original_error") or ""),
            metadata=classification.get("metadata") or {},
            capability=info.get("capability_name"),
            node=info.get("node_name"),
            key=info.get("context_key"),
            retry_policy=info.get("retry_policy") or {},
            execution_time=float(info.get("execution_time") or 0.0),
            timestamp=str(info.get("timestamp") or ""),
            attempts=int(info.get("attempts") or 1),
            final=info.get("final") is True,
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a step left behind.

    Attributes:
        key: The step's context key.
        capability: The capability that ran.
        index: The step's place in the plan.
        objective: What the step was for.
        success: Whether it did its work.
        contexts: Context type to context key to plain data.
        updates: Further state keys that the capability returned.
        plan: A plan that it proposed; it is checked like any other before anything of it runs.
        error: Why it failed.
        skipped: Why it was passed over, for a step that nobody will run.
        not_needed: Whether that is as the plan has it: a condition does not hold.
        observed: True if its failure is shown to the planner, which goes on.
        attempts: Which try this was.
        execution_time: Seconds of the last try.
        timestamp: When it ended, as ISO text.
        source: ``run``; ``ledger`` for the result of the same effect done earlier in the turn;
            ``cache`` or ``fallback``; ``record`` in a replay.
        effect: Name of the effect in the ledger.
        labels: What is to be known of what it gave: context type to label to where the label comes
            from; under ``""`` the same of its words, such as those of a failure.
        quality: How good its gate found the result; ``None`` without one.
        approval_reasons: Why a person has to agree to the result before anything uses it, in words; added at
            the stage ``finalize``.
        elements: For how many elements of a list it ran; ``None`` for a step without a list.
        missing: Keys of the copies that gave nothing.
    """

    key: str
    capability: str
    index: int = 0
    objective: str = ""
    success: bool = False
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    updates: Mapping[str, Any] = field(default_factory=dict)
    plan: Any = None
    error: Failure | None = None
    skipped: str | None = None
    not_needed: bool = False
    observed: bool = False
    attempts: int = 1
    execution_time: float = 0.0
    timestamp: str = field(default_factory=utc_now_text)
    source: Source = "run"
    effect: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    quality: int | None = None
    approval_reasons: tuple[str, ...] = ()
    elements: int | None = None
    missing: tuple[str, ...] = ()

    @classmethod
    def from_attempt(cls, attempt: Attempt, **found: Any) -> StepRecord:
        """Return what an attempt left behind.

        >>> StepRecord.from_attempt(Attempt("read", {}, "level"), skipped="no need").key
        'level'
        """
        about = (attempt.key, attempt.capability, attempt.index, attempt.objective)
        return cls(*about, **found)

    @property
    def outputs(self) -> dict[str, str]:
        """Context type to the key under which the output is stored."""
        return {kind: next(iter(entries)) for kind, entries in self.contexts.items()}

    def to_state_entry(self) -> dict[str, Any]:
        """Return the step's entry in ``execution_step_results``."""
        found: dict[str, Any] = {
            "step_index": self.index,
            "capability": self.capability,
            "task_objective": self.objective,
            "success": self.success,
            "execution_time": self.execution_time,
            "timestamp": self.timestamp,
            "attempts": self.attempts,
        }
        if self.success:
            found["outputs"] = self.outputs
        if self.effect is not None:
            found["effect"] = self.effect
        if self.quality is not None:
            found["quality"] = self.quality
        if self.elements is not None:
            found |= {"elements": self.elements, "missing": list(self.missing)}
        if self.source != "run":
            found["source"] = self.source
        if self.skipped is not None:
            found |= {"skipped": True, "not_needed" if self.not_needed else "error": self.skipped}
            found |= {"observed": True} if self.observed else {}
        if self.error is not None:
            found |= {"error": self.error.message, "severity": self.error.severity.value}
        return found


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person has to decide before a step may go on.

    Attributes:
        kind: ``step`` (agreement), ``result`` (agreement to what it gave), ``unknown_outcome``,
            ``acted_before`` or ``missing_capability``.
        capability: The capability.
        reason: Why it is asked.
        digest: Names what was shown; an agreement holds for nothing else.
        shown: What a person is shown besides, whole: parameters and the values of inputs.
        run: Which run of an effect the question is about.
        effect: Name of the effect in the ledger.
        idempotency_key: Key under which the outside system knows the effect.
        approvals: Where it matters who agrees, or for how long: ``needed`` (how many people),
            ``agreed`` (who has), ``not_requester``, ``refused`` (why the last answer did not
            count) and ``until`` (when the question lapses).
    """

    kind: str
    capability: str
    reason: str = ""
    digest: str = ""
    shown: Mapping[str, Any] = field(default_factory=dict)
    run: int = 0
    effect: str = ""
    idempotency_key: str = ""
    approvals: Mapping[str, Any] = field(default_factory=dict)

    def to_state(self) -> dict[str, Any]:
        """Return plain data; what is empty is left out."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says about a plan or a step.

    Attributes:
        decision: ``allow``, ``deny`` or ``approval_reason`` (a person decides).
        problems: Why, in words; a person and the planner read them.

    Raises:
        ValueError: The decision is none of these, or the problems are one text.

    >>> Verdict("deny", problems=["No payments on Sundays."]).decision
    'deny'
    """

    decision: Literal["allow", "deny", "ask"] = "allow"
    problems: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.decision not in ("allow", "deny", "ask"):
            raise ValueError(f"{self.decision!r} is no verdict. Fix: use 'allow', 'deny' or 'ask'.")
        if isinstance(self.problems, str):
            raise ValueError(f"problems is {self.problems!r:.80}. Fix: write problems=[…].")


class PermissionMode(IntEnum):
    """What somebody may do, and what a capability asks for; more includes less.

    >>> PermissionMode.READ_ONLY < PermissionMode.from_attempt("workspace_write") < PermissionMode.FULL_ACCESS
    True
    """

    READ_ONLY = 1
    WORKSPACE_WRITE = 2
    FULL_ACCESS = 3

    @classmethod
    def of(cls, value: Any) -> PermissionMode:
        """Return the mode that is given as itself, by its name or by its number.

        Raises:
            ValueError: It is none of these.
        """
        named = value.strip().upper() if isinstance(value, str) else None
        found = [m for m in cls if m.name == named or (type(value) in (int, cls) and m == value)]
        if not found:
            names = ", ".join(mode.name for mode in cls)
            raise ValueError(f"{value!r} is no permission mode; use one of {names}")
        return found[0]


class GateResult(NamedTuple):
    """What a gate saw of something that it lets pass.

    Attributes:
        level: How good it is; more is better.
        approval_reason: Why a person has to look at it first; empty for no reason.
    """

    level: int | None = None
    approval_reason: str = ""


class ResultGate(Protocol):
    """Looks at a result before it counts; ``capgraph.governance.QualityGate`` is one."""

    async def evaluate_result(self, result: Any, subject: str) -> GateResult:
        """Let a result pass, perhaps when a person has looked at it.

        Args:
            result: What there is.
            subject: Names it.

        Raises:
            CapgraphError: It is not good enough; the severity says what happens then.
        """


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a turn.

    Attributes:
        user_id: The person.
        role: What the person may do.
        tenant: To whom the person belongs.
        authenticated: Whether a server made sure; then nothing else is believed.
    """

    user_id: str | None = None
    role: str | None = None
    tenant: str | None = None
    authenticated: bool = False

    @property
    def storage_key(self) -> str | None:
        """Name of a folder that is the person's own on any disk; ``None`` for nobody.

        >>> Caller("Ada/..", tenant="b@c").storage_key
        '%41da%2f%2e%2e@b%40c'
        """
        if not self.user_id:
            return None
        parts = (self.user_id, self.tenant)
        name = "@".join(_as_name(part) for part in parts if part is not None)
        # What is too long for a disk is told apart by its digest; no other name begins so.
        return name if len(name) < 200 else f"%digest-{sha256(name.encode()).hexdigest()}"


def _as_name(text: str) -> str:
    """Write text so that it differs from all other text also where disks do not know capitals."""
    kept = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
    given = text.encode("utf-8", "surrogatepass")
    return "".join(chr(one) if one in kept else f"%{one:02x}" for one in given)


CallNext = Callable[..., Awaitable[Any]]


@runtime_checkable
class Middleware(Protocol):
    """Something that stands around an attempt or a model call.

    ``stage`` names one of :data:`STAGES`. From ``observe`` to ``finalize`` what is inside gives a
    :class:`StepRecord` or a :class:`Question`; from ``acquire`` to ``call`` it gives the raw result
    and raises what went wrong. LangGraph's signals and cancellation pass through.
    """

    @property
    def stage(self) -> str:
        """Where it stands."""

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Do something, ``await call_next(attempt)``, and return what it gave."""


@runtime_checkable
class RetryRule(Protocol):
    """Says how often something is tried, in place of what its class says; of stage ``retry``.

    ``capgraph.behaviors.RetryBehavior`` is one.
    """

    @property
    def max_attempts(self) -> int:
        """Tries in all, the first included."""

    def applies(self, error: BaseException | None, failure: Failure) -> bool:
        """Tell whether a failure is worth another try."""

    def delay(self, failures: int) -> float:
        """Return how long to wait after so many failures, in seconds."""

    def policy(self) -> dict[str, Any]:
        """Return the same in the form of ``get_retry_policy``."""


@runtime_checkable
class TimeLimit(Protocol):
    """Takes the place of a class's own time limit; of stage ``timeout``.

    ``capgraph.behaviors.TimeoutBehavior`` is one.
    """

    @property
    def time_limit(self) -> float:
        """Seconds that one try may take."""


@dataclass(slots=True)
class BehaviorContext:
    """What the hooks of behaviours are told of a step; one step has one, and they share it.

    Attributes:
        agent_id: The capability; of a model call, the model's role.
        task: What the step is for.
        attempt: How many tries were begun; 1 before the first.
        execution_id: Names the step within its run, the same for every try.
        last_completed_step: Place of the last step that was done before; -1 for none.
        metadata: Empty at the start of each step; for the behaviours' own notes.
    """

    agent_id: str
    task: str
    attempt: int = 1
    execution_id: str = ""
    last_completed_step: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Behavior(Protocol):
    """Hooks around a whole step; each may be a coroutine function.

    ``capgraph.behaviors.BaseBehavior`` is the whole of it, with what each may return.
    """

    def before_execute(self, context: BehaviorContext) -> Any:
        """Look at a step before it begins."""

    def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Look at what it gave, and put something else in its place."""

    def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Look at why it failed, and give a result all the same."""


@runtime_checkable
class AvailabilityProvider(Protocol):
    """A behaviour that knows when a capability cannot be called, so that plans do without it."""

    async def unavailable_capabilities(self, capabilities: Collection[str]) -> Mapping[str, str]:
        """Return which of some capabilities cannot be called now, with why and until when."""
        ...


@runtime_checkable
class TurnGuardrail(Protocol):
    """Guards of a graph, as far as they look at the two ends of a turn."""

    async def check_message(self, text: str) -> tuple[str, Sequence[str]]:
        """Return what a person wrote, as far as it may stand, and why somebody has to agree."""

    async def check_context(
        self, contexts: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return context data that a caller brings likewise; both raise where it may not stand."""

    async def check_answer(self, text: str, *, node: str) -> str:
        """Return the message that ends a turn, as far as it may be given."""

    def merged_with(self, others: Sequence[Any]) -> TurnGuardrail:
        """Return one guard for itself and others of its kind."""


AnyBehavior = Middleware | Behavior | RetryRule | TimeLimit
"""What may stand in a list of behaviours."""


class ModelCaller(Protocol):
    """Asks a chat model for an answer of a given form; metered, limited and observed.

    ``functools.partial(capgraph.models.structured, role)`` is one.
    """

    async def __call__(self, schema: type[BaseModel], messages: Sequence[BaseMessage]) -> Any:
        """Return an instance of the class; raises ``ModelError`` where the model gives none."""


class AgentOutcome(Protocol):
    """What an agent says of its work; whatever more it has is its own."""

    @property
    def output(self) -> Any:
        """What came of the task."""

    @property
    def success(self) -> bool:
        """Whether the task was done; reaching a limit is no success."""

    @property
    def error(self) -> str | None:
        """Why it was not."""


@runtime_checkable
class KeyValueStore(Protocol):
    """Anything that keeps a value under a key, such as a state store."""

    async def set(self, key: str, value: Any, /) -> Any:
        """Keep a value in place of whatever there was."""


@runtime_checkable
class Agent(Protocol):
    """Anything that works on a task. What can ``compile()`` itself is run as a graph instead."""

    async def execute(self, task: str, context: Any = None) -> AgentOutcome:
        """Work on a task, with what ``Runtime.context`` of its tools is to be."""


class TurnSnapshot(Protocol):
    """The reading of a turn that policies get; ``capgraph.state.TurnView`` is the whole of it."""

    @property
    def task(self) -> str:
        """What is to be done."""

    @property
    def plan(self) -> ExecutionPlan:
        """The plan in force."""

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of the steps so far, by context key."""

    @property
    def contexts(self) -> Mapping[str, Mapping[str, Any]]:
        """Context type to context key to plain data."""

    @property
    def thread_id(self) -> str | None:
        """The thread."""

    @property
    def caller(self) -> Caller:
        """Who asks."""


class PlanPolicy(Protocol):
    """Looks at a plan before it is accepted."""

    async def review(self, plan: ExecutionPlan, view: TurnSnapshot) -> Verdict:
        """Allow the plan, refuse it, or have a person look at it."""


class StepPolicy(Protocol):
    """Looks at a step when its plan is accepted and again just before it starts."""

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Allow the step, refuse it, or have a person decide."""


class FlowPolicy(Protocol):
    """Knows what labels the data of a turn carries, and where such data must not go."""

    def labels_for_step(
        self, spec: Any, step: PlannedStep, view: Any, *, include_plan_text: bool = True
    ) -> Mapping[str, str]:
        """Return the labels of what a step is given, with the plan's own words or without."""

    def check(self, spec: Any, step: PlannedStep, labels: Mapping[str, str]) -> Verdict:
        """Say whether data with some labels may reach a step."""

    def label_record(
        self, record: StepRecord, spec: Any, labels: Mapping[str, str], view: Any
    ) -> StepRecord:
        """Say of what a step left behind which labels it carries."""


class StepDispatcher(Protocol):
    """Has steps run on other workers; ``capgraph.scale.remote.Steps`` is one."""

    def serves(self, queue: str) -> bool:
        """Tell whether this very process takes the orders of a queue."""

    async def is_dispatched(self, name: str) -> bool:
        """Tell whether a step was sent before, by whoever had its turn.

        Args:
            name: Names it, the same wherever its turn goes on.
        """

    async def dispatch(
        self,
        name: str,
        queue: str,
        request: Mapping[str, Any],
        *,
        on_event: Callable[[Any], None],
        timeout_seconds: float | None,
        on_start: Callable[[], None],
        should_detach: Callable[[], bool],
        should_cancel: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """Have a step run, unless its result is there, and wait for it; or attach to one that runs.

        Args:
            name: Names it, the same wherever its turn goes on.
            queue: Its queue.
            request: What it needs, as plain data.
            on_event: Takes what it tells while it runs.
            timeout_seconds: How long it may take; ``None`` for no bound.
            on_start: Called when a worker has begun it.
            should_detach: Whether this process is to stop: another one goes on waiting.
            should_cancel: Whether the step is not to begin any more.

        Returns:
            What came of it; ``None`` when it was left, or given up before it began.

        Raises:
            TimeoutError: Its time was over before it began.
            PersistenceError: Another process has the thread.
        """
        ...

    def slot(self, name: str, limit: int) -> AbstractAsyncContextManager[None]:
        """Hold one of the slots that a capability has in all processes together.

        Args:
            name: The capability.
            limit: How many of its steps may run at once.
        """


class Sink(Protocol):
    """Takes up the events of runs."""

    def emit(self, event: Any) -> Any:
        """Take up one event; may be a coroutine function."""


class SqlExecutor(Protocol):
    """Tables of the project's own beside the threads, in whatever database those are.

    Statements are written with ``?`` for values, ``{now}`` for the database's clock in seconds and
    ``{name}`` for text that sorts by its characters.
    """

    async def run(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> tuple[int, list[tuple[Any, ...]]]:
        """Run one statement in a transaction of its own.

        Returns:
            How many rows it touched, and the rows it gave.

        Raises:
            PersistenceError: The database refused, or is away.
        """
        ...

    def run_blocking(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> tuple[int, list[tuple[Any, ...]]] | None:
        """Run one statement on a connection of its own, in a thread without an event loop.

        Returns:
            ``None`` when the database is this connection's alone (in memory).

        Raises:
            PersistenceError: The database refused, or is away.
        """
        ...
