"""One plan over real servers: MCP by stdio and HTTP, an A2A agent, an agent, a graph that asks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from mcp import Client, StdioServerParameters

from capgraph import CapabilityContext, Registry, bind, build_graph, capability_node
from capgraph.adapters import (
    agent_capability,
    as_mcp_server,
    as_tool,
    graph_capability,
    mcp_capabilities,
    remote_capability,
)
from capgraph.testing import ScriptedModel
from tests.support import mcp_server, own_mcp_server
from tests.support.a2a_server import Agent, app
from tests.support.listening import on_loopback

SERVER = str(Path(mcp_server.__file__))


class Order(CapabilityContext):
    amount: int


class Price(CapabilityContext):
    payer: str


class State(TypedDict, total=False):
    amount: int
    payer: str


@capability_node
async def order() -> Order:
    """Make an order."""
    return Order(amount=3)


def asking() -> Any:
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"payer": interrupt(f"who pays {state['amount']}?")})
    return builder.add_edge(START, "ask").compile(name="pricing")


@asynccontextmanager
async def served(made: Any) -> AsyncIterator[str]:
    async with on_loopback(made) as url:
        yield url


def step(key: str, capability: str, task: str = "", /, **more: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, "task_objective": task, **more}


async def test_servers_agents_and_graphs_in_one_plan(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    greeter = Agent()
    ours = as_mcp_server(bind(own_mcp_server.capabilities(log)))
    helper = create_agent(ScriptedModel(responses=["The agent says hello."]), [], name="helper")
    plan = [
        step("o", "order"),
        step("w", "here_weather", parameters={"place": {"name": "Rome"}}),
        step("m", "many_add_199", parameters={"value": 1}),
        step("h", "here_hang"),
        step("x", "there_weather", parameters={"PLACE": {"name": {"$from": "w.place"}}}),
        step("a", "greeter", parameters={"message": "Rome"}),
        step("g", "helper", "Say hello."),
        step("p", "pricing", inputs=[{"ORDER": "o"}]),
        step("t", "here_put", parameters={"value": 7}),
    ]
    plan[3] |= {"optional": True, "timeout": 1}
    given = {"messages": [("user", "go")], "planning_execution_plan": {"steps": plan}}
    thread: Any = {"configurable": {"thread_id": "1"}}

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        a2a = await enter(served(lambda url: app(greeter, url)))
        http = await enter(served(lambda _: ours.streamable_http_app()))
        saver = await enter(AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")))

        async def graph() -> Any:
            """Build it as another process would."""
            mode = StdioServerParameters(command=sys.executable, args=[SERVER, "plain", str(log)])
            many = StdioServerParameters(command=sys.executable, args=[SERVER, "many", str(log)])
            here = await mcp_capabilities(mode, prefix="here")
            there = await mcp_capabilities(f"{http}/mcp", prefix="there")
            more = await mcp_capabilities(many, prefix="many")
            for tools in (here, there, more):
                await enter(tools)
            known = [
                *(*here, *there, *more, order, remote_capability(a2a, "greeter")),
                *(graph_capability(asking(), input=Order, output=Price), agent_capability(helper)),
            ]
            return build_graph(known, checkpointer=saver)

        out = await (await graph()).ainvoke(given, thread)
        asked = [one.value for one in out["__interrupt__"]]
        assert "who pays 3?" in asked
        assert "which day?" in [one["message"] for one in asked if isinstance(one, dict)]
        out = await (await graph()).ainvoke(Command(resume={"p": "Ada", "a": "Monday"}), thread)
    results, data = out["execution_step_results"], out["capability_context_data"]
    assert not results["h"]["success"]
    assert {key for key in results if results[key]["success"]} >= set("owmxagpt")
    assert data["MANY_ADD_199_RESULT"]["m"] == {"result": 200}
    assert data["THERE_WEATHER_RESULT"]["x"] == {"place": "Rome", "celsius": 21.5}
    assert data["GREETER_RESULT"]["a"]["output"] == "done: Monday"
    assert data["HELPER_RESULT"]["g"]["output"] == "The agent says hello."
    assert data["PRICE"]["p"] == {"payer": "Ada"}
    assert greeter.told == ["Rome", "Monday"]
    assert log.read_text().splitlines().count("put 7") == 1


@pytest.mark.row("G7")
async def test_what_a_stranger_calls(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert inspect.iscoroutinefunction(mcp_capabilities)
    server = StdioServerParameters(command=sys.executable, args=[SERVER, "plain", str(log)])
    found = await mcp_capabilities(server)
    assert isinstance(found, list)
    registry = Registry()
    for one in found:
        registry.register(one)
    effects = {one.capability_spec.name: one.capability_spec.effect for one in found}
    assert (effects["weather"], effects["put"], effects["pay"]) == ("none", "idempotent", "once")
    registry.register(remote_capability("http://127.0.0.1:9"))
    for thing in (registry, bind(own_mcp_server.capabilities(log))):
        async with Client(as_mcp_server(thing)) as client:
            assert (await client.list_tools()).tools
    assert isinstance(as_tool(order), BaseTool)
    graph = build_graph(registry, checkpointer=InMemorySaver())
    given = {"messages": [("user", "go")]}
    given["planning_execution_plan"] = {"steps": [step("b", "broken")]}  # type: ignore[assignment]
    out = await graph.ainvoke(given, {"configurable": {"thread_id": "1"}})
    assert "the valve is stuck" in out["execution_step_results"]["b"]["error"]
