"""LangGraph by hand: the model is asked for a plan and an answer; a loop of two nodes between."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from capgraph.testing import ModelCall, ScriptedModel
from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted


def _merge(left: dict[str, Any] | None, right: dict[str, Any]) -> dict[str, Any]:
    return {**(left or {}), **right}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: list[dict[str, Any]]
    index: int
    results: Annotated[dict[str, int], _merge]


async def advance(value: int) -> int:
    return value + 1


TOOLS = {TOOL: advance}


def script(work: Work) -> ScriptedModel:
    """Return a model that plans, then answers."""
    steps = [
        {"key": f"v{n}", "tool": TOOL, "input": f"v{n - 1}" if n > 1 else None}
        for n in range(1, work.steps + 1)
    ]

    def answer(call: ModelCall) -> str:
        planning = "Write a plan" in str(call.messages[0].content)
        text = json.dumps(steps) if planning else f"The last result is {work.steps}."
        if work.tally is not None:
            work.tally.note([counted(m.content) for m in call.messages], text)
        return text

    return ScriptedModel(responses=answer)


def graph_of(work: Work, saver: Any) -> Any:
    model = script(work)
    system = SystemMessage(
        f"Write a plan as a JSON list of steps with key, tool and input. Tools: {TOOL}: "
        f"{DESCRIPTION}"
    )

    async def plan(state: State) -> dict[str, Any]:
        said = await model.ainvoke([system, *state["messages"]])
        return {"plan": json.loads(str(said.content)), "index": 0}

    async def router(state: State) -> dict[str, Any]:
        return {}

    def choose(state: State) -> str:
        return "work" if state["index"] < len(state["plan"]) else "respond"

    async def do(state: State) -> dict[str, Any]:
        step = state["plan"][state["index"]]
        given = state["results"][step["input"]] if step["input"] else 0
        result = await TOOLS[step["tool"]](given)
        return {"index": state["index"] + 1, "results": {step["key"]: result}}

    async def respond(state: State) -> dict[str, Any]:
        last = state["results"][state["plan"][-1]["key"]]
        said = await model.ainvoke([HumanMessage(f"{state['messages'][0].content} Last: {last}")])
        return {"messages": [said]}

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("router", router)
    graph.add_node("work", do)
    graph.add_node("respond", respond)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "router")
    graph.add_conditional_edges("router", choose, ["work", "respond"])
    graph.add_edge("work", "router")
    graph.add_edge("respond", END)
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Compile the graph; keep threads in SQLite when there is a folder."""

    def runner(saver: Any) -> Run:
        graph = graph_of(work, saver)

        async def run() -> int:
            out = await graph.ainvoke(
                {"messages": [("user", work.request)]},
                {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 10_000},
                durability="sync" if saver else None,
            )
            return int(out["results"][f"v{work.steps}"])

        return run

    if folder is None:
        yield runner(None)
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.sqlite")) as saver:
            yield runner(saver)
