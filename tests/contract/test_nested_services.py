"""Services of a run reach every nested member: each tool call passes the same checks."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from capgraph import bind, build_graph
from capgraph.adapters import agent_capability, tool_capability
from capgraph.agents import (
    AgentResult,
    BaseAgent,
    BaseOrchestrator,
    DebateOrchestrator,
    OrchestratorResult,
    PipelineOrchestrator,
    PlanExecuteAgent,
    ReActAgent,
    ReflexionAgent,
    SupervisorOrchestrator,
    SwarmOrchestrator,
)
from capgraph.base.errors import StoppedError
from capgraph.behaviors import GuardrailBehavior, GuardrailRule
from capgraph.governance import (
    Budget,
    BudgetExceededError,
    PermissionMode,
    PermissionPolicy,
    RolePermissionConfig,
)
from capgraph.governance import stop as request_stop
from capgraph.telemetry import RingBufferSink
from capgraph.testing import ScriptedModel
from capgraph.workflows import (
    DAGWorkflow,
    EventDrivenWorkflow,
    StateMachineWorkflow,
    WorkflowNode,
)
from tests.support.agents import (
    PAID,
    add,
    call,
    calls,
    nobody_paid,  # noqa: F401 - a fixture
    pay,
)

pytestmark = pytest.mark.usefixtures("nobody_paid")


def guarded(**declared: Any) -> Any:
    return tool_capability(pay, **{"effect": "once", "requires_approval": True, **declared})


def clerk(**options: Any) -> ReActAgent:
    """Return an agent that pays Ann once, whatever it is asked."""
    model = ScriptedModel(responses=[calls(call("pay", "1", whom="Ann")), *["Done."] * 3])
    return ReActAgent(model, **{"tools": [pay], "agent_id": "clerk", **options})


class Asks(BaseAgent):
    """Hands its task to another agent by calling it."""

    async def execute(self, task: str, context: Any = None) -> AgentResult:
        return await self.tools[0].execute(task)


class Leads(BaseOrchestrator):
    async def lead(self, task: str, context: Any, team_run: Any) -> Any:
        [found] = await team_run.delegate([("clerk", task)], context)
        return found.output


class ByHand(BaseOrchestrator):
    async def run(self, task: str, context: Any = None) -> OrchestratorResult:
        found = await self.members["clerk"].execute(task)
        return OrchestratorResult(found.output, success=found.success)

    async def lead(self, task: str, context: Any, team_run: Any) -> Any:
        raise NotImplementedError


def supervised(member: Any, services: Any) -> Any:
    asked = {"subtasks": [{"agent": "clerk", "subtask": "Pay Ann."}]}
    model = ScriptedModel(responses=[asked, {"answer": "Done."}])
    return SupervisorOrchestrator(model, {"clerk": member}, services=services)


def swarm(member: Any, services: Any) -> Any:
    answers = [{"agent": "clerk", "task": "Pay Ann."}, {"done": True, "answer": "Done."}]
    model = ScriptedModel(responses=answers)
    return SwarmOrchestrator(model, {"clerk": member}, services=services)


def debate(member: Any, services: Any) -> Any:
    model = ScriptedModel(responses=[{"answer": "Done."}])
    return DebateOrchestrator([member], 0, model, services=services)


def reflexion(member: Any, services: Any) -> Any:
    return ReflexionAgent(member, model=ScriptedModel(responses=["YES"]), services=services)


def machine(member: Any, services: Any) -> Any:
    rules: Any = {"work": [(None, "END")]}
    return StateMachineWorkflow({"work": member}, rules, "work", {"END"}, services=services)


def events(member: Any, services: Any) -> Any:
    flow = EventDrivenWorkflow(terminal_event="done", services=services)
    flow.on("task", member, gives="done")
    return flow


def team_in_workflow(member: Any, services: Any) -> Any:
    team = PipelineOrchestrator([member])
    return DAGWorkflow([WorkflowNode("team", team)], services=services)


NESTINGS: dict[str, Callable[[Any, Any], Any]] = {
    "supervisor": supervised,
    "swarm": swarm,
    "pipeline": lambda member, services: PipelineOrchestrator([member], services=services),
    "debate": debate,
    "own team": lambda member, s: Leads(members={"clerk": member}, services=s),
    "team by hand": lambda member, s: ByHand(members={"clerk": member}, services=s),
    "dag": lambda member, s: DAGWorkflow([WorkflowNode("work", member)], services=s),
    "machine": machine,
    "events": events,
    "reflexion": reflexion,
    "own agent": lambda member, services: Asks(tools=[member], services=services),
    "team in a workflow": team_in_workflow,
}
USER: Any = {"configurable": {"thread_id": "1", "role": "payer"}}


def _runs(nesting: str, member: Any, capabilities: Any, **options: Any) -> tuple[Any, Any]:
    """Return a graph with the services outside and the agent inside, and its input."""
    if nesting == "step":
        cap = agent_capability(member, name="helper")
        graph = build_graph([cap, *capabilities], checkpointer=InMemorySaver(), **options)
        step = {"context_key": "h", "capability": "helper", "task_objective": "Pay Ann."}
        plan = {"steps": [step]}
        return graph, {"messages": [("user", "Pay.")], "planning_execution_plan": plan}
    services = bind(capabilities, **options)
    graph = NESTINGS[nesting](member, services).compile(InMemorySaver())
    return graph, {"task": "Pay Ann."}


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_a_nested_tool_asks_and_runs_once_after_approval(nesting: str) -> None:
    graph, given = _runs(nesting, clerk(), [guarded()])
    out = await graph.ainvoke(given, USER)
    assert not PAID
    [question] = out["__interrupt__"]
    [step] = question.value["steps"]
    assert (step["capability"], step["parameters"]) == ("pay", {"whom": "Ann"})
    out = await graph.ainvoke(Command(resume={step["context_key"]: "approve"}), USER)
    assert "__interrupt__" not in out
    assert PAID == {"Ann": 1}


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_a_nested_tool_that_is_denied_does_not_run(nesting: str) -> None:
    payer = RolePermissionConfig("payer", PermissionMode.FULL_ACCESS, denied_tools=["pay"])
    policy = PermissionPolicy([payer])
    graph, given = _runs(nesting, clerk(), [guarded()], permissions=policy)
    out = await graph.ainvoke(given, USER)
    assert "__interrupt__" not in out
    assert not PAID


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_permissions_hold_for_nested_tools_that_nobody_registered(nesting: str) -> None:
    payer = RolePermissionConfig("payer", PermissionMode.FULL_ACCESS, denied_tools=["pay"])
    graph, given = _runs(nesting, clerk(), [], permissions=PermissionPolicy([payer]))
    await graph.ainvoke(given, USER)
    assert not PAID


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_the_services_of_a_member_win(nesting: str) -> None:
    own = bind([guarded(requires_approval=False)])
    graph, given = _runs(nesting, clerk(services=own), [guarded()])
    out = await graph.ainvoke(given, USER)
    assert "__interrupt__" not in out
    assert PAID == {"Ann": 1}


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_a_nested_capability_that_asks_needs_no_services_of_its_own(nesting: str) -> None:
    if nesting in {"own agent", "team by hand", "step"}:
        pytest.skip("its services are not known when the agent is compiled")
    cap = guarded()
    graph, given = _runs(nesting, clerk(tools=[cap]), [cap])
    out = await graph.ainvoke(given, USER)
    [step] = out["__interrupt__"][0].value["steps"]
    await graph.ainvoke(Command(resume={step["context_key"]: "approve"}), USER)
    assert PAID == {"Ann": 1}


@pytest.mark.parametrize("nesting", ["supervisor", "pipeline", "dag", "machine", "events"])
async def test_a_tool_as_a_member_is_the_capability_of_its_name(nesting: str) -> None:
    member = tool(pay)
    member.name = "pay"
    graph, given = _runs(nesting, member, [guarded()])
    out = await graph.ainvoke(given, USER)
    assert out["__interrupt__"][0].value["steps"][0]["capability"] == "pay"
    assert not PAID


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_guards_budgets_and_events_reach_nested_tools(nesting: str) -> None:
    sink = RingBufferSink()
    guard = GuardrailBehavior(rules=[GuardrailRule("no_ann", blocked_words=["Ann"])])
    graph, given = _runs(nesting, clerk(), [], sinks=[sink])
    await graph.ainvoke(given, USER)
    assert PAID == {"Ann": 1}
    assert "pay" in {event.get("capability") for event in sink.events}

    PAID.clear()
    graph, given = _runs(nesting, clerk(), [], behaviors=[guard])
    await graph.ainvoke(given if nesting == "step" else {"task": "Pay."}, USER)
    assert not PAID


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_a_budget_bounds_the_model_calls_of_nested_members(nesting: str) -> None:
    agent = clerk()
    graph, given = _runs(nesting, agent, [], budget=Budget(requests=0))
    with warnings.catch_warnings():
        # LangChain calls its handlers in any order, and forgets the rest when one refuses.
        warnings.simplefilter("ignore", RuntimeWarning)
        with suppress(BudgetExceededError):  # some kinds of graph return the failure
            await graph.ainvoke(given, USER)
        gc.collect()
    assert not PAID
    assert not agent.model.calls


@pytest.mark.parametrize("nesting", [*NESTINGS, "step"])
async def test_a_stop_reaches_nested_tools(nesting: str) -> None:
    agent = clerk()
    saver = InMemorySaver()

    class Stops(ScriptedModel):
        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            await request_stop(saver, thread="1", reason="enough")
            return await super()._agenerate(*args, **options)

    agent.model = Stops(responses=[calls(call("pay", "1", whom="Ann")), *["Done."] * 3])
    graph, given = _runs(nesting, agent, [guarded(requires_approval=False)])
    graph.checkpointer = saver
    with suppress(StoppedError):  # some kinds of graph return the failure
        await graph.ainvoke(given, USER)
    assert not PAID
    assert agent.model.calls, "it was stopped after its first answer"


async def test_a_nested_tool_sees_the_state_of_its_agent() -> None:
    seen: list[Any] = []

    @tool
    def look(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look at the state."""
        seen.append(state)
        return "seen"

    model = ScriptedModel(responses=[calls(call("look", "1")), "Done."])
    team = PipelineOrchestrator([ReActAgent(model, tools=[look])], services=bind([]))
    assert (await team.run("Look.")).success
    assert seen[0]["task"] == "Look."
    assert seen[0]["messages"]


async def test_a_nested_tool_that_nobody_declared_is_not_retried() -> None:
    tries: list[str] = []

    def order(what: str) -> str:
        """Order."""
        tries.append(what)
        raise ConnectionError("lost")

    model = ScriptedModel(responses=[calls(call("order", "1", what="oil")), "It failed."])
    team = PipelineOrchestrator([ReActAgent(model, tools=[order])], services=bind([]))
    result = await team.run("Order oil.")
    assert result.final_output == "It failed."
    assert tries == ["oil"]


async def test_a_plan_execute_member_is_covered() -> None:
    answers = ['["Pay Ann"]', calls(call("pay", "1", whom="Ann")), "Done."]
    agent = PlanExecuteAgent(ScriptedModel(responses=answers), tools=[pay, add])
    graph, given = _runs("pipeline", agent, [guarded()])
    out = await graph.ainvoke(given, USER)
    assert out["__interrupt__"]
    assert not PAID
