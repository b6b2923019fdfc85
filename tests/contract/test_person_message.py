"""However a turn ends, the person gets sentences: no codes, no data, no names of internals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from capgraph import build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import ModelSettings, load_settings
from capgraph.testing import FakeClock, ScriptedModel
from tests.support.openai_server import OpenAIServer, Reply, openai_server, say

FORBIDDEN = re.compile(r"CG-|[{}]|```|</?\w+|Traceback|Error\b|gauge_reading|context_key|Fix:")
GARBAGE = {
    "empty": "",
    "spaces": " \n ",
    "words": "I think the gauge should be read.",
    "html": "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
    "truncated": '{"steps": [{"capability": "read_gauge", "parameters": {"da',
    "list": "[1, 2]",
    "number": "7",
    "unknown": json.dumps({"steps": [{"capability": "teleport"}]}),
    "parameters": json.dumps({"steps": [{"capability": "read_gauge", "parameters": {"x": {}}}]}),
    "no_steps": json.dumps({"steps": "read_gauge"}),
    "markup": "<request>\nRead the gauge.\n</request>",
    "reference": json.dumps(
        {"steps": [{"capability": "read_gauge", "parameters": {"day": {"$from": "nothing.value"}}}]}
    ),
}
PLAN = json.dumps({"steps": [{"capability": "read_gauge"}]})
TASK = json.dumps(
    {"task": "Read it.", "depends_on_chat_history": True, "depends_on_user_memory": False}
)


@capability_node
async def read_gauge(day: str = "today") -> str:
    """Read the gauge."""
    return f"The gauge reads 7 {day}."


def failing(error: Exception) -> Any:
    @capability_node
    async def gauge_reading() -> str:
        """Read the gauge."""
        raise error

    return gauge_reading


async def ask(graph: Any, said: Any = None) -> tuple[dict[str, Any], str]:
    streamed, final = "", {}
    said = said or [("user", "Read the gauge.")]
    async for mode, part in graph.astream({"messages": said}, stream_mode=["custom", "values"]):
        if mode == "values":
            final = part
        elif part["event_type"] == "answer_token":
            streamed = "" if part.get("resets") else streamed + part["text"]
    return final, streamed


def assert_for_people(final: dict[str, Any], streamed: str) -> None:
    text = str(final["messages"][-1].text)
    assert final["messages"][-1].type == "ai"
    assert text.strip()
    assert FORBIDDEN.search(text) is None, text
    assert FORBIDDEN.search(streamed) is None, streamed


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("role", ["planning", "answer", "extraction", "selection"])
async def test_garbage_of_a_model_never_reaches_the_person(role: str, kind: str) -> None:
    if role == "answer" and GARBAGE[kind].startswith(("{", "[", "<!")):
        pytest.skip("an answer is text of the model's own choice")
    said: Any = [("user", "Read the gauge.")]
    if role == "extraction":
        said = [*said, AIMessage("It reads 7."), ("user", "And now?")]

    def reply(call: Any) -> str:
        asked = {"ExecutionPlan": "planning", "Choice": "selection", "Task": "extraction"}
        if asked.get(call.schema or "", "answer") == role:
            return GARBAGE[kind]
        chosen = json.dumps({"reason": "It fits.", "capabilities": ["read_gauge"]})
        known = {"ExecutionPlan": PLAN, "Choice": chosen, "Task": TASK}
        return known.get(call.schema or "", "It reads 7.")

    strategy = {"selection": {"strategy": "model"}} if role == "selection" else {}
    graph = build_graph(
        [read_gauge],
        model=ScriptedModel(responses=reply),
        clock=FakeClock(),
        settings=load_settings(**strategy),
    )
    assert_for_people(*await ask(graph, said))


@pytest.mark.parametrize(
    "error",
    [
        KeyError("gauge_reading"),
        RuntimeError('{"error": {"code": 500}}'),
        ConnectionError("<html>Bad gateway</html>"),
        CapabilityError("The valve is stuck.", fix="Free it by hand."),
        CapabilityError('{"valve": "stuck"}', severity=ErrorSeverity.REPLANNING),
        CapabilityError("no", severity=ErrorSeverity.RECLASSIFICATION),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("with_model", [True, False])
async def test_a_failed_step_is_told_in_words(error: Exception, with_model: bool) -> None:
    plan = json.dumps({"steps": [{"capability": "gauge_reading"}]})
    model = ScriptedModel(responses=lambda call: plan if call.schema else "It failed.")
    graph = build_graph([failing(error)], model=model if with_model else None, clock=FakeClock())
    final, _ = await ask(graph)
    text = str(final["messages"][-1].text).replace("Fix: Free it by hand.", "")
    assert FORBIDDEN.search(text) is None, text
    assert text.strip()


async def test_a_plan_of_the_caller_with_problems_is_told_in_words() -> None:
    graph = build_graph([read_gauge])
    plan = {"steps": [{"context_key": "a", "capability": "nothing"}]}
    final = await graph.ainvoke({"messages": [("user", "Go")], "planning_execution_plan": plan})
    assert "CG-P" not in final["messages"][-1].text
    assert "nothing" in final["messages"][-1].text
    assert "CG-P04" in final["execution_outcome"]["reason"]


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server() as running:
        yield running


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        (say(""), "max_tokens"),
        (say("<!DOCTYPE html><html>Proxy</html>"), "base_url"),
        (say('{"steps": [{"capab'), "max_tokens"),
        (say('{"steps": [{"capab', finish="length"), "max_tokens"),
        (say("Certainly! Here you are."), "structured output"),
    ],
    ids=["empty", "html", "truncated", "cut_off", "words"],
)
async def test_operators_get_the_model_and_the_remedy(
    server: OpenAIServer, written: Reply, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("ExecutionPlan", *[written] * 20)
    model: Any = ModelSettings(
        model="openai:gpt-test", base_url=server.url, api_key="sk-test-0123456789"
    )
    events: list[dict[str, Any]] = []
    graph = build_graph([read_gauge], model=model, clock=FakeClock())
    final: dict[str, Any] = {}
    async for mode, part in graph.astream(
        {"messages": [("user", "Read the gauge.")]}, stream_mode=["custom", "values"]
    ):
        if mode == "values":
            final = part
        else:
            events.append(part)
    assert_for_people(final, "")
    [ended] = [event for event in events if event["event_type"] == "turn_finished"]
    for told in (final["execution_outcome"]["reason"], ended["outcome"]["reason"], caplog.text):
        assert "gpt-test" in told
        assert remedy in told
