"""Approval requests and decisions in the forms of LangChain and Agent Inbox."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware.human_in_the_loop import HITLRequest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import TypeAdapter

from capgraph import build_graph
from tests.support.served import PLAN, OpenValve, read_level

TWO: dict[str, Any] = {
    "steps": [*PLAN["steps"], {**PLAN["steps"][1], "context_key": "again"}],
}
EDITED = {"name": "open_valve", "args": {"litres": 4.0}}


@pytest.fixture(autouse=True)
def _dry() -> None:
    OpenValve.opened.clear()


async def asked(plan: Any = PLAN) -> tuple[Any, Any, Any]:
    """Run a plan to its question; returns the graph, the configuration, and the question."""
    graph = build_graph([read_level, OpenValve], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"planning_execution_plan": plan}, config)
    (interrupt,) = out["__interrupt__"]
    return graph, config, interrupt.value


async def test_question_is_a_request_of_langchain() -> None:
    _, _, question = await asked(TWO)
    request = TypeAdapter(HITLRequest).validate_python(
        {name: question[name] for name in ("action_requests", "review_configs")}
    )
    names = [one["name"] for one in request["action_requests"]]
    assert names == ["open_valve", "open_valve"]
    assert [one["args"] for one in request["action_requests"]] == [{"litres": 3.0}] * 2
    (config,) = request["review_configs"]
    assert config["action_name"] == "open_valve"
    assert "approve" in config["allowed_decisions"]


@pytest.mark.parametrize(
    ("reply", "opened"),
    [
        ({"decisions": [{"type": "approve"}]}, [3.0]),
        ({"decisions": [{"type": "edit", "edited_action": EDITED}]}, [4.0]),
        ({"decisions": [{"type": "reject", "message": "Too wet."}]}, []),
        ({"decisions": [{"type": "respond", "message": "Closed today."}]}, []),
        ([{"type": "accept", "args": None}], [3.0]),
        ([{"type": "edit", "args": {"action": "open_valve", "args": {"litres": 5.0}}}], [5.0]),
        ([{"type": "ignore", "args": None}], []),
        ([{"type": "response", "args": "Closed today."}], []),
    ],
)
async def test_decisions_of_langchain_and_agent_inbox_resume(
    reply: Any, opened: list[float]
) -> None:
    graph, config, _ = await asked()
    out = await graph.ainvoke(Command(resume=reply), config)
    assert "__interrupt__" not in out
    assert OpenValve.opened == opened
    if "Closed" in str(reply):
        assert out["messages"][-1].text == "Closed today."


@pytest.mark.parametrize(
    "reply",
    [
        {"decisions": [{"type": "approve"}]},
        [{"type": "accept"}],
        {
            "decisions": [
                {"type": "approve"},
                {"type": "edit", "edited_action": {"name": "read_level", "args": {}}},
            ]
        },
        {"decisions": [{"type": "approve"}, {"type": "later"}]},
        {"decisions": [{"type": "approve"}, {"type": "approve", "reason_": "x"}]},
        {"decisions": [{"type": "approve"}, "approve", "approve"]},
    ],
)
async def test_incomplete_or_unknown_decisions_leave_the_question_open(reply: Any) -> None:
    graph, config, _ = await asked(TWO)
    out = await graph.ainvoke(Command(resume=reply), config)
    assert out["__interrupt__"][0].value["problems"]
    assert OpenValve.opened == []
