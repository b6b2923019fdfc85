"""A circuit breaker: opens, probes, closes; and never keeps a place that nobody uses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langgraph.errors import GraphInterrupt

from capgraph.behaviors import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitBreakerBehavior,
    CircuitOpenError,
    CircuitState,
)


class Time:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def fails() -> None:
    raise OSError("down")


def opened(time: Time, **more: Any) -> CircuitBreaker:
    breaker = CircuitBreaker("mail", 2, 10, clock=time, **more)
    for _ in range(2):
        with pytest.raises(OSError):
            breaker.call(fails)
    return breaker


@pytest.mark.row("T6")
def test_it_opens_only_after_consecutive_failures() -> None:
    breaker = CircuitBreaker("mail", failure_threshold=2, clock=Time())
    breaker.record_failure()
    assert breaker.call(lambda: 7) == 7
    breaker.record_failure()
    assert breaker.state() == "closed"
    breaker.record_failure()
    assert breaker.is_open()
    called: list[int] = []
    with pytest.raises(CircuitOpenError, match="'mail' is unavailable until") as caught:
        breaker.call(called.append, 1)
    assert not called
    assert "1970" not in str(caught.value)  # the clock counts from anywhere
    assert caught.value.name == "mail"
    assert caught.value.retry_after == 60


@pytest.mark.row("T6")
def test_a_probe_decides_after_the_timeout() -> None:
    time = Time()
    breaker = opened(time)
    time.seconds += 10
    assert breaker.state() is CircuitState.HALF_OPEN
    assert not breaker.is_open()
    with pytest.raises(OSError):
        breaker.call(fails)
    assert breaker.is_open()
    time.seconds += 10
    breaker.call(lambda: None)
    assert breaker.state() is CircuitState.CLOSED


@pytest.mark.row("T6")
def test_concurrent_probes_are_limited() -> None:
    time = Time()
    breaker = opened(time, half_open_max_probes=2)
    time.seconds += 10

    def inside(depth: int) -> None:
        if depth:
            breaker.call(inside, depth - 1)
            return
        time.seconds += 1000  # a slow probe keeps its place
        with pytest.raises(CircuitOpenError, match="is being probed"):
            breaker.call(lambda: None)

    breaker.call(inside, 1)


@pytest.mark.row("T6")
@pytest.mark.parametrize("signal", [KeyboardInterrupt, asyncio.CancelledError, GraphInterrupt])
def test_a_cancelled_probe_is_released(signal: type[BaseException]) -> None:
    time = Time()
    breaker = opened(time)
    time.seconds += 10

    def stopped() -> None:
        raise signal

    for _ in range(3):
        with pytest.raises(signal):
            breaker.call(stopped)
    assert breaker.state() is CircuitState.HALF_OPEN
    breaker.call(lambda: None)
    assert breaker.state() is CircuitState.CLOSED


@pytest.mark.row("T6")
def test_a_call_of_an_earlier_era_is_ignored() -> None:
    time = Time()
    breaker = CircuitBreaker("mail", 1, 10, clock=time)

    def late() -> None:
        breaker.record_failure()
        assert breaker.is_open()

    breaker.call(late)
    assert breaker.is_open()

    def late_failure() -> None:
        breaker.reset()
        raise OSError("from before")

    time.seconds += 10
    with pytest.raises(OSError):
        breaker.call(late_failure)
    assert breaker.state() is CircuitState.CLOSED


def test_reset_closes() -> None:
    breaker = opened(Time())
    breaker.reset()
    assert breaker.call(lambda: 1) == 1


@pytest.mark.parametrize(
    "numbers",
    [
        {"failure_threshold": 0},
        {"failure_threshold": 1.5},
        {"recovery_timeout_seconds": -1},
        {"recovery_timeout_seconds": float("nan")},
        {"half_open_max_probes": 0},
    ],
)
def test_invalid_numbers_are_refused(numbers: dict[str, Any]) -> None:
    for kind in (CircuitBreaker, AsyncCircuitBreaker):
        with pytest.raises(ValueError):
            kind("mail", **numbers)


def test_invalid_numbers_of_the_behavior_are_refused() -> None:
    with pytest.raises(ValueError):
        CircuitBreakerBehavior(failure_threshold=0)
    with pytest.raises(ValueError):
        CircuitBreakerBehavior(recovery_timeout=float("inf"))


async def test_the_async_breaker_releases_a_cancelled_probe() -> None:
    time = Time()
    breaker = AsyncCircuitBreaker(
        "mail", failure_threshold=1, recovery_timeout_seconds=5, clock=time
    )

    async def down() -> None:
        raise OSError

    with pytest.raises(OSError):
        await breaker.call(down)
    assert await breaker.is_open()
    time.seconds += 5
    probe = asyncio.create_task(breaker.call(asyncio.Event().wait))
    await asyncio.sleep(0)
    with pytest.raises(CircuitOpenError):
        await breaker.call(down)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert await breaker.state() == "half_open"
    await breaker.call(asyncio.sleep, 0)
    assert await breaker.state() == "closed"


@pytest.mark.row("T6")
def test_processes_share_it_by_a_file(tmp_path: Path) -> None:
    time = Time()
    url = f"sqlite:///{tmp_path}/limits.db"
    breaker = opened(time, store=url)
    other = CircuitBreaker("mail", 2, 10, clock=time, store=url)
    assert other.is_open()
    time.seconds += 10
    other.call(lambda: None)
    assert breaker.state() == "closed"


def test_a_probe_of_a_dead_process_is_released(tmp_path: Path) -> None:
    time = Time()
    url = f"sqlite:///{tmp_path}/limits.db"
    breaker = opened(time, store=url)
    time.seconds += 10
    breaker._values.change(breaker._key, breaker._rules.admit, breaker._clock)  # and no end
    with pytest.raises(CircuitOpenError):
        breaker.call(lambda: None)
    time.seconds += 60
    breaker.call(lambda: None)
    assert breaker.state() == "closed"


class Model(RuleBasedStateMachine):
    """The breaker beside a model of it that is written as the issue says it."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.breaker = CircuitBreaker("x", 3, 10, 2, clock=self.time)
        self.failures = 0
        self.opened_at: float | None = None
        self.era = 0
        self.running: list[tuple[Any, int, bool]] = []

    @property
    def expected(self) -> str:
        if self.opened_at is None:
            return "closed"
        return "half_open" if self.time.seconds - self.opened_at >= 10 else "open"

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 10.0]))
    def passes(self, seconds: float) -> None:
        self.time.seconds += seconds

    @rule()
    def begins(self) -> None:
        probes = sum(probe and era == self.era for _, era, probe in self.running)
        refused = self.expected == "open" or (self.expected == "half_open" and probes >= 2)
        probe = self.expected == "half_open"
        call = self._suspended()
        try:
            next(call)
        except CircuitOpenError:
            assert refused
        else:
            assert not refused
            self.running.append((call, self.era, probe))

    def _suspended(self) -> Any:
        ticket = self.breaker._require_ticket(
            self.breaker._values.change("breaker/x", self.breaker._rules.admit, self.breaker._clock)
        )
        worked = yield
        self.breaker._complete(ticket, worked)
        yield

    @precondition(lambda self: self.running)
    @rule(data=st.data(), worked=st.sampled_from([True, False, None]))
    def ends(self, data: Any, worked: bool | None) -> None:
        call, era, _ = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        before = self.expected
        call.send(worked)
        if era != self.era or worked is None or before == "open":
            return
        self._took(worked, before)

    @rule(worked=st.booleans())
    def told(self, worked: bool) -> None:
        before = self.expected
        (self.breaker.record_success if worked else self.breaker.record_failure)()
        if before != "open":
            self._took(worked, before)

    def _took(self, worked: bool, before: str) -> None:
        if worked:
            self.failures = 0
            if before == "half_open":
                self.opened_at, self.era = None, self.era + 1
            return
        self.failures += 1
        if before == "half_open" or self.failures >= 3:
            self.opened_at, self.era = self.time.seconds, self.era + 1

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.state() == self.expected
        assert self.breaker.is_open() is (self.expected == "open")


@pytest.mark.row("T6")
def test_a_breaker_matches_a_reference_model() -> None:
    run_state_machine_as_test(
        Model, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
