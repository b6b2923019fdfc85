"""The flows of gmf forge's document with their imports changed, and the promises of its rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import bind, capability_node
from capgraph.agents import (
    AgentResult,
    AgentStep,
    BaseAgent,
    BaseOrchestrator,
    Blackboard,
    ChainOfThoughtAgent,
    DebateOrchestrator,
    PipelineOrchestrator,
    ReActAgent,
    SupervisorOrchestrator,
    SwarmOrchestrator,
)
from capgraph.base.errors import ConfigurationError
from capgraph.behaviors import (
    AuditBehavior,
    BaseBehavior,
    BehaviorContext,
    CircuitBreakerBehavior,
    HumanApprovalRequired,
    HumanInLoopBehavior,
    PendingApproval,
    RateLimitBehavior,
    RetryBehavior,
)
from capgraph.configs.errors import UnknownOptionError
from capgraph.helpers.argument_validation import REPLACED_ARGUMENTS
from capgraph.selection import LLMRouter
from capgraph.stores import BaseStateStore, CheckpointManager, InMemoryStateStore
from capgraph.testing import ScriptedModel
from capgraph.workflows import (
    BaseWorkflow,
    DAGWorkflow,
    EventDrivenWorkflow,
    NodeResult,
    WorkflowEvent,
    WorkflowResult,
)


class Echo(BaseAgent):
    async def execute(self, task: str, context: Any = None) -> AgentResult:
        if task == "fail":
            raise ValueError("out of order")
        return AgentResult(task.upper())

    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        yield AgentStep("", "echo", observation=task.upper())


# --- State --------------------------------------------------------------------------------------


class OwnStore(BaseStateStore):
    """A store with the five methods of the document."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def get(self, key: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.values.get(key)

    async def set(self, key: str, value: Any, ttl: float | None = None) -> None:
        await asyncio.sleep(0)
        self.values[key] = value

    async def delete(self, key: str) -> None:
        self.values.pop(key, None)

    async def exists(self, key: str) -> bool:
        return key in self.values

    async def clear(self) -> None:  # type: ignore[override]
        self.values.clear()


@pytest.mark.row("G1", "G7")
async def test_own_store_works_with_blackboards() -> None:
    store = OwnStore()
    board, other = Blackboard(store, "one"), Blackboard(store, "two")
    writes = [b.write(str(n), n, author="gauge") for n in range(10) for b in (board, other)]
    await asyncio.gather(*writes, *(board.keys() for _ in range(5)))  # a reader removes nothing
    assert sorted(await board.keys()) == sorted(await other.keys()) == [str(n) for n in range(10)]
    store.values.pop("blackboard/one/3")  # expired
    await board.delete("4")
    assert sorted(await board.keys()) == ["0", "1", "2", "5", "6", "7", "8", "9"]
    await board.clear()
    assert await board.keys() == []
    assert await other.read("3") == 3


@pytest.mark.row("G1", "G6")
async def test_own_store_works_with_checkpoint_managers() -> None:
    manager = CheckpointManager(OwnStore())
    ids = await asyncio.gather(*(manager.save("pilot", {"n": n}, "flight 7") for n in range(5)))
    assert {c.checkpoint_id for c in await manager.list("pilot")} == set(ids)
    latest = await manager.load_latest_for_execution("flight 7")
    assert latest is not None
    await manager.delete(latest.checkpoint_id, "pilot")
    assert len(await manager.list_by_execution("flight 7")) == 4


# --- Behaviors ----------------------------------------------------------------------------------


@pytest.mark.row("G8")
async def test_before_hook_may_return_its_context() -> None:
    class Note(BaseBehavior):
        async def before_execute(self, context: BehaviorContext) -> BehaviorContext:
            context.metadata["seen"] = True
            return context

    assert (await Echo(behaviors=[Note()]).execute("hi")).output == "HI"


@pytest.mark.row("G8")
@pytest.mark.parametrize("is_copied", [True, False])
async def test_before_hook_that_replaces_the_task_is_refused(is_copied: bool) -> None:
    class Rewrite(BaseBehavior):
        async def before_execute(self, context: BehaviorContext) -> BehaviorContext:
            if is_copied:
                return replace(context, task="other")
            context.task = "other"
            return context

    with pytest.raises(ConfigurationError):
        await Echo(behaviors=[Rewrite()]).execute("hi")


@pytest.mark.row("G12")
async def test_caller_resumes_after_an_approval_elsewhere() -> None:
    decisions: dict[str, bool] = {}
    submitted: list[Any] = []

    async def submit_for_approval(context: BehaviorContext, result: Any) -> Any:
        if context.task in decisions:
            return decisions[context.task]
        submitted.append(result.output)
        return "ticket 7"

    agent = Echo(behaviors=[HumanInLoopBehavior(submit_callback=submit_for_approval)])
    with pytest.raises(PendingApproval) as pending:
        await agent.execute("hi")
    assert (pending.value.approval_id, pending.value.result.output) == ("ticket 7", "HI")
    decisions["hi"] = True
    assert (await agent.execute("hi")).output == "HI"
    decisions["hi"] = False
    with pytest.raises(HumanApprovalRequired):
        await agent.execute("hi")
    assert submitted == ["HI"]


@pytest.mark.row("G15")
async def test_audit_passes_values_to_a_logger_with_keyword_arguments() -> None:
    class Logger:
        def __init__(self) -> None:
            self.lines: list[tuple[str, dict[str, Any]]] = []

        def info(self, message: str, **values: Any) -> None:
            self.lines.append((message, values))

        error = info

    logger = Logger()
    agent = Echo(behaviors=[AuditBehavior(logger=logger)])
    assert (await agent.execute("hi")).success
    with pytest.raises(ValueError, match="out of order"):
        await agent.execute("fail")
    started, ended, _, failed = (values for _, values in logger.lines)
    assert (started["agent_id"], started["attempt"]) == (agent.agent_id, 1)
    assert ended["duration_ms"] >= 0
    assert "HI" in ended["output_preview"]
    assert "out of order" in failed["error"]
    assert all("task" not in values for _, values in logger.lines)


# --- Agents and teams ---------------------------------------------------------------------------


@pytest.mark.row("G18", "G19")
@pytest.mark.parametrize(
    ("agent_type", "argument"),
    [
        *(
            (kind, name)
            for kind in (Echo, ReActAgent)
            for name in (
                "llm_gateway",
                "temperature",
                "logger",
                "metrics",
                "performance_monitor",
                "tracer",
            )
        ),
        (SupervisorOrchestrator, "supervisor_gateway"),
        (SwarmOrchestrator, "coordinator_gateway"),
        *((kind, "logger") for kind in (DAGWorkflow, CircuitBreakerBehavior, RetryBehavior)),
        *((LLMRouter, name) for name in ("llm_gateway", "tracer")),
        *((kind, "tracer") for kind in (AuditBehavior, HumanInLoopBehavior, RateLimitBehavior)),
    ],
)
def test_replaced_argument_names_its_replacement(agent_type: Any, argument: str) -> None:
    with pytest.raises(UnknownOptionError) as refused:
        agent_type(**{argument: object()})
    assert refused.value.facts["argument"] == argument
    assert refused.value.fix == REPLACED_ARGUMENTS[argument]


@pytest.mark.row("G18")
def test_subclass_may_have_a_replaced_argument_of_its_own() -> None:
    class Warm(Echo):
        def __init__(self, temperature: float = 0.5, **options: Any) -> None:
            super().__init__(**options)
            self.temperature = temperature

    assert Warm(temperature=0.7).temperature == 0.7


@pytest.mark.row("G8", "G10")
@pytest.mark.parametrize("max_retries", [None, 0, 2])
async def test_only_a_retry_behavior_repeats_a_run(max_retries: int | None) -> None:
    runs: list[str] = []

    class Flaky(Echo):
        async def execute(self, task: str, context: Any = None) -> AgentResult:
            runs.append(task)
            raise ConnectionError("out of reach")

    retries = [] if max_retries is None else [RetryBehavior(max_retries, base_delay=0.001)]
    with pytest.raises(ConnectionError):
        await Flaky(behaviors=[BaseBehavior(), *retries]).execute("go")
    assert len(runs) == 1 + (max_retries or 0)


@pytest.mark.row("G18", "G19")
async def test_two_agents_of_one_class_have_ids_of_their_own() -> None:
    seen: list[str] = []

    class Watch(BaseBehavior):
        def before_execute(self, context: BehaviorContext) -> None:
            seen.append(context.agent_id)

    store = InMemoryStateStore()
    manager = CheckpointManager(store)
    agents = [Echo(behaviors=[Watch()], checkpoint_manager=manager) for _ in range(2)]
    for agent in agents:
        await agent.execute("hi")
        assert await manager.list(agent.agent_id)
    assert seen == [agent.agent_id for agent in agents]
    assert len(set(seen)) == 2
    assert Echo(agent_id="own").agent_id == "own"
    debate = DebateOrchestrator(agents, 1, ScriptedModel(responses=["Both."]))
    result = await debate.run("hi")
    assert list(result.agent_outputs) == ["Echo", "Echo#2"]  # names do not depend on other agents


@pytest.mark.row("G21")
async def test_an_agent_with_another_id_resumes_a_run() -> None:
    saver, orders = InMemorySaver(), list[str]()

    @capability_node(effect="once", requires_approval=True)
    async def order() -> str:
        """Place the order."""
        orders.append("placed")
        return "Ordered."

    def agent(*answers: Any) -> ReActAgent:
        return ReActAgent(
            ScriptedModel(responses=answers),
            tools=[order],
            behaviors=[HumanInLoopBehavior()],
            services=bind([order]),
            checkpoint_manager=saver,
        )

    call = AIMessage("", tool_calls=[{"name": "order", "args": {}, "id": "c"}])
    agents = [agent(call), agent(call), agent("It is ordered.")]
    assert len({one.agent_id for one in agents}) == 3
    result = await agents[0].execute("Order it.")
    for one in agents[1:]:
        (question,) = result.metadata["interrupts"]
        answer = {step["context_key"]: "approve" for step in question["steps"]}
        result = await one.resume_from(result.metadata["execution_id"], answer=answer)
    assert (result.output, orders) == ("It is ordered.", ["placed"])


@pytest.mark.row("G20")
async def test_step_limit_and_failing_tool_have_the_words_of_the_document() -> None:
    def read_level(tank: int) -> str:
        """Read the level of a tank."""
        raise ValueError("no such tank")

    call = AIMessage("", tool_calls=[{"name": "read_level", "args": {"tank": 3}, "id": "1"}])
    agent = ReActAgent(ScriptedModel(responses=[call]), tools=[read_level], max_steps=1)
    result = await agent.execute("How full is tank 3?")
    assert not result.success
    assert result.error == "Reached max_steps=1 without Final Answer"
    assert result.output == "Tool error: no such tank"


@pytest.mark.row("G18", "G35", "G32")
@pytest.mark.parametrize("base", [BaseAgent, BaseOrchestrator, BaseWorkflow])
def test_abstract_class_and_its_empty_subclass_cannot_be_created(base: type[Any]) -> None:
    for kind in (base, type("Empty", (base,), {})):
        with pytest.raises(ConfigurationError):
            kind()


@pytest.mark.row("G24")
def test_agent_without_tool_calls_refuses_tools() -> None:
    with pytest.raises(ConfigurationError):
        ChainOfThoughtAgent(ScriptedModel(responses=["4"]), tools=[len])


@pytest.mark.row("G38")
@pytest.mark.parametrize("debate_rounds", [0, 1, 2])
async def test_rounds_counts_debate_rounds(debate_rounds: int) -> None:
    model = ScriptedModel(responses=[{"answer": "Both."}])
    team = DebateOrchestrator([lambda task: "Yes.", lambda task: "No."], debate_rounds, model)
    result = await team.run("Is it so?")
    assert (result.rounds, len(result.subtask_outputs)) == (debate_rounds, 2 + 2 * debate_rounds)


# --- Workflows ----------------------------------------------------------------------------------


@pytest.mark.row("G34")
async def test_emit_names_the_way() -> None:
    with pytest.raises(ConfigurationError) as refused:
        EventDrivenWorkflow().emit(WorkflowEvent("query_received", {"q": "AI"}))
    assert refused.value.fix is not None


@pytest.mark.row("G32")
@pytest.mark.parametrize("success", [True, False])
async def test_own_workflow_with_run_works_alone_and_as_a_member(success: bool) -> None:
    class Shout(BaseWorkflow):
        async def run(self, initial_input: Any) -> WorkflowResult:  # type: ignore[override]
            text = initial_input["task"].upper()
            outputs = {"shout": NodeResult(text), "length": len(text)}
            return WorkflowResult(outputs, text, success=success, error=None if success else "no")

    assert (await Shout().run({"task": "hi"})).final_output == "HI"
    output = await Shout().compile().ainvoke({"task": "hi"})
    assert (output["output"], output["success"]) == ("HI", success)
    assert {name: item["output"] for name, item in output["outputs"].items()} == {
        "shout": "HI",
        "length": 2,
    }
    assert (await PipelineOrchestrator([Shout()]).run("hi")).success is success
