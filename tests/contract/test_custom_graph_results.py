"""A capability in a ``StateGraph`` of one's own loses no result, and merges what runs side by side."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import CapabilityError, InfrastructureError, ValidationError
from capgraph.base.errors import CapgraphError
from capgraph.state import AgentState
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
    payer,
    planned,
)

THREAD = {"configurable": {"thread_id": "1"}}


def returning(result: dict[str, Any], provides: list[str]) -> Any:
    async def execute(self: Any) -> Any:
        return dict(result)

    return measurer([], execute=execute, provides=provides)


@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_a_dictionary_is_kept_as_the_output_of_its_step(form: str) -> None:
    Cap = returning({"sky": "clear", "count": 2}, ["WEATHER"])
    node = bound(Cap).node(Cap) if form == "bound" else Cap.langgraph_node
    out = await in_a_row(node=node).ainvoke({"messages": [("user", "Do it")]})
    (entry,) = out["capability_context_data"]["WEATHER"].values()
    assert entry == {"sky": "clear", "count": 2}


async def kept_or_named(run: Awaitable[dict[str, Any]], key: str, value: Any) -> None:
    """Assert that a returned key is in the state, or that somebody is told that it is lost."""
    try:
        out = await run
    except CapgraphError as exc:
        names_one_of(exc, key)
        return
    if out.get(key) != value:
        assert out.get("control_has_error"), f"{key!r} was lost without a word"
        assert key in out["control_error_info"]["user_message"]


@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_a_key_of_ones_own_schema_is_kept_or_named(form: str) -> None:
    class Mine(AgentState):
        sky: str

    Cap = returning({"sky": "clear"}, [])
    node = bound(Cap).node(Cap) if form == "bound" else Cap.langgraph_node
    own = in_a_row(Mine, node=node)
    await kept_or_named(own.ainvoke({"messages": [("user", "Do it")]}), "sky", "clear")


@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_a_key_that_fits_nowhere_is_named_as_lost(form: str) -> None:
    Cap = returning({"lost_key": 1}, [])
    node = bound(Cap).node(Cap) if form == "bound" else Cap.langgraph_node
    await declined(in_a_row(node=node).ainvoke({"messages": [("user", "Do it")]}), "lost_key")


async def test_a_result_is_not_lost_in_a_schema_without_the_frameworks_keys() -> None:
    class Bare(TypedDict, total=False):
        question: str
        sky: str

    kept = returning({"sky": "clear"}, [])
    own = in_a_row(Bare, node=kept.langgraph_node)
    await kept_or_named(own.ainvoke({"question": "x"}), "sky", "clear")
    lost = returning({"lost_key": 1}, [])
    with pytest.raises(CapgraphError, match="lost_key"):
        await in_a_row(Bare, node=lost.langgraph_node).ainvoke({"question": "x"})


async def test_a_failure_is_not_lost_in_a_schema_without_the_frameworks_keys() -> None:
    class Bare(TypedDict, total=False):
        question: str

    Cap = breaker("broken", CapabilityError("no power"))
    with pytest.raises(CapgraphError, match="no power"):
        await in_a_row(Bare, node=Cap.langgraph_node).ainvoke({"question": "x"})


@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_two_nodes_side_by_side_merge(form: str) -> None:
    class Note(CapabilityContext):
        text: str

    @capability_node
    async def write() -> Note:
        """Write a note."""
        return Note(text="hello")

    Cap = measurer([])
    services = bound(Reading, Note, Cap, write) if form == "bound" else None
    builder = StateGraph(AgentState)
    for cls in (Cap, write):
        name = cls.capability_spec.name
        builder.add_node(name, services.node(cls) if services else cls.langgraph_node)
        builder.add_edge(START, name)
    out = await builder.compile().ainvoke({"messages": [("user", "Do it")]})
    records = out["execution_step_results"].values()
    assert sorted(record["capability"] for record in records) == ["measure", "write"]
    assert all(record["success"] for record in records)
    assert set(out["capability_context_data"]) == {"READING", "NOTE"}


async def test_a_failure_beside_a_success_is_kept_as_a_failure() -> None:
    broken = breaker("broken", CapabilityError("no power"))
    Cap = measurer([])
    services = bound(Reading, Cap, broken)
    builder = StateGraph(AgentState)
    for cls in (broken, Cap):
        builder.add_node(cls.name, services.node(cls))
        builder.add_edge(START, cls.name)
    out = await builder.compile().ainvoke({"messages": [("user", "Do it")]})
    assert out["control_has_error"] is True
    assert "no power" in out["control_error_info"]["user_message"]
    found = {r["capability"]: r["success"] for r in out["execution_step_results"].values()}
    assert found == {"broken": False, "measure": True}


async def test_nodes_in_a_row_follow_the_plan_and_pass_inputs_on(step: Any) -> None:
    class Total(CapabilityContext):
        value: float

    @capability_node
    async def add(readings: list[Reading]) -> Total:
        """Add values."""
        return Total(value=sum(reading.value for reading in readings))

    Cap = measurer([])
    services = bound(Reading, Total, Cap, add)
    own = in_a_row(measure=services.node(Cap), add=services.node(add))
    out = await own.ainvoke(planned(step("m", "measure"), step("t", "add", READING="m")))
    assert out["capability_context_data"]["TOTAL"]["t"] == {"value": 7.0}
    assert list(out["execution_step_results"]) == ["m", "t"]


async def test_parameters_that_do_not_fit_stop_a_node_before_it_acts(step: Any) -> None:
    paid: list[int] = []
    Pay = payer(paid)
    own = in_a_row(saver=InMemorySaver(), pay=bound(Receipt, Pay).node(Pay))
    start = planned(step("a", "pay", {"ammount": 5}))
    await declined(own.ainvoke(start, THREAD), "ammount")
    assert paid == []


async def test_bind_takes_a_list_of_capabilities() -> None:
    from capgraph import bind

    runs: list[Any] = []
    Cap = measurer(runs)
    out = await in_a_row(node=bind([Reading, Cap]).node(Cap)).ainvoke({"messages": [("user", "x")]})
    assert len(runs) == 1
    assert all(record["success"] for record in out["execution_step_results"].values())


@pytest.mark.parametrize(
    "key", ["planning_accepted", "planning_history", "control_begun", "control_budget"]
)
async def test_what_the_graph_believes_no_capability_writes(
    agent: Any, step: Any, key: str
) -> None:
    async def execute(self: Any) -> dict[str, Any]:
        return {key: ["forged"]}

    forge = measurer([], execute=execute, provides=[])
    out = await agent(forge, plans=[[step("a", "measure")]]).ask()
    assert out["control_has_error"]
    assert key in out["control_error_info"]["user_message"]


class Wide(AgentState):
    """AgentState with a key of the application."""

    weather: str


class Narrow(TypedDict, total=False):
    """State without any key of AgentState."""

    weather: str


@pytest.mark.row("F2")
@pytest.mark.parametrize("schema", [Wide, Narrow])
async def test_an_infrastructure_node_writes_the_keys_of_the_graphs_state(schema: Any) -> None:
    @own_node("look")
    async def look(state: Any) -> Any:
        return {"weather": "clear"}

    out = await in_a_row(schema, node=look.langgraph_node).ainvoke({"weather": "unknown"})
    assert out["weather"] == "clear"


@pytest.mark.row("F2")
async def test_a_key_of_agent_state_that_the_graph_does_not_define_is_refused() -> None:
    @own_node("look")
    async def look(state: Any) -> Any:
        return {"task_current_task": "Look"}

    with pytest.raises(InfrastructureError, match="task_current_task"):
        await in_a_row(Narrow, node=look.langgraph_node).ainvoke({"weather": "unknown"})


@pytest.mark.row("F2")
async def test_a_failure_that_the_graphs_state_cannot_store_is_raised() -> None:
    @own_node("look")
    async def look(state: Any) -> Any:
        raise ConnectionError("The station is down.")

    with pytest.raises(ConnectionError):
        await in_a_row(Narrow, node=look.langgraph_node).ainvoke({"weather": "unknown"})
    out = await in_a_row(Wide, node=look.langgraph_node).ainvoke({"weather": "unknown"})
    assert out["control_error_info"]["node_name"] == "look"


@pytest.mark.row("B3")
@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_extra_arguments_of_a_node_reach_execute(form: str) -> None:
    class Look(BaseCapability):
        name = "look"
        description = "Look."
        provides: ClassVar = ["WEATHER"]

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return {"WEATHER": {"seen": kwargs["glass"]}}

    Cap = capability_node(Look)
    node = bound(Cap).node(Cap) if form == "bound" else Cap.langgraph_node
    out = await node({"messages": [("user", "Look")]}, glass="spyglass")
    assert out["WEATHER"] == {"seen": "spyglass"}


@pytest.mark.row("B3")
@pytest.mark.parametrize("name", ["glass", "logger"])
async def test_an_extra_argument_that_execute_does_not_accept_is_refused(name: str) -> None:
    @own_node("look")
    async def look(state: Any) -> Any:
        return {}

    async def execute(state: Any) -> Any:
        return {}

    look.execute = staticmethod(execute)
    for node in (measurer([]).langgraph_node, look.langgraph_node):
        with pytest.raises(ValidationError, match=name):
            await node({}, **{name: "spyglass"})
