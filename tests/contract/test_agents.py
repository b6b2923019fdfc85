"""Each line of the contract of agents, called as somebody would who has only read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel

from capgraph import bind, build_graph
from capgraph.adapters import agent_capability, as_tool, tool_capability
from capgraph.agents import (
    AgentResult,
    AgentStep,
    BaseAgent,
    ChainOfThoughtAgent,
    PlanExecuteAgent,
    ReActAgent,
    ReflexionAgent,
)
from capgraph.base.errors import ModelError
from capgraph.behaviors import BaseBehavior, HumanInLoopBehavior
from capgraph.stores import CheckpointManager, InMemoryStateStore
from capgraph.testing import ScriptedModel
from tests.support.agents import SUM, Seen, add, call, calls
from tests.support.openai_server import OpenAIServer, give, openai_server, say


class Sum(BaseModel):
    value: int


def scripted(*answers: Any) -> ScriptedModel:
    return ScriptedModel(responses=list(answers))


@pytest.mark.row("G17")
def test_steps_and_results_are_plain_values() -> None:
    step = AgentStep("think", "add")
    assert (step.action_input, step.observation, step.metadata) == ({}, "", {})
    assert AgentStep("t", "a", {"x": 1}, "o", {"m": 1}).metadata == {"m": 1}
    result = AgentResult("out")
    assert (result.steps, result.metadata, result.success, result.error) == ([], {}, True, None)
    assert AgentResult("x", [step], {"a": 1}, False, "why").error == "why"


@pytest.mark.row("G18")
@pytest.mark.parametrize(
    ("make", "script"),
    [
        (lambda m: ReActAgent(m, tools=[add], max_steps=10, system_prompt="Be brief."), SUM),
        (lambda m: ReActAgent(m, tool_registry=[add]), SUM),
        (
            lambda m: PlanExecuteAgent(m, max_plan_steps=10, max_tool_calls_per_step=3),
            ["1. Go", "4"],
        ),
        (lambda m: ReflexionAgent(ChainOfThoughtAgent(m), max_reflections=2), ["4", "YES"]),
        (lambda m: ChainOfThoughtAgent(m), ["<thinking>hm</thinking>4"]),
    ],
)
async def test_every_agent_has_the_same_doors(make: Any, script: list[Any]) -> None:
    seen = Seen()
    agent: BaseAgent = make(scripted(*script, *script, *script))
    agent.behaviors = [seen]
    agent.checkpoint_manager = CheckpointManager(InMemorySaver())
    result = await agent.execute("2 + 2?", context=None)
    assert result.success
    assert "4" in result.output
    name = result.metadata["execution_id"]
    steps = [step async for step in agent.stream_execute("2 + 2?", context=None)]
    assert isinstance(steps[-1], AgentStep)
    assert "4" in steps[-1].observation
    again = await agent.resume_from(name, from_step=None)
    assert (again.output, again.metadata["execution_id"]) == (result.output, name)
    assert seen.hooks == ["before", "after"] * 3
    graph = agent.compile()
    assert isinstance(graph, CompiledStateGraph)
    out = await graph.ainvoke({"task": "2 + 2?"})
    assert {"output", "success", "error"} <= out.keys()
    assert "4" in out["output"]
    assert graph.get_graph().draw_mermaid()


@pytest.mark.row("G21")
@pytest.mark.parametrize("kept", ["saver", "store"])
async def test_a_resumed_run_does_nothing_again(kept: str, tmp_path: Any) -> None:
    ran: Counter[str] = Counter()

    @tool
    def look(what: str) -> str:
        """Look."""
        ran[what] += 1
        return what

    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "runs.db")) as saver:
        manager = CheckpointManager(saver if kept == "saver" else InMemoryStateStore())
        script = [calls(call("look", what="a")), RuntimeError("the process ends"), "done"]
        model, told = scripted(*script), Seen()
        agent = ReActAgent(model, tools=[look], checkpoint_manager=manager, behaviors=[told])
        with pytest.raises(Exception, match="the process ends"):
            await agent.execute("Look.")
        other = ReActAgent(model, tools=[look], checkpoint_manager=manager, behaviors=[Seen()])
        result = await other.resume_from(told.contexts[0].execution_id)
        assert (result.output, ran) == ("done", {"a": 1})
        assert [step.observation for step in result.steps] == ["a", "done"]
        with pytest.raises(ValueError):
            await other.resume_from("nothing of that name")


@dataclass
class Deps:
    unit: str


@pytest.mark.row("G23")
async def test_the_context_is_that_of_the_tools_of_every_agent() -> None:
    @tool
    def level(runtime: ToolRuntime[Deps]) -> str:
        """Read a level."""
        return f"7 {runtime.context.unit}"

    services = bind([])
    ask = calls(call("level"))
    for agent in (
        ReActAgent(scripted(ask, "ok"), tools=[level]),
        ReActAgent(scripted(ask, "ok"), tools=[level], services=services),
        PlanExecuteAgent(scripted("- Read", ask, "ok"), tools=[level], behaviors=[Seen()]),
        ReflexionAgent(ReActAgent(scripted(ask, "ok", "YES"), tools=[level])),
    ):
        result = await agent.execute("Read.", Deps("litres"))
        assert "7 litres" in str(result.steps), agent


async def test_the_output_is_of_the_form() -> None:
    agent = ReActAgent(scripted(calls(call("Sum", value=4))), tools=[], response_format=Sum)
    assert (await agent.execute("?")).output == Sum(value=4)
    agent = ReActAgent(scripted({"value": 4}), response_format=Sum, behaviors=[Seen()])
    assert (await agent.execute("?")).output == Sum(value=4)


@pytest.mark.row("G22")
async def test_limits_name_themselves() -> None:
    endless = ScriptedModel(responses=lambda asked: calls(call("add", a=len(asked.messages), b=1)))
    result = await ReActAgent(endless, tools=[add], max_steps=2).execute("?")
    assert (result.success, "max_steps=2" in str(result.error)) == (False, True)

    def planner(asked: Any) -> Any:
        return '["a", "b"]' if "JSON array" in asked.prompt else calls(call("add", a=1, b=1))

    model = ScriptedModel(responses=planner)
    result = await PlanExecuteAgent(model, tools=[add], max_tool_calls_per_step=2).execute("?")
    assert (result.success, "max_tool_calls_per_step=2" in str(result.error)) == (False, True)
    result = await PlanExecuteAgent(scripted('["a", "b"]'), max_plan_steps=1).execute("?")
    assert (result.success, "max_plan_steps=1" in str(result.error)) == (False, True)
    picky = ScriptedModel(responses=lambda a: "NO: bad" if "YES" in a.prompt else "four")
    result = await ReflexionAgent(ChainOfThoughtAgent(picky), max_reflections=1).execute("?")
    assert (result.success, "max_reflections=1" in str(result.error)) == (False, True)
    assert result.output == "four"


@pytest.mark.row("G18")
async def test_a_subclass_with_two_methods_is_complete() -> None:
    class Mine(BaseAgent):
        async def execute(self, task: str, context: Any = None) -> AgentResult:
            return AgentResult(f"<{task}>")

        async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
            yield AgentStep("", "say", {}, f"<{task}>")

    class Bang(BaseBehavior):
        async def after_execute(self, context: Any, result: Any) -> Any:
            return AgentResult(f"{result.output}!")

    agent = Mine(behaviors=[Bang()], agent_id="mine")
    assert (await agent.execute("hello")).output == "<hello>!"
    assert [s.observation async for s in agent.stream_execute("hello")][-1] == "<hello>!"
    step = {"context_key": "say", "capability": "mine", "task_objective": "hello"}
    graph = build_graph([agent_capability(agent)])
    out = await graph.ainvoke(
        {"messages": [("user", "x")], "planning_execution_plan": {"steps": [step]}}
    )
    assert out["capability_context_data"]["MINE_RESULT"]["say"] == {"output": "<hello>!"}
    assert (
        await ReflexionAgent(agent, model=scripted("YES")).execute("hello")
    ).output == "<hello>!"


# --- agents as steps of plans ------------------------------------------------------------------

PAID: Counter[str] = Counter()


def pay(whom: str) -> str:
    """Pay somebody."""
    PAID[whom] += 1
    return f"paid {whom}"


async def test_an_agent_is_a_step_and_its_question_the_plans() -> None:
    PAID.clear()
    services = bind([tool_capability(pay, effect="once", requires_approval=True)])
    clerk = ReActAgent(
        scripted(calls(call("pay", whom="Ann")), "Ann is paid."),
        tools=[pay],
        services=services,
        agent_id="clerk",
    )
    graph = build_graph([agent_capability(clerk)], checkpointer=InMemorySaver())
    step = {"context_key": "done", "capability": "clerk", "task_objective": "Pay Ann."}
    given = {"messages": [("user", "Pay Ann.")], "planning_execution_plan": {"steps": [step]}}
    thread: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke(given, thread)
    [asked] = out["__interrupt__"]
    [entry] = asked.value["steps"]
    assert entry["parameters"] == {"whom": "Ann"}
    assert PAID == {}
    out = await graph.ainvoke(Command(resume={entry["context_key"]: "approve"}), thread)
    assert out["capability_context_data"]["CLERK_RESULT"]["done"] == {"output": "Ann is paid."}
    assert PAID == {"Ann": 1}


async def test_an_agent_that_reached_its_limit_is_a_failed_step() -> None:
    endless = ScriptedModel(responses=lambda _: calls(call("add", a=1, b=1)))
    agent = ReActAgent(endless, tools=[add], max_steps=2, agent_id="adder")
    step = {"context_key": "sum", "capability": "adder", "task_objective": "Add."}
    given = {"messages": [("user", "Add.")], "planning_execution_plan": {"steps": [step]}}
    out = await build_graph([agent_capability(agent)]).ainvoke(given)
    assert out["execution_outcome"]["status"] == "failed"
    assert "max_steps=2" in str(out["control_error_info"])


@pytest.mark.row("G19")
async def test_a_capability_is_a_tool_of_an_agent() -> None:
    PAID.clear()
    clerk = tool_capability(pay, effect="once")
    services = bind([clerk])
    for tools in ([as_tool(clerk, services)], [clerk]):
        model = scripted(calls(call("pay", whom="Ann")), "ok")
        result = await ReActAgent(model, tools=tools, services=services).execute("Pay Ann.")
        assert result.steps[0].observation == "paid Ann"
    assert PAID == {"Ann": 2}
    new = tool_capability(pay, effect="once", name="settle")
    model = scripted(calls(call("settle", whom="Bob")), "ok")
    result = await ReActAgent(model, tools=[new], services=services).execute("Pay Bob.")
    assert (result.steps[0].observation, PAID["Bob"]) == ("paid Bob", 1)


async def test_the_answer_of_a_person_is_given_by_resume() -> None:
    agent = ReActAgent(
        scripted(*SUM),
        tools=[add],
        behaviors=[HumanInLoopBehavior()],
        checkpoint_manager=CheckpointManager(InMemorySaver()),
    )
    result = await agent.execute("2 + 2?")
    assert "waits for a person" in str(result.error)
    key = result.metadata["interrupts"][0]["steps"][0]["context_key"]
    result = await agent.resume_from(result.metadata["execution_id"], answer={key: "approve"})
    assert result.output == "It is 4."


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server() as running:
        yield running


@pytest.mark.row("G19")
async def test_a_model_behind_http_calls_tools(server: OpenAIServer) -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    server.on("add", give({"a": 2, "b": 2}), say("It is 4.", as_text=True))
    model = ChatOpenAI(model="m", base_url=server.url, api_key=SecretStr("sk-test-0123456789"))
    agent = ReActAgent(model, tools=[add], system_prompt="Be brief.")
    result = await agent.execute("2 + 2?")
    assert (result.output, result.steps[0].observation) == ("It is 4.", "4")
    first, second = server.asked("add")
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert second["messages"][-1] == {"role": "tool", "content": "4", "tool_call_id": "call_1"}
    server.on("add", give({"a": 1}), say("cut", as_text=True, finish="length"))
    with pytest.raises(ModelError, match="length limit"):
        await agent.execute("2 + 2?")
    server.on("text", say('["Think"]'), say("4"))
    assert (await PlanExecuteAgent(model).execute("2 + 2?")).output == "4"
