"""Whatever fails, however often and wherever: the turn ends, within bounds, and tells the truth."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import BaseCapability, CapabilityContext, ErrorSeverity
from capgraph.base import CapabilityError, FatalExecutionError, capability_node
from capgraph.testing import with_faults
from tests.support.sweeps import examples

LEVELS = [level for level in ErrorSeverity if level is not ErrorSeverity.FATAL]
errors: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.sampled_from(LEVELS).map(lambda level: CapabilityError(f"as {level.value}", severity=level)),
    st.sampled_from(
        [ConnectionError("net"), TimeoutError("late"), KeyError("bug"), OSError("disk")]
    ),
)


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(1, 5))
    return {
        "reads": [
            sorted(draw(st.sets(st.integers(0, n - 1), max_size=2))) if n else []
            for n in range(size)
        ],
        "faults": {name: draw(st.lists(errors, max_size=4)) for name in ("one", "two", "three")},
        "who": [draw(st.sampled_from(["one", "two", "three"])) for _ in range(size)],
        "selector": draw(st.lists(errors, max_size=3)),
        "planner": draw(st.lists(errors, max_size=3)),
    }


class Value(CapabilityContext):
    n: float


def build(story: dict[str, Any], agent: Any, step: Any) -> tuple[Any, list[Any]]:
    made = []
    for name, faults in story["faults"].items():

        class Work(BaseCapability):
            description = "Works"
            provides = ["VALUE"]
            requires = [("VALUE", "many")]

            async def execute(self) -> Value:
                return Value(n=1 + sum(value.n for value in self.inputs["VALUE"]))

        Work.name = name
        made.append(with_faults(capability_node(Work), *faults))
    plan = [
        step(f"s{n}", story["who"][n], VALUE=[f"s{m}" for m in earlier] or ["zero"])
        for n, earlier in enumerate(story["reads"])
    ]
    bench = agent(
        Value,
        *made,
        plans=[plan],
        given=["VALUE"],
        selector_faults=[*story["selector"], None],
        planner_faults=[*story["planner"], None],
        checkpointer=InMemorySaver(),
        limits={"max_planning_attempts": 3},
    )
    return bench, made


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stories())
def test_every_story_ends_and_tells_the_truth(agent: Any, step: Any, story: dict[str, Any]) -> None:
    async def turn() -> tuple[dict[str, Any], dict[str, Any]]:
        start = {"VALUE": {"zero": {"n": 0.0}}}
        async with asyncio.timeout(250):
            out = await bench.ask(capability_context_data=start)
        return out, (await bench.graph.aget_state(bench.config())).values

    bench, made = build(story, agent, step)
    out, saved = asyncio.run(turn())
    assert out["messages"][-1].type == "ai", "the turn ended without a message"
    outcome, results = out["execution_outcome"], out.get("execution_step_results") or {}
    stored = out["capability_context_data"]["VALUE"]
    for key in outcome["done"]:
        assert results[key]["success"], key
        assert key in stored, f"{key} is said to be done and its result is gone"
    for key in outcome["missing"]:
        assert not (results.get(key) or {}).get("success"), key
    if outcome["status"] == "completed":
        assert not outcome["missing"]
        assert not out.get("control_has_error")
    else:
        assert outcome.get("reason"), "a failure without a reason"
    assert sum(capability.faults.calls for capability in made) <= 3 * 4 * len(story["reads"])
    assert len(bench.planner.calls) <= 8
    assert out["control_routing_count"] <= 40
    assert all(wait >= 0 for wait in bench.clock.sleeps)
    assert saved == out


@pytest.mark.parametrize("place", range(3))
async def test_fatal_anywhere_in_a_plan_raises_and_starts_nothing_after_it(
    agent: Any, step: Any, place: int
) -> None:
    faults: list[Any] = [None] * place + [CapabilityError("fatal", severity=ErrorSeverity.FATAL)]
    story = {
        "reads": [[], [0], [1], [2]],
        "faults": {"one": faults, "two": [], "three": []},
        "who": ["one"] * 4,
        "selector": [],
        "planner": [],
    }
    bench, made = build(story, agent, step)
    with pytest.raises(FatalExecutionError):
        await bench.ask(capability_context_data={"VALUE": {"zero": {"n": 0.0}}})
    assert made[0].faults.calls == place + 1


async def test_a_cancelled_turn_can_be_gone_on_with(agent: Any, step: Any) -> None:
    story = {
        "reads": [[], [0]],
        "faults": {"one": [], "two": [5.0], "three": []},
        "who": ["one", "two"],
        "selector": [],
        "planner": [],
    }
    bench, made = build(story, agent, step)
    asked = asyncio.create_task(bench.ask(capability_context_data={"VALUE": {"zero": {"n": 0.0}}}))
    while made[1].faults.calls == 0:
        await asyncio.sleep(0.001)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    out = await bench.graph.ainvoke(None, bench.config())
    assert out["execution_outcome"] == {"status": "completed", "done": ["s0", "s1"], "missing": []}
    assert [capability.faults.calls for capability in made] == [1, 2, 0], (
        "a finished step ran again"
    )
