"""A new message while a question is open: the outcome and an event say what becomes of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import build_graph, capability_node
from capgraph.base.errors import ValidationError
from capgraph.configs.settings import load_settings
from capgraph.telemetry import RingBufferSink

RAN: Counter[str] = Counter()
THREAD: Any = {"configurable": {"thread_id": "1"}}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@capability_node(effect="once", requires_approval=True, examples=["open the valve"])
async def open_valve() -> str:
    """Open the valve."""
    RAN["valve"] += 1
    return "open"


@capability_node(examples=["ask me about the color"])
async def ask_color() -> str:
    """Ask about the color."""
    return f"It is {interrupt('Which color?')}."


@capability_node(examples=["how full is the tank?"])
async def tank_level() -> str:
    """Read the level of the tank."""
    return "half full"


def graph_of(**approvals: Any) -> tuple[Any, RingBufferSink]:
    sink = RingBufferSink()
    settings = load_settings(approvals=approvals)
    capabilities = [open_valve, ask_color, tank_level]
    saver = InMemorySaver()
    return build_graph(capabilities, checkpointer=saver, settings=settings, sinks=[sink]), sink


def says(text: str) -> Any:
    return {"messages": [("user", text)]}


def events(sink: RingBufferSink, kind: str) -> list[Any]:
    return [event for event in sink.events if event["event_type"] == kind]


@pytest.mark.parametrize(
    ("asks", "name"), [("Open the valve", "open_valve"), ("Ask me about the color", "ask_color")]
)
async def test_a_new_message_drops_the_question_and_says_so(asks: str, name: str) -> None:
    graph, sink = graph_of()
    out = await graph.ainvoke(says(asks), THREAD)
    [question] = out["__interrupt__"]
    out = await graph.ainvoke(says("How full is the tank?"), THREAD)
    told = out["execution_outcome"]["question"]
    assert (told["status"], told["ids"]) == ("dropped", [question.id])
    [(key, capability)] = told["steps"].items()
    assert capability == name
    assert out["execution_outcome"]["status"] == "completed"
    [event] = events(sink, "question_dropped")
    assert (event["ids"], event["steps"]) == (told["ids"], {key: name})
    assert not RAN
    out = await graph.ainvoke(says("How full is the tank now?"), THREAD)
    assert "question" not in out["execution_outcome"], "it is told once"


async def test_an_answer_drops_nothing() -> None:
    graph, sink = graph_of()
    await graph.ainvoke(says("Open the valve"), THREAD)
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert "question" not in out["execution_outcome"]
    assert RAN == {"valve": 1}
    assert not events(sink, "question_dropped")


async def test_a_question_that_is_kept_refuses_the_message_and_can_be_answered() -> None:
    graph, sink = graph_of(new_message="keep")
    out = await graph.ainvoke(says("Open the valve"), THREAD)
    [question] = out["__interrupt__"]
    with pytest.raises(ValidationError, match="open_valve"):
        await graph.ainvoke(says("How full is the tank?"), THREAD)
    [event] = events(sink, "question_kept")
    assert event["ids"] == [question.id]
    assert [item.id for item in (await graph.aget_state(THREAD)).interrupts] == [question.id]
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert RAN == {"valve": 1}
    assert [m.text for m in out["messages"] if m.type == "human"] == ["Open the valve"]
    out = await graph.ainvoke(says("How full is the tank?"), THREAD)
    assert out["execution_outcome"]["status"] == "completed"
