"""How often and how long something is tried, by a rule in place of the class's own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import (
    CapabilityContext,
    ErrorClassification,
    ErrorSeverity,
    build_graph,
    capability_node,
)
from capgraph.base.errors import CapabilityError, LimitError, MalformedAnswerError, ModelError
from capgraph.base.ports import Failure
from capgraph.behaviors import RetryBehavior, TimeoutBehavior, backoff_delay
from capgraph.configs.settings import load_settings
from capgraph.models import RoleModel
from capgraph.models.calls import generate_structured
from capgraph.testing import FakeClock, ScriptedModel

PLAN = {"steps": [{"context_key": "k", "capability": "read", "task_objective": "read it"}]}
SCHEMA = {"title": "Answer", "type": "object", "properties": {}}


class Level(CapabilityContext):
    litres: int


class Tries:
    """A capability that raises one error after the other, and counts."""

    def __init__(self, *errors: Exception | None, **declared: Any) -> None:
        self.count = 0

        @capability_node(**declared)
        async def read() -> Level:
            """Read how full the tank is."""
            self.count += 1
            error = errors[self.count - 1] if self.count <= len(errors) else None
            if error is not None:
                raise error
            return Level(litres=3)

        self.capability = read


async def run(tries: Tries, *behaviors: Any, **options: Any) -> dict[str, Any]:
    options.setdefault("clock", FakeClock())
    graph = build_graph(
        [tries.capability], behaviors=behaviors, checkpointer=InMemorySaver(), **options
    )
    start = {"messages": [("user", "read")], "planning_execution_plan": PLAN}
    found: dict[str, Any] = await graph.ainvoke(start, {"configurable": {"thread_id": "t"}})
    record: dict[str, Any] = found["execution_step_results"]["k"]
    return record


@pytest.mark.row("G10")
async def test_it_replaces_the_policy_of_the_class() -> None:
    clock = FakeClock()
    tries = Tries(*[RuntimeError("broken")] * 9, max_attempts=3)
    record = await run(tries, RetryBehavior(max_retries=4), clock=clock)
    assert (tries.count, record["success"], record["attempts"]) == (5, False, 5)
    assert clock.sleeps == [1, 2, 4, 8]
    fewer = Tries(*[ConnectionError("gone")] * 9, max_attempts=9)
    await run(fewer, RetryBehavior(max_retries=1))
    assert fewer.count == 2


async def test_a_later_attempt_may_succeed() -> None:
    tries = Tries(ValueError("a"), TypeError("b"))
    record = await run(tries, RetryBehavior())
    assert (tries.count, record["success"], record["attempts"]) == (3, True, 3)


@pytest.mark.parametrize("outer", [0, 5])
async def test_the_innermost_rule_decides_wherever_it_is_declared(outer: int) -> None:
    tries = Tries(*[RuntimeError("broken")] * 9, behaviors=[RetryBehavior(max_retries=1)])
    await run(tries, RetryBehavior(max_retries=outer))
    assert tries.count == 2


@pytest.mark.parametrize(
    ("error", "listed", "count"),
    [
        (KeyError("x"), (KeyError,), 3),
        (KeyError("x"), (LookupError,), 3),
        (KeyError("x"), ("KeyError",), 3),
        (KeyError("x"), (ValueError,), 1),
        # What is listed is retried whatever it was read as; the rest goes its own way.
        (CapabilityError("x", severity=ErrorSeverity.REPLANNING), (Exception,), 1),
        (CapabilityError("x", severity=ErrorSeverity.CRITICAL), (Exception,), 1),
        (CapabilityError("x", severity=ErrorSeverity.CRITICAL), (CapabilityError,), 3),
        (CapabilityError("x"), (Exception,), 3),
        (LimitError("all used up"), (Exception,), 1),
    ],
)
async def test_which_errors_are_retried(error: Exception, listed: Any, count: int) -> None:
    tries = Tries(*[error] * 5)
    await run(tries, RetryBehavior(max_retries=2, exceptions_to_retry=listed))
    assert tries.count == count


async def test_error_types_are_found_in_the_cause_chain() -> None:
    error = RuntimeError("outer")
    error.__cause__ = KeyError("inner")
    tries = Tries(*[error] * 5)
    await run(tries, RetryBehavior(max_retries=2, exceptions_to_retry=(KeyError,)))
    assert tries.count == 3


async def test_the_authors_classification_has_priority() -> None:
    def says(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
        return ErrorClassification(ErrorSeverity.CRITICAL, "for good")

    tries = Tries(*[RuntimeError("x")] * 5, classify_error=says)
    await run(tries, RetryBehavior())
    assert tries.count == 1


async def test_a_once_effect_is_retried_only_if_declared() -> None:
    tries = Tries(*[RuntimeError("x")] * 5, effect="once")
    await run(tries, RetryBehavior())
    assert tries.count == 1
    passing = CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
    tries = Tries(passing, effect="once")
    assert (await run(tries, RetryBehavior()))["success"]
    assert tries.count == 2


@pytest.mark.row("G10")
async def test_a_finished_effect_is_not_repeated_for_a_refused_result() -> None:
    class Refuses:
        stage = "finalize"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            await call_next(attempt)
            raise CapabilityError("not good enough", severity=ErrorSeverity.RETRIABLE)

    tries = Tries(effect="once")
    await run(tries, RetryBehavior(exceptions_to_retry=(CapabilityError,)), Refuses())
    assert tries.count == 1


OUTCOMES: dict[str, Exception | None] = {
    "done": None,
    "unlisted": KeyError("x"),
    "listed": TimeoutError("x"),
    "busy": CapabilityError("x", severity=ErrorSeverity.RETRIABLE),
    "classified": CapabilityError("x", severity=ErrorSeverity.REPLANNING),
}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(list(OUTCOMES)), min_size=1, max_size=7),
    st.integers(0, 4),
    st.sampled_from(["none", "once"]),
    st.sampled_from([(Exception,), (TimeoutError,), (TimeoutError, CapabilityError)]),
)
def test_runs_match_a_reference_model(
    outcomes: list[str], retries: int, effect: str, listed: tuple[type[Exception], ...]
) -> None:
    def again(outcome: str) -> bool:
        error = OUTCOMES[outcome]
        if not isinstance(error, listed) or (outcome == "classified" and Exception in listed):
            return False
        if effect == "once":  # only what says of itself that it may pass
            return outcome == "busy"
        return True

    count, waits = 0, []
    while True:
        outcome = outcomes[count] if count < len(outcomes) else "done"
        count += 1
        if outcome == "done" or not again(outcome) or count > retries:
            break
        waits.append(min(2.0 ** (count - 1), 5.0))

    errors = [OUTCOMES[name] for name in outcomes]
    tries, clock = Tries(*errors, effect=effect, on_unknown="fail"), FakeClock()
    rule = RetryBehavior(retries, max_delay=5, exceptions_to_retry=listed)
    limits = load_settings(limits={"max_planning_attempts": 1})
    record = asyncio.run(run(tries, rule, clock=clock, settings=limits))
    assert (tries.count, clock.sleeps, record["success"]) == (count, waits, outcome == "done")


@pytest.mark.row("G10")
@pytest.mark.parametrize("brought", [True, False])
async def test_attempts_are_counted_across_crashes(brought: bool) -> None:
    class Dies(FakeClock):
        async def sleep(self, seconds: float) -> None:
            self.sleeps.append(seconds)
            waiting.set()
            await asyncio.Event().wait()

    waiting = asyncio.Event()
    tries, saver = Tries(*[RuntimeError("x")] * 9), InMemorySaver()
    rule = RetryBehavior(max_retries=3)
    config: Any = {"configurable": {"thread_id": "t"}}
    start: dict[str, Any] = {"messages": [("user", "Read how full the tank is")]}
    if brought:
        start["planning_execution_plan"] = PLAN
    dying = build_graph([tries.capability], behaviors=[rule], checkpointer=saver, clock=Dies())
    task = asyncio.create_task(dying.ainvoke(start, config))
    await waiting.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert tries.count == 1
    clock = FakeClock()
    again = build_graph([tries.capability], behaviors=[rule], checkpointer=saver, clock=clock)
    out = await again.ainvoke(None, config)
    (record,) = (r for r in out["execution_step_results"].values() if r["capability"] == "read")
    assert (tries.count, record["attempts"]) == (4, 4)
    assert clock.sleeps == [1, 2, 4]


@pytest.mark.row("G10")
async def test_a_hundred_runs_of_one_rule_are_independent() -> None:
    counts: Counter[int] = Counter()

    @capability_node
    async def read(n: int = 0) -> Level:
        """Read how full the tank is."""
        counts[n] += 1
        await asyncio.sleep(0)
        if counts[n] <= n % 4:
            raise RuntimeError("broken")
        return Level(litres=n)

    rule = [RetryBehavior(max_retries=2)]
    graph = build_graph([read], behaviors=rule, checkpointer=InMemorySaver(), clock=FakeClock())

    async def one(n: int) -> Any:
        steps = [{**PLAN["steps"][0], "parameters": {"n": n}}]
        start = {"messages": [("user", "read")], "planning_execution_plan": {"steps": steps}}
        out = await graph.ainvoke(start, {"configurable": {"thread_id": str(n)}})
        return out["execution_step_results"]["k"]["success"]

    done = await asyncio.gather(*(one(n) for n in range(100)))
    assert [counts[n] for n in range(100)] == [min(n % 4, 2) + 1 for n in range(100)]
    assert done == [n % 4 < 3 for n in range(100)]


@given(
    st.integers(0, 8),
    st.floats(0, 100),
    st.floats(0, 5),
    st.floats(0, 200),
)
def test_delays_grow_up_to_their_maximum(
    retries: int, base: float, factor: float, most: float
) -> None:
    rule = RetryBehavior(retries, base, factor, most)
    for failures in range(1, retries + 2):
        assert rule.delay(failures) == min(base * factor ** (failures - 1), most)
    assert rule.max_attempts == retries + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"max_retries": True},
        {"base_delay": -1},
        {"max_delay": float("nan")},
        {"backoff_factor": "2"},
        {"exceptions_to_retry": (3,)},
    ],
)
def test_invalid_options_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryBehavior(**wrong)


def test_an_unknown_error_is_retried_by_its_category() -> None:
    rule = RetryBehavior()
    assert rule.applies(None, Failure(ErrorSeverity.RETRIABLE, "busy"))
    assert not rule.applies(None, Failure(ErrorSeverity.CRITICAL, "broken"))


# --- model calls --------------------------------------------------------------------------


def role(*responses: Any, behaviors: Any, clock: Any = None) -> RoleModel:
    model = ScriptedModel(responses=list(responses))
    return RoleModel("planning", model, behaviors=behaviors, clock=clock or FakeClock())


async def test_failed_model_calls_and_malformed_answers_are_retried() -> None:
    clock = FakeClock()
    asked = role(
        ConnectionError("x"), "no json", {"a": 1}, behaviors=[RetryBehavior()], clock=clock
    )
    assert await generate_structured(asked, SCHEMA, [HumanMessage("?")]) == {"a": 1}
    assert clock.sleeps == [1, 2]


async def test_no_retry_after_the_last_attempt() -> None:
    asked = role(*["no json"] * 9, behaviors=[RetryBehavior(max_retries=2)])
    with pytest.raises(MalformedAnswerError) as caught:
        await generate_structured(asked, SCHEMA, [HumanMessage("?")])
    assert caught.value.severity is ErrorSeverity.CRITICAL
    assert len(asked.model.calls) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [LimitError("all used up"), ValueError("no such option")])
async def test_a_permanent_error_is_not_retried(error: Exception) -> None:
    class Refuses:
        stage = "call"

        def __init__(self) -> None:
            self.count = 0

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            self.count += 1
            raise error

        wrap_model_call = wrap_step

    refuses = Refuses()
    with pytest.raises((LimitError, ModelError)):
        await generate_structured(
            role({}, behaviors=[RetryBehavior(), refuses]), SCHEMA, [HumanMessage("?")]
        )
    assert refuses.count == 1


# --- time limits --------------------------------------------------------------------------


def stuck(**declared: Any) -> Any:
    @capability_node(**declared)
    async def read() -> Level:
        """Read how full the tank is."""
        await asyncio.Event().wait()
        return Level(litres=1)

    return type("Stuck", (), {"capability": read})


async def test_a_timeout_replaces_that_of_the_class() -> None:
    record = await run(stuck(timeout_seconds=3600, max_attempts=1), TimeoutBehavior(0.01))
    assert "time limit of 0.01 s" in record["error"]
    own = stuck(behaviors=[TimeoutBehavior(0.01)], max_attempts=1)
    assert "time limit of 0.01 s" in (await run(own, TimeoutBehavior(3600)))["error"]


async def test_a_timeout_limits_a_model_call() -> None:
    class Slow(ScriptedModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

    slow = RoleModel("planning", Slow(responses=[]), 3600, [TimeoutBehavior(0.01)])
    with pytest.raises(ModelError, match=r"within 0\.01 s"):
        await generate_structured(slow, SCHEMA, [HumanMessage("?")])


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "1", True])
def test_a_timeout_is_a_positive_number(seconds: Any) -> None:
    with pytest.raises(ValueError, match="Fix"):
        TimeoutBehavior(seconds)


# --- backoff ------------------------------------------------------------------------------


@pytest.mark.row("T21")
@given(
    st.integers(0, 2000),
    st.floats(0.1, 10),
    st.sampled_from(["none", "full", "equal", "decorrelated", True, False]),
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(),
)
def test_backoff_stays_in_its_range(
    attempt: int, base: float, jitter: Any, cap: float, prev: float, seed: int
) -> None:
    try:
        whole = min(cap, base**attempt)
    except OverflowError:
        whole = cap
    found = backoff_delay(attempt, base, jitter, cap, prev, rng=random.Random(seed))
    if jitter in ("none", False):
        assert found == whole
    elif jitter in ("full", True):
        assert 0 <= found <= whole
    elif jitter == "equal":
        assert whole / 2 <= found <= whole
    else:
        # Never less than the base, however short the last wait was.
        assert min(cap, base) <= found <= min(cap, max(base, 3 * (prev or base)))


@pytest.mark.row("T21")
def test_an_unknown_jitter_is_refused() -> None:
    with pytest.raises(ValueError, match="'some'"):
        backoff_delay(1, jitter="some")
