"""The highest and lowest values, with their time."""

from __future__ import annotations

from capabilities.data.analysis.buckets import CYCLIC, group_extreme, is_coarser
from capabilities.data.analysis.frame import Frame, Line, capital
from capabilities.data.vocabulary import Direction
from capabilities.data.wording import date_text, listed

_ASPECT_OF: dict[Direction, str] = {"max": "high", "min": "low"}


def extremes(frame: Frame) -> None:
    """Find every extreme that is asked for."""
    request = frame.request
    directions = request.directions or [
        (name, None) for name in ("max", "min") if request.asks(name)
    ]
    done: set[tuple[Direction, Line]] = set()
    for direction, quantity in directions:
        for line in _lines_for(frame, direction, quantity):
            if (direction, line) in done:
                continue
            done.add((direction, line))
            _one(frame, line, direction, quantity)


def _lines_for(frame: Frame, direction: Direction, quantity: str | None) -> list[Line]:
    """Choose the lines of an extreme: the hottest day is one of the highs, not of the lows."""
    measures = frame.dataset.measures
    numbers = [n for n, m in enumerate(measures) if quantity in (None, m.quantity)]
    numbers = numbers or list(range(len(measures)))
    fitting = [n for n in numbers if measures[n].aspect == _ASPECT_OF[direction]]
    if fitting and len({measures[n].quantity for n in numbers}) == 1:
        numbers = fitting
    data = frame.dataset
    apart = bool(data.group_columns) or any(len(f.values) > 1 for f in data.parts[0].filters)
    if apart and frame.series and not data.group_columns:
        return [Line(n, name) for n in numbers for name in frame.series]
    return [Line(n) for n in numbers]


def _one(frame: Frame, line: Line, direction: Direction, quantity: str | None) -> None:
    group = frame.request.group
    measure = frame.measure(line)
    stacked = frame.stacked and measure.additive
    if group and group != "series" and (is_coarser(group, frame.dataset.frequency) or stacked):
        literal = (
            quantity is None
            and not measure.additive
            and not frame.request.asks("mean", "sum", "median")
        )
        within_day = group == "day" and not measure.additive and not frame.request.asks("mean")
        if group in CYCLIC or not (literal or within_day):
            group_extreme(frame, line, group, direction)
            return
        _raw(frame, line, direction)
        if literal and not within_day:
            group_extreme(frame, line, group, direction)
        return
    _raw(frame, line, direction)


def _raw(frame: Frame, line: Line, direction: Direction) -> None:
    periods = frame.dataset.time_range.periods
    if len(periods) > 1:
        for number, period in enumerate(periods):
            _raw_in(frame, line, direction, f"p = {number}", f" in {period.label}")
    else:
        _raw_in(frame, line, direction, "TRUE", frame.period)


def _raw_in(frame: Frame, line: Line, direction: Direction, extra: str, period: str) -> None:
    order = "DESC" if direction == "max" else "ASC"
    top = frame.request.top
    rows = frame.query(
        f"SELECT t, s, l, v FROM e WHERE {line.where} AND {extra}"  # noqa: S608
        f" ORDER BY v {order}, t, s LIMIT {max(top, 1)}"
    )
    if not rows:
        return
    word = "highest" if direction == "max" else "lowest"
    name = frame.name(line)
    moment, series, label, value = rows[0]
    if top > 1:
        items = [_place(frame, line, row) for row in rows]
        frame.add(
            direction,
            f"The {len(rows)} {word} values of {name}{period} are {listed(items)}.",
            values=[row[3] for row in rows],
        )
        frame.mark(line, moment, value, frame.value(line, value))
        return
    text = f"The {word} {name}{period} was {frame.value(line, value)}"
    if label:
        text += f", of {label}"
    if series and line.series is None:
        text += f", {'in' if frame.dataset.series_name == 'file' else 'of'} {series}"
    if moment is not None:
        text += (
            f", {frame.when(moment)}"
            if not label
            else f" ({date_text(moment, frame.dataset.frequency)})"
        )
    ties = _ties(frame, line, extra, value, moment)
    frame.add(
        direction,
        capital(text) + ties + ".",
        value=value,
        time=moment,
        **({"series": series} if series else {}),
        **({"name": label} if label else {}),
    )
    noun = date_text(moment, frame.dataset.frequency) if moment else ""
    marked = Line(line.measure, series) if series else line
    frame.mark(marked, moment, value, f"{frame.value(line, value)}, {noun}")


def _place(frame: Frame, line: Line, row: tuple[object, ...]) -> str:
    moment, series, label, value = row
    text = frame.value(line, float(value))  # type: ignore[arg-type]
    if label:
        return f"{text} ({label})"
    if series and line.series is None:
        text += f" ({series})"
    return f"{text} {frame.when(moment)}" if moment is not None else text  # type: ignore[arg-type]


def _ties(frame: Frame, line: Line, extra: str, value: float, first: object) -> str:
    rows = frame.query(
        f"SELECT t, s, l FROM e WHERE {line.where} AND {extra} AND v = {value!r}"  # noqa: S608
        " ORDER BY t, s LIMIT 1000"
    )
    others = [row for row in rows if row[0] != first] if first is not None else rows[1:]
    if not others:
        return ""
    shown = [
        date_text(row[0], frame.dataset.frequency)
        if row[0] is not None
        else str(row[2] or row[1] or "")
        for row in others[:3]
    ]
    if not any(shown):
        return f" ({len(others) + 1} rows)"
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f" (the same value: {', '.join(shown)}{more})"
