"""Streams of agents: tokens at the top, each answer and each question once."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import bind
from capgraph.adapters import tool_capability
from capgraph.agents import PipelineOrchestrator, ReActAgent
from capgraph.behaviors import GuardrailBehavior, GuardrailRule
from capgraph.testing import ScriptedModel
from tests.support.agents import add, call, calls

TASK: Any = {"task": "Add."}
THREAD: Any = {"configurable": {"thread_id": "1"}}
ANSWER = "It is four."


def agent(**options: Any) -> ReActAgent:
    answers = [calls(call("add", a=2, b=2)), ANSWER]
    return ReActAgent(ScriptedModel(responses=answers), tools=[add], **options)


async def words(graph: Any) -> list[Any]:
    return [part async for part, _ in graph.astream(TASK, THREAD, stream_mode="messages")]


@pytest.mark.parametrize("bound", [False, True])
async def test_tokens_are_streamed_without_subgraphs_and_the_answer_once(bound: bool) -> None:
    found = await words(agent(services=bind([]) if bound else None).compile(InMemorySaver()))
    said = [one.text for one in found if one.type in ("ai", "AIMessageChunk") and one.text]
    assert len(said) > 1
    assert "".join(said) == ANSWER
    assert [one.text for one in found if one.type == "tool"] == ["4"]
    assert [one.text for one in found if one.type == "human"] == [], "the caller sent the task"


@pytest.mark.parametrize("where", ["behaviors", "services"])
async def test_no_token_is_streamed_before_a_guardrail_has_checked_the_answer(where: str) -> None:
    guard = GuardrailBehavior(rules=[GuardrailRule("five", blocked_words=["five"])])
    options = {where: [guard] if where == "behaviors" else bind([], behaviors=[guard])}
    found = await words(agent(**options).compile(InMemorySaver()))
    assert not [one for one in found if isinstance(one, AIMessageChunk)]
    assert [one.text for one in found if one.type == "ai"] == [ANSWER]


@pytest.mark.parametrize("nested", [False, True])
async def test_an_interrupt_is_streamed_once(nested: bool) -> None:
    services = bind([tool_capability(add, requires_approval=True)])
    made: Any = agent(services=services)
    graph = (PipelineOrchestrator([made]) if nested else made).compile(InMemorySaver())
    asked = [
        question
        async for part in graph.astream(TASK, THREAD, stream_mode="updates")
        for question in part.get("__interrupt__", ())
    ]
    assert len(asked) == 1
    assert len((await graph.aget_state(THREAD)).interrupts) == 1
