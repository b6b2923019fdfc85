"""Properties that a planner declares: rules hang on them, not on the planner's class."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph, capability_node
from capgraph.base.errors import ConfigurationError
from capgraph.engine.default_strategies import ChainPlanner
from capgraph.planning.strategies import PlanRequest
from tests.support.doors import message_and_reason


class Wrapper:
    """A planner that declares nothing and delegates to the offline planner."""

    def __init__(self) -> None:
        self.inner = ChainPlanner()

    async def plan(self, request: PlanRequest) -> Any:
        return await self.inner.plan(request)


class ChoosingPlanner(Wrapper):
    chooses_parameters = True
    writes_with_model = False


class BrokenPlanner:
    async def plan(self, request: PlanRequest) -> Any:
        return {"steps": [{"context_key": "paid", "capability": "pay", "parameters": {"sum": 1}}]}


@capability_node(effect="once", examples=["pay the bill"])
def pay(amount: int = 100) -> str:
    """Pay the bill."""
    return f"Paid {amount}."


def ask(planner: Any) -> dict[str, Any]:
    graph = build_graph([pay], checkpointer=InMemorySaver(), planner=planner)
    config: Any = {"configurable": {"thread_id": "1"}}
    return dict(graph.invoke({"messages": [("user", "Pay the bill")]}, config))


def test_a_wrapped_planner_keeps_the_question_about_defaults_of_an_effect() -> None:
    [question] = ask(Wrapper())["__interrupt__"]
    assert question.value["steps"][0]["parameters"] == {"amount": 100}


def test_a_planner_that_chooses_parameters_is_not_asked_about() -> None:
    assert ask(ChoosingPlanner())["execution_outcome"]["status"] == "completed"


def test_a_planner_that_declares_nothing_is_asked_once_and_its_problems_are_told() -> None:
    out = ask(BrokenPlanner())
    assert out["execution_outcome"]["status"] == "failed"
    assert "'sum'" in message_and_reason(out) or "sum" in message_and_reason(out)


def test_a_property_that_is_no_boolean_is_refused_when_the_graph_is_built() -> None:
    class Vague(Wrapper):
        can_correct = "sometimes"

    with pytest.raises(ConfigurationError, match="can_correct"):
        build_graph([pay], planner=Vague())
