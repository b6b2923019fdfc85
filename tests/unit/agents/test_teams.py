"""Teams: who does what, side by side, what failed, and what a limit says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import bind, capability_node
from capgraph.agents import (
    AgentDiscoveryBehavior,
    AgentResult,
    BaseOrchestrator,
    DebateOrchestrator,
    OrchestratorResult,
    PipelineOrchestrator,
    ReActAgent,
    SupervisorOrchestrator,
    SwarmOrchestrator,
    handoff,
)
from capgraph.base.errors import ConfigurationError, LimitError
from capgraph.behaviors import BaseBehavior
from capgraph.governance import Budget
from capgraph.selection import RuleBasedRouter
from capgraph.testing import ScriptedModel
from capgraph.workflows import DAGWorkflow, WorkflowNode


class Worker:
    """An agent of somebody else."""

    def __init__(self, name: str, *outputs: str, fails: bool = False) -> None:
        self.agent_id, self.outputs, self.fails = name, list(outputs), fails
        self.calls: list[tuple[str, Any]] = []

    async def execute(self, task: str, context: Any = None) -> Any:
        self.calls.append((task, context))
        given = self.outputs[min(len(self.calls), len(self.outputs)) - 1] if self.outputs else task
        output = f"{self.agent_id}: {given}"
        error = "gave up" if self.fails else None
        return SimpleNamespace(output=output, success=not self.fails, error=error)


def scripted(*answers: Any) -> ScriptedModel:
    return ScriptedModel(responses=list(answers))


def plan(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"subtasks": [{"agent": agent, "subtask": subtask} for agent, subtask in pairs]}


# --- supervisor -------------------------------------------------------------------------------------


@pytest.mark.row("G36")
async def test_members_run_in_parallel_and_their_outputs_are_returned() -> None:
    both = asyncio.Barrier(2)

    async def meet(task: str) -> str:
        await asyncio.wait_for(both.wait(), 10)  # one after the other would wait for ever
        return task.upper()

    model = scripted(plan(("a", "one"), ("b", "two")), {"answer": "Done."})
    found = await SupervisorOrchestrator(model, {"a": meet, "b": meet}).run("Do it")
    assert (found.final_output, found.success, found.rounds) == ("Done.", True, 1)
    assert {name: one.output for name, one in found.agent_outputs.items()} == {
        "a": "ONE",
        "b": "TWO",
    }
    assert [(n, s, r.output) for n, s, r in found.subtask_outputs] == [
        ("a", "one", "ONE"),
        ("b", "two", "TWO"),
    ]
    assert found.metadata["execution_id"]
    assert '"ONE"' in model.calls[1].prompt


@pytest.mark.row("G36")
async def test_a_member_with_two_subtasks_has_two_outputs() -> None:
    model = scripted(plan(("a", "one"), ("a", "two")), {"answer": "Done."})
    found = await SupervisorOrchestrator(model, {"a": Worker("a")}).run("Do it")
    assert {name: one.output for name, one in found.agent_outputs.items()} == {
        "a": "a: one",
        "a#2": "a: two",
    }


@pytest.mark.row("G36")
@pytest.mark.parametrize(
    ("second", "told"),
    [("nobody", "unknown member 'nobody'; the members are a, b"), ("b", "b: gave up")],
)
async def test_partial_failure_is_not_a_success(second: str, told: str) -> None:
    model = scripted(plan(("a", "one"), (second, "two")), {"answer": "Half of it."})
    members = {"a": Worker("a"), "b": Worker("b", fails=True)}
    found = await SupervisorOrchestrator(model, members).run("Do it")
    assert (found.final_output, found.success) == ("Half of it.", False)
    assert told in str(found.error)
    assert found.agent_outputs["a"].output == "a: one"


async def test_no_answer_is_written_if_all_members_fail() -> None:
    model = scripted(plan(("b", "one")))
    found = await SupervisorOrchestrator(model, {"b": Worker("b", fails=True)}).run("Do it")
    assert (found.final_output, found.success) == ("", False)
    assert len(model.calls) == 1


async def test_a_router_chooses_the_members() -> None:
    router = RuleBasedRouter([(lambda request: "bill" in request.input, "accounts")], "sales")
    model = scripted({"subtasks": [{"subtask": "the bill"}, {"subtask": "hello"}]}, {"answer": "x"})
    members = {"sales": Worker("sales"), "accounts": Worker("accounts")}
    found = await SupervisorOrchestrator(model, members, router=router).run("Do it")
    assert [name for name, _, _ in found.subtask_outputs] == ["accounts", "sales"]


@pytest.mark.parametrize(
    "written",
    [
        '[{"agent": "a", "subtask": "one"}]',
        'Here:\n```json\n["one"]\n```',
        '{"subtasks": [{"agent": "a", "subtask": "one"}]}',
    ],
)
async def test_alternative_list_formats_are_parsed(written: str) -> None:
    found = await SupervisorOrchestrator(scripted(written, "It is one."), {"a": Worker("a")}).run(
        "Do it"
    )
    assert [r.output for _, _, r in found.subtask_outputs] == ["a: one"]
    assert (found.final_output, found.success) == ("It is one.", True)


async def test_a_failed_model_call_is_a_failed_result() -> None:
    def away(_: Any) -> Any:
        raise ConnectionError("away")

    found = await SupervisorOrchestrator(ScriptedModel(responses=away), {"a": Worker("a")}).run("x")
    assert not found.success
    assert "away" in str(found.error)


@pytest.mark.row("G36")
async def test_member_outputs_are_returned_if_the_final_model_call_fails() -> None:
    def once(call: Any) -> Any:
        if "Results of the members" in call.prompt:
            raise ConnectionError("away")
        return plan(("a", "one"))

    found = await SupervisorOrchestrator(ScriptedModel(responses=once), {"a": Worker("a")}).run("x")
    assert (found.success, found.agent_outputs["a"].output) == (False, "a: one")
    assert "away" in str(found.error)


def test_invalid_models_and_members_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="None is not a chat model"):
        SupervisorOrchestrator(None, {"a": Worker("a")})
    with pytest.raises(ConfigurationError, match="None is not a chat model"):
        DebateOrchestrator([Worker("a")])
    with pytest.raises(ConfigurationError, match="no members"):
        SupervisorOrchestrator(scripted(), {}).compile()
    with pytest.raises(ConfigurationError, match="cannot perform a task"):
        SwarmOrchestrator(scripted(), {"a": 7}).compile()


# --- pipeline ---------------------------------------------------------------------------------------


@pytest.mark.row("G37")
async def test_the_output_of_each_is_the_task_of_the_next() -> None:
    a, b = Worker("a"), Worker("b")
    found = await PipelineOrchestrator([a, b]).run("x", {"user": "Ada"})
    assert (found.final_output, found.success, found.rounds) == ("b: a: x", True, 2)
    assert list(found.agent_outputs) == ["step_0_a", "step_1_b"]
    assert b.calls == [("a: x", {"user": "Ada", "original_task": "x", "step_0_output": "a: x"})]
    alone = Worker("alone")
    await PipelineOrchestrator([alone], pass_context=False).run("x", {"user": "Ada"})
    assert alone.calls == [("x", {"user": "Ada"})]


@pytest.mark.row("G37")
async def test_a_pipeline_ends_at_the_first_failure() -> None:
    last = Worker("last")
    row = PipelineOrchestrator([Worker("a"), Worker("bad", fails=True), last])
    found = await row.run("x")
    assert (found.success, found.error) == (False, "bad: gave up")
    assert found.final_output == "a: x"
    assert last.calls == []


# --- debate -----------------------------------------------------------------------------------------


@pytest.mark.row("G38")
async def test_positions_are_taken_in_parallel_and_revised() -> None:
    a, twin = Worker("a", "yes", "still yes"), Worker("a", "no", "well")
    model = scripted({"answer": "Perhaps."})
    found = await DebateOrchestrator([a, twin], 1, model).run("Is it?")
    assert (found.final_output, found.success, found.rounds) == ("Perhaps.", True, 1)
    assert {n: r.output for n, r in found.agent_outputs.items()} == {
        "a": "a: still yes",
        "a#2": "a: well",
    }
    assert "[a#2]\na: no" in a.calls[1][0]
    assert len(found.subtask_outputs) == 4


@pytest.mark.row("G38")
async def test_positions_do_not_wait_for_each_other() -> None:
    both = asyncio.Barrier(2)

    async def meet(task: str) -> str:
        await asyncio.wait_for(both.wait(), 10)
        return "a position"

    model = scripted({"answer": "Perhaps."})
    assert (await DebateOrchestrator([meet, meet], 1, model).run("Is it?")).success


@pytest.mark.row("G38")
async def test_a_failed_debater_is_not_a_success() -> None:
    model = scripted({"answer": "Yes."})
    found = await DebateOrchestrator([Worker("a"), Worker("b", fails=True)], 1, model).run("Is it?")
    assert (found.final_output, found.success) == ("Yes.", False)
    assert "b: gave up" in str(found.error)


# --- swarm ------------------------------------------------------------------------------------------


async def test_a_coordinator_continues_until_done() -> None:
    model = scripted(
        {"agent": "a", "task": "first"},
        "AGENT: b\nTASK: second",
        {"done": True, "answer": "All done."},
    )
    found = await SwarmOrchestrator(model, {"a": Worker("a"), "b": Worker("b")}).run("Do it")
    assert (found.final_output, found.success, found.rounds) == ("All done.", True, 2)
    assert list(found.agent_outputs) == ["round_1_a", "round_2_b"]
    assert "a: first" in model.calls[1].prompt


@pytest.mark.row("G39")
async def test_the_router_is_used_only_if_the_coordinator_names_no_member() -> None:
    model = scripted({"agent": "b", "task": "one"}, {"task": "two"}, {"done": True, "answer": "x"})
    router = RuleBasedRouter(fallback_target="a")
    team = SwarmOrchestrator(model, {"a": Worker("a"), "b": Worker("b")}, router=router)
    assert list((await team.run("Do it")).agent_outputs) == ["round_1_b", "round_2_a"]


@pytest.mark.row("G39")
async def test_reaching_max_rounds_is_not_a_success() -> None:
    model = ScriptedModel(responses=lambda _: {"agent": "a", "task": "again"})
    found = await SwarmOrchestrator(model, {"a": Worker("a")}, max_rounds=3).run("Do it")
    assert (found.success, found.rounds) == (False, 3)
    assert "max_rounds=3" in str(found.error)
    assert found.final_output == "a: again"


@pytest.mark.row("G39")
async def test_an_unknown_member_uses_no_round_and_is_limited() -> None:
    model = scripted({"agent": "x", "task": "t"}, {"agent": "a", "task": "t"}, "DONE: fine")
    found = await SwarmOrchestrator(model, {"a": Worker("a")}, max_rounds=1).run("Do it")
    assert (found.final_output, found.success, found.rounds) == ("fine", True, 1)
    assert "There is no member 'x'" in model.calls[1].prompt
    stubborn = ScriptedModel(responses=lambda _: {"agent": "x", "task": "t"})
    found = await SwarmOrchestrator(stubborn, {"a": Worker("a")}).run("Do it")
    assert not found.success
    assert "the unknown member 'x' (a)" in str(found.error)
    assert len(stubborn.calls) == 3


# --- what holds for all -----------------------------------------------------------------------------


@pytest.mark.row("G35")
async def test_finished_work_is_not_repeated_after_an_interrupt() -> None:
    quick = Worker("quick")

    def ask(task: str) -> str:
        return f"{task}: {interrupt('May I?')}"

    model = scripted(plan(("quick", "one"), ("ask", "two")), {"answer": "Done."})
    graph = SupervisorOrchestrator(model, {"quick": quick, "ask": ask}).compile(InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"task": "Do it"}, thread)
    assert [item.value for item in out["__interrupt__"]] == ["May I?"]
    out = await graph.ainvoke(Command(resume="yes"), thread)
    assert (out["output"], out["success"]) == ("Done.", True)
    assert len(quick.calls) == 1
    assert len(model.calls) == 2


@pytest.mark.row("G35")
async def test_behaviors_wrap_the_team_once() -> None:
    told = []

    class Note(BaseBehavior):
        async def before_execute(self, context: Any) -> None:
            told.append(context.task)

    team = PipelineOrchestrator([Worker("a"), Worker("b")], behaviors=[Note])
    assert (await team.run("x")).final_output == "b: a: x"
    assert told == ["x"]
    assert [step.action async for step in team.stream_execute("x")][:2] == ["a", "b"]


@pytest.mark.row("G35")
async def test_members_share_the_budget_of_the_team() -> None:
    @capability_node
    async def measure(tank: int = 1) -> float:
        """Measures the level of a tank."""
        return 3.0

    services = bind([measure], budget=Budget(steps=3))
    team = PipelineOrchestrator([measure] * 5, services=services)
    try:
        found = await team.run("x")
    except LimitError as exc:
        told = str(exc)
    else:
        assert not found.success
        told = str(found.error)
    assert "steps" in told


async def test_a_budget_covers_model_calls_of_members_and_single_agents() -> None:
    def worker(name: str) -> ReActAgent:
        return ReActAgent(ScriptedModel(responses=[name]), agent_id=name)

    members = [worker("a"), worker("b"), create_agent(ScriptedModel(responses=["c"]), [], name="c")]
    services = bind([], budget=Budget(requests=2))
    found = await PipelineOrchestrator(members, services=services).run("x")
    assert not found.success
    assert "requests is limited to 2" in str(found.error)
    assert [name for name, _, one in found.subtask_outputs if one.success] == ["a", "b"]
    alone = ReActAgent(ScriptedModel(responses=["x"]), services=bind([], budget=Budget(requests=0)))
    with pytest.raises(LimitError, match="requests is limited to 0"):
        await alone.execute("x")


async def test_teams_agents_and_workflows_are_members() -> None:
    inner = PipelineOrchestrator([Worker("a"), Worker("b")], agent_id="row")
    flow = DAGWorkflow([WorkflowNode("up", lambda task: task.upper())])
    found = await PipelineOrchestrator([inner, flow]).run("x")
    assert found.final_output == "B: A: X"


@pytest.mark.row("G35")
async def test_a_custom_team_needs_one_method() -> None:
    class Best(BaseOrchestrator):
        async def lead(self, task: str, context: Any, team_run: Any) -> Any:
            found = await team_run.delegate([(name, task) for name in self.members], context)
            return max((one.output for one in found), key=len)

    team = Best(members={"short": lambda task: task, "long": lambda task: task * 2})
    assert (await team.run("ab")).final_output == "abab"


@pytest.mark.row("G16")
async def test_members_are_replaced_if_only_the_instance_changed() -> None:
    found: dict[str, Any] = {"a": Worker("a")}
    model = ScriptedModel(
        responses=lambda call: plan(("a", "x")) if "Members" in call.prompt else {"answer": "x"}
    )
    team = SupervisorOrchestrator(model, {})
    discovery = AgentDiscoveryBehavior(lambda: _later((found, {"a": "Does it."})), 3600)
    with pytest.raises(RuntimeError, match="no team"):
        await discovery.refresh_once()
    await discovery.start(team)
    with pytest.raises(RuntimeError, match="already"):
        await discovery.start(team)
    assert (await team.run("x")).agent_outputs["a"].output == "a: x"
    found = {"a": Worker("new")}
    await discovery.refresh_once()
    assert (await team.run("x")).agent_outputs["a"].output == "new: x"
    found = {"a": 7}
    with pytest.raises(ConfigurationError):
        await discovery.refresh_once()
    assert (await team.run("x")).agent_outputs["a"].output == "new: x"
    await discovery.stop()
    with pytest.raises(ValueError, match="interval_seconds"):
        AgentDiscoveryBehavior(lambda: _later(({}, {})), 0)


@pytest.mark.row("G16")
async def test_a_running_run_keeps_its_members() -> None:
    began, go_on, looks = asyncio.Event(), asyncio.Event(), 0

    async def slow(task: str) -> str:
        began.set()
        await go_on.wait()
        return "the old one"

    async def look() -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ConnectionError("away")  # those that there are go on
        return ({"a": slow} if looks < 3 else {"a": Worker("new")}), {}

    model = ScriptedModel(
        responses=lambda call: plan(("a", "x")) if "Members" in call.prompt else {"answer": "x"}
    )
    team = SupervisorOrchestrator(model, {})
    discovery = AgentDiscoveryBehavior(look, 0.001)
    await discovery.start(team)
    run = asyncio.ensure_future(team.run("x"))
    await began.wait()
    while looks < 4:
        await asyncio.sleep(0.001)
    go_on.set()
    assert (await run).agent_outputs["a"].output == "the old one"
    assert (await team.run("x")).agent_outputs["a"].output == "new: x"
    await discovery.stop()


async def _later(value: Any) -> Any:
    return value


def test_a_handoff_is_a_command() -> None:
    assert handoff("support").goto == "support"
    assert handoff("support", parent=True).graph == Command.PARENT


@pytest.mark.row("G35")
async def test_a_team_that_overrides_only_run_is_complete() -> None:
    seen: list[str] = []

    class Noted(BaseBehavior):
        def before_execute(self, context: Any) -> None:
            seen.append(context.task)

    class Own(BaseOrchestrator):
        async def run(self, task: str, context: Any = None) -> OrchestratorResult:
            done = AgentResult(task * 2)
            return OrchestratorResult(task.upper(), {"a": done}, [("a", task, done)], rounds=1)

    team = Own(behaviors=[Noted()])
    found = await team.run("x")
    assert (found.final_output, found.rounds, found.agent_outputs["a"].output) == ("X", 1, "xx")
    assert found.metadata["execution_id"]
    assert (await team.execute("y")).output == "Y"
    assert (await team.compile().ainvoke({"task": "z"}))["output"] == "Z"
    assert seen == ["x", "y", "z"]


@pytest.mark.row("G36")
async def test_subtasks_written_as_text_need_one_model_call() -> None:
    def ask(task: str) -> str:
        return f"{task}: {interrupt('which one?')}"

    model = FakeListChatModel(responses=['[{"agent": "a", "task": "look"}]', "Done.", "again"])
    graph = SupervisorOrchestrator(model, {"a": ask}).compile(InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    assert "__interrupt__" in await graph.ainvoke({"task": "x"}, config)
    out = await graph.ainvoke(Command(resume="this"), config)
    assert (out["output"], out["steps"][0]["observation"]) == ("Done.", "look: this")


async def test_invalid_subtasks_are_refused() -> None:
    model = FakeListChatModel(responses=['[{"agent": "a"}, 7]'])
    found = await SupervisorOrchestrator(model, {"a": Worker("a")}).run("x")
    assert not found.success
    assert "subtasks of the model are invalid" in str(found.error)
