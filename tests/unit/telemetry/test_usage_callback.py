"""Each model call of a turn is counted once, whoever makes it, and refused past the bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, Registry, build_graph, capability_node
from capgraph.base import LimitError
from capgraph.base.turn_budget import TurnBudget
from capgraph.models import RoleModel
from capgraph.models.calls import generate_structured, stream_text
from capgraph.telemetry.usage_callback import USAGE_CALLBACK, UsageCallback, count_model_calls
from capgraph.testing import ScriptedModel

TOKENS = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
ASK = [HumanMessage("Hello?")]

Work = Callable[[], Awaitable[Any]]


class State(TypedDict, total=False):
    done: bool


class Answer(BaseModel):
    text: str


def talker(text: str = "Hello.") -> ScriptedModel:
    return ScriptedModel(
        responses=lambda _: AIMessage(text, usage_metadata=TOKENS)  # type: ignore[arg-type]
    )


async def turn(
    work: Work, budget: TurnBudget | None = None, limit: int = 100
) -> tuple[TurnBudget, list[dict[str, Any]]]:
    """Run a node that counts, as the nodes of a turn do."""
    counted = budget or TurnBudget()

    async def node(state: State) -> State:
        with count_model_calls(counted, limit):
            await work()
        return {"done": True}

    graph = graph_of(node)
    events = [e async for e in graph.astream({}, stream_mode="custom")]
    return counted, [event for event in events if event["event_type"] == "usage"]


def graph_of(node: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile().with_config({"callbacks": [USAGE_CALLBACK]})


async def by_role(model: Any) -> None:
    await generate_structured(RoleModel("planning", model), Answer, ASK)
    await stream_text(RoleModel("answer", model), ASK)


async def direct(model: Any) -> None:
    await model.ainvoke(ASK)


async def in_a_thread(model: Any) -> None:
    await asyncio.to_thread(model.invoke, ASK)


async def blocking_stream(model: Any) -> None:
    for _ in model.stream(ASK):
        pass


async def in_an_agent(model: Any) -> None:
    await create_agent(model, tools=[]).ainvoke({"messages": ASK})


async def in_a_graph(model: Any) -> None:
    async def node(state: State) -> State:
        await model.ainvoke(ASK)
        return {"done": True}

    await graph_of(node).ainvoke({})  # has the meter a second time


async def in_a_task(model: Any) -> None:
    @task
    async def ask() -> None:
        await model.ainvoke(ASK)

    await ask()


CALLERS = [direct, in_a_thread, blocking_stream, in_an_agent, in_a_graph, in_a_task]


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_call_is_counted_and_reported_once(caller: Any) -> None:
    model = talker()
    budget, usage = await turn(lambda: caller(model))
    assert budget.model_calls == len(model.calls) == 1
    assert [(event["role"], event["model"]) for event in usage] == [("capability", "scripted")]
    assert (usage[0]["input_tokens"], usage[0]["output_tokens"]) == (5, 2)


async def test_the_frameworks_calls_report_their_role() -> None:
    budget, usage = await turn(lambda: by_role(talker('{"text": "x"}')))
    assert budget.model_calls == 2
    assert [event["role"] for event in usage] == ["planning", "answer"]


async def test_two_meters_count_a_call_once() -> None:
    model = talker()

    async def node() -> None:
        await model.ainvoke(ASK, {"callbacks": [USAGE_CALLBACK, UsageCallback()]})

    budget, usage = await turn(node)
    assert (budget.model_calls, len(usage)) == (1, 1)


@pytest.mark.parametrize("caller", CALLERS)
async def test_past_the_bound_nothing_is_sent(caller: Any) -> None:
    model = talker()

    async def twice() -> None:
        await caller(model)
        await caller(model)

    spent = TurnBudget.from_plain({"model_calls": 8})  # before the thread was resumed
    with pytest.raises(LimitError, match="9 model calls") as caught:
        await turn(twice, spent, limit=9)
    assert "limits.max_model_calls" in str(caught.value)
    assert len(model.calls) == 1
    assert spent.to_plain()["model_calls"] == 9


async def test_the_bound_is_no_failure_of_the_model() -> None:
    with pytest.raises(LimitError):
        await turn(lambda: by_role(talker('{"text": "x"}')), limit=1)


async def test_the_bound_holds_for_calls_side_by_side() -> None:
    model = talker()

    async def many() -> None:
        found = await asyncio.gather(*[direct(model) for _ in range(20)], return_exceptions=True)
        assert sum(isinstance(item, LimitError) for item in found) == 13

    budget, _ = await turn(many, limit=7)
    assert budget.model_calls == len(model.calls) == 7


async def test_a_failed_call_counts() -> None:
    async def failing() -> None:
        with pytest.raises(ConnectionError):
            await ScriptedModel(responses=[ConnectionError("gone")]).ainvoke(ASK)

    budget, usage = await turn(failing)
    assert (budget.model_calls, usage) == (1, [])


async def test_a_turn_inside_another_counts_for_both_and_is_reported_to_the_outer() -> None:
    inner = TurnBudget()

    async def outer_work() -> None:
        await direct(talker())
        _, reported = await turn(lambda: direct(talker()), inner)
        assert reported == []

    outer, usage = await turn(outer_work)
    assert (inner.model_calls, outer.model_calls, len(usage)) == (1, 2, 2)


async def test_two_turns_at_once_do_not_mix() -> None:
    async def calls(number: int) -> int:
        async def work() -> None:
            for _ in range(number):
                await direct(talker())
                await asyncio.sleep(0)

        return (await turn(work))[0].model_calls

    assert await asyncio.gather(*map(calls, [3, 5, 2])) == [3, 5, 2]


class Said(CapabilityContext):
    text: str


@capability_node
class Chat(BaseCapability):
    name = "chat"
    description = "Chat about anything"
    provides = ["SAID"]

    async def execute(self) -> Said:
        return Said(text=str((await self.chat_model().ainvoke(ASK)).text))


async def test_an_agents_graph_reports_its_capabilities_calls() -> None:
    registry = Registry()
    registry.register(Said)
    registry.register(Chat)
    plan = {"steps": [{"context_key": "said", "capability": "chat"}]}
    graph = build_graph(registry, model={"capability": talker()})
    request = {"messages": [("user", "Chat")], "planning_execution_plan": plan}
    events = [event async for event in graph.astream(request, stream_mode="custom")]
    assert [e["role"] for e in events if e["event_type"] == "usage"] == ["capability"]
