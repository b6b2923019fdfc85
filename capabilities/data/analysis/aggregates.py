"""Mean, median, total, spread, percentiles and counts."""

from __future__ import annotations

from capabilities.contexts import TableResult
from capabilities.data.analysis.buckets import Aggregate, default_aggregate, phrase, value_of
from capabilities.data.analysis.frame import MAX_LINES, Frame, Line, capital
from capabilities.data.wording import count_of, date_text, listed

_SQL = {"mean": "avg(v)", "median": "median(v)", "sum": "sum(v)", "std": "stddev_samp(v)"}
_WORDS = {"mean": "mean", "median": "median", "sum": "total", "std": "standard deviation of"}


def aggregates(frame: Frame) -> None:
    """Compute the averages, totals and spreads that are asked for."""
    for name in ("mean", "median", "sum", "std"):
        if frame.request.asks(name):
            _aggregate(frame, name)
    if frame.request.asks("percentile") and frame.request.percentile is not None:
        share = frame.request.percentile
        word = f"{_ordinal(share * 100)} percentile of"
        _aggregate(frame, "percentile", f"quantile_cont(v, {share!r})", word)
    if frame.request.asks("range"):
        for line in frame.lines[:MAX_LINES]:
            spread(frame, line)


def _ordinal(number: float) -> str:
    if number != int(number):
        return f"{number}th"
    whole = int(number)
    ending = "th" if 10 <= whole % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(whole % 10, "th")
    return f"{whole}{ending}"


def _aggregate(frame: Frame, kind: str, sql: str | None = None, word: str | None = None) -> None:
    sql, word = sql or _SQL[kind], word or _WORDS[kind]
    for number in range(len(frame.dataset.measures)):
        whole = Line(number)
        source = "d" if frame.series else "e"
        columns = "s" if frame.series else "NULL"
        rows = frame.query(
            f"SELECT {columns} AS s, {sql} FROM {source} WHERE m = {number} GROUP BY ALL ORDER BY 2 DESC"  # noqa: S608
            if frame.series
            else f"SELECT NULL, {sql} FROM {source} WHERE m = {number}"  # noqa: S608
        )
        values = [(series, float(value)) for series, value in rows if value is not None]
        if not values:
            continue

        def text_of(value: float, line: Line = whole) -> str:
            return frame.value(line, value) if kind in ("sum",) else frame.average(line, value)

        if len(values) == 1:
            line = Line(number, values[0][0])
            text = f"The {word} {frame.name(line)}{frame.period} was {text_of(values[0][1])}"
            frame.add(kind, f"{text}.", value=values[0][1])
            continue
        parts = [f"{text_of(value)} for {series}" for series, value in values[:MAX_LINES]]
        label = frame.name(Line(number))
        overall = ""
        if kind in ("mean", "median", "std", "percentile"):
            total = frame.query(f"SELECT {sql} FROM d WHERE m = {number}")[0][0]  # noqa: S608
            overall = f"; over all rows together {text_of(total)}" if total is not None else ""
        frame.add(
            kind,
            f"The {word} {label}{frame.period} was {listed(parts)}{overall}.",
            **{str(series): value for series, value in values[:60]},
        )
        if kind == "sum" and frame.measure(whole).additive:
            total = sum(value for _, value in values)
            frame.add("sum", f"Together: {frame.value(whole, total)}.", value=total)


def spread(frame: Frame, line: Line) -> None:
    """Say the lowest and the highest value with their times."""
    rows = frame.query(
        "SELECT min(v), max(v), arg_min(t, v), arg_max(t, v), count(*)"  # noqa: S608
        f" FROM e WHERE {line.where}"
    )
    low, high, low_time, high_time, count = rows[0]
    if not count:
        return
    frequency = frame.dataset.frequency
    low_text = f" ({date_text(low_time, frequency)})" if low_time else ""
    high_text = f" ({date_text(high_time, frequency)})" if high_time else ""
    frame.add(
        "range",
        capital(
            f"{frame.name(line)} ranged from {frame.value(line, low)}{low_text} to"
            f" {frame.value(line, high)}{high_text}, a difference of"
            f" {frame.value(line, high - low)}."
        ),
        low=low,
        high=high,
    )


def describe(frame: Frame, line: Line) -> None:
    """Say mean, extremes and, where it makes sense, the total of a line."""
    row = frame.query(
        "SELECT count(*), avg(v), median(v), stddev_samp(v), min(v), max(v), arg_min(t, v),"  # noqa: S608
        f" arg_max(t, v), sum(v), first(v ORDER BY t), last(v ORDER BY t) FROM e WHERE {line.where}"
    )[0]
    count, mean, middle, deviation, low, high, low_time, high_time, total, first, last = row
    if not count:
        return
    name, data = frame.name(line), frame.dataset
    if count == 1:
        moment = f", {frame.when(low_time)}" if low_time else ""
        frame.add("values", capital(f"{name} was {frame.value(line, mean)}{moment}."), value=mean)
        return
    when_low = f" {frame.when(low_time)}" if low_time else ""
    when_high = f" {frame.when(high_time)}" if high_time else ""
    text = f"{name}{frame.period}: "
    if frame.measure(line).additive:
        text += f"total {frame.value(line, total)}, "
    text += (
        f"mean {frame.average(line, mean)}, lowest {frame.value(line, low)}{when_low}, highest"
        f" {frame.value(line, high)}{when_high}"
    )
    if frame.request.asks("describe"):
        text += f", median {frame.average(line, middle)}"
        text += f", standard deviation {frame.average(line, deviation)}" if deviation else ""
    if data.frequency in ("month", "quarter", "year") and data.first and data.last:
        text += (
            f"; {frame.value(line, first)} at the beginning, {frame.value(line, last)} at the end"
        )
    frame.add(
        "describe",
        capital(f"{text} ({count_of(count, 'row')})."),
        mean=mean, median=middle, std=deviation, min=low, max=high, sum=total, count=count,
    )  # fmt: skip


def by_series(frame: Frame) -> None:
    """Answer per category: which one is the highest, or all of them."""
    request = frame.request
    extreme = request.asks("max", "min", "mode")
    lowest = request.asks("min") and not request.asks("max")
    for number, measure in enumerate(frame.dataset.measures):
        line = Line(number)
        aggregate: Aggregate = default_aggregate(frame, line)
        if (
            extreme
            and measure.column
            and not measure.additive
            and not request.asks("mean", "median", "sum")
        ):
            aggregate = "min" if lowest else "max"
        functions = {"mean": "avg(v)", "sum": "sum(v)", "max": "max(v)", "min": "min(v)",
                     "median": "median(v)", "count": "count(*)", "std": "stddev_samp(v)"}  # fmt: skip
        function = functions.get(aggregate, "avg(v)")
        at = (
            "arg_max(t, v)"
            if aggregate == "max"
            else "arg_min(t, v)"
            if aggregate == "min"
            else "NULL"
        )
        rows = frame.query(
            f"SELECT s, {function} AS x, {at} FROM d WHERE m = {number} GROUP BY s"  # noqa: S608
            f" HAVING x IS NOT NULL ORDER BY x {'ASC' if lowest else 'DESC'}, s"
        )
        if not rows:
            continue
        _say_series(frame, line, aggregate, rows, extreme, lowest)


def _say_series(
    frame: Frame,
    line: Line,
    aggregate: Aggregate,
    rows: list[tuple[object, ...]],
    extreme: bool,
    lowest: bool,
) -> None:
    def place(row: tuple[object, ...]) -> str:
        text = value_of(frame, line, aggregate, float(row[1]))  # type: ignore[arg-type]
        return text + (f" {frame.when(row[2])}" if row[2] is not None else "")  # type: ignore[arg-type]

    what = phrase(frame, line, aggregate)
    name = frame.dataset.series_name
    first = rows[0]
    if extreme:
        word = "lowest" if lowest else "highest"
        what = what.removeprefix(f"{word} ")
        text = f"{first[0]} had the {word} {what}{frame.period}: {place(first)}"
        ties = [str(row[0]) for row in rows[1:] if row[1] == first[1]]
        if ties:
            text += f" (as had {listed(ties[:4])})"
        rest = [row for row in rows[1 : max(frame.request.top, 5)] if row[1] != first[1]]
        if rest:
            text += "; then " + listed([f"{row[0]} ({place(row)})" for row in rest])
        kind = "min" if lowest else "max"
    else:
        shown = rows[:15]
        text = f"{what}{frame.period} by {name}: " + ", ".join(f"{r[0]} {place(r)}" for r in shown)
        if len(rows) > len(shown):
            text += f" and {len(rows) - len(shown)} more"
        kind = "breakdown"
    frame.add(kind, capital(text) + ".", **{str(row[0]): row[1] for row in rows[:60]})
    counted = aggregate == "count"
    frame.tables.append(
        TableResult(
            title=phrase(frame, line, aggregate),
            group=name or "series",
            unit=None if counted else frame.measure(line).unit,
            rows=[{"group": str(row[0]), "value": float(row[1])} for row in rows[:30]],  # type: ignore[arg-type]
        )
    )


def count_rows(frame: Frame) -> None:
    """Answer "how many" where rows are what is counted."""
    count = frame.query("SELECT count(*) FROM d WHERE m = 0")[0][0]
    filters = frame.dataset.parts[0].filters
    named = listed([f"{f.column} {' or '.join(f.values)}" for f in filters])
    part = frame.dataset.parts[0]
    regular = part.time is not None and not (part.label_column or part.series or frame.stacked)
    text = count_of(count, (frame.dataset.frequency if regular else None) or "row")
    frame.add("count", f"{text}{f' with {named}' if named else ''}{frame.period}.", count=count)
