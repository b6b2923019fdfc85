"""Plain results have one path, whether a tool, a function or a server gave them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph, capability_node
from capgraph.adapters import tool_capability
from capgraph.testing import ScriptedModel

HOTELS = [{"id": 7, "name": "Fjord"}, {"id": 9, "name": "Berg"}]


def search_hotels(city: str) -> list[dict[str, Any]]:
    """Search the hotels of a city."""
    return HOTELS


def find_guest(name: str) -> dict[str, Any]:
    """Find a guest."""
    return {"number": 3, "value": name}


def count_rooms(city: str) -> int:
    """Count the free rooms."""
    return 12


def book_hotel(hotel_id: int, guest: int = 0, rooms: int = 1, note: str = "") -> str:
    """Book a hotel."""
    return f"booked {hotel_id} for {guest}: {rooms} {note}"


ALL = (search_hotels, find_guest, count_rooms, book_hotel)
FORMS: dict[str, Any] = {
    "functions": lambda: [capability_node(one) for one in ALL],
    "tools": lambda: [tool_capability(tool(one)) for one in ALL],
    "named": lambda: [tool_capability(tool(one), provides=one.__name__.upper()) for one in ALL],
}
PARAMETERS = {
    "hotel_id": {"$from": "search_hotels.0.id"},
    "guest": {"$from": "guest.number"},
    "rooms": {"$from": "rooms"},
    "note": {"$from": "guest.value"},
}


def _plan(parameters: dict[str, Any]) -> dict[str, Any]:
    calls = [
        ("search_hotels", "search_hotels", {"city": "Oslo"}),
        ("guest", "find_guest", {"name": "Ada"}),
        ("rooms", "count_rooms", {"city": "Oslo"}),
        ("booked", "book_hotel", parameters),
    ]
    return {"steps": [{"context_key": k, "capability": c, "parameters": p} for k, c, p in calls]}


def _booked(out: Any) -> Any:
    assert out["execution_outcome"]["status"] == "completed"
    return next(of["booked"] for of in out["capability_context_data"].values() if "booked" in of)


@pytest.mark.parametrize("form", FORMS)
async def test_a_result_is_read_by_one_path(form: str) -> None:
    given: Any = {"messages": [("user", "go")], "planning_execution_plan": _plan(PARAMETERS)}
    out = await build_graph(FORMS[form]()).ainvoke(given)
    assert _booked(out) == {"value": "booked 7 for 3: 12 Ada"}


@pytest.mark.parametrize("form", FORMS)
async def test_a_list_is_run_over_and_compared_by_the_same_path(form: str) -> None:
    plan = _plan({"hotel_id": {"$from": "hotel.id"}})
    plan["steps"][-1]["for_each"] = {"of": "search_hotels", "as": "hotel"}
    plan["steps"][-1]["when"] = {"of": "rooms", "is": ">", "than": 10}
    given: Any = {"messages": [("user", "go")], "planning_execution_plan": plan}
    assert len(_booked(await build_graph(FORMS[form]()).ainvoke(given))) == 2


@pytest.mark.parametrize("form", ["tools", "named"])
async def test_a_plan_with_the_older_path_of_a_tool_still_runs(form: str) -> None:
    older = {"hotel_id": {"$from": "search_hotels.value.0.id"}, "rooms": {"$from": "rooms.value"}}
    given: Any = {"messages": [("user", "go")], "planning_execution_plan": _plan(older)}
    assert (
        _booked(await build_graph(FORMS[form]()).ainvoke(given))["value"] == "booked 7 for 0: 12 "
    )


@pytest.mark.parametrize("form", FORMS)
async def test_the_planner_is_told_the_path_and_shown_the_data_behind_it(form: str) -> None:
    first = {"steps": [{**_plan({})["steps"][0], "look_again": True}]}
    model = ScriptedModel(
        responses=[
            first,
            {"steps": [first["steps"][0], _plan({"hotel_id": 7})["steps"][-1]]},
            "Booked.",
        ]
    )
    graph = build_graph(FORMS[form](), model=model, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    out: Any = await graph.ainvoke({"messages": [("user", "Book the first of Oslo")]}, thread)
    assert _booked(out)["value"].startswith("booked 7")
    prompts = ["\n".join(str(m.content) for m in call.messages) for call in model.calls]
    assert '{"$from": "key.field"}, or "key.0.field" of a list' in prompts[0]
    second = prompts[1].replace(" ", "")
    assert '[{"id":7,"name":"Fjord"}' in second
    assert '{"value":[' not in second
