from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from capgraph.base import ModelError
from capgraph.testing import ScriptedModel


class Point(BaseModel):
    """A point."""

    x: int


async def test_answers_come_in_order_and_end_with_a_clear_error() -> None:
    model = ScriptedModel(responses=["one", AIMessage("two"), lambda call: call.prompt.upper()])
    assert [(await model.ainvoke(q)).text for q in ("a", "b", "c")] == ["one", "two", "C"]
    with pytest.raises(ModelError, match=r"no answer for call 4: only 3"):
        await model.ainvoke("d")
    assert [call.prompt for call in model.calls] == ["a", "b", "c", "d"]


async def test_text_is_streamed_word_by_word_with_its_usage() -> None:
    model = ScriptedModel(responses=["one two three"])
    chunks = [chunk async for chunk in model.astream("count")]
    assert [chunk.text for chunk in chunks if chunk.text] == ["one ", "two ", "three"]
    whole: Any = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.usage_metadata == {"input_tokens": 1, "output_tokens": 3, "total_tokens": 4}
    assert [chunk.text for chunk in ScriptedModel(responses=["a b"]).stream("x")][:2] == ["a ", "b"]


@pytest.mark.parametrize("answer", [{"x": 3}, Point(x=3), '{"x": 3}'])
async def test_structured_answers_are_validated(answer: Any) -> None:
    found = await ScriptedModel(responses=[answer]).with_structured_output(Point).ainvoke("?")
    assert found == Point(x=3)


async def test_invalid_structured_answer_is_raised_or_returned() -> None:
    model = ScriptedModel(responses=[{"x": "far"}, {"x": "far"}])
    with pytest.raises(ValueError, match="x"):
        await model.with_structured_output(Point).ainvoke("?")
    both = await model.with_structured_output(Point, include_raw=True).ainvoke("?")
    assert both["parsed"] is None
    assert both["raw"].text == '{"x": "far"}'
    assert isinstance(both["parsing_error"], ValueError)


async def test_bound_tools_are_recorded_and_tool_calls_streamed() -> None:
    call = {"name": "Point", "args": {"x": 3}, "id": "1", "type": "tool_call"}
    model = ScriptedModel(responses=[AIMessage("", tool_calls=[call])] * 2)
    bound = model.bind_tools([Point])
    assert (await bound.ainvoke("go")).tool_calls[0]["args"] == {"x": 3}
    whole: Any = None
    async for chunk in bound.astream("go"):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"] == {"x": 3}
    assert [seen.tools for seen in model.calls] == [("Point",), ("Point",)]


async def test_exceptions_are_raised_and_copies_share_the_script() -> None:
    model = ScriptedModel(responses=[OSError("down"), "up"])
    with pytest.raises(OSError, match="down"):
        await model.ainvoke("?")
    assert (await model.model_copy().ainvoke("?")).text == "up"
    assert len(model.calls) == 2
