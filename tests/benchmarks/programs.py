"""The same work, as capgraph does it and as one writes it by hand on bare LangGraph."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from capgraph import Registry, build_graph, capability_node
from capgraph.adapters import tool_capability
from capgraph.base import BaseCapability
from capgraph.configs.settings import load_settings


def noop_registry(count: int = 1) -> Registry:
    """A registry of capabilities that do nothing and give nothing."""
    registry = Registry()
    for number in range(count):
        registry.register(
            capability_node(
                type(
                    "Noop",
                    (BaseCapability,),
                    {
                        "name": f"noop_{number}",
                        "description": f"Does nothing, number {number}",
                        "execute": _nothing,
                    },
                )
            )
        )
    return registry


async def _nothing(self: BaseCapability) -> dict[str, Any]:
    return {}  # not static: a static execute(state) without inputs waits for the steps before it


def independent_plan(steps: int, capability: str = "noop_0") -> dict[str, Any]:
    """A plan whose steps need nothing of each other."""
    return {"steps": [step(f"s{number}", capability) for number in range(steps)]}


def step(key: str, capability: str, **fields: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, "task_objective": "work", **fields}


def chain_registry(payload: Any = None) -> Registry:
    """A capability that takes one value and gives the next."""
    registry = Registry()

    class Link(BaseCapability):
        name = "link"
        description = "Gives a value from a value"
        provides = ["VALUE"]
        requires = [("VALUE", "optional")]

        @staticmethod
        async def execute(state: Mapping[str, Any]) -> dict[str, Any]:
            return {"VALUE": {"data": payload}}

    registry.register(capability_node(Link))
    return registry


def chain_plan(steps: int) -> dict[str, Any]:
    """A plan in which each step needs the one before."""
    plan = [step("s0", "link", expected_output="VALUE")]
    plan += [
        step(f"s{n}", "link", expected_output="VALUE", inputs=[{"VALUE": f"s{n - 1}"}])
        for n in range(1, steps)
    ]
    return {"steps": plan}


async def run_capgraph(registry: Registry, plan: Any, saver: Any = None, thread: str = "1") -> Any:
    graph = build_graph(registry, checkpointer=saver, settings=load_settings())
    return await graph.ainvoke(
        {"messages": [("user", "work")], "planning_execution_plan": plan},
        {"configurable": {"thread_id": thread}},
        durability="sync" if saver else None,
    )


class Sums(BaseModel):
    """What is added."""

    a: int
    b: int = 1


def adapted() -> dict[str, Any]:
    """Name to a capability that adds: written as one, or made of a tool that does the same."""

    async def add(a: int, b: int = 1) -> dict[str, int]:
        """Add."""
        return {"sum": a + b}

    def add_in_thread(a: int, b: int = 1) -> dict[str, int]:
        """Add."""
        return {"sum": a + b}

    class Add(BaseCapability):
        name = "plain"
        description = "Add."
        provides = ("SUM",)
        Parameters = Sums

        async def execute(self) -> dict[str, Any]:
            return {"SUM": await add(self.parameters.a, self.parameters.b)}

    class AddInThread(Add):
        name = "plain_thread"

        def execute(self) -> dict[str, Any]:
            return {"SUM": add_in_thread(self.parameters.a, self.parameters.b)}

    schema = Sums.model_json_schema()
    made = StructuredTool(name="add", description="Add.", args_schema=schema, coroutine=add)
    return {
        "plain": capability_node(Add),
        "tool": tool_capability(add, provides="SUM", name="tool"),
        "schema": tool_capability(made, provides="SUM", name="schema"),
        "plain_thread": capability_node(AddInThread),
        "tool_thread": tool_capability(add_in_thread, provides="SUM", name="tool_thread"),
    }


def _merge(left: dict[str, Any] | None, right: dict[str, Any]) -> dict[str, Any]:
    return {**(left or {}), **right}


class HandState(TypedDict, total=False):
    plan: list[str]
    index: int
    results: Annotated[dict[str, Any], _merge]


def by_hand(payload: Any = None, saver: Any = None) -> Any:
    """The router-and-node loop that one writes by hand: a router, a node, a conditional edge."""

    async def router(state: HandState) -> dict[str, Any]:
        return {}

    async def work(state: HandState) -> dict[str, Any]:
        index = state.get("index", 0)
        return {"index": index + 1, "results": {state["plan"][index]: payload}}

    async def respond(state: HandState) -> dict[str, Any]:
        return {}

    def choose(state: HandState) -> str:
        return "work" if state.get("index", 0) < len(state["plan"]) else "respond"

    graph = StateGraph(HandState)
    graph.add_node("router", router)
    graph.add_node("work", work)
    graph.add_node("respond", respond)
    graph.add_edge(START, "router")
    graph.add_conditional_edges("router", choose, ["work", "respond"])
    graph.add_edge("work", "router")
    return graph.compile(checkpointer=saver)


async def run_by_hand(graph: Any, steps: int, saver: Any = None, thread: str = "1") -> Any:
    return await graph.ainvoke(
        {"plan": [f"s{number}" for number in range(steps)]},
        {"configurable": {"thread_id": thread}, "recursion_limit": 10 * steps + 100},
        durability="sync" if saver else None,
    )


def chat(saver: Any) -> Any:
    """A node that answers, on bare LangGraph."""

    async def respond(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "Done. " * 20)]}

    graph = StateGraph(MessagesState)
    graph.add_node("respond", respond)
    graph.add_edge(START, "respond")
    return graph.compile(checkpointer=saver)


def wait_registry(rows: Sequence[float] = ()) -> Registry:
    """Capabilities that take as long as their step says: with inputs, and without; and a list."""
    registry = Registry()

    class Start(BaseCapability):
        name = "start"
        description = "Takes a while"
        provides = ["VALUE"]

        async def execute(self) -> dict[str, Any]:
            await asyncio.sleep(self.parameters["seconds"])
            return {"VALUE": {"done": True}}

    class Wait(Start):
        name = "wait"
        requires = [("VALUE", "many")]

    class Batch(BaseCapability):
        name = "batch"
        description = "Gives a list"
        provides = ["ROWS"]

        async def execute(self) -> dict[str, Any]:
            return {"ROWS": {"rows": rows}}

    registry.register(capability_node(Start))
    registry.register(capability_node(Wait))
    registry.register(capability_node(Batch))
    return registry


def each_plan(capability: str) -> dict[str, Any]:
    """A plan that does one thing for each row of a list."""
    each = {"of": "batch.rows", "as": "row"}
    seconds = {"seconds": {"$from": "row"}}
    work = step("work", capability, for_each=each, parameters=seconds, expected_output="VALUE")
    return {"steps": [step("batch", "batch"), work]}


def random_plan(rng: random.Random, steps: int, mean: float) -> tuple[dict[str, Any], float]:
    """A random plan with log-normal durations (sigma 1), and the length of its critical path."""
    durations = [rng.lognormvariate(0, 1) for _ in range(steps)]
    scale = mean * steps / sum(durations)
    ends: list[float] = []
    planned = []
    for number in range(steps):
        seconds = durations[number] * scale
        suppliers = rng.sample(range(number), k=min(number, rng.choice([0, 1, 1, 2, 3])))
        ends.append(max((ends[n] for n in suppliers), default=0.0) + seconds)
        planned.append(
            step(
                f"s{number}",
                "wait" if suppliers else "start",
                expected_output="VALUE",
                parameters={"seconds": seconds},
                inputs=[{"VALUE": f"s{n}"} for n in sorted(suppliers)],
            )
        )
    return {"steps": planned}, max(ends)


def looping_agents(turns: int) -> dict[str, tuple[Any, Any]]:
    """Agents that call one tool so many times: each a graph, and what it is given."""
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from capgraph import bind
    from capgraph.agents import ReActAgent
    from capgraph.behaviors import BaseBehavior
    from capgraph.testing import ScriptedModel

    @tool
    async def advance(value: int) -> int:
        """Advance."""
        return value + 1

    def answer(call: Any) -> Any:
        done = sum(message.type == "tool" for message in call.messages)
        asked = {"name": "advance", "args": {"value": done}, "id": str(done), "type": "tool_call"}
        return str(done) if done >= turns else AIMessage("", tool_calls=[asked])

    def react(**options: Any) -> tuple[Any, Any]:
        model = ScriptedModel(responses=answer)
        agent = ReActAgent(model, tools=[advance], max_steps=turns + 1, **options)
        return agent.compile(), {"task": "Go."}

    bare = create_agent(ScriptedModel(responses=answer), [advance])
    return {
        "create_agent": (bare, {"messages": [("user", "Go.")]}),
        "ReActAgent": react(),
        "ReActAgent with a behavior": react(behaviors=[BaseBehavior()]),
        "ReActAgent with services": react(services=bind([])),
    }
