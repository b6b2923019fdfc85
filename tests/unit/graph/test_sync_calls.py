"""``invoke`` and ``stream``, with and without a running event loop."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from capgraph import CapabilityContext, ErrorSeverity, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, FatalExecutionError
from capgraph.graph.agent_graph import agent_graph

GIVEN: Any = {"messages": [("user", "read the gauge")]}


class Gauge(CapabilityContext):
    value: int

    def get_summary(self) -> str:
        return f"The gauge shows {self.value}."


@capability_node(examples=["read the gauge"])
async def gauge() -> Gauge:
    """Read the gauge."""
    return Gauge(value=7)


@capability_node(name="gauge", examples=["read the gauge"])
async def broken_gauge() -> Gauge:
    """Read the gauge."""
    raise CapabilityError("The gauge burns.", severity=ErrorSeverity.FATAL)


def agent(capability: Any = gauge, **options: Any) -> Any:
    registry = Registry()
    registry.register(Gauge)
    registry.register(capability)
    return build_graph(registry, **options)


def test_invoke_returns_what_ainvoke_returns() -> None:
    out = agent().invoke(GIVEN)
    assert out["messages"][-1].content == "The gauge shows 7."


@pytest.mark.may_block
async def test_invoke_works_inside_a_running_loop() -> None:
    assert agent().invoke(GIVEN)["execution_outcome"]["status"] == "completed"


def test_stream_yields_events_as_astream_does() -> None:
    parts = list(agent().stream(GIVEN, stream_mode=["custom", "updates"], version="v2"))
    kinds = [part["data"]["event_type"] for part in parts if part["type"] == "custom"]
    assert kinds[-1] == "turn_finished"
    assert any("gauge" in part["data"] for part in parts if part["type"] == "updates")


def test_a_caller_that_stops_reading_stops_the_run() -> None:
    graph = agent(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    stream = graph.stream(GIVEN, config, stream_mode="updates")
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name == "capgraph run"]
    assert graph.invoke(GIVEN, config)["messages"][-1].content == "The gauge shows 7."


def test_errors_reach_the_caller() -> None:
    with pytest.raises(FatalExecutionError, match="The gauge burns"):
        agent(broken_gauge).invoke(GIVEN)
    with pytest.raises(FatalExecutionError, match="The gauge burns"):
        list(agent(broken_gauge).stream(GIVEN))


def test_a_copy_with_configuration_keeps_the_synchronous_calls() -> None:
    copy = agent().with_config(tags=["copy"])
    assert copy.invoke(GIVEN)["execution_outcome"]["status"] == "completed"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("call", ["invoke", "stream"])
def test_ctrl_c_stops_the_run_and_waits_for_its_end(call: str) -> None:
    ended: list[str] = []
    main = threading.main_thread().ident

    @capability_node(name="gauge", examples=["read the gauge"])
    async def endless_gauge() -> Gauge:
        """Read the gauge."""
        if main is not None and not ended:
            signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cancelled")
        return Gauge(value=7)

    graph = agent(endless_gauge)
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(graph.stream(GIVEN)) if call == "stream" else graph.invoke(GIVEN)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["cancelled"]
    assert not [t for t in threading.enumerate() if t.name == "capgraph run"]


class Count(TypedDict):
    count: int


def test_a_slow_reader_slows_the_run() -> None:
    seen = 0

    async def add(state: Count) -> Count:
        nonlocal seen
        seen = state["count"] + 1
        return {"count": seen}

    builder = StateGraph(Count)
    builder.add_node("add", add)
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda state: "add" if state["count"] < 500 else "__end__")
    graph = agent_graph(builder.compile())
    stream = graph.stream({"count": 0}, {"recursion_limit": 1000}, stream_mode="updates")
    next(stream)
    before = -1
    while seen != before:  # until the run waits for its reader, or is through
        before = seen
        time.sleep(0.3)
    assert seen < 100
    assert len(list(stream)) == 499
