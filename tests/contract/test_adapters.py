"""What stands in the public contract of ``capgraph.adapters``, called as a stranger would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from capgraph import CapabilityContext, Registry, bind, build_graph, capability_node
from capgraph.adapters import agent_capability, as_tool, graph_capability, tool_capability
from capgraph.agents import PipelineOrchestrator, ReActAgent
from capgraph.testing import ScriptedModel
from capgraph.workflows import DAGWorkflow, WorkflowEdge, WorkflowNode

CONFIG: Any = {"configurable": {"thread_id": "1"}}


@tool
def wind(place: str, hours: int = 6) -> dict[str, Any]:
    """Read the wind of a place."""
    return {"knots": hours * 2, "place": place}


def plan(*steps: dict[str, Any]) -> Any:
    return {"messages": [("user", "go")], "planning_execution_plan": {"steps": [*steps]}}


def step(key: str, capability: Any, **more: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability.capability_spec.name, **more}


@pytest.mark.parametrize("effect", ["none", "idempotent", "once"])
async def test_tool_capability(effect: str) -> None:
    made = tool_capability(wind, provides="WIND", effect=effect, permission=None)
    registry = Registry()
    registry.register(made)
    spec = made.capability_spec
    assert (spec.name, spec.effect, spec.provides) == ("wind", effect, ("WIND",))
    out = await build_graph(registry).ainvoke(plan(step("w", made, parameters={"place": "Oban"})))
    assert out["capability_context_data"]["WIND"]["w"] == {"knots": 12, "place": "Oban"}
    wrong = await build_graph(registry).ainvoke(plan(step("w", made, parameters={"hours": "x"})))
    assert "WIND" not in wrong["capability_context_data"]
    plain = tool_capability(wind.func, provides="WIND")  # type: ignore[attr-defined]
    assert plain.capability_spec.description == "Read the wind of a place."


class Trip(CapabilityContext):
    place: str


class Answer(CapabilityContext):
    place: str
    sail: bool


class State(TypedDict, total=False):
    place: str
    sail: bool


@pytest.mark.parametrize("resume", [True, {"a": True}])
async def test_graph_capability(resume: Any) -> None:
    @capability_node
    async def trip() -> Trip:
        """Where to."""
        return Trip(place="Oban")

    def ask(state: State) -> State:
        return {"sail": interrupt({"sail to": state["place"]})}

    inner = StateGraph(State).add_sequence([("ask", ask)]).add_edge(START, "ask").compile()
    made = graph_capability(inner, input=Trip, output=Answer, name="decide")
    graph = build_graph([trip, made], checkpointer=InMemorySaver())
    given = plan(step("t", trip), step("a", made, inputs=[{"TRIP": "t"}]))
    out = await graph.ainvoke(given, CONFIG)
    assert out["__interrupt__"][0].value == {"sail to": "Oban"}
    out = await graph.ainvoke(Command(resume=resume), CONFIG)
    assert out["capability_context_data"]["ANSWER"]["a"] == {"place": "Oban", "sail": True}


async def test_agent_capability() -> None:
    def says(call: Any) -> Any:
        asks = AIMessage("", tool_calls=[{"name": "wind", "args": {"place": "Oban"}, "id": "1"}])
        return "Calm." if call.messages[-1].type == "tool" else asks

    async def loud(task: str) -> str:
        return task.upper()

    async def twice(task: str) -> str:
        return task * 2

    class Own:
        agent_id = "own"

        async def execute(self, task: str, context: Any = None) -> Any:
            return SimpleNamespace(output=None, success=False, error="out of fuel")

    model = ScriptedModel(responses=says)
    flow = DAGWorkflow(
        [WorkflowNode("a", loud), WorkflowNode("b", twice, inputs_map={"a": "task"})],
        [WorkflowEdge("a", "b")],
    )
    made = [
        agent_capability(create_agent(model, [wind]), name="graph"),
        agent_capability(ReActAgent(model, tools=[wind], agent_id="react")),
        agent_capability(flow, name="flow"),
        agent_capability(PipelineOrchestrator(agents=[loud, twice]), name="team"),
    ]
    steps = [step(one.capability_spec.name, one, task_objective="go ") for one in made]
    out = await build_graph(made, checkpointer=InMemorySaver()).ainvoke(plan(*steps), CONFIG)
    left = out["capability_context_data"]
    assert left["GRAPH_RESULT"]["graph"] == left["REACT_RESULT"]["react"] == {"output": "Calm."}
    assert left["TEAM_RESULT"]["team"] == {"output": "GO GO "}
    assert left["FLOW_RESULT"]["flow"]["output"]
    assert out["execution_outcome"]["status"] == "completed"
    failing = agent_capability(Own())
    out = await build_graph([failing]).ainvoke(plan(step("k", failing, task_objective="sail")))
    assert out["execution_step_results"]["k"]["success"] is False
    assert "out of fuel" in out["execution_step_results"]["k"]["error"]


async def test_as_tool() -> None:
    @capability_node(effect="once")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    found = as_tool(pay, services=bind([pay]))
    assert isinstance(found, BaseTool)
    assert await found.ainvoke({"amount": 3}) == "paid 3"
