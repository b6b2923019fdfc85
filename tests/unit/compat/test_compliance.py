"""Risks, incidents, reviews and workers."""

from __future__ import annotations

import asyncio
import csv
import io
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from capgraph.base.errors import CapgraphError
from capgraph.compat.compliance import (
    HumanReviewQueue,
    IncidentReport,
    IncidentSeverity,
    IncidentSink,
    ResidualRiskLevel,
    Risk,
    RiskRegistry,
    RiskUnacceptableError,
    sanitize,
    to_csv,
    transparency_report,
)
from capgraph.compat.worker import AgentRegistry, AgentStatus, Handoff, InvalidTransitionError

SEEN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def incident(**other: Any) -> IncidentReport:
    given: dict[str, Any] = {
        "id": "I1",
        "detected_at": SEEN,
        "severity": IncidentSeverity.SERIOUS,
        "description": "opened twice",
    }
    return IncidentReport(**{**given, **other})


@pytest.mark.row("T35")
def test_an_unacceptable_risk_stops_work_and_is_named() -> None:
    risks = RiskRegistry([Risk("R1", "sticks", ResidualRiskLevel.HIGH)])
    risks.assert_no_unacceptable()
    risks.add(Risk("R2", "bursts", "unacceptable"))  # type: ignore[arg-type]
    with pytest.raises(RiskUnacceptableError, match="R2: bursts"):
        risks.assert_no_unacceptable()
    with pytest.raises(ValueError, match="Risk 'R2' is already registered"):
        risks.add(Risk("R2", "again", ResidualRiskLevel.LOW))
    with pytest.raises(ValueError, match="'huge' is unknown"):
        Risk("R3", "x", "huge")  # type: ignore[arg-type]


@pytest.mark.row("T35")
def test_an_incident_is_overdue_after_fifteen_days() -> None:
    report = incident()
    assert report.reporting_deadline == SEEN + timedelta(days=15)
    assert not report.is_overdue(now=SEEN + timedelta(days=15))
    assert report.is_overdue(now=SEEN + timedelta(days=15, seconds=1))
    assert report.is_overdue()
    assert not incident(reported_at=SEEN + timedelta(days=2)).is_overdue()
    assert not incident(detected_at=SEEN.replace(tzinfo=None)).is_overdue(now=SEEN)
    with pytest.raises(ValueError, match="'awful' is unknown"):
        incident(severity="awful")


def test_incidents_are_recorded_if_the_listener_fails(caplog: pytest.LogCaptureFixture) -> None:
    def tell(_: IncidentReport) -> None:
        raise OSError("mail is down")

    sink = IncidentSink(tell, capacity=2)
    for name in ("a", "b", "c"):
        sink.report(incident(id=name))
    assert [report.id for report in sink.reports] == ["b", "c"]
    assert "mail is down" in caplog.text
    assert len(sink.overdue(SEEN)) == 0
    assert len(sink.overdue()) == 2


@pytest.mark.row("T35")
async def test_a_review_is_awaited_and_its_timeout_decides() -> None:
    queue = HumanReviewQueue()
    queue.request("r", "open\x1b[2J valve")
    assert queue.pending[0].subject == "open\\x1b[2J valve"
    waiting = asyncio.create_task(queue.wait("r"))
    await asyncio.sleep(0)
    queue.resolve("r", True, reviewer="ann")
    assert await waiting
    assert queue.reviews["r"].reviewer == "ann"
    with pytest.raises(ValueError, match="already has a decision"):
        queue.resolve("r", False)
    for on_timeout, approved in (("abort", False), ("proceed", True)):
        late = HumanReviewQueue(0, on_timeout)  # type: ignore[arg-type]
        late.request("r", "open valve")
        assert await late.wait("r") is approved
    with pytest.raises(ValueError, match="Invalid on_timeout"):
        HumanReviewQueue(1, "shrug")  # type: ignore[arg-type]


def test_a_report_counts_audit_records() -> None:
    found = transparency_report(
        [{"kind": "effect"}, {"kind": "effect"}, {"kind": "plan"}],
        risks=[Risk("R1", "sticks", ResidualRiskLevel.LOW)],
        incidents=[incident()],
        now=SEEN,
    )
    assert found["records"] == {"effect": 2, "plan": 1}
    assert found["risks"] == {"R1": "low"}
    assert found["incidents"][0]["overdue"] is False


@pytest.mark.row("T35")
def test_csv_is_quoted_and_no_formula_runs() -> None:
    rows = [{"a": '=cmd|"x"', "b": "one\ntwo"}, {"b": "three", "c": 3}]
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert read[0]["a"] == '\'=cmd|"x"'
    assert read[0]["b"] == "one\ntwo"
    assert read[1] == {"a": "", "b": "three", "c": "3"}
    assert sanitize("pay\u202epal") == "pay\\u202epal"


@pytest.mark.row("T4")
def test_a_worker_follows_the_transition_table() -> None:
    registry = AgentRegistry()
    worker = registry.create("writer", "draft", 7)
    for status in (AgentStatus.INITIALIZING, AgentStatus.RUNNING, AgentStatus.WAITING_FOR_INPUT):
        registry.transition(worker.worker_id, status)
    with pytest.raises(InvalidTransitionError) as caught:
        worker.transition(AgentStatus.COMPLETED)
    assert (caught.value.current, caught.value.target) == (
        AgentStatus.WAITING_FOR_INPUT,
        AgentStatus.COMPLETED,
    )
    assert isinstance(caught.value, CapgraphError)
    worker.transition(AgentStatus.FAILED, "broke")
    assert [event.seq for event in worker.events] == [1, 2, 3, 4]
    assert worker.last_error is not None
    assert worker.last_error["message"] == "broke"
    assert worker.is_terminal
    assert worker.to_dict()["events"][-1]["detail"] == "broke"
    with pytest.raises(InvalidTransitionError):
        worker.transition("running")
    with pytest.raises(KeyError, match="nobody"):
        registry.transition("nobody", AgentStatus.FAILED)


@pytest.mark.row("T5")
def test_workers_are_found_and_finished_ones_removed() -> None:
    registry = AgentRegistry(max_finished=2)
    first, second = registry.create("writer", "draft", 7), registry.create("writer", "draft", 7)
    assert registry.get_by_role_phase("writer", "draft") is first
    first.transition(AgentStatus.CANCELLED)
    assert registry.get_by_role_phase("writer", "draft") is second
    assert registry.list_active() == [second]
    for _ in range(5):
        registry.create("x", "y").transition(AgentStatus.FAILED)
    registry.create("x", "y")
    assert registry.get(first.worker_id) is None
    assert len(registry.get_by_project(7)) == 1
    registry.clear()
    assert registry.list_active() == []


@pytest.mark.row("T4")
def test_one_transition_of_many_threads_wins() -> None:
    worker = AgentRegistry().create("a", "b")

    def move(_: int) -> int:
        try:
            worker.transition(AgentStatus.INITIALIZING)
        except InvalidTransitionError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(move, range(100))) == 1


@pytest.mark.row("T8")
def test_a_handoff_has_a_copy_of_its_context() -> None:
    context = {"notes": ["a"]}
    handoff = Handoff("writer", "editor", "draft", "done", context)
    context["notes"].append("b")
    assert handoff.context == {"notes": ["a"]}
    assert handoff.to_dict()["target_role"] == "editor"
