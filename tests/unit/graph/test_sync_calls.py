"""``invoke`` and ``stream``, with and without a running event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from capgraph import CapabilityContext, ErrorSeverity, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, FatalExecutionError
from capgraph.graph.agent_graph import agent_graph
from tests.support.openai_server import openai_server, say

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


def count_loops() -> int:
    return sum(thread.name == "capgraph loop" for thread in threading.enumerate())


def test_synchronous_calls_share_the_connections_of_a_client() -> None:
    """A client keeps connections, which belong to the event loop that opened them."""
    pytest.importorskip("langchain_openai")
    with openai_server() as server:
        server.on("text", *(say(f"Answer {n}.") for n in range(6)))
        model = {"model": "openai:gpt-test", "base_url": server.url, "api_key": "none"}

        graph = agent(model={"answer": model})
        answers = [graph.invoke(GIVEN)["messages"][-1].content for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            answers += [out["messages"][-1].content for out in pool.map(graph.invoke, [GIVEN] * 3)]
    assert sorted(answers) == [f"Answer {n}." for n in range(6)]
    assert count_loops() == 1


@pytest.mark.may_block
def test_a_step_on_the_shared_loop_may_call_a_graph_synchronously() -> None:
    inner = agent()

    @capability_node(name="gauge", examples=["read the gauge"])
    async def nested_gauge() -> Gauge:
        """Read the gauge."""
        assert inner.invoke(GIVEN)["execution_outcome"]["status"] == "completed"
        return Gauge(value=7)

    assert agent(nested_gauge).invoke(GIVEN)["execution_outcome"]["status"] == "completed"
    assert count_loops() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_its_own_loop() -> None:
    code = """
import os
from capgraph import build_graph, capability_node

@capability_node(examples=["read the gauge"])
def gauge() -> int:
    "Read the gauge."
    return 7

graph = build_graph([gauge])
given = {"messages": [("user", "Read the gauge")]}
print(graph.invoke(given)["execution_outcome"]["status"], flush=True)
if (child := os.fork()) == 0:
    print(graph.invoke(given)["execution_outcome"]["status"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["completed", "completed"]
    assert not done.stderr


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
    assert count_loops() == 1
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
    assert count_loops() == 1


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
