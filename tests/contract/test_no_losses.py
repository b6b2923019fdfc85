"""Loops, losses and leaks that agents of this kind are known for, each shown absent."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import BaseCapability, ErrorSeverity, Registry
from capgraph.base import CapabilityError, RegistryError, capability_node
from capgraph.testing import with_faults
from tests.support.sweeps import examples
from tests.support.toys import Reading, Total, add, measure, said

# --- approvals ------------------------------------------------------------------------------------


def gated() -> Any:
    return capability_node(type("Gated", (measure,), {"requires_approval": True}))


async def test_a_rejected_step_asks_again_and_then_takes_yes_for_an_answer(
    agent: Any, step: Any
) -> None:
    plans = [[step("a", "measure")], [step("b", "measure")]]
    bench = agent(Reading, gated(), plans=plans, checkpointer=InMemorySaver())
    out = await bench.ask()
    assert out["__interrupt__"]
    out = await bench.graph.ainvoke(Command(resume="reject"), bench.config())
    assert len(bench.planner.calls) == 2
    assert out["__interrupt__"]
    out = await bench.graph.ainvoke(Command(resume="approve"), bench.config())
    assert said(out) == "The value is 7."


async def test_rejections_are_bounded_and_never_become_an_approval(agent: Any, step: Any) -> None:
    guarded = gated()
    watched = with_faults(guarded)
    bench = agent(
        Reading,
        watched,
        plans=[[step(f"k{n}", "measure")] for n in range(60)],
        checkpointer=InMemorySaver(),
        limits={"max_planning_attempts": 50},
    )
    out = await bench.ask()
    asked = 0
    while out.get("__interrupt__"):
        asked += 1
        assert asked < 10
        out = await bench.graph.ainvoke(Command(resume="reject"), bench.config())
    assert watched.faults.calls == 0
    assert said(out)
    assert out["execution_outcome"]["status"] == "failed"


@pytest.mark.parametrize(
    "answer", ["perhaps", [], {"zzz": "approve"}, 5, {"a": {"decision": "eat"}}]
)
async def test_an_answer_that_makes_no_sense_leaves_the_question_open(
    agent: Any, step: Any, answer: Any
) -> None:
    bench = agent(Reading, gated(), plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    await bench.ask()
    out = await bench.graph.ainvoke(Command(resume=answer), bench.config())
    assert out["__interrupt__"][0].value["problems"]
    assert not out.get("execution_step_results")


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node", ["router", "orchestrator", "classifier", "error", "approval", "begin_turn"]
)
async def test_a_node_of_the_framework_is_no_step(agent: Any, step: Any, node: str) -> None:
    source = with_faults(measure)
    bench = agent(Reading, source, plans=[[step("x", node), step("a", "measure")]])
    out = await bench.ask()
    assert out["control_routing_count"] < 10
    assert said(out)
    steps = (out.get("planning_execution_plan") or {}).get("steps") or []
    assert node not in [planned["capability"] for planned in steps]


async def test_an_answer_in_the_middle_of_a_plan_does_not_end_it(agent: Any, step: Any) -> None:
    plan = [step("a", "measure"), step("r", "respond"), step("t", "add", READING="a")]
    out = await agent(Reading, Total, measure, add, plans=[plan]).ask()
    if out["execution_outcome"]["status"] == "completed":
        assert set(out["execution_outcome"]["done"]) == {"a", "t"}
    else:
        assert "respond" in said(out)


@pytest.mark.row("B14")
async def test_two_steps_of_one_key_never_overwrite_each_other(agent: Any, step: Any) -> None:
    plan = [step("a", "measure"), step("a", "add", READING="old")]
    bench = agent(Reading, Total, measure, add, plans=[plan], given=["READING"])
    out = await bench.ask(capability_context_data={"READING": {"old": {"value": 1}}})
    steps = (out.get("planning_execution_plan") or {}).get("steps") or []
    keys = [planned["context_key"] for planned in steps]
    assert len(keys) == len(set(keys))
    if out["execution_outcome"]["status"] == "completed":
        assert len(out["execution_step_results"]) == 2


@pytest.mark.row("B48")
async def test_a_step_of_a_capability_that_was_not_chosen_does_not_run(
    agent: Any, step: Any
) -> None:
    forbidden = with_faults(measure)

    class OnlyAdd:
        async def select(self, task: str, candidates: Any, **_: Any) -> Any:
            from capgraph.selection import Selection

            return Selection(("add",))

    plan = [step("a", "measure")]
    bench = agent(
        Reading, Total, forbidden, add, plans=[plan], given=["READING"], selector=OnlyAdd()
    )
    out = await bench.ask(capability_context_data={"READING": {"old": {"value": 1}}})
    assert forbidden.faults.calls == 0
    assert out["execution_outcome"]["status"] == "failed"


async def test_concurrent_threads_keep_their_own_plans(agent: Any, step: Any) -> None:
    slow = with_faults(measure, forever=0.005)
    plans = [[step(f"k{n}", "measure")] for n in range(6)]
    bench = agent(Reading, slow, plans=plans, checkpointer=InMemorySaver())
    outs = await asyncio.gather(*(bench.ask(f"Task {n}", thread=str(n)) for n in range(6)))
    for number, out in enumerate(outs):
        assert out["task_current_task"] == f"Task {number}"
        planned = [s["context_key"] for s in out["planning_execution_plan"]["steps"][:-1]]
        assert list(out["execution_step_results"]) == planned == out["execution_outcome"]["done"]
    assert len({str(list(out["execution_step_results"])) for out in outs}) == 6


# --- state ----------------------------------------------------------------------------------------


async def test_what_a_failed_step_stored_is_not_kept(agent: Any, step: Any) -> None:
    class Half(BaseCapability):
        name = "half"
        description = "Stores and fails"
        provides = ["READING"]

        async def execute(self) -> None:
            self.store(Reading(value=666))
            raise CapabilityError("half done")

    out = await agent(Reading, capability_node(Half), plans=[[step("a", "half")]]).ask()
    assert "READING" not in (out.get("capability_context_data") or {})


@pytest.mark.parametrize("then_fail", [True, False])
async def test_a_capability_cannot_change_the_state_in_place(
    agent: Any, step: Any, then_fail: bool
) -> None:
    class Meddler(BaseCapability):
        name = "meddler"
        description = "Writes where it should read"
        requires = ["RAW"]

        @staticmethod
        async def execute(state: Any, context: Any, step: Any, **kwargs: Any) -> Any:
            context["RAW"]["value"] = 666
            state["capability_context_data"]["RAW"]["r"]["value"] = 666
            state["messages"].append(("user", "666"))
            step["parameters"]["n"] = 666
            if then_fail:
                raise CapabilityError("caught")
            return {}

    plan = [step("m", "meddler", {"n": 1}, RAW="r")]
    bench = agent(
        capability_node(Meddler), plans=[plan], given=["RAW"], checkpointer=InMemorySaver()
    )
    out = await bench.ask(capability_context_data={"RAW": {"r": {"value": 1}}})
    assert out["capability_context_data"]["RAW"]["r"] == {"value": 1}
    assert len(out["messages"]) == 2
    planned = out["planning_execution_plan"]["steps"][0]
    assert planned["parameters"] == {"n": 1}
    again = (await bench.graph.aget_state(bench.config())).values
    assert again["capability_context_data"]["RAW"]["r"] == {"value": 1}


# --- configuration and commands -------------------------------------------------------------------


def test_leaving_out_a_capability_leaves_it_out_and_a_wrong_name_is_told() -> None:
    registry = Registry()
    registry.register(measure)
    registry.register(add)
    registry.configure(exclude=["add"])
    assert list(registry.capabilities) == ["measure"]
    with pytest.raises(RegistryError, match="nothing"):
        registry.configure(exclude=["nothing"])


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.row("B40")
async def test_events_of_sessions_go_to_their_own_streams(agent: Any, step: Any) -> None:
    class Talks(BaseCapability):
        name = "talks"
        description = "Streams its task"

        async def execute(self) -> None:
            for _ in range(3):
                await asyncio.sleep(0.002)
                self.progress(self.state["task_current_task"])

    bench = agent(capability_node(Talks), plans=[[step("a", "talks")]])

    async def session(text: str) -> list[dict[str, Any]]:
        stream = bench.graph.astream({"messages": [("user", text)]}, stream_mode="custom")
        return [event async for event in stream]

    first = await session("alone")
    many = await asyncio.gather(*(session(f"s{n}") for n in range(4)))
    for number, events in enumerate(many):
        assert len(events) == len(first)
        said_here = {e["message"] for e in events if e["event_type"] == "step_progress"}
        assert said_here == {f"s{number}"}


# --- logs -----------------------------------------------------------------------------------------


@pytest.mark.row("B39")
def test_getting_a_logger_leaves_the_root_alone() -> None:
    from capgraph.configs.logger import get_logger

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    get_logger("framework", "router").info("x")
    get_logger(name="mine", color="red")
    assert (root.handlers, root.level) == (handlers, level)
    for wrong in ((), ("framework",), (None, "x")):
        with pytest.raises(ValueError, match="get_logger"):
            get_logger(*wrong)


# --- order ----------------------------------------------------------------------------------------


@st.composite
def waves(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """A random plan as the earlier steps that each step reads, and two orders of haste."""
    size = draw(st.integers(2, 9))
    reads = [
        sorted(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else [] for n in range(size)
    ]
    return reads, draw(st.lists(st.integers(0, 10_000), min_size=2, max_size=2))


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(waves())
def test_the_order_in_which_parallel_steps_end_changes_nothing(
    agent: Any, step: Any, drawn: tuple[list[list[int]], list[int]]
) -> None:
    reads, seeds = drawn

    def run(seed: int) -> dict[str, Any]:
        haste = random.Random(seed)
        delays = {f"s{n}": haste.random() * 0.004 for n in range(len(reads))}

        class Sums(BaseCapability):
            name = "sums"
            description = "Adds its inputs to its own number"
            provides = ["READING"]
            requires = [("READING", "many")]

            async def execute(self) -> list[Any]:
                key = self.step["context_key"]
                await asyncio.sleep(delays[key])
                value = float(key[1:]) + 2 * sum(r.value for r in self.inputs["READING"])
                return [Reading(value=value), {"ui_captured_figures": [key]}]

        plan = [
            step(f"s{n}", "sums", READING=[f"s{m}" for m in earlier] or ["zero"])
            for n, earlier in enumerate(reads)
        ]
        bench = agent(Reading, capability_node(Sums), plans=[plan], given=["READING"])
        start = {"READING": {"zero": {"value": 0.0}}}
        out = asyncio.run(bench.ask(capability_context_data=start))
        assert out["execution_outcome"]["status"] == "completed", out["execution_outcome"]
        return without_times(out)

    assert run(seeds[0]) == run(seeds[1])


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        times = {
            "approval_scope",
            "timestamp",
            "execution_time",
            "at",
            "id",
            "plan_stamp",
            "seconds_used",
        }
        return {
            key: without_times(item)
            for key, item in value.items()
            if key not in times | {"execution_last_result", "execution_total_time"}
        }
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return getattr(value, "content", value)


async def test_a_failure_in_a_wave_does_not_lose_what_ran_beside_it(agent: Any, step: Any) -> None:
    beside = with_faults(measure, forever=0.01)
    broken = with_faults(add, forever=CapabilityError("no", severity=ErrorSeverity.REPLANNING))
    plan = [step("a", "measure"), step("b", "measure"), step("t", "add", READING="old")]
    bench = agent(Reading, Total, beside, broken, plans=[plan], given=["READING"])
    out = await bench.ask(capability_context_data={"READING": {"old": {"value": 1}}})
    assert set(out["execution_outcome"]["done"]) == {"a", "b"}
    assert beside.faults.calls == 2, "finished steps ran again under the new plan"
