"""Whoever asks for a capability, it passes the same stages and keeps the same promises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import capgraph
from capgraph import (
    BaseCapability,
    CapabilityContext,
    Registry,
    build_graph,
    capability_node,
)
from capgraph.base import CapabilityError, CapgraphError, ErrorClassification, ErrorSeverity
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.testing import FakeClock, with_faults
from tests.support.doors import STAGES, Gauge, Watches, question, shown, soon, status, tried
from tests.support.one_door import own_node

SAY: Any = {"messages": [("user", "read the gauge")]}
CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Level(CapabilityContext):
    metres: float


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def read(log: list[str]) -> Any:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read the gauge"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            log.append("read")
            return Gauge(value=7)

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
            return ErrorClassification(severity=ErrorSeverity.RETRIABLE, user_message=str(exc))

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 1.0}

    return Read


@pytest.fixture
def pay(log: list[str]) -> Any:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay"
        provides = ["LEVEL"]
        effect = "once"
        requires_approval = True

        async def execute(self) -> Level:
            log.append("pay")
            return Level(metres=1.0)

    return Pay


def _own(nodes: dict[str, Any], **options: Any) -> Any:
    """Return a graph of one's own whose nodes stand side by side."""
    builder: Any = StateGraph(AgentState)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(**options)


async def test_the_door_of_a_graph_of_ones_own(read: Any) -> None:
    watches = Watches()
    services = capgraph.bind([read], behaviors=watches.everywhere())
    out = await _own({"read": services.node(read)}).ainvoke(SAY)
    assert watches.order("read") == list(STAGES)
    (stored,) = out["capability_context_data"]["GAUGE"].values()
    assert stored["value"] == 7


async def test_a_registry_is_bound_as_well(read: Any, log: list[str]) -> None:
    registry = Registry()
    registry.register(Gauge)
    registry.register(read)
    services = capgraph.bind(registry)
    await _own({"anything": services.node(read)}).ainvoke(SAY)
    assert log == ["read"]


async def test_what_was_not_bound_has_no_node(read: Any, pay: Any) -> None:
    with pytest.raises((CapgraphError, KeyError, ValueError), match="pay"):
        capgraph.bind([read]).node(pay)


async def test_the_door_of_goto(read: Any) -> None:
    watches, calls = Watches(), []

    @own_node("orchestrator")
    async def Orchestrator(state: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            return Command(goto="read")
        respond = {"context_key": "r", "capability": "respond", "task_objective": "Answer"}
        return {"planning_execution_plan": {"steps": [respond]}}

    registry = Registry()
    for item in (Gauge, read):
        registry.register(item)
    registry.register(Orchestrator, override=True)
    await build_graph(registry, behaviors=watches.everywhere()).ainvoke(SAY)
    assert watches.order("read")[: len(STAGES)] == list(STAGES)


async def test_the_door_of_another_capability(agent: Any, step: Any, read: Any) -> None:
    watches = Watches()

    @capability_node
    async def outer() -> Level:
        """Read inside."""
        services = capgraph.bind([read], behaviors=watches.everywhere())
        await _own({"read": services.node(read)}).ainvoke(SAY)
        return Level(metres=1.0)

    out = await soon(agent(Gauge, Level, outer, plans=[[step("a", "outer")]]).ask())
    assert status(out) == "completed"
    assert watches.order("read") == list(STAGES)


# --- the same promises ---------------------------------------------------------------------


async def test_a_retriable_failure_is_tried_again_inside_the_node(read: Any) -> None:
    clock = FakeClock()
    flaky = with_faults(read, *[ConnectionError("busy")] * 2)
    services = capgraph.bind([flaky], clock=clock)
    out = await _own({"read": services.node(flaky)}).ainvoke(SAY)
    assert (flaky.faults.calls, len(clock.sleeps)) == (3, 2)
    assert out["capability_context_data"]["GAUGE"]


@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.may_block
async def test_a_person_is_asked_in_a_graph_of_ones_own(
    pay: Any, log: list[str], where: str, tmp_path: Any
) -> None:
    async def agreed(saver: Any) -> None:
        graph = _own({"pay": capgraph.bind([pay]).node(pay)}, checkpointer=saver)
        out = await graph.ainvoke(SAY, CONFIG)
        assert log == []
        assert "pay" in shown(out)
        out = await graph.ainvoke(Command(resume="approve"), CONFIG)
        assert log == ["pay"]
        assert not out.get("__interrupt__")
        assert out["capability_context_data"]["LEVEL"]

    if where == "memory":
        await agreed(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
            await agreed(saver)


async def test_a_person_may_refuse_in_a_graph_of_ones_own(pay: Any, log: list[str]) -> None:
    graph = _own({"pay": capgraph.bind([pay]).node(pay)}, checkpointer=InMemorySaver())
    await graph.ainvoke(SAY, CONFIG)
    try:
        out = await graph.ainvoke(Command(resume={"decision": "reject", "reason": "no"}), CONFIG)
        if out.get("__interrupt__"):  # answers are keyed by step
            (entry,) = question(out)["steps"]
            reject = {entry["context_key"]: {"decision": "reject", "reason": "no"}}
            await graph.ainvoke(Command(resume=reject), CONFIG)
    except CapgraphError:
        pass
    assert log == []


async def test_the_authors_own_interrupt_gets_its_own_answer(log: list[str]) -> None:
    """An approval before it is another question; their answers are not mixed up."""

    @capability_node
    class Ask(BaseCapability):
        name = "ask"
        description = "Ask back"
        provides = ["GAUGE"]
        requires_approval = True

        async def execute(self) -> Gauge:
            found = interrupt("how much?")
            log.append(f"got {found}")
            return Gauge(value=int(found))

    graph = _own({"ask": capgraph.bind([Ask]).node(Ask)}, checkpointer=InMemorySaver())
    out = await graph.ainvoke(SAY, CONFIG)
    assert "ask" in shown(out)
    out = await graph.ainvoke(Command(resume="approve"), CONFIG)
    assert question(out) == "how much?"
    out = await graph.ainvoke(Command(resume=12), CONFIG)
    assert log == ["got 12"]
    (stored,) = out["capability_context_data"]["GAUGE"].values()
    assert stored["value"] == 12


async def test_two_nodes_side_by_side_merge(read: Any) -> None:
    @capability_node
    async def measure() -> Level:
        """Measure."""
        return Level(metres=2.0)

    services = capgraph.bind([read, measure])
    out = await _own({"read": services.node(read), "m": services.node(measure)}).ainvoke(SAY)
    assert set(out["capability_context_data"]) == {"GAUGE", "LEVEL"}


async def test_a_failure_in_a_graph_of_ones_own_is_no_success(log: list[str]) -> None:
    @capability_node
    async def burn() -> Gauge:
        """Burn."""
        raise CapabilityError("it burns")

    graph = _own({"burn": capgraph.bind([burn]).node(burn)})
    out, said = await tried(graph.ainvoke(SAY))
    assert "it burns" in said
    assert out is None or out["control_has_error"] is True


# --- unbound -------------------------------------------------------------------------------


async def test_unbound_it_runs_with_the_defaults(read: Any, log: list[str]) -> None:
    out = await _own({"read": read.langgraph_node}).ainvoke(SAY)
    assert out["capability_context_data"]["GAUGE"]
    assert log == ["read"]


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
async def test_unbound_what_needs_an_operator_is_refused_by_name(
    pay: Any, log: list[str], saver: Any
) -> None:
    @capability_node(effect="once")
    async def launch() -> Level:
        """Launch."""
        log.append("launch")
        return Level(metres=100.0)

    @capability_node(requires_approval=True)
    async def shout() -> Level:
        """Shout."""
        log.append("shout")
        return Level(metres=1.0)

    for capability in (pay, launch, shout):
        name = capability.capability_spec.name
        graph = _own({name: capability.langgraph_node}, checkpointer=saver)
        with pytest.raises(CapgraphError, match=name) as found:
            await graph.ainvoke(SAY, CONFIG)
        assert "bind" in str(found.value), "the fix names the way"
    assert log == []


async def test_an_effect_in_a_graph_of_ones_own_is_not_repeated_after_a_stop(
    log: list[str],
) -> None:
    """The run is stopped inside the effect; going on asks and does not do it again."""
    begun = asyncio.Event()

    @capability_node(effect="once")
    async def launch() -> Level:
        """Launch."""
        log.append("launch")
        begun.set()
        await asyncio.Event().wait()
        return Level(metres=100.0)

    node = capgraph.bind([launch]).node(launch)
    graph = _own({"launch": node}, checkpointer=InMemorySaver())
    running = asyncio.ensure_future(graph.ainvoke(SAY, CONFIG))
    await soon(begun.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    try:
        out = await soon(graph.ainvoke(None, CONFIG))
    except CapgraphError:
        pass
    else:
        assert "launch" in shown(out)
    assert log == ["launch"]
