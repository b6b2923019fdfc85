"""Every call of a chat model counts once, wherever in a turn it is made, and is bounded."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from capgraph import BaseCapability, capability_node
from capgraph.testing import ScriptedModel
from tests.support.doors import Gauge, soon, status


class Talk(TypedDict):
    messages: Annotated[list[Any], add_messages]


def _nested(model: Any) -> Any:
    """Return somebody's own agent: a graph that calls a model."""

    async def think(state: Talk) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder: Any = StateGraph(Talk)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    builder.add_edge("think", END)
    return builder.compile()


def _chatter(form: str, model: Any, times: int) -> Any:
    @capability_node
    class Chatter(BaseCapability):
        name = "chatter"
        description = "Talk"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            for n in range(times):
                if form == "own model":
                    await model.ainvoke(f"again {n}")
                elif form == "graph":
                    await _nested(model).ainvoke({"messages": [("user", f"again {n}")]})
                else:
                    await self.chat_model().ainvoke(f"again {n}")
            return Gauge(value=times)

    return Chatter


FORMS = ["own model", "graph", "chat_model"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_turn_makes_no_more_calls_than_its_limit(agent: Any, step: Any, form: str) -> None:
    model = ScriptedModel(responses=lambda call: "hm")
    it = agent(
        Gauge,
        _chatter(form, model, 50),
        plans=[[step("a", "chatter")]],
        limits={"max_model_calls": 4},
        model={"capability": model},
    )
    out = await soon(it.ask())
    assert len(model.calls) <= 4
    assert status(out) in {"failed", "stopped"}
    assert "GAUGE" not in (out.get("capability_context_data") or {})


@pytest.mark.parametrize("form", FORMS)
async def test_each_call_counts_once_and_each_turn_anew(agent: Any, step: Any, form: str) -> None:
    model = ScriptedModel(responses=lambda call: "hm")
    it = agent(
        Gauge,
        _chatter(form, model, 4),
        plans=[[step("a", "chatter")]],
        limits={"max_model_calls": 4},
        model={"capability": model},
    )
    for turn in (1, 2):
        assert status(await soon(it.ask())) == "completed"
        assert len(model.calls) == 4 * turn


@pytest.mark.parametrize("form", FORMS)
async def test_each_call_is_metered_once(agent: Any, step: Any, form: str) -> None:
    model = ScriptedModel(responses=lambda call: "hm")
    it = agent(
        Gauge, _chatter(form, model, 3), plans=[[step("a", "chatter")]], model={"capability": model}
    )
    given: Any = {"messages": [("user", "talk")]}
    used = [
        event
        async for event in it.graph.astream(given, it.config(), stream_mode="custom")
        if event.get("event_type") == "usage"
    ]
    assert len(used) == 3
    assert all(event["output_tokens"] > 0 for event in used)


async def test_calls_of_a_model_need_no_slot_of_a_step(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=lambda call: "hm")
    it = agent(
        Gauge,
        _chatter("chat_model", model, 2),
        plans=[[step(key, "chatter") for key in "abc"]],
        limits={"max_parallel": 1},
        model={"capability": model},
    )
    assert status(await soon(it.ask())) == "completed"
    assert len(model.calls) == 6
