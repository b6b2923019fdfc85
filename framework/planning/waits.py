"""What a step waits for before it runs: a moment, an event from outside, or both.

``wait_until`` is a moment with its offset (``"2026-12-24T08:00:00+01:00"``), or a time from when the
step could run (``"2h"``, ``90``). ``wait_for`` is the key of an event: ``"paid"``, or
``{"key": "paid", "within": "2d"}``. Each may be a reference to a result. Parameters of the step mean
what came with the event by ``{"$from": "signal"}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from capgraph.planning.problems import Path

WAIT_FIELDS = ("wait_until", "wait_for")
SIGNAL = "signal"
"""By which name the parameters of a step mean what came with the event that it waited for."""
WAIT_TYPE = "wait"
"""Kind of what a step leaves that waits, and type of the interrupt by which its thread does."""
MAX_EVENT_KEY_LENGTH = 200

_FROM = "$from"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(value: object) -> float | None:
    """Return a length of time in seconds; ``None`` for what is none.

    >>> parse_duration("2h"), parse_duration(90), parse_duration("soon")
    (7200.0, 90.0, None)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 <= value < 1e12 else None
    found = (
        re.fullmatch(r"\+?(\d{1,9}(?:\.\d+)?) ?([smhdw])", value)
        if isinstance(value, str)
        else None
    )
    return float(found[1]) * _UNITS[found[2]] if found else None


def parse_moment(value: object, now: float) -> float:
    """Return the moment that is meant, in seconds since the epoch.

    Args:
        value: A moment, or a time from now.
        now: The present one.

    Raises:
        ValueError: It is neither; says why.

    >>> parse_moment("1970-01-01T01:00:00+00:00", 0.0), parse_moment("10m", 5.0)
    (3600.0, 605.0)
    """
    if (seconds := parse_duration(value)) is not None:
        return now + seconds
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    if found is None:
        raise ValueError("is no moment and no length of time, such as 2026-12-24T08:00:00Z or 2h")
    if found.tzinfo is None:
        raise ValueError("says no offset from UTC; end it with Z, or with one such as +01:00")
    return found.timestamp()


def awaited_event(step: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the key of the event that a step waits for, or what refers to it, and for how long."""
    given = step.get("wait_for")
    if isinstance(given, Mapping) and _FROM not in given:
        return given.get("key"), given.get("within")
    return given, None


def wait_errors(field_name: str, value: Any) -> Iterator[tuple[Path, Any, str]]:
    """Yield what is wrong with what a step waits for: where, the value, and why.

    References are checked where the plan is known.

    >>> [cause for _, _, cause in wait_errors("wait_until", "2026-12-24T08:00:00")]
    ['says no offset from UTC; end it with Z, or with one such as +01:00']
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
        yield (), value, "is no event; write its key, or {'key': ..., 'within': '2d'}"
    elif not (isinstance(key, Mapping) and _FROM in key) and not is_event_key(key):
        cause = f"is no key of an event: text of 1 to {MAX_EVENT_KEY_LENGTH} printable characters"
        yield ("key",) if isinstance(value, Mapping) else (), key, cause
    elif within is not None and not parse_duration(within):
        yield ("within",), within, "is no length of time, such as 2d"


def is_event_key(key: object) -> bool:
    """Tell whether something can be the key of an event."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_EVENT_KEY_LENGTH:
        return False
    return key == key.strip() and key.isprintable()


def wait_references(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the references of what a step waits for, each with where it stands."""
    for name in WAIT_FIELDS:
        given = step.get(name)
        if given is None:  # hardly any step waits, and every step is read often
            continue
        key = given.get("key") if isinstance(given, Mapping) else None
        for path, value in (((name,), given), ((name, "key"), key)):
            if isinstance(value, Mapping) and isinstance(value.get(_FROM), str):
                yield path, value[_FROM]


def is_wait_interrupt(value: object) -> bool:
    """Tell whether an interrupt only waits, and asks nobody."""
    return isinstance(value, Mapping) and value.get("type") == WAIT_TYPE


def describe_wait(wait: Mapping[str, Any]) -> str:
    """Say what a step waits for.

    >>> describe_wait({"for": "paid", "latest": "2026-12-26T08:00:00+00:00"})
    "for 'paid', at the latest until 2026-12-26T08:00:00+00:00"
    """
    parts = [f"until {wait['until']}"] if wait.get("until") else []
    if wait.get("for"):
        parts.append(f"for {wait['for']!r}, at the latest until {wait['latest']}")
    return " and ".join(parts)


def format_moment(moment: float) -> str:
    """Write a moment down.

    >>> format_moment(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(moment, UTC).isoformat()
