"""Limits, streaks, anomalies, shares and correlation."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import combinations

from capabilities.data.analysis.buckets import limit_text, threshold_sql
from capabilities.data.analysis.frame import MAX_LINES, Frame, Line, capital
from capabilities.data.analysis.request import Threshold
from capabilities.data.wording import count_of, date_text, listed, percent_text

_ABOVE_NOTHING = Threshold(">", 0.0)


def _beyond(frame: Frame, line: Line) -> str:
    threshold = frame.request.threshold
    assert threshold is not None
    return threshold_sql(frame, line, threshold)


def count_beyond(frame: Frame) -> None:
    """Answer "how many days above 30"."""
    data = frame.dataset
    periods = data.time_range.periods
    for line in frame.lines[:MAX_LINES]:
        by_day = data.frequency in ("hour", "minute") and frame.request.counted == "day"
        unit = "day" if by_day else (data.frequency or "row")
        counter = "count(DISTINCT t::DATE)" if by_day else "count(*)"
        if data.first is None or data.parts[0].label_column or frame.stacked:
            unit = "row"
        texts, values = [], {}
        for number, period in list(enumerate(periods)) if len(periods) > 1 else [(None, None)]:
            extra = "TRUE" if number is None else f"p = {number}"
            count, total, first, last = frame.query(
                f"SELECT {counter} FILTER ({_beyond(frame, line)}), {counter},"  # noqa: S608
                f" min(t) FILTER ({_beyond(frame, line)}), max(t) FILTER ({_beyond(frame, line)})"
                f" FROM e WHERE {line.where} AND {extra}"
            )[0]
            label = f" in {period.label}" if period else frame.period
            share = f" ({percent_text(100 * count / total)} of {total:,})" if total else ""
            text = f"{count_of(count, unit)}{label}{share}"
            if count and first is not None and len(periods) < 2 and count > 1:
                text += f", the first {frame.when(first)}, the last {frame.when(last)}"
            elif count == 1 and first is not None:
                text += f", {frame.when(first)}"
            texts.append(text)
            values[period.label if period else "count"] = count
        frame.add("threshold", capital(f"{limit_text(frame, line)}: {'; '.join(texts)}."), **values)


def crossing(frame: Frame) -> None:
    """Answer "when did it first exceed 400"."""
    last = frame.request.crossing == "last"
    for line in frame.lines[:MAX_LINES]:
        rows = frame.query(
            f"SELECT t, v FROM e WHERE {line.where} AND {_beyond(frame, line)}"  # noqa: S608
            f" ORDER BY t {'DESC' if last else 'ASC'} LIMIT 1"
        )
        limit = limit_text(frame, line)
        if rows and rows[0][0] is not None:
            moment, value = rows[0]
            text = (
                f"The {'last' if last else 'first'} time with {limit}{frame.period} was"
                f" {date_text(moment, frame.dataset.frequency)} ({frame.value(line, value)})."
            )
            frame.add("crossing", text, time=moment, value=value)
            frame.mark(line, moment, value, date_text(moment, frame.dataset.frequency))
            continue
        low, high = frame.query(f"SELECT min(v), max(v) FROM e WHERE {line.where}")[0]  # noqa: S608
        frame.add(
            "crossing",
            f"There is no value with {limit}{frame.period}; the values lie between"
            f" {frame.value(line, low)} and {frame.value(line, high)}.",
        )


def longest_run(frame: Frame, dry: bool) -> None:
    """Find the longest stretch of rows beyond a limit: spells and streaks."""
    data = frame.dataset
    for line in frame.lines[:4]:
        measure = frame.measure(line)
        threshold = frame.request.threshold
        if threshold is None:
            threshold = Threshold("<=", 0.0) if dry else _ABOVE_NOTHING
            if not measure.additive:
                frame.notes.append(f"Name a limit for the streak of {measure.label}.")
                return
        test = threshold_sql(frame, line, threshold)
        rows = frame.query(
            "SELECT min(t), max(t), count(*) AS n FROM (SELECT t, hit,"  # noqa: S608
            " row_number() OVER (ORDER BY t) - row_number() OVER (PARTITION BY hit ORDER BY t) AS g"
            f" FROM (SELECT t, {test} AS hit FROM e WHERE {line.where}))"
            " WHERE hit GROUP BY g ORDER BY n DESC, 1 LIMIT 1"
        )
        what = "without" if threshold == Threshold("<=", 0.0) else "with"
        limit = f"{what} {frame.name(line)}"
        if frame.request.threshold is not None:
            limit = f"with {limit_text(frame, line)}"
        if not rows:
            frame.add("run", f"There is no {data.frequency or 'row'} {limit}{frame.period}.")
            continue
        start, end, length = rows[0]
        frequency = data.frequency
        span = (
            f", from {date_text(start, frequency)} to {date_text(end, frequency)}" if start else ""
        )
        frame.add(
            "run",
            f"The longest run {limit}{frame.period} lasted"
            f" {count_of(length, frequency or 'row')}{span}.",
            length=length,
            start=start,
            end=end,
        )


def anomalies(frame: Frame) -> None:
    """Find values far from the usual ones, by the median and its absolute deviation."""
    data = frame.dataset
    seasonal = (
        data.frequency in ("hour", "day", "week", "month")
        and data.first is not None
        and data.last is not None
        and data.last - data.first > timedelta(days=700)
    )
    usual = "median(v) OVER (PARTITION BY month(t))" if seasonal else "median(v) OVER ()"
    for line in frame.lines[:MAX_LINES]:
        if frame.measure(line).additive and data.frequency in ("hour", "day"):
            usual = "median(v) OVER ()"
        rows = frame.query(
            f"WITH r AS (SELECT t, s, l, v, v - {usual} AS r FROM e WHERE {line.where}),"  # noqa: S608
            " k AS (SELECT median(abs(r)) AS mad, quantile_cont(v, 0.75) AS q3,"
            " quantile_cont(v, 0.25) AS q1 FROM r)"
            " SELECT t, v, CASE WHEN mad > 0 THEN 0.6745 * r / mad"
            " WHEN q3 > q1 THEN 3.5 * greatest(v - q3, q1 - v) / (3 * (q3 - q1)) END AS z,"
            " mad > 0, l, s FROM r, k WHERE abs(z) > 3.5 ORDER BY abs(z) DESC, t"
        )
        compared = (
            "the median of their calendar month" if seasonal and "PART" in usual else "the median"
        )
        method = f"robust z-score above 3.5 against {compared} and the median absolute deviation"
        if rows and not rows[0][3]:
            method = "more than three quartile ranges outside the middle half"
        if not rows:
            frame.add(
                "anomalies",
                f"No anomalies in {frame.name(line)}{frame.period} ({method}).",
                count=0,
            )
            continue
        shown = [
            f"{frame.value(line, row[1])} {frame.when(row[0])}"
            if row[0]
            else f"{frame.value(line, row[1])}"
            + (f" ({row[4] or row[5]})" if row[4] or row[5] else "")
            for row in rows[:5]
        ]
        more = f" The most extreme: {listed(shown)}." if len(rows) > 1 else f" It is {shown[0]}."
        noun = "1 anomaly" if len(rows) == 1 else f"{len(rows)} anomalies"
        frame.add(
            "anomalies",
            f"{noun} in {frame.name(line)}{frame.period} ({method}).{more}",
            count=len(rows),
        )
        for row in rows[:5]:
            frame.mark(line, row[0], row[1], date_text(row[0], data.frequency) if row[0] else "")


def share(frame: Frame) -> None:
    """Answer what part of the whole some series are, per period where several are named."""
    data = frame.dataset
    focus = listed(data.focus)
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in data.focus)
    periods = data.time_range.periods
    values: list[tuple[str, float]] = []
    earliest = datetime.min
    numbers: list[int | None] = [None]
    if len(periods) > 1:
        numbers = [*sorted(range(len(periods)), key=lambda n: periods[n].start or earliest)]
    for number in numbers:
        extra = "TRUE" if number is None else f"p = {number}"
        part, whole = frame.query(
            f"SELECT sum(v) FILTER (s IN ({names})), sum(v) FROM d WHERE m = 0 AND {extra}"  # noqa: S608
        )[0]
        if not whole:
            continue
        label = periods[number].label if number is not None else ""
        values.append((label, 100 * (part or 0) / whole))
        line = Line(0)
        amounts = f"{frame.value(line, part or 0)} of {frame.value(line, whole)}"
        where = f" in {label}" if label else frame.period
        what = data.measures[0].label if data.measures[0].column else "rows"
        frame.add(
            "share",
            f"{focus} made up {percent_text(values[-1][1])} of {what}{where} ({amounts}).",
            percent=values[-1][1],
            part=part,
            whole=whole,
        )
    if len(values) == 2:
        step = values[1][1] - values[0][1]
        frame.add(
            "compare",
            f"That is {step:+.1f} percentage points from {values[0][0]} to {values[1][0]}.",
            difference=step,
        )


def measure_share(frame: Frame) -> None:
    """Answer what part one column is of another one."""
    totals = [
        frame.query(f"SELECT sum(v) FROM e WHERE m = {number}")[0][0] or 0.0  # noqa: S608
        for number in range(len(frame.dataset.measures))
    ]
    whole = max(range(len(totals)), key=lambda number: totals[number])
    for number, total in enumerate(totals):
        if number != whole and totals[whole]:
            percent = 100 * total / totals[whole]
            frame.add(
                "share",
                f"{frame.name(Line(number))} was {percent_text(percent)} of"
                f" {frame.name(Line(whole))}{frame.period}.",
                percent=percent,
            )


def correlation(frame: Frame) -> None:
    """Say how closely two columns go together."""
    measures = frame.dataset.measures
    for a, b in list(combinations(range(len(measures)), 2))[:6]:
        value, count = frame.query(
            "SELECT corr(x.v, y.v), count(*) FROM d AS x JOIN d AS y ON x.r = y.r"  # noqa: S608
            f" AND x.s IS NOT DISTINCT FROM y.s WHERE x.m = {a} AND y.m = {b}"
        )[0]
        if value is None:
            continue
        strength = next(
            word
            for limit, word in (
                (0.1, "no"),
                (0.3, "a weak"),
                (0.6, "a moderate"),
                (2.0, "a strong"),
            )
            if abs(value) < limit
        )
        sign = "" if strength == "no" else " positive" if value > 0 else " negative"
        frame.add(
            "correlation",
            f"{measures[a].label} and {measures[b].label} show {strength}{sign} correlation"
            f"{frame.period} (Pearson r = {value:.2f} over {count_of(count, 'row')}).",
            r=value,
        )
