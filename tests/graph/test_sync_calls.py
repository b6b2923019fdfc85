"""``invoke`` and ``stream`` for callers without an event loop, and for those inside of one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from framework import CapabilityContext, ErrorSeverity, Registry, build_graph, capability_node
from framework.base import CapabilityError, FatalExecutionError

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
    assert not [t for t in threading.enumerate() if t.name == "capgraph stream"]
    assert graph.invoke(GIVEN, config)["messages"][-1].content == "The gauge shows 7."


def test_errors_reach_the_caller() -> None:
    with pytest.raises(FatalExecutionError, match="The gauge burns"):
        agent(broken_gauge).invoke(GIVEN)
    with pytest.raises(FatalExecutionError, match="The gauge burns"):
        list(agent(broken_gauge).stream(GIVEN))


def test_a_copy_with_configuration_keeps_the_synchronous_calls() -> None:
    copy = agent().with_config(tags=["copy"])
    assert copy.invoke(GIVEN)["execution_outcome"]["status"] == "completed"
