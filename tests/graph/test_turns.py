"""Turns of one thread: what survives, what is reset, and whose plan it is."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import ErrorSeverity
from capgraph.base import BaseCapability, CapabilityError, PersistenceError, capability_node
from capgraph.state import AgentState, StateSchema
from capgraph.testing import with_faults
from tests.support.doors import message_and_reason
from tests.support.toys import Reading, Total, add, measure, said

# --- what survives ----------------------------------------------------------------------------


async def test_context_and_messages_survive_and_the_rest_begins_anew(agent: Any, step: Any) -> None:
    plans = [
        [step("a", "measure")],
        [step("t", "add", READING="a")],
    ]
    bench = agent(Reading, Total, measure, add, plans=plans, checkpointer=InMemorySaver())
    first = await bench.ask("Measure it")
    second = await bench.ask("Add it up")
    assert [type(message) for message in second["messages"]] == [HumanMessage, AIMessage] * 2
    assert (
        second["capability_context_data"]["READING"] == first["capability_context_data"]["READING"]
    )
    assert second["capability_context_data"]["TOTAL"]["t"] == {"value": 7.0}
    assert list(second["execution_step_results"]) == ["t"]
    assert second["task_current_task"] == "Add it up"
    assert second["control_plans_created_count"] == 1
    assert len(second["planning_history"]) == 1
    assert second["runtime_info"]["turn"] == 2


async def test_a_failed_turn_leaves_no_error_behind(agent: Any, step: Any) -> None:
    broken = with_faults(
        measure, *[CapabilityError("No power", severity=ErrorSeverity.REPLANNING)] * 2
    )
    bench = agent(Reading, broken, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    first = await bench.ask()
    assert first["execution_outcome"]["status"] == "failed"
    second = await bench.ask("Again")
    assert second["execution_outcome"]["status"] == "completed"
    for key in ("control_has_error", "control_error_info", "control_last_error"):
        assert not second.get(key)
    assert second["control_plans_created_count"] == 1
    assert said(second) == "The value is 7."


@pytest.mark.row("B13")
async def test_the_error_of_a_completed_turn_is_none(agent: Any, step: Any) -> None:
    out = await agent(Reading, measure, plans=[[step("a", "measure")]]).ask()
    assert out["control_error_info"] is None


async def test_every_key_but_the_surviving_ones_is_reset(agent: Any) -> None:
    """Whatever a front end or an older turn left in the state cannot leak into the next turn."""
    left: dict[str, Any] = {
        "task_custom_message": "old",
        "task_depends_on_user_memory": True,
        "planning_active_capabilities": ["ghost"],
        "planning_history": [{"version": 1}],
        "execution_step_results": {"x": {"success": True}},
        "execution_pending_approvals": {"x": {}},
        "approval_decisions": {"x": {"decision": "approve"}},
        "approval_approved": True,
        "control_is_killed": True,
        "control_kill_reason": "old",
        "control_attempts": {"measure": 9},
        "control_reclassification_count": 9,
        "ui_captured_figures": ["old.png"],
        "status_updates": ["old"],
    }
    bench = agent(Reading, measure, plans=[[]], checkpointer=InMemorySaver())
    await bench.ask("First")
    await bench.graph.aupdate_state(bench.config(), left, as_node="respond")
    out = await bench.ask("Second")
    for key in left:
        assert out.get(key) != left[key], key
    assert out["execution_outcome"]["status"] != "stopped"


@pytest.mark.row("B45")
def test_what_survives_is_what_the_design_says() -> None:
    kept = StateSchema.from_class(AgentState).thread_keys
    assert {"messages", "capability_context_data"} <= kept
    for key in kept - {"messages", "capability_context_data"}:
        known = {
            "agent_control",
            "control_begun",
            "control_dialogue",
            "control_turn",
            "runtime_info",
        }
        labels = {"capability_context_labels", "control_labels"}  # of what the thread keeps
        assert key in known | labels, "another surviving key needs a reason"
    assert set(AgentState.__annotations__) >= kept


async def test_threads_do_not_see_each_other(agent: Any, step: Any) -> None:
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    await bench.ask("One", thread="1")
    out = await bench.ask("Two", thread="2")
    assert [m.content for m in out["messages"]] == ["Two", "The value is 7."]
    assert out["runtime_info"]["turn"] == 1


# --- a plan of the caller ---------------------------------------------------------------------


async def test_a_brought_plan_skips_choice_and_planning_and_runs(agent: Any, step: Any) -> None:
    bench = agent(Reading, Total, measure, add)
    brought = {"steps": [step("m", "measure"), step("t", "add", READING="m")]}
    given = copy.deepcopy(brought)
    out = await bench.ask("Run this", planning_execution_plan=brought)
    assert bench.selector.calls == []
    assert bench.planner.calls == []
    assert out["capability_context_data"]["TOTAL"]["t"] == {"value": 7.0}
    steps = out["planning_execution_plan"]["steps"]
    assert [one["capability"] for one in steps] == ["measure", "add", "respond"]
    assert steps[1]["inputs"] == [{"READING": "m"}]
    assert brought == given, "the caller's plan was changed"
    assert out["execution_outcome"]["status"] == "completed"


async def test_a_brought_plan_needs_no_message(agent: Any, step: Any) -> None:
    bench = agent(Reading, measure)
    out = await bench.graph.ainvoke({"planning_execution_plan": {"steps": [step("m", "measure")]}})
    assert said(out) == "The value is 7."


BAD_PLANS: list[Any] = [
    "nonsense",
    [],
    {"steps": "none"},
    {"steps": [1, 2]},
    {"steps": [{"capability": "invented", "context_key": "a"}]},
    {"steps": [{"capability": "add", "context_key": "a", "inputs": [{"READING": "nowhere"}]}]},
    {"steps": [{"capability": 5}]},
    {"no": "steps"},
    {},
]


@pytest.mark.parametrize("plan", BAD_PLANS, ids=repr)
async def test_a_bad_brought_plan_is_refused_and_does_not_come_back(
    agent: Any, step: Any, plan: Any
) -> None:
    bench = agent(
        Total, add, given=["READING"], plans=[[step("q", "clarify")]], checkpointer=InMemorySaver()
    )
    first = await bench.ask("Run this", planning_execution_plan=plan)
    assert said(first)
    assert not first.get("execution_step_results")
    second = await bench.ask("Something else")
    assert second["task_current_task"] == "Something else"
    assert len(bench.planner.calls) >= 1, "the refused plan was taken for a new one"
    assert said(second) == "Do q"


async def test_the_plan_of_the_last_turn_is_not_taken_for_a_brought_one(
    agent: Any, step: Any
) -> None:
    source = with_faults(measure)
    plans = [[step("a", "measure")], [step("b", "measure")]]
    bench = agent(Reading, source, plans=plans, checkpointer=InMemorySaver())
    await bench.ask("One")
    out = await bench.ask("Two")
    assert len(bench.planner.calls) == 2
    steps = out["planning_execution_plan"]["steps"]
    assert [one["capability"] for one in steps] == ["measure", "respond"]
    assert list(out["execution_step_results"]) == ["b"]
    assert source.faults.calls == 2


async def test_a_brought_plan_is_not_taken_for_a_brought_one_again(agent: Any, step: Any) -> None:
    source = with_faults(measure)
    bench = agent(Reading, source, plans=[[step("b", "measure")]], checkpointer=InMemorySaver())
    await bench.ask("Run this", planning_execution_plan={"steps": [step("a", "measure")]})
    out = await bench.ask("Two")
    assert len(bench.planner.calls) == 1
    assert list(out["execution_step_results"]) == ["b"]


async def test_a_brought_plan_that_was_interrupted_by_a_failure_is_not_run_again(
    agent: Any, step: Any
) -> None:
    broken = with_faults(measure, CapabilityError("No", severity=ErrorSeverity.CRITICAL))
    bench = agent(Reading, broken, plans=[[step("b", "measure")]], checkpointer=InMemorySaver())
    await bench.ask("Run this", planning_execution_plan={"steps": [step("a", "measure")]})
    out = await bench.ask("Two")
    assert list(out["execution_step_results"]) == ["b"]


async def test_a_plan_read_from_another_thread_can_be_brought(agent: Any, step: Any) -> None:
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    first = await bench.ask("One", thread="1")
    out = await bench.ask(
        "Two", thread="2", planning_execution_plan=first["planning_execution_plan"]
    )
    assert len(bench.planner.calls) == 1
    assert said(out) == "The value is 7."


async def test_the_last_plan_changed_by_the_caller_is_a_brought_one(agent: Any, step: Any) -> None:
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    first = await bench.ask("One")
    changed = copy.deepcopy(first["planning_execution_plan"])
    changed["steps"].insert(1, step("b", "measure"))
    out = await bench.ask("Two", planning_execution_plan=changed)
    assert len(bench.planner.calls) == 1
    assert list(out["execution_step_results"]) == ["a", "b"]


@pytest.mark.parametrize("level", ["replanning", "reclassification"])
async def test_a_brought_plan_that_fails_says_so_instead_of_planning_from_nothing(
    agent: Any, step: Any, level: str
) -> None:
    broken = with_faults(
        measure, forever=CapabilityError("No power", severity=ErrorSeverity(level))
    )
    bench = agent(Reading, broken)
    out = await bench.ask("Run", planning_execution_plan={"steps": [step("a", "measure")]})
    assert "No power" in said(out)
    assert out["execution_outcome"]["status"] == "failed"


# --- returned keys ----------------------------------------------------------------------------


def returning(result: Any, provides: list[str]) -> type[BaseCapability]:
    kinds = provides

    class Returns(BaseCapability):
        name = "returns"
        description = "Returns something."
        provides = kinds

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return result

    return capability_node(Returns)


async def test_a_returned_state_key_is_merged(agent: Any, step: Any) -> None:
    capability = returning({"ui_captured_figures": ["a.png"]}, [])
    out = await agent(capability, plans=[[step("a", "returns")]]).ask()
    assert out["ui_captured_figures"] == ["a.png"]


async def test_other_keys_become_the_output_of_the_step(agent: Any, step: Any) -> None:
    capability = returning({"weather_current_conditions": "sun", "count": 2}, ["WEATHER"])
    out = await agent(capability, plans=[[step("a", "returns")]]).ask()
    assert out["capability_context_data"]["WEATHER"]["a"] == {
        "weather_current_conditions": "sun",
        "count": 2,
    }


async def test_both_kinds_of_keys_at_once(agent: Any, step: Any) -> None:
    capability = returning({"ui_captured_figures": ["a.png"], "x": 1}, ["WEATHER"])
    out = await agent(capability, plans=[[step("a", "returns")]]).ask()
    assert out["ui_captured_figures"] == ["a.png"]
    assert out["capability_context_data"]["WEATHER"]["a"] == {"x": 1}


async def test_a_key_that_fits_nowhere_is_an_error_that_names_it_and_the_ways_out(
    agent: Any, step: Any
) -> None:
    out = await agent(returning({"lost_key": 1}, []), plans=[[step("a", "returns")]]).ask()
    assert out["execution_outcome"]["status"] == "failed"
    for word in ("lost_key", "provides", "AgentState"):
        assert word in message_and_reason(out)


@pytest.mark.parametrize(
    "key", ["control_error_info", "control_has_error", "execution_step_results", "control_attempts"]
)
async def test_a_key_of_the_graph_cannot_be_written_by_a_capability(
    agent: Any, step: Any, key: str
) -> None:
    capability = returning({key: {"b": {"success": True}}}, [])
    plan = [step("a", "returns"), step("b", "returns")]
    out = await agent(capability, plans=[plan]).ask()
    assert out["execution_outcome"]["status"] == "failed"
    assert out["execution_outcome"]["done"] == []
    assert key in said(out)


async def test_only_plain_data_enters_the_state(agent: Any, step: Any) -> None:
    result = {"ui_agent_context": {"level": ErrorSeverity.FATAL, "path": Path("a"), 1: {2}}}
    out = await agent(returning(result, []), plans=[[step("a", "returns")]]).ask()
    assert out["ui_agent_context"] == {"level": "fatal", "path": "a", "1": [2]}


async def test_what_is_not_plain_fails_its_step_and_is_named(agent: Any, step: Any) -> None:
    result = {"ui_agent_context": {"tool": {"handle": object()}}}
    bench = agent(returning(result, []), plans=[[step("a", "returns")]])
    out = await bench.ask()
    assert not out.get("ui_agent_context")
    assert "ui_agent_context of 'returns'.tool.handle is of type object" in said(out)


@pytest.mark.parametrize("result", [7, "text", {1, 2}, object()])
async def test_a_result_of_another_form_is_an_error(agent: Any, step: Any, result: Any) -> None:
    out = await agent(returning(result, ["WEATHER"]), plans=[[step("a", "returns")]]).ask()
    assert type(result).__name__ in message_and_reason(out)
    assert out["execution_outcome"]["status"] == "failed"


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
async def test_an_empty_message_is_a_clear_error_and_the_thread_goes_on(
    agent: Any, step: Any, text: str
) -> None:
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    out = await bench.ask(text)
    assert "empty" in said(out)
    assert "Write what you want" in message_and_reason(out)
    assert out["execution_outcome"]["status"] == "failed"
    assert bench.selector.calls == []
    assert said(await bench.ask("Now")) == "The value is 7."


async def test_no_message_at_all_is_a_clear_error(agent: Any) -> None:
    out = await agent(Reading, measure).graph.ainvoke({"messages": []})
    assert "empty" in said(out)


async def test_a_message_that_is_too_long_is_a_clear_error(agent: Any) -> None:
    bench = agent(Reading, measure, limits={"max_message_chars": 100})
    out = await bench.ask("x" * 101)
    for word in ("101", "100", "max_message_chars"):
        assert word in message_and_reason(out)
    assert bench.selector.calls == []


async def test_a_megabyte_is_refused_by_default(agent: Any) -> None:
    out = await agent(Reading, measure).ask("x" * 1_000_000)
    assert "1,000,000" in said(out)


# --- always active --------------------------------------------------------------------------------


@pytest.mark.row("B49")
async def test_what_is_always_active_is_so_when_nothing_else_is_chosen(
    agent: Any, step: Any
) -> None:
    @capability_node(always_active=True)
    async def note() -> Total:
        """Take a note of every request."""
        return Total(value=1)

    bench = agent(note, plans=[[step("n", "note")]])
    out = await bench.ask("Nothing that anybody does")
    assert out["planning_active_capabilities"] == ["note"]
    assert out["execution_step_results"]["n"]["success"]


# --- one thread, two runs at once ---------------------------------------------------------------


async def test_a_second_run_of_a_thread_is_told_and_changes_nothing(agent: Any, step: Any) -> None:
    slow = with_faults(measure, forever=0.05)
    bench = agent(Reading, slow, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    one, two = await asyncio.gather(bench.ask("One"), bench.ask("Two"), return_exceptions=True)
    told, finished = (one, two) if isinstance(one, BaseException) else (two, one)
    assert isinstance(told, PersistenceError), told
    assert "'1' is already running" in str(told)
    assert "Fix:" in str(told)
    assert slow.faults.calls == 1
    state = (await bench.graph.aget_state(bench.config())).values
    assert state["messages"] == finished["messages"]
    assert len(state["messages"]) == 2
    out = await bench.ask("Three")
    assert [message.content for message in out["messages"]][2:] == ["Three", "The value is 7."]
