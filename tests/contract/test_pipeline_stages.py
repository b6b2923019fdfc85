"""Every attempt passes the same stages in one order, and a middleware says where it stands."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import CapabilityError, CapgraphError, ErrorClassification, ErrorSeverity
from capgraph.testing import FakeClock, with_faults
from tests.support.doors import (
    STAGES,
    Amount,
    Gauge,
    Instead,
    Watches,
    last_words,
    let_others_run,
    soon,
    status,
)


def _again(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
    return ErrorClassification(severity=ErrorSeverity.RETRIABLE, user_message=str(exc))


@capability_node
class Read(BaseCapability):
    name = "read"
    description = "Read the gauge"
    provides = ["GAUGE"]
    Parameters = Amount
    ran: ClassVar[list[Any]] = []

    async def execute(self) -> dict[str, Any]:
        Read.ran.append(self.parameters.amount)
        return {"GAUGE": {"value": self.parameters.amount}}

    classify_error = staticmethod(_again)

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 1.0}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Read.ran.clear()


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_the_stages_stand_in_one_order_however_they_are_given(
    agent: Any, step: Any, seed: int | None
) -> None:
    watches = Watches()
    given = watches.everywhere()
    if seed is not None:
        random.Random(seed).shuffle(given)
    out = await agent(Gauge, Read, plans=[[step("a", "read")]], behaviors=given).ask()
    assert status(out) == "completed"
    assert watches.order("read") == list(STAGES)
    back = [seen.stage for seen in watches.going_out if seen.capability == "read"]
    assert back == list(reversed(STAGES))
    assert {(s.key, s.number) for s in watches.going_in if s.capability == "read"} == {("a", 1)}


async def test_inside_a_stage_the_order_is_the_one_given_and_the_graphs_come_first(
    agent: Any, step: Any
) -> None:
    watches = Watches()

    @capability_node
    class Own(Read):
        name = "own"
        description = "Read with middlewares of its own"
        behaviors = [
            watches.at("call", "c1"),
            watches.at("finalize", "c2"),
            watches.at("call", "c3"),
        ]

    graphs = [watches.at("call", "g1"), watches.at("finalize", "g2"), watches.at("call", "g3")]
    out = await agent(Gauge, Own, Read, plans=[[step("a", "own")]], behaviors=graphs).ask()
    assert status(out) == "completed"
    entered = [s.label for s in watches.going_in if s.capability == "own"]
    assert entered == ["g2", "c2", "g1", "g3", "c1", "c3"]


async def test_a_capabilitys_middleware_is_around_that_capability_alone(
    agent: Any, step: Any
) -> None:
    watches = Watches()

    @capability_node(behaviors=[watches.at("call")])
    async def watched() -> Gauge:
        """Read with a middleware of its own."""
        return Gauge(value=1)

    plan = [step("a", "watched"), step("b", "read")]
    assert status(await agent(Gauge, watched, Read, plans=[plan]).ask()) == "completed"
    assert [(s.capability, s.key) for s in watches.going_in] == [("watched", "a")]


async def test_each_try_enters_again_what_is_inside_retry(agent: Any, step: Any) -> None:
    watches = Watches()
    flaky = with_faults(Read, *[ConnectionError("busy")] * 2)
    given = watches.everywhere()
    out = await agent(Gauge, flaky, plans=[[step("a", "read")]], behaviors=given).ask()
    assert status(out) == "completed"
    inside = STAGES[STAGES.index("finalize") :]
    entered = [(s.stage, s.number) for s in watches.going_in if s.capability == "read"]
    assert [one for one in entered if one[0] in inside] == [
        (stage, number) for number in (1, 2, 3) for stage in inside
    ]
    before = ["observe", "validate", "authorize"]
    assert [stage for stage, _ in entered if stage in before] == before, "once for all tries"


async def test_outside_a_record_inside_the_raw_result(agent: Any, step: Any) -> None:
    watches = Watches()
    await agent(
        Gauge, Read, plans=[[step("a", "read", {"amount": 4})]], behaviors=watches.everywhere()
    ).ask()
    for stage in STAGES[:5]:
        (seen,) = watches.left(stage, "read")
        record = seen.result
        assert (record.key, record.capability, record.success) == ("a", "read", True), stage
        assert record.error is None
        with pytest.raises((AttributeError, TypeError, ValueError)):
            record.success = False
    (raw,) = watches.left("call", "read")
    assert raw.result == {"GAUGE": {"value": 4}}


async def test_outside_a_failure_inside_the_authors_exception(agent: Any, step: Any) -> None:
    watches = Watches()

    class Broken(Exception):
        pass

    @capability_node
    async def burn() -> Gauge:
        """Burn."""
        raise Broken("it burns")

    out = await agent(
        Gauge, burn, plans=[[step("a", "burn")]], behaviors=watches.everywhere()
    ).ask()
    assert status(out) == "failed"
    for stage in STAGES[5:]:
        (seen,) = watches.left(stage, "burn")
        assert isinstance(seen.error, Broken), stage
    for stage in STAGES[:5]:
        (seen,) = watches.left(stage, "burn")
        assert seen.error is None
        assert seen.result.success is False, stage
        assert (
            str(getattr(seen.result.error.severity, "value", seen.result.error.severity))
            == "critical"
        )


async def test_a_middleware_may_name_the_attempt_it_hands_on(agent: Any, step: Any) -> None:
    watches = Watches()
    given = [watches.at(stage, give_attempt=True) for stage in STAGES]
    out = await agent(Gauge, Read, plans=[[step("a", "read")]], behaviors=given).ask()
    assert (status(out), watches.order("read")) == ("completed", list(STAGES))


async def test_an_attempt_says_what_it_is_about(agent: Any, step: Any) -> None:
    found: dict[str, Any] = {}

    @capability_node
    async def double(gauge: Gauge, times: int = 2) -> Gauge:
        """Double a reading."""
        return Gauge(value=gauge.value * times)

    async def look(attempt: Any, call_next: Any) -> Any:
        if attempt.capability == "double":
            found.update(
                key=attempt.key,
                number=attempt.number,
                objective=attempt.objective,
                parameters=attempt.parameters,
                inputs=attempt.inputs,
            )
        return await call_next()

    plan = [step("a", "read", {"amount": 3}), step("b", "double", GAUGE="a")]
    out = await agent(
        Gauge, Read, double, plans=[plan], behaviors=[Instead("authorize", look)]
    ).ask()
    assert status(out) == "completed"
    assert (found["key"], found["number"], found["objective"]) == ("b", 1, "Do b")
    times = found["parameters"]
    assert (times["times"] if isinstance(times, dict) else times.times) == 2, "defaults are filled"
    assert "GAUGE" in found["inputs"]


@pytest.mark.parametrize("stage", ["authorize", "finalize", "acquire", "call"])
@pytest.mark.parametrize("what", ["parameters", "capability"])
async def test_nothing_below_screen_changes_what_was_shown(
    agent: Any, step: Any, stage: str, what: str
) -> None:
    class Rewrites:
        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            other = Amount(amount=500) if what == "parameters" else "pay"
            return await call_next(replace(attempt, **{what: other}))

    rewrites: Any = Rewrites()
    rewrites.stage = stage
    it = agent(Gauge, Read, plans=[[step("a", "read", {"amount": 5})]], behaviors=[rewrites])
    out = await it.ask()
    assert Read.ran == []
    assert f"(stage {stage}) changed {what} of 'a'" in last_words(out)


async def test_a_result_without_a_call_is_sorted_and_checked_like_any_other(
    agent: Any, step: Any
) -> None:
    async def cached(attempt: Any, call_next: Any) -> Any:
        return {"GAUGE": {"value": 9}} if attempt.capability == "read" else await call_next()

    async def wrong(attempt: Any, call_next: Any) -> Any:
        return {"GAUGE": {"value": "much"}} if attempt.capability == "read" else await call_next()

    plans = [[step("a", "read")]]
    out = await agent(Gauge, Read, plans=plans, behaviors=[Instead("acquire", cached)]).ask()
    assert out["capability_context_data"]["GAUGE"]["a"]["value"] == 9
    assert (status(out), Read.ran) == ("completed", [])
    assert out["execution_step_results"]["a"]["success"] is True
    out = await agent(Gauge, Read, plans=plans, behaviors=[Instead("call", wrong)]).ask()
    assert status(out) == "failed"
    assert "GAUGE" not in (out.get("capability_context_data") or {})


@pytest.mark.parametrize("stage", ["observe", "authorize", "finalize"])
async def test_a_middleware_that_gives_nothing_back_is_no_success(
    agent: Any, step: Any, stage: str
) -> None:
    async def forgets(attempt: Any, call_next: Any) -> Any:
        result = await call_next()
        return None if attempt.capability == "read" else result

    it = agent(Gauge, Read, plans=[[step("a", "read")]], behaviors=[Instead(stage, forgets)])
    try:
        out = await it.ask()
    except CapgraphError as exc:
        said = str(exc).lower()
    else:
        said = last_words(out)
        assert status(out) == "failed"
    assert "middleware" in said or "instead" in said or stage in said


async def test_a_failure_raised_inside_retry_is_tried_again_by_its_severity(
    agent: Any, step: Any
) -> None:
    asked: list[int] = []

    async def busy(attempt: Any, call_next: Any) -> Any:
        if attempt.capability != "read":
            return await call_next()
        asked.append(attempt.number)
        if attempt.number < 3:
            raise CapabilityError("Too many requests.", severity=ErrorSeverity.RETRIABLE)
        return await call_next()

    it = agent(Gauge, Read, plans=[[step("a", "read")]], behaviors=[Instead("acquire", busy)])
    assert status(await it.ask()) == "completed"
    assert (asked, Read.ran) == ([1, 2, 3], [1])
    assert len(it.clock.sleeps) == 2


class _Gate(FakeClock):
    """A clock whose waits last until something has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.opened.wait()
        await super().sleep(seconds)


@pytest.mark.parametrize("own", [1, None])
async def test_a_step_in_back_off_holds_no_slot(agent: Any, step: Any, own: int | None) -> None:
    """With one slot, the second step runs while the first waits for its next try."""
    clock = _Gate()
    ran: list[str] = []

    class Note(CapabilityContext):
        text: str

    @capability_node
    class Work(BaseCapability):
        name = "work"
        description = "Work"
        provides = ["NOTE"]
        max_parallel = own
        classify_error = staticmethod(_again)
        get_retry_policy = staticmethod(Read.get_retry_policy)

        async def execute(self) -> Note:
            ran.append(self.step["context_key"])
            if ran == ["a"]:
                raise ConnectionError("busy")
            if self.step["context_key"] == "b":
                clock.opened.set()
            return Note(text="done")

    plan = [step("a", "work"), step("b", "work")]
    limits = {"max_parallel": 1} if own is None else {}
    it = agent(Note, Work, plans=[plan], clock=clock, limits=limits)
    assert status(await soon(it.ask())) == "completed"
    assert ran == ["a", "b", "a"]


async def test_cancelling_passes_every_stage_and_leaves_no_record(agent: Any, step: Any) -> None:
    watches = Watches()
    inside = asyncio.Event()

    @capability_node
    async def wait() -> Gauge:
        """Wait for ever."""
        inside.set()
        await asyncio.Event().wait()
        return Gauge(value=1)

    it = agent(Gauge, wait, plans=[[step("a", "wait")]], behaviors=watches.everywhere())
    running = asyncio.ensure_future(it.ask())
    await soon(inside.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await let_others_run()
    left = [s for s in watches.going_out if s.capability == "wait"]
    assert [s.stage for s in left] == list(reversed(STAGES))
    assert all(isinstance(s.error, asyncio.CancelledError) for s in left)
