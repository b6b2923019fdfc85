"""Who works on what, under the names of techrevati-runtime: ``AgentWorker``, ``AgentRegistry``."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from capgraph.base.errors import CapgraphError
from capgraph.base.ports import utc_now_text


class AgentStatus(StrEnum):
    """Where a worker stands."""

    IDLE = "idle"
    INITIALIZING = "initializing"
    WAITING_FOR_INPUT = "waiting_for_input"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_STATUSES = frozenset({AgentStatus.COMPLETED, AgentStatus.FAILED, AgentStatus.CANCELLED})
"""States that nothing follows."""
_FAILURE_STATUSES = {AgentStatus.FAILED, AgentStatus.CANCELLED}
_TRANSITIONS: Mapping[AgentStatus, set[AgentStatus]] = MappingProxyType(
    {
        AgentStatus.IDLE: {AgentStatus.INITIALIZING, *_FAILURE_STATUSES},
        AgentStatus.INITIALIZING: {
            AgentStatus.WAITING_FOR_INPUT,
            AgentStatus.RUNNING,
            *_FAILURE_STATUSES,
        },
        AgentStatus.WAITING_FOR_INPUT: {AgentStatus.RUNNING, *_FAILURE_STATUSES},
        AgentStatus.RUNNING: {
            AgentStatus.WAITING_FOR_INPUT,
            AgentStatus.COMPLETED,
            *_FAILURE_STATUSES,
        },
    }
)


class InvalidTransitionError(CapgraphError):
    """A worker cannot go from one state to another.

    Attributes:
        current: Where it stands.
        target: Where it should have gone.
    """

    code = "CG-CAPABILITY"

    def __init__(self, current: AgentStatus, target: AgentStatus) -> None:
        super().__init__(
            f"Invalid transition: {current.value} → {target.value}.",
            fix="Begin a new worker."
            if current in TERMINAL_STATUSES
            else "Go by way of the states between.",
        )
        self.current: AgentStatus = current
        self.target: AgentStatus = target


@dataclass(frozen=True, slots=True)
class AgentWorkerEvent:
    """One move of a worker.

    Attributes:
        seq: Its number, from 1.
        kind: What happened.
        status: Where the worker stands since.
        detail: Why.
        timestamp: When, as ISO text.
    """

    seq: int
    kind: str
    status: str
    detail: str | None = None
    timestamp: str = field(default_factory=utc_now_text)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; a detail that is empty is left out."""
        data = {name: getattr(self, name) for name in ("seq", "kind", "status", "timestamp")}
        return {**data, "detail": self.detail} if self.detail else data


@dataclass(slots=True)
class AgentWorker:
    """One piece of work by one role, and how it went; several threads may move it.

    Attributes:
        worker_id: Its name.
        role: Who works.
        phase: On what.
        project_id: For which project.
        status: Where it stands.
        events: Its moves.
        retry_count: How often something in it was tried again.
        last_error: Message and moment of the failure.
        provider_used: The provider that served it.
        created_at: When it was made.
        updated_at: When it last moved.

    >>> worker = AgentWorker("w", "writer", "draft")
    >>> worker.transition(AgentStatus.INITIALIZING).seq
    1
    """

    worker_id: str
    role: str
    phase: str
    project_id: int | None = None
    status: AgentStatus = AgentStatus.IDLE
    events: list[AgentWorkerEvent] = field(default_factory=list)
    retry_count: int = 0
    last_error: dict[str, Any] | None = None
    provider_used: str | None = None
    created_at: str = field(default_factory=utc_now_text)
    updated_at: str = field(default_factory=utc_now_text)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def transition(
        self, new_status: AgentStatus | str, detail: str | None = None
    ) -> AgentWorkerEvent:
        """Move it.

        Raises:
            InvalidTransitionError: It cannot go there from where it stands.
        """
        target = AgentStatus(new_status)
        with self._lock:
            if target not in _TRANSITIONS.get(self.status, set()):
                raise InvalidTransitionError(self.status, target)
            event = AgentWorkerEvent(len(self.events) + 1, target.value, target.value, detail)
            self.events.append(event)
            self.status, self.updated_at = target, event.timestamp
            if target is AgentStatus.FAILED and detail:
                self.last_error = {"message": detail, "timestamp": event.timestamp}
            return event

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self.status in TERMINAL_STATUSES

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        names = [name for name in AgentWorker.__slots__ if name not in ("events", "_lock")]
        data = {name: copy.deepcopy(getattr(self, name)) for name in names}
        return {
            **data,
            "status": self.status.value,
            "events": [event.to_dict() for event in list(self.events)],
        }


class AgentRegistry:
    """The workers of a process.

    Args:
        max_finished: How many that have ended are kept; the oldest go first.
    """

    def __init__(self, *, max_finished: int = 1000) -> None:
        self.max_finished = max_finished
        self._workers: dict[str, AgentWorker] = {}
        self._lock = threading.Lock()

    def create(self, role: str, phase: str, project_id: int | None = None) -> AgentWorker:
        """Make a worker that stands at ``idle``."""
        worker = AgentWorker(f"{role}-{phase}-{uuid.uuid4().hex[:8]}", role, phase, project_id)
        with self._lock:
            self._workers[worker.worker_id] = worker
            ended = [w.worker_id for w in self._workers.values() if w.is_terminal]
            for name in ended[: max(0, len(ended) - self.max_finished)]:
                del self._workers[name]
        return worker

    def get(self, worker_id: str) -> AgentWorker | None:
        """Return a worker; ``None`` when there is none of that name."""
        with self._lock:
            return self._workers.get(worker_id)

    def transition(
        self, worker_id: str, status: AgentStatus | str, detail: str | None = None
    ) -> AgentWorker:
        """Move a worker.

        Raises:
            KeyError: There is none of that name.
            InvalidTransitionError: It cannot go there.
        """
        worker = self.get(worker_id)
        if worker is None:
            raise KeyError(f"Worker not found: {worker_id}")
        worker.transition(status, detail)
        return worker

    def list_active(self) -> list[AgentWorker]:
        """Return those that have not ended."""
        return [worker for worker in self._list_workers() if not worker.is_terminal]

    def get_by_role_phase(self, role: str, phase: str) -> AgentWorker | None:
        """Return the first that has not ended, of a role and a phase."""
        found = (w for w in self.list_active() if (w.role, w.phase) == (role, phase))
        return next(found, None)

    def get_by_project(self, project_id: int) -> list[AgentWorker]:
        """Return those of a project."""
        return [worker for worker in self._list_workers() if worker.project_id == project_id]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._workers.clear()

    def _list_workers(self) -> list[AgentWorker]:
        with self._lock:
            return list(self._workers.values())


@dataclass(frozen=True, slots=True)
class Handoff:
    """Work that one role hands to another.

    Attributes:
        source_role: Who hands it over.
        target_role: Who takes it up.
        phase: On what they work.
        reason: Why.
        context: What the target is told: a copy.
        project_id: For which project.
        target_worker_id: The target's worker, at ``initializing``; whoever has the handoff runs it.
        created_at: When.
    """

    source_role: str
    target_role: str
    phase: str
    reason: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    project_id: int | None = None
    target_worker_id: str = ""
    created_at: str = field(default_factory=utc_now_text)

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", copy.deepcopy(dict(self.context)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)
