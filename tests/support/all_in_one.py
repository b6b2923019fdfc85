"""One plan of everything that can be a step; its process is killed at a numbered instant.

Run as a program it forks a child for each line ``{"folder": …, "instant": …}`` on its input, and
writes the child's exit code.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from capgraph import CapabilityContext, Registry, bind, capability_node, open_graph
from capgraph.adapters import agent_capability, as_tool, graph_capability, tool_capability
from capgraph.testing import ScriptedModel
from capgraph.testing.models import ModelCall

KILLED = 9
EFFECTS = {
    "charge": ("charge 5", "RECEIPT", "charged 5"),
    "note": ("note rain", "NOTE", "noted rain"),
    "post": ("post parcel", "POST", "posted parcel"),
}
"""Capability to what it leaves in the world, and to the context that it gives."""
FOLDER = Path()
_at, _now = 0, 0


def instant() -> None:
    """Count an instant at which the process may be killed."""
    global _now
    _now += 1
    if _now == _at:
        os._exit(KILLED)


def act(line: str) -> None:
    """Do something that outlives the process."""
    instant()
    with (FOLDER / "world").open("a") as world:
        world.write(line + "\n")
        world.flush()
        os.fsync(world.fileno())
    instant()


def world() -> list[str]:
    path = FOLDER / "world"
    return path.read_text().splitlines() if path.exists() else []


class Order(CapabilityContext):
    amount: int


class Price(CapabilityContext):
    total: int
    payer: str


class State(TypedDict, total=False):
    amount: int
    total: int
    payer: str


@tool
async def read_order(customer: str) -> dict[str, Any]:
    """Read a customer's order."""
    act("read")
    return {"amount": len(customer)}


@tool
def charge(amount: int) -> str:
    """Charge an amount."""
    act(f"charge {amount}")
    return f"charged {amount}"


def _add(state: State) -> State:
    act("add")
    return {"total": state["amount"] * 2}


def _ask(state: State) -> State:
    return {"payer": interrupt(f"who pays {state['total']}?")}


@capability_node(effect="once")
async def note(text: str) -> str:
    """Note a text."""
    act(f"note {text}")
    return f"noted {text}"


@capability_node(effect="once", parameters_from=lambda task: {"what": "parcel"})
async def post(what: str) -> str:
    """Post something."""
    act(f"post {what}")
    return f"posted {what}"


def _says(call: ModelCall) -> Any:
    act("model")
    if isinstance(call.messages[-1], ToolMessage):
        return f"Done: {call.messages[-1].text}"
    return AIMessage("", tool_calls=[{"name": "note", "args": {"text": "rain"}, "id": "1"}])


def capabilities() -> list[Any]:
    pricing = StateGraph(State).add_sequence([("add", _add), ("ask", _ask)])
    graph = pricing.add_edge(START, "add").compile(name="pricing")
    clerk = create_agent(ScriptedModel(responses=_says), [as_tool(note, bind([note]))])
    return [
        tool_capability(read_order, provides=Order),
        tool_capability(charge, provides="RECEIPT", effect="once"),
        graph_capability(graph, input=Order, output=Price),
        agent_capability(clerk, name="clerk"),
        agent_capability(post, name="poster", services=bind([post])),
    ]


PLAN = {
    "steps": [
        {"context_key": "order", "capability": "read_order", "parameters": {"customer": "Hatsu"}},
        {"context_key": "price", "capability": "pricing", "inputs": [{"ORDER": "order"}]},
        {
            "context_key": "receipt",
            "capability": "charge",
            "parameters": {"amount": {"$from": "order.amount"}},
        },
        {"context_key": "note", "capability": "clerk", "task_objective": "Note the rain"},
        {"context_key": "post", "capability": "poster", "task_objective": "Post the parcel"},
    ]
}


def answers(questions: Any) -> dict[str, Any]:
    """Answer what is asked: of an effect of unknown outcome, by looking at the world."""
    given: dict[str, Any] = {}
    for question in questions:
        if isinstance(question.value, str):
            given[question.id] = "Ada"
            continue
        given[question.id] = {}
        for step in question.value["steps"]:
            line, kind, said = EFFECTS[step["capability"]]
            done = {"decision": "done", "outputs": {kind: {"value": said}}}
            happened = line in world()
            given[question.id][step["context_key"]] = done if happened else {"decision": "rerun"}
    return given


async def go() -> dict[str, Any]:
    config: Any = {"configurable": {"thread_id": "1"}}
    registry = Registry()
    for capability in capabilities():
        registry.register(capability)
    async with open_graph(registry, f"sqlite:///{FOLDER / 'threads.db'}") as graph:
        state = await graph.aget_state(config)
        if not state.values and not state.next:
            given: Any = {"messages": [("user", "go")], "planning_execution_plan": PLAN}
        else:
            given = Command(resume=answers(state.interrupts)) if state.interrupts else None
        while (out := await graph.ainvoke(given, config)).get("__interrupt__"):
            given = Command(resume=answers(out["__interrupt__"]))
        return dict(out)


def child(order: dict[str, Any]) -> None:
    global FOLDER, _at
    FOLDER, _at = Path(order["folder"]), order["instant"]
    for name in ("aput", "aput_writes"):
        _patch(name)
    out = asyncio.run(go())
    left = {"data": out["capability_context_data"], "status": out["execution_outcome"]["status"]}
    (FOLDER / "result.json").write_text(json.dumps({**left, "instants": _now}))


def _patch(name: str) -> None:
    method: Any = getattr(AsyncSqliteSaver, name)

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        instant()
        found = await method(self, *args, **kwargs)
        instant()
        return found

    setattr(AsyncSqliteSaver, name, counted)


def main() -> None:
    """Fork a child for each line."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(json.loads(line))
            except BaseException as exc:
                print(f"{type(exc).__name__}: {exc}", file=sys.stderr, flush=True)
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    from tests.support import all_in_one  # the same module as the test's

    all_in_one.main()
