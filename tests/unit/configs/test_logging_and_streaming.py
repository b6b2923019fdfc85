"""Component loggers and status events."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from capgraph.configs.logger import SafeFormatter, get_logger
from capgraph.configs.streaming import get_streamer, use_step_position


@pytest.mark.row("B39")
def test_kinds_of_messages(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("framework", "router", color="blue")
    with caplog.at_level("DEBUG", logger="capgraph"):
        for kind in ("success", "key_info", "timing", "approval", "resume"):
            getattr(logger, kind)("took %d s", 3)
    assert [record.kind for record in caplog.records] == [  # type: ignore[attr-defined]
        "success",
        "key_info",
        "timing",
        "approval",
        "resume",
    ]
    assert {record.getMessage() for record in caplog.records} == {"took 3 s"}
    assert caplog.records[2].levelno == logging.DEBUG
    assert caplog.records[0].component == "router"  # type: ignore[attr-defined]
    assert caplog.records[0].color == "blue"  # type: ignore[attr-defined]


@pytest.mark.row("B39")
def test_a_logger_by_name() -> None:
    assert get_logger(name="mine").name == "capgraph.mine"
    with pytest.raises(ValueError, match="source is 'x'"):
        get_logger("x")


def test_a_formatted_record_is_safe() -> None:
    record = logging.makeLogRecord(
        {"msg": "user said %s", "args": ("x\x1b[2J password=abc",), "levelname": "INFO"}
    )
    assert SafeFormatter("%(message)s").format(record) == "user said x\\x1b[2J password=***"


class State(TypedDict, total=False):
    done: bool


async def events_of(component: str, state: Any) -> list[dict[str, Any]]:
    async def node(_: State) -> State:
        streamer = get_streamer("framework", component, state)
        streamer.status("Working")
        streamer.warning("Odd")
        streamer.success("Done")
        streamer.error("Bad", {"rows": 3})
        return {"done": True}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile()
    return [event async for event in graph.astream({}, stream_mode="custom")]


@pytest.mark.row("B40")
async def test_fields_of_a_status_event() -> None:
    plan = {"steps": [{}, {}, {}]}
    state = {"planning_execution_plan": plan, "planning_current_step_index": 1}
    status, warning, success, error = await events_of("weather", state)
    assert status.pop("timestamp").endswith("+00:00")
    assert status == {
        "event_type": "status",
        "message": "Working",
        "source": "framework",
        "component": "weather",
        "step": 2,
        "total_steps": 3,
        "phase": "Execution",
    }
    assert warning["warning"] is True
    assert success["complete"] is True
    assert (error["error"], error["data"]) == (True, {"rows": 3})


@pytest.mark.row("B40")
@pytest.mark.parametrize(
    ("component", "place"), [("task_extraction", 1), ("classifier", 2), ("orchestrator", 3)]
)
async def test_preparation_has_three_steps(component: str, place: int) -> None:
    status = (await events_of(component, {}))[0]
    assert (status["step"], status["total_steps"]) == (place, 3)
    assert status["phase"] == "Task Preparation"


@pytest.mark.parametrize("state", [None, {}, {"planning_execution_plan": "odd"}])
async def test_a_streamer_works_without_a_plan(state: Any) -> None:
    assert "step" not in (await events_of("weather", state))[0]


@pytest.mark.row("B40")
async def test_parallel_steps_report_their_own_position() -> None:
    plan = {"planning_execution_plan": {"steps": [{}] * 5}, "planning_current_step_index": 0}

    async def step(index: int) -> Any:
        with use_step_position(index, 5):
            return (await events_of("weather", plan))[0]

    sent = await asyncio.gather(*(step(index) for index in range(5)))
    assert [event["step"] for event in sent] == [1, 2, 3, 4, 5]
    odd = await events_of("weather", {**plan, "planning_current_step_index": "two"})
    assert odd[0]["step"] == 1
