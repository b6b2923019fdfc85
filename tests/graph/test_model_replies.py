"""Replies of a planning model in the forms that models write, from the reply to the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.telemetry import ReplyRepaired, TurnFinished, parse_event
from capgraph.testing import ModelCall, ScriptedModel

REPLIES = json.loads(
    (Path(__file__).parents[1] / "fixtures/model_replies/planning.json").read_text()
)
CALLS: list[list[Any]] = []
Unit = Literal["kilometers", "miles", "kg", "pounds"]


class Customer(CapabilityContext):
    """A customer."""

    number: str


@capability_node(examples=["how many miles are 5 kilometers?"])
def convert_units(value: float, from_unit: Unit, to_unit: Unit) -> str:
    """Convert a length or a weight from one unit to another."""
    CALLS.append(["convert_units", {"value": value, "from_unit": from_unit, "to_unit": to_unit}])
    return "Converted."


@capability_node(examples=["will it rain in Paris tomorrow?"])
def weather(city: str, day: Literal["today", "tomorrow"] = "today") -> str:
    """Tell the weather of a city, today or tomorrow."""
    CALLS.append(["weather", {"city": city, "day": day}])
    return f"{city}: light rain."


@capability_node(examples=["what is the customer number of Ada?"])
def find_customer(name: str) -> Customer:
    """Look up a customer by name."""
    CALLS.append(["find_customer", {"name": name}])
    return Customer(number="C1")


@capability_node(examples=["show the open orders of Ada"])
def list_orders(customer: Customer, status: Literal["open", "shipped", "all"] = "all") -> str:
    """List the orders of a customer."""
    CALLS.append(["list_orders", {"status": status}])
    return f"Orders of {customer.number}."


OFFICE = [convert_units, weather, find_customer, list_orders]


async def run(request: str, answers: Any) -> tuple[ScriptedModel, list[Any], dict[str, Any]]:
    """Return the model, the events, and the outcome of one turn."""
    CALLS.clear()
    model = ScriptedModel(responses=answers)
    graph = build_graph(OFFICE, model=model)
    inputs: Any = {"messages": [("user", request)]}
    raw = [data async for data in graph.astream(inputs, stream_mode="custom")]
    events = [parse_event(data) for data in raw if "event_type" in data]
    return model, events, next(e.outcome for e in events if isinstance(e, TurnFinished))


def repaired(events: list[Any]) -> set[str]:
    return {name for event in events if isinstance(event, ReplyRepaired) for name in event.repairs}


@pytest.mark.parametrize("case", REPLIES, ids=[case["name"] for case in REPLIES])
async def test_a_malformed_reply_ends_as_the_table_of_repairs_says(case: dict[str, Any]) -> None:
    replies = iter([case["reply"], {"steps": [], "answer": "Once more."}])

    def answer(call: ModelCall) -> Any:
        return next(replies) if call.schema == "ExecutionPlan" else "Done."

    model, events, _ = await run(case["request"], answer)
    asked = [call for call in model.calls if call.schema == "ExecutionPlan"]
    assert (
        case["calls"] or [],
        set(case["repairs"]),
        1 if case["calls"] else 2,
    ) == (
        sorted(CALLS, key=case["calls"].index) if case["calls"] else CALLS,
        repaired(events),
        len(asked),
    )


@pytest.mark.parametrize(
    "plan",
    [
        {
            "steps": [
                {"context_key": "w", "capability": "weather", "parameters": [{"city": "Rome"}]}
            ]
        },
        {"steps": [{"context_key": "w", "name": "weather", "arguments": {"city": "Rome"}}]},
    ],
)
async def test_a_plan_of_the_caller_is_never_read_in_another_form(plan: dict[str, Any]) -> None:
    CALLS.clear()
    graph = build_graph(OFFICE, model=ScriptedModel(responses=[]))
    inputs: Any = {"messages": [("user", "Go")], "planning_execution_plan": plan}
    raw = [data async for data in graph.astream(inputs, stream_mode="custom")]
    events = [parse_event(data) for data in raw if "event_type" in data]
    assert (CALLS, repaired(events)) == ([], set())
