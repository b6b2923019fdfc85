"""A capability in a ``StateGraph`` of one's own passes every stage, and loses no result."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from capgraph import BaseCapability, Verdict, bind, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.base.errors import ConfigurationError
from capgraph.state import AgentState
from capgraph.stores import StandingRule, add_rule, open_saver
from tests.support.one_door import (
    Reading,
    Receipt,
    bound,
    breaker,
    declined,
    in_a_row,
    measurer,
    payer,
    planned,
    refused,
)

THREAD = {"configurable": {"thread_id": "1"}}


# --- approval -------------------------------------------------------------------------------------


async def test_a_bound_node_asks_before_it_acts(step: Any) -> None:
    paid: list[int] = []
    Pay = payer(paid, requires_approval=True)
    own = in_a_row(saver=InMemorySaver(), pay=bound(Receipt, Pay).node(Pay))
    out = await own.ainvoke(planned(step("a", "pay", {"amount": 5})), THREAD)
    assert paid == []
    assert len(out["__interrupt__"]) == 1
    assert "5" in str(out["__interrupt__"][0].value), "what would be paid is not shown"
    out = await own.ainvoke(Command(resume="approve"), THREAD)
    assert paid == [5]
    assert not out.get("__interrupt__")
    assert out["execution_step_results"]["a"]["success"] is True


async def test_a_rejected_bound_node_does_not_act_and_says_so(step: Any) -> None:
    paid: list[int] = []
    Pay = payer(paid, requires_approval=True)
    own = in_a_row(saver=InMemorySaver(), pay=bound(Receipt, Pay).node(Pay))
    await own.ainvoke(planned(step("a", "pay")), THREAD)
    out = await own.ainvoke(Command(resume="reject"), THREAD)
    assert paid == []
    record = (out.get("execution_step_results") or {}).get("a") or {}
    assert not record.get("success")
    assert out["control_has_error"] is True


async def test_two_bound_nodes_side_by_side_each_ask(step: Any) -> None:
    paid: list[str] = []

    def risky(name: str) -> Any:
        async def execute(self: Any) -> Receipt:
            paid.append(name)
            return Receipt(paid=1)

        body = {"name": name, "description": name, "provides": ["RECEIPT"], "execute": execute}
        return capability_node(type(name, (BaseCapability,), {**body, "requires_approval": True}))

    one, two = risky("one"), risky("two")
    services = bound(Receipt, one, two)
    builder = StateGraph(AgentState)
    for name, cls in (("x", one), ("y", two)):
        builder.add_node(name, services.node(cls))
        builder.add_edge(START, name)
    own = builder.compile(checkpointer=InMemorySaver())
    out = await own.ainvoke({"messages": [("user", "Do it")]}, THREAD)
    for _ in range(3):
        if not out.get("__interrupt__"):
            break
        assert len(paid) < 2, "asked after everything had run"
        answers = {item.id: "approve" for item in out["__interrupt__"]}
        out = await own.ainvoke(Command(resume=answers), THREAD)
    assert sorted(paid) == ["one", "two"]


@pytest.mark.parametrize(
    "declared",
    [
        {"requires_approval": True, "effect": "none"},
        {"effect": "once"},
        {"permission": "full_access"},
    ],
    ids=["approval", "once", "permission"],
)
async def test_unbound_what_needs_an_operator_is_refused_by_name(declared: Any) -> None:
    paid: list[int] = []
    Pay = payer(paid, **{"effect": "none", **declared})
    own = in_a_row(saver=InMemorySaver(), node=Pay.langgraph_node)
    await declined(own.ainvoke({"messages": [("user", "Do it")]}, THREAD), "pay", "bind")
    assert paid == []


async def test_unbound_a_harmless_capability_runs() -> None:
    runs: list[Any] = []
    own = in_a_row(saver=InMemorySaver(), node=measurer(runs).langgraph_node)
    out = await own.ainvoke({"messages": [("user", "Do it")]}, THREAD)
    assert len(runs) == 1
    assert [record["success"] for record in out["execution_step_results"].values()] == [True]
    (entry,) = out["capability_context_data"]["READING"].values()
    assert entry == {"value": 7.0}


# --- effects --------------------------------------------------------------------------------------


@pytest.mark.may_block
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_bound_once_step_that_was_cut_off_is_not_run_again_by_itself(
    step: Any, kind: str, tmp_path: Path
) -> None:
    acted: list[int] = []
    begun, never = asyncio.Event(), asyncio.Event()

    async def execute(self: Any) -> Receipt:
        acted.append(1)
        begun.set()
        await never.wait()
        return Receipt(paid=1)

    Pay = payer([], execute=execute)

    async def check(saver: Any) -> None:
        own = in_a_row(saver=saver, pay=bound(Receipt, Pay).node(Pay))
        run = asyncio.create_task(own.ainvoke(planned(step("a", "pay")), THREAD))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        out = await own.ainvoke(None, THREAD)
        assert acted == [1]
        assert out.get("__interrupt__"), "an unknown outcome is a question to a person"

    if kind == "memory":
        await check(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/own.db") as saver:
            await check(saver)


async def test_an_input_that_nothing_gave_is_named_with_what_to_do() -> None:
    @capability_node
    async def file_away(receipt: Receipt) -> str:
        """Files a receipt."""
        return str(receipt.paid)

    out = await in_a_row(file_away=bound(Receipt, file_away).node(file_away)).ainvoke(
        {"messages": [("user", "File it")]}
    )
    told = out["control_error_info"]["user_message"]
    assert "'RECEIPT' is missing" in told
    assert "Fix: Plan a step that provides it" in told


async def test_a_bound_step_gets_an_idempotency_key() -> None:
    keys: list[str] = []

    async def execute(self: Any) -> Receipt:
        keys.append(self.idempotency_key)
        if len(keys) == 1:
            raise ConnectionError("gone")
        return Receipt(paid=1)

    Pay = payer([], effect="idempotent", execute=execute, get_retry_policy=_at_once(3))
    own = in_a_row(saver=InMemorySaver(), pay=bound(Receipt, Pay).node(Pay))
    await own.ainvoke({"messages": [("user", "Do it")]}, THREAD)
    assert len(keys) == 2
    assert keys[0]
    assert keys[0] == keys[1]


# --- retries and limits ---------------------------------------------------------------------------


def _at_once(attempts: Any) -> Any:
    policy = {"max_attempts": attempts, "delay_seconds": 0.0, "backoff_factor": 1.0}
    return staticmethod(lambda: dict(policy))


@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_a_retriable_failure_is_tried_again_inside_the_node(form: str) -> None:
    tries: list[int] = []

    async def execute(self: Any) -> Reading:
        tries.append(self.attempt)
        if len(tries) < 3:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        return Reading(value=1)

    Cap = measurer([], execute=execute, get_retry_policy=_at_once(3))
    node = bound(Reading, Cap).node(Cap) if form == "bound" else Cap.langgraph_node
    out = await in_a_row(node=node).ainvoke({"messages": [("user", "Do it")]})
    assert tries == [1, 2, 3]
    assert not out.get("control_has_error")
    (record,) = out["execution_step_results"].values()
    assert record["success"] is True
    assert record["attempts"] == 3


@pytest.mark.parametrize("form", ["bound", "unbound"])
async def test_at_its_limit_the_failures_were_counted(form: str) -> None:
    runs: list[Any] = []
    Cap = breaker("flaky", ConnectionError("line is down"), runs)
    node = bound(Cap).node(Cap) if form == "bound" else Cap.langgraph_node
    out = await in_a_row(node=node).ainvoke({"messages": [("user", "Do it")]})
    assert len(runs) == 3
    assert out["control_has_error"] is True
    assert out["control_retry_count"] == 3
    assert "line is down" in out["control_error_info"]["user_message"]
    (record,) = out["execution_step_results"].values()
    assert record["success"] is False
    assert record["attempts"] == 3


async def test_settings_bound_the_tries_of_a_bound_node() -> None:
    from capgraph.configs.settings import load_settings

    runs: list[Any] = []
    Cap = breaker("flaky", ConnectionError("line is down"), runs)
    services = bound(Cap, settings=load_settings(limits={"max_attempts": 2}))
    await in_a_row(node=services.node(Cap)).ainvoke({"messages": [("user", "Do it")]})
    assert len(runs) == 2


async def test_a_limit_of_a_capability_holds_for_nodes_side_by_side() -> None:
    at_once: list[int] = []
    running: set[str] = set()

    async def execute(self: Any) -> Reading:
        running.add(self.step.get("context_key") or str(len(running)))
        at_once.append(len(running))
        await asyncio.sleep(0.01)
        running.clear()
        return Reading(value=1)

    Cap = measurer([], execute=execute, max_parallel=1)
    services = bound(Reading, Cap)
    own = in_a_row(node=services.node(Cap))
    start = {"messages": [("user", "Do it")]}
    await asyncio.gather(*(own.ainvoke(start) for _ in range(3)))
    assert at_once == [1, 1, 1]


async def test_a_fatal_failure_is_raised_with_its_cause() -> None:
    cause = CapabilityError("core is gone", severity=ErrorSeverity.FATAL)
    Cap = breaker("doomed", cause)
    text = await refused(
        in_a_row(node=bound(Cap).node(Cap)).ainvoke({"messages": [("user", "Do it")]}), "doomed"
    )
    assert "core is gone" in text


# --- standing rules -------------------------------------------------------------------------------


def _pays(paid: list[int], store: Any, **options: Any) -> Any:
    Pay = payer(paid, requires_approval=True)
    builder = StateGraph(AgentState)
    builder.add_node("pay", bound(Receipt, Pay, **options).node(Pay))
    builder.add_edge(START, "pay")
    return builder.compile(checkpointer=InMemorySaver(), store=store)


async def test_a_bound_node_makes_the_standing_rule_that_an_answer_wants() -> None:
    paid: list[int] = []
    store = InMemoryStore()
    own = _pays(paid, store)
    await own.ainvoke({"messages": [("user", "Pay")]}, THREAD)
    agreed = {"decision": "approve", "remember": {"scope": "everywhere"}}
    await own.ainvoke(Command(resume={"0_pay": agreed}), THREAD)
    assert paid == [5]
    other: Any = {"configurable": {"thread_id": "2"}}
    out = await own.ainvoke({"messages": [("user", "Pay again")]}, other)
    assert not out.get("__interrupt__")
    assert paid == [5, 5]


async def test_what_cannot_be_remembered_leaves_the_question_of_a_bound_node_open() -> None:
    own = _pays([], None)
    await own.ainvoke({"messages": [("user", "Pay")]}, THREAD)
    agreed = {"decision": "approve", "remember": {"scope": "everywhere"}}
    out = await own.ainvoke(Command(resume={"0_pay": agreed}), THREAD)
    assert "has no store" in str(out["__interrupt__"][0].value["problems"])


async def test_a_standing_rule_answers_no_policy_of_a_bound_node() -> None:
    class Careful:
        async def decide(self, step: Any, view: Any) -> Verdict:
            return Verdict("ask", ["It is Sunday."])

    paid: list[int] = []
    store = InMemoryStore()
    await add_rule(store, StandingRule(capability="pay"))
    own = _pays(paid, store, policies=[Careful()])
    out = await own.ainvoke({"messages": [("user", "Pay")]}, THREAD)
    assert "Sunday" in str(out["__interrupt__"][0].value)
    assert paid == []


class Trip(AgentState, total=False):
    place: str
    nights: int


@capability_node(effect="once", requires_approval=True)
def book(city: str, nights: int = 1) -> str:
    """Book a stay."""
    return f"{nights} in {city}"


async def _by_callable(state: Any) -> dict[str, Any]:
    return {"city": state["place"].upper(), "nights": state["nights"]}


@pytest.mark.parametrize(
    ("parameters", "given", "booked"),
    [
        ({"city": "place"}, {"place": "Oslo"}, "1 in Oslo"),
        ({"city": "place", "nights": "nights"}, {"place": "Oslo", "nights": 3}, "3 in Oslo"),
        ({"city": "place", "nights": "nights"}, {"place": "Oslo"}, "1 in Oslo"),
        (_by_callable, {"place": "Oslo", "nights": 2}, "2 in OSLO"),
        (lambda state: {"city": state["place"]}, {"place": "Oslo"}, "1 in Oslo"),
    ],
)
async def test_a_node_takes_its_parameters_from_the_state(
    parameters: Any, given: dict[str, Any], booked: str
) -> None:
    services = bind([book])
    builder = StateGraph(Trip).add_node("book", services.node(book, parameters=parameters))
    own = builder.add_edge(START, "book").compile(checkpointer=InMemorySaver())
    # A plan that a caller sends says nothing: the graph's author decided.
    plan = {"steps": [{"context_key": "b", "capability": "book", "parameters": {"city": "Rome"}}]}
    out: Any = await own.ainvoke({**given, "planning_execution_plan": plan}, THREAD)
    [step] = out["__interrupt__"][0].value["steps"]
    assert step["parameters"]["city"].lower() == "oslo"
    out = await own.ainvoke(Command(resume="approve"), THREAD)
    assert [one["value"] for one in out["capability_context_data"]["BOOK"].values()] == [booked]


async def test_parameters_of_the_state_that_do_not_fit_are_refused() -> None:
    services = bind([book])
    for wrong, named in (
        ({"citi": "place"}, "'city'"),
        ({"city": 3}, "mapping"),
        ("city", "city_key"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            services.node(book, parameters=wrong)  # type: ignore[arg-type]
    own = StateGraph(Trip).add_node("book", services.node(book)).add_edge(START, "book").compile()
    with pytest.raises(ConfigurationError, match='"city": "<state key>"'):
        await own.ainvoke({"place": "Oslo"})
    misspelled = services.node(book, parameters={"city": "plase"})
    own = StateGraph(Trip).add_node("book", misspelled).add_edge(START, "book").compile()
    with pytest.raises(ConfigurationError, match=r"'plase'.*'place'"):
        await own.ainvoke({"place": "Oslo"})
    for node in (
        services.node(book, parameters={"city": "place"}),
        services.node(book, parameters=lambda _: {"citi": "Oslo"}),
    ):
        own = StateGraph(Trip).add_node("book", node).add_edge(START, "book").compile()
        out = await own.ainvoke({"messages": []})
        assert "city" in out["control_error_info"]["user_message"]


@tool
def plain_tool(number: int) -> int:
    """Return it."""
    return number


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        (
            StateGraph(Trip).add_node("n", lambda _: {}).add_edge(START, "n").compile(),
            "graph_capability",
        ),
        (plain_tool, "tool_capability"),
        (book, r"\[book\]"),
        (len, "capability_node"),
        (3, "list of capabilities"),
    ],
)
@pytest.mark.parametrize("make", [build_graph, bind])
def test_a_single_object_in_the_place_of_the_list_is_refused_with_what_to_write(
    given: Any, fix: str, make: Any
) -> None:
    with pytest.raises(ConfigurationError, match=fix):
        make(given)
