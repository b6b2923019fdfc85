"""The facts of LangGraph that the design rests on, and that the design keeps to them."""

from __future__ import annotations

import asyncio
import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from capgraph import CapabilityContext, ErrorSeverity, Registry
from capgraph.base import (
    BaseInfrastructureNode,
    CapabilityError,
    capability_node,
    infrastructure_node,
)
from capgraph.configs.streaming import get_streamer, stream_writer
from capgraph.state import STATE_KEYS
from capgraph.telemetry import Status, emit
from capgraph.testing import with_faults
from tests.support import PATIENCE


class Reading(CapabilityContext):
    value: float


@capability_node
async def measure() -> Reading:
    """Measure."""
    return Reading(value=1)


class Tiny(TypedDict, total=False):
    known: int
    seen: bool


# --- an edge cannot write -------------------------------------------------------------------------


@pytest.mark.row("F1")
async def test_what_an_edge_writes_is_lost_so_no_edge_of_ours_writes(agent: Any, step: Any) -> None:
    def edge(state: Tiny) -> str:
        state["known"] = 99
        return END

    builder = StateGraph(Tiny)
    builder.add_node("n", lambda state: {"seen": True})
    builder.add_edge(START, "n")
    builder.add_conditional_edges("n", edge, [END])
    assert (await builder.compile().ainvoke({"known": 1}))["known"] == 1

    bench = agent(Reading, measure, plans=[[step("a", "measure")]])
    state: dict[str, Any] = {"messages": [], "control_has_error": True, "control_error_info": {}}
    for branches in bench.graph.builder.branches.values():
        for branch in branches.values():
            before = copy.deepcopy(state)
            await branch.path.ainvoke(state)
            assert state == before


# --- undeclared keys are dropped ------------------------------------------------------------------


@pytest.mark.row("F2")
async def test_undeclared_keys_are_dropped_so_ours_are_all_declared(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = StateGraph(Tiny)
    builder.add_node("n", lambda state: {"seen": True, "lost": 1})
    builder.add_edge(START, "n")
    assert "lost" not in await builder.compile().ainvoke({"known": 1})

    written: dict[str, set[str]] = {}

    def spy(cls: type[Any]) -> None:
        execute = cls.execute

        async def watched(state: Any, **kwargs: Any) -> Any:
            result = await execute(state, **kwargs)
            given = result.update if isinstance(result, Command) else result
            pairs = given if isinstance(given, list) else list((given or {}).items())
            written.setdefault(cls.name, set()).update(key for key, _ in pairs)
            return result

        monkeypatch.setattr(cls, "execute", staticmethod(watched))

    for spec in Registry().infrastructure.values():
        spy(spec.cls)

    @capability_node
    async def risky() -> Reading:
        """Ask first."""
        return Reading(value=2)

    risky.capability_spec  # noqa: B018  # type: ignore[attr-defined]
    asks = capability_node(type("Asks", (risky,), {"requires_approval": True}))
    replans = CapabilityError("new plan", severity=ErrorSeverity.REPLANNING)
    again = CapabilityError("choose again", severity=ErrorSeverity.RECLASSIFICATION)
    flaky = with_faults(measure, ConnectionError("x"), replans, again)
    bench = agent(
        Reading,
        flaky,
        asks,
        plans=[[step("a", "measure")], [step("a", "measure")], [step("r", "risky")]],
        limits={"max_planning_attempts": 9},
        checkpointer=InMemorySaver(),
    )
    out = await bench.ask()
    assert out["__interrupt__"]
    await bench.graph.ainvoke(Command(resume="approve"), bench.config())
    await agent(Reading, measure, plans=[[step("q", "clarify")]]).ask()
    await agent(
        Reading, with_faults(measure, forever=ValueError()), plans=[[step("a", "measure")]]
    ).ask()
    await agent(Reading, measure).ask("")
    assert set(written) == set(Registry().infrastructure), "a node was not reached by this test"
    for name, keys in written.items():
        assert keys <= STATE_KEYS, (name, keys - STATE_KEYS)


@pytest.mark.row("F2")
@pytest.mark.parametrize("form", ["mapping", "command", "pairs"])
async def test_a_node_that_returns_an_undeclared_key_is_told(form: str) -> None:
    given: Any = {"mapping": {"lost": 1}, "command": Command(update={"lost": 1})}.get(
        form, Command(update=[("lost", 1)])
    )

    class Loses(BaseInfrastructureNode):
        name = "loses"
        description = "Loses a key"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return given

    update = await infrastructure_node(Loses).langgraph_node({})  # type: ignore[attr-defined]
    assert "lost" in update["control_error_info"]["user_message"]


# --- bubble-ups are exceptions --------------------------------------------------------------------


@pytest.mark.row("F3")
async def test_interrupts_are_exceptions_so_they_are_let_through_by_type() -> None:
    assert issubclass(GraphInterrupt, GraphBubbleUp)
    assert issubclass(GraphBubbleUp, Exception)

    class Disguised(GraphBubbleUp):
        """Has none of the names that a comparison of names would look for."""

    class Signals(BaseInfrastructureNode):
        name = "signals"
        description = "Signals"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            raise Disguised

    with pytest.raises(Disguised):
        await infrastructure_node(Signals).langgraph_node({})  # type: ignore[attr-defined]
    with pytest.raises(Disguised):
        await with_faults(measure, forever=Disguised).langgraph_node({})  # type: ignore[attr-defined]


# --- helpers outside of a run ---------------------------------------------------------------------


@pytest.mark.row("F4")
def test_helpers_do_nothing_outside_of_a_run() -> None:
    from langgraph.config import get_stream_writer

    with pytest.raises((RuntimeError, KeyError)):
        get_stream_writer()
    assert stream_writer() is None
    emit(Status(message="nobody hears this"))
    get_streamer("framework", "router", None).status("nor this")


# --- only plain data in the state -----------------------------------------------------------------

PROGRAM = '''
import asyncio, json, sys
from capgraph import CapabilityContext, Registry, build_graph
from capgraph.base import CapabilityError, ErrorSeverity, capability_node
from capgraph.testing import with_faults

class Reading(CapabilityContext):
    value: float

@capability_node(examples=["Measure the beam"])
async def measure() -> Reading:
    """Measure the beam."""
    return Reading(value=1.5)

@capability_node(examples=["Report the beam"])
async def report(reading: Reading) -> Reading:
    """Report the beam."""
    return reading

class Planner:
    can_correct = False
    chooses_parameters = True
    writes_with_model = False
    async def plan(self, request):
        return {"steps": [{"context_key": "a", "capability": "measure"},
                          {"context_key": "b", "capability": "report",
                           "inputs": [{"READING": "a"}]}]}

class Selector:
    async def select(self, task, candidates, **_):
        from capgraph.selection import Selection
        return Selection(tuple(c.name for c in candidates))

async def turn(saver):
    registry = Registry()
    registry.register(Reading)
    registry.register(with_faults(measure, ConnectionError("x")))
    registry.register(with_faults(report, CapabilityError("y", severity=ErrorSeverity.REPLANNING)))
    graph = build_graph(registry, planner=Planner(), selector=Selector(), checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"messages": [("user", "Go")]}, config)
    again = (await graph.aget_state(config)).values
    assert out["execution_outcome"]["status"] == "completed", out["execution_outcome"]
    assert out == again, "the state is another one after it was read back"
    rest = {k: v for k, v in out.items() if k != "messages"}
    assert json.loads(json.dumps(rest)) == rest, "the state is not plain JSON"
    print("same")

async def main():
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    await turn(InMemorySaver())
    async with AsyncSqliteSaver.from_conn_string(sys.argv[1]) as saver:
        await turn(saver)

asyncio.run(main())
'''


@pytest.mark.row("F5")
def test_a_turn_survives_strict_msgpack_without_a_warning(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path / "threads.db")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert run.stdout == "same\n" * 2, run.stderr
    assert "msgpack" not in run.stderr.lower(), run.stderr
    assert "unregistered" not in run.stderr.lower(), run.stderr


# --- loops are bounded by us ----------------------------------------------------------------------


@pytest.mark.row("F6")
async def test_the_recursion_limit_is_never_what_stops_a_run(agent: Any, step: Any) -> None:
    for level in ErrorSeverity:
        if level is ErrorSeverity.FATAL:
            continue
        broken = with_faults(measure, forever=CapabilityError("no", severity=level))
        bench = agent(Reading, broken, plans=[[step("a", "measure")]])
        steps = 0
        async with asyncio.timeout(PATIENCE):
            async for _ in bench.graph.astream(
                {"messages": [("user", "x")]}, stream_mode="updates"
            ):
                steps += 1
        assert steps < 20, level


async def test_a_long_plan_needs_no_more_supersteps_than_a_short_one(agent: Any, step: Any) -> None:
    async def supersteps(count: int) -> int:
        plan = [step(f"s{n}", "measure") for n in range(count)]
        bench = agent(Reading, measure, plans=[plan])
        events = [
            e async for e in bench.graph.astream({"messages": [("user", "x")]}, stream_mode="debug")
        ]
        return max(event["step"] for event in events)

    assert await supersteps(1) == await supersteps(40)
