"""Parsing and validation of the moments and events that steps wait for.

``wait_until`` is a moment with a UTC offset (``"2026-12-24T08:00:00+01:00"``) or a duration that
starts when the step could run (``"2h"``, or ``90`` for seconds). ``wait_for`` is the key of an
event: ``"paid"``, or ``{"key": "paid", "within": "2d"}`` with a maximum duration. Each may be a
reference to a result. The step's parameters refer to the data of the event as ``{"$from": "signal"}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from capgraph.planning.problems import Path

WAIT_FIELDS = ("wait_until", "wait_for")
SIGNAL = "signal"
"""Name by which a step's parameters refer to the data of the event that it waited for."""
WAIT_TYPE = "wait"
"""Kind of the pending entry of a waiting step, and type of the interrupt that suspends its thread."""
MAX_EVENT_KEY_LENGTH = 200

_FROM = "$from"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(value: object) -> float | None:
    """Parse a duration and return it in seconds, or ``None`` if it is not a duration.

    >>> parse_duration("2h"), parse_duration(90), parse_duration("soon")
    (7200.0, 90.0, None)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 <= value < 1e12 else None
    match = (
        re.fullmatch(r"\+?(\d{1,9}(?:\.\d+)?) ?([smhdw])", value)
        if isinstance(value, str)
        else None
    )
    return float(match[1]) * _UNITS[match[2]] if match else None


def parse_moment(value: object, now: float) -> float:
    """Parse a point in time and return it in seconds since the epoch.

    Args:
        value: ISO 8601 string with a UTC offset, or a duration from now.
        now: Current time, in seconds since the epoch.

    Raises:
        ValueError: The value is neither a time nor a duration. The message states only the
            cause.

    >>> parse_moment("1970-01-01T01:00:00+00:00", 0.0), parse_moment("10m", 5.0)
    (3600.0, 605.0)
    """
    if (seconds := parse_duration(value)) is not None:
        return now + seconds
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if parsed is None:
        raise ValueError("is not a moment or duration, such as 2026-12-24T08:00:00Z or 2h")
    if parsed.tzinfo is None:
        raise ValueError("has no UTC offset; end it with Z, or with an offset such as +01:00")
    return parsed.timestamp()


def awaited_event(step: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the key of the event that a step waits for, and the maximum waiting time.

    The key may be a reference to a result.
    """
    wait = step.get("wait_for")
    if isinstance(wait, Mapping) and _FROM not in wait:
        return wait.get("key"), wait.get("within")
    return wait, None


def iter_wait_errors(field_name: str, value: Any) -> Iterator[tuple[Path, Any, str]]:
    """Yield the path, value, and cause of each error in a step's wait field.

    The field is ``wait_until`` or ``wait_for``. References are not validated, because that
    requires the plan.

    >>> [cause for _, _, cause in iter_wait_errors("wait_until", "2026-12-24T08:00:00")]
    ['has no UTC offset; end it with Z, or with an offset such as +01:00']
    """
    if isinstance(value, Mapping) and _FROM in value:
        return
    if field_name == "wait_until":
        try:
            parse_moment(value, 0.0)
        except ValueError as exc:
            yield (), value, str(exc)
        return
    parts = value if isinstance(value, Mapping) else {"key": value}
    key, within = parts.get("key"), parts.get("within")
    if parts.keys() - {"key", "within"}:
        yield (), value, "is not an event; write its key, or {'key': ..., 'within': '2d'}"
    elif not (isinstance(key, Mapping) and _FROM in key) and not is_event_key(key):
        cause = f"is not an event key: use 1 to {MAX_EVENT_KEY_LENGTH} printable characters"
        yield ("key",) if isinstance(value, Mapping) else (), key, cause
    elif within is not None and not parse_duration(within):
        yield ("within",), within, "is not a duration, such as 2d"


def is_event_key(key: object) -> bool:
    """Return True if a value is a valid key for an external event."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_EVENT_KEY_LENGTH:
        return False
    return key == key.strip() and key.isprintable()


def wait_references(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the references in a step's ``wait_until`` and ``wait_for`` fields with their paths."""
    for name in WAIT_FIELDS:
        wait = step.get(name)
        if wait is None:  # the usual case, on a hot path
            continue
        key = wait.get("key") if isinstance(wait, Mapping) else None
        for path, value in (((name,), wait), ((name, "key"), key)):
            if isinstance(value, Mapping) and isinstance(value.get(_FROM), str):
                yield path, value[_FROM]


def is_wait_interrupt(value: object) -> bool:
    """Return True if an interrupt waits for a time or an event, not for a human decision."""
    return isinstance(value, Mapping) and value.get("type") == WAIT_TYPE


def describe_wait(wait: Mapping[str, Any]) -> str:
    """Describe the time or event that a step is waiting for.

    >>> describe_wait({"for": "paid", "latest": "2026-12-26T08:00:00+00:00"})
    "for 'paid', at the latest until 2026-12-26T08:00:00+00:00"
    """
    parts = [f"until {wait['until']}"] if wait.get("until") else []
    if wait.get("for"):
        parts.append(f"for {wait['for']!r}, at the latest until {wait['latest']}")
    return " and ".join(parts)


def format_moment(moment: float) -> str:
    """Format a Unix timestamp as an ISO 8601 string in UTC.

    >>> format_moment(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(moment, UTC).isoformat()
