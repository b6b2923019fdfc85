"""Tool messages of earlier runs on a thread, which the model of an agent is shown again."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from capgraph import bind
from capgraph.agents import Memory, ReActAgent
from capgraph.behaviors import BaseBehavior
from capgraph.testing import ScriptedModel
from tests.support.agents import call, calls

THREAD: Any = {"configurable": {"thread_id": "1"}}


def find(what: str) -> str:
    """Find a hotel."""
    return f"id 17: {what} " + "x" * 400


LOOKS = calls(call("find", "a", what="Astoria"))


async def shown(*answers: Any, tasks: Any = ("Find one.", "Book it."), **options: Any) -> list[Any]:
    """Return the messages that the model is shown in the last call."""
    model = ScriptedModel(responses=list(answers))
    memory = options.pop("memory", Memory(tools=True))
    graph = ReActAgent(model, tools=[find], memory=memory, **options).compile(InMemorySaver())
    for task in tasks:
        await graph.ainvoke({"task": task}, THREAD)
    return list(model.calls[-1].messages)


def pairs_hold(messages: list[Any]) -> bool:
    """Return True if each tool message follows its call, and each call has its answer."""
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            before = [m for m in messages[:place] if isinstance(m, AIMessage)]
            if not before or message.tool_call_id not in {c["id"] for c in before[-1].tool_calls}:
                return False
        if isinstance(message, AIMessage):
            behind = messages[place + 1 : place + 1 + len(message.tool_calls)]
            if [c["id"] for c in message.tool_calls] != [
                getattr(m, "tool_call_id", 0) for m in behind
            ]:
                return False
    return True


@pytest.mark.parametrize("bound", [False, True])
async def test_tool_messages_are_included_in_the_next_run(bound: bool) -> None:
    options = {"services": bind([])} if bound else {}
    messages = await shown(LOOKS, "Found Astoria.", "Booked.", **options)
    kinds = [message.type for message in messages]
    assert kinds == ["human", "ai", "tool", "ai", "human"]
    assert messages[2].text.startswith("id 17")
    assert [messages[0].text, messages[3].text, messages[4].text] == [
        "Find one.",
        "Found Astoria.",
        "Book it.",
    ]
    assert pairs_hold(messages)


async def test_by_default_only_tasks_and_answers_are_included() -> None:
    messages = await shown(LOOKS, "Found Astoria.", "Booked.", memory=Memory())
    assert [message.type for message in messages] == ["human", "ai", "human"]


@pytest.mark.parametrize("tokens", range(20, 400, 30))
async def test_a_call_and_its_answer_stay_together(tokens: int) -> None:
    both = calls(call("find", "a", what="A"), call("find", "b", what="B"))
    again = calls(call("find", "c", what="C"))
    memory = Memory(tools=True, max_tokens=tokens)
    messages = await shown(both, "Two.", again, "One.", "Booked.", tasks="123", memory=memory)
    assert messages[-1].text == "3"
    assert pairs_hold(messages)


async def test_a_run_that_reached_its_limit_stores_complete_pairs() -> None:
    messages = await shown(LOOKS, LOOKS, "Booked.", max_steps=2)
    assert [m.type for m in messages] == ["human", "ai", "tool", "ai", "tool", "ai", "human"]
    assert pairs_hold(messages)
    assert "id 17" in messages[5].text or "max_steps" in messages[5].text


class Form(BaseModel):
    name: str


async def test_a_structured_answer_is_included_as_text() -> None:
    form = calls(call("Form", "f", name="Astoria"))
    messages = await shown(LOOKS, form, form, response_format=Form)
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai", "human"]
    assert "Astoria" in messages[3].text
    assert pairs_hold(messages)


class Renames(BaseBehavior):
    async def after_execute(self, context: Any, result: Any) -> Any:
        return str(result.output).replace("Astoria", "[a hotel]")


async def test_a_rewritten_answer_is_included_as_rewritten() -> None:
    messages = await shown(LOOKS, "Found Astoria.", "Booked.", behaviors=[Renames()])
    assert messages[3].text == "Found [a hotel]."


async def test_a_summary_covers_tool_messages_once() -> None:
    memory = Memory(tools=True, window=4, summarize=True)
    answers = [LOOKS, "Found.", "In short.", "Fine.", "In short.", "Well."]
    messages = await shown(*answers, tasks="123", memory=memory)
    assert messages[-1] == HumanMessage("3", id=messages[-1].id)
    assert pairs_hold(messages)
