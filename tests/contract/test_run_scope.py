"""What holds inside a run, whoever began it: secrets are masked, events say what they are about."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import SecretStr

import capgraph
from capgraph import (
    BaseCapability,
    Registry,
    build_graph,
    capability_node,
)
from capgraph.base import CapabilityError, ErrorClassification, ErrorSeverity, ValidationError
from capgraph.configs.settings import load_settings
from capgraph.state import AgentState
from capgraph.stores import open_saver
from tests.support.doors import Gauge, soon, status
from tests.support.one_door import own_node

SECRET = "correct-horse-battery"
SAY: Any = {"messages": [("user", "read the gauge")]}
CONFIG: Any = {"configurable": {"thread_id": "1"}}


def _broken(level: ErrorSeverity = ErrorSeverity.CRITICAL) -> Any:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read the gauge"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            self.streamer_says()
            raise CapabilityError(f"the gauge refused {SECRET}", severity=level)

        def streamer_says(self) -> None:
            self.progress(f"asking with {SECRET}")

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
            return ErrorClassification(
                level, f"It failed: {exc}", {"technical_details": f"used {SECRET}"}
            )

    return Read


class Collect:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)


def _settings() -> Any:
    return load_settings(secrets=[SecretStr(SECRET)])


def _own(node: Any, **options: Any) -> Any:
    builder: Any = StateGraph(AgentState)
    builder.add_node("read", node)
    builder.add_edge(START, "read")
    builder.add_edge("read", END)
    return builder.compile(**options)


@pytest.mark.row("B15")
@pytest.mark.may_block
@pytest.mark.parametrize("door", ["router", "own graph", "subgraph"])
@pytest.mark.parametrize("level", [ErrorSeverity.CRITICAL, ErrorSeverity.FATAL])
async def test_a_secret_of_the_settings_is_nowhere(
    door: str, level: ErrorSeverity, tmp_path: Path, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    sink = Collect()
    read, path, said = _broken(level), tmp_path / "threads.sqlite", ""
    plan = {"steps": [step("a", "read"), step("z", "respond")]}
    caplog.set_level(logging.DEBUG)
    async with open_saver(f"sqlite:///{path}") as saver:
        if door == "own graph":
            services = capgraph.bind([Gauge, read], settings=_settings(), sinks=[sink])
            graph, given = _own(services.node(read), checkpointer=saver), SAY
        else:
            given = {**SAY, "planning_execution_plan": plan}
            inner = None if door == "subgraph" else saver
            graph = build_graph([Gauge, read], None, inner, settings=_settings(), sinks=[sink])
            if door == "subgraph":
                graph = _own(graph, checkpointer=saver)
        try:
            async for part in graph.astream(
                given, CONFIG, stream_mode=["updates", "custom", "values"], subgraphs=True
            ):
                said += str(part)
        except Exception as exc:
            said += str(exc)
    assert "It failed" in said
    assert SECRET not in said
    assert "***" in said
    kept = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    with closing(sqlite3.connect(path)) as rows:
        assert rows.execute("select count(*) from checkpoints").fetchone()[0] > 0
    assert SECRET.encode() not in kept
    assert sink.events, "the sinks get what happens in the run"
    assert SECRET not in str(sink.events)
    formatted = "\n".join(record.getMessage() for record in caplog.records)
    assert "It failed" in formatted or level is ErrorSeverity.FATAL


@pytest.mark.row("B15")
@pytest.mark.parametrize("door", ["router", "own graph"])
async def test_a_fatal_failure_says_its_technical_details(door: str, step: Any) -> None:
    read = _broken(ErrorSeverity.FATAL)
    plan = {"steps": [step("a", "read"), step("z", "respond")]}
    if door == "own graph":
        graph, given = _own(capgraph.bind([Gauge, read]).node(read)), SAY
    else:
        graph, given = build_graph([Gauge, read]), {**SAY, "planning_execution_plan": plan}
    with pytest.raises(
        RuntimeError, match=r"Fatal error in read: .*Technical details: used"
    ) as told:
        await graph.ainvoke(given)
    assert isinstance(told.value.__cause__, CapabilityError)


@pytest.mark.row("B40")
async def test_events_say_what_they_are_about(agent: Any, step: Any) -> None:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read"
        provides = ["GAUGE"]
        tries: ClassVar[list[int]] = []

        async def execute(self) -> Gauge:
            self.tries.append(1)
            self.progress("half-way", 0.5)
            if len(self.tries) == 1:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
            return Gauge(value=1)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 2, "delay_seconds": 1.0, "backoff_factor": 1.0}

    sink = Collect()
    it = agent(Gauge, Read, plans=[[step("a", "read")]], sinks=[sink])
    events = [
        event
        async for event in it.graph.astream(
            {"messages": [("user", "go")]}, it.config(), stream_mode="custom"
        )
    ]
    of_step = [e for e in events if e["event_type"].startswith("step_")]
    assert [e["event_type"].removeprefix("step_") for e in of_step] == [
        *("started", "progress", "failed"),
        *("started", "progress", "finished"),
    ]
    assert {e["step_id"] for e in of_step} == {"a"}
    assert len({e["attempt_id"] for e in of_step}) == 2
    assert len({e["plan_id"] for e in of_step}) == 1
    turns = {e.get("turn_id") for e in events}
    assert len(turns) == 1
    assert None not in turns
    assert [e["seq"] for e in events] == sorted(e["seq"] for e in events)
    (retried,) = [e for e in events if e["event_type"] == "retry"]
    assert retried["step_id"] == "a"
    finished = next(e for e in events if e["event_type"] == "turn_finished")
    assert "step_id" not in finished


async def test_sinks_and_masker_of_a_bound_node(step: Any) -> None:
    sink = Collect()
    read = _broken()
    services = capgraph.bind([Gauge, read], settings=_settings(), sinks=[sink])
    out = await _own(services.node(read)).ainvoke(SAY)
    await services.events.flush()
    assert SECRET not in str(out["control_error_info"])
    assert {e["event_type"] for e in sink.events} >= {"step_started", "step_failed"}
    assert all(e["run_id"] and e["seq"] for e in sink.events)


class Colour(Enum):
    RED = "red"


@pytest.mark.row("F5", "B19")
@pytest.mark.parametrize("form", ["dict", "command"])
async def test_what_a_node_of_ones_own_writes_is_kept_as_plain_data(form: str) -> None:
    from langgraph.types import Command

    @own_node("monitoring", after="task_extraction")
    async def Monitoring(state: Any) -> Any:
        update = {"planning_selection": {"colour": Colour.RED, "seen": {1}}}
        return update if form == "dict" else Command(update=update, goto="orchestrator")

    registry = Registry()
    registry.register(Monitoring)
    kept: list[Any] = []
    graph = build_graph(registry)
    async for update in graph.astream(SAY, stream_mode="updates"):
        kept += [u for u in update.values() if u and "monitoring" in update]
    assert {"colour": "red", "seen": [1]} in [u.get("planning_selection") for u in kept]


@pytest.mark.row("F5", "B18")
async def test_what_a_node_of_ones_own_cannot_keep_is_named() -> None:
    @own_node("monitoring", after="task_extraction")
    async def Monitoring(state: Any) -> Any:
        return {"planning_selection": {"source": object()}}

    registry = Registry()
    registry.register(Monitoring)
    out = await soon(build_graph(registry).ainvoke(SAY))
    assert status(out) == "failed"
    assert "planning_selection" in out["execution_outcome"]["reason"]


@pytest.mark.row("B15")
async def test_the_last_result_says_what_a_failure_means(agent: Any, step: Any) -> None:
    it = agent(Gauge, _broken(), plans=[[step("a", "read")]])
    last = (await it.ask())["execution_last_result"]
    assert last["capability"] == "read"
    assert last["success"] is False
    assert last["classification"]["severity"] == "critical"


# --- nobody's nonsense ends a run with an error that names nobody -----------------------------------

NONSENSE = [
    {"capability_context_data": 7},
    {"capability_context_data": {"GAUGE": 7}},
    {"messages": 7},
    {"planning_history": 7},
    {"agent_control": 7},
    {"status_updates": "half done"},
    {"runtime_info": 7},
]


def _watcher(update: dict[str, Any]) -> Any:
    @own_node("monitoring", after="task_extraction")
    async def Monitoring(state: Any) -> Any:
        return update

    return Monitoring


@pytest.mark.row("B45")
@pytest.mark.parametrize(
    "update",
    [
        *NONSENSE,
        {"control_budget": {"plans": "many"}},
        {"execution_step_results": 7},
        {"control_error_info": 7, "control_has_error": True},
        {"control_turn": 7},
        {"control_goto": "respond"},
        {"task_current_task": 7},
    ],
)
async def test_what_does_not_fit_its_key_fails_the_node_that_wrote_it(
    agent: Any, update: dict[str, Any]
) -> None:
    out = await soon(agent(Gauge, _watcher(update)).ask())
    assert status(out) == "failed"
    assert out["control_error_info"]["node_name"] == "monitoring"
    assert next(iter(update)) in out["execution_outcome"]["reason"]


@pytest.mark.row("B45")
@pytest.mark.parametrize("update", NONSENSE)
async def test_what_does_not_fit_its_key_fails_the_step_that_wrote_it(
    agent: Any, step: Any, update: dict[str, Any]
) -> None:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return update

    out = await soon(agent(Read, plans=[[step("a", "read")]]).ask())
    assert status(out) == "failed"
    assert out["control_error_info"]["capability_name"] == "read"


@pytest.mark.parametrize("kept", [{"number": "x"}, {}])
async def test_nonsense_in_what_is_kept_of_a_turn_does_not_end_the_thread(
    agent: Any, kept: Any
) -> None:
    it = agent(Gauge, plans=[[]], checkpointer=InMemorySaver())
    await it.ask()
    await it.graph.aupdate_state(it.config(), {"control_turn": kept})
    out = await it.ask("Something else")
    assert out["control_turn"]["number"] == 1


@pytest.mark.parametrize("thread", [None, ""])
async def test_a_thread_without_a_name_is_refused(agent: Any, thread: Any) -> None:
    it = agent(Gauge, plans=[[]], checkpointer=InMemorySaver())
    with pytest.raises(ValidationError, match="thread_id is missing"):
        await it.ask(thread=thread)
