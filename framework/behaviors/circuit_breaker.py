"""Circuit breakers: what fails again and again is left alone for a while, then probed."""

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
    """What a breaker does with calls."""

    CLOSED = "closed"
    """They pass."""
    OPEN = "open"
    """They are refused."""
    HALF_OPEN = "half_open"
    """A few pass, to find out whether the dependency is back."""


class CircuitOpenError(LimitError):
    """A call was refused, because what it needs failed again and again.

    Attributes:
        name: What is out of reach.
        retry_after: For how many seconds; ``None`` while others find out whether it is back.
    """

    code = "CG-CIRCUIT-OPEN"
    name: str = ""
    retry_after: float | None = None


class _Ticket(NamedTuple):
    """What a call was admitted with: how often the circuit had changed, and the probe's place."""

    era: int
    probe: str = ""


class _Rejection(NamedTuple):
    """How long a call is refused for; ``None`` while the places of probes are taken."""

    seconds: float | None


class _Transition(NamedTuple):
    """The state before a change and after it."""

    before: CircuitState
    after: CircuitState
    failures: int


@dataclass(frozen=True, slots=True)
class _BreakerRules:
    """The whole of a breaker as changes of a plain value.

    The value holds ``failures`` (in a row), ``opened`` (when, or ``None``), ``era`` (how often the
    circuit opened or closed) and ``probes`` (when each began). A call that began in an earlier era
    says nothing about this one.
    """

    threshold: int
    timeout: float
    probes: int
    lease: float = math.inf
    """How long a probe keeps its place; processes that share a breaker may die."""

    def __post_init__(self) -> None:
        counts = {"failure_threshold": self.threshold, "half_open_max_probes": self.probes}
        for name, count in counts.items():
            check_number(name, count, minimum=1, integer=True, error=ConfigurationError)
        check_number("The recovery time-out", self.timeout, error=ConfigurationError)

    def state(self, value: dict[str, Any], now: float) -> CircuitState:
        if value["opened"] is None:
            return CircuitState.CLOSED
        due = now - value["opened"] >= self.timeout
        return CircuitState.HALF_OPEN if due else CircuitState.OPEN

    def inspect(self, value: Any, now: float) -> tuple[Any, float, tuple[CircuitState, float]]:
        """Tell the state, and how many seconds it stays open."""
        found = _read_value(value)
        state = self.state(found, now)
        left = found["opened"] + self.timeout - now if state is CircuitState.OPEN else 0.0
        return value, FOREVER, (state, left)

    def admit(self, value: Any, now: float) -> tuple[Any, float, tuple[_Ticket | _Rejection, bool]]:
        """Let a call in or refuse it; tell whether it is the first probe of a half-open circuit."""
        found = _read_value(value)
        state = self.state(found, now)
        if state is CircuitState.CLOSED:
            return value, FOREVER, (_Ticket(found["era"]), False)
        if state is CircuitState.OPEN:
            left = found["opened"] + self.timeout - now
            return value, FOREVER, (_Rejection(left), False)
        probes = {name: at for name, at in found["probes"].items() if now - at < self.lease}
        if len(probes) >= self.probes:
            return value, FOREVER, (_Rejection(None), False)
        first = not found["probed"]
        name = uuid.uuid4().hex
        new = {**found, "probes": {**probes, name: now}, "probed": True}
        return new, FOREVER, (_Ticket(found["era"], name), first)

    def complete(
        self, ticket: _Ticket | None, succeeded: bool | None
    ) -> ChangeFunction[_Transition]:
        """Make the change at the end of a call.

        Args:
            ticket: With what it was admitted; ``None`` for a call that nobody asked about.
            succeeded: ``None`` for one that says nothing about the dependency.
        """

        def change(value: Any, now: float) -> tuple[Any, float, _Transition]:
            found = _read_value(value)
            before = self.state(found, now)
            if ticket is not None and ticket.era != found["era"]:
                return value, FOREVER, _Transition(before, before, found["failures"])
            probes = {n: at for n, at in found["probes"].items() if not ticket or n != ticket.probe}
            new = {**found, "probes": probes}
            if succeeded is None or before is CircuitState.OPEN:
                pass
            elif succeeded:
                closed = before is CircuitState.HALF_OPEN
                new |= _closed_value(found["era"] + 1) if closed else {"failures": 0}
            else:
                new["failures"] += 1
                if before is CircuitState.HALF_OPEN or new["failures"] >= self.threshold:
                    era = found["era"] + 1
                    new |= {"opened": now, "era": era, "probes": {}, "probed": False}
            moved = _Transition(before, self.state(new, now), new["failures"])
            return value if new == found else new, FOREVER, moved

        return change

    def reset(self, value: Any, now: float) -> tuple[Any, float, _Transition]:
        """Close the circuit, whatever it was."""
        found = _read_value(value)
        before = self.state(found, now)
        return _closed_value(found["era"] + 1), FOREVER, _Transition(before, CircuitState.CLOSED, 0)

    def release(self, admission: tuple[_Ticket | _Rejection, bool]) -> ChangeFunction[_Transition]:
        """Make the change that frees the place of a call that never began."""
        ticket = admission[0]
        return self.complete(ticket if isinstance(ticket, _Ticket) else _Ticket(-1), None)


def _read_value(value: Any) -> dict[str, Any]:
    return value if value is not None else _closed_value(0)


def _closed_value(era: int) -> dict[str, Any]:
    return {"failures": 0, "opened": None, "era": era, "probes": {}, "probed": False}


def _open_error(name: str, seconds: float | None, clock: Clock) -> CircuitOpenError:
    if seconds is None:
        told = f"{name!r} is being probed after failures, and no more calls are let in meanwhile."
    else:
        told = f"{name!r} is out of reach until {_format_time(clock, seconds)}: it failed again and again."
    fix = "Try again then, or take another way."
    return CircuitOpenError(told, fix=fix, name=name, retry_after=seconds)


def _format_time(clock: Clock, seconds: float) -> str:
    at = math.ceil(timestamp_after(clock, seconds))
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class _BaseBreaker:
    """What both breakers are made of."""

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
        """Call a function and await what it gives.

        Raises:
            CircuitOpenError: It is not called, because the circuit is open.
        """
        admitted = await self._values.achange(
            self._key, self._rules.admit, self._clock, self._rules.release
        )
        ticket = self._ticket(admitted)
        try:
            result = await maybe_await(fn(*args, **kwargs))
        except BaseException as exc:
            await self._acomplete(ticket, _exception_outcome(exc))
            raise
        await self._acomplete(ticket, True)
        return result

    async def _acomplete(self, ticket: _Ticket | None, succeeded: bool | None) -> None:
        await self._values.achange(self._key, self._rules.complete(ticket, succeeded), self._clock)

    def _ticket(self, admission: tuple[_Ticket | _Rejection, bool]) -> _Ticket:
        ticket = admission[0]
        if isinstance(ticket, _Rejection):
            raise _open_error(self.name, ticket.seconds, self._clock)
        return ticket


def _build_rules(threshold: int, timeout: float, probes: int, store: Any) -> _BreakerRules:
    made = _BreakerRules(threshold, timeout, probes)
    return made if store is None else replace(made, lease=max(timeout, 60.0))


def _exception_outcome(exc: BaseException) -> bool | None:
    """Say what an exception of a call means: a cancellation or a question to a person, nothing."""
    return None if isinstance(exc, GraphBubbleUp) or not isinstance(exc, Exception) else False


class CircuitBreaker(_BaseBreaker):
    """Stands in front of calls to something that may be down.

    So many failures in a row open it: calls are refused at once. After a while a few probes are let
    in; one that works closes it, one that fails opens it again. A call that was cancelled says
    nothing and gives its place back, and so does one that began before the circuit changed.

    Args:
        name: What is called.
        failure_threshold: How many failures in a row open it.
        recovery_timeout_seconds: How long it stays open.
        half_open_max_probes: How many probes may be under way.
        clock: Source of time: a clock, or a function that returns seconds.
        store: Where the state lies, for processes that share it: ``sqlite:///file.db``,
            ``postgresql://…`` or ``redis://…``.

    Raises:
        ConfigurationError: A number is nonsense; it is a ``ValueError``.

    >>> breaker = CircuitBreaker("mail", failure_threshold=1)
    >>> breaker.record_failure()
    >>> breaker.state().value, breaker.is_open()
    ('open', True)
    """

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function.

        Raises:
            CircuitOpenError: It is not called, because the circuit is open.
        """
        ticket = self._ticket(self._values.change(self._key, self._rules.admit, self._clock))
        try:
            result = fn(*args, **kwargs)
        except BaseException as exc:
            self._complete(ticket, _exception_outcome(exc))
            raise
        self._complete(ticket, True)
        return result

    def state(self) -> CircuitState:
        """Return what it does with calls now."""
        return self._values.change(self._key, self._rules.inspect, self._clock)[0]

    def is_open(self) -> bool:
        """Tell whether calls are refused."""
        return self.state() is CircuitState.OPEN

    def record_success(self) -> None:
        """Take up a call that was made elsewhere and worked."""
        self._complete(None, True)

    def record_failure(self) -> None:
        """Take up a call that was made elsewhere and failed."""
        self._complete(None, False)

    def reset(self) -> None:
        """Close it."""
        self._values.change(self._key, self._rules.reset, self._clock)

    def _complete(self, ticket: _Ticket | None, succeeded: bool | None) -> None:
        self._values.change(self._key, self._rules.complete(ticket, succeeded), self._clock)


class AsyncCircuitBreaker(_BaseBreaker):
    """A :class:`CircuitBreaker` for coroutine functions; every method is one.

    >>> import asyncio
    >>> async def main():
    ...     breaker = AsyncCircuitBreaker("mail")
    ...     await breaker.call(asyncio.sleep, 0)
    ...     return await breaker.state()
    >>> asyncio.run(main()).value
    'closed'
    """

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, as :meth:`acall` does."""
        return await self.acall(fn, *args, **kwargs)

    async def state(self) -> CircuitState:
        """Return what it does with calls now."""
        return (await self._values.achange(self._key, self._rules.inspect, self._clock))[0]

    async def is_open(self) -> bool:
        """Tell whether calls are refused."""
        return await self.state() is CircuitState.OPEN

    async def record_success(self) -> None:
        """Take up a call that was made elsewhere and worked."""
        await self._acomplete(None, True)

    async def record_failure(self) -> None:
        """Take up a call that was made elsewhere and failed."""
        await self._acomplete(None, False)

    async def reset(self) -> None:
        """Close it."""
        await self._values.achange(self._key, self._rules.reset, self._clock)


class CircuitBreakerBehavior:
    """Leaves a capability or a model alone for a while that failed again and again.

    Each capability and each model role has a circuit of its own. Every try passes it, whatever the
    order of the list. Only failures of what is called count: not a value that the author refused,
    not a question, not a limit of ours. While a circuit is open, plans are made without the
    capability; a step that meets it is replanned once.

    Args:
        failure_threshold: How many failures in a row open it.
        recovery_timeout: For how many seconds.
        half_open_max_probes: How many probes may be under way then.
        dependency: A name for what all that it stands around depends on, and share one circuit for.
        clock: Source of time; the graph's own when not given.
        store: Where the state lies, for processes that share it: ``sqlite:///file.db``,
            ``postgresql://…``, ``redis://…``, or ``saver`` for the database of the graph's saver.

    Raises:
        ConfigurationError: A number is nonsense; it is a ``ValueError``.

    >>> from capgraph import build_graph, capability_node
    >>> @capability_node(behaviors=[CircuitBreakerBehavior(failure_threshold=3)])
    ... async def read() -> dict:
    ...     '''Read how full the tank is.'''
    ...     return {}
    >>> graph = build_graph([read])
    """

    stage: Literal["acquire"] = "acquire"
    order = 30

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
        # Objects that share a database and not their numbers have circuits of their own.
        numbers = (failure_threshold, recovery_timeout, half_open_max_probes)
        self._prefix = f"breaker/{':'.join(f'{number:g}' for number in numbers)}/"
        self._dependency = dependency
        self._own_clock = as_clock(clock) if clock is not None else None
        self._values = open_values(store)

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Let a try in or refuse it, and take up how it ended.

        Raises:
            CircuitOpenError: The circuit is open.
        """
        job = current_execution() if attempt.kind == "step" else None
        name = self._name(attempt.capability, attempt.kind)
        cell, clock = self._prefix + name, self._clock
        ticket, first = await self._values.achange(
            cell, self._rules.admit, clock, self._rules.release
        )
        if isinstance(ticket, _Rejection):
            raise _set_severity(_open_error(name, ticket.seconds, clock), attempt, job)
        if first:
            _emit_change(name, CircuitState.HALF_OPEN, 0, 0.0)
        worked: bool | None = None
        try:
            result = await call_next(attempt)
            worked = _result_outcome(attempt, job)
        except Exception as exc:
            worked = False if _is_dependency_failure(exc, attempt, job) else None
            raise
        finally:
            # What was done is done, whether or not it can be written down.
            with log_and_suppress(f"How a call of {name!r} ended"):
                moved = await self._values.achange(
                    cell, self._rules.complete(ticket, worked), clock
                )
                if moved.before is not moved.after:
                    _emit_change(name, moved.after, moved.failures, self._rules.timeout)
        return result

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Protect a model call; see :meth:`wrap_step`."""
        return await self.wrap_step(attempt, call_next)

    async def unavailable_capabilities(self, capabilities: Collection[str]) -> dict[str, str]:
        """Return which capabilities cannot be called now, each with why and until when."""
        clock = self._clock
        values, now = await self._values.aread(self._prefix, clock)
        told = {}
        for capability in capabilities:
            name = self._name(capability, "step")
            _, _, (state, left) = self._rules.inspect(values.get(self._prefix + name), now)
            if state is CircuitState.OPEN:
                until = _format_time(clock, left)
                told[capability] = f"out of reach until {until}: {name} failed again and again"
        return told

    @property
    def _clock(self) -> Clock:
        return self._own_clock or current_clock()

    def _name(self, capability: str, kind: str) -> str:
        return self._dependency or (f"model {capability}" if kind == "model" else capability)


def _set_severity(
    error: CircuitOpenError, attempt: Attempt, job: StepExecution | None
) -> CircuitOpenError:
    """Say what is to be done: another plan, once; of a model there is no other."""
    error.severity = ErrorSeverity.CRITICAL
    if job is None:
        return error
    last = job.view.last_failure
    known = (last.get("classification") or {}).get("metadata") or {}
    again = last.get("capability_name") == attempt.capability and known.get("code") == error.code
    if error.retry_after is None:
        error.severity = ErrorSeverity.RETRIABLE  # the probe will soon have ended
    elif not again:
        error.severity = ErrorSeverity.REPLANNING
    return error


def _result_outcome(attempt: Attempt, job: StepExecution | None) -> bool | None:
    """Say what a result means: one from the ledger, or a question, says nothing by itself."""
    if job is None or job.attempt_state.body_result is not None:
        return True
    failed = job.attempt_state.failure[0] if job.attempt_state.failure is not None else None
    # A failure whose effect may have happened is a question or a step passed over.
    is_one = isinstance(failed, Exception) and _is_dependency_failure(failed, attempt, job)
    return False if is_one else None


def _is_dependency_failure(exc: Exception, attempt: Attempt, job: StepExecution | None) -> bool:
    """Tell whether a failure is one of what was called, and not of the request or of the code."""
    if isinstance(exc, GraphBubbleUp):
        return False
    found = diagnose(exc)
    if found.category == "declared":
        told = isinstance(found.cause, (CapabilityError, ModelError))
        if not told or isinstance(found.cause, (AskAgain, MalformedAnswerError)):
            return False
    elif found.category in ("programming_error", "context_too_long"):
        return False
    elif found.category == "bad_input" and not isinstance(found.cause, ValueError):
        return False  # a service that says so is there
    if job is None:
        return True
    severity = classify_step_failure(job, attempt, exc).severity
    return severity not in (ErrorSeverity.REPLANNING, ErrorSeverity.RECLASSIFICATION)


def _emit_change(name: str, state: CircuitState, failures: int, seconds: float) -> None:
    left = seconds if state is CircuitState.OPEN else None
    emit(CircuitChanged(name=name, state=state.value, failures=failures, retry_after=left))
