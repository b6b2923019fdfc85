"""techrevati-runtime's sessions: ``AgentSession`` and ``OrchestrationSession``.

The options of a session are passed to ``bind``. Each turn and each tool call is an attempt at a
capability of that name, so it passes the same stages as a step of a plan. A session adds workers,
hooks, recovery recipes and its own events. Each synchronous method runs its asynchronous
counterpart.
"""

# ruff: noqa: ASYNC109  the documented names have a time limit of their own
from __future__ import annotations

import asyncio
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property, wraps
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

import capgraph.governance as governance
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    ErrorSeverity,
    LimitError,
    PolicyError,
)
from capgraph.base.errors import ValidationError as CapgraphValidationError
from capgraph.base.ports import Sink as EventSink
from capgraph.behaviors import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitOpenError,
    GuardrailBehavior,
    RateLimiter,
    RateLimitExceededError,
)
from capgraph.behaviors.guardrails import GuardrailViolationError
from capgraph.compat.session_call import (
    RESULT_TYPE,
    PrepareCall,
    SessionCall,
    TurnRateLimit,
    session_capability,
)
from capgraph.compat.session_limits import GovernanceBreachError, GovernancePlane
from capgraph.compat.session_usage import UsageLimits, UsageTracker
from capgraph.compat.worker import (
    AgentRegistry,
    AgentStatus,
    AgentWorker,
    AgentWorkerEvent,
    Handoff,
    InvalidTransitionError,
)
from capgraph.configs.limits import Limits
from capgraph.configs.logger import get_logger, mask_secrets
from capgraph.configs.settings import Settings
from capgraph.engine.bind import bind
from capgraph.engine.capability_node import run_standalone_step
from capgraph.engine.services import Services
from capgraph.governance import RecoveryContext
from capgraph.helpers.async_calls import maybe_await, run_sync, to_sync
from capgraph.helpers.clock import SystemClock, as_clock, utc_now_text
from capgraph.helpers.number_validation import check_number
from capgraph.helpers.threads import run_in_thread
from capgraph.pipeline.run_config import acting_as, current_caller, current_runtime
from capgraph.registry import Registry
from capgraph.telemetry import (
    AgentEvent,
    AgentEventName,
    AgentEventStatus,
    AgentFailureClass,
    UsageSnapshot,
    has_pricing,
)
from capgraph.telemetry import NoopSink as NoopEventSink
from capgraph.telemetry import RingBufferSink as RingBufferEventSink
from capgraph.telemetry.audit import record_later

__all__ = [
    "AgentRegistry",
    "AgentSession",
    "AgentStatus",
    "AgentWorker",
    "AgentWorkerEvent",
    "AsyncOrchestrationSession",
    "EventSink",
    "Handoff",
    "HookContext",
    "InvalidTransitionError",
    "MaxIterationsExceededError",
    "NoopEventSink",
    "OrchestrationSession",
    "Orchestrator",
    "RingBufferEventSink",
    "SessionStateError",
    "SessionSummary",
    "StreamEvent",
    "TurnTimeoutError",
]

P = ParamSpec("P")
T = TypeVar("T")
Estimate = UsageSnapshot | Callable[[Any], UsageSnapshot] | None
Call = Callable[[], Any]
"""Function or coroutine function without arguments that performs a turn or a tool call."""


class MaxIterationsExceededError(LimitError):
    """Raised if a session exceeds its maximum number of turns, ``max_iterations``.

    Attributes:
        max_iterations: Maximum number of turns of the session.
    """

    max_iterations: int = 0


class TurnTimeoutError(CapgraphError, TimeoutError):
    """Raised if a turn or tool call of a session exceeds its timeout.

    Attributes:
        timeout_seconds: The timeout that was exceeded, in seconds.
    """

    code = "CG-CAPABILITY"
    severity: ErrorSeverity = ErrorSeverity.RETRIABLE
    timeout_seconds: float | None = None


class SessionStateError(CapgraphError, RuntimeError):
    """Raised if the current status of a session does not allow the requested operation."""

    code = "CG-CAPABILITY"


@dataclass(slots=True)
class HookContext:
    """Context passed to session hooks. A hook that runs before a call may modify the context.

    Guardrails check ``args`` after all hooks have run. To receive modified values, a function
    reads ``prompt`` and ``args`` from the context.

    Attributes:
        role: Role of the session.
        phase: Phase of the session.
        model: Name of the model of a turn.
        prompt: Prompt of a turn, if the caller passes it.
        tool: Name of a tool.
        args: Arguments of a tool call, or context of a handoff.
        extra: Data for use by hooks; for a handoff, contains ``target_role``.
    """

    role: str
    phase: str
    model: str = ""
    prompt: Any = None
    tool: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Event emitted while a turn streams its response.

    Attributes:
        type: ``text_delta``, ``error``, or ``final``.
        payload: ``delta``; ``error_type`` and ``message``; or ``status`` (``completed`` or
            ``failed``) with ``usage`` or ``detail``.
        emitted_at: Time as an ISO 8601 string.

    >>> StreamEvent("text_delta", {"delta": "a"}).payload["delta"]
    'a'
    """

    type: Literal["text_delta", "error", "final"]
    payload: dict[str, Any] = field(default_factory=dict)
    emitted_at: str = field(default_factory=utc_now_text)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return asdict(self)


class SessionSummary(dict[str, Any]):
    """Summary of a session as a dictionary whose entries can also be read as attributes.

    The entries are ``worker``, ``usage``, ``per_model_cost`` (``None`` if a price is unknown),
    ``recovery_events``, and ``agent_events``.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The session summary has no entry {name!r}.") from None


@dataclass(eq=False)
class AgentSession:
    """Configuration of one role's sessions in one phase. Limits apply to each session.

    Args:
        role: Role of the session, which permissions refer to.
        phase: Phase of the work.
        project_id: ID of the project.
        registry: Registry of workers. Defaults to a new one.
        permissions: Permissions of the role; ``None`` allows every tool.
        circuit_breaker: Circuit breaker of turns whose model has none in ``breakers``;
            ``async_circuit_breaker`` is an alias.
        breakers: Circuit breakers by model or tool.
        policy_engine: Engine of ``evaluate_policy``.
        quality_gate: Gate of ``evaluate_gate``.
        budget_usd: Budget of a session.
        enforce_budget: True to raise an error when the budget is exceeded. Otherwise one event is
            emitted.
        max_iterations: Maximum number of turns of a session.
        guardrails: Guardrails for the arguments and results of tools.
        event_sink: Sink of ``AgentEvent`` objects; may be asynchronous.
        usage_sink: Sink of the usage of each turn. ``OpenTelemetrySink`` is both sinks.
        rate_limiter: ``RateLimiter`` of turns, with the model as key; ``async_rate_limiter`` and
            ``limiters`` add more. Tokens are reserved by ``estimate_usage``, and corrected by the
            usage of the turn.
        provider_router: Router that chooses another provider after a failure.
        usage_limits: Usage limits of a session.
        governance: Limits that end a session.
        hooks: Objects with some of ``before_model``, ``after_model``, ``before_tool``,
            ``after_tool`` and ``before_handoff``, called in order.
        audit_log: Audit log of the session.
        risks: Risks to check before a session starts.
        recovery: Actions and recipes for failures. A failed turn or tool call runs the recipe of its
            scenario, and raises its exception; the caller may repeat the call. Each session has its
            own counts, which a successful turn resets.
        clock: A ``Clock`` or a function that returns seconds.

    Raises:
        ValidationError: ``max_iterations`` or ``budget_usd`` is negative or not a number, or a
            limiter is not a ``RateLimiter``. The error is a ``ValueError``.

    >>> agent = AgentSession("writer", "draft")
    >>> with agent.session() as session:
    ...     result, usage = session.run_turn(lambda: "a text")
    >>> result, session.worker.status.value
    ('a text', 'completed')
    """

    role: str
    phase: str
    project_id: int | None = None
    registry: Any = None
    permissions: Any = None
    circuit_breaker: CircuitBreaker | AsyncCircuitBreaker | None = None
    async_circuit_breaker: InitVar[AsyncCircuitBreaker | None] = None
    policy_engine: governance.PolicyEngine | None = None
    quality_gate: governance.QualityGate | None = None
    budget_usd: float | None = None
    enforce_budget: bool = False
    max_iterations: int = 25
    guardrails: Sequence[Any] = ()
    event_sink: Any = None
    usage_sink: Any = None
    rate_limiter: Any = None
    async_rate_limiter: Any = None
    provider_router: Any = None
    usage_limits: UsageLimits | None = None
    governance: GovernancePlane | None = None
    hooks: Sequence[Any] = ()
    audit_log: Any = None
    risks: Any = None
    breakers: Mapping[str, CircuitBreaker | AsyncCircuitBreaker] = field(default_factory=dict)
    limiters: Sequence[Any] = ()
    clock: Any = None
    recovery: RecoveryContext | None = None

    def __post_init__(self, async_circuit_breaker: AsyncCircuitBreaker | None) -> None:
        self.registry = AgentRegistry() if self.registry is None else self.registry
        check_number("max_iterations", self.max_iterations, integer=True)
        if self.budget_usd is not None:
            check_number("budget_usd", self.budget_usd)
        single_limiters = (self.rate_limiter, self.async_rate_limiter)
        self.limiters = [
            *(limiter for limiter in single_limiters if limiter is not None),
            *self.limiters,
        ]
        for limiter in self.limiters:
            if not isinstance(limiter, RateLimiter):
                raise CapgraphValidationError(
                    f"Invalid rate limiter {limiter!r}: expected a RateLimiter.",
                    fix="Pass capgraph.behaviors.RateLimiter(rpm=…, output_tpm=…).",
                )
        self.permissions = getattr(self.permissions, "policy", self.permissions)
        self.circuit_breaker = self.circuit_breaker or async_circuit_breaker
        self.clock = SystemClock() if self.clock is None else as_clock(self.clock)

    @cached_property
    def settings(self) -> Settings:
        """Settings without step limits, because the session enforces limits on its own turns."""
        unlimited = Limits(
            max_parallel=sys.maxsize, step_timeout_seconds=None, run_timeout_seconds=None
        )
        return Settings(infrastructure=[], limits=unlimited)

    @contextmanager
    def session(self, *, thread_id: str | None = None) -> Iterator[OrchestrationSession]:
        """Context manager that starts a session and ends it when the block exits.

        ``thread_id`` is only stored with the session for reference.
        """
        session = OrchestrationSession(self, thread_id)
        run_sync(session._start())
        try:
            yield session
        except BaseException as exc:
            run_sync(session._end(exc))
            raise
        run_sync(session._end(None))

    @asynccontextmanager
    async def asession(
        self, *, thread_id: str | None = None
    ) -> AsyncIterator[OrchestrationSession]:
        """Async context manager that starts a session and ends it when the block exits.

        ``thread_id`` is only stored with the session for reference.
        """
        session = OrchestrationSession(self, thread_id)
        await session._start()
        try:
            yield session
        except BaseException as exc:
            await session._end(exc)
            raise
        await session._end(None)


Orchestrator = AgentSession
"""Older name of :class:`AgentSession`."""


class _Blocking(NamedTuple):
    """Wrapper that marks a function as possibly blocking.

    Functions passed to synchronous session methods are wrapped in this class.
    """

    function: Call

    def __call__(self) -> Any:
        return self.function()


def _make_synchronous(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a synchronous version of an async session method.

    If the call has a timeout, the function passed to the method runs in a thread.
    """

    async def work(*args: P.args, **kwargs: P.kwargs) -> T:
        bound_arguments = signature(method).bind(*args, **kwargs)
        bound_arguments.arguments["fn"] = _Blocking(bound_arguments.arguments["fn"])
        return await method(*bound_arguments.args, **bound_arguments.kwargs)

    return wraps(method)(to_sync(work))


async def _call_through_breaker(breaker: Any, fn: Call, timeout: float | None) -> Any:
    async def call() -> Any:
        threaded = timeout and isinstance(fn, _Blocking)
        return await maybe_await(await run_in_thread(fn) if threaded else fn())

    return await (call() if breaker is None else breaker.acall(call))


class OrchestrationSession:
    """One session, created by ``AgentSession.session()`` or ``asession()``."""

    def __init__(self, agent: AgentSession, thread_id: str | None = None) -> None:
        self.agent: AgentSession = agent
        self.thread_id: str | None = thread_id
        self.worker: Any = agent.registry.create(agent.role, agent.phase, agent.project_id)
        self.tracker: UsageTracker = UsageTracker()
        self.events: list[AgentEvent] = []
        self.recovery: RecoveryContext = (agent.recovery or RecoveryContext()).for_session()
        self.turns: int = 0
        self.stream_cancelled: bool = False
        self._plane = agent.governance.for_session() if agent.governance is not None else None
        self._results_by_key: dict[str, Future[Any]] = {}
        self._bound_services: dict[tuple[str, str], Services] = {}
        bounded = agent.enforce_budget and agent.budget_usd is not None
        self._budget = governance.Budget(cost_usd=agent.budget_usd) if bounded else None
        self._pending_input: Future[Any] | None = None
        self._error: Exception | None = None
        self._budget_breach_reported = False
        self._exhausted_scenarios: set[str] = set()
        self._clock = agent.clock
        self._started_at = self._clock.monotonic()

    # Start and end

    async def _start(self) -> None:
        if self.agent.risks is not None:
            self.agent.risks.assert_no_unacceptable()
        self.worker.transition(AgentStatus.INITIALIZING)
        self.worker.transition(AgentStatus.RUNNING)
        await self._emit(AgentEvent.started(**self._event_fields))
        await self._emit(AgentEvent.phase_started(self.agent.phase))

    async def _end(self, exc: BaseException | None) -> None:
        if self.worker.is_terminal:
            return
        if isinstance(exc, GraphBubbleUp):  # the enclosing run waits for a person
            self.worker.transition(AgentStatus.WAITING_FOR_INPUT)
            return
        error = exc if isinstance(exc, Exception) else self._error if exc is None else None
        if error is not None or exc is not None:
            status = AgentStatus.FAILED if error is not None else AgentStatus.CANCELLED
            failure_class = AgentFailureClass.CANCELLED if error is None else _failure_class(error)
            detail = mask_secrets(str(error or "") or type(error or exc).__name__)
            self.worker.transition(status, detail)
            await self._emit(
                AgentEvent.failed(**self._event_fields, failure_class=failure_class, detail=detail)
            )
            return
        if self.worker.status is AgentStatus.WAITING_FOR_INPUT:
            self.worker.transition(AgentStatus.RUNNING)
        self.worker.transition(AgentStatus.COMPLETED)
        await self._emit(AgentEvent.completed(**self._event_fields))

    def _require_running(self, action: str) -> None:
        if self.worker.status is not AgentStatus.RUNNING:
            raise SessionStateError(
                f"The session cannot {action}, because its status is {self.worker.status.value}.",
                fix="Start another session." if self.worker.is_terminal else "Provide the input.",
            )

    # Turns

    async def arun_turn(
        self,
        fn: Call,
        model: str = "",
        usage: UsageSnapshot | None = None,
        estimate_usage: Estimate = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        hook_ctx: HookContext | None = None,
    ) -> tuple[Any, UsageSnapshot]:
        """Run one turn of the session: call the model and record its usage.

        Args:
            fn: Function that calls the model.
            model: Name of the model, for prices, limits, and the circuit breaker.
            usage: Token usage of the turn, if it is known.
            estimate_usage: Estimated usage, checked before the call and counted if the actual usage
                is unknown; or a function that returns the usage from the result.
            timeout: Time limit in seconds.
            idempotency_key: Idempotency key of the turn. A second turn with the same key returns
                the first result.
            hook_ctx: Context for hooks.

        Returns:
            The result of ``fn`` and the usage.

        Raises:
            MaxIterationsExceededError: The session has reached ``max_iterations``.
            BudgetExceededError: The turn would exceed the budget.
            GovernanceBreachError: A governance limit ends the session.
            TurnTimeoutError: The turn exceeded the timeout.
        """
        return await self._run_once(
            idempotency_key,
            lambda: self._run_turn(fn, model, lambda: usage, estimate_usage, timeout, hook_ctx),
        )

    run_turn = _make_synchronous(arun_turn)

    async def _run_turn(
        self,
        fn: Call,
        model: str,
        get_usage: Callable[[], UsageSnapshot | None],
        estimate_usage: Estimate,
        timeout: float | None,
        hook_ctx: HookContext | None,
    ) -> tuple[Any, UsageSnapshot]:
        self._require_running("run a turn")
        await self._count_turn()
        agent = self.agent
        context = hook_ctx or HookContext(agent.role, agent.phase, model)
        context.model = context.model or model
        estimate = estimate_usage if isinstance(estimate_usage, UsageSnapshot) else UsageSnapshot()

        async def prepare() -> dict[str, Any]:
            await self._run_hooks("before_model", context)
            return context.args

        async def run() -> Any:
            async with self._reserve_budget(self._cost(model, estimate) or 0.0) as used:
                breaker = agent.breakers.get(model, agent.circuit_breaker)
                result = await _call_through_breaker(breaker, fn, timeout)
                call.usage = get_usage() or (
                    estimate_usage(result) if callable(estimate_usage) else estimate
                )
                used["cost_usd"] = self._cost(model, call.usage) or 0.0
            await self._record_turn(model, call.usage)
            return result

        call = SessionCall(run, prepare, estimate)
        result = await self._run_attempt("model", model or agent.role, call, context, timeout)
        return result, call.usage

    async def _count_turn(self) -> None:
        """Increment the session's turn counter before a turn starts, and check the limits.

        Raises:
            MaxIterationsExceededError: The session has reached ``max_iterations``.
            GovernanceBreachError: A governance limit ends the session.
        """
        limit = self.agent.max_iterations
        if self.turns >= limit:
            raise MaxIterationsExceededError(
                f"The session has reached its limit of {limit} turns (max_iterations) after "
                f"{self.turns} turns.",
                fix="Raise max_iterations, or use fewer turns.",
                max_iterations=limit,
            )
        self.turns += 1
        await self._enforce_governance("record_turn_start")

    async def _record_turn(self, model: str, usage: UsageSnapshot) -> None:
        """Record the token usage of a turn, and check the session's limits and budget."""
        agent, cost = self.agent, self._cost(model, usage)
        self.tracker.record_turn(model, usage)
        record_later("turn", **self._event_fields, model=model, usage=usage.to_dict())
        if agent.usage_sink is not None:
            await self._call_sink(agent.usage_sink.record, model, usage, cost)
        if agent.usage_limits is not None:
            self.tracker.check_limits(agent.usage_limits)
        await self._enforce_governance("record_cost", cost)
        await self._check_budget()

    @asynccontextmanager
    async def _reserve_budget(self, cost: float) -> AsyncIterator[dict[str, float]]:
        """Context manager that reserves budget for the estimated cost of a turn.

        In the block, the caller stores the actual cost in the yielded dictionary.
        """
        used: dict[str, float] = {"cost_usd": 0.0}
        if self._budget is None:
            yield used
            return
        await self._check_budget()
        try:
            reservation = await self._budget.reserve(cost_usd=cost)
        except governance.BudgetExceededError as exc:
            reason = f"{exc.used:g} is used or reserved, and the turn needs {cost:g} more"
            raise await self._report_budget_breach(reason) from exc
        try:
            yield used
        finally:
            await reservation.settle(**used)

    def _cost(self, model: str, usage: UsageSnapshot) -> float | None:
        """Return the cost of a turn in US dollars, or ``None`` if the model's price is unknown.

        A turn without tokens costs 0.
        """
        return self.tracker.cost_for_turn(model, usage) if usage.total_tokens else 0.0

    async def _check_budget(self) -> None:
        """Check the cost of the session against its budget.

        If the cost exceeds the budget or is unknown, emit an event, and raise an error if the
        budget is enforced.
        """
        costs = [self._cost(*turn) for turn in self.tracker.turns]
        known = [cost for cost in costs if cost is not None]
        total = sum(known) if len(known) == len(costs) else None
        budget = self.agent.budget_usd
        if budget is None or (total is not None and total <= budget):
            return
        if total is not None:
            error = await self._report_budget_breach(f"the session cost ${total:.4f}")
        else:
            models = sorted({model for model, _ in self.tracker.turns})
            unpriced = [name for name in models if not has_pricing(name, table=self.tracker.prices)]
            error = await self._report_budget_breach(
                f"the price of {', '.join(map(repr, unpriced))} is unknown",
                "Call capgraph.telemetry.register_pricing with the price of the model.",
            )
        if self._budget is not None:
            raise error

    async def _report_budget_breach(
        self, reason: str, fix: str = "Raise budget_usd, or use fewer turns."
    ) -> governance.BudgetExceededError:
        """Emit an event the first time the budget is exceeded, and return the error to raise."""
        budget, kind = self.agent.budget_usd, AgentFailureClass.GOVERNANCE_BREACH
        cost = self.tracker.total_cost()
        reason = f"The budget budget_usd={budget:g} is exceeded: {reason}."
        costs: Any = {"budget_usd": budget, "current_cost_usd": cost}
        error = governance.BudgetExceededError(
            reason, fix=fix, limit="cost_usd", value=budget, used=cost or 0.0, **costs
        )
        if not self._budget_breach_reported:
            self._budget_breach_reported = True
            event = AgentEvent.failed(**self._event_fields, failure_class=kind, detail=reason)
            data = {"budget_usd": budget, "cost_usd": cost}
            await self._emit(event.with_data(data))
        if self._budget is not None:
            self._error = error
        return error

    async def _enforce_governance(self, counter: str, *values: Any) -> None:
        """Update a governance counter of the session, and check the governance limits."""
        if self._plane is None:
            return
        getattr(self._plane.state, counter)(*values)
        try:
            breaches = self._plane.enforce()
        except GovernanceBreachError as exc:
            self._error = exc
            await self._emit(
                AgentEvent.governance_breach(**self._event_fields, **_limit_fields(exc))
            )
            raise
        for breach in breaches:
            if breach.breached:
                await self._emit(
                    AgentEvent.governance_alert(**self._event_fields, **_limit_fields(breach))
                )

    async def _handle_failure(self, exc: Exception) -> None:
        """Classify an exception, attempt one recovery, and emit the outcome as an event."""
        if isinstance(exc, (LimitError, PolicyError)):
            if isinstance(exc, CircuitOpenError):
                await self._enforce_governance("record_failure")
            return  # neither a limit nor a refusal can be recovered
        scenario = governance.classify_exception(exc)
        detail = f"{scenario.value}: {mask_secrets(str(exc) or type(exc).__name__)}"
        await self._emit(AgentEvent.recovery_attempted(**self._event_fields, detail=detail))
        self.worker.retry_count += 1
        if self.recovery.is_exhausted(scenario):
            self._exhausted_scenarios.add(scenario.value)
        result = await governance.aattempt_recovery(scenario, self.recovery)
        outcome = f"{scenario.value}: {result.outcome}"
        data = {**result.to_dict(), "scenario": scenario.value}
        create_event = _RECOVERY_EVENTS[result.outcome]
        await self._emit(create_event(**self._event_fields, detail=outcome, data=data))
        router, current_provider = self.agent.provider_router, self.worker.provider_used
        if router is not None:
            attempt = self.worker.retry_count
            provider = router.select(
                scenario=scenario.value, attempt=attempt, current=current_provider
            )
            if provider is not None and provider != current_provider:
                self.worker.provider_used = provider
                name = AgentEventName.RECOVERY_PROVIDER_SWITCHED
                status = AgentEventStatus.RUNNING
                await self._emit(AgentEvent(name, status, **self._event_fields, detail=provider))
        await self._enforce_governance("record_failure")

    async def arun_turn_stream(
        self,
        fn: Callable[[], AsyncIterator[Any]],
        model: str = "",
        usage: UsageSnapshot | None = None,
        estimate_usage: Estimate = None,
        timeout: float | None = None,
        hook_ctx: HookContext | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Run one turn of the session, and yield ``text_delta`` events and then a ``final`` event.

        Args:
            fn: Function that returns the parts of the response. A ``UsageSnapshot`` among the parts
                is the token usage of the turn.
            model: Name of the model.
            usage: Token usage of the turn, if it is known.
            estimate_usage: Estimated usage.
            timeout: Time limit of the whole turn, in seconds.
            hook_ctx: Context for hooks.

        Raises:
            Exception: The exception of ``fn``, after an ``error`` and a ``final`` event.
        """
        events: asyncio.Queue[StreamEvent] = asyncio.Queue(1)
        usages: list[UsageSnapshot] = []

        async def listen() -> str:
            pieces, text = fn(), ""
            try:
                async for piece in pieces:
                    if isinstance(piece, UsageSnapshot):
                        usages.append(piece)
                    else:
                        text += str(piece)
                        await events.put(StreamEvent("text_delta", {"delta": str(piece)}))
            finally:
                close = getattr(pieces, "aclose", None)
                if close is not None:
                    await close()
            return text

        def get_usage() -> UsageSnapshot | None:
            return usage or next(iter(usages), None)

        errors: list[Exception] = []

        async def turn() -> None:
            try:
                _, used = await self._run_turn(
                    listen, model, get_usage, estimate_usage, timeout, hook_ctx
                )
                final_payload = {"status": "completed", "usage": used.to_dict()}
            except Exception as exc:
                errors.append(exc)
                error_payload = {
                    "error_type": type(exc).__name__,
                    "message": mask_secrets(str(exc)),
                }
                await events.put(StreamEvent("error", error_payload))
                final_payload = {"status": "failed", "detail": error_payload["message"]}
            await events.put(StreamEvent("final", final_payload))

        task, event = asyncio.create_task(turn()), StreamEvent("text_delta")
        try:
            while event.type != "final":
                event = await events.get()
                yield event
            if errors:
                raise errors[0]
        finally:
            self.stream_cancelled = self.stream_cancelled or event.type != "final"
            task.cancel()
            await asyncio.wait([task])

    # Tools

    async def arun_tool(
        self,
        tool_name: str,
        fn: Call,
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        hook_ctx: HookContext | None = None,
    ) -> Any:
        """Run one tool call of the session, with permission checks, limits, hooks, and guardrails.

        Hooks and guardrails run both before and after the call.

        Args:
            tool_name: Name of the tool.
            fn: Function that calls the tool.
            arguments: Arguments of the call, for guardrails and hooks.
            timeout: Time limit in seconds.
            idempotency_key: Idempotency key of the call. A second call with the same key returns
                the first result.
            hook_ctx: Context for hooks. Its ``args`` are set to the arguments.

        Raises:
            PermissionDeniedError: The role may not use the tool.
            GuardrailViolationError: A guardrail rejects the arguments or the result.
        """
        hook_context = hook_ctx or HookContext(self.agent.role, self.agent.phase, tool=tool_name)
        hook_context.args = dict(hook_context.args if arguments is None else arguments)
        return await self._run_once(
            idempotency_key, lambda: self._run_tool(tool_name, fn, hook_context, timeout)
        )

    run_tool = _make_synchronous(arun_tool)

    async def _run_tool(
        self, tool: str, fn: Call, hook_ctx: HookContext, timeout: float | None
    ) -> Any:
        self._require_running("run a tool")

        async def prepare() -> dict[str, Any]:
            await self._enforce_governance("record_tool_call")
            await self._run_hooks("before_tool", hook_ctx)
            return hook_ctx.args

        async def run() -> Any:
            await self._emit(AgentEvent.tool_called(**self._event_fields, tool=tool))
            result = await _call_through_breaker(self.agent.breakers.get(tool), fn, timeout)
            record_later("tool", **self._event_fields, tool=tool)
            return result

        call = SessionCall(run, prepare)
        result = await self._run_attempt("tool", tool, call, hook_ctx, timeout)
        await self._emit(AgentEvent.tool_completed(**self._event_fields, tool=tool))
        return result

    async def _run_attempt(
        self,
        stage: str,
        name: str,
        call: SessionCall,
        hook_ctx: HookContext,
        timeout: float | None,
    ) -> Any:
        """Run a turn or tool call through the step pipeline, as a capability with the same name."""
        name = name or stage
        services = self._bind_services(stage, name)
        step: Any = {} if timeout is None else {"timeout": timeout}
        caller = replace(current_caller(), role=self.agent.role)
        try:
            with acting_as(caller):
                spec = services.registry.capabilities[name]
                options: Any = {"services": services, "raw_errors": True, "work": call}
                record = await run_standalone_step(spec, step, **options)
            output = record.contexts[RESULT_TYPE][record.key]
            result = (
                call.result if output == call.plain_result else output
            )  # a guardrail rewrote the result
            result = await self._run_hooks(f"after_{stage}", hook_ctx, result)
        except GraphBubbleUp:
            raise
        except Exception as exc:
            if isinstance(exc, ConfigurationError) and exc is not call.error:
                reason = "approval is only possible in a LangGraph run with a checkpointer"
                exc = GuardrailViolationError("ask", reason)
            elif isinstance(exc, TimeoutError) and exc is not call.error:
                exc = TurnTimeoutError(
                    f"The call of {name!r} exceeded its timeout of {timeout} s.",
                    fix="Raise the timeout.",
                    timeout_seconds=timeout,
                )
            await self._report_refusal(name, exc)
            await self._handle_failure(exc)
            raise exc
        if self._plane is not None:
            self._plane.state.record_success()
        if stage == "model":
            self.recovery.record_success()
            self._exhausted_scenarios.clear()
        return result

    async def _report_refusal(self, name: str, exc: Exception) -> None:
        """Emit an event for a call that was rejected by permissions or guardrails."""
        if isinstance(exc, governance.PermissionDeniedError):
            data: dict[str, Any] = {"tool": name, "kind": "permission"}
        elif isinstance(exc, GuardrailViolationError):
            names = [violation.guardrail for violation in exc.violations]
            stage = exc.violations[0].stage
            data = {"tool": name, "kind": "guardrail", "stage": stage, "guardrails": names}
        else:
            return
        await self._emit(AgentEvent.blocked(**self._event_fields, detail=exc.message, data=data))

    def _bind_services(self, stage: str, name: str) -> Services:
        """Return the services that run a model or tool with the options of this session."""
        services = self._bound_services.get((stage, name))
        if services is None:
            agent = self.agent
            options: dict[str, Any] = {"clock": agent.clock, "audit": agent.audit_log}
            if stage == "tool":
                behaviors: list[Any] = [GuardrailBehavior(guardrails=agent.guardrails)]
                options["permissions"] = agent.permissions
            else:
                behaviors = [TurnRateLimit(limiter=limiter) for limiter in agent.limiters]
            options["behaviors"] = [PrepareCall(), *behaviors]
            registry = Registry(infrastructure=())
            registry.register(session_capability(name))
            services = self._bound_services[stage, name] = bind(
                registry, settings=self.agent.settings, **options
            )
        return services

    async def arun_parallel_tools(
        self, calls: Sequence[Call | tuple[str, Call]], *, timeout: float | None = None
    ) -> list[Any]:
        """Run several tool calls concurrently, each in the same way as :meth:`arun_tool`.

        Args:
            calls: Functions, or pairs of a tool name and a function. The default tool name is the
                name of the function.
            timeout: Time limit of all calls together, in seconds.

        Returns:
            The results in the order of the calls.

        Raises:
            Exception: The exception of the first failed call. The other calls are cancelled.
        """
        named = [
            call if isinstance(call, tuple) else (getattr(call, "__name__", "tool"), call)
            for call in calls
        ]
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.arun_tool(tool, fn)) for tool, fn in named]
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        return [task.result() for task in tasks]

    # People, policies and completion

    async def pause_for_input(self, prompt: Any = None) -> Any:
        """Pause the session until human input is provided, and return the input.

        In a LangGraph run, the run is interrupted and resumed with the input. Otherwise, the
        session waits for :meth:`provide_input`.

        Raises:
            RuntimeError: The session has ended or is already waiting for input.
        """
        self._require_running("wait for input")
        if current_runtime() is not None:
            return interrupt(prompt)
        self._pending_input = Future()
        self.worker.transition(AgentStatus.WAITING_FOR_INPUT)
        data = {"kind": "human_input"}
        await self._emit(AgentEvent.blocked(**self._event_fields, data=data))
        try:
            value = await asyncio.wrap_future(self._pending_input)
        finally:
            self._pending_input = None
            if not self.worker.is_terminal:
                self.worker.transition(AgentStatus.RUNNING)
        await self._emit(AgentEvent.ready(**self._event_fields, data=data))
        return value

    def provide_input(self, value: Any) -> None:
        """Provide the human input for which :meth:`pause_for_input` is waiting.

        Raises:
            RuntimeError: The session is not waiting for input.
        """
        if self._pending_input is None or self._pending_input.done():
            raise SessionStateError(
                "The session does not wait for input.", fix="Call pause_for_input first."
            )
        self._pending_input.set_result(value)

    async def ahandoff_to(
        self,
        target_role: str,
        reason: str = "",
        context: Mapping[str, Any] | None = None,
        *,
        hook_ctx: HookContext | None = None,
    ) -> Handoff:
        """Hand off the work to another role by creating a worker, which the caller then runs.

        Raises:
            RuntimeError: The session has ended.
        """
        self._require_running("hand over")
        agent = self.agent
        hook_context = hook_ctx or HookContext(agent.role, agent.phase)
        hook_context.args, hook_context.extra["target_role"] = dict(context or {}), target_role
        await self._run_hooks("before_handoff", hook_context)
        worker = agent.registry.create(target_role, agent.phase, agent.project_id)
        worker.transition(AgentStatus.INITIALIZING)
        to, context = worker.worker_id, hook_context.args
        handoff = Handoff(
            agent.role,
            target_role,
            agent.phase,
            reason,
            context,
            agent.project_id,
            target_worker_id=to,
        )
        self.worker.transition(AgentStatus.COMPLETED)
        event = AgentEvent.completed(agent.role, agent.phase, reason or None)
        await self._emit(event.with_data({"handoff": handoff.to_dict()}))
        return handoff

    handoff_to = to_sync(ahandoff_to)

    def evaluate_policy(
        self, context: governance.PhaseContext | None = None, **overrides: Any
    ) -> list[Any]:
        """Return the actions that the session's policies require, or ``[]`` without policies.

        Args:
            context: State of the phase. Defaults to the state of this session.
            **overrides: Values that replace fields of ``PhaseContext``.
        """
        engine = self.agent.policy_engine
        if engine is None:
            return []
        changes = {name: value for name, value in overrides.items() if value is not None}
        phase_context = replace(context or self._phase_context(), **changes)
        return list(run_sync(maybe_await(engine.evaluate(phase_context))))

    def authorize(self, tool_name: str) -> governance.PermissionOutcome:
        """Check whether the role of the session may use a tool.

        Without permissions, every tool is allowed.
        """
        if self.agent.permissions is None:
            return governance.PermissionOutcome(True)
        enforcer = governance.PermissionEnforcer(self.agent.permissions)
        return enforcer.check(self.agent.role, tool_name)

    def complete(self, detail: str | None = None) -> None:
        """End the session with the status ``completed`` before its ``with`` block ends."""
        self._close(
            AgentStatus.COMPLETED, AgentEvent.completed(**self._event_fields, detail=detail)
        )

    def fail(
        self, detail: str, failure_class: AgentFailureClass = AgentFailureClass.UNKNOWN
    ) -> None:
        """End the session with the status ``failed`` before its ``with`` block ends."""
        event = AgentEvent.failed(**self._event_fields, failure_class=failure_class, detail=detail)
        self._close(AgentStatus.FAILED, event)

    def cancel(self, detail: str | None = None) -> None:
        """End the session with the status ``cancelled`` before its ``with`` block ends."""
        kind = AgentFailureClass.CANCELLED
        event = AgentEvent.failed(**self._event_fields, failure_class=kind, detail=detail)
        self._close(AgentStatus.CANCELLED, event)

    def _close(self, status: AgentStatus, event: AgentEvent) -> None:
        self.worker.transition(status, event.detail)
        run_sync(self._emit(event))

    def _phase_context(self) -> governance.PhaseContext:
        return governance.PhaseContext(
            phase=self.agent.phase,
            all_roles={self.agent.role},
            failed_roles={self.agent.role} if self._error is not None else set(),
            elapsed_seconds=self._clock.monotonic() - self._started_at,
            retry_exhausted_scenarios=set(self._exhausted_scenarios),
            total_cost_usd=self.tracker.total_cost(),
        )

    def evaluate_gate(self, observed: Any) -> Any:
        """Evaluate the quality gate for an observed quality level, and emit the outcome as events.

        Return the outcome, or ``None`` if the session has no quality gate.
        """
        gate = self.agent.quality_gate
        if gate is None:
            return None
        outcome = gate.evaluate(observed)
        name = AgentEventName.PHASE_GATE_EVALUATED
        status = AgentEventStatus.GREEN if outcome.satisfied else AgentEventStatus.RED
        run_sync(self._emit(AgentEvent(name, status, phase=self.agent.phase)))
        create_event = AgentEvent.gate_passed if outcome.satisfied else AgentEvent.gate_failed
        run_sync(self._emit(create_event(self.agent.phase)))
        return outcome

    def summary(self) -> SessionSummary:
        """Return a summary of the session so far: worker, usage, costs, and events."""
        return SessionSummary(
            worker=self.worker.to_dict(),
            usage=self.tracker.summary(),
            per_model_cost=self.tracker.per_model_summary(),
            recovery_events=[event.to_dict() for event in self.recovery.events],
            agent_events=[event.to_dict() for event in self.events],
        )

    # Shared by turns and tools

    async def _run_once(self, key: str | None, run: Callable[[], Awaitable[T]]) -> T:
        if key is None:
            return await run()
        future: Future[T] = Future()
        if (existing := self._results_by_key.setdefault(key, future)) is not future:
            return await asyncio.shield(asyncio.wrap_future(existing))
        try:
            result = await run()
        except BaseException as exc:
            del self._results_by_key[key]  # a failed call may be repeated
            is_failure = isinstance(exc, Exception)
            future.set_exception(exc if is_failure else SessionStateError("It was cancelled."))
            raise
        future.set_result(result)
        return result

    async def _run_hooks(self, name: str, context: HookContext, result: Any = None) -> Any:
        found = (getattr(hook, f"a{name}", getattr(hook, name, None)) for hook in self.agent.hooks)
        methods = [method for method in found if method is not None]
        if methods and name in _HOOK_EVENTS:
            data, running = {"tool": context.tool}, AgentEventStatus.RUNNING
            event = AgentEvent(_HOOK_EVENTS[name], running, **self._event_fields, data=data)
            await self._emit(event)
        is_before = name.startswith("before")
        for method in methods:
            returned = await maybe_await(method(context) if is_before else method(context, result))
            result = result if returned is None or is_before else returned
        return result

    async def _emit(self, event: AgentEvent) -> None:
        if self.agent.project_id is not None:
            event = event.with_project(self.agent.project_id)
        self.events.append(event)
        if self.agent.event_sink is not None:
            await self._call_sink(self.agent.event_sink.emit, event)

    @property
    def _event_fields(self) -> dict[str, Any]:
        return {"role": self.agent.role, "phase": self.agent.phase}

    async def _call_sink(self, sink: Callable[..., Any], *arguments: Any) -> None:
        try:
            await maybe_await(sink(*arguments))
        except Exception as exc:
            get_logger("framework", "session").warning("A sink failed: %s", mask_secrets(repr(exc)))


AsyncOrchestrationSession = OrchestrationSession
"""Alias of :class:`OrchestrationSession`, which ``asession()`` returns as well."""

# Classes and events of failures, recoveries and hooks

_FAILURE_CLASSES: tuple[tuple[type[BaseException], AgentFailureClass], ...] = (
    (governance.PermissionDeniedError, AgentFailureClass.PERMISSION_DENIED),
    (GuardrailViolationError, AgentFailureClass.GUARDRAIL_VIOLATION),
    (RateLimitExceededError, AgentFailureClass.RATE_LIMIT),
    (LimitError, AgentFailureClass.GOVERNANCE_BREACH),
    (CapgraphValidationError, AgentFailureClass.VALIDATION_ERROR),
)
_SCENARIO_CLASSES: Mapping[governance.FailureScenario, AgentFailureClass] = MappingProxyType(
    {
        governance.FailureScenario.TOOL_EXECUTION_ERROR: AgentFailureClass.TOOL_ERROR,
        governance.FailureScenario.DEPENDENCY_TIMEOUT: AgentFailureClass.DEPENDENCY_FAILED,
        governance.FailureScenario.PROVIDER_FAILURE: AgentFailureClass.DEPENDENCY_FAILED,
    }
)
"""Failure classes of the scenarios whose names differ."""
_RECOVERY_EVENTS: Mapping[str, Callable[..., AgentEvent]] = MappingProxyType(
    {
        "recovered": AgentEvent.recovery_succeeded,
        "partial_recovery": AgentEvent.recovery_failed,
        "escalation_required": AgentEvent.recovery_escalated,
    }
)
_HOOK_EVENTS: Mapping[str, AgentEventName] = MappingProxyType(
    {
        "before_tool": AgentEventName.HOOK_PRE_TOOL,
        "after_tool": AgentEventName.HOOK_POST_TOOL,
    }
)


def _limit_fields(breach: Any) -> dict[str, Any]:
    names = ("limit_name", "observed", "ceiling", "scope")
    return {name: getattr(breach, name) for name in names}


def _failure_class(exc: BaseException) -> AgentFailureClass:
    for cls, failure_class in _FAILURE_CLASSES:
        if isinstance(exc, cls):
            return failure_class
    scenario = governance.classify_exception(exc)
    return _SCENARIO_CLASSES.get(scenario) or AgentFailureClass(scenario.value)
