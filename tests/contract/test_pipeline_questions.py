"""Questions come from attempts wherever they run, all at once, and answers find their way back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import capgraph
from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base.ports import ApprovalRequest
from capgraph.state import AgentState
from tests.support.doors import Gauge, Instead, answer, shown, soon, status


class Note(CapabilityContext):
    text: str


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def ask(log: list[str]) -> Any:
    @capability_node
    class Ask(BaseCapability):
        name = "ask"
        description = "Ask back"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            key = self.step["context_key"]
            found = interrupt(f"how much for {key}?")
            log.append(f"{key}={found}")
            return Gauge(value=int(found))

    return Ask


@pytest.fixture
def pay(log: list[str]) -> Any:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay"
        provides = ["NOTE"]
        effect = "once"
        requires_approval = True

        async def execute(self) -> Note:
            log.append("paid")
            return Note(text="paid")

    return Pay


async def test_questions_of_parallel_steps_come_as_one_signal(
    agent: Any, step: Any, ask: Any, log: list[str]
) -> None:
    plan = [step(key, "ask") for key in "abc"]
    it = agent(Gauge, ask, plans=[plan], checkpointer=InMemorySaver())
    out = await soon(it.ask())
    asked = {entry.value: entry.id for entry in out["__interrupt__"]}
    assert set(asked) == {f"how much for {key}?" for key in "abc"}
    numbers = {f"how much for {key}?": n for n, key in enumerate("abc", start=1)}
    resume = {asked[text]: n for text, n in numbers.items()}
    out = await it.graph.ainvoke(Command(resume=resume), it.config())
    assert status(out) == "completed"
    assert sorted(log) == ["a=1", "b=2", "c=3"]
    found = out["capability_context_data"]["GAUGE"]
    assert {key: found[key]["value"] for key in "abc"} == {"a": 1, "b": 2, "c": 3}


async def test_questions_come_in_the_order_of_the_plan_and_not_of_who_asks_first(
    agent: Any, step: Any
) -> None:
    @capability_node
    class Slow(BaseCapability):
        name = "slow"
        description = "Ask when another step has asked"

        async def execute(self) -> dict[str, Any]:
            await asyncio.wait_for(asked.wait(), 30)
            interrupt("first?")
            return {}

    @capability_node
    class Quick(BaseCapability):
        name = "quick"
        description = "Ask at once"

        async def execute(self) -> dict[str, Any]:
            asyncio.get_running_loop().call_later(0.05, asked.set)
            interrupt("second?")
            return {}

    asked = asyncio.Event()
    plan = [step("a", "slow"), step("b", "quick")]
    out = await agent(Slow, Quick, plans=[plan], checkpointer=InMemorySaver()).ask()
    assert [entry.value for entry in out["__interrupt__"]] == ["first?", "second?"]


async def test_an_approval_and_a_question_of_the_same_step_are_two(
    agent: Any, step: Any, log: list[str]
) -> None:
    @capability_node
    class Order(BaseCapability):
        name = "order"
        description = "Order"
        provides = ["GAUGE"]
        requires_approval = True

        async def execute(self) -> Gauge:
            log.append(str(interrupt("which colour?")))
            return Gauge(value=1)

    it = agent(Gauge, Order, plans=[[step("a", "order")]], checkpointer=InMemorySaver())
    assert "order" in shown(await it.ask())
    out = await answer(it, "approve")
    assert out["__interrupt__"][0].value == "which colour?"
    out = await answer(it, "green")
    assert (status(out), log) == ("completed", ["green"])


async def test_a_middleware_may_put_a_question(
    agent: Any, step: Any, pay: Any, log: list[str]
) -> None:
    @capability_node
    async def plain() -> Note:
        """Need no agreement of its own."""
        log.append("plain")
        return Note(text="plain")

    async def doubt(attempt: Any, call_next: Any) -> Any:
        if attempt.capability != "plain":
            return await call_next()
        return ApprovalRequest(kind="step", capability="plain", reason="It is Sunday.")

    it = agent(
        Note,
        plain,
        plans=[[step("a", "plain")]],
        behaviors=[Instead("authorize", doubt)],
        checkpointer=InMemorySaver(),
    )
    out = await soon(it.ask())
    assert "It is Sunday." in shown(out)
    assert log == []
    out = await soon(answer(it, {"a": {"decision": "reject", "reason": "right"}}))
    assert log == []
    assert status(out) != "completed"


async def test_without_a_saver_a_question_ends_the_turn_with_the_reason(
    agent: Any, step: Any, pay: Any, log: list[str]
) -> None:
    out = await soon(agent(Note, pay, plans=[[step("a", "pay")]]).ask())
    assert (status(out), log) == ("failed", [])
    assert not out.get("__interrupt__")


async def test_an_attempt_inside_another_asks_too(
    agent: Any, step: Any, pay: Any, log: list[str]
) -> None:
    """What is inside needs agreement; what is outside does not repeat it."""

    @capability_node
    class Outer(BaseCapability):
        name = "outer"
        description = "Pay inside"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            builder: Any = StateGraph(AgentState)
            builder.add_node("pay", capgraph.bind([pay]).node(pay))
            builder.add_edge(START, "pay")
            builder.add_edge("pay", END)
            out = await builder.compile().ainvoke({"messages": [("user", "pay")]})
            log.append("outer " + str("NOTE" in (out.get("capability_context_data") or {})))
            return Gauge(value=1)

    it = agent(Gauge, Note, Outer, plans=[[step("a", "outer")]], checkpointer=InMemorySaver())
    out = await soon(it.ask())
    assert log == []
    assert "pay" in shown(out)
    out = await soon(answer(it, "approve"))
    assert (status(out), log) == ("completed", ["paid", "outer True"])


async def test_two_nodes_of_ones_own_graph_ask_side_by_side(pay: Any, log: list[str]) -> None:
    @capability_node(requires_approval=True)
    async def shout() -> Gauge:
        """Shout."""
        log.append("shout")
        return Gauge(value=1)

    services = capgraph.bind([pay, shout])
    builder: Any = StateGraph(AgentState)
    for capability in (pay, shout):
        name = capability.capability_spec.name
        builder.add_node(name, services.node(capability))
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await soon(graph.ainvoke({"messages": [("user", "go")]}, config))
    assert len(out["__interrupt__"]) == 2
    resume = {
        entry.id: "approve" if "pay" in str(entry.value) else "reject"
        for entry in out["__interrupt__"]
    }
    await soon(graph.ainvoke(Command(resume=resume), config))
    assert log == ["paid"]
