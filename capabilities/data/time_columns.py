"""Which columns of a table hold the time of its rows."""

from __future__ import annotations

from capabilities.contexts import TimeRef
from capabilities.data.readings import has_time_name, time_reading
from capabilities.data.words import name_words

_FULL_DATE = ("iso", "zoned", "native", "nativetz", "epoch")


def find_time(
    typed: list[tuple[str, str]], samples: dict[str, list[str]], zone: str, day_first: bool
) -> TimeRef | None:
    """Return the column or columns of the time; ``None`` when there is none.

    Args:
        typed: Names and DuckDB types of the columns.
        samples: Some values of each.
        zone: Zone that moments with a zone of their own are shown in.
        day_first: Whether 03/04/2015 is the third of April when the rows do not tell.
    """
    times = _time_columns(typed, samples, zone, day_first)
    return _with_clock(_choose_time(times, samples), typed, samples)


def _time_columns(
    typed: list[tuple[str, str]], samples: dict[str, list[str]], zone: str, day_first: bool
) -> dict[str, TimeRef]:
    found: dict[str, TimeRef] = {}
    for name, kind in typed:
        if kind in ("DATE",) or kind.startswith("TIMESTAMP"):
            reading = "nativetz" if "ZONE" in kind else "native"
        else:
            reading = time_reading(name, samples[name], day_first) or ""
        if reading:
            found[name] = TimeRef(columns=[name], reading=reading, zone=zone)
    return found


def _choose_time(times: dict[str, TimeRef], samples: dict[str, list[str]]) -> TimeRef | None:
    parts = _date_parts(samples)
    dated = [t for t in times.values() if t.reading != "year"]
    if parts is not None and not dated:
        return parts

    def rank(time: TimeRef) -> tuple[int, int, int]:
        values = samples[time.columns[0]]
        precise = time.reading.startswith(_FULL_DATE) or "%d" in time.reading
        distinct = len(set(values)) * 10 // max(1, len(values))
        return (2 if precise else 1, int(has_time_name(time.columns[0])), distinct)

    return max(times.values(), key=rank, default=None)


def _date_parts(samples: dict[str, list[str]]) -> TimeRef | None:
    """Recognise dates that are spread over columns named year, month, day, hour."""
    wanted = {
        "year": ({"year", "yr", "yyyy", "jahr"}, 1000, 2200),
        "month": ({"month", "mon", "mo", "mm", "monat"}, 1, 12),
        "day": ({"day", "dy", "dd", "dom", "tag"}, 1, 31),
        "hour": ({"hour", "hr", "hh"}, 0, 24),
    }
    found: list[str] = []
    for names, low, high in wanted.values():
        for name, values in samples.items():
            words = name_words(name)
            if len(words) == 1 and words[0] in names and _all_between(values, low, high):
                found.append(name)
                break
        else:
            break
    return TimeRef(columns=found, reading="parts") if len(found) >= 2 else None


def _all_between(values: list[str], low: int, high: int) -> bool:
    try:
        return bool(values) and all(low <= float(value) <= high for value in values)
    except ValueError:
        return False


def _with_clock(
    time: TimeRef | None, typed: list[tuple[str, str]], samples: dict[str, list[str]]
) -> TimeRef | None:
    """Add the column of quarters, hours or clock times that stands beside one of years or dates."""
    if time is None or len(time.columns) > 1:
        return time
    if time.reading == "year":
        for name, _ in typed:
            if name_words(name) in (["quarter"], ["qtr"]) and _all_between(samples[name], 1, 4):
                return time.model_copy(
                    update={"columns": [time.columns[0], name], "reading": "year+quarter"}
                )
    if time.reading in ("year", "yearmonth", "quarter", "named month"):
        return time
    clocks = [value for value in samples[time.columns[0]][:200] if ":" in value]
    if any(not value.endswith("00:00:00") for value in clocks):
        return time
    for name, kind in typed:
        words = name_words(name)
        if name == time.columns[0]:
            continue
        if words in (["hour"], ["hr"], ["hh"]) and _all_between(samples[name], 0, 24):
            return time.model_copy(
                update={"columns": [time.columns[0], name], "reading": f"{time.reading}+hour"}
            )
        clock = [value for value in samples[name][:50] if value.count(":") in (1, 2)]
        if (kind == "TIME" or "time" in words) and clock and len(clock) == len(samples[name][:50]):
            return time.model_copy(
                update={"columns": [time.columns[0], name], "reading": f"{time.reading}+time"}
            )
    return time
