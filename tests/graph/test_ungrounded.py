"""Effects with parameters that a model invented: shown, asked about, refused, or allowed."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.approvals import describe_question
from capgraph.cli.questions import question_lines
from capgraph.configs.settings import load_settings
from capgraph.evaluation import Dataset, evaluate
from capgraph.registry import Registry
from capgraph.stores import StandingRule, add_rule
from capgraph.testing import ModelCall, ScriptedModel

PAID: list[tuple[float, str]] = []


class Account(CapabilityContext):
    """An account."""

    holder: str


@capability_node(examples=["find an account"])
def find_account() -> Account:
    """Find the account."""
    return Account(holder="Grace Hopper")


@capability_node(effect="once", examples=["pay 5 euros to Ada"])
def pay(amount: float, to: str, note: str = "") -> str:
    """Pay an amount to a person."""
    PAID.append((amount, to))
    return f"Paid {amount} to {to}."


@capability_node(effect="once", examples=["refund the account"])
def refund(account: Account, amount: float, to: str) -> str:
    """Refund an account."""
    PAID.append((amount, to))
    return f"Refunded {amount} to {to}."


@capability_node(effect="once", requires_approval=True, examples=["close the account of Ada"])
def close_account(of: str) -> str:
    """Close an account."""
    return f"Closed {of}."


ALL = [find_account, pay, refund, close_account]


def step(capability: str, **parameters: Any) -> dict[str, Any]:
    return {"capability": capability, "parameters": parameters}


def agent(*steps: dict[str, Any], **approvals: Any) -> Any:
    PAID.clear()

    def answer(call: ModelCall) -> Any:
        return {"steps": list(steps)} if call.schema == "ExecutionPlan" else "Done."

    return build_graph(
        ALL,
        model=ScriptedModel(responses=answer),
        checkpointer=InMemorySaver(),
        settings=load_settings(approvals=approvals),
    )


CONFIG: Any = {"configurable": {"thread_id": "1"}}


def ask(graph: Any, request: str) -> dict[str, Any]:
    return dict(graph.invoke({"messages": [("user", request)]}, CONFIG))


def test_an_effect_with_an_invented_value_asks_a_person_who_sees_the_value() -> None:
    graph = agent(step("pay", amount=200, to="Grace"))
    [question] = ask(graph, "Pay 200 euros to Ada")["__interrupt__"]
    [entry] = question.value["steps"]
    assert entry["ungrounded"] == {"to": "Grace"}
    assert "Grace" in entry["reason"]
    assert "Ungrounded parameters" in describe_question(question.value)
    assert any("ungrounded" in line for line in question_lines(question.value))
    graph.invoke(Command(resume="approve"), CONFIG)
    assert PAID == [(200.0, "Grace")]


def test_a_person_who_edits_the_value_is_not_asked_again() -> None:
    graph = agent(step("pay", amount=200, to="Grace"))
    [question] = ask(graph, "Pay 200 euros to Ada")["__interrupt__"]
    key = question.value["steps"][0]["context_key"]
    edit = {key: {"decision": "edit", "parameters": {"amount": 200, "to": "Alan"}}}
    assert "__interrupt__" not in graph.invoke(Command(resume=edit), CONFIG)
    assert PAID == [(200.0, "Alan")]


async def test_a_standing_rule_does_not_stand_for_an_invented_value() -> None:
    def answer(call: ModelCall) -> Any:
        if call.schema != "ExecutionPlan":
            return "Done."
        to = "Grace" if "Pay Ada\n" in call.prompt else "Ada"
        return {"steps": [step("close_account", of=to)]}

    store = InMemoryStore()
    await add_rule(store, StandingRule(capability="close_account"))
    graph: Any = build_graph(
        ALL, model=ScriptedModel(responses=answer), checkpointer=InMemorySaver(), store=store
    )
    for request, is_asked in [("Close the account of Ada", False), ("Pay Ada", True)]:
        config = {"configurable": {"thread_id": request}}
        out = await graph.ainvoke({"messages": [("user", request)]}, config)
        assert ("__interrupt__" in out) is is_asked


def test_an_effect_with_values_of_the_conversation_runs_without_a_question() -> None:
    graph = agent(step("pay", amount=1200, to="Ada Lovelace"))
    assert "__interrupt__" not in ask(graph, "Pay 1,200 euros to ada lovelace, please")
    assert PAID == [(1200.0, "Ada Lovelace")]


@pytest.mark.parametrize("to", [{"$from": "account.holder"}, "Grace Hopper"])
def test_a_value_of_a_result_that_the_step_reads_is_grounded(to: Any) -> None:
    found = {"capability": "find_account", "context_key": "account"}
    act = {**step("refund", amount=5, to=to), "inputs": [{"ACCOUNT": "account"}]}
    assert "__interrupt__" not in ask(agent(found, act), "Refund 5 euros")
    assert PAID == [(5.0, "Grace Hopper")]


def test_a_declared_approval_shows_invented_values_whatever_the_setting() -> None:
    graph = agent(step("close_account", of="Grace"), ungrounded="allow")
    [question] = ask(graph, "Close the account of Ada")["__interrupt__"]
    assert question.value["steps"][0]["ungrounded"] == {"of": "Grace"}


def test_an_invented_value_can_be_refused_or_allowed() -> None:
    out = ask(agent(step("pay", amount=200, to="Grace"), ungrounded="refuse"), "Pay 200 to Ada")
    assert (out["execution_outcome"]["status"], PAID) == ("failed", [])
    ask(agent(step("pay", amount=200, to="Grace"), ungrounded="allow"), "Pay 200 to Ada")
    assert PAID == [(200.0, "Grace")]


def test_whoever_agrees_to_the_plan_sees_the_values_and_is_asked_once() -> None:
    graph = agent(step("pay", amount=200, to="Grace"), plans=True)
    [question] = ask(graph, "Pay 200 euros to Ada")["__interrupt__"]
    [entry] = question.value["steps"]
    assert list(entry["ungrounded"].values()) == [{"to": "Grace"}]
    assert any("ungrounded" in line for line in question_lines(question.value))
    assert "__interrupt__" not in graph.invoke(Command(resume="approve"), CONFIG)
    assert PAID == [(200.0, "Grace")]


def test_the_plan_of_a_caller_is_the_word_of_the_caller() -> None:
    graph = agent()
    plan = {"steps": [{"context_key": "paid", **step("pay", amount=200, to="Grace")}]}
    graph.invoke({"messages": [("user", "Go")], "planning_execution_plan": plan}, CONFIG)
    assert PAID == [(200.0, "Grace")]


async def test_what_the_caller_wrote_stays_the_word_of_the_caller_in_a_later_plan() -> None:
    paid = {"context_key": "paid", **step("pay", amount=200, to="Grace")}
    found = {"context_key": "found", "capability": "find_account", "look_again": True}
    graph = agent({k: v for k, v in found.items() if k != "look_again"}, paid)
    plan = {"steps": [found, {**paid, "inputs": []}]}
    given = {"messages": [("user", "Go")], "planning_execution_plan": plan}
    assert "__interrupt__" not in await graph.ainvoke(given, CONFIG)
    assert PAID == [(200.0, "Grace")]


async def test_an_evaluation_counts_invented_parameters() -> None:
    def answer(call: ModelCall) -> Any:
        plan = {"steps": [step("pay", amount=200, to="Grace")]}
        return plan if call.schema == "ExecutionPlan" else "Done."

    cases: Any = [{"name": "pay", "request": "Pay 200 euros to Ada", "capabilities": ["pay"]}]
    report = await evaluate(
        Dataset(version=1, name="tiny", cases=cases),
        Registry().with_(*ALL),
        model=ScriptedModel(responses=answer),
    )
    assert report.figures["ungrounded"] == 1
