"""Answers of small models: repeated prompts, and follow-ups that are answered without a step."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from capgraph import build_graph, capability_node
from capgraph.testing import ScriptedModel

ECHO = (
    "<request>\nRead the gauge.\n</request>\n\n"
    '<data name="READ_GAUGE read_gauge">\nThe gauge reads 7.\n</data>'
)
PLAN = {"steps": [{"capability": "read_gauge"}]}


@capability_node
async def read_gauge(day: str = "today") -> str:
    """Read the gauge."""
    return f"The gauge reads 7 {day}."


async def streamed(graph: Any, said: Any) -> tuple[dict[str, Any], str, list[Any]]:
    tokens, chunks, final = "", [], {}
    async for mode, part in graph.astream(
        {"messages": said}, stream_mode=["custom", "messages", "values"]
    ):
        if mode == "custom" and part["event_type"] == "answer_token":
            tokens = "" if part.get("resets") else tokens + part["text"]
        elif mode == "messages":
            chunks.append(part[0])
        elif mode == "values":
            final = part
    return final, tokens, chunks


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (ECHO, "The gauge reads 7."),
        (f"{ECHO}\n\nIt reads 7.", "It reads 7."),
        ("It reads 7.\n</data>", "It reads 7."),
    ],
)
async def test_a_repeated_prompt_is_neither_streamed_nor_answered(written: str, shown: str) -> None:
    model = ScriptedModel(responses=[PLAN, written])
    graph = build_graph([read_gauge], model=model)
    final, tokens, chunks = await streamed(graph, [("user", "Read the gauge.")])
    assert final["messages"][-1].text == shown
    assert tokens.strip() == shown
    assert "".join(str(chunk.text) for chunk in chunks).strip() == shown
    assert {chunk.id for chunk in chunks} == {final["messages"][-1].id}


async def test_only_a_repeated_request_is_asked_for_again() -> None:
    responses = [PLAN, "<request>\nRead the gauge.\n</request>", "It reads 7."]
    model = ScriptedModel(responses=responses)
    final, tokens, _ = await streamed(
        build_graph([read_gauge], model=model), [("user", "Read the gauge.")]
    )
    assert final["messages"][-1].text == tokens == "It reads 7."


async def test_marks_are_kept_where_the_request_is_about_them() -> None:
    text = 'Write <data name="a">7</data> into the file.'
    model = ScriptedModel(responses=[PLAN, text])
    final, tokens, _ = await streamed(
        build_graph([read_gauge], model=model),
        [("user", "Read the gauge and put it into a <data> element.")],
    )
    assert final["messages"][-1].text == tokens == text


async def test_a_follow_up_is_planned_from_the_task_alone() -> None:
    task = {
        "task": "What does the gauge read tomorrow?",
        "depends_on_chat_history": True,
        "depends_on_user_memory": False,
    }
    plan = {"steps": [{"capability": "read_gauge", "parameters": {"day": "tomorrow"}}]}
    model = ScriptedModel(responses=[task, plan, "It reads 7 tomorrow."])
    said = [("user", "Read the gauge."), AIMessage("It reads 7000."), ("user", "And tomorrow?")]
    final, _, _ = await streamed(build_graph([read_gauge], model=model), said)
    assert final["execution_step_results"]["read_gauge"]["success"]
    assert "7000" not in model.calls[1].prompt, "a planner copies earlier answers"
    assert "What does the gauge read tomorrow?" in model.calls[1].prompt


async def test_a_question_about_the_conversation_is_answered_from_it() -> None:
    task = {
        "task": "What did the gauge read first?",
        "depends_on_chat_history": True,
        "depends_on_user_memory": False,
    }
    nothing = {"steps": [], "answer": "It read 12."}

    def reply(call: Any) -> Any:
        return {"Task": task, "ExecutionPlan": nothing}.get(call.schema or "", "It read 7000.")

    model = ScriptedModel(responses=reply)
    said = [("user", "Read the gauge."), AIMessage("It reads 7000."), ("user", "What was it?")]
    final, tokens, _ = await streamed(build_graph([read_gauge], model=model), said)
    assert final["messages"][-1].text == tokens == "It read 7000."
    assert "7000" in model.calls[-1].prompt
