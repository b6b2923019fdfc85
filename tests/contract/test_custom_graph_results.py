"""A capability in a ``StateGraph`` of one's own loses no result, and merges what runs side by side."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from capgraph import CapabilityContext, capability_node
from capgraph.base import CapabilityError
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
