"""techrevati-runtime's compliance records: risks, incidents, reviews, and reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Literal

from capgraph.base.errors import CapgraphError, ErrorSeverity, ValidationError
from capgraph.configs.logger import escape_control_characters, get_logger
from capgraph.helpers.files import to_csv as to_csv
from capgraph.helpers.plain_data import parse_enum

REPORTING_DAYS = 15
"""Number of days within which an incident must be reported."""


class ResidualRiskLevel(IntEnum):
    """Level of a risk after mitigation."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    UNACCEPTABLE = 4


class RiskUnacceptableError(CapgraphError):
    """Raised if a risk registry contains at least one unacceptable risk.

    Attributes:
        risks: The unacceptable risks.
    """

    code = "CG-POLICY"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL
    risks: tuple[Risk, ...] = ()


@dataclass(frozen=True, slots=True)
class Risk:
    """Registered risk of an AI system, with its level after mitigation.

    Attributes:
        id: ID of the risk.
        description: Description of the possible harm.
        residual: Risk level after mitigation: a level, its name, or its number.

    Raises:
        ValueError: The level is unknown.

    >>> Risk("R1", "The valve sticks", "low").residual.name
    'LOW'
    """

    id: str
    description: str
    residual: ResidualRiskLevel

    def __post_init__(self) -> None:
        level = parse_enum(ResidualRiskLevel, self.residual, f"level (risk {self.id!r})")
        object.__setattr__(self, "residual", level)


class RiskRegistry:
    """Registry of the known risks of an AI system.

    Args:
        risks: Risks with unique IDs.

    Raises:
        ValueError: Two risks have the same ID.
    """

    def __init__(self, risks: Iterable[Risk] = ()) -> None:
        self._risks: dict[str, Risk] = {}
        for risk in risks:
            self.add(risk)

    def __iter__(self) -> Any:
        return iter(tuple(self._risks.values()))

    def add(self, risk: Risk) -> None:
        """Add a risk to the registry.

        Raises:
            ValueError: The registry already has a risk with this ID.
        """
        if risk.id in self._risks:
            raise ValidationError(
                f"Risk {risk.id!r} is already registered, and risk IDs must be unique.",
                fix="Use another ID.",
            )
        self._risks[risk.id] = risk

    def assert_no_unacceptable(self) -> None:
        """Raise an error if the registry contains an unacceptable risk.

        Raises:
            RiskUnacceptableError: At least one risk is unacceptable. The error lists all such
                risks.
        """
        unacceptable = [r for r in self if r.residual is ResidualRiskLevel.UNACCEPTABLE]
        if unacceptable:
            descriptions = "; ".join(f"{risk.id}: {risk.description}" for risk in unacceptable)
            raise RiskUnacceptableError(
                f"{len(unacceptable)} unacceptable risk(s): {descriptions}.",
                fix="Mitigate them before work starts.",
                risks=tuple(unacceptable),
            )


class IncidentSeverity(StrEnum):
    """Severity of an incident."""

    MINOR = "minor"
    MAJOR = "major"
    SERIOUS = "serious"


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """Report of an incident, with the deadline by which the incident must be reported.

    Attributes:
        id: ID of the incident.
        detected_at: Time of detection. A time without a time zone is interpreted as UTC.
        severity: Severity of the incident.
        description: Description of the incident.
        reported_at: Time at which the incident was reported, or ``None`` if it is unreported.

    >>> seen = datetime(2026, 3, 1, tzinfo=UTC)
    >>> report = IncidentReport("I1", seen, IncidentSeverity.SERIOUS, "Valve opened twice")
    >>> report.reporting_deadline.isoformat()
    '2026-03-16T00:00:00+00:00'
    """

    id: str
    detected_at: datetime
    severity: IncidentSeverity
    description: str
    reported_at: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detected_at", _convert_to_utc(self.detected_at))
        what = f"severity (incident {self.id!r})"
        object.__setattr__(self, "severity", parse_enum(IncidentSeverity, self.severity, what))

    @property
    def reporting_deadline(self) -> datetime:
        """Latest time by which the incident must be reported, counted from its detection."""
        return self.detected_at + timedelta(days=REPORTING_DAYS)

    def is_overdue(self, now: datetime | None = None) -> bool:
        """Return True if the incident was reported late, or is unreported after its deadline."""
        return (
            _convert_to_utc(self.reported_at or now or datetime.now(UTC)) > self.reporting_deadline
        )


def _convert_to_utc(value: datetime | str) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class IncidentSink:
    """Bounded list of incident reports that passes each new report to a listener.

    Args:
        listener: Callback that receives each incident report.
        capacity: Maximum number of stored reports. The oldest reports are removed first.
    """

    def __init__(
        self, listener: Callable[[IncidentReport], Any] | None = None, *, capacity: int = 1000
    ) -> None:
        self.listener: Callable[[IncidentReport], Any] | None = listener
        self.capacity: int = capacity
        self.reports: list[IncidentReport] = []

    def report(self, incident: IncidentReport) -> None:
        """Store an incident report and pass it to the listener. Listener errors are logged."""
        self.reports = [*self.reports, incident][-self.capacity :]
        if self.listener is None:
            return
        try:
            self.listener(incident)
        except Exception as exc:
            get_logger("framework", "incidents").error(
                "The listener failed for %s: %r", incident.id, exc
            )

    def overdue(self, now: datetime | None = None) -> list[IncidentReport]:
        """Return the reports of incidents that were not reported before their deadlines."""
        return [report for report in self.reports if report.is_overdue(now)]


@dataclass(slots=True)
class Review:
    """Request for a human review, and the decision of the reviewer.

    Attributes:
        id: ID of the review.
        subject: Subject of the review, without control characters.
        approved: Decision of the reviewer; ``None`` while the review is open.
        reviewer: Name of the reviewer.
        requested_at: Time of the request.
    """

    id: str
    subject: str
    approved: bool | None = None
    reviewer: str | None = None
    requested_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class HumanReviewQueue:
    """In-memory queue of human reviews.

    For approvals that must survive a restart, set ``requires_approval`` on a capability
    instead.

    Args:
        timeout_seconds: Maximum wait for a decision.
        on_timeout: Outcome after a timeout: ``abort`` (not approved) or ``proceed`` (approved).

    >>> async def main():
    ...     queue = HumanReviewQueue()
    ...     queue.request("r1", "Open valve 3?")
    ...     queue.resolve("r1", True, reviewer="ann")
    ...     return await queue.wait("r1")
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self,
        timeout_seconds: float | None = None,
        on_timeout: Literal["abort", "proceed"] = "abort",
    ) -> None:
        if on_timeout not in ("abort", "proceed"):
            raise ValidationError(
                f"Invalid on_timeout {on_timeout!r}.", fix="Use 'abort' or 'proceed'."
            )
        self.timeout_seconds: float | None = timeout_seconds
        self.on_timeout = on_timeout
        self.reviews: dict[str, Review] = {}
        self._resolved_events: dict[str, asyncio.Event] = {}

    def request(self, id: str, subject: str) -> Review:  # noqa: A002  the documented name
        """Request a human review. If a review with this ID exists, return it unchanged."""
        self._resolved_events.setdefault(id, asyncio.Event())
        return self.reviews.setdefault(id, Review(id, sanitize(subject)))

    @property
    def pending(self) -> list[Review]:
        """Reviews without a decision."""
        return [review for review in self.reviews.values() if review.approved is None]

    def resolve(self, id: str, approved: bool, *, reviewer: str | None = None) -> Review:  # noqa: A002
        """Record a reviewer's decision on a requested review.

        Raises:
            KeyError: No review with this ID was requested.
            ValueError: The review already has a decision.
        """
        review = self.reviews[id]
        if review.approved is not None:
            raise ValidationError(f"The review {id!r} already has a decision.")
        review.approved, review.reviewer = approved, reviewer
        self._resolved_events[id].set()
        return review

    async def wait(self, id: str) -> bool:  # noqa: A002
        """Wait for the decision on a review, and return True if the review was approved.

        After the timeout of the queue, ``on_timeout`` determines the decision.
        """
        try:
            await asyncio.wait_for(self._resolved_events[id].wait(), self.timeout_seconds)
        except TimeoutError:
            review = self.reviews[id]
            review.approved, review.reviewer = self.on_timeout == "proceed", "timeout"
        return bool(self.reviews[id].approved)


def sanitize(text: str) -> str:
    r"""Escape the control and format characters in a text.

    >>> sanitize("pay\x1b[2J")
    'pay\\x1b[2J'
    """
    return escape_control_characters(text)


def transparency_report(
    records: Iterable[Mapping[str, Any]],
    *,
    risks: Iterable[Risk] = (),
    incidents: Iterable[IncidentReport] = (),
    now: datetime | None = None,
) -> dict[str, Any]:
    """Create a transparency report from audit records, risks, and incidents as plain data.

    Args:
        records: Audit records, each with a ``kind``.
        risks: Risks of the system.
        incidents: Reports of incidents.
        now: Time of the report. Defaults to the current time.
    """
    kinds = Counter(str(record.get("kind")) for record in records)
    return {
        "made_at": (now or datetime.now(UTC)).isoformat(),
        "records": dict(sorted(kinds.items())),
        "risks": {risk.id: risk.residual.name.lower() for risk in risks},
        "incidents": [
            {
                **{name: str(value) for name, value in asdict(incident).items()},
                "overdue": incident.is_overdue(now),
            }
            for incident in incidents
        ],
    }
