"""One task, solved in several ways: three tools, one that fails now and then, one that acts once.

The process of each way is killed by the machinery of :mod:`tests.faults.scene`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.types import Command

from capgraph import bind, build_graph
from capgraph.adapters import tool_capability
from capgraph.agents import PlanExecuteAgent, ReActAgent, SupervisorOrchestrator
from capgraph.behaviors import RetryBehavior
from capgraph.stores import open_saver
from capgraph.testing import ScriptedModel
from capgraph.workflows import DAGWorkflow, WorkflowEdge, WorkflowNode
from tests.faults import scene
from tests.support.agents import call, calls

TASK = "Measure the level, look up the price, and pay for what is missing."
AGAIN = RetryBehavior(max_retries=20, base_delay=0.01, exceptions_to_retry=(ConnectionError,))


async def level() -> int:
    """Measure the level."""
    scene.INSTANTS.pass_one()
    return 7


async def price(of: str) -> int:
    """Look up a price; the line is bad."""
    scene.append("asked_price", of)
    if len(scene.lines("asked_price")) % 2:
        raise ConnectionError("The line is bad.")
    return 3


async def pay(amount: int) -> str:
    """Pay."""
    scene.INSTANTS.pass_one()
    scene.append("once", f"paid {amount}")
    scene.INSTANTS.pass_one()
    return f"paid {amount}"


CAPABILITIES = [tool_capability(level), tool_capability(price), tool_capability(pay, effect="once")]


def said(asked: Any) -> Any:
    """Answer like a model that works on the task, by what it is shown and nothing else."""
    if asked.schema == "Subtasks":
        given = [("clerk", "Step 1: look"), ("payer", "Step 2: pay")]
        return {"subtasks": [{"agent": name, "subtask": text} for name, text in given]}
    if asked.schema == "Answer":
        return {"answer": "Paid 21."}
    task = next(m.text for m in asked.messages if m.type == "human")
    seen = [m for m in asked.messages if m.type == "tool"]
    if "JSON array" in task:
        return '["Measure the level and look up the price", "Pay"]'
    if "Step 1:" in task:
        return _looked(seen, "7 litres at 3")
    if "Step 2:" in task:
        return _paid(seen, "Paid 21.")
    if len(seen) < 2 or any(m.status == "error" for m in seen[-2:] if m.name != "pay"):
        return _looked(seen, "")
    return _paid([m for m in seen if m.name == "pay"], "Paid 21.")


def _looked(seen: list[Any], answer: str) -> AIMessage | str:
    good = {m.name for m in seen if m.status != "error"}
    wanted = [call("level", f"level{len(seen)}"), call("price", f"price{len(seen)}", of="oil")]
    left = [one for one in wanted if one["name"] not in good]
    return calls(*left) if left else answer


def _paid(seen: list[Any], answer: str) -> AIMessage | str:
    return answer if seen else calls(call("pay", "pay", amount=21))


def _agent(kind: Any) -> Callable[[Any], tuple[Any, Any]]:
    def solver(saver: Any) -> tuple[Any, Any]:
        services = bind(CAPABILITIES, behaviors=[AGAIN])
        agent = kind(ScriptedModel(responses=said), tools=[level, price, pay], services=services)
        return agent.compile(saver), {"task": TASK}

    return solver


def _plan(saver: Any) -> tuple[Any, Any]:
    steps = [
        {"context_key": "level", "capability": "level"},
        {"context_key": "price", "capability": "price", "parameters": {"of": "oil"}},
        {"context_key": "pay", "capability": "pay", "parameters": {"amount": 21}},
    ]
    graph = build_graph(CAPABILITIES, checkpointer=saver, behaviors=[AGAIN])
    return graph, {"messages": [("user", TASK)], "planning_execution_plan": {"steps": steps}}


def _dag(saver: Any) -> tuple[Any, Any]:
    look, ask, act = CAPABILITIES
    nodes = [
        WorkflowNode("level", look),
        WorkflowNode("price", ask, inputs_map={"of": "of"}),
        WorkflowNode("pay", act, inputs_map={"amount": "amount"}),
    ]
    edges = [WorkflowEdge("level", "pay"), WorkflowEdge("price", "pay")]
    services = bind(CAPABILITIES, behaviors=[AGAIN])
    graph = DAGWorkflow(nodes, edges, services=services).compile(saver)
    return graph, {"task": TASK, "inputs": {"of": "oil", "amount": 21}}


def _supervisor(saver: Any) -> tuple[Any, Any]:
    model, services = ScriptedModel(responses=said), bind(CAPABILITIES, behaviors=[AGAIN])
    members = {
        "clerk": ReActAgent(model, tools=[level, price], services=services),
        "payer": ReActAgent(model, tools=[pay], services=services),
    }
    return SupervisorOrchestrator(model, members, services=services).compile(saver), {"task": TASK}


SOLVERS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "react": _agent(ReActAgent),
    "plan_execute": _agent(PlanExecuteAgent),
    "dag": _dag,
    "supervisor": _supervisor,
    "plan": _plan,
}
"""Name to a function of the saver that gives a graph and what it is given first."""


def person(question: dict[str, Any]) -> dict[str, Any]:
    """Answer like somebody who looks at the outside world first."""
    answers: dict[str, Any] = {}
    for entry in question["steps"]:
        scene.append("asked", entry["context_key"])
        done = {"decision": "done", "outputs": {"PAY_RESULT": {"value": "paid 21"}}}
        answers[entry["context_key"]] = done if scene.lines("once") else {"decision": "rerun"}
    return answers


async def run(url: str, solver: str) -> None:
    """Bring a thread to its end from wherever it stands, and leave the result in the folder."""
    async with open_saver(url) as saver:
        scene.watch(saver)
        graph, first = SOLVERS[solver](saver)
        while True:
            state = await graph.aget_state(scene.CONFIG)
            if state.created_at is None:
                given: Any = first
            elif state.interrupts:
                # A question inside another graph stands there once for each of the two.
                asked = {i.id: i.value for i in state.interrupts}
                given = Command(resume={name: person(value) for name, value in asked.items()})
            elif state.tasks:
                given = None
            else:
                break
            await graph.ainvoke(given, scene.CONFIG)
    values = state.values
    answer = values["output"] if "output" in values else values["messages"][-1].content
    found = {"answer": answer, "success": values.get("success", True)}
    found["instants"] = scene.INSTANTS.passed
    (scene.FOLDER / "result.tmp").write_text(json.dumps(found))
    os.replace(scene.FOLDER / "result.tmp", scene.FOLDER / "result")
