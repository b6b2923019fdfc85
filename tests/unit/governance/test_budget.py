"""Budgets: a written model of what one may do, several processes, windows, cancellation."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capgraph.governance import Budget, BudgetExceededError
from capgraph.testing import FakeClock


async def test_a_reservation_takes_all_or_nothing() -> None:
    budget = Budget(requests=5, tokens=100)
    await budget.reserve(requests=1, tokens=90)
    with pytest.raises(BudgetExceededError, match=r"tokens is limited to 100.* 90 is used") as told:
        await budget.reserve(requests=1, tokens=11)
    assert (told.value.limit, told.value.value, told.value.asked) == ("tokens", 100, 11)
    assert await budget.remaining() == {"requests": 4, "tokens": 10}


async def test_settling_counts_what_was_used_once() -> None:
    budget = Budget(tokens=100)
    taken = await budget.reserve(tokens=80)
    await taken.settle(tokens=30)
    await taken.settle(tokens=30)
    await taken.release()
    assert await budget.remaining() == {"tokens": 70}


async def test_releasing_gives_everything_back_once() -> None:
    budget = Budget(tokens=100)
    taken = await budget.reserve(tokens=80)
    await taken.release()
    await taken.release()
    await taken.settle(tokens=50)
    assert await budget.remaining() == {"tokens": 100}


async def test_unnamed_amounts_settle_as_reserved() -> None:
    budget = Budget(requests=3, tokens=100)
    taken = await budget.reserve(requests=1, tokens=80)
    await taken.settle(tokens=10)
    assert await budget.remaining() == {"requests": 2, "tokens": 90}


async def test_more_used_than_reserved_counts_whole() -> None:
    budget = Budget(tokens=100)
    taken = await budget.reserve(tokens=80)
    await taken.settle(tokens=130)
    assert await budget.remaining() == {"tokens": 0}
    with pytest.raises(BudgetExceededError, match="130 is used"):
        await budget.reserve(tokens=1)


async def test_ten_times_a_tenth_of_a_dollar_is_a_dollar() -> None:
    budget = Budget(cost_usd=1.0)
    for _ in range(10):
        await budget.reserve(cost_usd=0.1)
    with pytest.raises(BudgetExceededError):
        await budget.reserve(cost_usd=0.000001)


async def test_failures_in_a_row_end_it_and_a_success_begins_anew() -> None:
    budget = Budget(consecutive_failures=2)
    for failed in (1, 0, 1, 1):
        taken = await budget.reserve(requests=1)
        await taken.settle(consecutive_failures=failed)
    with pytest.raises(BudgetExceededError, match="consecutive_failures is limited to 2"):
        await budget.reserve(requests=1)


async def test_each_has_a_budget_of_its_own() -> None:
    budget = Budget(requests=1, per="user")
    await budget.reserve("ada", requests=1)
    await budget.reserve("bob", requests=1)
    with pytest.raises(BudgetExceededError, match="'ada'"):
        await budget.reserve("ada", requests=1)


@pytest.mark.parametrize("store", [None, "file"])
async def test_a_window_resets_and_keeps_its_reservations(
    store: str | None, tmp_path: Path
) -> None:
    clock = FakeClock(start=1_700_000_000)
    url = f"sqlite:///{tmp_path}/b.db" if store else None
    budget = Budget(tokens=10, window="hour", clock=clock, store=url)
    late = await budget.reserve(tokens=10)
    with pytest.raises(BudgetExceededError, match="per hour"):
        await budget.reserve(tokens=1)
    clock.advance(3600)
    await budget.reserve(tokens=4)
    await late.settle(tokens=2)  # of the hour in which it was taken
    assert await budget.remaining() == {"tokens": 6}


@pytest.mark.parametrize(
    ("window", "same", "next_"), [("day", 3600, 86400), ("month", 86400, 31 * 86400)]
)
async def test_days_and_months(window: Any, same: float, next_: float) -> None:
    now = [1_700_000_000.0]
    budget = Budget(requests=1, window=window, clock=lambda: now[0])
    await budget.reserve(requests=1)
    now[0] += same
    with pytest.raises(BudgetExceededError):
        await budget.reserve(requests=1)
    now[0] += next_
    await budget.reserve(requests=1)


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), True, "3"])
async def test_an_amount_is_a_number_from_zero(amount: Any) -> None:
    with pytest.raises(ValueError, match="tokens"):
        Budget(tokens=amount)
    budget = Budget(tokens=10)
    with pytest.raises(ValueError, match="tokens"):
        await budget.reserve(tokens=amount)
    taken = await budget.reserve(tokens=1)
    with pytest.raises(ValueError, match="tokens"):
        await taken.settle(tokens=amount)
    assert await budget.remaining() == {"tokens": 9}


async def test_unknown_words_are_refused() -> None:
    for wrong in ({"per": "planet"}, {"window": "year"}, {"unknown_price": "free"}):
        with pytest.raises(ValueError, match="Fix"):
            Budget(**wrong)  # type: ignore[arg-type]
    taken = await Budget().reserve()
    with pytest.raises(ValueError, match="coffee"):
        await taken.settle(coffee=1)
    with pytest.raises(ValueError, match="sqlite:///"):
        Budget(store="mysql://somewhere")


async def test_a_replaced_reservation_is_released_only_once(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    one, other = (Budget(steps=10, store=url) for _ in range(2))
    slow = await one.reserve(steps=4, resume_key="k")
    again = await other.reserve(steps=4, resume_key="k")
    assert await other.remaining() == {"steps": 6}
    await slow.settle(steps=4)  # it has acted, so both count
    assert await other.remaining() == {"steps": 2}
    await again.release()
    assert await other.remaining() == {"steps": 6}


async def test_a_draw_uses_the_reservation_and_counts_once() -> None:
    budget = Budget(tokens=100, requests=10)
    step = await budget.reserve(tokens=50)
    call = await step.draw(tokens=40, requests=1)
    assert await budget.remaining() == {"tokens": 50, "requests": 9}
    await call.settle(tokens=30, requests=1)
    more = await step.draw(tokens=60, requests=1)  # 20 are left of the step's, 40 are taken besides
    assert (await budget.remaining())["tokens"] == 10
    with pytest.raises(BudgetExceededError):
        await step.draw(tokens=20)
    await more.settle(tokens=60, requests=1)
    assert (await budget.remaining())["tokens"] == 10
    await step.settle(tokens=0, requests=0)
    assert await budget.remaining() == {"tokens": 10, "requests": 8}


async def test_a_part_that_needed_less_gives_the_rest_back() -> None:
    budget = Budget(tokens=100)
    step = await budget.reserve()
    call = await step.draw(tokens=90)
    await call.settle(tokens=5)
    assert await budget.remaining() == {"tokens": 95}
    await (await step.draw(tokens=95)).release()
    await step.release()
    assert await budget.remaining() == {"tokens": 95}


async def test_cancellation_during_a_reservation_releases_it(tmp_path: Path) -> None:
    budget = Budget(tokens=100, store=f"sqlite:///{tmp_path}/b.db")  # in memory nothing waits
    for _ in range(20):
        task = asyncio.create_task(budget.reserve(tokens=5))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await budget.remaining() == {"tokens": 100}


async def test_a_resumed_reservation_replaces_that_of_a_dead_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/b.db"
    died = Budget(steps=2, tokens=100, store=url)
    step = await died.reserve("t", steps=1, tokens=60, resume_key="turn/a")
    call = await step.draw(tokens=10)
    await call.settle(tokens=10)  # was paid for, and stays so
    resumed = Budget(steps=2, tokens=100, store=url)
    again = await resumed.reserve("t", steps=1, tokens=60, resume_key="turn/a")
    await again.settle(steps=1, tokens=20)
    assert await resumed.remaining("t") == {"steps": 1, "tokens": 70}


async def test_two_of_one_process_are_two(tmp_path: Path) -> None:
    budget = Budget(steps=2, store=f"sqlite:///{tmp_path}/b.db")
    await budget.reserve(steps=1, resume_key="a")
    await budget.reserve(steps=1, resume_key="a")
    with pytest.raises(BudgetExceededError):
        await budget.reserve(steps=1, resume_key="a")


AMOUNT = st.integers(0, 12)
STEP = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from("ab"), AMOUNT, AMOUNT),
    st.tuples(st.just("settle"), st.integers(0, 30), AMOUNT, AMOUNT),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.sampled_from([600, 3600])),
)


@pytest.mark.row("T13")
@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_a_budget_does_what_its_model_says(steps: list[tuple[Any, ...]]) -> None:
    """The model: sums by key and hour; a reservation adds if both sums stay within the limits."""

    async def run() -> None:
        clock = FakeClock(start=0.0)
        budget = Budget(tokens=20, cost_usd=0.15, per="user", window="hour", clock=clock)
        sums: dict[tuple[str, int], list[int]] = {}
        taken: list[list[Any]] = []
        for step in steps:
            if step[0] == "wait":
                clock.advance(step[1])
            elif step[0] == "reserve":
                _, key, tokens, cents = step
                place = (key, int(clock.now() // 3600))
                held = sums.setdefault(place, [0, 0])
                over = tokens and held[0] + tokens > 20
                fits = not (over or (cents and held[1] + cents > 15))
                try:
                    made = await budget.reserve(key, tokens=tokens, cost_usd=cents / 100)
                except BudgetExceededError:
                    assert not fits
                else:
                    assert fits
                    held[0] += tokens
                    held[1] += cents
                    taken.append([made, place, (tokens, cents), False])
            elif taken:
                entry = taken[step[1] % len(taken)]
                made, place, reserved, over = entry
                used = (0, 0)
                if step[0] == "settle":
                    used = (step[2], step[3])
                    await made.settle(tokens=used[0], cost_usd=used[1] / 100)
                else:
                    await made.release()
                if not over:
                    entry[3] = True
                    sums[place][0] += used[0] - reserved[0]
                    sums[place][1] += used[1] - reserved[1]
            for key in "ab":
                held = sums.get((key, int(clock.now() // 3600)), [0, 0])
                left = await budget.remaining(key)
                assert left["tokens"] == max(0, 20 - held[0])
                assert left["cost_usd"] == pytest.approx(max(0, 0.15 - held[1] / 100))

    asyncio.run(run())


def _spend(url: str, calls: int, results: Any) -> None:
    async def one(budget: Budget) -> int:
        try:
            call = await budget.reserve("all", requests=1, tokens=10)
        except BudgetExceededError:
            return 0
        await asyncio.sleep(0)
        await call.settle(requests=1, tokens=7)
        return 1

    async def main() -> int:
        budget = Budget(requests=120, tokens=1000, per="tenant", store=url)
        return sum(await asyncio.gather(*(one(budget) for _ in range(calls))))

    results.put(asyncio.run(main()))


@pytest.mark.row("T13")
def test_two_hundred_calls_of_four_processes_never_go_over(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_spend, args=(url, 50, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    made = sum(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    assert all(worker.exitcode == 0 for worker in workers)
    assert 0 < made <= 120
    with closing(sqlite3.connect(tmp_path / "shared.db")) as conn:
        ((value,),) = conn.execute("SELECT value FROM capgraph_cells").fetchall()
    assert json.loads(value) == [{"requests": made, "tokens": 7 * made}, {}]
