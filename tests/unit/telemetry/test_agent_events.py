"""The event names of techrevati-runtime (T1 to T3), as views of ours."""

from __future__ import annotations

import dataclasses

import pytest

from capgraph.telemetry import (
    AgentEvent,
    AgentEventName,
    AgentEventStatus,
    AgentFailureClass,
    to_agent_event,
)


@pytest.mark.row("T1", "T2")
def test_the_names_statuses_and_failure_classes() -> None:
    assert {name.value for name in AgentEventName} == {
        *(f"agent.{n}" for n in ("started", "ready", "blocked", "tool_called", "tool_completed")),
        *("agent.completed", "agent.failed"),
        *(f"phase.{n}" for n in ("started", "completed")),
        *(f"phase.gate_{n}" for n in ("evaluated", "passed", "failed")),
        *(f"agent.recovery.{n}" for n in ("attempted", "succeeded", "failed", "escalated")),
        *("agent.recovery.provider_switched", "hook.pre_tool", "hook.post_tool"),
        *("governance.breach", "governance.alert"),
        *("oversight.review_requested", "oversight.review_resolved"),
    }
    assert {status.value for status in AgentEventStatus} == {
        *("running", "ready", "blocked", "green", "red", "completed", "failed", "cancelled")
    }
    assert {kind.value for kind in AgentFailureClass} == {
        *("llm_timeout", "llm_error", "tool_error", "context_overflow", "rate_limit"),
        *("dependency_failed", "memory_corruption", "validation_error", "prompt_rejection"),
        *("governance_breach", "permission_denied", "guardrail_violation", "cancelled", "unknown"),
    }


@pytest.mark.row("T3")
def test_an_event_copies_its_data() -> None:
    data = {"steps": [1]}
    event = AgentEvent.started("writer", "draft").with_data(data)
    data["steps"].append(2)
    assert event.data == {"steps": [1]}
    event.to_dict()["data"]["steps"].append(3)
    assert event.data == {"steps": [1]}
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.role = "other"  # type: ignore[misc]


@pytest.mark.row("T3")
def test_named_constructors_and_copies() -> None:
    failed = AgentEvent.failed("writer", "draft", AgentFailureClass.RATE_LIMIT, "slow down")
    assert (failed.event, failed.status) == ("agent.failed", "failed")
    assert failed.with_failure_class("llm_error").failure_class is AgentFailureClass.LLM_ERROR
    assert failed.with_project(7).project_id == 7
    assert failed.with_detail("x").detail == "x"
    assert failed.detail == "slow down"
    assert AgentEvent.gate_passed("draft").status is AgentEventStatus.GREEN
    assert AgentEvent.gate_failed("draft", "thin").status is AgentEventStatus.RED
    assert AgentEvent.phase_started("draft").role is None
    assert AgentEvent.completed("writer", "draft").event.value == "agent.completed"
    assert AgentEvent.recovery_attempted("writer", "draft").event.value.endswith("attempted")
    for name in ("ready", "blocked", "recovery_succeeded", "recovery_failed", "recovery_escalated"):
        made = getattr(AgentEvent, name)("writer", "draft", "why", {"a": 1})
        assert made.event.value.replace(".", "_").endswith(name)
        assert (made.role, made.phase, made.detail, made.data) == (
            "writer",
            "draft",
            "why",
            {"a": 1},
        )
    limit = {"limit_name": "max_tool_calls", "observed": 3.0, "ceiling": 2.0, "scope": "session"}
    for name in ("governance_breach", "governance_alert"):
        made = getattr(AgentEvent, name)("writer", "draft", **limit)
        assert (made.data, made.detail) == (limit, "max_tool_calls: 3 of 2")
    asked = AgentEvent.oversight_review_requested("writer", "draft", decision_id="d")
    told = AgentEvent.oversight_review_resolved("w", "d", decision_id="d", decision="yes")
    assert (asked.data, told.data) == (
        {"decision_id": "d"},
        {"decision_id": "d", "decision": "yes"},
    )
    for name in ("tool_called", "tool_completed"):
        assert getattr(AgentEvent, name)("writer", "draft", "read").data == {"tool": "read"}


@pytest.mark.row("T3")
def test_a_failed_agent_says_why() -> None:
    with pytest.raises(ValueError, match="failure_class"):
        AgentEvent(AgentEventName.AGENT_FAILED, AgentEventStatus.FAILED)


@pytest.mark.row("T3")
def test_events_round_trip_through_dictionaries_and_json() -> None:
    event = AgentEvent.failed("writer", "draft", "llm_timeout").with_data({"n": 1})
    assert AgentEvent.from_dict(event.to_dict()) == event
    assert AgentEvent.from_json(event.to_json()) == event
    plain = event.to_dict()
    assert plain["type"] == "failed"
    assert "detail" not in plain


@pytest.mark.row("T3")
@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "running"},
        {"event": "agent.started"},
        {"event": "agent.slept", "status": "running"},
        {"event": "agent.started", "status": "asleep"},
        {"event": "agent.failed", "status": "failed", "failure_class": "bad luck"},
    ],
)
def test_unknown_names_are_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        AgentEvent.from_dict(wrong)


@pytest.mark.row("T3")
def test_attributes_hold_no_content_unless_asked() -> None:
    event = AgentEvent.failed("writer", "draft", "llm_error", "the patient's name").with_data(
        {"tokens": 3, "text": "secret"}
    )
    attributes = event.to_otel_attributes()
    assert attributes["error.type"] == "llm_error"
    assert attributes["capgraph.data.tokens"] == 3
    assert "patient" not in str(attributes)
    assert "secret" not in str(attributes)
    assert event.to_otel_attributes(detail=True)["capgraph.detail"] == "the patient's name"


@pytest.mark.row("T1")
@pytest.mark.parametrize(
    ("ours", "name", "failure"),
    [
        ({"event_type": "step_started", "capability": "read"}, "agent.tool_called", None),
        ({"event_type": "step_finished", "capability": "read"}, "agent.tool_completed", None),
        (
            {"event_type": "step_failed", "capability": "read", "category": "rate_limit"},
            "agent.failed",
            "rate_limit",
        ),
        ({"event_type": "approval_asked", "steps": []}, "agent.blocked", None),
        (
            {"event_type": "turn_finished", "outcome": {"status": "completed"}},
            "agent.completed",
            None,
        ),
        (
            {"event_type": "turn_finished", "outcome": {"status": "failed"}},
            "agent.failed",
            "unknown",
        ),
    ],
)
def test_graph_events_convert_to_agent_events(
    ours: dict[str, object], name: str, failure: str
) -> None:
    seen = to_agent_event({**ours, "run_id": "r"})
    assert seen is not None
    assert seen.event.value == name
    assert (seen.failure_class.value if seen.failure_class else None) == failure
    assert seen.data == {**ours, "run_id": "r"}


def test_events_without_a_counterpart_are_not_converted() -> None:
    assert to_agent_event({"event_type": "answer_token", "text": "x"}) is None
