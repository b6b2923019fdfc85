"""Agent events with the names of techrevati-runtime, for code that was written for that library."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any

from capgraph.helpers.clock import utc_now_text


class AgentEventName(StrEnum):
    """Name of an agent event.

    >>> AgentEventName("agent.failed").name
    'AGENT_FAILED'
    """

    AGENT_STARTED = "agent.started"
    AGENT_READY = "agent.ready"
    AGENT_BLOCKED = "agent.blocked"
    AGENT_TOOL_CALLED = "agent.tool_called"
    AGENT_TOOL_COMPLETED = "agent.tool_completed"
    AGENT_COMPLETED = "agent.completed"
    AGENT_FAILED = "agent.failed"
    PHASE_STARTED = "phase.started"
    PHASE_COMPLETED = "phase.completed"
    PHASE_GATE_EVALUATED = "phase.gate_evaluated"
    PHASE_GATE_PASSED = "phase.gate_passed"
    PHASE_GATE_FAILED = "phase.gate_failed"
    RECOVERY_ATTEMPTED = "agent.recovery.attempted"
    RECOVERY_SUCCEEDED = "agent.recovery.succeeded"
    RECOVERY_FAILED = "agent.recovery.failed"
    RECOVERY_ESCALATED = "agent.recovery.escalated"
    RECOVERY_PROVIDER_SWITCHED = "agent.recovery.provider_switched"
    HOOK_PRE_TOOL = "hook.pre_tool"
    HOOK_POST_TOOL = "hook.post_tool"
    GOVERNANCE_BREACH = "governance.breach"
    GOVERNANCE_ALERT = "governance.alert"
    OVERSIGHT_REVIEW_REQUESTED = "oversight.review_requested"
    OVERSIGHT_REVIEW_RESOLVED = "oversight.review_resolved"


class AgentEventStatus(StrEnum):
    """Status of the agent when an agent event was emitted."""

    RUNNING = "running"
    READY = "ready"
    BLOCKED = "blocked"
    GREEN = "green"
    RED = "red"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AgentFailureClass(StrEnum):
    """Kind of failure that an agent event reports."""

    LLM_TIMEOUT = "llm_timeout"
    LLM_ERROR = "llm_error"
    TOOL_ERROR = "tool_error"
    CONTEXT_OVERFLOW = "context_overflow"
    RATE_LIMIT = "rate_limit"
    DEPENDENCY_FAILED = "dependency_failed"
    MEMORY_CORRUPTION = "memory_corruption"
    VALIDATION_ERROR = "validation_error"
    PROMPT_REJECTION = "prompt_rejection"
    GOVERNANCE_BREACH = "governance_breach"
    PERMISSION_DENIED = "permission_denied"
    GUARDRAIL_VIOLATION = "guardrail_violation"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


_ENUMS: dict[str, type[Enum]] = {
    "event": AgentEventName,
    "status": AgentEventStatus,
    "failure_class": AgentFailureClass,
}


@dataclass(frozen=True)
class AgentEvent:
    """Immutable event of an agent, as in techrevati-runtime.

    ``data`` is copied, so later changes by the caller have no effect.

    Attributes:
        event: Name of the event; a string is converted.
        status: Status of the agent.
        emitted_at: Time as ISO text in UTC.
        role: Role of the agent.
        phase: Phase of the work.
        project_id: ID of the project.
        failure_class: Kind of failure; required for ``agent.failed``.
        detail: Description. It counts as content, so spans omit it by default.
        data: Additional plain data.

    Raises:
        ValueError: A name, status, or failure class is unknown, or a failed agent has no class.

    >>> event = AgentEvent.failed("writer", "draft", "llm_timeout").with_detail("no answer")
    >>> event.to_dict()["type"], event.failure_class.value
    ('failed', 'llm_timeout')
    >>> AgentEvent.from_json(event.to_json()) == event
    True
    """

    event: AgentEventName
    status: AgentEventStatus
    emitted_at: str = field(default_factory=utc_now_text)
    role: str | None = None
    phase: str | None = None
    project_id: int | None = None
    failure_class: AgentFailureClass | None = None
    detail: str | None = None
    data: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            value = getattr(self, name)
            if value is not None or name != "failure_class":
                object.__setattr__(self, name, kind(value))
        object.__setattr__(self, "data", copy.deepcopy(self.data))
        if self.event is AgentEventName.AGENT_FAILED and self.failure_class is None:
            raise ValueError(
                "An agent.failed event requires a failure_class. Fix: pass failure_class."
            )

    def with_failure_class(self, fc: AgentFailureClass | str) -> AgentEvent:
        """Return a copy of the event with a different failure class."""
        return replace(self, failure_class=AgentFailureClass(fc))

    def with_detail(self, detail: str) -> AgentEvent:
        """Return a copy of the event with a different description."""
        return replace(self, detail=detail)

    def with_data(self, data: dict[str, Any]) -> AgentEvent:
        """Return a copy of the event with different data."""
        return replace(self, data=data)

    def with_project(self, project_id: int) -> AgentEvent:
        """Return a copy of the event with a different project ID."""
        return replace(self, project_id=project_id)

    @classmethod
    def started(cls, role: str, phase: str) -> AgentEvent:
        """Create the event for an agent that started."""
        return cls(AgentEventName.AGENT_STARTED, AgentEventStatus.RUNNING, role=role, phase=phase)

    @classmethod
    def completed(cls, role: str, phase: str, detail: str | None = None) -> AgentEvent:
        """Create the event for an agent that completed its work."""
        name, status = AgentEventName.AGENT_COMPLETED, AgentEventStatus.COMPLETED
        return cls(name, status, role=role, phase=phase, detail=detail)

    @classmethod
    def failed(
        cls,
        role: str,
        phase: str,
        failure_class: AgentFailureClass | str,
        detail: str | None = None,
    ) -> AgentEvent:
        """Create the event for an agent that failed."""
        kind = AgentFailureClass(failure_class)
        name, status = AgentEventName.AGENT_FAILED, AgentEventStatus.FAILED
        return cls(name, status, role=role, phase=phase, failure_class=kind, detail=detail)

    @classmethod
    def ready(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """Create the event for an agent that is ready to start."""
        status = AgentEventStatus.READY
        return cls(AgentEventName.AGENT_READY, status, **_event_fields(role, phase, detail, data))

    @classmethod
    def blocked(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """Create the event for an agent that is blocked and waiting."""
        status = AgentEventStatus.BLOCKED
        return cls(AgentEventName.AGENT_BLOCKED, status, **_event_fields(role, phase, detail, data))

    @classmethod
    def tool_called(cls, role: str, phase: str, tool: str) -> AgentEvent:
        """Create the event for the start of a tool call."""
        status = AgentEventStatus.RUNNING
        return cls(
            AgentEventName.AGENT_TOOL_CALLED,
            status,
            **_event_fields(role, phase, None, {"tool": tool}),
        )

    @classmethod
    def tool_completed(cls, role: str, phase: str, tool: str) -> AgentEvent:
        """Create the event for the end of a tool call."""
        name, status = AgentEventName.AGENT_TOOL_COMPLETED, AgentEventStatus.COMPLETED
        return cls(name, status, **_event_fields(role, phase, None, {"tool": tool}))

    @classmethod
    def phase_started(cls, phase: str) -> AgentEvent:
        """Create the event that reports the start of a phase."""
        return cls(AgentEventName.PHASE_STARTED, AgentEventStatus.RUNNING, phase=phase)

    @classmethod
    def gate_passed(cls, phase: str, detail: str | None = None) -> AgentEvent:
        """Create the event for a phase that passed its quality gate."""
        name, status = AgentEventName.PHASE_GATE_PASSED, AgentEventStatus.GREEN
        return cls(name, status, phase=phase, detail=detail)

    @classmethod
    def gate_failed(cls, phase: str, detail: str | None = None) -> AgentEvent:
        """Create the event for a phase that failed its quality gate."""
        name, status = AgentEventName.PHASE_GATE_FAILED, AgentEventStatus.RED
        return cls(name, status, phase=phase, detail=detail)

    @classmethod
    def recovery_attempted(cls, role: str, phase: str, detail: str | None = None) -> AgentEvent:
        """Create the event for the start of a recovery attempt."""
        name, status = AgentEventName.RECOVERY_ATTEMPTED, AgentEventStatus.RUNNING
        return cls(name, status, role=role, phase=phase, detail=detail)

    @classmethod
    def recovery_succeeded(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """Create the event for a successful recovery attempt."""
        status = AgentEventStatus.RUNNING
        return cls(
            AgentEventName.RECOVERY_SUCCEEDED, status, **_event_fields(role, phase, detail, data)
        )

    @classmethod
    def recovery_failed(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """Create the event for a failed recovery attempt."""
        status = AgentEventStatus.FAILED
        return cls(
            AgentEventName.RECOVERY_FAILED, status, **_event_fields(role, phase, detail, data)
        )

    @classmethod
    def recovery_escalated(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """Create the event for a failure that was escalated to a person."""
        status = AgentEventStatus.FAILED
        return cls(
            AgentEventName.RECOVERY_ESCALATED, status, **_event_fields(role, phase, detail, data)
        )

    @classmethod
    def governance_breach(cls, role: str, phase: str, **limit: Any) -> AgentEvent:
        """Create the event for an exceeded limit that ends the session.

        Args:
            role: Role of the agent.
            phase: Phase of the work.
            **limit: The limit, as ``limit_name``, ``observed``, ``ceiling``, and ``scope``.
        """
        name, kind = AgentEventName.GOVERNANCE_BREACH, AgentFailureClass.GOVERNANCE_BREACH
        event_fields = _event_fields(role, phase, _limit_detail(**limit), limit)
        return cls(name, AgentEventStatus.FAILED, failure_class=kind, **event_fields)

    @classmethod
    def governance_alert(cls, role: str, phase: str, **limit: Any) -> AgentEvent:
        """Create the event for an exceeded limit that does not end the session.

        Args:
            role: Role of the agent.
            phase: Phase of the work.
            **limit: Same keyword arguments as for :meth:`governance_breach`.
        """
        event_fields = _event_fields(role, phase, _limit_detail(**limit), limit)
        return cls(AgentEventName.GOVERNANCE_ALERT, AgentEventStatus.RUNNING, **event_fields)

    @classmethod
    def oversight_review_requested(
        cls, role: str, phase: str, *, decision_id: str, reviewer_id: str | None = None
    ) -> AgentEvent:
        """Create the event for a decision that a person must review."""
        data = {"decision_id": decision_id} | ({"reviewer_id": reviewer_id} if reviewer_id else {})
        event_fields = _event_fields(role, phase, f"review requested: {decision_id}", data)
        return cls(
            AgentEventName.OVERSIGHT_REVIEW_REQUESTED, AgentEventStatus.BLOCKED, **event_fields
        )

    @classmethod
    def oversight_review_resolved(
        cls,
        role: str,
        phase: str,
        *,
        decision_id: str,
        decision: str,
        reviewer_id: str | None = None,
    ) -> AgentEvent:
        """Create the event for a decision that a person has reviewed."""
        data = {"decision_id": decision_id, "decision": decision}
        data |= {"reviewer_id": reviewer_id} if reviewer_id else {}
        event_fields = _event_fields(role, phase, f"review {decision}: {decision_id}", data)
        return cls(
            AgentEventName.OVERSIGHT_REVIEW_RESOLVED, AgentEventStatus.RUNNING, **event_fields
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert the event to a dictionary of plain data, omitting ``None`` values."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {
            name: value.value if isinstance(value, Enum) else copy.deepcopy(value)
            for name, value in named.items()
            if value is not None
        }
        return {**plain, "type": self.event.value.rpartition(".")[2]}

    def to_json(self) -> str:
        """Return the event as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentEvent:
        """Create an event from a dictionary returned by :meth:`to_dict`.

        Raises:
            ValueError: The name, status, or failure class is unknown or missing.
        """
        known = {f.name for f in fields(cls)}
        values = {"event": None, "status": None, **data}
        return cls(**{name: value for name, value in values.items() if name in known})

    @classmethod
    def from_json(cls, s: str) -> AgentEvent:
        """Create an event from a JSON string returned by :meth:`to_json`."""
        return cls.from_dict(json.loads(s))

    def to_otel_attributes(self, *, detail: bool = False) -> dict[str, str | int | float | bool]:
        """Convert the event to OpenTelemetry attributes, including scalar values of ``data``.

        Args:
            detail: True to include string values, which may contain user content.
        """
        named: dict[str, Any] = {
            "event.name": self.event.value,
            "capgraph.status": self.status.value,
            "gen_ai.agent.name": self.role,
            "capgraph.phase": self.phase,
            "capgraph.project.id": self.project_id,
            "error.type": self.failure_class.value if self.failure_class else None,
            "capgraph.detail": self.detail if detail else None,
        }
        for name, value in (self.data or {}).items():
            if isinstance(value, (int, float, bool)) or (detail and isinstance(value, str)):
                named[f"capgraph.data.{name}"] = value
        return {name: value for name, value in named.items() if value is not None}


def _event_fields(
    role: str, phase: str, detail: str | None, data: dict[str, Any] | None
) -> dict[str, Any]:
    return {"role": role, "phase": phase, "detail": detail, "data": data}


def _limit_detail(*, limit_name: str, observed: float, ceiling: float, scope: str) -> str:
    return f"{limit_name}: {observed:g} of {ceiling:g}"


_EVENT_NAMES: dict[str, tuple[AgentEventName, AgentEventStatus]] = {
    "capabilities_selected": (AgentEventName.AGENT_READY, AgentEventStatus.READY),
    "plan_made": (AgentEventName.PHASE_STARTED, AgentEventStatus.RUNNING),
    "step_started": (AgentEventName.AGENT_TOOL_CALLED, AgentEventStatus.RUNNING),
    "step_finished": (AgentEventName.AGENT_TOOL_COMPLETED, AgentEventStatus.COMPLETED),
    "step_failed": (AgentEventName.AGENT_FAILED, AgentEventStatus.FAILED),
    "tool_called": (AgentEventName.AGENT_TOOL_COMPLETED, AgentEventStatus.COMPLETED),
    "model_called": (AgentEventName.AGENT_FAILED, AgentEventStatus.FAILED),
    "retry": (AgentEventName.RECOVERY_ATTEMPTED, AgentEventStatus.RUNNING),
    "replan": (AgentEventName.RECOVERY_ATTEMPTED, AgentEventStatus.RUNNING),
    "reclassify": (AgentEventName.RECOVERY_ATTEMPTED, AgentEventStatus.RUNNING),
    "approval_asked": (AgentEventName.AGENT_BLOCKED, AgentEventStatus.BLOCKED),
    "turn_finished": (AgentEventName.AGENT_COMPLETED, AgentEventStatus.COMPLETED),
}
_FAILURE_CLASSES = {
    "timeout": AgentFailureClass.LLM_TIMEOUT,
    "rate_limit": AgentFailureClass.RATE_LIMIT,
    "overloaded": AgentFailureClass.RATE_LIMIT,
    "network": AgentFailureClass.DEPENDENCY_FAILED,
    "authentication": AgentFailureClass.DEPENDENCY_FAILED,
    "context_too_long": AgentFailureClass.CONTEXT_OVERFLOW,
    "bad_input": AgentFailureClass.VALIDATION_ERROR,
    "rejected": AgentFailureClass.PROMPT_REJECTION,
}
_PHASE = "execution"


def to_agent_event(event: Mapping[str, Any]) -> AgentEvent | None:
    """Convert a graph event to an agent event.

    Args:
        event: Graph event as a mapping, in the form in which sinks receive events.

    Returns:
        The agent event, or ``None`` if the graph event has no counterpart, such as a part
            of the answer.

    >>> converted = to_agent_event({"event_type": "step_started", "capability": "read", "seq": 1})
    >>> converted.event.value, converted.role
    ('agent.tool_called', 'read')
    """
    kind = str(event.get("event_type"))
    if kind not in _EVENT_NAMES or (kind == "model_called" and not event.get("error")):
        return None
    name, status = _EVENT_NAMES[kind]
    failure: AgentFailureClass | None = None
    if name is AgentEventName.AGENT_FAILED:
        default_class = AgentFailureClass.LLM_ERROR if kind == "model_called" else None
        default_class = default_class or AgentFailureClass.TOOL_ERROR
        failure = _FAILURE_CLASSES.get(str(event.get("category")), default_class)
    if kind == "turn_finished" and (event.get("outcome") or {}).get("status") == "failed":
        name, status = AgentEventName.AGENT_FAILED, AgentEventStatus.FAILED
        failure = AgentFailureClass.UNKNOWN
    role = event.get("capability") or event.get("role") or event.get("name")
    return AgentEvent(
        name,
        status,
        emitted_at=str(event.get("timestamp") or utc_now_text()),
        role=None if role is None else str(role),
        phase="planning" if kind == "capabilities_selected" else _PHASE,
        failure_class=failure,
        detail=event.get("message") or event.get("reason"),
        data=dict(event),
    )
