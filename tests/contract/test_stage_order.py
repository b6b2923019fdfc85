"""Every run of a capability passes the same stages in the same order, whoever asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.base.errors import CapgraphError
from capgraph.testing import FakeClock
from tests.support import PATIENCE
from tests.support.doors import STAGES
from tests.support.one_door import (
    Reading,
    Receipt,
    bound,
    breaker,
    declined,
    in_a_row,
    measurer,
    names_one_of,
    own_node,
    own_nodes,
    payer,
    planned,
    said,
    status,
)

THREAD = {"configurable": {"thread_id": "1"}}


class Watch:
    """A middleware that notes when an attempt passes its stage."""

    def __init__(self, stage: str, seen: list[Any], name: str | None = None) -> None:
        self.stage = stage
        self._seen = seen
        self._name = name or stage

    async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
        if attempt.capability in {"pay", "measure", "broken"}:
            self._seen.append(self._name)
        return await call_next(attempt)


@pytest.fixture(params=["router", "goto", "own graph"])
def door(
    request: pytest.FixtureRequest, agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run one step of a capability by one of the doors, with behaviours and policies."""

    @own_node("router")
    async def OwnRouter(state: Any) -> Any:
        if state.get("control_has_error"):
            return Command(goto="error")
        steps = state["planning_execution_plan"]["steps"]
        ran = state.get("execution_step_results")
        return Command(goto="respond" if ran else steps[0]["capability"])

    async def run(Cap: Any, parameters: Any = None, **options: Any) -> dict[str, Any]:
        plan = [step("a", Cap.name, parameters)]
        if request.param == "own graph":
            node = bound(Receipt, Reading, Cap, **options).node(Cap)
            own = in_a_row(saver=InMemorySaver(), node=node)
            out: dict[str, Any] = await own.ainvoke(planned(*plan), THREAD)
            return out
        if request.param == "goto":
            options["infrastructure"] = own_nodes(monkeypatch, OwnRouter)
        made = agent(Receipt, Reading, Cap, plans=[plan], checkpointer=InMemorySaver(), **options)
        return await made.ask()  # type: ignore[no-any-return]

    return run


async def test_the_stages_come_in_the_order_of_the_design(door: Any) -> None:
    seen: list[str] = []
    watches = [Watch(stage, seen) for stage in reversed(STAGES)]
    out = await door(payer([]), behaviors=watches)
    assert out["execution_step_results"]["a"]["success"] is True
    assert seen == list(STAGES)


async def test_inside_a_stage_they_come_in_the_order_given(door: Any) -> None:
    seen: list[str] = []
    watches = [Watch("call", seen, "first"), Watch("call", seen, "second")]
    await door(measurer([]), behaviors=watches)
    assert seen == ["first", "second"]


async def test_another_try_passes_the_stages_below_again(door: Any) -> None:
    seen: list[str] = []
    tries: list[int] = []

    async def execute(self: Any) -> Reading:
        tries.append(self.attempt)
        if len(tries) < 3:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        return Reading(value=1)

    policy = {"max_attempts": 3, "delay_seconds": 0.0, "backoff_factor": 1.0}
    Cap = measurer([], execute=execute, get_retry_policy=staticmethod(lambda: dict(policy)))
    await door(Cap, behaviors=[Watch(stage, seen) for stage in STAGES])
    above, below = STAGES[: STAGES.index("finalize")], STAGES[STAGES.index("finalize") :]
    assert [seen.count(stage) for stage in above] == [1] * len(above)
    assert [seen.count(stage) for stage in below] == [3] * len(below)


async def test_an_attempt_says_what_it_is(door: Any) -> None:
    seen: list[Any] = []

    class Look:
        stage = "call"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            seen.append(attempt)
            return await call_next()

    await door(payer([]), {"amount": 6}, behaviors=[Look()])
    (attempt,) = seen
    assert (attempt.capability, attempt.key, attempt.number) == ("pay", "a", 1)
    shown = attempt.parameters
    shown = shown if isinstance(shown, dict) else shown.model_dump()
    assert shown == {"amount": 6, "order": "A"}, "defaults belong to what is shown and run"
    assert attempt.objective == "Do a"
    assert attempt.idempotency_key


async def test_outside_one_sees_the_record_and_inside_the_result(door: Any) -> None:
    seen: dict[str, Any] = {}

    class Look:
        def __init__(self, stage: str) -> None:
            self.stage = stage

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            seen[self.stage] = await call_next(attempt)
            return seen[self.stage]

    await door(payer([]), behaviors=[Look("observe"), Look("finalize"), Look("call")])
    for stage in ("observe", "finalize"):
        record = seen[stage]
        assert (record.key, record.capability, record.success) == ("a", "pay", True)
        assert record.error is None
        assert record.attempts == 1
        with pytest.raises((AttributeError, TypeError)):
            record.success = False
    assert seen["call"] == Receipt(paid=5)


async def test_outside_one_sees_failures_too(door: Any) -> None:
    seen: list[Any] = []

    class Look:
        stage = "observe"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            seen.append(await call_next(attempt))
            return seen[-1]

    await door(breaker("broken", CapabilityError("no power")), behaviors=[Look()])
    (record,) = seen
    assert record.success is False
    assert record.error.severity in {ErrorSeverity.CRITICAL, "critical"}
    assert "no power" in record.error.message


async def test_a_failure_of_a_middleware_is_a_failure_of_the_step(door: Any) -> None:
    class Budget:
        stage = "acquire"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            raise CapabilityError("the purse is empty")

    paid: list[int] = []
    await declined(door(payer(paid), behaviors=[Budget()]), "the purse is empty")
    assert paid == []


async def test_what_is_refused_never_reaches_the_ledger(door: Any) -> None:
    from capgraph import Verdict

    class Never:
        async def decide(self, step: Any, view: Any) -> Any:
            return Verdict("deny", problems=["not today"])

    seen: list[str] = []
    paid: list[int] = []
    watches = [Watch(stage, seen) for stage in STAGES]
    await declined(door(payer(paid), behaviors=watches, policies=[Never()]), "not today")
    assert paid == []
    assert not {"acquire", "idempotency", "timeout", "call"} & set(seen)


async def test_a_policy_that_asks_for_a_step_is_a_question(agent: Any, step: Any) -> None:
    from capgraph import Verdict

    class Ask:
        async def decide(self, step: Any, view: Any) -> Any:
            pays = "pay" in repr(step)
            return Verdict("ask", problems=["a person decides"]) if pays else Verdict("allow")

    paid: list[int] = []
    plan = [step("a", "pay")]
    made = agent(Receipt, payer(paid), plans=[plan], policies=[Ask()], checkpointer=InMemorySaver())
    out = await made.ask()
    assert paid == []
    assert out["__interrupt__"]
    for _ in range(3):
        if not out.get("__interrupt__"):
            break
        out = await made.graph.ainvoke(Command(resume="approve"), made.config())
    assert paid == [5]
    assert status(out) == "completed"


@pytest.mark.parametrize("stage", ["befor", "", None, "Call"])
def test_a_stage_that_does_not_exist_is_refused(agent: Any, stage: Any) -> None:
    odd = Watch("call", [])
    odd.stage = stage
    with pytest.raises((CapgraphError, ValueError)) as caught:
        agent(Reading, measurer([]), behaviors=[odd])
    names_one_of(caught.value, repr(stage), str(stage))


# --- capacity -------------------------------------------------------------------------------------


def crowded(most: list[int], **declared: Any) -> Any:
    """Return a capability that notes how many of its steps run at once."""
    running: list[int] = []

    async def execute(self: Any) -> Reading:
        running.append(1)
        most.append(len(running))
        for _ in range(5):
            await asyncio.sleep(0)
        running.pop()
        return Reading(value=1)

    return measurer([], execute=execute, **declared)


async def test_a_capabilitys_limit_holds_over_all_threads(agent: Any, step: Any) -> None:
    most: list[int] = []
    plan = [step("a", "measure"), step("b", "measure")]
    made = agent(Reading, crowded(most, max_parallel=1), plans=[plan])
    await asyncio.gather(*(made.ask(thread=str(n)) for n in range(4)))
    assert len(most) == 8
    assert max(most) == 1


async def test_the_process_limit_holds_over_all_turns(agent: Any, step: Any) -> None:
    most: list[int] = []
    plan = [step("a", "measure"), step("b", "measure")]
    made = agent(Reading, crowded(most), plans=[plan], limits={"max_parallel": 2})
    await asyncio.gather(*(made.ask(thread=str(n)) for n in range(4)))
    assert len(most) == 8
    assert max(most) <= 2


@pytest.mark.parametrize("bound_by", ["capability", "process"])
async def test_a_step_in_back_off_holds_no_slot(agent: Any, step: Any, bound_by: str) -> None:
    other_ran = asyncio.Event()

    class Waits(FakeClock):
        async def sleep(self, seconds: float) -> None:
            if 6.9 < seconds < 8:
                await asyncio.wait_for(other_ran.wait(), PATIENCE)
            await super().sleep(seconds)

    tries: list[str] = []

    async def execute(self: Any) -> Reading:
        key = self.step["context_key"]
        tries.append(key)
        if key == "a" and tries.count("a") == 1:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        if key == "b":
            other_ran.set()
        return Reading(value=1)

    policy = {"max_attempts": 3, "delay_seconds": 7.0, "backoff_factor": 1.0}
    declared = {"max_parallel": 1} if bound_by == "capability" else {}
    limits = {"max_parallel": 1} if bound_by == "process" else {}
    Cap = measurer(
        [], execute=execute, get_retry_policy=staticmethod(lambda: dict(policy)), **declared
    )
    plan = [step("a", "measure"), step("b", "measure")]
    out = await agent(Reading, Cap, plans=[plan], limits=limits, clock=Waits()).ask()
    assert tries == ["a", "b", "a"]
    assert status(out) == "completed"


async def test_a_step_that_waits_for_a_person_holds_no_slot(agent: Any, step: Any) -> None:
    from langgraph.types import interrupt

    async def execute(self: Any) -> Reading:
        if self.step["context_key"] == "a":
            interrupt("go on?")
        return Reading(value=1)

    Cap = measurer([], execute=execute, max_parallel=1)
    plans = [[step("a", "measure")], [step("b", "measure")]]
    made = agent(Reading, Cap, plans=plans, checkpointer=InMemorySaver())
    out = await made.ask(thread="1")
    assert out["__interrupt__"]
    other = await asyncio.wait_for(made.ask(thread="2"), PATIENCE)
    assert status(other) == "completed"
    out = await made.graph.ainvoke(Command(resume="yes"), made.config())
    assert said(out)
    assert status(out) == "completed"
