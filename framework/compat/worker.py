"""techrevati-runtime's workers: ``AgentWorker``, ``AgentRegistry``, and ``Handoff``."""

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
from capgraph.helpers.clock import utc_now_text


class AgentStatus(StrEnum):
    """Status of a worker."""

    IDLE = "idle"
    INITIALIZING = "initializing"
    WAITING_FOR_INPUT = "waiting_for_input"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_STATUSES = frozenset({AgentStatus.COMPLETED, AgentStatus.FAILED, AgentStatus.CANCELLED})
"""Final statuses."""
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
    """Raised if a worker's current status does not allow the requested status change.

    Attributes:
        current: Current status of the worker.
        target: Requested status.
    """

    code = "CG-CAPABILITY"

    def __init__(self, current: AgentStatus, target: AgentStatus) -> None:
        super().__init__(
            f"Invalid transition: {current.value} → {target.value}.",
            fix="Create a new worker."
            if current in TERMINAL_STATUSES
            else "Use the statuses in between.",
        )
        self.current: AgentStatus = current
        self.target: AgentStatus = target


@dataclass(frozen=True, slots=True)
class AgentWorkerEvent:
    """Record of a change to a worker's status.

    Attributes:
        seq: Sequence number, starting at 1.
        kind: Kind of the event.
        status: Status after the transition.
        detail: Reason for the transition.
        timestamp: Time as an ISO 8601 string.
    """

    seq: int
    kind: str
    status: str
    detail: str | None = None
    timestamp: str = field(default_factory=utc_now_text)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data. An empty detail is omitted."""
        data = {name: getattr(self, name) for name in ("seq", "kind", "status", "timestamp")}
        return {**data, "detail": self.detail} if self.detail else data


@dataclass(slots=True)
class AgentWorker:
    """Worker that performs one role in one phase of a project. All methods are thread-safe.

    Attributes:
        worker_id: ID of the worker.
        role: Role of the worker.
        phase: Phase of the work.
        project_id: ID of the project.
        status: Current status.
        events: Status changes so far.
        retry_count: Number of retries.
        last_error: Message and time of the last failure.
        provider_used: Provider that served the worker.
        created_at: Time of creation.
        updated_at: Time of the last status change.

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
        """Change the status of the worker and record the change.

        Raises:
            InvalidTransitionError: The current status does not allow the new status.
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
        """True if the status is final."""
        return self.status in TERMINAL_STATUSES

    def to_dict(self) -> dict[str, Any]:
        """Return the worker as plain data."""
        names = [name for name in AgentWorker.__slots__ if name not in ("events", "_lock")]
        data = {name: copy.deepcopy(getattr(self, name)) for name in names}
        return {
            **data,
            "status": self.status.value,
            "events": [event.to_dict() for event in list(self.events)],
        }


class AgentRegistry:
    """In-memory registry of agent workers in the current process.

    Args:
        max_finished: Maximum number of finished workers to keep. The oldest workers are removed
            first.
    """

    def __init__(self, *, max_finished: int = 1000) -> None:
        self.max_finished = max_finished
        self._workers: dict[str, AgentWorker] = {}
        self._lock = threading.Lock()

    def create(self, role: str, phase: str, project_id: int | None = None) -> AgentWorker:
        """Create and register a worker with the status ``idle``.

        The oldest finished workers are removed if there are more than ``max_finished``.
        """
        worker = AgentWorker(f"{role}-{phase}-{uuid.uuid4().hex[:8]}", role, phase, project_id)
        with self._lock:
            self._workers[worker.worker_id] = worker
            finished = [w.worker_id for w in self._workers.values() if w.is_terminal]
            for name in finished[: max(0, len(finished) - self.max_finished)]:
                del self._workers[name]
        return worker

    def get(self, worker_id: str) -> AgentWorker | None:
        """Return the worker with the given ID, or ``None`` if it is not registered."""
        with self._lock:
            return self._workers.get(worker_id)

    def transition(
        self, worker_id: str, status: AgentStatus | str, detail: str | None = None
    ) -> AgentWorker:
        """Change the status of the worker with the given ID.

        Raises:
            KeyError: The registry has no worker with this ID.
            InvalidTransitionError: The current status does not allow the transition.
        """
        worker = self.get(worker_id)
        if worker is None:
            raise KeyError(f"The worker {worker_id!r} does not exist.")
        worker.transition(status, detail)
        return worker

    def list_active(self) -> list[AgentWorker]:
        """Return the workers that have not finished."""
        return [worker for worker in self._list_workers() if not worker.is_terminal]

    def get_by_role_phase(self, role: str, phase: str) -> AgentWorker | None:
        """Return the first unfinished worker with the given role and phase, or ``None``."""
        workers = (w for w in self.list_active() if (w.role, w.phase) == (role, phase))
        return next(workers, None)

    def get_by_project(self, project_id: int) -> list[AgentWorker]:
        """Return all workers of the project with the given ID."""
        return [worker for worker in self._list_workers() if worker.project_id == project_id]

    def clear(self) -> None:
        """Remove all workers."""
        with self._lock:
            self._workers.clear()

    def _list_workers(self) -> list[AgentWorker]:
        with self._lock:
            return list(self._workers.values())


@dataclass(frozen=True, slots=True)
class Handoff:
    """Record of a handoff of work from one role to another.

    Attributes:
        source_role: Role that hands off the work.
        target_role: Role that receives the work.
        phase: Phase of the work.
        reason: Reason for the handoff.
        context: Copy of the context for the target role.
        project_id: ID of the project.
        target_worker_id: ID of the worker created for the target role. The worker has the
            status ``initializing``, and the caller runs it.
        created_at: Time of the handoff.
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
        """Return the handoff as plain data."""
        return asdict(self)
