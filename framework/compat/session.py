"""Sessions of an agent that is no graph, under the names of techrevati-runtime.

A session runs turns and tools of one role through permissions, guards, limits and budget, and tells
what happened. The rules are those of :mod:`framework.governance` and :mod:`framework.behaviors`;
a graph (or ``bind``) is the way of this project. Each synchronous name waits for its asynchronous
twin.
"""

# ruff: noqa: ASYNC109  the documented names have a time limit of their own
from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Literal, TypeVar

from langgraph.config import get_config
from langgraph.types import interrupt

from configs.logger import get_logger, mask_secrets
from framework.base.awaiting import awaited, blocking, waited
from framework.base.clock import SystemClock, as_clock
from framework.base.errors import CapgraphError, ErrorSeverity, LimitError
from framework.base.errors import ValidationError as CapgraphValidationError
from framework.base.ports import Sink as EventSink
from framework.behaviors import AsyncCircuitBreaker, CircuitBreaker, RateLimitExceededError
from framework.behaviors.guardrails import GuardrailViolationError, Guards
from framework.compat.worker import (
    AgentRegistry,
    AgentStatus,
    AgentWorker,
    AgentWorkerEvent,
    Handoff,
    InvalidTransitionError,
)
from framework.governance import (
    BudgetExceededError,
    GovernanceBreachError,
    GovernancePlane,
    PermissionDeniedError,
    PermissionEnforcer,
    PhaseContext,
    PolicyEngine,
    QualityGate,
    RecoveryContext,
    UsageLimits,
    aattempt_recovery,
    classify_exception,
)
from framework.telemetry import (
    AgentEvent,
    AgentEventName,
    AgentEventStatus,
    AgentFailureClass,
    UsageSnapshot,
    UsageTracker,
)
from framework.telemetry import NoopSink as NoopEventSink
from framework.telemetry import RingBufferSink as RingBufferEventSink

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

T = TypeVar("T")
Call = Callable[[], Any]
"""What a turn or a tool does: a function without arguments, or a coroutine function."""


class MaxIterationsExceededError(LimitError):
    """A session has made as many turns as it may."""


class TurnTimeoutError(CapgraphError, TimeoutError):
    """A turn took longer than it may."""

    code = "CG-CAPABILITY"
    severity = ErrorSeverity.RETRIABLE


class SessionStateError(CapgraphError, RuntimeError):
    """A session is asked for what it cannot do as it stands."""

    code = "CG-CAPABILITY"


@dataclass(slots=True)
class HookContext:
    """What hooks are told; those before a call may change it.

    Attributes:
        role: Who works.
        phase: On what.
        stage: ``model``, ``tool`` or ``handoff``.
        name: The model, the tool or the target.
        arguments: What the tool is called with.
        metadata: For the hooks' own notes.
    """

    role: str
    phase: str
    stage: Literal["model", "tool", "handoff"]
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """A piece of a streamed turn.

    Attributes:
        kind: ``text_delta``, ``error`` or ``final``.
        text: The piece.
        status: How the turn ended, in the final event: ``completed`` or ``failed``.
        usage: What it cost, in the final event.
        error: Why it failed.
    """

    kind: Literal["text_delta", "error", "final"]
    text: str = ""
    status: str | None = None
    usage: UsageSnapshot | None = None
    error: BaseException | None = None


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
        limiters: Rate limits, asked before each turn with the model as key.
        provider_router: Chooses another provider after a failure of one.
        usage_limits: What a session may use.
        governance: Limits that end a session.
        hooks: Objects with some of ``before_model``, ``after_model``, ``before_tool``,
            ``after_tool``, ``before_handoff``, from the left to the right.
        audit_log: Takes up what was done, by digest.
        risks: Looked at before a session begins.
        clock: Time, or a function that gives seconds.

    >>> agent = AgentSession("writer", "draft")
    >>> with agent.session() as session:
    ...     result, usage = session.run_turn(lambda: "a text")
    >>> result, session.worker.status.value
    ('a text', 'completed')
    """

    role: str
    phase: str
    _: KW_ONLY
    project_id: int | None = None
    registry: Any = None
    permissions: Any = None
    circuit_breaker: CircuitBreaker | AsyncCircuitBreaker | None = None
    async_circuit_breaker: InitVar[AsyncCircuitBreaker | None] = None
    breakers: Mapping[str, CircuitBreaker | AsyncCircuitBreaker] = field(default_factory=dict)
    policy_engine: PolicyEngine | None = None
    quality_gate: QualityGate | None = None
    budget_usd: float | None = None
    enforce_budget: bool = False
    max_iterations: int = 25
    guardrails: Sequence[Any] = ()
    event_sink: Any = None
    usage_sink: Any = None
    limiters: Sequence[Any] = ()
    provider_router: Any = None
    usage_limits: UsageLimits | None = None
    governance: GovernancePlane | None = None
    hooks: Sequence[Any] = ()
    audit_log: Any = None
    risks: Any = None
    clock: Any = None

    def __post_init__(self, async_circuit_breaker: AsyncCircuitBreaker | None) -> None:
        self.registry = AgentRegistry() if self.registry is None else self.registry
        if self.permissions is not None and not isinstance(self.permissions, PermissionEnforcer):
            self.permissions = PermissionEnforcer(self.permissions)
        self.circuit_breaker = self.circuit_breaker or async_circuit_breaker
        self.guards, self.breakers = Guards(self.guardrails), self.breakers or {}
        self.clock = SystemClock() if self.clock is None else as_clock(self.clock)

    @contextmanager
    def session(self) -> Iterator[OrchestrationSession]:
        """Begin a session and end it, however the block ends."""
        session = OrchestrationSession(self)
        waited(session._begin())
        try:
            yield session
        except BaseException as exc:
            waited(session._end(exc))
            raise
        waited(session._end(None))

    @asynccontextmanager
    async def asession(self) -> AsyncIterator[OrchestrationSession]:
        """Begin a session and end it, however the block ends."""
        session = OrchestrationSession(self)
        await session._begin()
        try:
            yield session
        except BaseException as exc:
            await session._end(exc)
            raise
        await session._end(None)


Orchestrator = AgentSession
"""The older name."""


class OrchestrationSession:
    """One session: what ``AgentSession.session()`` and ``asession()`` give."""

    def __init__(self, agent: AgentSession) -> None:
        self.agent = agent
        self.worker = agent.registry.create(agent.role, agent.phase, agent.project_id)
        self.tracker = UsageTracker()
        self.events: list[AgentEvent] = []
        self.recovery_events: list[Any] = []
        self.turns = 0
        self.stream_cancelled = False
        self._plane = agent.governance.for_session() if agent.governance is not None else None
        self._recovery = RecoveryContext()
        self._answers: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()
        self._waiting: Future[Any] | None = None
        self._failed: Exception | None = None
        self._told_budget = False
        self._exhausted: set[str] = set()
        self._clock = agent.clock
        self._began = self._clock.monotonic()

    # Beginning and end

    async def _begin(self) -> None:
        if self.agent.risks is not None:
            self.agent.risks.assert_no_unacceptable()
        self.worker.transition(AgentStatus.INITIALIZING)
        self.worker.transition(AgentStatus.RUNNING)
        await self._emit(AgentEvent.started(self.agent.role, self.agent.phase))

    async def _end(self, exc: BaseException | None) -> None:
        role, phase = self.agent.role, self.agent.phase
        if self.worker.is_terminal:
            return
        failed = exc if isinstance(exc, Exception) else self._failed if exc is None else None
        if failed is not None:
            told = mask_secrets(str(failed) or type(failed).__name__)
            self.worker.transition(AgentStatus.FAILED, told)
            await self._emit(AgentEvent.failed(role, phase, _failure_class(failed), told))
        elif exc is not None:
            self.worker.transition(AgentStatus.CANCELLED, type(exc).__name__)
            event = AgentEvent.failed(role, phase, AgentFailureClass.CANCELLED, type(exc).__name__)
            await self._emit(event)
        else:
            if self.worker.status is AgentStatus.WAITING_FOR_INPUT:
                self.worker.transition(AgentStatus.RUNNING)
            self.worker.transition(AgentStatus.COMPLETED)
            await self._emit(AgentEvent.completed(role, phase))

    def _running(self, what: str) -> None:
        if self.worker.status is not AgentStatus.RUNNING:
            raise SessionStateError(
                f"The session is {self.worker.status.value}, so it cannot {what}.",
                fix="Begin another session." if self.worker.is_terminal else "Give it its input.",
            )

    # Turns

    async def arun_turn(
        self,
        fn: Call,
        model: str = "",
        usage: UsageSnapshot | None = None,
        estimate_usage: UsageSnapshot | None = None,
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
                knows better.
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
        return await self._once(
            idempotency_key,
            lambda: self._turn(fn, model, usage, estimate_usage, timeout, hook_ctx),
        )

    run_turn = blocking(arun_turn)

    async def _turn(
        self,
        fn: Call,
        model: str,
        usage: UsageSnapshot | None,
        estimate: UsageSnapshot | None,
        timeout: float | None,
        hook_ctx: HookContext | None,
    ) -> tuple[Any, UsageSnapshot]:
        context = hook_ctx or HookContext(self.agent.role, self.agent.phase, "model", model)
        await self._may_begin(model, estimate)
        try:
            await self._hooks("before_model", context)
            breaker = self.agent.breakers.get(model, self.agent.circuit_breaker)
            result = await self._bounded(fn, model, timeout, breaker)
            result = await self._hooks("after_model", context, result)
        except Exception as exc:
            await self._failure(exc)
            raise
        spent = usage or estimate or UsageSnapshot()
        await self._spent(model, spent)
        self._success()
        return result, spent

    async def _may_begin(self, model: str, estimate: UsageSnapshot | None) -> None:
        self._running("run a turn")
        agent = self.agent
        for limiter in agent.limiters:
            tokens = estimate.prompt_tokens if estimate is not None else 0
            await awaited(limiter.acquire(model or agent.role, input_tokens=tokens))
        if self.turns >= agent.max_iterations:
            raise MaxIterationsExceededError(
                f"The session has made {self.turns} turns, and max_iterations is"
                f" {agent.max_iterations}.",
                fix="Raise max_iterations, or ask for less.",
            )
        if agent.enforce_budget and agent.budget_usd is not None:
            more = self.tracker.cost_for_turn(model, estimate) if estimate is not None else 0.0
            await self._over(more or 0.0)
        self.turns += 1
        if self._plane is not None:
            self._plane.state.record_turn_start()
            await self._govern()

    async def _bounded(self, fn: Call, name: str, timeout: float | None, breaker: Any) -> Any:
        async def call() -> Any:
            return await awaited(fn())

        timer = asyncio.timeout(timeout)
        try:
            async with timer:
                return await (call() if breaker is None else breaker.acall(call))
        except TimeoutError as exc:
            if not timer.expired():
                raise
            raise TurnTimeoutError(
                f"{name or 'The turn'} took longer than {timeout:g} s.", fix="Raise timeout."
            ) from exc

    async def _spent(self, model: str, usage: UsageSnapshot) -> None:
        agent = self.agent
        self.tracker.record_turn(model, usage)
        cost = self.tracker.cost_for_turn(model, usage)
        if agent.usage_sink is not None:
            await self._quietly(agent.usage_sink.record, model, usage, cost)
        await self._audit("turn", model=model, usage=usage.to_dict())
        if agent.usage_limits is not None:
            self.tracker.check_limits(agent.usage_limits)
        if self._plane is not None:
            self._plane.state.record_cost(cost)
            await self._govern()
        await self._over(0.0)

    async def _over(self, more: float) -> None:
        """Tell once that the budget is passed, and raise where it is enforced."""
        budget, total = self.agent.budget_usd, self.tracker.total_cost()
        if budget is None or (total is not None and total + more <= budget):
            return
        if not self._told_budget:
            self._told_budget = True
            told = "a cost that nobody knows" if total is None else f"${total + more:.4f}"
            event = AgentEvent.failed(
                self.agent.role,
                self.agent.phase,
                AgentFailureClass.GOVERNANCE_BREACH,
                f"The budget of ${budget:g} does not hold {told}.",
            )
            await self._emit(event.with_data({"budget_usd": budget, "cost_usd": total}))
        if self.agent.enforce_budget:
            self._failed = BudgetExceededError(
                f"The session would come to ${(total or 0.0) + more:.4f}, and budget_usd is"
                f" {budget:g}.",
                fix="Raise budget_usd, or ask for less.",
                limit="cost_usd",
                value=budget,
                used=total or 0.0,
                asked=more,
            )
            raise self._failed

    async def _govern(self) -> None:
        assert self._plane is not None
        role, phase = self.agent.role, self.agent.phase
        name, status = AgentEventName.GOVERNANCE_ALERT, AgentEventStatus.BLOCKED
        try:
            found = self._plane.enforce()
        except GovernanceBreachError as exc:
            self._failed = exc
            name, status = AgentEventName.GOVERNANCE_BREACH, AgentEventStatus.FAILED
            await self._emit(AgentEvent(name, status, role=role, phase=phase, detail=str(exc)))
            raise
        for outcome in found:
            if outcome.breached:
                detail = f"{outcome.limit_name}: {outcome.observed:g} of {outcome.ceiling:g}"
                await self._emit(AgentEvent(name, status, role=role, phase=phase, detail=detail))

    def _success(self) -> None:
        if self._plane is not None:
            self._plane.state.record_success()

    async def _failure(self, exc: Exception) -> None:
        """Classify a failure, try once to recover, and say what was done."""
        if self._plane is not None:
            self._plane.state.record_failure()
        if isinstance(exc, (LimitError, PermissionDeniedError)):
            return  # a bound of ours: nothing recovers it
        role, phase = self.agent.role, self.agent.phase
        scenario = classify_exception(exc)
        told = mask_secrets(str(exc) or type(exc).__name__)
        await self._emit(AgentEvent.recovery_attempted(role, phase, f"{scenario.value}: {told}"))
        self.worker.retry_count += 1
        result = await aattempt_recovery(scenario, self._recovery)
        self.recovery_events.append(result)
        if result.outcome == "escalation_required":
            self._exhausted.add(scenario.value)
        router = self.agent.provider_router
        if router is not None:
            current = self.worker.provider_used
            found = router.select(
                scenario=scenario.value, attempt=self.worker.retry_count, current=current
            )
            if found is not None and found != current:
                self.worker.provider_used = found
                name = AgentEventName.RECOVERY_PROVIDER_SWITCHED
                status = AgentEventStatus.RUNNING
                await self._emit(AgentEvent(name, status, role=role, phase=phase, detail=found))
        if self._plane is not None:
            await self._govern()

    async def arun_turn_stream(
        self,
        fn: Callable[[], AsyncIterator[Any]],
        model: str = "",
        usage: UsageSnapshot | None = None,
        estimate_usage: UsageSnapshot | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Run one turn piece by piece: ``text_delta`` …, ``final``.

        Args:
            fn: Gives the pieces; a ``UsageSnapshot`` among them is what the turn cost.
            model: The model's name.
            usage: What it cost, where that is known.
            estimate_usage: What it may cost.

        Raises:
            Exception: What ``fn`` raised, after an ``error`` and a ``final`` event.
        """
        context = HookContext(self.agent.role, self.agent.phase, "model", model)
        await self._may_begin(model, estimate_usage)
        pieces, over = fn(), False
        spent = usage
        try:
            await self._hooks("before_model", context)
            async for piece in pieces:
                if isinstance(piece, UsageSnapshot):
                    spent = spent or piece
                else:
                    yield StreamEvent("text_delta", str(piece))
            over = True
        except Exception as exc:
            over = True
            await self._failure(exc)
            yield StreamEvent("error", error=exc)
            yield StreamEvent("final", status="failed", usage=spent, error=exc)
            raise
        finally:
            self.stream_cancelled = self.stream_cancelled or not over
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()
        spent = spent or estimate_usage or UsageSnapshot()
        await self._spent(model, spent)
        self._success()
        yield StreamEvent("final", status="completed", usage=spent)

    # Tools

    async def arun_tool(
        self,
        tool: str,
        fn: Call,
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Run one tool: permission, limits, hooks, guards, the call, guards, hooks.

        Args:
            tool: Its name.
            fn: Calls it.
            arguments: What it is called with, for the guards.
            timeout: Seconds that it may take.
            idempotency_key: A second call of one key in one session is the first.

        Raises:
            PermissionDeniedError: The role may not use it.
            GuardrailViolationError: A guard refuses its arguments or its result.
        """
        return await self._once(
            idempotency_key, lambda: self._tool(tool, fn, dict(arguments or {}), timeout)
        )

    run_tool = blocking(arun_tool)

    async def _tool(
        self, tool: str, fn: Call, arguments: dict[str, Any], timeout: float | None
    ) -> Any:
        agent = self.agent
        self._running("run a tool")
        if agent.permissions is not None:
            outcome = agent.permissions.check(agent.role, tool)
            if not outcome.allowed:
                await self._audit("denied", tool=tool)
                raise PermissionDeniedError(outcome)
        if self._plane is not None:
            self._plane.state.record_tool_call()
            await self._govern()
        context = HookContext(agent.role, agent.phase, "tool", tool, arguments)
        said: dict[str, Any] = {"role": agent.role, "phase": agent.phase, "data": {"tool": tool}}
        try:
            await self._hooks("before_tool", context)
            # The function has its arguments already, so nothing could be rewritten.
            await agent.guards.before(context.arguments, tool=tool, role=agent.role, can=())
            called = AgentEventName.AGENT_TOOL_CALLED
            await self._emit(AgentEvent(called, AgentEventStatus.RUNNING, **said))
            result = await self._bounded(fn, tool, timeout, agent.breakers.get(tool))
            await self._audit("tool", tool=tool)
            result = (await agent.guards.after(result, tool=tool, role=agent.role)).value
            result = await self._hooks("after_tool", context, result)
        except Exception as exc:
            await self._failure(exc)
            raise
        done = AgentEventName.AGENT_TOOL_COMPLETED
        await self._emit(AgentEvent(done, AgentEventStatus.GREEN, **said))
        self._success()
        return result

    async def arun_parallel_tools(
        self, calls: Sequence[tuple[str, Call]], timeout: float | None = None
    ) -> list[Any]:
        """Run several tools at once, each as :meth:`arun_tool` does.

        Args:
            calls: Name and function of each.
            timeout: Seconds that all of them may take.

        Returns:
            Their results, in the order of the calls.

        Raises:
            Exception: What the first one that failed raised; the others are cancelled.
        """
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.arun_tool(tool, fn)) for tool, fn in calls]
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
        self._running("wait for input")
        try:
            get_config()
        except RuntimeError:
            pass
        else:
            return interrupt(prompt)
        self._waiting = Future()
        self.worker.transition(AgentStatus.WAITING_FOR_INPUT)
        try:
            return await asyncio.wrap_future(self._waiting)
        finally:
            self._waiting = None
            if not self.worker.is_terminal:
                self.worker.transition(AgentStatus.RUNNING)

    def provide_input(self, value: Any) -> None:
        """Give what :meth:`pause_for_input` waits for.

        Raises:
            RuntimeError: Nobody waits.
        """
        if self._waiting is None or self._waiting.done():
            raise SessionStateError("Nobody waits for input.", fix="Call it after pause_for_input.")
        self._waiting.set_result(value)

    async def ahandoff_to(
        self, target: str, reason: str = "", context: Mapping[str, Any] | None = None
    ) -> Handoff:
        """Hand the work to another role; whoever called runs it.

        Raises:
            RuntimeError: The session has ended.
        """
        self._running("hand over")
        agent = self.agent
        told = HookContext(agent.role, agent.phase, "handoff", target, dict(context or {}))
        await self._hooks("before_handoff", told)
        worker = agent.registry.create(target, agent.phase, agent.project_id)
        worker.transition(AgentStatus.INITIALIZING)
        to, context = worker.worker_id, told.arguments
        handoff = Handoff(
            agent.role, target, agent.phase, reason, context, agent.project_id, target_worker_id=to
        )
        self.worker.transition(AgentStatus.COMPLETED)
        event = AgentEvent.completed(agent.role, agent.phase, reason or None)
        await self._emit(event.with_data({"handoff": handoff.to_dict()}))
        return handoff

    handoff_to = blocking(ahandoff_to)

    def evaluate_policy(self, context: PhaseContext | None = None) -> list[Any]:
        """Return the actions that the policies ask for; none without policies.

        Args:
            context: How the phase stands; when not given, how this session does.
        """
        engine = self.agent.policy_engine
        if engine is None:
            return []
        return list(waited(awaited(engine.evaluate(context or self._standing()))))

    def _standing(self) -> PhaseContext:
        return PhaseContext(
            phase=self.agent.phase,
            all_roles={self.agent.role},
            failed_roles={self.agent.role} if self._failed is not None else set(),
            elapsed_seconds=self._clock.monotonic() - self._began,
            retry_exhausted_scenarios=set(self._exhausted),
            total_cost_usd=self.tracker.total_cost(),
        )

    def evaluate_gate(self, observed: Any) -> Any:
        """Return whether a quality is enough; ``None`` without a gate."""
        gate = self.agent.quality_gate
        if gate is None:
            return None
        outcome = gate.evaluate(observed)
        made = AgentEvent.gate_passed if outcome.satisfied else AgentEvent.gate_failed
        waited(self._emit(made(self.agent.phase)))
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

    async def _once(self, key: str | None, run: Callable[[], Awaitable[T]]) -> T:
        if key is None:
            return await run()
        with self._lock:
            known = self._answers.get(key)
            mine: Future[T] = known or Future()
            self._answers.setdefault(key, mine)
        if known is not None:
            return await asyncio.wrap_future(mine)
        try:
            result = await run()
        except BaseException as exc:
            with self._lock:
                del self._answers[key]  # what failed may be tried again
            mine.set_exception(
                exc if isinstance(exc, Exception) else SessionStateError("cancelled")
            )
            with suppress(Exception):
                mine.exception()
            raise
        mine.set_result(result)
        return result

    async def _hooks(self, name: str, context: HookContext, result: Any = None) -> Any:
        for hook in self.agent.hooks:
            method = getattr(hook, name, None)
            if method is None:
                continue
            before = name.startswith("before")
            found = await awaited(method(context) if before else method(context, result))
            result = result if found is None or before else found
        return result

    async def _emit(self, event: AgentEvent) -> None:
        self.events.append(event)
        if self.agent.event_sink is not None:
            await self._quietly(self.agent.event_sink.emit, event)

    async def _audit(self, kind: str, **data: Any) -> None:
        if self.agent.audit_log is not None:
            found = {"role": self.agent.role, "phase": self.agent.phase, **data}
            await awaited(self.agent.audit_log.append(kind, found))

    async def _quietly(self, take: Callable[..., Any], *given: Any) -> None:
        try:
            await awaited(take(*given))
        except Exception as exc:
            get_logger("framework", "session").warning("a sink failed: %s", mask_secrets(repr(exc)))


AsyncOrchestrationSession = OrchestrationSession
"""What ``asession()`` gives is the same."""
_CLASSES: tuple[tuple[type[BaseException], AgentFailureClass], ...] = (
    (PermissionDeniedError, AgentFailureClass.PERMISSION_DENIED),
    (GuardrailViolationError, AgentFailureClass.GUARDRAIL_VIOLATION),
    (RateLimitExceededError, AgentFailureClass.RATE_LIMIT),
    (LimitError, AgentFailureClass.GOVERNANCE_BREACH),
    (CapgraphValidationError, AgentFailureClass.VALIDATION_ERROR),
    (TimeoutError, AgentFailureClass.LLM_TIMEOUT),
)


def _failure_class(exc: BaseException) -> AgentFailureClass:
    return next((kind for cls, kind in _CLASSES if isinstance(exc, cls)), AgentFailureClass.UNKNOWN)
