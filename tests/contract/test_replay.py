"""A turn is replayed from its own records: nothing outside is touched, and what differs is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from capgraph import (
    BaseCapability,
    Registry,
    bind,
    build_graph,
    capability_node,
    infrastructure_node,
    signal,
)
from capgraph.base import (
    BaseInfrastructureNode,
    CapabilityError,
    ErrorSeverity,
    ExecutionPlan,
    FatalExecutionError,
    PersistenceError,
    ValidationError,
)
from capgraph.behaviors import BaseBehavior, CircuitBreakerBehavior, RateLimitBehavior
from capgraph.configs.settings import load_settings
from capgraph.evaluation import Recording, record, replay
from capgraph.governance import ApprovalPolicy, Budget, QualityGate, QualityLevel
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.testing import FakeClock, ScriptedModel
from tests.support.toys import Reading, Total

RAN: list[str] = []


@capability_node
async def measure() -> Reading:
    """Measure the value."""
    RAN.append("measure")
    return Reading(value=7)


@capability_node
async def add(readings: list[Reading]) -> Total:
    """Add values."""
    RAN.append("add")
    return Total(value=sum(reading.value for reading in readings))


class _Pay(BaseCapability):
    name = "pay"
    description = "Pay the total"
    requires = ["TOTAL"]
    provides = ["READING"]
    effect = "once"
    requires_approval: Any = True

    class Parameters(BaseModel):
        tip: int = 0

    async def execute(self) -> Reading:
        RAN.append("pay")
        return Reading(value=self.inputs["TOTAL"].value + self.parameters.tip)


pay = capability_node(type("Pay", (_Pay,), {}))
READ = {"context_key": "a", "capability": "measure"}
ADD = {"context_key": "b", "capability": "add", "inputs": [{"READING": "a"}]}
PAY = {"context_key": "c", "capability": "pay", "inputs": [{"TOTAL": "b"}]}


@pytest.fixture(params=["sqlite", "postgresql"])
async def saver(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Any]:
    url = f"sqlite:///{tmp_path}/t.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("server").database()
    RAN.clear()
    async with open_saver(url, encryption_key="0123456789abcdef") as opened:
        yield opened


def config(user: str = "ann", thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread, "user_id": user}}


def registry(*items: Any) -> Registry:
    made = Registry()
    for item in items:
        made.register(item)
    return made


class Plans:
    """Gives plans in order; an exception among them is raised."""

    can_correct = False
    chooses_parameters = True
    writes_with_model = False

    def __init__(self, *plans: Any) -> None:
        self.plans = list(plans)

    async def plan(self, request: Any) -> ExecutionPlan:
        given = self.plans.pop(0)
        if isinstance(given, Exception):
            raise given
        return ExecutionPlan(steps=given)


def said(text: str, *steps: Any) -> dict[str, Any]:
    return {
        "messages": [("user", text)],
        **({"planning_execution_plan": {"steps": list(steps)}} if steps else {}),
    }


async def same(saver: Any, *items: Any, turn: int | None = None, **options: Any) -> Recording:
    """Record a turn, replay it from its file's form, and see that nothing differs or ran."""
    RAN.clear()
    recording = await record(saver, "t", turn)
    again = Recording.model_validate_json(recording.model_dump_json())
    found = await replay(again, items, **options)
    assert found.differences == (), found.differences
    assert found.unrecorded == ()
    assert found.is_same
    assert found.replayed.cost.model_calls == 0
    assert RAN == []
    return recording


async def test_turns_of_a_thread_with_an_effect_and_an_approval(saver: Any) -> None:
    graph = build_graph(registry(measure, add, pay), checkpointer=saver)
    await graph.ainvoke(said("Pay", READ, ADD, PAY), config())
    waiting = await same(saver, measure, add, pay)
    assert waiting.end.status == "waiting"
    edited = {"c": {"decision": "edit", "parameters": {"tip": 2}}}
    await graph.ainvoke(Command(resume=edited), config("bob"))
    await graph.ainvoke(said("measure the value"), config())
    first = await same(saver, measure, add, pay, turn=1)
    assert first.end.results["c"]["gave"] == {"READING": {"value": 9.0}}
    assert first.end.plan[2]["parameters"] == {"tip": 2}
    second = await same(saver, measure, add, pay)
    assert (second.turn, second.request) == (2, "measure the value")
    assert list(second.before["capability_context_data"]["READING"]) == ["a", "c"]


async def test_two_people_and_a_rejection_that_was_planned_around(saver: Any) -> None:
    two = {"requires_approval": ApprovalPolicy(approvers=2, not_requester=True)}
    twice = capability_node(type("Twice", (_Pay,), two))
    planner = Plans([READ, ADD, PAY], [READ, ADD])
    graph = build_graph(registry(measure, add, twice), checkpointer=saver, planner=planner)
    await graph.ainvoke(said("measure, add and pay the total"), config())
    for user in ("ann", "bob"):
        await graph.ainvoke(Command(resume={"c": {"decision": "approve"}}), config(user))
    assert (await same(saver, measure, add, twice)).end.status == "waiting"
    no = {"c": {"decision": "reject", "reason": "too much"}}
    out = await graph.ainvoke(Command(resume=no), config("eve"))
    assert out["execution_outcome"]["status"] == "completed"
    found = await same(saver, measure, add, twice)
    assert [step["capability"] for step in found.end.plan[:-1]] == ["measure", "add"]


def failing(name: str, *failures: ErrorSeverity, **attributes: Any) -> Any:
    left = list(failures)

    async def execute(self: Any) -> Any:
        RAN.append(name)
        if left:
            raise CapabilityError(f"{name} broke", severity=left.pop(0))
        return Reading(value=1)

    base = {"name": name, "description": f"Does {name}", "provides": ["READING"]}
    return capability_node(
        type(name.title(), (BaseCapability,), {**base, "execute": execute, **attributes})
    )


@pytest.mark.parametrize(
    ("failures", "status"),
    [
        ([ErrorSeverity.RETRIABLE], "completed"),
        ([ErrorSeverity.RETRIABLE] * 9, "failed"),
        ([ErrorSeverity.CRITICAL], "failed"),
        ([ErrorSeverity.REPLANNING], "completed"),
        ([ErrorSeverity.RECLASSIFICATION], "failed"),
    ],
)
async def test_failures(saver: Any, failures: list[ErrorSeverity], status: str) -> None:
    quick = {"get_retry_policy": staticmethod(lambda: {"max_attempts": 2, "delay_seconds": 0.0})}
    odd = failing("odd", *failures, **quick)
    other = [{"context_key": "x", "capability": "odd"}]
    planner = Plans([READ, *other], [READ, {**other[0], "context_key": "y"}])
    graph = build_graph(registry(measure, odd), checkpointer=saver, planner=planner)
    out = await graph.ainvoke(said("measure the value and does odd"), config())
    assert out["execution_outcome"]["status"] == status
    assert (await same(saver, measure, odd)).end.status == status


async def test_a_planner_that_fails(saver: Any) -> None:
    planner = Plans(CapabilityError("No way", severity=ErrorSeverity.RETRIABLE), [READ])
    graph = build_graph(registry(measure), checkpointer=saver, planner=planner)
    await graph.ainvoke(said("measure the value"), config())
    assert (await same(saver, measure)).end.status == "completed"
    bad = Plans(CapabilityError("No way", severity=ErrorSeverity.CRITICAL))
    graph = build_graph(registry(measure), checkpointer=saver, planner=bad)
    await graph.ainvoke(said("measure the value again"), config())
    assert "No way" in (await same(saver, measure)).end.answer


async def test_what_stands_around_steps_is_not_done_twice(saver: Any) -> None:
    judged: list[Any] = []

    class Doubles(BaseBehavior):
        def after_execute(self, context: Any, result: Any) -> Any:
            RAN.append("hook")
            return Reading(value=result.value * 2)

    def judge(result: Any) -> QualityLevel:
        judged.append(result)
        return QualityLevel.STRICT

    gated = failing("gated", gate=QualityGate(QualityLevel.STANDARD, check=judge))
    steps = [READ, {"context_key": "g", "capability": "gated"}]
    options: Any = {"behaviors": [Doubles()]}
    graph = build_graph(registry(measure, gated), checkpointer=saver, **options)
    await graph.ainvoke(said("Go", *steps), config())
    asked = len(judged)
    found = await same(saver, measure, gated, **options)
    assert found.end.results["a"]["gave"] == {"READING": {"value": 14.0}}
    assert len(judged) == asked


async def test_nodes_of_ones_own_and_questions_of_a_body(saver: Any) -> None:
    @infrastructure_node(before="task_extraction")
    class Remember(BaseInfrastructureNode):
        name = "remember"
        description = "Looks up what is known"

        @staticmethod
        async def execute(state: Any) -> Any:
            RAN.append("remember")
            return {"capability_context_data": {"READING": {"known": {"value": 3.0}}}}

    @capability_node(examples=["ask me"])
    async def ask() -> Reading:
        """Ask the person for a number."""
        RAN.append("ask")
        return Reading(value=interrupt("Which?"))

    parts = (Reading, ask, Remember)
    graph = build_graph(registry(*parts), checkpointer=saver)
    await graph.ainvoke(said("ask me"), config())
    assert (await same(saver, *parts)).end.status == "waiting"
    await graph.ainvoke(Command(resume=5), config())
    found = await same(saver, *parts)
    assert found.end.results["reading"]["gave"] == {"READING": {"value": 5.0}}


def scripted(*steps: Any, answer: str = "Seven.") -> ScriptedModel:
    used = {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}
    plan = {"steps": [{**step, "task_objective": "x"} for step in steps]}

    def respond(call: Any) -> Any:
        if call.schema is None:
            return AIMessage(answer, usage_metadata=used)
        if "Task" in call.schema:
            return {
                "task": "t",
                "depends_on_chat_history": False,
                "depends_on_user_memory": False,
            }
        return plan

    return ScriptedModel(responses=respond)


async def test_with_a_model_the_difference_is_shown(saver: Any) -> None:
    model = scripted(READ)
    graph = build_graph(registry(measure, add), model=model, checkpointer=saver)
    await graph.ainvoke(said("measure the value"), config())
    calls = len(model.calls)
    assert calls
    recording = await same(saver, measure, add)
    assert recording.end.cost.model_calls == calls
    assert len(model.calls) == calls
    renamed = {**READ, "context_key": "r"}
    found = await replay(
        recording, registry(measure, add), model=scripted(renamed, answer="It is 7.")
    )
    assert RAN == []
    assert found.replayed.results["r"]["gave"] == {"READING": {"value": 7.0}}
    assert {one.part for one in found.differences} >= {"plan", "answer"}
    assert found.replayed.cost.model_calls > 0
    more = await replay(recording, registry(measure, add), model=scripted(READ, ADD))
    assert RAN == []
    assert "The recording has no record of the step 'b' (add)" in more.replayed.answer
    assert more.unrecorded == ("the step 'b' (add) with these values",)
    assert more.replayed.status != "completed"


async def test_from_a_step_on_and_never_an_effect(saver: Any) -> None:
    free = capability_node(type("Free", (_Pay,), {"requires_approval": False}))
    graph = build_graph(registry(measure, add, free), checkpointer=saver)
    await graph.ainvoke(said("Add", READ, ADD), config())
    RAN.clear()
    recording = await record(saver, "t")

    @capability_node(name="add")
    async def times(readings: list[Reading]) -> Total:
        """Add values."""
        RAN.append("times")
        return Total(value=70)

    found = await replay(recording, registry(measure, times, free), from_step="b")
    assert (RAN, found.ran) == (["times"], ("b",))
    [one, *_] = [one for one in found.differences if one.part == "result"]
    assert (one.name, one.replayed["gave"]) == ("b", {"TOTAL": {"value": 70.0}})
    await graph.ainvoke(said("Pay", READ, ADD, PAY), config())
    RAN.clear()
    with pytest.raises(ValidationError, match=r"'c' \(pay\) has the effect 'once'"):
        await replay(await record(saver, "t"), registry(measure, add, free), from_step="b")
    with pytest.raises(ValidationError, match="step 'z'"):
        await replay(recording, registry(measure, add, free), from_step="z")
    assert RAN == []


async def test_another_plan_from_a_step_on(saver: Any) -> None:
    free = capability_node(type("Free", (_Pay,), {"requires_approval": False}))
    graph = build_graph(registry(measure, add, free), checkpointer=saver)
    await graph.ainvoke(said("Add", READ, ADD), config())
    await graph.ainvoke(said("measure and add up"), config())
    recording = await record(saver, "t")
    RAN.clear()
    [kept, *_] = recording.end.plan
    [_, second, *_] = recording.end.plan
    model = scripted({**READ, "context_key": "m"}, {**ADD, "inputs": [{"READING": "m"}]}, PAY)
    known = registry(measure, add, free)
    found = await replay(recording, known, model=model, from_step=second["context_key"])
    assert (RAN, found.ran) == (["add"], ("b",))
    assert found.replayed.results["m"]["gave"] == {"READING": {"value": 7.0}}
    assert found.unrecorded == ("the step 'c' (pay) with these values",)
    assert kept["capability"] == "measure"


async def test_new_code_that_does_not_take_the_old_result(saver: Any) -> None:
    graph = build_graph(registry(measure, add), checkpointer=saver)
    await graph.ainvoke(said("Add", READ, ADD), config())
    recording = await record(saver, "t")

    class Sum(Total):
        CONTEXT_TYPE = "TOTAL"
        unit: str

    @capability_node(name="add")
    async def newer(readings: list[Reading]) -> Sum:
        """Add values."""
        raise AssertionError

    found = await replay(recording, registry(measure, newer))
    assert "unit" in found.replayed.answer
    gone = await replay(recording, registry(measure))
    assert "add" in gone.replayed.answer
    assert not gone.is_same


async def test_what_is_not_kept_is_said(saver: Any) -> None:
    with pytest.raises(PersistenceError, match="'t' does not exist"):
        await record(saver, "t")
    graph = build_graph(registry(measure), checkpointer=saver)
    await graph.ainvoke(said("measure the value"), config(), durability="exit")
    with pytest.raises(PersistenceError, match="lacks the first checkpoint"):
        await record(saver, "t")
    with pytest.raises(PersistenceError, match="turn 4"):
        await record(saver, "t", 4)


async def test_a_conversation_and_what_only_a_model_reads(saver: Any) -> None:
    model = ScriptedModel(
        responses=lambda call: {"steps": [], "answer": ""} if call.schema else "Hello, you."
    )
    graph = build_graph(registry(measure), model=model, checkpointer=saver)
    out = await graph.ainvoke(
        {"messages": [("system", "Be kind."), ("user", "Hello")]}, config(thread="t")
    )
    assert out["execution_outcome"]["status"] == "completed"
    found = await same(saver, measure)
    assert found.end.answer == "Hello, you."


async def test_an_agreement_is_as_old_as_it_was(saver: Any) -> None:
    soon = {"requires_approval": ApprovalPolicy(expires_seconds=60)}
    lapsing = capability_node(type("Lapsing", (_Pay,), soon))
    clock = FakeClock(start=time.time())
    graph = build_graph(registry(measure, add, lapsing), checkpointer=saver, clock=clock)
    await graph.ainvoke(said("Pay", READ, ADD, PAY), config())
    await graph.ainvoke(Command(resume={"c": {"decision": "approve"}}), config("bob"))
    recording = await same(saver, measure, add, lapsing)
    answered = [one for visit in recording.visits for one in visit.answers]
    assert [one.by for one in answered] == [{"user_id": "bob"}]
    answered[0].at += 3600
    late = await replay(recording, registry(measure, add, lapsing))
    assert late.replayed.status == "waiting"
    assert RAN == []


async def test_a_turn_that_went_on_from_an_old_checkpoint(saver: Any) -> None:
    graph = build_graph(registry(measure), checkpointer=saver)
    await graph.ainvoke(said("measure the value"), config())
    await graph.ainvoke(said("measure the value again"), config())
    states = [one async for one in graph.aget_state_history(config())]
    old = next(one for one in states if one.next == ("orchestrator",))
    await graph.ainvoke(None, old.config)  # another end of the second turn
    found = await same(saver, measure)
    assert (found.turn, found.end.status) == (2, "completed")
    assert (await same(saver, measure, turn=1)).turn == 1


async def test_limits_in_the_database_of_the_saver_are_those_of_the_replay(saver: Any) -> None:
    def limits() -> Any:
        return [RateLimitBehavior(store="saver"), CircuitBreakerBehavior(store="saver")]

    graph = build_graph(registry(measure), checkpointer=saver, behaviors=limits())
    await graph.ainvoke(said("measure the value"), config())
    await same(saver, measure, behaviors=limits())
    budget = Budget(steps=1)
    graph = build_graph([measure], checkpointer=saver, budget=budget)
    await graph.ainvoke(said("measure twice", READ, {**READ, "context_key": "b"}), config())
    assert "steps is limited to 1" in str((await same(saver, measure, budget=budget)).end.answer)


async def test_a_turn_that_broke_off(saver: Any) -> None:
    burns = failing("burns", ErrorSeverity.FATAL)
    steps = [READ, {"context_key": "x", "capability": "burns", "inputs": [{"READING": "a"}]}]
    graph = build_graph(registry(measure, burns), checkpointer=saver)
    with pytest.raises(FatalExecutionError):
        await graph.ainvoke(said("Go", *steps), config())
    RAN.clear()
    found = await replay(await record(saver, "t"), registry(measure, burns))
    assert found.is_same
    assert (found.replayed.status, list(found.replayed.results)) == ("unfinished", ["a"])
    assert found.unrecorded == ("the result of 'x', where the recording ends",)
    assert RAN == []


async def test_a_thread_of_another_graph_is_none_of_ours(saver: Any) -> None:
    builder = StateGraph(AgentState)
    builder.add_node("measure", bind([measure]).node(measure))
    builder.add_edge(START, "measure")
    await builder.compile(checkpointer=saver).ainvoke(said("Go"), config())
    with pytest.raises(PersistenceError, match="was not created by"):
        await record(saver, "t")


class Listener:
    """A sink that settings name."""

    heard: ClassVar[list[Any]] = []

    def emit(self, event: Any) -> None:
        self.heard.append(event)


async def test_what_settings_put_around_a_turn_hears_nothing_of_its_replay(saver: Any) -> None:
    more: Any = {"sinks": [{"use": f"{__name__}:Listener"}]}
    settings = load_settings(**more)
    graph = build_graph(registry(measure), checkpointer=saver, settings=settings)
    await graph.ainvoke(said("measure the value"), config())
    before = len(Listener.heard)
    assert before
    await same(saver, measure, settings=settings)
    assert len(Listener.heard) == before


@pytest.mark.parametrize(
    "plans", [[[]], [[{**READ, "look_again": True}, {**ADD, "context_key": "d"}]]]
)
async def test_conditions_lists_and_looks(saver: Any, plans: list[Any]) -> None:
    @capability_node
    async def rows() -> list[float]:
        """Give rows."""
        RAN.append("rows")
        return [1.0, 2.0]

    @capability_node
    async def double(n: float) -> Reading:
        """Double it."""
        RAN.append("double")
        return Reading(value=2 * n)

    each = {"of": "r", "as": "row"}
    twice = {"context_key": "w", "capability": "double", "for_each": each}
    idle = {
        "context_key": "i",
        "capability": "measure",
        "when": {"of": "a.value", "is": ">", "than": 9},
    }
    steps = [
        {"context_key": "r", "capability": "rows"},
        {**READ, "look_again": True},
        {**twice, "parameters": {"n": {"$from": "row"}}},
        idle,
        {"context_key": "s", "capability": "add", "inputs": [{"READING": "w"}]},
    ]
    items = (measure, add, rows, double)
    graph = build_graph(registry(*items), checkpointer=saver, planner=Plans(*plans))
    out = await graph.ainvoke(said("Work", *steps), config())
    assert out["execution_outcome"]["status"] == "completed"
    await same(saver, *items)


async def test_a_planner_that_looks_until_it_answers(saver: Any) -> None:
    read = {"capability": "measure"}
    added = {"steps": [{"capability": "add"}]}
    model = ScriptedModel(responses=[{"steps": [read]}, added, {"steps": [], "answer": "Seven."}])
    looking = load_settings(planning={"mode": "look"})
    graph = build_graph(registry(measure, add), model, saver, settings=looking)
    out = await graph.ainvoke(said("Work"), config())
    assert (out["execution_outcome"]["status"], len(model.calls)) == ("completed", 3)
    await same(saver, measure, add, settings=looking)


async def test_a_turn_that_waited_is_replayed_without_waiting(saver: Any) -> None:
    graph = build_graph([measure, add], checkpointer=saver)
    steps = [
        {**READ, "wait_for": "come"},
        {**READ, "context_key": "late", "wait_until": 0.2},
        {**ADD, "inputs": [{"READING": "a"}, {"READING": "late"}]},
    ]
    given = {"messages": [("user", "Go")], "planning_execution_plan": {"steps": steps}}
    config: Any = {"configurable": {"thread_id": "waited"}}
    out = await graph.ainvoke(given, config)
    assert out["execution_outcome"]["status"] == "waiting"
    early = await record(saver, "waited")
    known = Registry()
    for item in (measure, add):
        known.register(item)
    assert (await replay(early, known)).is_same
    await signal(graph, "waited", "come", {"from": "afar"})
    await asyncio.sleep(0.3)
    out = await graph.ainvoke(None, config)
    assert out["execution_outcome"]["status"] == "completed", out["execution_outcome"]
    taken = await record(saver, "waited")
    assert taken.signals == {"come": {"from": "afar"}}
    RAN.clear()
    found = await replay(taken, known)
    assert found.is_same, found.differences
    assert RAN == []
