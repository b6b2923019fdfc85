"""How values moved: trend, first to last, period against period, line against line."""

from __future__ import annotations

from datetime import datetime, timedelta

from capabilities.contexts import Period
from capabilities.data.analysis.buckets import (
    WORDS,
    Aggregate,
    buckets,
    default_aggregate,
    is_coarser,
    value_of,
)
from capabilities.data.analysis.frame import MAX_LINES, Frame, Line, capital
from capabilities.data.relation import time_condition
from capabilities.data.wording import bucket_text, date_text, listed, percent_text

_SECONDS = {
    "hour": 3600.0,
    "day": 86400.0,
    "month": 365.25 / 12 * 86400.0,
    "year": 365.25 * 86400.0,
}
_FUNCTIONS = {"mean": "avg(v)", "sum": "sum(v)", "max": "max(v)", "min": "min(v)",
              "median": "median(v)", "count": "count(*)", "std": "stddev_samp(v)"}  # fmt: skip


def _span(frame: Frame) -> timedelta:
    data = frame.dataset
    return (data.last - data.first) if data.first and data.last else timedelta(0)


def _slope_unit(frame: Frame) -> str:
    days, frequency = _span(frame).days, frame.dataset.frequency
    if frequency == "year" or days > 3 * 366:
        return "year"
    if frequency in ("month", "quarter") or days > 120:
        return "month"
    return "day" if days > 3 or frequency == "day" else "hour"


def trend(frame: Frame, with_ends: bool = True) -> None:
    """Say the slope of the straight line through the values, and how they moved.

    Args:
        frame: The rows.
        with_ends: Whether first, last, lowest and highest value are to be said too.
    """
    if frame.dataset.first is None:
        frame.notes.append("Without a time column there is no trend.")
        return
    lines = frame.lines
    for line in lines[:MAX_LINES]:
        if len(lines) <= 3:
            _movement(frame, line, with_ends)
        _slope(frame, line)


def _slope(frame: Frame, line: Line) -> None:
    unit = _slope_unit(frame)
    slope, fit, count = frame.query(
        f"SELECT regr_slope(v, epoch(t) / {_SECONDS[unit]!r}), regr_r2(v, epoch(t)), count(*)"  # noqa: S608
        f" FROM e WHERE {line.where}"
    )[0]
    name = frame.name(line)
    if slope is None or count < 3:
        frame.notes.append(f"There are too few values of {name} for a trend.")
        return
    fit = fit if fit is not None else 1.0
    amount = _slope_text(frame, line, slope)
    if fit < 0.05:
        verdict = f"no clear trend: the slope is {amount} per {unit}"
    else:
        verdict = f"a {'rising' if slope > 0 else 'falling'} trend of {amount} per {unit}"
    frame.add(
        "trend",
        capital(
            f"{name} shows{'' if frame.findings else frame.period} {verdict} (linear fit, R² = {fit:.2f})."
        ),
        slope=slope,
        per=unit,
        r2=fit,
    )


def _slope_text(frame: Frame, line: Line, slope: float) -> str:
    decimals = frame.measure(line).decimals + 2
    while decimals < 8 and slope and abs(slope) < 10 ** -(decimals - 1):
        decimals += 1
    decimals = 1 if abs(slope) >= 1000 else min(decimals, 2 if abs(slope) >= 10 else decimals)
    more = decimals - frame.measure(line).decimals
    return frame.difference(line, slope, more)


def _movement(frame: Frame, line: Line, with_ends: bool) -> None:
    """Say the values per month, year or day: what a reader means by "how did it move"."""
    days, data = _span(frame).days, frame.dataset
    limits = [(3, "hour"), (14, "day"), (45, "week"), (800, "month"), (366 * 16, "year")]
    unit = next((name for limit, name in limits if days <= limit), "decade")
    if frame.request.group in ("day", "week", "month", "quarter", "year") and frame.request.asks(
        "breakdown"
    ):
        return
    if not is_coarser(unit, data.frequency):
        if with_ends:
            _ends(frame, line)
        return
    aggregate: Aggregate = "sum" if frame.measure(line).additive else "mean"
    found = buckets(frame, line, unit, aggregate)
    if not 2 <= len(found) <= 25:
        if with_ends:
            _ends(frame, line)
        return
    values = [
        f"{value_of(frame, line, aggregate, b.value)} in {bucket_text(b.key, unit)}" for b in found
    ]
    word = "totalled" if aggregate == "sum" else "averaged"
    frame.add(
        "movement",
        capital(f"{frame.name(line)} {word} {listed(values)}."),
        **{bucket_text(b.key, unit): b.value for b in found},
    )


def _ends(frame: Frame, line: Line) -> None:
    rows = frame.query(
        "SELECT first(v ORDER BY t), last(v ORDER BY t), min(t), max(t), min(v), max(v),"  # noqa: S608
        f" arg_min(t, v), arg_max(t, v), count(*) FROM e WHERE {line.where}"
    )
    first, last, start, end, low, high, low_time, high_time, count = rows[0]
    if count < 2:
        return
    frequency = frame.dataset.frequency
    frame.add(
        "movement",
        capital(
            f"{frame.name(line)} went from {frame.value(line, first)} ({date_text(start, frequency)})"
            f" to {frame.value(line, last)} ({date_text(end, frequency)}), with a low of"
            f" {frame.value(line, low)} ({date_text(low_time, frequency)}) and a high of"
            f" {frame.value(line, high)} ({date_text(high_time, frequency)})."
        ),
        first=first,
        last=last,
        low=low,
        high=high,
    )


def _ratio(frame: Frame, before: float, after: float) -> str:
    if not frame.percent_makes_sense or before == 0:
        return ""
    change = (after - before) / abs(before) * 100
    return f", {'+' if change > 0 else ''}{percent_text(change)}"


def change(frame: Frame) -> None:
    """Say how much a line changed from its first to its last value, and between endpoints."""
    endpoints = frame.dataset.time_range.endpoints
    results: list[tuple[Line, float, float]] = []
    ranking = bool(frame.request.directions) and len(frame.lines) > 1
    for line in frame.lines[:60]:
        if not ranking and len(endpoints) == 2 and _between_endpoints(frame, line, endpoints):
            continue
        rows = frame.query(
            "SELECT first(v ORDER BY t), last(v ORDER BY t), min(t), max(t), count(*)"  # noqa: S608
            f" FROM e WHERE {line.where}"
        )
        first, last, start, end, count = rows[0]
        if count < 2 or start is None:
            continue
        results.append((line, first, last))
        if ranking or len(frame.lines) > MAX_LINES:
            continue
        frequency = frame.dataset.frequency
        verb = "rose" if last > first else "fell" if last < first else "stayed at the same value"
        frame.add(
            "change",
            capital(
                f"{frame.name(line)} {verb} from {frame.value(line, first)}"
                f" ({date_text(start, frequency)}) to {frame.value(line, last)}"
                f" ({date_text(end, frequency)}): {frame.difference(line, last - first)}"
                f"{_ratio(frame, first, last)}."
            ),
            first=first,
            last=last,
            difference=last - first,
            percent=(last - first) / abs(first) * 100 if first else None,
        )
    if len(results) > 1 and (ranking or len(frame.lines) > MAX_LINES):
        _rank_changes(frame, results)


def _rank_changes(frame: Frame, results: list[tuple[Line, float, float]]) -> None:
    relative = frame.percent_makes_sense and all(first for _, first, _ in results)

    def size(result: tuple[Line, float, float]) -> float:
        _, first, last = result
        return (last - first) / abs(first) if relative else last - first

    least = frame.request.asks("min") and not frame.request.asks("max")
    ranked = sorted(results, key=size, reverse=not least)
    named = []
    for line, first, last in ranked[:6]:
        step = frame.difference(line, last - first)
        share = f"{size((line, first, last)) * 100:+.1f}%, " if relative else ""
        name = line.series or frame.measure(line).label
        named.append(f"{name} ({share}{step}, from {frame.value(line, first)})")
    frame.add(
        "change",
        f"{named[0]} {'gained the least' if least else 'gained the most'}{frame.period}; then"
        f" {listed(named[1:])}.",
        **{line.series or frame.measure(line).label: last - first for line, first, last in results},
    )


def _between_endpoints(frame: Frame, line: Line, endpoints: list[Period]) -> bool:
    """Compare the two ends of "from 2007 to 2010", where each holds several rows."""
    additive = frame.measure(line).additive
    values = []
    for period in endpoints:
        rule = frame.dataset.time_range.model_copy(update={"periods": [period]})
        function = "sum(v)" if additive else "avg(v)"
        value, count = frame.query(
            f"SELECT {function}, count(*) FROM e WHERE {line.where} AND {time_condition(rule)}"  # noqa: S608
        )[0]
        if not count:
            return False
        values.append((value, count))
    (before, n_before), (after, n_after) = values
    if n_before == 1 and n_after == 1:
        return False
    word = "totalled" if additive else "averaged"
    write = frame.value if additive else frame.average
    frame.add(
        "change",
        capital(
            f"{frame.name(line)} {word} {write(line, before)} in {endpoints[0].label} and"
            f" {write(line, after)} in {endpoints[1].label}:"
            f" {frame.difference(line, after - before, 0 if additive else frame.finer(line, after))}"
            f"{_ratio(frame, before, after)}."
        ),
        first=before,
        last=after,
        difference=after - before,
    )
    # Single noisy days at both ends say less than the means of the two periods.
    return additive or frame.dataset.frequency in ("minute", "hour", "day")


def _compare_aggregate(frame: Frame, line: Line) -> Aggregate:
    request = frame.request
    for name in ("median", "std", "mean", "sum", "max", "min"):
        if request.asks(name):
            return name
    return default_aggregate(frame, line)


def compare_periods(frame: Frame) -> None:
    """Compare the periods that the question names."""
    periods = frame.dataset.time_range.periods
    for line in frame.lines[:MAX_LINES]:
        aggregate = _compare_aggregate(frame, line)
        function = _FUNCTIONS[aggregate]
        rows = frame.query(
            f"SELECT p, {function}, count(*) FROM e WHERE {line.where} GROUP BY p ORDER BY p"  # noqa: S608
        )
        values = {p: float(value) for p, value, _ in rows if value is not None}
        order = sorted(values)
        if not frame.request.comparative and all(periods[p].start for p in order):
            # The later period is compared with the earlier one, however they were named.
            order.sort(key=lambda p: periods[p].start or datetime.min)
        named = [(periods[p].label, values[p]) for p in order]
        _say_comparison(frame, line, aggregate, named)


def compare_lines(frame: Frame) -> None:
    """Compare the series or columns that the question names."""
    lines = frame.lines
    for number in sorted({line.measure for line in lines}):
        group = [line for line in lines if line.measure == number]
        if len(group) < 2:
            group = lines
        named: list[tuple[str, float]] = []
        aggregate = _compare_aggregate(frame, group[0])
        for line in group[:60]:
            value = frame.query(f"SELECT {_FUNCTIONS[aggregate]} FROM e WHERE {line.where}")[0][0]  # noqa: S608
            if value is not None:
                named.append((line.series or frame.measure(line).label, float(value)))
        _say_comparison(frame, group[0], aggregate, named, across=True)
        if group is lines:
            return


def _say_comparison(
    frame: Frame,
    line: Line,
    aggregate: Aggregate,
    named: list[tuple[str, float]],
    across: bool = False,
) -> None:
    if not named:
        return
    texts = [
        f"{value_of(frame, line, aggregate, value)} {'for' if across else 'in'} {name}"
        for name, value in named
    ]
    same_measure = not across or line.series is not None
    what = frame.name(Line(line.measure) if across else line) if same_measure else "value"
    period = frame.period if across else ""
    text = f"The {WORDS[aggregate]} {what}{period} was {listed(texts)}"
    values = dict(named[:60])
    if len(named) == 2:
        # "Was 2013 warmer than 2012" asks about the first, "compare 2012 and 2013" for the change.
        subject, other = (named[0], named[1]) if frame.request.comparative else (named[1], named[0])
        difference = subject[1] - other[1]
        exact = aggregate in ("mean", "median", "std")
        if difference == 0:
            text += ": the same"
        else:
            finer = frame.finer(line, difference) if exact else 0
            size = frame.difference(line, abs(difference), finer).lstrip("+")
            ratio = _ratio(frame, other[1], subject[1]).removeprefix(", ")
            text += (
                f": {subject[0]} is {size} {'higher' if difference > 0 else 'lower'} than {other[0]}"
                + (f" ({ratio})" if ratio else "")
            )
        values["difference"] = difference
    elif len(named) > 2:
        high, low = max(named, key=lambda n: n[1]), min(named, key=lambda n: n[1])
        text += f"; highest for {high[0]}, lowest for {low[0]}"
    frame.add("compare", f"{text}.", **values)
    if len(named) >= 2:
        from capabilities.contexts import TableResult

        frame.tables.append(
            TableResult(
                title=f"{WORDS[aggregate]} {what}",
                group="period" if not across else frame.dataset.series_name or "column",
                unit=frame.measure(line).unit,
                rows=[{"group": name, "value": value} for name, value in named[:30]],
            )
        )
