"""Events under the names of techrevati-runtime: views of ours, for code that was written for it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any

from capgraph.base.ports import utc_now_text


class AgentEventName(StrEnum):
    """What happened.

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
    """How things stood when it happened."""

    RUNNING = "running"
    READY = "ready"
    BLOCKED = "blocked"
    GREEN = "green"
    RED = "red"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AgentFailureClass(StrEnum):
    """What kind of failure it was."""

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
    """One event. Its ``data`` is a copy of its own: what the caller changes later is not seen here.

    Attributes:
        event: What happened; also as text.
        status: How things stood.
        emitted_at: When, as ISO text in UTC.
        role: Who did it.
        phase: In which phase of the work.
        project_id: For which project.
        failure_class: What kind of failure it was; a failed agent has one.
        detail: In words; content, so it is on no span unless asked for.
        data: Further plain data.

    Raises:
        ValueError: A name, a status or a failure class is unknown, or a failed agent has no class.

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
            raise ValueError("An agent.failed event has no failure_class. Fix: say which it was.")

    def with_failure_class(self, fc: AgentFailureClass | str) -> AgentEvent:
        """Return a copy with another failure class."""
        return replace(self, failure_class=AgentFailureClass(fc))

    def with_detail(self, detail: str) -> AgentEvent:
        """Return a copy with other words."""
        return replace(self, detail=detail)

    def with_data(self, data: dict[str, Any]) -> AgentEvent:
        """Return a copy with other data."""
        return replace(self, data=data)

    def with_project(self, project_id: int) -> AgentEvent:
        """Return a copy for a project."""
        return replace(self, project_id=project_id)

    @classmethod
    def started(cls, role: str, phase: str) -> AgentEvent:
        """An agent began."""
        return cls(AgentEventName.AGENT_STARTED, AgentEventStatus.RUNNING, role=role, phase=phase)

    @classmethod
    def completed(cls, role: str, phase: str, detail: str | None = None) -> AgentEvent:
        """An agent did its work."""
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
        """An agent failed."""
        kind = AgentFailureClass(failure_class)
        name, status = AgentEventName.AGENT_FAILED, AgentEventStatus.FAILED
        return cls(name, status, role=role, phase=phase, failure_class=kind, detail=detail)

    @classmethod
    def ready(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """An agent may begin."""
        status = AgentEventStatus.READY
        return cls(AgentEventName.AGENT_READY, status, **_of(role, phase, detail, data))

    @classmethod
    def blocked(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """An agent waits for something."""
        status = AgentEventStatus.BLOCKED
        return cls(AgentEventName.AGENT_BLOCKED, status, **_of(role, phase, detail, data))

    @classmethod
    def tool_called(cls, role: str, phase: str, tool: str) -> AgentEvent:
        """An agent calls a tool."""
        status = AgentEventStatus.RUNNING
        return cls(
            AgentEventName.AGENT_TOOL_CALLED, status, **_of(role, phase, None, {"tool": tool})
        )

    @classmethod
    def tool_completed(cls, role: str, phase: str, tool: str) -> AgentEvent:
        """A tool gave its result."""
        name, status = AgentEventName.AGENT_TOOL_COMPLETED, AgentEventStatus.COMPLETED
        return cls(name, status, **_of(role, phase, None, {"tool": tool}))

    @classmethod
    def phase_started(cls, phase: str) -> AgentEvent:
        """A phase began."""
        return cls(AgentEventName.PHASE_STARTED, AgentEventStatus.RUNNING, phase=phase)

    @classmethod
    def gate_passed(cls, phase: str, detail: str | None = None) -> AgentEvent:
        """A phase is good enough."""
        name, status = AgentEventName.PHASE_GATE_PASSED, AgentEventStatus.GREEN
        return cls(name, status, phase=phase, detail=detail)

    @classmethod
    def gate_failed(cls, phase: str, detail: str | None = None) -> AgentEvent:
        """A phase is not good enough."""
        name, status = AgentEventName.PHASE_GATE_FAILED, AgentEventStatus.RED
        return cls(name, status, phase=phase, detail=detail)

    @classmethod
    def recovery_attempted(cls, role: str, phase: str, detail: str | None = None) -> AgentEvent:
        """It is tried to recover from a failure."""
        name, status = AgentEventName.RECOVERY_ATTEMPTED, AgentEventStatus.RUNNING
        return cls(name, status, role=role, phase=phase, detail=detail)

    @classmethod
    def recovery_succeeded(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """It recovered."""
        status = AgentEventStatus.RUNNING
        return cls(AgentEventName.RECOVERY_SUCCEEDED, status, **_of(role, phase, detail, data))

    @classmethod
    def recovery_failed(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """It did not recover."""
        status = AgentEventStatus.FAILED
        return cls(AgentEventName.RECOVERY_FAILED, status, **_of(role, phase, detail, data))

    @classmethod
    def recovery_escalated(
        cls, role: str, phase: str, detail: str | None = None, data: dict[str, Any] | None = None
    ) -> AgentEvent:
        """Somebody else has to see to it."""
        status = AgentEventStatus.FAILED
        return cls(AgentEventName.RECOVERY_ESCALATED, status, **_of(role, phase, detail, data))

    @classmethod
    def governance_breach(cls, role: str, phase: str, **limit: Any) -> AgentEvent:
        """A limit ends the work: ``limit_name``, ``observed``, ``ceiling`` and ``scope``."""
        name, kind = AgentEventName.GOVERNANCE_BREACH, AgentFailureClass.GOVERNANCE_BREACH
        about = _of(role, phase, _passed(**limit), limit)
        return cls(name, AgentEventStatus.FAILED, failure_class=kind, **about)

    @classmethod
    def governance_alert(cls, role: str, phase: str, **limit: Any) -> AgentEvent:
        """A limit was passed that only tells; see :meth:`governance_breach`."""
        about = _of(role, phase, _passed(**limit), limit)
        return cls(AgentEventName.GOVERNANCE_ALERT, AgentEventStatus.RUNNING, **about)

    @classmethod
    def oversight_review_requested(
        cls, role: str, phase: str, *, decision_id: str, reviewer_id: str | None = None
    ) -> AgentEvent:
        """A person has to look at a decision."""
        data = {"decision_id": decision_id} | ({"reviewer_id": reviewer_id} if reviewer_id else {})
        about = _of(role, phase, f"review requested: {decision_id}", data)
        return cls(AgentEventName.OVERSIGHT_REVIEW_REQUESTED, AgentEventStatus.BLOCKED, **about)

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
        """A person has looked at it."""
        data = {"decision_id": decision_id, "decision": decision}
        data |= {"reviewer_id": reviewer_id} if reviewer_id else {}
        about = _of(role, phase, f"review {decision}: {decision_id}", data)
        return cls(AgentEventName.OVERSIGHT_REVIEW_RESOLVED, AgentEventStatus.RUNNING, **about)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what is ``None`` is left out."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {
            name: value.value if isinstance(value, Enum) else copy.deepcopy(value)
            for name, value in named.items()
            if value is not None
        }
        return {**plain, "type": self.event.value.rpartition(".")[2]}

    def to_json(self) -> str:
        """Return JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentEvent:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ValueError: The name, the status or the failure class is unknown or missing.
        """
        known = {f.name for f in fields(cls)}
        given = {"event": None, "status": None, **data}
        return cls(**{name: value for name, value in given.items() if name in known})

    @classmethod
    def from_json(cls, s: str) -> AgentEvent:
        """Read what :meth:`to_json` wrote."""
        return cls.from_dict(json.loads(s))

    def to_otel_attributes(self, *, detail: bool = False) -> dict[str, str | int | float | bool]:
        """Return attributes of OpenTelemetry; single values of ``data`` among them.

        Args:
            detail: Whether the words go with them; they are content.
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


def _of(role: str, phase: str, detail: str | None, data: dict[str, Any] | None) -> dict[str, Any]:
    return {"role": role, "phase": phase, "detail": detail, "data": data}


def _passed(*, limit_name: str, observed: float, ceiling: float, scope: str) -> str:
    return f"{limit_name}: {observed:g} of {ceiling:g}"


_NAMES: dict[str, tuple[AgentEventName, AgentEventStatus]] = {
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
_CLASSES = {
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
    """Return an event of ours under the names of techrevati-runtime.

    Args:
        event: As a sink gets it.

    Returns:
        ``None`` for what has no name there, such as a piece of the answer.

    >>> seen = to_agent_event({"event_type": "step_started", "capability": "read", "seq": 1})
    >>> seen.event.value, seen.role
    ('agent.tool_called', 'read')
    """
    kind = str(event.get("event_type"))
    if kind not in _NAMES or (kind == "model_called" and not event.get("error")):
        return None
    name, status = _NAMES[kind]
    failure: AgentFailureClass | None = None
    if name is AgentEventName.AGENT_FAILED:
        other = AgentFailureClass.LLM_ERROR if kind == "model_called" else None
        other = other or AgentFailureClass.TOOL_ERROR
        failure = _CLASSES.get(str(event.get("category")), other)
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
