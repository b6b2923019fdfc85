"""Rate limits: never over, exact waits that hold nothing, and what fits never is said at once."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capgraph.behaviors import RateLimitBehavior, RateLimiter, RateLimitExceededError


class ManualClock:
    """A clock whose sleepers wake when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sleepers: list[tuple[float, asyncio.Event]] = []
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    monotonic = now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        woken = asyncio.Event()
        self.sleepers.append((self.seconds + seconds, woken))
        await woken.wait()

    async def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        for at, woken in self.sleepers:
            if at <= self.seconds + 1e-9:
                woken.set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_requests_are_refilled_over_time() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=2, clock=clock)
    assert [await limiter.try_acquire("k") for _ in range(3)] == [True, True, False]
    assert await limiter.try_acquire("other")
    clock.seconds += 30
    assert [await limiter.try_acquire("k") for _ in range(2)] == [True, False]


@pytest.mark.row("G14")
async def test_a_rate_below_one_is_served() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=0.5, clock=clock)
    assert await limiter.try_acquire("k")
    clock.seconds += 119
    assert not await limiter.try_acquire("k")
    clock.seconds += 1
    assert await limiter.try_acquire("k")


@pytest.mark.row("T30")
async def test_amounts_are_reserved_together() -> None:
    limiter = RateLimiter(rpm=5, input_tpm=100, output_tpm=10, clock=ManualClock())
    assert not await limiter.try_acquire("k", input_tokens=101)
    assert not await limiter.try_acquire("k", requests=0, input_tokens=50, output_tokens=11)
    assert await limiter.try_acquire("k", requests=5, input_tokens=100, output_tokens=10)


@pytest.mark.row("T30")
async def test_a_wait_is_one_exact_sleep_in_order() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=60, burst=1, clock=clock)
    came: list[int] = []

    async def wait(number: int) -> None:
        await limiter.acquire("k")
        came.append(number)

    tasks = [asyncio.create_task(wait(n)) for n in range(4)]
    await settle()
    assert came == [0]
    assert clock.slept == pytest.approx([1, 2, 3])
    assert not await limiter.try_acquire("k")  # nobody is overtaken
    assert await limiter.try_acquire("other")  # and nobody else waits
    for seen in ([0, 1], [0, 1, 2], [0, 1, 2, 3]):
        await clock.pass_by(1)
        assert came == seen
    assert len(clock.slept) == 3
    await asyncio.gather(*tasks)


async def test_a_cancelled_wait_returns_its_amounts() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=60, burst=1, clock=clock)
    await limiter.acquire("k")
    waiting = asyncio.create_task(limiter.acquire("k"))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    clock.seconds += 1
    assert await limiter.try_acquire("k")


async def test_a_wait_beyond_the_timeout_is_refused_and_reserves_nothing() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=60, burst=1, clock=clock)
    await limiter.acquire("k", timeout=0)
    with pytest.raises(RateLimitExceededError, match="possible in 1 s") as caught:
        await limiter.acquire("k", timeout=0.5)
    assert caught.value.retry_after == pytest.approx(1)
    assert clock.slept == []
    clock.seconds += 1
    assert await limiter.try_acquire("k")


@pytest.mark.row("T30")
async def test_more_than_the_capacity_fails_at_once() -> None:
    limiter = RateLimiter(rpm=2, input_tpm=10, clock=ManualClock())
    with pytest.raises(RateLimitExceededError, match="11 input_tokens"):
        await limiter.acquire("k", input_tokens=11)
    with pytest.raises(RateLimitExceededError, match="is only 2"):
        await limiter.acquire("k", requests=3)
    assert not await limiter.try_acquire("k", requests=3)


@pytest.mark.row("T30")
async def test_excess_tokens_delay_the_next_call() -> None:
    clock = ManualClock()
    limiter = RateLimiter(output_tpm=60, clock=clock)
    await limiter.acquire("k")
    await limiter.correct("k", output_tokens=90)
    assert not await limiter.try_acquire("k", output_tokens=1)
    clock.seconds += 31
    assert await limiter.try_acquire("k", output_tokens=1)


@pytest.mark.parametrize("number", [0, -1, float("nan"), float("inf")])
def test_invalid_numbers_are_refused(number: float) -> None:
    for name in ("rpm", "input_tpm", "output_tpm"):
        with pytest.raises(ValueError):
            RateLimiter(**{name: number})
    with pytest.raises(ValueError):
        RateLimitBehavior(calls_per_second=number)
    with pytest.raises(ValueError):
        RateLimitBehavior(burst=number)
    with pytest.raises(ValueError):
        RateLimitBehavior(burst=0.5)


@pytest.mark.parametrize("amount", [-1, float("nan")])
async def test_invalid_amounts_are_refused(amount: float) -> None:
    limiter = RateLimiter(rpm=1)
    for name in ("requests", "input_tokens", "output_tokens"):
        with pytest.raises(ValueError):
            await limiter.try_acquire("k", **{name: amount})
    with pytest.raises(ValueError):
        await limiter.acquire("k", timeout=amount)


class Noting(ManualClock):
    """A clock on which a wait is noted and over at once, without any time passing."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.row("T30")
@settings(max_examples=150, deadline=None)
@given(
    rate=st.floats(0.2, 600),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["try", "wait", "correct"]),
            st.floats(0, 40),
            st.integers(0, 6),
            st.sampled_from([0.0, 5.0, 100.0, None]),
        ),
        max_size=40,
    ),
)
def test_it_matches_a_reference_model(rate: float, calls: list[Any]) -> None:
    async def run() -> None:
        clock = Noting()
        limiter = RateLimiter(input_tpm=rate, clock=clock)
        capacity = left = max(1.0, rate)
        granted: list[tuple[float, float]] = []
        for kind, seconds, amount, patience in calls:
            clock.seconds += seconds
            left = min(capacity, left + seconds * rate / 60)
            wait = max(0.0, amount - left) * 60 / rate if amount else 0.0
            near = abs(wait - (patience or 0.0)) < 1e-6
            clock.slept.clear()
            if kind == "correct":
                await limiter.correct("k", input_tokens=amount)
                left -= amount
                continue
            if kind == "try":
                took = await limiter.try_acquire("k", input_tokens=amount)
                assert took is (wait == 0) or wait < 1e-6
                wait = 0.0
            else:
                try:
                    await limiter.acquire("k", timeout=patience, input_tokens=amount)
                    took = True
                except RateLimitExceededError:
                    took = False
                fits = amount <= capacity and (patience is None or wait <= patience)
                assert took is fits or near
                assert not took or sum(clock.slept) == pytest.approx(wait, abs=1e-6)
            if took:
                left -= amount
                granted.append((clock.seconds + wait, amount))
        # However one looks at it, no span of time saw more than the limit allows.
        for begin, _ in granted:
            for end, _ in granted:
                within = sum(n for at, n in granted if begin <= at <= end)
                assert begin > end or within <= capacity + (end - begin) * rate / 60 + 1e-3

    asyncio.run(run())


async def test_processes_share_it_by_a_file(tmp_path: Path) -> None:
    clock = ManualClock()
    one, two = (
        RateLimiter(rpm=3, clock=clock, store=f"sqlite:///{tmp_path}/limits.db") for _ in range(2)
    )
    assert [await limiter.try_acquire("k") for limiter in (one, two, one, two)] == [
        True,
        True,
        True,
        False,
    ]
    clock.seconds += 20
    assert await two.try_acquire("k")


def _fifty(url: str, results: Any, together: Any) -> None:
    async def run() -> list[bool]:
        limiter = RateLimiter(rpm=60, burst=40, store=url, clock=lambda: 1000.0)
        together.wait(120)
        return await asyncio.gather(*(limiter.try_acquire("k") for _ in range(50)))

    results.put(sum(asyncio.run(run())))


def test_calls_of_four_processes_never_exceed_the_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results, together = context.Queue(), context.Barrier(4)
    url = f"sqlite:///{tmp_path}/limits.db"
    workers = [context.Process(target=_fifty, args=(url, results, together)) for _ in range(4)]
    for worker in workers:
        worker.start()
    granted = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(granted) == 40


async def test_the_system_clock_is_the_default(tmp_path: Path) -> None:
    for store in (None, f"sqlite:///{tmp_path}/limits.db"):
        limiter = RateLimiter(rpm=0.001, store=store)
        assert [await limiter.try_acquire("k") for _ in range(2)] == [True, False]


async def test_a_clock_set_back_does_not_refill_twice() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=60, burst=1, clock=clock)
    clock.seconds = 100
    assert await limiter.try_acquire("k")
    for clock.seconds in (50, 100):
        assert not await limiter.try_acquire("k")
    clock.seconds = 101
    assert await limiter.try_acquire("k")
