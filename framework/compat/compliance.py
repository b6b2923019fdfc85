"""Risks, incidents and reviews, under the names of techrevati-runtime: views on records, no engine."""

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
"""Within so many days a serious incident has to be reported."""


class ResidualRiskLevel(IntEnum):
    """How large a risk still is when everything against it is done."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    UNACCEPTABLE = 4


class RiskUnacceptableError(CapgraphError):
    """A risk stands open that nobody may accept."""

    code = "CG-POLICY"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


@dataclass(frozen=True, slots=True)
class Risk:
    """One risk.

    Attributes:
        id: Its name.
        description: What may happen.
        residual: How large it still is: a level, its name or its number.

    Raises:
        ValueError: There is no such level.

    >>> Risk("R1", "The valve sticks", "low").residual.name
    'LOW'
    """

    id: str
    description: str
    residual: ResidualRiskLevel

    def __post_init__(self) -> None:
        level = parse_enum(ResidualRiskLevel, self.residual, f"level of the risk {self.id!r}")
        object.__setattr__(self, "residual", level)


class RiskRegistry:
    """The risks of a system.

    Args:
        risks: Each with an id of its own.

    Raises:
        ValueError: Two have one id.
    """

    def __init__(self, risks: Iterable[Risk] = ()) -> None:
        self._risks: dict[str, Risk] = {}
        for risk in risks:
            self.add(risk)

    def __iter__(self) -> Any:
        return iter(tuple(self._risks.values()))

    def add(self, risk: Risk) -> None:
        """Add a risk.

        Raises:
            ValueError: There is one of that id.
        """
        if risk.id in self._risks:
            raise ValidationError(f"There is a risk {risk.id!r} already.", fix="Use another id.")
        self._risks[risk.id] = risk

    def assert_no_unacceptable(self) -> None:
        """Make sure that work may begin.

        Raises:
            RiskUnacceptableError: A risk is unacceptable; names each.
        """
        bad = [r for r in self if r.residual is ResidualRiskLevel.UNACCEPTABLE]
        if bad:
            told = "; ".join(f"{risk.id}: {risk.description}" for risk in bad)
            raise RiskUnacceptableError(
                f"{len(bad)} unacceptable risk(s): {told}.", fix="Lower them before work begins."
            )


class IncidentSeverity(StrEnum):
    """How bad an incident was."""

    MINOR = "minor"
    MAJOR = "major"
    SERIOUS = "serious"


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """Something that went wrong and has to be reported.

    Attributes:
        id: Its name.
        detected_at: When it was seen; a moment without a zone is UTC.
        severity: How bad it was.
        description: What happened.
        reported_at: When it was reported; ``None`` while it was not.

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
        object.__setattr__(self, "detected_at", _to_utc(self.detected_at))
        what = f"severity of the incident {self.id!r}"
        object.__setattr__(self, "severity", parse_enum(IncidentSeverity, self.severity, what))

    @property
    def reporting_deadline(self) -> datetime:
        """When it has to be reported at the latest."""
        return self.detected_at + timedelta(days=REPORTING_DAYS)

    def is_overdue(self, now: datetime | None = None) -> bool:
        """Tell whether it should have been reported and was not, or was too late."""
        return _to_utc(self.reported_at or now or datetime.now(UTC)) > self.reporting_deadline


def _to_utc(value: datetime | str) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class IncidentSink:
    """Keeps incidents, so many of them, and tells of them at once.

    Args:
        listener: Told of each; may be a coroutine function when :meth:`areport` is used.
        capacity: The most that are kept.
    """

    def __init__(
        self, listener: Callable[[IncidentReport], Any] | None = None, *, capacity: int = 1000
    ) -> None:
        self.listener: Callable[[IncidentReport], Any] | None = listener
        self.capacity: int = capacity
        self.reports: list[IncidentReport] = []

    def report(self, incident: IncidentReport) -> None:
        """Take up an incident; a teller that fails is logged and loses nothing."""
        self.reports = [*self.reports, incident][-self.capacity :]
        if self.listener is None:
            return
        try:
            self.listener(incident)
        except Exception as exc:
            get_logger("framework", "incidents").error("told nobody of %s: %r", incident.id, exc)

    def overdue(self, now: datetime | None = None) -> list[IncidentReport]:
        """Return those that should have been reported by now."""
        return [report for report in self.reports if report.is_overdue(now)]


@dataclass(slots=True)
class Review:
    """Something that a person is to look at.

    Attributes:
        id: Its name.
        subject: What it is about, fit to be shown: without control characters.
        approved: What the person said; ``None`` while nobody did.
        reviewer: Who it was.
        requested_at: When it was asked for.
    """

    id: str
    subject: str
    approved: bool | None = None
    reviewer: str | None = None
    requested_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class HumanReviewQueue:
    """Reviews that wait for a person, in one process.

    What has to outlive the process is an approval of a step (``requires_approval``).

    Args:
        timeout_seconds: How long one is waited for.
        on_timeout: ``abort`` (not approved) or ``proceed``.

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
            raise ValidationError(f"{on_timeout!r} is neither 'abort' nor 'proceed'.")
        self.timeout_seconds: float | None = timeout_seconds
        self.on_timeout = on_timeout
        self.reviews: dict[str, Review] = {}
        self._resolved_events: dict[str, asyncio.Event] = {}

    def request(self, id: str, subject: str) -> Review:  # noqa: A002  the documented name
        """Ask for a review; asked again, it is the same one."""
        self._resolved_events.setdefault(id, asyncio.Event())
        return self.reviews.setdefault(id, Review(id, sanitize(subject)))

    @property
    def pending(self) -> list[Review]:
        """Those that nobody has answered."""
        return [review for review in self.reviews.values() if review.approved is None]

    def resolve(self, id: str, approved: bool, *, reviewer: str | None = None) -> Review:  # noqa: A002
        """Answer a review.

        Raises:
            KeyError: Nobody asked for it.
            ValueError: It was answered before.
        """
        review = self.reviews[id]
        if review.approved is not None:
            raise ValidationError(f"The review {id!r} was answered before.")
        review.approved, review.reviewer = approved, reviewer
        self._resolved_events[id].set()
        return review

    async def wait(self, id: str) -> bool:  # noqa: A002
        """Wait for the answer, or until the time is over."""
        try:
            await asyncio.wait_for(self._resolved_events[id].wait(), self.timeout_seconds)
        except TimeoutError:
            review = self.reviews[id]
            review.approved, review.reviewer = self.on_timeout == "proceed", "timeout"
        return bool(self.reviews[id].approved)


def sanitize(text: str) -> str:
    r"""Return a text in which nothing hides: control and format characters are spelled out.

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
    """Return what was done, at what risk, and what went wrong, as plain data.

    Args:
        records: Records of the audit, each with ``kind``.
        risks: The risks of the system.
        incidents: What went wrong.
        now: When the report is made.
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
