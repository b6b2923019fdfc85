"""Sessions of an agent that is no graph, under the names of techrevati-runtime.

What a session is given is handed to ``bind``, and each turn and each call of a tool is an attempt at
a capability of that name: it passes the same stages as a step of a plan. A session adds what only
its source has: workers, hooks, recipes, events of its own. Each synchronous name waits for its
asynchronous twin.
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
from functools import cached_property, lru_cache, wraps
from inspect import signature
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

import capgraph.governance as governance
from capgraph.base import BaseCapability, capability_node
from capgraph.base.errors import CapgraphError, ConfigurationError, ErrorSeverity, LimitError
from capgraph.base.errors import ValidationError as CapgraphValidationError
from capgraph.base.ports import Sink as EventSink
from capgraph.base.ports import utc_now_text
from capgraph.behaviors import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitOpenError,
    GuardrailBehavior,
    RateLimitExceededError,
)
from capgraph.behaviors.guardrails import GuardrailViolationError
from capgraph.compat.worker import (
    AgentRegistry,
    AgentStatus,
    AgentWorker,
    AgentWorkerEvent,
    Handoff,
    InvalidTransitionError,
)
from capgraph.configs.logger import get_logger, mask_secrets
from capgraph.configs.settings import Settings
from capgraph.configs.settings_model import Limits
from capgraph.engine.bind import bind
from capgraph.engine.capability_node import run_standalone_step
from capgraph.engine.services import Services
from capgraph.helpers.async_calls import maybe_await, run_sync, to_sync
from capgraph.helpers.clock import SystemClock, as_clock
from capgraph.helpers.number_validation import check_number
from capgraph.helpers.plain_data import to_plain
from capgraph.helpers.threads import run_in_thread
from capgraph.pipeline.run_config import acting_as, current_caller, current_runtime
from capgraph.pipeline.step_execution import requested_work
from capgraph.registry import Registry
from capgraph.telemetry import (
    AgentEvent,
    AgentEventName,
    AgentEventStatus,
    AgentFailureClass,
    UsageSnapshot,
    UsageTracker,
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
"""What a turn or a tool does: a function without arguments, or a coroutine function."""


class MaxIterationsExceededError(LimitError):
    """A session has made as many turns as it may."""


class TurnTimeoutError(CapgraphError, TimeoutError):
    """A turn took longer than it may."""

    code = "CG-CAPABILITY"
    severity: ErrorSeverity = ErrorSeverity.RETRIABLE


class SessionStateError(CapgraphError, RuntimeError):
    """A session is asked for what it cannot do as it stands."""

    code = "CG-CAPABILITY"


@dataclass(slots=True)
class HookContext:
    """What hooks are told; those before a call may change it.

    Attributes:
        role: Who works.
        phase: On what.
        model: The model of a turn.
        prompt: What it is asked, where the caller says.
        tool: The tool.
        args: What it is called with; of a handoff, what the target is told.
        extra: For the hooks' own notes; of a handoff, ``target_role``.
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
    """A piece of a streamed turn.

    Attributes:
        type: ``text_delta``, ``error`` or ``final``.
        payload: ``delta``; ``error_type`` and ``message``; or ``status`` (``completed`` or
            ``failed``) with ``usage`` or ``detail``.
        emitted_at: When, as ISO text.

    >>> StreamEvent("text_delta", {"delta": "a"}).payload["delta"]
    'a'
    """

    type: Literal["text_delta", "error", "final"]
    payload: dict[str, Any] = field(default_factory=dict)
    emitted_at: str = field(default_factory=utc_now_text)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class SessionSummary(dict[str, Any]):
    """What a session came to, as plain data; its entries are attributes, too.

    They are ``worker``, ``usage``, ``per_model_cost`` (``None`` for a price that nobody knows),
    ``recovery_events`` and ``agent_events``.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"A session's summary has no {name!r}.") from None


@dataclass(eq=False)
class AgentSession:
    """What sessions of one role in one phase run under. Each session counts for itself.

    Args:
        role: Who works; permissions are asked about it.
        phase: On what.
        project_id: For which project.
        registry: Where workers are kept; one of its own when not given.
        permissions: What the role may do; ``None`` allows every tool.
        circuit_breaker: Stands around every turn whose model has none in ``breakers``;
            ``async_circuit_breaker`` likewise.
        breakers: Model or tool to its circuit breaker.
        policy_engine: Asked by ``evaluate_policy``.
        quality_gate: Asked by ``evaluate_gate``.
        budget_usd: What a session may cost.
        enforce_budget: Whether passing it raises; otherwise it is told once.
        max_iterations: The most turns of a session.
        guardrails: What looks at the arguments and results of tools.
        event_sink: Takes up an ``AgentEvent`` of everything that happens; may be asynchronous.
        usage_sink: Takes up what each turn cost.
        rate_limiter: Asked before each turn with the model as key; ``async_rate_limiter`` and
            ``limiters`` likewise.
        provider_router: Chooses another provider after a failure of one.
        usage_limits: What a session may use.
        governance: Limits that end a session.
        hooks: Objects with some of ``before_model``, ``after_model``, ``before_tool``,
            ``after_tool``, ``before_handoff``, from the left to the right.
        audit_log: Takes up what was done, by digest.
        risks: Looked at before a session begins.
        clock: Time, or a function that gives seconds.

    Raises:
        ValidationError: ``max_iterations`` or ``budget_usd`` is negative or no number; it is a
            ``ValueError``.

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
    usage_limits: governance.UsageLimits | None = None
    governance: governance.GovernancePlane | None = None
    hooks: Sequence[Any] = ()
    audit_log: Any = None
    risks: Any = None
    breakers: Mapping[str, CircuitBreaker | AsyncCircuitBreaker] = field(default_factory=dict)
    limiters: Sequence[Any] = ()
    clock: Any = None

    def __post_init__(self, async_circuit_breaker: AsyncCircuitBreaker | None) -> None:
        self.registry = AgentRegistry() if self.registry is None else self.registry
        check_number("max_iterations", self.max_iterations, integer=True)
        if self.budget_usd is not None:
            check_number("budget_usd", self.budget_usd)
        given = (self.rate_limiter, self.async_rate_limiter)
        self.limiters = [*(one for one in given if one is not None), *self.limiters]
        self.permissions = getattr(self.permissions, "policy", self.permissions)
        self.circuit_breaker = self.circuit_breaker or async_circuit_breaker
        self.clock = SystemClock() if self.clock is None else as_clock(self.clock)

    @cached_property
    def settings(self) -> Settings:
        """A session bounds what its source bounds, and takes no slots: it waits for others."""
        free = Limits(max_parallel=sys.maxsize, step_timeout_seconds=None, run_timeout_seconds=None)
        return Settings(infrastructure=[], limits=free)

    @contextmanager
    def session(self, *, thread_id: str | None = None) -> Iterator[OrchestrationSession]:
        """Begin a session and end it, however the block ends; ``thread_id`` is a note of one's own."""
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
        """Begin a session and end it, however the block ends; ``thread_id`` is a note of one's own."""
        session = OrchestrationSession(self, thread_id)
        await session._start()
        try:
            yield session
        except BaseException as exc:
            await session._end(exc)
            raise
        await session._end(None)


Orchestrator = AgentSession
"""The older name."""


class _Blocking(NamedTuple):
    """A function that a synchronous method was given: it may block."""

    function: Call

    def __call__(self) -> Any:
        return self.function()


def _synchronous(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the synchronous form; what is bounded in time works in a thread, to be left behind."""

    async def work(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature(method).bind(*args, **kwargs)
        given.arguments["fn"] = _Blocking(given.arguments["fn"])
        return await method(*given.args, **given.kwargs)

    return wraps(method)(to_sync(work))


async def _call_through_breaker(breaker: Any, fn: Call, timeout: float | None) -> Any:
    async def call() -> Any:
        threaded = timeout and isinstance(fn, _Blocking)
        return await maybe_await(await run_in_thread(fn) if threaded else fn())

    return await (call() if breaker is None else breaker.acall(call))


class OrchestrationSession:
    """One session: what ``AgentSession.session()`` and ``asession()`` give."""

    def __init__(self, agent: AgentSession, thread_id: str | None = None) -> None:
        self.agent: AgentSession = agent
        self.thread_id: str | None = thread_id
        self.worker: Any = agent.registry.create(agent.role, agent.phase, agent.project_id)
        self.tracker: UsageTracker = UsageTracker()
        self.events: list[AgentEvent] = []
        self.recovery_events: list[Any] = []
        self.turns: int = 0
        self.stream_cancelled: bool = False
        self._plane = agent.governance.for_session() if agent.governance is not None else None
        self._recovery = governance.RecoveryContext()
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

    # Beginning and end

    async def _start(self) -> None:
        if self.agent.risks is not None:
            self.agent.risks.assert_no_unacceptable()
        self.worker.transition(AgentStatus.INITIALIZING)
        self.worker.transition(AgentStatus.RUNNING)
        await self._emit(AgentEvent.started(**self._event_fields))

    async def _end(self, exc: BaseException | None) -> None:
        if self.worker.is_terminal:
            return
        if isinstance(exc, GraphBubbleUp):  # the run around waits for somebody
            self.worker.transition(AgentStatus.WAITING_FOR_INPUT)
            return
        failed = exc if isinstance(exc, Exception) else self._error if exc is None else None
        if failed is not None or exc is not None:
            status = AgentStatus.FAILED if failed is not None else AgentStatus.CANCELLED
            kind = AgentFailureClass.CANCELLED if failed is None else _failure_class(failed)
            told = mask_secrets(str(failed or "") or type(failed or exc).__name__)
            self.worker.transition(status, told)
            await self._emit(
                AgentEvent.failed(**self._event_fields, failure_class=kind, detail=told)
            )
            return
        if self.worker.status is AgentStatus.WAITING_FOR_INPUT:
            self.worker.transition(AgentStatus.RUNNING)
        self.worker.transition(AgentStatus.COMPLETED)
        await self._emit(AgentEvent.completed(**self._event_fields))

    def _require_running(self, action: str) -> None:
        if self.worker.status is not AgentStatus.RUNNING:
            raise SessionStateError(
                f"The session is {self.worker.status.value}, so it cannot {action}.",
                fix="Begin another session." if self.worker.is_terminal else "Give it its input.",
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
        """Run one turn.

        Args:
            fn: Calls the model.
            model: Its name, for prices, limits and breaker.
            usage: What it cost, where that is known.
            estimate_usage: What it may cost: looked at before the call, and counted where nobody
                knows better; or a function of the result that says what it did.
            timeout: Seconds that it may take.
            idempotency_key: A second turn of one key in one session is the first.
            hook_ctx: What hooks are told.

        Returns:
            What ``fn`` returned, and what it cost.

        Raises:
            MaxIterationsExceededError: The session has made as many turns as it may.
            BudgetExceededError: The budget does not hold it.
            GovernanceBreachError: A limit ends the session.
            TurnTimeoutError: It took too long.
        """
        return await self._run_once(
            idempotency_key,
            lambda: self._run_turn(fn, model, lambda: usage, estimate_usage, timeout, hook_ctx),
        )

    run_turn = _synchronous(arun_turn)

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
        agent, tracker = self.agent, self.tracker
        told = hook_ctx or HookContext(agent.role, agent.phase, model)
        ahead = estimate_usage if isinstance(estimate_usage, UsageSnapshot) else UsageSnapshot()
        took = ahead

        for limiter in agent.limiters:
            await maybe_await(
                limiter.acquire(model or agent.role, input_tokens=ahead.prompt_tokens)
            )
        if self.turns >= agent.max_iterations:
            raise MaxIterationsExceededError(
                f"The session has made {self.turns} turns, and max_iterations is"
                f" {agent.max_iterations}.",
                fix="Raise max_iterations, or ask for less.",
            )
        self.turns += 1
        await self._enforce_governance("record_turn_start")

        async def run() -> Any:
            nonlocal took
            await self._run_hooks("before_model", told)
            async with self._reserve_budget(self._cost(model, ahead) or 0.0) as used:
                breaker = agent.breakers.get(model, agent.circuit_breaker)
                result = await _call_through_breaker(breaker, fn, timeout)
                took = get_usage() or (
                    estimate_usage(result) if callable(estimate_usage) else ahead
                )
                cost = self._cost(model, took)
                used["cost_usd"] = cost or 0.0
            tracker.record_turn(model, took)
            record_later("turn", **self._event_fields, model=model, usage=took.to_dict())
            if agent.usage_sink is not None:
                await self._call_sink(agent.usage_sink.record, model, took, cost)
            if agent.usage_limits is not None:
                tracker.check_limits(agent.usage_limits)
            await self._enforce_governance("record_cost", cost)
            await self._check_budget()
            return result

        return await self._run_attempt("model", model or agent.role, run, told, timeout), took

    @asynccontextmanager
    async def _reserve_budget(self, cost: float) -> AsyncIterator[dict[str, float]]:
        """Hold what a turn may cost where that is bounded; what it did cost is filled in."""
        used: dict[str, float] = {"cost_usd": 0.0}
        if self._budget is None:
            yield used
            return
        await self._check_budget()
        try:
            held = await self._budget.reserve(cost_usd=cost)
        except governance.BudgetExceededError as exc:
            told = f"{exc.used:g} is used or reserved, and {cost:g} more would be needed"
            raise await self._report_budget_breach(told) from exc
        try:
            yield used
        finally:
            await held.settle(**used)

    def _cost(self, model: str, usage: UsageSnapshot) -> float | None:
        """Return what something costs; nothing costs nothing, whatever its price."""
        return self.tracker.cost_for_turn(model, usage) if usage.total_tokens else 0.0

    async def _check_budget(self) -> None:
        """Tell once that the budget is passed, and raise where it is enforced."""
        costs = [self._cost(*turn) for turn in self.tracker.turns]
        known = [cost for cost in costs if cost is not None]
        total = sum(known) if len(known) == len(costs) else None
        budget = self.agent.budget_usd
        if budget is None or (total is not None and total <= budget):
            return
        cost = "a cost that nobody knows" if total is None else f"${total:.4f}"
        error = await self._report_budget_breach(f"the session came to {cost}")
        if self._budget is not None:
            raise error

    async def _report_budget_breach(self, reason: str) -> governance.BudgetExceededError:
        """Tell once that the budget does not hold the session; return what is raised then."""
        budget, kind = self.agent.budget_usd, AgentFailureClass.GOVERNANCE_BREACH
        reason, fix = (
            f"budget_usd is {budget:g}, and {reason}.",
            "Raise budget_usd, or ask for less.",
        )
        error = governance.BudgetExceededError(reason, fix=fix, limit="cost_usd", value=budget)
        if not self._budget_breach_reported:
            self._budget_breach_reported = True
            event = AgentEvent.failed(**self._event_fields, failure_class=kind, detail=reason)
            data = {"budget_usd": budget, "cost_usd": self.tracker.total_cost()}
            await self._emit(event.with_data(data))
        if self._budget is not None:
            self._error = error
        return error

    async def _enforce_governance(self, counter: str, *values: Any) -> None:
        """Count something, and hold the limits of the session against it."""
        if self._plane is None:
            return
        getattr(self._plane.state, counter)(*values)
        try:
            found = self._plane.enforce()
        except governance.GovernanceBreachError as exc:
            self._error = exc
            await self._emit(
                AgentEvent.governance_breach(**self._event_fields, **_limit_fields(exc))
            )
            raise
        for one in found:
            if one.breached:
                await self._emit(
                    AgentEvent.governance_alert(**self._event_fields, **_limit_fields(one))
                )

    async def _handle_failure(self, exc: Exception) -> None:
        """Classify a failure, try once to recover, and say what was done."""
        if isinstance(exc, (LimitError, governance.PermissionDeniedError)):
            if isinstance(exc, CircuitOpenError):
                await self._enforce_governance("record_failure")
            return  # nothing recovers a bound of ours
        scenario = governance.classify_exception(exc)
        told = f"{scenario.value}: {mask_secrets(str(exc) or type(exc).__name__)}"
        await self._emit(AgentEvent.recovery_attempted(**self._event_fields, detail=told))
        self.worker.retry_count += 1
        result = await governance.aattempt_recovery(scenario, self._recovery)
        self.recovery_events.append(result)
        if result.outcome == "escalation_required":
            self._exhausted_scenarios.add(scenario.value)
        router, current = self.agent.provider_router, self.worker.provider_used
        if router is not None:
            tries = self.worker.retry_count
            found = router.select(scenario=scenario.value, attempt=tries, current=current)
            if found is not None and found != current:
                self.worker.provider_used = found
                name = AgentEventName.RECOVERY_PROVIDER_SWITCHED
                status = AgentEventStatus.RUNNING
                await self._emit(AgentEvent(name, status, **self._event_fields, detail=found))
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
        """Run one turn piece by piece: ``text_delta`` …, ``final``.

        Args:
            fn: Gives the pieces; a ``UsageSnapshot`` among them is what the turn cost.
            model: The model's name.
            usage: What it cost, where that is known.
            estimate_usage: What it may cost.
            timeout: Seconds that all of it may take.
            hook_ctx: What hooks are told.

        Raises:
            Exception: What ``fn`` raised, after an ``error`` and a ``final`` event.
        """
        told: asyncio.Queue[StreamEvent] = asyncio.Queue(1)
        seen: list[UsageSnapshot] = []

        async def listen() -> str:
            pieces, text = fn(), ""
            try:
                async for piece in pieces:
                    if isinstance(piece, UsageSnapshot):
                        seen.append(piece)
                    else:
                        text += str(piece)
                        await told.put(StreamEvent("text_delta", {"delta": str(piece)}))
            finally:
                close = getattr(pieces, "aclose", None)
                if close is not None:
                    await close()
            return text

        def spent() -> UsageSnapshot | None:
            return usage or next(iter(seen), None)

        failed: list[Exception] = []

        async def turn() -> None:
            try:
                _, used = await self._run_turn(
                    listen, model, spent, estimate_usage, timeout, hook_ctx
                )
                end = {"status": "completed", "usage": used.to_dict()}
            except Exception as exc:
                failed.append(exc)
                why = {"error_type": type(exc).__name__, "message": mask_secrets(str(exc))}
                await told.put(StreamEvent("error", why))
                end = {"status": "failed", "detail": why["message"]}
            await told.put(StreamEvent("final", end))

        task, event = asyncio.create_task(turn()), StreamEvent("text_delta")
        try:
            while event.type != "final":
                event = await told.get()
                yield event
            if failed:
                raise failed[0]
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
        """Run one tool: permission, limits, hooks, guards, the call, guards, hooks.

        Args:
            tool_name: Its name.
            fn: Calls it.
            arguments: What it is called with, for guards and hooks.
            timeout: Seconds that it may take.
            idempotency_key: A second call of one key in one session is the first.
            hook_ctx: What hooks are told, with the arguments as ``args``.

        Raises:
            PermissionDeniedError: The role may not use it.
            GuardrailViolationError: A guard refuses its arguments or its result.
        """
        told = hook_ctx or HookContext(self.agent.role, self.agent.phase, tool=tool_name)
        told.args = dict(told.args if arguments is None else arguments)
        return await self._run_once(
            idempotency_key, lambda: self._run_tool(tool_name, fn, told, timeout)
        )

    run_tool = _synchronous(arun_tool)

    async def _run_tool(
        self, tool: str, fn: Call, hook_ctx: HookContext, timeout: float | None
    ) -> Any:
        self._require_running("run a tool")

        async def run() -> Any:
            await self._enforce_governance("record_tool_call")
            await self._run_hooks("before_tool", hook_ctx)
            await self._emit(AgentEvent.tool_called(**self._event_fields, tool=tool))
            result = await _call_through_breaker(self.agent.breakers.get(tool), fn, timeout)
            record_later("tool", **self._event_fields, tool=tool)
            return result

        result = await self._run_attempt("tool", tool, run, hook_ctx, timeout)
        await self._emit(AgentEvent.tool_completed(**self._event_fields, tool=tool))
        return result

    async def _run_attempt(
        self, stage: str, name: str, run: Call, hook_ctx: HookContext, timeout: float | None
    ) -> Any:
        """Run something through the pipeline as a capability of its name."""
        name = name or stage
        services, work = self._bind_services(stage, name), _SessionCall(run)
        plain = {str(key): to_plain(value, lenient=True) for key, value in hook_ctx.args.items()}
        work.arguments = plain
        step: Any = {"parameters": plain, **({} if timeout is None else {"timeout": timeout})}
        caller = replace(current_caller(), role=self.agent.role)
        try:
            with acting_as(caller):
                spec = services.registry.capabilities[name]
                about: Any = {"services": services, "raw_errors": True, "work": work}
                record = await run_standalone_step(spec, step, **about)
            gave = record.contexts[_RESULT_TYPE][record.key]
            result = work.result if gave == work.plain_result else gave  # a guard rewrote it
            result = await self._run_hooks(f"after_{stage}", hook_ctx, result)
        except GraphBubbleUp:
            raise
        except Exception as exc:
            if isinstance(exc, ConfigurationError) and exc is not work.error:
                why = "a person would have to agree, and only a LangGraph run with a saver asks one"
                exc = GuardrailViolationError("ask", why)
            elif isinstance(exc, TimeoutError) and exc is not work.error:
                exc = TurnTimeoutError(
                    f"{name} took longer than {timeout} s.", fix="Raise timeout."
                )
            await self._handle_failure(exc)
            raise exc
        if self._plane is not None:
            self._plane.state.record_success()
        return result

    def _bind_services(self, stage: str, name: str) -> Services:
        """Return what a model or a tool of some name runs with: what this session decides."""
        found = self._bound_services.get((stage, name))
        if found is None:
            agent = self.agent
            options: dict[str, Any] = {"clock": agent.clock, "audit": agent.audit_log}
            if stage == "tool":
                options["behaviors"] = [GuardrailBehavior(guardrails=agent.guardrails)]
                options["permissions"] = agent.permissions
            registry = Registry(infrastructure=())
            registry.register(_session_capability(name))
            found = self._bound_services[stage, name] = bind(
                registry, settings=self.agent.settings, **options
            )
        return found

    async def arun_parallel_tools(
        self, calls: Sequence[Call | tuple[str, Call]], *, timeout: float | None = None
    ) -> list[Any]:
        """Run several tools at once, each as :meth:`arun_tool` does.

        Args:
            calls: The functions, or name and function of each; without one it is the function's.
            timeout: Seconds that all of them may take.

        Returns:
            Their results, in the order of the calls.

        Raises:
            Exception: What the first one that failed raised; the others are cancelled.
        """
        named = [
            one if isinstance(one, tuple) else (getattr(one, "__name__", "tool"), one)
            for one in calls
        ]
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.arun_tool(tool, fn)) for tool, fn in named]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in tasks]

    # People, policies, the end

    async def pause_for_input(self, prompt: Any = None) -> Any:
        """Wait until somebody gives an input.

        In a LangGraph run it interrupts the run, which waits as long as it takes, in no memory;
        otherwise :meth:`provide_input` gives it.

        Raises:
            RuntimeError: The session has ended, or waits already.
        """
        self._require_running("wait for input")
        if current_runtime() is not None:
            return interrupt(prompt)
        self._pending_input = Future()
        self.worker.transition(AgentStatus.WAITING_FOR_INPUT)
        try:
            return await asyncio.wrap_future(self._pending_input)
        finally:
            self._pending_input = None
            if not self.worker.is_terminal:
                self.worker.transition(AgentStatus.RUNNING)

    def provide_input(self, value: Any) -> None:
        """Give what :meth:`pause_for_input` waits for.

        Raises:
            RuntimeError: Nobody waits.
        """
        if self._pending_input is None or self._pending_input.done():
            raise SessionStateError("Nobody waits for input.", fix="Call it after pause_for_input.")
        self._pending_input.set_result(value)

    async def ahandoff_to(
        self,
        target_role: str,
        reason: str = "",
        context: Mapping[str, Any] | None = None,
        *,
        hook_ctx: HookContext | None = None,
    ) -> Handoff:
        """Hand the work to another role; whoever called runs it.

        Raises:
            RuntimeError: The session has ended.
        """
        self._require_running("hand over")
        agent = self.agent
        told = hook_ctx or HookContext(agent.role, agent.phase)
        told.args, told.extra["target_role"] = dict(context or {}), target_role
        await self._run_hooks("before_handoff", told)
        worker = agent.registry.create(target_role, agent.phase, agent.project_id)
        worker.transition(AgentStatus.INITIALIZING)
        to, context = worker.worker_id, told.args
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
        """Return the actions that the policies ask for; none without policies.

        Args:
            context: How the phase stands; when not given, how this session does.
            **overrides: What the caller knows better of it, by the fields of ``PhaseContext``.
        """
        engine = self.agent.policy_engine
        if engine is None:
            return []
        said = {name: value for name, value in overrides.items() if value is not None}
        seen = replace(context or self._phase_context(), **said)
        return list(run_sync(maybe_await(engine.evaluate(seen))))

    def authorize(self, tool_name: str) -> governance.PermissionOutcome:
        """Return whether the role may use a tool."""
        if self.agent.permissions is None:
            return governance.PermissionOutcome(True)
        enforcer = governance.PermissionEnforcer(self.agent.permissions)
        return enforcer.check(self.agent.role, tool_name)

    def complete(self, detail: str | None = None) -> None:
        """End the session as done, before its block ends."""
        self._close(
            AgentStatus.COMPLETED, AgentEvent.completed(**self._event_fields, detail=detail)
        )

    def fail(
        self, detail: str, failure_class: AgentFailureClass = AgentFailureClass.UNKNOWN
    ) -> None:
        """End the session as failed, before its block ends."""
        event = AgentEvent.failed(**self._event_fields, failure_class=failure_class, detail=detail)
        self._close(AgentStatus.FAILED, event)

    def cancel(self, detail: str | None = None) -> None:
        """End the session as cancelled, before its block ends."""
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
        """Return whether a quality is enough; ``None`` without a gate."""
        gate = self.agent.quality_gate
        if gate is None:
            return None
        outcome = gate.evaluate(observed)
        made = AgentEvent.gate_passed if outcome.satisfied else AgentEvent.gate_failed
        run_sync(self._emit(made(self.agent.phase)))
        return outcome

    def summary(self) -> SessionSummary:
        """Return what the session came to so far."""
        return SessionSummary(
            worker=self.worker.to_dict(),
            usage=self.tracker.summary(),
            per_model_cost=self.tracker.per_model_summary(),
            recovery_events=[one.to_dict() for one in self.recovery_events],
            agent_events=[event.to_dict() for event in self.events],
        )

    # What turns and tools share

    async def _run_once(self, key: str | None, run: Callable[[], Awaitable[T]]) -> T:
        if key is None:
            return await run()
        mine: Future[T] = Future()
        if (known := self._results_by_key.setdefault(key, mine)) is not mine:
            return await asyncio.shield(asyncio.wrap_future(known))
        try:
            result = await run()
        except BaseException as exc:
            del self._results_by_key[key]  # what failed may be tried again
            failed = isinstance(exc, Exception)
            mine.set_exception(exc if failed else SessionStateError("It was cancelled."))
            raise
        mine.set_result(result)
        return result

    async def _run_hooks(self, name: str, context: HookContext, result: Any = None) -> Any:
        for hook in self.agent.hooks:
            method = getattr(hook, f"a{name}", None) or getattr(hook, name, None)
            if method is None:
                continue
            before = name.startswith("before")
            found = await maybe_await(method(context) if before else method(context, result))
            result = result if found is None or before else found
        return result

    async def _emit(self, event: AgentEvent) -> None:
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
            get_logger("framework", "session").warning("a sink failed: %s", mask_secrets(repr(exc)))


AsyncOrchestrationSession = OrchestrationSession
"""What ``asession()`` gives is the same."""

# What stands for turns and tools in the pipeline

_RESULT_TYPE = "SESSION_RESULT"


class _SessionCall:
    """One turn, or one call of a tool.

    Attributes:
        run: Does it.
        arguments: What guards were shown before.
        result: What it gave.
        plain_result: What guards were shown of that.
        error: What it raised itself.
    """

    def __init__(self, run: Call) -> None:
        self.run = run
        self.arguments: dict[str, Any] = {}
        self.result: Any = None
        self.plain_result: Any = None
        self.error: Exception | None = None


@lru_cache(maxsize=256)
def _session_capability(call_name: str) -> Any:
    """Make the capability that stands for a model or a tool."""

    class Work(BaseCapability):
        name = call_name
        description = f"What a session calls {call_name!r}."
        provides = (_RESULT_TYPE,)

        async def execute(self) -> Any:
            work: _SessionCall = requested_work()
            if dict(self.parameters) != work.arguments:
                told = (
                    "The arguments of a session's tool are with its function, and stay as they are."
                )
                raise GuardrailViolationError("rewriting", told)
            try:
                with acting_as(None):
                    work.result = await work.run()
            except Exception as exc:
                work.error = exc
                raise
            work.plain_result = to_plain(work.result, lenient=True)
            return {_RESULT_TYPE: work.plain_result}

    return capability_node(Work)


_FAILURE_CLASSES: tuple[tuple[type[BaseException], AgentFailureClass], ...] = (
    (governance.PermissionDeniedError, AgentFailureClass.PERMISSION_DENIED),
    (GuardrailViolationError, AgentFailureClass.GUARDRAIL_VIOLATION),
    (RateLimitExceededError, AgentFailureClass.RATE_LIMIT),
    (LimitError, AgentFailureClass.GOVERNANCE_BREACH),
    (CapgraphValidationError, AgentFailureClass.VALIDATION_ERROR),
    (TimeoutError, AgentFailureClass.LLM_TIMEOUT),
)


def _limit_fields(breach: Any) -> dict[str, Any]:
    about = {name: getattr(breach, name) for name in ("limit_name", "observed", "ceiling")}
    return {**about, "scope": "session"}


def _failure_class(exc: BaseException) -> AgentFailureClass:
    return next(
        (kind for cls, kind in _FAILURE_CLASSES if isinstance(exc, cls)), AgentFailureClass.UNKNOWN
    )
