"""Replies of a planning model in the forms that models write, from the reply to the calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.configs.settings import Settings
from capgraph.models.answering import ModelAnswerer
from capgraph.models.planning import ModelPlanner
from capgraph.telemetry import AnswerToken, PlanMade, ReplyRepaired, TurnFinished, parse_event
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


@capability_node(effect="idempotent", examples=["remind me to call mum"])
def set_reminder(text: str) -> str:
    """Set a reminder."""
    CALLS.append(["set_reminder", {"text": text}])
    return f"Reminder: {text}"


async def run(
    request: str, answers: Any, *more: Any
) -> tuple[ScriptedModel, list[Any], dict[str, Any]]:
    """Return the model, the events, and the outcome of one turn."""
    CALLS.clear()
    model = ScriptedModel(responses=answers)
    graph = build_graph([*OFFICE, *more], model=model)
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


async def test_a_missing_supplier_is_inserted_and_only_its_parameters_are_asked_for() -> None:
    def answer(call: ModelCall) -> Any:
        if call.schema == "ExecutionPlan":
            return {"steps": [{"capability": "list_orders", "parameters": {"status": "open"}}]}
        return {"customer": {"name": "Ada"}} if call.schema == "Parameters" else "Done."

    model, events, outcome = await run("Show me the open orders of Ada.", answer)
    assert CALLS == [["find_customer", {"name": "Ada"}], ["list_orders", {"status": "open"}]]
    assert outcome["status"] == "completed"
    assert [call.schema for call in model.calls][:2] == ["ExecutionPlan", "Parameters"]
    [small] = [call for call in model.calls if call.schema == "Parameters"]
    assert len(small.prompt) // 4 <= 105
    assert "missing_supplier" in repaired(events)


@pytest.mark.parametrize("reply", ["I do not know.", {"customer": {"age": 3}}])
async def test_a_supplier_without_parameters_sends_the_plan_back(reply: Any) -> None:
    plans = iter(
        [
            {"steps": [{"capability": "list_orders"}]},
            {"steps": [{"capability": "weather", "parameters": {"city": "Oslo"}}]},
        ]
    )

    def answer(call: ModelCall) -> Any:
        if call.schema == "ExecutionPlan":
            return next(plans)
        return reply if call.schema == "Parameters" else "Done."

    await run("Show me the orders.", answer)
    assert CALLS == [["weather", {"city": "Oslo", "day": "today"}]]


async def test_parameters_that_the_author_reads_from_the_request_cost_no_call() -> None:
    @capability_node
    class FindUser(BaseCapability):
        """Look up a user by name."""

        name = "find_user"
        description = "Look up a user by name."
        provides: ClassVar[list[str]] = ["CUSTOMER"]

        class Parameters(BaseModel):
            name: str

        @classmethod
        def parameters_from(cls, task: str) -> dict[str, Any]:
            """Read the last word."""
            return {"name": task.split()[-1]}

        async def execute(self) -> Customer:
            """Find it."""
            CALLS.append(["find_user", {"name": self.parameters.name}])
            return Customer(number="C1")

    CALLS.clear()

    def answer(call: ModelCall) -> Any:
        assert call.schema != "Parameters"
        return {"steps": [{"capability": "list_orders"}]} if call.schema else "Done."

    graph = build_graph([FindUser, list_orders], model=ScriptedModel(responses=answer))
    await graph.ainvoke({"messages": [("user", "Show the orders of Ada")]})
    assert CALLS == [["find_user", {"name": "Ada"}], ["list_orders", {"status": "all"}]]


async def test_a_model_that_overlooks_a_capability_is_asked_once_more_with_its_name() -> None:
    plans = iter(
        [
            {"steps": [], "answer": "I cannot convert units."},
            {
                "steps": [
                    {"capability": "weather", "parameters": {"city": "Oslo", "day": "tomorrow"}}
                ]
            },
        ]
    )

    def answer(call: ModelCall) -> Any:
        return next(plans) if call.schema == "ExecutionPlan" else "Rain."

    model, _, _ = await run("Will it rain in Paris tomorrow?", answer)
    assert CALLS == [["weather", {"city": "Oslo", "day": "tomorrow"}]]
    assert "'weather' fits the request" in model.calls[1].prompt


async def test_an_empty_plan_is_not_questioned_without_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)

    def answer(call: ModelCall) -> Any:
        if call.schema == "ExecutionPlan":
            return {"steps": [], "answer": "I cannot tell the weather."}
        return {"capabilities": ["weather"], "reason": "It fits."} if call.schema else "Sorry."

    model = ScriptedModel(responses=answer)
    settings = Settings(selection={"strategy": "model"})
    graph = build_graph(OFFICE, model=model, settings=settings)
    state = await graph.ainvoke({"messages": [("user", "Will it rain in Paris tomorrow?")]})
    assert state["execution_outcome"]["status"] == "completed"
    assert [call.schema for call in model.calls].count("ExecutionPlan") == 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models count as small ones, as they do behind a grammar server."""
    monkeypatch.setattr(ModelPlanner, "needs_confirmation", True)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("capability", "invented"),
    [
        ("weather", {"city": "Springfield"}),
        ("convert_units", {"value": 42, "from_unit": "kg", "to_unit": "pounds"}),
    ],
)
async def test_a_plan_with_an_invented_value_is_asked_for_once_more(
    capability: str, invented: dict[str, Any]
) -> None:
    plans = iter(
        [
            {"steps": [{"capability": capability, "parameters": invented}]},
            {"steps": [], "answer": "I cannot book flights."},
        ]
    )
    model, events, _ = await run("Book me a flight to Tokyo.", lambda _: next(plans))
    text = "".join(event.text for event in events if isinstance(event, AnswerToken))
    assert not CALLS
    assert "is not in the request" in model.calls[1].prompt
    assert "weather" in text


@pytest.mark.usefixtures("small")
async def test_a_planner_that_insists_on_an_invented_value_gets_its_way() -> None:
    def answer(call: ModelCall) -> Any:
        steps = [{"capability": "weather", "parameters": {"city": "Oslo"}}]
        return {"steps": steps} if call.schema == "ExecutionPlan" else "Rain."

    model, _, _ = await run("Will it rain in the capital of Norway?", answer)
    assert [name for name, _ in CALLS] == ["weather"]
    assert len(model.calls) == 3


@pytest.mark.usefixtures("small")
async def test_a_value_in_other_words_is_not_invented() -> None:
    plan = {"capability": "weather", "parameters": {"city": "Oslo, Norway"}}
    model, _, _ = await run("Will it rain in oslo?", [{"steps": [plan]}, "Rain."])
    assert len(model.calls) == 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("reply", "is_run"), [("no", False), ("yes", True)])
async def test_an_effect_that_the_request_does_not_name_is_confirmed_by_a_small_call(
    reply: str, is_run: bool
) -> None:
    step = {"capability": "set_reminder", "parameters": {"text": "salary of Tom"}}

    def answer(call: ModelCall) -> Any:
        if call.schema == "Asked":
            return {"asked": reply}
        return {"steps": [step]} if call.schema == "ExecutionPlan" else "Done."

    model, events, _ = await run("Raise the salary of Tom.", answer, set_reminder)
    assert bool(CALLS) is is_run
    assert ("unasked_effect" in repaired(events)) is not is_run
    assert "Action: Set a reminder." in model.calls[1].prompt


@pytest.mark.usefixtures("small")
async def test_refused_plans_for_what_nothing_fits_end_with_what_the_agent_can_do() -> None:
    def answer(call: ModelCall) -> Any:
        step = {"capability": "convert_units", "parameters": {"value": "a flight"}}
        assert call.schema == "ExecutionPlan", "the refusal needs no model"
        return {"steps": [step]}

    _, events, outcome = await run("Book me a flight to Tokyo.", answer)
    text = "".join(event.text for event in events if isinstance(event, AnswerToken))
    assert text.startswith("Nothing here can do that")
    assert outcome["status"] == "completed"


@pytest.mark.usefixtures("small")
async def test_an_empty_plan_for_what_nothing_fits_ends_with_what_the_agent_can_do() -> None:
    def answer(call: ModelCall) -> Any:
        assert call.schema == "ExecutionPlan", "the refusal needs no model"
        return {"steps": []}

    _, events, outcome = await run("Book me a flight to Tokyo.", answer)
    text = "".join(event.text for event in events if isinstance(event, AnswerToken))
    assert text.startswith("Nothing here can do that")
    assert "weather" in text
    assert outcome["status"] == "completed"


@pytest.mark.usefixtures("small")
async def test_fields_that_a_plan_leaves_out_are_not_reported_as_repairs() -> None:
    step = {"capability": "weather", "parameters": {"city": "Paris", "day": "tomorrow"}}
    replies: list[Any] = [{"steps": [step]}, "Light rain."]
    _, events, outcome = await run("Will it rain in Paris tomorrow?", replies)
    (made,) = (event for event in events if isinstance(event, PlanMade))
    assert [step["capability"] for step in made.plan["steps"]] == ["weather", "respond"]
    assert made.repairs == []
    assert outcome["status"] == "completed"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("step", ["weather", {"capability": ["weather"]}, {"name": 3}, None])
async def test_steps_that_are_none_are_problems_of_the_plan(step: Any) -> None:
    _, _, outcome = await run("Will it rain in Paris tomorrow?", [{"steps": [step]}] * 9)
    assert outcome["status"] == "failed"


@pytest.mark.usefixtures("small")
async def test_an_effect_that_the_request_names_costs_no_confirmation() -> None:
    step = {"capability": "set_reminder", "parameters": {"text": "call mum"}}
    model, _, _ = await run("Remind me to call mum.", [{"steps": [step]}, "Done."], set_reminder)
    assert CALLS == [["set_reminder", {"text": "call mum"}]]
    assert len(model.calls) == 2


async def test_a_refusal_names_what_this_agent_can_do_and_not_what_the_model_says() -> None:
    model, events, _ = await run(
        "Book me a flight to Tokyo.",
        [{"steps": [], "answer": "I cannot book a flight. I can find and reserve books."}],
    )
    text = "".join(event.text for event in events if isinstance(event, AnswerToken))
    assert len(model.calls) == 1
    assert "reserve books" not in text
    assert "weather" in text


async def test_small_talk_is_answered_as_the_model_wrote_it() -> None:
    model, events, _ = await run("Hello!", [{"steps": [], "answer": "Hello! How can I help?"}])
    text = "".join(event.text for event in events if isinstance(event, AnswerToken))
    assert (len(model.calls), text) == (1, "Hello! How can I help?")


@pytest.mark.parametrize(
    ("request_text", "is_told"),
    [
        ("Show the open orders of Ada from Oslo.", True),
        ("Show the open orders of Ada of station B7.", True),
        ("Show the open orders of Ada on Monday.", False),
    ],
)
async def test_a_small_model_learns_which_name_the_results_do_not_mention(
    request_text: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelAnswerer, "keeps_answers", True)
    plan = {
        "steps": [
            {"capability": "find_customer", "parameters": {"name": "Ada"}},
            {"capability": "list_orders", "parameters": {"status": "open"}},
        ]
    }
    model, _, outcome = await run(request_text, [plan, "Orders of C1."])
    assert CALLS == [["find_customer", {"name": "Ada"}], ["list_orders", {"status": "open"}]]
    assert ("say nothing about" in model.calls[-1].prompt) is is_told
    assert outcome["status"] == "completed"
