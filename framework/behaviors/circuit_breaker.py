"""Circuit breakers, which refuse calls to a failing dependency for a while and then probe it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeVar

from langgraph.errors import GraphBubbleUp

from capgraph.base.error_classification import diagnose
from capgraph.base.errors import (
    AskAgain,
    CapabilityError,
    ConfigurationError,
    ErrorSeverity,
    LimitError,
    MalformedAnswerError,
    ModelError,
)
from capgraph.base.ports import Attempt, CallNext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.clock import Clock, SystemClock, as_clock, current_clock, timestamp_after
from capgraph.helpers.number_validation import check_number
from capgraph.pipeline.finalize import classify_step_failure
from capgraph.pipeline.step_execution import StepExecution, current_execution
from capgraph.stores.atomic_values import FOREVER, ChangeFunction, log_and_suppress
from capgraph.stores.database import SqlTables
from capgraph.stores.persistence import open_values
from capgraph.telemetry import CircuitChanged, emit

T = TypeVar("T")


class CircuitState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    """Calls are allowed."""
    OPEN = "open"
    """Calls are refused."""
    HALF_OPEN = "half_open"
    """A few probe calls are allowed, to find out if the dependency has recovered."""


class CircuitOpenError(LimitError):
    """Raised if a circuit breaker blocks a call because its dependency has failed repeatedly.

    Attributes:
        name: Name of the dependency.
        retry_after: Seconds until the next probe, or ``None`` while other calls are probing the
            dependency.
    """

    code = "CG-CIRCUIT-OPEN"
    name: str = ""
    retry_after: float | None = None


class _Ticket(NamedTuple):
    """Permission to make a call through a circuit breaker.

    The ticket contains the era of the circuit and, if the call is a probe, the ID of the probe.
    """

    era: int
    probe: str = ""


class _Rejection(NamedTuple):
    """Refusal of a call by a circuit breaker, with the seconds until calls are allowed again.

    The number of seconds is ``None`` while all probes are in use.
    """

    seconds: float | None


class _Transition(NamedTuple):
    """State change of a circuit breaker, with its states before and after the change."""

    before: CircuitState
    after: CircuitState
    failures: int


@dataclass(frozen=True, slots=True)
class _BreakerRules:
    """State machine of a circuit breaker, written as pure functions of a plain value.

    The value can be stored in a database. It contains ``failures`` (consecutive), ``opened``
    (time, or ``None``), ``era`` (number of changes between open and closed), and ``probes``
    (start times). The result of a call that began in an earlier era is ignored.
    """

    threshold: int
    timeout: float
    probes: int
    lease: float = math.inf
    """Seconds after which a probe counts as lost, because its process may have died."""

    def __post_init__(self) -> None:
        counts = {"failure_threshold": self.threshold, "half_open_max_probes": self.probes}
        for name, count in counts.items():
            check_number(name, count, minimum=1, integer=True, error=ConfigurationError)
        check_number("recovery_timeout", self.timeout, error=ConfigurationError)

    def state(self, value: dict[str, Any], now: float) -> CircuitState:
        if value["opened"] is None:
            return CircuitState.CLOSED
        due = now - value["opened"] >= self.timeout
        return CircuitState.HALF_OPEN if due else CircuitState.OPEN

    def inspect(self, value: Any, now: float) -> tuple[Any, float, tuple[CircuitState, float]]:
        """Return the state, and the seconds until an open circuit allows a probe."""
        circuit = _read_value(value)
        state = self.state(circuit, now)
        remaining = circuit["opened"] + self.timeout - now if state is CircuitState.OPEN else 0.0
        return value, FOREVER, (state, remaining)

    def admit(self, value: Any, now: float) -> tuple[Any, float, tuple[_Ticket | _Rejection, bool]]:
        """Allow or refuse a call through the circuit breaker.

        The second result is True for the first probe of a half-open circuit.
        """
        circuit = _read_value(value)
        state = self.state(circuit, now)
        if state is CircuitState.CLOSED:
            return value, FOREVER, (_Ticket(circuit["era"]), False)
        if state is CircuitState.OPEN:
            remaining = circuit["opened"] + self.timeout - now
            return value, FOREVER, (_Rejection(remaining), False)
        probes = {name: at for name, at in circuit["probes"].items() if now - at < self.lease}
        if len(probes) >= self.probes:
            return value, FOREVER, (_Rejection(None), False)
        first = not circuit["probed"]
        name = uuid.uuid4().hex
        new = {**circuit, "probes": {**probes, name: now}, "probed": True}
        return new, FOREVER, (_Ticket(circuit["era"], name), first)

    def complete(
        self, ticket: _Ticket | None, succeeded: bool | None
    ) -> ChangeFunction[_Transition]:
        """Return a state change that records the outcome of a call through the circuit breaker.

        Args:
            ticket: Ticket of the call, or ``None`` for a call that was made without the breaker.
            succeeded: True for success, False for failure, or ``None`` if the outcome reveals
                nothing about the dependency.
        """

        def change(value: Any, now: float) -> tuple[Any, float, _Transition]:
            circuit = _read_value(value)
            old_state = self.state(circuit, now)
            if ticket is not None and ticket.era != circuit["era"]:
                return value, FOREVER, _Transition(old_state, old_state, circuit["failures"])
            probes = {
                n: at for n, at in circuit["probes"].items() if not ticket or n != ticket.probe
            }
            new = {**circuit, "probes": probes}
            if succeeded is None or old_state is CircuitState.OPEN:
                pass
            elif succeeded:
                has_recovered = old_state is CircuitState.HALF_OPEN
                new |= (
                    _create_closed_value(circuit["era"] + 1) if has_recovered else {"failures": 0}
                )
            else:
                new["failures"] += 1
                if old_state is CircuitState.HALF_OPEN or new["failures"] >= self.threshold:
                    era = circuit["era"] + 1
                    new |= {"opened": now, "era": era, "probes": {}, "probed": False}
            transition = _Transition(old_state, self.state(new, now), new["failures"])
            return value if new == circuit else new, FOREVER, transition

        return change

    def reset(self, value: Any, now: float) -> tuple[Any, float, _Transition]:
        """Close the circuit."""
        circuit = _read_value(value)
        old_state = self.state(circuit, now)
        return (
            _create_closed_value(circuit["era"] + 1),
            FOREVER,
            _Transition(old_state, CircuitState.CLOSED, 0),
        )

    def release(self, admission: tuple[_Ticket | _Rejection, bool]) -> ChangeFunction[_Transition]:
        """Return a state change that releases the permission for a call that never started."""
        ticket = admission[0]
        return self.complete(ticket if isinstance(ticket, _Ticket) else _Ticket(-1), None)


def _read_value(value: Any) -> dict[str, Any]:
    return value if value is not None else _create_closed_value(0)


def _create_closed_value(era: int) -> dict[str, Any]:
    return {"failures": 0, "opened": None, "era": era, "probes": {}, "probed": False}


def _create_open_error(name: str, seconds: float | None, clock: Clock) -> CircuitOpenError:
    if seconds is None:
        message = f"{name!r} is unavailable: its circuit is being probed after failures."
    else:
        until = _format_time(clock, seconds)
        message = f"{name!r} is unavailable until {until}: it failed repeatedly."
    fix = "Try again later, or use another capability."
    return CircuitOpenError(message, fix=fix, name=name, retry_after=seconds)


def _format_time(clock: Clock, seconds: float) -> str:
    at = math.ceil(timestamp_after(clock, seconds))
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class _BaseBreaker:
    """Base class of the synchronous and the asynchronous breaker."""

    def __init__(
        self,
        name: str,
        failure_threshold: int = 5,
        recovery_timeout_seconds: float = 60.0,
        half_open_max_probes: int = 1,
        clock: Clock | Callable[[], float] | None = None,
        *,
        store: str | SqlTables | None = None,
    ) -> None:
        self.name = name
        self._rules = _build_rules(
            failure_threshold, recovery_timeout_seconds, half_open_max_probes, store
        )
        self._clock = as_clock(clock) if clock is not None else SystemClock()
        self._values = open_values(store)
        self._key = f"breaker/{name}"

    async def acall(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function through the circuit breaker, await its result, and record the outcome.

        Raises:
            CircuitOpenError: The circuit is open, so the function was not called.
        """
        admission = await self._values.achange(
            self._key, self._rules.admit, self._clock, self._rules.release
        )
        ticket = self._require_ticket(admission)
        try:
            result = await maybe_await(fn(*args, **kwargs))
        except BaseException as exc:
            await self._acomplete(ticket, _classify_exception(exc))
            raise
        await self._acomplete(ticket, True)
        return result

    async def _acomplete(self, ticket: _Ticket | None, succeeded: bool | None) -> None:
        await self._values.achange(self._key, self._rules.complete(ticket, succeeded), self._clock)

    def _require_ticket(self, admission: tuple[_Ticket | _Rejection, bool]) -> _Ticket:
        ticket = admission[0]
        if isinstance(ticket, _Rejection):
            raise _create_open_error(self.name, ticket.seconds, self._clock)
        return ticket


def _build_rules(threshold: int, timeout: float, probes: int, store: Any) -> _BreakerRules:
    rules = _BreakerRules(threshold, timeout, probes)
    return rules if store is None else replace(rules, lease=max(timeout, 60.0))


def _classify_exception(exc: BaseException) -> bool | None:
    """Classify an exception that a protected call raised.

    Return False for a failure of the dependency, and None for a cancellation or an interrupt.
    """
    return None if isinstance(exc, GraphBubbleUp) or not isinstance(exc, Exception) else False


class CircuitBreaker(_BaseBreaker):
    """Circuit breaker for calls to a dependency that may fail.

    It opens after consecutive failures and then refuses calls at once. After a timeout it admits a
    few probes: a successful probe closes it, a failed one opens it again. Canceled calls, and
    calls that began before the circuit last changed, are ignored.

    Args:
        name: Name of the dependency.
        failure_threshold: Number of consecutive failures that opens the circuit.
        recovery_timeout_seconds: Seconds until an open circuit is probed.
        half_open_max_probes: Maximum number of concurrent probes.
        clock: A ``Clock`` or a function that returns seconds.
        store: Database for the state, shared by processes: ``sqlite:///file.db``,
            ``postgresql://…`` or ``redis://…``.

    Raises:
        ConfigurationError: A number is invalid. The error is a ``ValueError``.

    >>> breaker = CircuitBreaker("mail", failure_threshold=1)
    >>> breaker.record_failure()
    >>> breaker.state().value, breaker.is_open()
    ('open', True)
    """

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function through the circuit breaker and record the outcome.

        Raises:
            CircuitOpenError: The circuit is open, so the function was not called.
        """
        ticket = self._require_ticket(
            self._values.change(self._key, self._rules.admit, self._clock)
        )
        try:
            result = fn(*args, **kwargs)
        except BaseException as exc:
            self._complete(ticket, _classify_exception(exc))
            raise
        self._complete(ticket, True)
        return result

    def state(self) -> CircuitState:
        """Return the current state of the circuit."""
        return self._values.change(self._key, self._rules.inspect, self._clock)[0]

    def is_open(self) -> bool:
        """Return True if calls are refused."""
        return self.state() is CircuitState.OPEN

    def record_success(self) -> None:
        """Record a successful call that was made without the circuit breaker."""
        self._complete(None, True)

    def record_failure(self) -> None:
        """Record a failed call that was made without the circuit breaker."""
        self._complete(None, False)

    def reset(self) -> None:
        """Close the circuit."""
        self._values.change(self._key, self._rules.reset, self._clock)

    def _complete(self, ticket: _Ticket | None, succeeded: bool | None) -> None:
        self._values.change(self._key, self._rules.complete(ticket, succeeded), self._clock)


class AsyncCircuitBreaker(_BaseBreaker):
    """Asynchronous version of :class:`CircuitBreaker`, whose methods are coroutine functions.

    >>> import asyncio
    >>> async def main():
    ...     breaker = AsyncCircuitBreaker("mail")
    ...     await breaker.call(asyncio.sleep, 0)
    ...     return await breaker.state()
    >>> asyncio.run(main()).value
    'closed'
    """

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function through the circuit breaker, as described in :meth:`acall`."""
        return await self.acall(fn, *args, **kwargs)

    async def state(self) -> CircuitState:
        """Return the current state of the circuit."""
        return (await self._values.achange(self._key, self._rules.inspect, self._clock))[0]

    async def is_open(self) -> bool:
        """Return True if calls are refused."""
        return await self.state() is CircuitState.OPEN

    async def record_success(self) -> None:
        """Record a successful call that was made without the circuit breaker."""
        await self._acomplete(None, True)

    async def record_failure(self) -> None:
        """Record a failed call that was made without the circuit breaker."""
        await self._acomplete(None, False)

    async def reset(self) -> None:
        """Close the circuit."""
        await self._values.achange(self._key, self._rules.reset, self._clock)


class CircuitBreakerBehavior:
    """Behavior with a circuit breaker for each capability and each model role.

    Every attempt passes the breaker. Only failures of the called code count, not refused values,
    interrupts, or limits of the framework. While a circuit is open, plans do not use the
    capability. A step that needs an open circuit is replanned once.

    Args:
        failure_threshold: Number of consecutive failures that opens the circuit.
        recovery_timeout: Seconds until an open circuit is probed.
        half_open_max_probes: Maximum number of concurrent probes.
        dependency: Name of a dependency. All capabilities with this behavior then share one
            circuit.
        clock: Source of time. Defaults to the graph's clock.
        store: Database for the state, shared by processes: ``sqlite:///file.db``,
            ``postgresql://…``, ``redis://…``, or ``saver`` for the database of the graph's
            checkpointer.

    Raises:
        ConfigurationError: A number is invalid. The error is a ``ValueError``.

    >>> from capgraph import build_graph, capability_node
    >>> @capability_node(behaviors=[CircuitBreakerBehavior(failure_threshold=3)])
    ... async def read() -> dict:
    ...     '''Read how full the tank is.'''
    ...     return {}
    >>> graph = build_graph([read])
    """

    stage: Literal["acquire"] = "acquire"
    order = 30

    @validate_arguments
    def __init__(
        self,
        failure_threshold: int = 5,
        recovery_timeout: float = 60.0,
        *,
        half_open_max_probes: int = 1,
        dependency: str | None = None,
        clock: Clock | Callable[[], float] | None = None,
        store: str | SqlTables | None = None,
    ) -> None:
        self._rules = _build_rules(failure_threshold, recovery_timeout, half_open_max_probes, store)
        # Behaviors that share a database but have different numbers have separate circuits.
        numbers = (failure_threshold, recovery_timeout, half_open_max_probes)
        self._prefix = f"breaker/{':'.join(f'{number:g}' for number in numbers)}/"
        self._dependency = dependency
        self._own_clock = as_clock(clock) if clock is not None else None
        self._values = open_values(store)

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Run a step attempt through the circuit breaker and record the outcome.

        Raises:
            CircuitOpenError: The circuit is open, so the attempt was not made.
        """
        job = current_execution() if attempt.kind == "step" else None
        name = self._name(attempt.capability, attempt.kind)
        key, clock = self._prefix + name, self._clock
        ticket, is_first_probe = await self._values.achange(
            key, self._rules.admit, clock, self._rules.release
        )
        if isinstance(ticket, _Rejection):
            raise _set_severity(_create_open_error(name, ticket.seconds, clock), attempt, job)
        if is_first_probe:
            _emit_change(name, CircuitState.HALF_OPEN, 0, 0.0)
        succeeded: bool | None = None
        try:
            result = await call_next(attempt)
            succeeded = _classify_result(attempt, job)
        except Exception as exc:
            succeeded = False if _is_dependency_failure(exc, attempt, job) else None
            raise
        finally:
            # The call has happened, so a failure to record it must not fail the step.
            with log_and_suppress(f"The outcome of a call of {name!r}"):
                transition = await self._values.achange(
                    key, self._rules.complete(ticket, succeeded), clock
                )
                if transition.before is not transition.after:
                    _emit_change(name, transition.after, transition.failures, self._rules.timeout)
        return result

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Run a model call through the circuit breaker, as described in :meth:`wrap_step`."""
        return await self.wrap_step(attempt, call_next)

    async def unavailable_capabilities(self, capabilities: Collection[str]) -> dict[str, str]:
        """Return the capabilities whose circuit is open.

        Each capability name is mapped to the reason and the time until which the circuit is open.
        """
        clock = self._clock
        values, now = await self._values.aread(self._prefix, clock)
        reasons = {}
        for capability in capabilities:
            name = self._name(capability, "step")
            _, _, (state, remaining) = self._rules.inspect(values.get(self._prefix + name), now)
            if state is CircuitState.OPEN:
                until = _format_time(clock, remaining)
                reasons[capability] = f"unavailable until {until}: {name} failed repeatedly"
        return reasons

    @property
    def _clock(self) -> Clock:
        return self._own_clock or current_clock()

    def _name(self, capability: str, kind: str) -> str:
        return self._dependency or (f"model {capability}" if kind == "model" else capability)


def _set_severity(
    error: CircuitOpenError, attempt: Attempt, job: StepExecution | None
) -> CircuitOpenError:
    """Set the severity of the error that an open circuit breaker raises.

    For a step, the severity is REPLANNING for the first such error and CRITICAL afterwards.
    While a probe is running, the severity is RETRIABLE.
    """
    error.severity = ErrorSeverity.CRITICAL
    if job is None:
        return error
    last_failure = job.view.last_failure
    metadata = (last_failure.get("classification") or {}).get("metadata") or {}
    is_repeated = (
        last_failure.get("capability_name") == attempt.capability
        and metadata.get("code") == error.code
    )
    if error.retry_after is None:
        error.severity = ErrorSeverity.RETRIABLE  # the probe ends soon
    elif not is_repeated:
        error.severity = ErrorSeverity.REPLANNING
    return error


def _classify_result(attempt: Attempt, job: StepExecution | None) -> bool | None:
    """Classify the outcome of an attempt for the circuit breaker.

    Return True for success, False for a failure of the dependency, and None if the outcome says
    nothing about the dependency, as for a recorded result or a pending approval.
    """
    if job is None or job.attempt_state.body_result is not None:
        return True
    error = job.attempt_state.failure[0] if job.attempt_state.failure is not None else None
    # A failure whose effect may have happened becomes an approval request or a skipped step.
    is_failure = isinstance(error, Exception) and _is_dependency_failure(error, attempt, job)
    return False if is_failure else None


def _is_dependency_failure(exc: Exception, attempt: Attempt, job: StepExecution | None) -> bool:
    """Return True if a failure was caused by the dependency that a circuit breaker protects.

    Failures caused by the request or by program code do not count.
    """
    if isinstance(exc, GraphBubbleUp):
        return False
    diagnosis = diagnose(exc)
    if diagnosis.category == "declared":
        is_declared_failure = isinstance(diagnosis.cause, (CapabilityError, ModelError))
        if not is_declared_failure or isinstance(diagnosis.cause, (AskAgain, MalformedAnswerError)):
            return False
    elif diagnosis.category in ("programming_error", "context_too_long"):
        return False
    elif diagnosis.category == "bad_input" and not isinstance(diagnosis.cause, ValueError):
        return False  # a service that rejects its input is available
    if job is None:
        return True
    severity = classify_step_failure(job, attempt, exc).severity
    return severity not in (ErrorSeverity.REPLANNING, ErrorSeverity.RECLASSIFICATION)


def _emit_change(name: str, state: CircuitState, failures: int, seconds: float) -> None:
    retry_after = seconds if state is CircuitState.OPEN else None
    emit(CircuitChanged(name=name, state=state.value, failures=failures, retry_after=retry_after))
