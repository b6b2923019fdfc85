"""Behaviours that give something else, keep results, ask people and write down."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from capgraph import CapabilityContext, ErrorSeverity, bind, build_graph, capability_node
from capgraph.base.errors import CapabilityError, ConfigurationError
from capgraph.behaviors import (
    AuditBehavior,
    BaseBehavior,
    BehaviorContext,
    CacheBehavior,
    FallbackBehavior,
    HumanApprovalRequired,
    HumanInLoopBehavior,
    PendingApproval,
    RetryBehavior,
)
from capgraph.governance import QualityGate, QualityLevel
from capgraph.testing import FakeClock


class Level(CapabilityContext):
    litres: int


class Tank(BaseModel):
    tank: str = "a"


def reader(*results: Any, **declared: Any) -> Any:
    """Make a capability that gives or raises one after the other, the last one for ever."""
    calls: list[str] = []

    @capability_node(**declared)
    async def read(tank: str = "a") -> Level:
        """Read how full the tank is."""
        found = results[min(len(calls), len(results) - 1)]
        calls.append(tank)
        if isinstance(found, Exception):
            raise found
        return Level(litres=found)

    read.calls = calls  # type: ignore[attr-defined]
    return read


def plan(**parameters: Any) -> dict[str, Any]:
    step = {"context_key": "k", "capability": "read", "task_objective": "read it"}
    steps = [{**step, "parameters": parameters}] if parameters else [step]
    return {"messages": [("user", "read")], "planning_execution_plan": {"steps": steps}}


def graph_of(capability: Any, *behaviors: Any, **options: Any) -> Any:
    options.setdefault("clock", FakeClock())
    return build_graph([capability], behaviors=behaviors, checkpointer=InMemorySaver(), **options)


async def ask(graph: Any, thread: str = "t", user: str | None = None, **parameters: Any) -> Any:
    config = {"configurable": {"thread_id": thread, "user_id": user}}
    return await graph.ainvoke(plan(**parameters), config)


def record(out: Any) -> Any:
    return out["execution_step_results"]["k"]


def litres(out: Any) -> Any:
    return out["capability_context_data"]["LEVEL"]["k"]["litres"]


# --- fallback -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "default",
    [Level(litres=0), {"litres": 0}, lambda context, error: Level(litres=0)],
    ids=["context", "dictionary", "function"],
)
async def test_a_default_is_used_after_the_last_attempt(default: Any) -> None:
    tank = reader(RuntimeError("broken"))
    retry, fallback = RetryBehavior(max_retries=2), FallbackBehavior(default=default)
    for behaviors in ([retry, fallback], [fallback, retry]):
        tank.calls.clear()
        out = await ask(graph_of(tank, *behaviors))
        assert len(tank.calls) == 3
        assert (record(out)["success"], record(out)["source"], litres(out)) == (True, "fallback", 0)


async def test_a_default_function_may_let_the_failure_stand() -> None:
    told: list[Any] = []

    async def look(context: BehaviorContext, error: Exception) -> None:
        told.append((context.agent_id, str(error)))

    out = await ask(graph_of(reader(CapabilityError("broken")), FallbackBehavior(default=look)))
    assert not record(out)["success"]
    assert told == [("read", "broken")]


async def test_a_default_is_validated_like_the_capabilitys_result() -> None:
    broken = reader(CapabilityError("broken"))
    out = await ask(graph_of(broken, FallbackBehavior(default={"litres": "none"})))
    assert not record(out)["success"]


@pytest.mark.parametrize("behavior", [FallbackBehavior(default={"litres": 0}), CacheBehavior()])
async def test_an_effect_gets_no_default(behavior: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"read\.behaviors cannot wrap steps with"):
        graph_of(reader(1, effect="once", behaviors=[behavior]))
    # Given to the graph it is for the others.
    for effect in ("once", "idempotent"):
        tank = reader(CapabilityError("broken"), effect=effect)
        out = await ask(graph_of(tank, behavior))
        assert not record(out)["success"]
    paid = reader(5, effect="idempotent")
    graph = graph_of(paid, behavior)
    for thread in "ab":
        assert "source" not in record(await ask(graph, thread))
    assert len(paid.calls) == 2


@pytest.mark.parametrize(
    "wrong",
    [{}, {"default": None}, {"default": 1, "keep_messages": 2}, {"default": 1, "router": object()}],
)
def test_a_fallback_has_exactly_one_strategy(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="one of default"):
        FallbackBehavior(**wrong)


# --- cache --------------------------------------------------------------------------------


async def test_an_equal_step_uses_the_cached_result() -> None:
    tank = reader(1, 2, 3)
    graph = graph_of(tank, CacheBehavior())
    first, again = await ask(graph, "a", tank="x"), await ask(graph, "b", tank="x")
    assert "source" not in record(first)
    assert (litres(first), litres(again), record(again)["source"]) == (1, 1, "cache")
    other = await ask(graph, "c", tank="y")
    assert litres(other) == 2
    assert tank.calls == ["x", "y"]


async def test_cached_results_belong_to_a_user() -> None:
    tank = reader(1, 2, 3)
    graph = graph_of(tank, CacheBehavior())
    assert [litres(await ask(graph, f"{n}", user)) for n, user in enumerate("aba")] == [1, 2, 1]
    tank = reader(1, 2, 3)
    graph = graph_of(tank, CacheBehavior(shared=True))
    assert [litres(await ask(graph, f"{n}", user)) for n, user in enumerate("aba")] == [1, 1, 1]


async def test_failures_and_fallbacks_are_not_cached() -> None:
    tank = reader(CapabilityError("broken"), 2, 3)
    graph = graph_of(tank, CacheBehavior(), FallbackBehavior(default={"litres": 0}))
    assert [litres(await ask(graph, str(n))) for n in range(3)] == [0, 2, 2]


async def test_an_invalid_cached_result_is_replaced() -> None:
    class Picky:
        stage = "finalize"
        refused = False

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            found = await call_next(attempt)
            if self.refused and found.contexts["LEVEL"]["k"]["litres"] == 1:
                raise CapabilityError("not any more", severity=ErrorSeverity.RETRIABLE)
            return found

    tank, picky = reader(1, 2), Picky()
    graph = graph_of(tank, CacheBehavior(), picky)
    assert litres(await ask(graph, "a")) == 1
    picky.refused = True
    assert litres(await ask(graph, "b")) == 2
    assert litres(await ask(graph, "c")) == 2
    assert len(tank.calls) == 2


async def test_policies_apply_to_cached_results() -> None:
    from capgraph import Verdict

    class Closes:
        closed = False

        async def decide(self, step: Any, view: Any) -> Verdict:
            return Verdict("deny" if self.closed else "allow", problems=["It is closed."])

    policy = Closes()
    graph = graph_of(reader(1), CacheBehavior(), policies=policy)
    await ask(graph, "a")
    policy.closed = True
    assert "It is closed." in (await ask(graph, "b"))["messages"][-1].content


async def test_a_gate_receives_the_cached_result_unchanged() -> None:
    shown: list[Any] = []

    def check(result: Any) -> QualityLevel:
        shown.append(result)
        return QualityLevel.STRICT

    gate = QualityGate(QualityLevel.STANDARD, check=check)
    graph = graph_of(reader(1, gate=gate), CacheBehavior())
    await ask(graph, "a")
    assert record(await ask(graph, "b"))["source"] == "cache"
    assert shown == [Level(litres=1)] * 2


async def test_results_expire_and_are_evicted() -> None:
    clock, tank = FakeClock(), reader(*range(10))
    graph = graph_of(tank, CacheBehavior(seconds=60, max_entries=2), clock=clock)
    for tank_name in ("x", "y", "x", "z", "x", "y"):
        await ask(graph, f"{len(tank.calls)}{tank_name}", tank=tank_name)
    assert tank.calls == ["x", "y", "z", "y"]
    clock.advance(61)
    await ask(graph, "old", tank="x")
    assert tank.calls[-1] == "x"


async def test_cached_results_are_copied() -> None:
    class Changes(BaseBehavior):
        def after_execute(self, context: BehaviorContext, result: Any) -> Any:
            if isinstance(result, dict):
                result["litres"] = 99

    tank = reader(1)
    cache = CacheBehavior()
    await ask(graph_of(tank, cache), "a")
    await ask(graph_of(tank, cache, Changes()), "b")
    assert litres(await ask(graph_of(tank, cache), "c")) == 1


@pytest.mark.parametrize("wrong", [{"max_entries": 0}, {"seconds": 0}, {"seconds": float("nan")}])
def test_cache_limits_are_validated(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="both must be positive"):
        CacheBehavior(**wrong)


# --- people -------------------------------------------------------------------------------


@pytest.mark.row("G12")
async def test_without_a_callback_the_graph_interrupts_before_the_step() -> None:
    tank = reader(1)
    graph = graph_of(tank, HumanInLoopBehavior())
    out = await ask(graph)
    assert out["__interrupt__"]
    assert tank.calls == []
    out = await graph.ainvoke(Command(resume="yes"), {"configurable": {"thread_id": "t"}})
    assert (litres(out), tank.calls) == (1, ["a"])


async def test_a_capability_may_ask_for_approval_in_any_graph() -> None:
    tank = reader(1, behaviors=[HumanInLoopBehavior()])
    assert (await ask(graph_of(tank)))["__interrupt__"]

    from langgraph.graph import START, StateGraph

    from capgraph.state import AgentState

    services = bind([tank])
    builder = StateGraph(AgentState)
    builder.add_node("read", services.node(tank))
    builder.add_edge(START, "read")
    graph = builder.compile(checkpointer=InMemorySaver())
    out = await graph.ainvoke({}, {"configurable": {"thread_id": "t"}})
    assert out["__interrupt__"]
    assert tank.calls == []


@pytest.mark.row("G12")
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_review_callback_receives_the_result(kind: str) -> None:
    shown: list[Any] = []

    def review(context: BehaviorContext, result: Any) -> Any:
        shown.append((context.task, result))
        agreed = result.litres < 5
        return agreed if kind == "sync" else asyncio.sleep(0, agreed)

    assert record(await ask(graph_of(reader(1), HumanInLoopBehavior(review))))["success"]
    tank = reader(7)
    nothing: list[Any] = [RetryBehavior(exceptions_to_retry=(HumanApprovalRequired,))]
    nothing.append(FallbackBehavior(default={"litres": 0}))
    out = await ask(graph_of(tank, *nothing, HumanInLoopBehavior(review)))
    # It is neither tried again nor given something else.
    assert "rejected by a person" in record(out)["error"]
    assert (len(tank.calls), len(shown)) == (1, 2)
    assert shown[-1] == ("read it", Level(litres=7))


@pytest.mark.row("G12")
async def test_a_result_may_be_submitted_for_approval() -> None:
    caught: list[Exception] = []

    class Told(BaseBehavior):
        def on_error(self, context: BehaviorContext, error: Exception) -> None:
            caught.append(error)

    async def submit(context: BehaviorContext, result: Any) -> str:
        return "ticket-7"

    tank = reader(3)
    behaviors = [RetryBehavior(), HumanInLoopBehavior(submit_callback=submit), Told()]
    out = await ask(graph_of(tank, *behaviors))
    assert "ticket-7" in record(out)["error"]
    assert "LEVEL" not in out.get("capability_context_data", {})
    (error,) = caught
    assert isinstance(error, PendingApproval)
    assert (error.approval_id, error.task, error.result) == ("ticket-7", "read it", Level(litres=3))
    assert len(tank.calls) == 1


def test_at_most_one_callback_is_accepted() -> None:
    with pytest.raises(ValueError, match="one of"):
        HumanInLoopBehavior(lambda context, result: True, lambda context, result: "1")
    with pytest.raises(ValueError, match="submit_callback"):
        HumanInLoopBehavior(submit_callback="yes")  # type: ignore[arg-type]


def test_a_pending_approval_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(PendingApproval("7", "read", 3)))
    assert (error.approval_id, error.task, error.result) == ("7", "read", 3)


# --- audit --------------------------------------------------------------------------------


class Figures:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def increment(self, name: str, **labels: Any) -> None:
        self.seen.append((name, labels["agent_id"]))

    def histogram(self, name: str, value: float, **labels: Any) -> None:
        self.seen.append((name, value))


@pytest.mark.row("G15")
async def test_start_end_and_failure_are_logged(caplog: Any) -> None:
    ticks = iter([10.0, 12.5, 20.0, 21.0])
    figures = Figures()
    audit = AuditBehavior(metrics=figures, clock=lambda: next(ticks))
    secret = CapabilityError("key sk-1234567890abcdefghijklmnop is wrong")
    with caplog.at_level(logging.INFO, "capgraph.behavior.audit"):
        await ask(graph_of(reader(3), audit))
        await ask(graph_of(reader(secret), audit))
    lines = [r.getMessage() for r in caplog.records if r.name == "capgraph.behavior.audit"]
    assert [" ".join(line.split(", attempt 1 ")[1].split()[:4]) for line in lines] == [
        "started",
        "ended after 2500 ms:",
        "started",
        "failed after 1000 ms:",
    ]
    text = "\n".join(lines)
    assert "litres=3" in text
    assert "sk-1234567890" not in text
    assert "read it" not in text, "the task is what somebody wrote"
    assert ("behavior.audit.duration_ms", 2500) in figures.seen
    assert ("behavior.audit.errors", "read") in figures.seen


@pytest.mark.row("G15")
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 10**6))
def test_a_hundred_concurrent_runs_are_independent(seed: int) -> None:
    @capability_node
    async def read(tank: str = "a") -> Level:
        """Read how full the tank is."""
        await asyncio.sleep(0)
        if int(tank) % 3 == 0:
            raise CapabilityError("broken")
        return Level(litres=int(tank))

    audit = AuditBehavior(logger=logging.getLogger("quiet"))
    review = HumanInLoopBehavior(lambda context, result: True)
    fallback = FallbackBehavior(default=lambda context, error: Level(litres=-1))
    around = [audit, review, fallback, RetryBehavior(max_retries=1), CacheBehavior()]
    before = [dict(vars(item)) for item in around[:4]]

    async def everything() -> list[Any]:
        graph = graph_of(read, *around)
        runs = (ask(graph, str(n), tank=str(seed + n)) for n in range(100))
        return await asyncio.gather(*runs)

    for n, out in enumerate(asyncio.run(everything())):
        assert litres(out) == (-1 if (seed + n) % 3 == 0 else seed + n)
    assert [vars(item) for item in around[:4]] == before
