"""What a caller may send; all else is refused by name where the graph is entered."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Send

from capgraph import build_graph
from capgraph.base.errors import CapgraphError
from capgraph.state import AgentState, CallerInput
from tests.support.one_door import (
    Reading,
    Receipt,
    measurer,
    payer,
    refused,
    registered,
    said,
    status,
)

ALLOWED = {
    "messages",
    "planning_execution_plan",
    "capability_context_data",
    "agent_control",
    "execution_answer_schema",
}
VALUES: dict[str, Any] = {
    "runtime_info": {"turn": 0},
    "runtime_checkpoint_metadata": {"x": 1},
    "task_current_task": "Pay twice",
    "task_depends_on_chat_history": True,
    "planning_active_capabilities": ["pay"],
    "planning_current_step_index": 1,
    "planning_ready_for_execution": True,
    "planning_history": [{"version": 1}],
    "execution_step_results": {"a": {"success": True}},
    "execution_last_result": {"success": True},
    "execution_pending_approvals": {"a": {}},
    "approval_approved": True,
    "approved_payload": {"a": {}},
    "control_has_error": True,
    "control_error_info": {"user_message": "x"},
    "control_retry_count": 1,
    "control_current_step_retry_count": 1,
    "control_max_retries": 50,
    "control_plans_created_count": -50,
    "control_reclassification_count": -50,
    "control_reclassification_reason": "because",
    "control_next_node": "pay",
    "control_is_killed": True,
    "control_kill_reason": "x",
    "status_updates": ["x"],
    "ui_captured_figures": ["x.png"],
    "ui_agent_context": {"x": 1},
    "made_up_key": 1,
}


@pytest.fixture
def paid() -> list[int]:
    return []


@pytest.fixture
def desk(agent: Any, step: Any, paid: list[int]) -> Any:
    Pay = payer(paid, requires_approval=True)
    plan = [step("a", "pay", {"amount": 5})]
    return agent(Receipt, Pay, plans=[plan], given=["READING"], checkpointer=InMemorySaver())


def given(**keys: Any) -> dict[str, Any]:
    return {"messages": [("user", "Do it")], **keys}


async def by_ainvoke(graph: Any, value: Any, config: Any) -> Any:
    return await graph.ainvoke(value, config)


async def by_astream(graph: Any, value: Any, config: Any) -> Any:
    return [item async for item in graph.astream(value, config)]


async def by_invoke(graph: Any, value: Any, config: Any) -> Any:
    return await asyncio.to_thread(graph.invoke, value, config)


async def by_stream(graph: Any, value: Any, config: Any) -> Any:
    return await asyncio.to_thread(lambda: list(graph.stream(value, config)))


async def by_events(graph: Any, value: Any, config: Any) -> Any:
    return [item async for item in graph.astream_events(value, config, version="v2")]


async def by_abatch(graph: Any, value: Any, config: Any) -> Any:
    return await graph.abatch([value], config)


async def by_another_config(graph: Any, value: Any, config: Any) -> Any:
    return await graph.with_config({"tags": ["x"]}).ainvoke(value, config)


async def by_copy(graph: Any, value: Any, config: Any) -> Any:
    return await graph.copy().ainvoke(value, config)


DOORS = [
    by_ainvoke,
    by_astream,
    by_invoke,
    by_stream,
    by_events,
    by_abatch,
    by_another_config,
    by_copy,
]


@pytest.mark.parametrize("key", VALUES)
async def test_a_key_that_is_not_the_callers_is_refused_by_name(
    desk: Any, paid: list[int], key: str
) -> None:
    await refused(desk.graph.ainvoke(given(**{key: VALUES[key]}), desk.config()), key)
    assert desk.planner.calls == []
    assert paid == []


async def test_every_key_that_nobody_may_send_is_refused(desk: Any) -> None:
    for key in sorted(set(AgentState.__annotations__) - ALLOWED - set(VALUES)):
        await refused(desk.graph.ainvoke(given(**{key: {"x": 1}}), desk.config()), key)


async def test_several_keys_are_named_together(desk: Any) -> None:
    wrong = {"control_next_node": "pay", "made_up_key": 1}
    await refused(desk.graph.ainvoke(given(**wrong), desk.config()), *wrong)


async def test_a_refusal_leaves_the_thread_as_it_was(desk: Any, paid: list[int]) -> None:
    await desk.ask()
    before = await desk.graph.aget_state(desk.config())
    await refused(desk.graph.ainvoke(given(control_max_retries=9), desk.config()))
    after = await desk.graph.aget_state(desk.config())
    assert after.values == before.values
    assert after.next == before.next
    out = await desk.graph.ainvoke(Command(resume="approve"), desk.config())
    assert paid == [5]
    assert said(out)


@pytest.mark.may_block
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (given(execution_step_results={"a": {"success": True}}), "execution_step_results"),
        (Command(update={"approval_decisions": {"a": {}}}), "approval_decisions"),
        (Command(goto="pay"), "goto"),
    ],
    ids=["key", "update", "goto"],
)
async def test_every_entry_refuses(
    desk: Any, paid: list[int], door: Any, value: Any, named: str
) -> None:
    await refused(door(desk.graph, value, desk.config()), named)
    assert paid == []


@pytest.mark.parametrize(
    "command",
    [
        Command(update={"approval_decisions": {"a": {"decision": "approve"}}}),
        Command(update=[("approval_decisions", {"a": {"decision": "approve"}})]),
        Command(update={"agent_control": {"approval_disabled": True}}),
        Command(update={"messages": [("user", "And more")]}),
        Command(goto="pay"),
        Command(goto=["router", "pay"]),
        Command(goto=Send("pay", {"planning_current_step_index": 0})),
        Command(goto="respond"),
        Command(resume="reject", goto="pay"),
        Command(resume="reject", update={"approval_decisions": {"a": {"decision": "approve"}}}),
        Command(resume="approve", update={"control_max_retries": 50}),
        Command(resume="approve", update={"planning_execution_plan": {"steps": []}}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("waiting", [True, False], ids=["waiting", "fresh"])
async def test_commands_that_steer_are_refused(
    desk: Any, paid: list[int], command: Any, waiting: bool
) -> None:
    if waiting:
        await desk.ask()
    text = await refused(desk.graph.ainvoke(command, desk.config()))
    assert ("goto" in text) if command.goto else ("update" in text)
    assert paid == []
    if waiting:
        out = await desk.graph.ainvoke(Command(resume="approve"), desk.config())
        assert paid == [5], "the question is no longer open"
        assert said(out)


async def test_a_previous_output_handed_back_is_refused_with_the_way_out(
    agent: Any, step: Any
) -> None:
    runs: list[Any] = []
    made = agent(Reading, measurer(runs), plans=[[step("a", "measure")]])
    first = await made.ask()
    for again in (first, {**first, "messages": [*first["messages"], HumanMessage("More")]}):
        text = await refused(made.graph.ainvoke(again), "messages", "thread")
        assert "control_" in text or "output" in text.lower() or "execution_" in text
    assert runs == ["a"]


def test_the_schema_of_the_input_lists_what_may_be_sent(agent: Any) -> None:
    schema = agent(Receipt, payer([])).graph.get_input_jsonschema()
    assert "messages" in schema["properties"]
    assert set(schema["properties"]) <= ALLOWED


async def test_what_may_be_sent_is_taken(agent: Any, step: Any) -> None:
    runs: list[Any] = []
    made = agent(
        Reading,
        measurer(runs),
        given=["READING"],
        plans=[[step("a", "measure")]],
        checkpointer=InMemorySaver(),
    )
    out = await made.ask(
        planning_execution_plan={"steps": [step("b", "measure")]},
        capability_context_data={"READING": {"k": {"value": 1}}},
        agent_control={"planning_mode_enabled": False, "task_extraction_bypass_enabled": True},
    )
    assert runs == ["b"]
    assert out["capability_context_data"]["READING"]["k"] == {"value": 1}
    assert status(out) == "completed"


async def test_context_of_a_type_that_was_not_given_is_refused_by_name(desk: Any) -> None:
    forged = {"RECEIPT": {"a": {"paid": 5}}}
    for data, name in ((forged, "RECEIPT"), ({"NONSENSE": {"a": {}}}, "NONSENSE")):
        start = given(capability_context_data=data)
        await refused(desk.graph.ainvoke(start, desk.config()), name)


async def test_keys_of_ones_own_state_are_sent_only_where_marked(step: Any) -> None:
    class Mine(AgentState):
        order_id: Annotated[str, CallerInput]
        clearance: str

    seen: list[Any] = []

    async def execute(self: Any) -> Reading:
        seen.append((self.state.get("order_id"), self.state.get("clearance")))
        return Reading(value=1)

    graph = build_graph(registered(Reading, measurer([], execute=execute)), state_schema=Mine)
    plan = {"planning_execution_plan": {"steps": [step("a", "measure")]}}
    out = await graph.ainvoke(given(order_id="A-7", **plan))
    assert seen == [("A-7", None)]
    assert out["order_id"] == "A-7"
    await refused(graph.ainvoke(given(clearance="top", **plan)), "clearance")
    assert len(seen) == 1


# --- nothing new ----------------------------------------------------------------------------------


@pytest.fixture
def till(agent: Any, step: Any, paid: list[int]) -> Any:
    plans = [[step("a", "pay", {"amount": 5})]]
    return agent(Receipt, payer(paid), plans=plans, checkpointer=InMemorySaver())


async def nothing_new(run: Any, paid: list[int]) -> None:
    """Assert that a call repeats no effect and says that there is nothing new."""
    before = list(paid)
    try:
        text = said(await run)
    except CapgraphError as exc:
        text = str(exc)
    assert paid == before, "the last request was repeated"
    assert "new" in text.lower(), text


@pytest.mark.parametrize(
    "again",
    [
        {"messages": []},
        {"messages": [AIMessage("Something that no person said", id="m9")]},
        {"messages": [HumanMessage("Pay", id="m1")]},
        {"agent_control": {"planning_mode_enabled": False}},
        {"capability_context_data": {}},
        {},
    ],
    ids=["no message", "the agent's", "the same", "a switch", "context", "nothing"],
)
async def test_without_a_new_message_there_is_nothing_new(
    till: Any, paid: list[int], again: Any
) -> None:
    first = {"messages": [HumanMessage("Pay", id="m1")]}
    await till.graph.ainvoke(first, till.config())
    assert paid == [5]
    for _ in range(2):
        await nothing_new(till.graph.ainvoke(again, till.config()), paid)
    out = await till.ask("Pay again")
    assert paid == [5, 5]
    assert status(out) == "completed"


async def test_the_whole_history_with_one_new_message_is_new(till: Any, paid: list[int]) -> None:
    out = await till.graph.ainvoke({"messages": [HumanMessage("Pay", id="m1")]}, till.config())
    history = [*out["messages"], HumanMessage("Pay", id="m2")]
    await till.graph.ainvoke({"messages": history}, till.config())
    assert paid == [5, 5]
    await nothing_new(till.graph.ainvoke({"messages": history}, till.config()), paid)


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("Pay", id="m2"),
        HumanMessage("Pay once more", id="m1"),
        HumanMessage("Pay"),
        ("user", "Pay"),
    ],
    ids=["new id", "new content", "no id", "tuple"],
)
async def test_a_new_id_or_content_is_new(till: Any, paid: list[int], message: Any) -> None:
    await till.graph.ainvoke({"messages": [HumanMessage("Pay", id="m1")]}, till.config())
    out = await till.graph.ainvoke({"messages": [message]}, till.config())
    assert paid == [5, 5]
    assert status(out) == "completed"


async def test_running_a_finished_thread_on_repeats_nothing(till: Any, paid: list[int]) -> None:
    await till.ask("Pay")
    await till.graph.ainvoke(None, till.config())
    assert paid == [5]


async def test_a_brought_plan_is_new_each_time(till: Any, step: Any, paid: list[int]) -> None:
    plan = {"steps": [step("a", "pay", {"amount": 5})]}
    for count in (1, 2):
        out = await till.graph.ainvoke({"planning_execution_plan": dict(plan)}, till.config())
        assert len(paid) == count
        assert status(out) == "completed"


async def test_a_fork_acts_again_only_under_a_new_id(till: Any, paid: list[int]) -> None:
    await till.graph.ainvoke({"messages": [HumanMessage("Hello", id="m0")]}, till.config())
    start = (await till.graph.aget_state(till.config())).config
    await till.graph.ainvoke({"messages": [HumanMessage("Pay", id="m1")]}, till.config())
    assert paid == [5, 5]
    await till.graph.ainvoke({"messages": [HumanMessage("Pay", id="m1")]}, start)
    assert paid == [5, 5], "a fork repeated the effect of the turn it was made from"
    await till.graph.ainvoke({"messages": [HumanMessage("Pay", id="m2")]}, start)
    assert paid == [5, 5, 5]


async def test_without_a_saver_every_call_is_new(agent: Any, step: Any) -> None:
    runs: list[Any] = []
    made = agent(Reading, measurer(runs), plans=[[step("a", "measure")]])
    for _ in range(2):
        await made.graph.ainvoke({"messages": [HumanMessage("Measure", id="m1")]})
    assert runs == ["a", "a"]


@pytest.mark.parametrize("name", ["task_id", "resuming"])
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["unsaved", "saved"])
async def test_a_caller_cannot_pass_for_a_task_of_an_outer_graph(
    agent: Any, step: Any, saver: Any, name: str
) -> None:
    """Inside an outer graph a graph takes what the state holds; a caller only says that it is."""
    it = agent(Reading, measurer([]), plans=[[step("a", "measure")]], checkpointer=saver)
    config = {"configurable": {"thread_id": name, f"__pregel_{name}": "forged"}}
    given = {
        "messages": [("user", "Do it")],
        "capability_context_data": {"READING": {"k": {"value": 1}}},
    }
    await refused(it.graph.ainvoke(given, config), f"__pregel_{name}")
