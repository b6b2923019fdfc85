"""Breakers and rate limits around the steps and model calls of whole graphs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import AskAgain, CapabilityContext, build_graph, capability_node
from capgraph.base.errors import ConfigurationError, PersistenceError
from capgraph.behaviors import (
    CircuitBreakerBehavior,
    RateLimitBehavior,
    RateLimiter,
    RetryBehavior,
)
from capgraph.configs.settings import load_settings
from capgraph.pipeline import Capacity
from capgraph.stores import open_saver
from capgraph.stores.sqlite import SqliteFile
from capgraph.telemetry import CircuitChanged, parse_event
from capgraph.testing import ScriptedModel
from tests.unit.behaviors.test_rate_limit import ManualClock, settle

READ = {"steps": [{"context_key": "k", "capability": "read", "task_objective": "read it"}]}


class Level(CapabilityContext):
    litres: int


class QuickClock(ManualClock):
    """A clock on which every wait is over at once."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


class Tank:
    """A gauge that is down until it is mended."""

    def __init__(self, error: Exception | None = None, **declared: Any) -> None:
        self.error, self.calls = error, 0

        @capability_node(examples=["How full is the tank?"], **declared)
        async def read() -> Level:
            """Read how full the tank is."""
            self.calls += 1
            if self.error is not None:
                raise self.error
            return Level(litres=7)

        self.capability = read


@capability_node(examples=["Estimate something"])
async def estimate() -> Level:
    """Estimate from the weather."""
    return Level(litres=3)


async def ask(graph: Any, plan: Any = None, **config: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"messages": [("user", "How full is the tank?")]}
    if plan is not None:
        given["planning_execution_plan"] = plan
    found: dict[str, Any] = await graph.ainvoke(given, {"configurable": config})
    return found


def said(out: dict[str, Any]) -> str:
    return str(out["messages"][-1].content)


@pytest.mark.row("G13", "G8")
@pytest.mark.parametrize("swapped", [False, True])
async def test_the_breaker_sees_every_failure_and_every_try_passes_it(swapped: bool) -> None:
    tank, clock = Tank(ConnectionError("down")), QuickClock()
    items = [
        RateLimitBehavior(calls_per_second=1, burst=1),
        CircuitBreakerBehavior(failure_threshold=2, recovery_timeout=60),
    ]
    graph = build_graph([tank.capability], behaviors=items[::-1] if swapped else items, clock=clock)
    out = await ask(graph, READ)
    assert tank.calls == 2  # the third try met the open breaker
    assert "'read' is unavailable until" in said(out)
    assert any(wait == pytest.approx(1, abs=0.9) for wait in clock.slept)


@pytest.mark.row("G13")
async def test_an_open_breaker_is_known_before_the_plan_and_told() -> None:
    tank, clock = Tank(RuntimeError("broken")), QuickClock()
    clock.seconds = 1_700_000_000
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=100)
    graph = build_graph([tank.capability], behaviors=[breaker], clock=clock)
    await ask(graph)
    assert tank.calls == 1
    out = await ask(graph)
    assert tank.calls == 1
    assert "'read' is unavailable until 2023-11-14 22:15:00 UTC" in said(out)
    assert out["execution_outcome"]["status"] != "completed"
    clock.seconds += 101
    tank.error = None
    assert (await ask(graph))["execution_outcome"]["status"] == "completed"
    assert tank.calls == 2


async def test_a_function_that_returns_seconds_is_a_graphs_clock() -> None:
    tank, seconds = Tank(RuntimeError("broken")), [0.0]
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=100)
    graph = build_graph([tank.capability], behaviors=[breaker], clock=lambda: seconds[0])
    await ask(graph)
    tank.error = None
    assert "is unavailable until" in said(await ask(graph))
    seconds[0] = 101
    assert (await ask(graph))["execution_outcome"]["status"] == "completed"
    with pytest.raises(ConfigurationError, match="12 is not a clock"):
        build_graph([tank.capability], clock=12)  # type: ignore[arg-type]


@pytest.mark.row("G13")
async def test_another_producer_of_the_type_takes_its_place() -> None:
    tank, clock = Tank(RuntimeError("broken")), QuickClock()
    tank_read = tank.capability
    breaker = CircuitBreakerBehavior(failure_threshold=1)
    graph = build_graph([tank_read, estimate], behaviors=[breaker], clock=clock)
    await ask(graph, READ)
    out = await ask(graph)
    assert [s["capability"] for s in out["planning_execution_plan"]["steps"]] == [
        "estimate",
        "respond",
    ]
    assert out["execution_outcome"]["status"] == "completed"


@pytest.mark.row("G13")
async def test_a_step_that_meets_it_is_replanned_once() -> None:
    tank, clock = Tank(ConnectionError("down")), QuickClock()
    breaker = CircuitBreakerBehavior(failure_threshold=1)
    graph = build_graph([tank.capability, estimate], behaviors=[breaker], clock=clock)
    out = await ask(graph)  # the first try opens it, the second one meets it
    assert tank.calls == 1
    assert out["execution_outcome"]["status"] == "completed"
    assert out["capability_context_data"]["LEVEL"].popitem()[1] == {"litres": 3}


async def test_a_planner_that_will_not_hear_ends_the_turn() -> None:
    tank, clock = Tank(ConnectionError("down")), QuickClock()
    asked: list[dict[str, str]] = []

    class Stubborn:
        can_correct = True

        async def plan(self, request: Any) -> Any:
            asked.append(dict(request.unavailable_capabilities))
            return READ

    graph = build_graph(
        [tank.capability],
        behaviors=[CircuitBreakerBehavior(failure_threshold=1)],
        clock=clock,
        planner=Stubborn(),
    )
    out = await ask(graph)
    assert [list(known) for known in asked] == [[], ["read"]]
    assert tank.calls == 1
    assert "unavailable until" in said(out)


async def test_a_model_that_plans_is_told() -> None:
    clock = QuickClock()
    breaker = CircuitBreakerBehavior(failure_threshold=1, dependency="gauge")
    tank = Tank(RuntimeError("broken"), behaviors=[breaker])
    heard: list[str] = []

    class Listening(ScriptedModel):
        def _generate(self, messages: Any, *args: Any, **more: Any) -> Any:
            heard.append(str(messages[-1].content))
            return super()._generate(messages, *args, **more)

    model = Listening(responses=[{"steps": [], "answer": "Not now."}])
    await ask(build_graph([tank.capability], clock=clock), READ)
    graph = build_graph([tank.capability], model={"planning": model}, clock=clock)
    await ask(graph)
    assert "read: unavailable until" in heard[0]
    assert "gauge failed repeatedly" in heard[0]


@pytest.mark.row("G13")
@pytest.mark.parametrize(
    "error", [AskAgain("Which tank?"), ValueError("no"), KeyError("mine")], ids=repr
)
async def test_only_failures_of_the_dependency_count(error: Exception) -> None:
    tank, clock = Tank(error), QuickClock()
    breaker = CircuitBreakerBehavior(failure_threshold=1)
    graph = build_graph([tank.capability], behaviors=[breaker], clock=clock)
    await ask(graph, READ)
    known = await graph.services.runner.unavailable_capabilities()
    assert bool(known) is isinstance(error, ValueError)


async def test_an_effect_of_unknown_end_is_a_failure_of_the_dependency() -> None:
    clock = QuickClock()
    tank = Tank(ConnectionError("gone"), effect="once", on_unknown="skip")
    breaker = CircuitBreakerBehavior(failure_threshold=1)
    graph = build_graph(
        [tank.capability], behaviors=[breaker], clock=clock, checkpointer=InMemorySaver()
    )
    await ask(graph, READ, thread_id="1")
    assert list(await graph.services.runner.unavailable_capabilities()) == ["read"]


@pytest.mark.row("G13")
async def test_a_cancelled_probe_does_not_shut_the_capability_for_ever() -> None:
    tank, clock = Tank(RuntimeError("broken")), QuickClock()
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=10)
    graph = build_graph([tank.capability], behaviors=[breaker], clock=clock)
    await ask(graph, READ)
    clock.seconds += 10
    held = asyncio.Event()

    @capability_node(name="read")
    async def slow() -> Level:
        """Read how full the tank is."""
        held.set()
        await asyncio.Event().wait()
        return Level(litres=1)

    turn = asyncio.create_task(ask(build_graph([slow], behaviors=[breaker], clock=clock), READ))
    await held.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    tank.error = None
    assert (await ask(graph, READ))["execution_outcome"]["status"] == "completed"


async def test_changes_of_a_breaker_are_events() -> None:
    tank, clock = Tank(RuntimeError("broken")), QuickClock()
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=10)
    graph = build_graph([tank.capability], behaviors=[breaker], clock=clock)
    seen = []
    for error in (RuntimeError("broken"), None):
        tank.error = error
        given = {"messages": [("user", "x")], "planning_execution_plan": READ}
        async for event in graph.astream(given, stream_mode="custom"):
            found = parse_event(event)
            if isinstance(found, CircuitChanged):
                seen.append((found.name, found.state, found.retry_after))
        clock.seconds += 10
    assert seen == [("read", "open", 10), ("read", "half_open", None), ("read", "closed", None)]


@pytest.mark.row("G14")
async def test_a_wait_for_the_rate_holds_no_slot() -> None:
    clock = ManualClock()
    tank = Tank(behaviors=[RateLimitBehavior(calls_per_second=1, burst=1)])
    settings = load_settings()
    settings = settings.model_copy(
        update={"limits": settings.limits.model_copy(update={"max_parallel": 1})}
    )
    graph = build_graph(
        [tank.capability, estimate], clock=clock, settings=settings, capacity=Capacity()
    )
    await ask(graph, READ)
    waiting = asyncio.create_task(ask(graph, READ))
    while not clock.slept:
        await settle()
    other = {"steps": [{"context_key": "e", "capability": "estimate"}]}
    assert (await ask(graph, other))["execution_outcome"]["status"] == "completed"
    assert tank.calls == 1
    await clock.pass_by(1)
    await waiting
    assert tank.calls == 2


async def test_a_rate_that_is_not_waited_for_fails_at_once() -> None:
    clock = QuickClock()
    tank = Tank(behaviors=[RateLimitBehavior(calls_per_second=0.1, wait_on_limit=False)])
    graph = build_graph([tank.capability], clock=clock)
    assert (await ask(graph, READ))["execution_outcome"]["status"] == "completed"
    out = await ask(graph, READ)
    assert "'read' is exceeded: the next call is possible in 10 s" in said(out)
    assert (tank.calls, clock.slept) == (1, [])


async def test_a_capability_that_limits_itself_is_tried_again_when_there_is_room() -> None:
    clock = QuickClock()
    limiter = RateLimiter(rpm=6, burst=1, clock=clock)

    @capability_node
    async def read() -> Level:
        """Read how full the tank is."""
        await limiter.acquire("gauge", timeout=0)
        return Level(litres=7)

    graph = build_graph([read], clock=clock)
    for _ in range(2):
        assert (await ask(graph, READ))["execution_outcome"]["status"] == "completed"
    assert clock.slept == [pytest.approx(10)]


@pytest.mark.parametrize("swapped", [False, True])
async def test_retries_and_breaker_mean_the_same_in_any_order(swapped: bool) -> None:
    tank = Tank(RuntimeError("broken"))
    items = [RetryBehavior(max_retries=9), CircuitBreakerBehavior(failure_threshold=4)]
    graph = build_graph(
        [tank.capability], behaviors=items[::-1] if swapped else items, clock=QuickClock()
    )
    out = await ask(graph, READ)
    assert tank.calls == 4
    assert "'read' is unavailable until" in said(out)


async def test_one_breaker_of_graph_and_capability_stands_once() -> None:
    clock = QuickClock()
    breaker = CircuitBreakerBehavior(failure_threshold=2, recovery_timeout=10)
    tank = Tank(RuntimeError("broken"), behaviors=[breaker])
    graph = build_graph([tank.capability], behaviors=[breaker], clock=clock)
    await ask(graph, READ)
    assert not await graph.services.runner.unavailable_capabilities()
    await ask(graph, READ)
    assert await graph.services.runner.unavailable_capabilities()
    clock.seconds += 10
    tank.error = None
    assert (await ask(graph, READ))["execution_outcome"]["status"] == "completed"


async def test_a_model_that_is_down_is_left_alone_and_named() -> None:
    clock = QuickClock()
    calls: list[int] = []

    class Down(ScriptedModel):
        def _generate(self, messages: Any, *args: Any, **more: Any) -> Any:
            calls.append(1)
            raise ConnectionError("no route")

    breaker = CircuitBreakerBehavior(failure_threshold=2)
    model = {"planning": Down(responses=["never"])}
    graph = build_graph([Tank().capability], model=model, behaviors=[breaker], clock=clock)
    out = await ask(graph)
    assert len(calls) == 2
    assert "'model planning' is unavailable until" in said(out)
    assert len(clock.slept) == 2  # the node's tries ended at the open circuit


class Lost(SqliteFile):
    """A database that goes away while a call is under way."""

    gone = False

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        if self.gone:
            raise PersistenceError("The disk is gone.")
        return super().run_blocking(statement, values)


async def test_an_end_that_cannot_be_written_down_harms_no_step(tmp_path: Path) -> None:
    rows = Lost(str(tmp_path / "limits.db"))

    @capability_node(effect="once", behaviors=[CircuitBreakerBehavior(store=rows)])
    async def read() -> Level:
        """Read how full the tank is."""
        rows.gone = True
        return Level(litres=7)

    graph = build_graph([read], checkpointer=InMemorySaver())
    out = await ask(graph, READ, thread_id="1")
    assert out["execution_outcome"]["status"] == "completed"


async def test_settings_name_them() -> None:
    settings = load_settings().model_copy(
        update={
            "behaviors": [
                {"use": "rate_limit", "calls_per_second": 0.5, "wait_on_limit": False},
                {"use": "circuit_breaker", "failure_threshold": 1},
            ]
        }
    )
    tank = Tank(RuntimeError("broken"))
    graph = build_graph([tank.capability], settings=settings)
    await ask(graph, READ)
    assert list(await graph.services.runner.unavailable_capabilities()) == ["read"]


@pytest.mark.row("G14")
async def test_calls_are_counted_for_each_user() -> None:
    clock = QuickClock()
    tank = Tank(behaviors=[RateLimitBehavior(per=("capability", "user"))])
    graph = build_graph([tank.capability], clock=clock)
    for user in ("ann", "bob"):
        await ask(graph, READ, user_id=user)
    assert clock.slept == []
    await ask(graph, READ, user_id="ann")
    assert clock.slept == [pytest.approx(1)]


async def test_what_is_counted_for_a_model_leaves_steps_alone() -> None:
    clock = QuickClock()
    limited = RateLimitBehavior(calls_per_second=1, per="model")
    model = ScriptedModel(responses=["Seven.", "Seven."])
    graph = build_graph(
        [Tank().capability, estimate], model={"answer": model}, behaviors=[limited], clock=clock
    )
    both = {"steps": [{"context_key": "k", "capability": n} for n in ("read", "estimate")]}
    both["steps"][1]["context_key"] = "e"
    await ask(graph, both)
    assert clock.slept == []
    await ask(graph, READ)
    assert clock.slept == [pytest.approx(1)]


@pytest.mark.row("T30")
async def test_tokens_of_model_calls_are_estimated_and_corrected() -> None:
    clock = QuickClock()
    limiter = RateLimiter(input_tpm=6000, output_tpm=600)
    answer = AIMessage(
        "Seven litres.",
        usage_metadata={"input_tokens": 6100, "output_tokens": 0, "total_tokens": 6100},
    )
    model = ScriptedModel(responses=[answer, answer])
    graph = build_graph(
        [Tank().capability],
        model={"answer": model},
        behaviors=[RateLimitBehavior(limiter=limiter)],
        clock=clock,
    )
    await ask(graph, READ)
    assert clock.slept == []
    await ask(graph, READ)
    (wait,) = clock.slept
    assert 1 < wait < 60  # 100 tokens over, and those of the new prompt


@pytest.mark.row("T30")
async def test_a_call_without_a_token_estimate_waits_for_an_overdrawn_limit() -> None:
    clock = QuickClock()
    answer = AIMessage(
        "Seven litres.",
        usage_metadata={"input_tokens": 10, "output_tokens": 200, "total_tokens": 210},
    )
    behavior = RateLimitBehavior(limiter=RateLimiter(output_tpm=100))
    graph = build_graph(
        [Tank().capability],
        model={"answer": ScriptedModel(responses=[answer, answer])},
        behaviors=[behavior],
        clock=clock,
    )
    await ask(graph, READ)
    await ask(graph, READ)
    assert clock.slept == [pytest.approx(60, rel=0.05)]


@pytest.mark.row("G14")
async def test_graphs_share_limits_by_the_database_of_the_saver(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    clock = QuickClock()
    tank = Tank(RuntimeError("broken"))
    async with open_saver(url) as one, open_saver(url) as two:
        for n, saver in enumerate((one, two)):
            # Two objects, as in two processes.
            items = [
                CircuitBreakerBehavior(failure_threshold=1, store="saver"),
                RateLimitBehavior(store="saver"),
            ]
            graph = build_graph([tank.capability], behaviors=items, checkpointer=saver, clock=clock)
            out = await ask(graph, thread_id=str(n))
            if n:
                assert "unavailable until" in said(out)
    assert tank.calls == 1


async def test_limits_in_a_saver_that_is_no_database_are_refused() -> None:
    tank = Tank(behaviors=[RateLimitBehavior(store="saver")])
    graph = build_graph([tank.capability], checkpointer=InMemorySaver())
    out = await ask(graph, READ, thread_id="1")
    assert "the run has no saver" in said(out)
    assert tank.calls == 0
