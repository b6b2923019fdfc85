"""Databases and files that an earlier version wrote: the current code reads and resumes them.

tests/fixtures/written_by_f6c479b/README.md describes each thread and its expected result.
"""

from __future__ import annotations

import lzma
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.types import Command
from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, Recipe, Registry, capability_node, signal
from capgraph.configs.settings import load_settings
from capgraph.evaluation import (
    Recording,
    check_threads,
    evaluate,
    load_dataset,
    load_recording,
    record,
    replay,
)
from capgraph.graph import open_graph, wake
from capgraph.registry import load_recipe
from capgraph.stores import (
    Persistence,
    list_rules,
    list_suspended_threads,
    list_threads,
    open_saver,
    open_store,
    thread_summary,
)
from capgraph.telemetry.audit_log import AuditTable
from capgraph.testing import FakeClock

FIXTURE = Path(__file__).parents[1] / "fixtures" / "written_by_f6c479b"
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0
COMPLETED = {"finished", "recipe_source"}
SUSPENDED = {
    "waits_for_decision": "waiting",
    "waits_for_time": "waiting",
    "waits_for_signal": "waiting",
    "signal_stored": "waiting",
    "killed_after_effect": "unfinished",
    "killed_in_effect": "unfinished",
}

Ran = list[tuple[str, float]]
Open = Callable[..., AbstractAsyncContextManager[Any]]


class WaterLevel(CapabilityContext):
    meters: float

    def get_summary(self) -> str:
        return f"The reservoir holds {self.meters} m."


class Receipt(CapabilityContext):
    action: str
    amount: float

    def get_summary(self) -> str:
        return f"{self.action}: {self.amount}."


class Opening(BaseModel):
    percent: int = Field(20, gt=0, le=100)


class Volume(BaseModel):
    liters: float


@pytest.fixture
def ran() -> Ran:
    return []


@pytest.fixture
def registry(ran: Ran) -> Registry:
    """The capabilities that the threads were written with; ``ran`` lists each execution."""

    @capability_node(examples=["how full is the reservoir?"])
    async def read_level() -> WaterLevel:
        """Read the water level of the reservoir, in meters."""
        ran.append(("read_level", 2.5))
        return WaterLevel(meters=2.5)

    @capability_node
    class OpenValve(BaseCapability):
        name = "open_valve"
        description = "Open the valve of the reservoir"
        requires = [WaterLevel]
        provides = [Receipt]
        effect = "once"
        requires_approval = True
        Parameters = Opening

        async def execute(self) -> Receipt:
            ran.append(("open_valve", self.parameters.percent))
            return Receipt(action="opened", amount=self.parameters.percent)

    @capability_node
    class PumpWater(BaseCapability):
        name = "pump_water"
        description = "Pump water into the reservoir"
        provides = [Receipt]
        effect = "once"
        Parameters = Volume

        async def execute(self) -> Receipt:
            ran.append(("pump_water", self.parameters.liters))
            return Receipt(action="pumped", amount=self.parameters.liters)

    @capability_node
    class WriteReport(BaseCapability):
        name = "write_report"
        description = "Write a report on what was done"
        requires = [Receipt]
        provides = [WaterLevel]

        async def execute(self) -> WaterLevel:
            ran.append(("write_report", self.inputs["RECEIPT"].amount))
            return WaterLevel(meters=2.5 + self.inputs["RECEIPT"].amount / 1000)

    made = Registry()
    for item in (WaterLevel, Receipt, read_level, OpenValve, PumpWater, WriteReport):
        made.register(item)
    return made


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a fresh copy of the old database."""
    if request.param == "sqlite":
        file = tmp_path / "threads.sqlite"
        file.write_bytes(lzma.decompress((FIXTURE / "threads.sqlite.xz").read_bytes()))
        return f"sqlite:///{file}"
    database: str = request.getfixturevalue("server").database()
    dump = lzma.decompress((FIXTURE / "postgres.sql.xz").read_bytes()).decode()
    # psql's own commands, and a setting that servers before version 17 do not have.
    lines = [
        line
        for line in dump.splitlines()
        if not line.startswith(("\\restrict", "\\unrestrict", "SET transaction_timeout"))
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("\n".join(lines).encode())
    return database


@pytest.fixture
def opened(url: str, registry: Registry) -> Open:
    """Open the old database with a clock that shows so many seconds after it was written."""

    @asynccontextmanager
    async def opening(seconds: float = 60.0) -> AsyncIterator[Any]:
        settings = load_settings(audit={"keep": True, "retention_days": 36_500})
        clock = FakeClock(START + seconds)
        async with open_graph(registry, url, settings=settings, clock=clock) as graph:
            yield graph

    return opening


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": "ada"}}


async def run(graph: Any, thread: str, given: Any = None) -> dict[str, Any]:
    out: dict[str, Any] = await graph.ainvoke(given, config(thread))
    return out


async def status_of(graph: Any, thread: str) -> str:
    summary = await thread_summary(graph.checkpointer, thread)
    assert summary is not None
    return summary.status


async def assert_completed(graph: Any, thread: str, answer: str) -> None:
    values = (await graph.aget_state(config(thread))).values
    assert await status_of(graph, thread) == "completed"
    assert values["messages"][-1].content == answer


async def test_finished_threads_are_read(opened: Open, ran: Ran) -> None:
    async with opened() as graph:
        values = (await graph.aget_state(config("finished"))).values
        assert [message.content for message in values["messages"]] == [
            "How full is the reservoir?",
            "The reservoir holds 2.5 m.",
            "Pump 50 liters, open the valve.",
            "opened: 40.0.\n\nThe reservoir holds 2.55 m.",
        ]
        assert values["execution_outcome"]["done"] == ["pump", "level", "valve", "report"]
        assert values["approval_decisions"]["valve"]["decision"] == "approve"
        await assert_completed(graph, "recipe_source", "The reservoir holds 2.57 m.")
        out = await run(graph, "finished", {"messages": [("user", "How full is it now?")]})
    assert len(out["messages"]) == 6
    assert out["messages"][-1].content == "The reservoir holds 2.5 m."
    assert ran == [("read_level", 2.5)], "only the new turn runs"


async def test_threads_are_listed_with_their_status(opened: Open) -> None:
    async with opened() as graph:
        found = {
            thread.thread_id: await status_of(graph, thread.thread_id)
            for thread in await list_threads(graph.checkpointer)
        }
    assert found == {**dict.fromkeys(COMPLETED, "completed"), **SUSPENDED}


async def test_no_obstacle_is_reported_for_the_suspended_threads(
    url: str, registry: Registry
) -> None:
    async with open_saver(url) as saver, open_store(url) as store:
        assert saver is not None
        found = await check_threads(saver, registry, store=store)
    assert found.threads == len(SUSPENDED)
    assert found.incompatibilities == ()


async def test_a_decision_resumes_the_thread_and_the_effect_runs_once(
    opened: Open, ran: Ran
) -> None:
    async with opened() as graph:
        (asked,) = (await graph.aget_state(config("waits_for_decision"))).interrupts
        (step,) = asked.value["steps"]
        assert (step["context_key"], step["parameters"]) == ("valve", {"percent": 40})
        await run(graph, "waits_for_decision", Command(resume="approve"))
        await assert_completed(graph, "waits_for_decision", "opened: 40.0.")
        await run(graph, "waits_for_decision")
    assert ran == [("open_valve", 40)]


async def test_a_rejected_effect_does_not_run(opened: Open, ran: Ran) -> None:
    async with opened() as graph:
        await run(graph, "waits_for_decision", Command(resume="reject"))
    assert ran == []


async def test_the_time_resumes_the_thread_and_the_effect_runs_once(opened: Open, ran: Ran) -> None:
    async with opened(1 * HOUR) as graph:
        waiting = {
            one.thread_id: one.wake_at for one in await list_suspended_threads(graph.checkpointer)
        }
        assert waiting["waits_for_time"] == START + 2 * HOUR
        out = await run(graph, "waits_for_time")
        assert out["execution_outcome"]["status"] == "waiting"
        assert ran == []
    async with opened(2 * HOUR) as graph:
        now = START + 2 * HOUR
        assert "waits_for_time" in [
            one.thread_id for one in await list_suspended_threads(graph.checkpointer, now=now)
        ]
        await wake(graph, "waits_for_time")
        await assert_completed(graph, "waits_for_time", "The reservoir holds 2.53 m.")
        await run(graph, "waits_for_time")
    assert ran == [("pump_water", 30), ("write_report", 30)]


async def test_a_signal_resumes_the_thread_and_the_effect_runs_once(opened: Open, ran: Ran) -> None:
    async with opened() as graph:
        for _ in range(2):
            await signal(graph, "waits_for_signal", "delivered", {"liters": 60})
        await assert_completed(graph, "waits_for_signal", "The reservoir holds 2.56 m.")
        await run(graph, "waits_for_signal")
    assert ran == [("pump_water", 60), ("write_report", 60)]


async def test_a_stored_signal_is_taken_by_the_next_run(opened: Open, ran: Ran) -> None:
    async with opened() as graph:
        await run(graph, "signal_stored")
        await assert_completed(graph, "signal_stored", "The reservoir holds 2.58 m.")
    assert ran == [("pump_water", 80), ("write_report", 80)]


async def test_a_finished_effect_of_a_killed_process_is_not_repeated(
    opened: Open, ran: Ran
) -> None:
    async with opened() as graph:
        await run(graph, "killed_after_effect")
        await assert_completed(graph, "killed_after_effect", "The reservoir holds 2.51 m.")
    assert ran == [("write_report", 10)]


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (
            {"decision": "done", "outputs": {"RECEIPT": {"action": "pumped", "amount": 10}}},
            [("write_report", 10)],
        ),
        ({"decision": "rerun"}, [("pump_water", 10), ("write_report", 10)]),
    ],
    ids=["done", "rerun"],
)
async def test_an_effect_of_unknown_outcome_is_decided_by_a_person(
    opened: Open, ran: Ran, decision: dict[str, Any], expected: Ran
) -> None:
    async with opened() as graph:
        out = await run(graph, "killed_in_effect")
        (step,) = out["__interrupt__"][0].value["steps"]
        assert step["kind"] == "unknown_outcome"
        assert ran == []
        await run(graph, "killed_in_effect", Command(resume={"pump": decision}))
        await assert_completed(graph, "killed_in_effect", "The reservoir holds 2.51 m.")
        await run(graph, "killed_in_effect")
    assert ran == expected


async def test_the_standing_rule_is_applied(opened: Open, url: str, ran: Ran) -> None:
    async with open_store(url) as store:
        (rule,) = await list_rules(store)
    assert (rule.capability, rule.thread_id, rule.scope) == ("open_valve", "with_rule", "thread")
    steps = [
        {"context_key": "level", "capability": "read_level"},
        {
            "context_key": "valve",
            "capability": "open_valve",
            "inputs": [{"WATER_LEVEL": "level"}],
        },
    ]
    given = {"messages": [("user", "Open")], "planning_execution_plan": {"steps": steps}}
    async with opened() as graph:
        await run(graph, "with_rule", given)
        await assert_completed(graph, "with_rule", "opened: 20.0.")
    assert ran == [("read_level", 2.5), ("open_valve", 20)]


async def test_the_audit_is_verified_and_continued(opened: Open) -> None:
    async with opened() as graph:
        rows = Persistence.of(graph.checkpointer).tables
        assert rows is not None
        audit = AuditTable(rows)
        before = await audit.averify()
        await run(graph, "waits_for_decision", Command(resume="approve"))
        after = await audit.averify()
    assert (before.valid, after.valid) == (True, True)
    assert after.records > before.records > 0


@pytest.fixture
def stored() -> Recording:
    return load_recording(FIXTURE / "recording.json")


async def test_a_turn_of_the_database_is_recorded_and_replayed(
    opened: Open, stored: Recording, registry: Registry, ran: Ran
) -> None:
    async with opened() as graph:
        recording = await record(graph.checkpointer, "finished")
    assert recording.end == stored.end
    assert (await replay(recording, registry)).is_same
    assert ran == []


async def test_the_stored_recording_is_replayed(
    stored: Recording, registry: Registry, ran: Ran
) -> None:
    found = await replay(stored, registry)
    assert (found.is_same, found.differences, ran) == (True, (), [])


@pytest.mark.may_block  # the recordings of a set are read as they are needed
async def test_the_stored_evaluation_set_is_passed(registry: Registry) -> None:
    report = await evaluate(load_dataset(FIXTURE / "turns.yml"), registry)
    assert [str(failure) for failure in report.failures] == []
    assert len(report.results) == 2


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe(FIXTURE / "pump_and_report.yml")


async def test_the_stored_recipe_runs(recipe: Recipe, registry: Registry, ran: Ran) -> None:
    registry.register(recipe)
    async with open_graph(registry) as graph:
        out = await graph.ainvoke({"messages": [("user", "Pump 90 liters and report")]})
    assert out["messages"][-1].content == "The reservoir holds 2.59 m."
    assert ran == [("pump_water", 90), ("write_report", 90)]
