"""Values per month, weekday, season …: tables, and which group is the highest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Literal

from capabilities.contexts import TableResult
from capabilities.data.analysis.frame import Frame, Line, capital
from capabilities.data.analysis.request import Threshold, Unit
from capabilities.data.units import convert
from capabilities.data.vocabulary import Direction
from capabilities.data.wording import bucket_text, listed

Aggregate = Literal["mean", "sum", "max", "min", "median", "count", "std", "threshold"]
_RANK = {"minute": 0, "hour": 1, "day": 2, "week": 3, "month": 4, "quarter": 5, "season": 5,
         "year": 6, "decade": 7}  # fmt: skip
CYCLIC = {"weekday", "hour_of_day", "month_of_year", "weekend"}
_INNER = {"month_of_year": "month", "weekday": "day", "hour_of_day": "hour", "weekend": "day"}
_SQL = {"mean": "avg(v)", "sum": "sum(v)", "max": "max(v)", "min": "min(v)", "median": "median(v)",
        "count": "count(*)", "std": "stddev_samp(v)"}  # fmt: skip
WORDS: dict[str, str] = {
    "mean": "mean", "sum": "total", "max": "highest", "min": "lowest", "median": "median",
    "count": "number of", "std": "standard deviation of",
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """One group and its value."""

    key: Any
    value: float
    rows: int


def bucket_sql(unit: Unit | str) -> str:
    """Return SQL for the group that a moment belongs to."""
    if unit == "season":
        # Seasons are quarters that begin a month earlier: December, March, June, September.
        return "date_trunc('quarter', t + INTERVAL 1 MONTH) - INTERVAL 1 MONTH"
    cyclic = {"weekday": "isodow(t) - 1", "hour_of_day": "hour(t)", "month_of_year": "month(t)"}
    cyclic["weekend"] = "CASE WHEN isodow(t) > 5 THEN 'weekends' ELSE 'weekdays' END"
    return cyclic.get(unit, f"date_trunc('{unit}', t)")


def is_coarser(unit: Unit | str, frequency: str | None) -> bool:
    """Say whether a unit gathers several rows of the data.

    >>> is_coarser("month", "day"), is_coarser("day", "day"), is_coarser("weekday", "day")
    (True, False, True)
    """
    if unit in CYCLIC:
        return True
    return _RANK.get(unit, 0) > _RANK.get(frequency or "minute", 0)


def threshold_sql(frame: Frame, line: Line, threshold: Threshold) -> str:
    """Return SQL for "beyond the limit", the limit in the unit of the data."""
    limit = convert(threshold.value, threshold.unit, frame.measure(line).unit)
    return f"v {threshold.operator} {limit!r}"


def buckets(
    frame: Frame, line: Line, unit: Unit | str, aggregate: Aggregate, extra: str = "TRUE"
) -> list[Bucket]:
    """Compute one value per group, in the order of the groups."""
    key = bucket_sql(unit)
    where = f"{line.where} AND {extra}"
    if aggregate == "threshold" and frame.request.threshold is not None:
        beyond = threshold_sql(frame, line, frame.request.threshold)
        sql = f"SELECT {key} AS k, count(*) FILTER ({beyond}), count(*) FROM e WHERE {where}"  # noqa: S608
    elif aggregate == "sum" and unit in CYCLIC:
        # The usual total of a March is the mean of the totals of all Marches.
        inner = bucket_sql(_INNER[unit])
        sql = (
            f"SELECT k, avg(v), count(*) FROM (SELECT {key} AS k, {inner} AS i, sum(v) AS v"  # noqa: S608
            f" FROM e WHERE {where} GROUP BY k, i)"
        )
    else:
        sql = f"SELECT {key} AS k, {_SQL[aggregate]}, count(*) FROM e WHERE {where}"  # noqa: S608
    rows = frame.query(f"{sql} GROUP BY k ORDER BY k")
    return [Bucket(key, float(value), n) for key, value, n in rows if value is not None]


def default_aggregate(frame: Frame, line: Line) -> Aggregate:
    """Choose how the values of a group are summed up: as asked, else totals or means."""
    request, measure = frame.request, frame.measure(line)
    if request.threshold is not None and request.asks("threshold", "count"):
        return "threshold"
    if not measure.column:
        return "count"
    for name in ("median", "std", "sum"):
        if request.asks(name):
            return name
    if measure.additive and (not request.asks("mean") or "per" in (request.counted or "")):
        return "sum"
    if not request.asks("mean") and not request.grouped_extreme:
        if request.asks("max") and not request.asks("min"):
            return "max"
        if request.asks("min") and not request.asks("max"):
            return "min"
    return "mean"


def phrase(frame: Frame, line: Line, aggregate: Aggregate) -> str:
    """Name an aggregate of a line: "mean temp_max"."""
    if aggregate == "threshold" and frame.request.threshold is not None:
        return f"number of rows with {limit_text(frame, line)}"
    name = frame.name(line)
    if aggregate == "count":
        return f"number of {name}"
    return f"{WORDS[aggregate]} {name}"


def limit_text(frame: Frame, line: Line) -> str:
    """Write a threshold: "temp_max above 30.0 °C"."""
    threshold = frame.request.threshold
    assert threshold is not None
    words = {">": "above", "<": "below", ">=": "of at least", "<=": "of at most", "=": "equal to"}
    limit = convert(threshold.value, threshold.unit, frame.measure(line).unit)
    decimals = 0 if limit == int(limit) else 2
    more = max(0, decimals - frame.measure(line).decimals)
    return f"{frame.name(line)} {words[threshold.operator]} {frame.value(line, limit, more)}"


def value_of(frame: Frame, line: Line, aggregate: Aggregate, value: float) -> str:
    """Write a group's value as exactly as its kind allows."""
    if aggregate in ("count", "threshold"):
        return f"{int(value):,}" if value >= 10_000 else str(int(value))
    if aggregate in ("mean", "std", "median"):
        return frame.average(line, value)
    return frame.value(line, value)


def without_partial(found: list[Bucket], unit: Unit | str) -> list[Bucket]:
    """Leave out a first or last group that the data covers only in part: its total says nothing."""
    if unit in CYCLIC or len(found) < 3:
        return found
    usual = median(bucket.rows for bucket in found)
    return [
        bucket
        for index, bucket in enumerate(found)
        if bucket.rows >= 0.7 * usual or index not in (0, len(found) - 1)
    ]


def group_extreme(frame: Frame, line: Line, unit: Unit, direction: Direction) -> None:
    """Answer "which month was the wettest"."""
    aggregate = default_aggregate(frame, line)
    if not frame.measure(line).additive and aggregate == "sum":
        aggregate = "sum" if frame.request.asks("sum") else "mean"
    found = buckets(frame, line, unit, aggregate)
    if aggregate in ("sum", "count", "threshold"):
        found = without_partial(found, unit)
    if not found:
        return
    found_sorted = sorted(found, key=lambda b: b.value, reverse=direction == "max")
    word = "highest" if direction == "max" else "lowest"
    best = found_sorted[0]
    text = (
        f"{bucket_text(best.key, unit)} had the {word} {phrase(frame, line, aggregate)}"
        f"{' on average' if unit in CYCLIC and aggregate == 'sum' else ''}{frame.period}:"
        f" {value_of(frame, line, aggregate, best.value)}"
    )
    ties = [b for b in found_sorted[1:] if b.value == best.value]
    if ties:
        text += f" (as had {listed([bucket_text(b.key, unit) for b in ties[:3]])})"
    rest = found_sorted[1 : max(frame.request.top, 3)]
    if rest and not ties:
        text += ", followed by " + listed(
            [
                f"{bucket_text(b.key, unit)} ({value_of(frame, line, aggregate, b.value)})"
                for b in rest
            ]
        )
    frame.add(
        direction,
        capital(text) + ".",
        group=bucket_text(best.key, unit),
        value=best.value,
        aggregate=aggregate,
    )
    frame.tables.append(_table(frame, line, unit, aggregate, found))
    if isinstance(best.key, datetime) and aggregate != "threshold":
        frame.mark(line, best.key, best.value, bucket_text(best.key, unit))
    if unit in ("month", "quarter") and aggregate != "threshold" and _years(frame) > 2:
        _usual_extreme(frame, line, aggregate, direction)


def _usual_extreme(frame: Frame, line: Line, aggregate: Aggregate, direction: Direction) -> None:
    found = buckets(frame, line, "month_of_year", aggregate)
    if len(found) < 6:
        return
    best = sorted(found, key=lambda b: b.value, reverse=direction == "max")[0]
    frame.add(
        direction,
        f"Over all years {bucket_text(best.key, 'month_of_year')} has the"
        f" {'highest' if direction == 'max' else 'lowest'} {phrase(frame, line, aggregate)} on"
        f" average: {value_of(frame, line, 'mean', best.value)}.",
        group=bucket_text(best.key, "month_of_year"),
        value=best.value,
        aggregate=aggregate,
    )


def _years(frame: Frame) -> float:
    data = frame.dataset
    if data.first is None or data.last is None:
        return 0.0
    return (data.last - data.first) / timedelta(days=365.25)


def breakdown(frame: Frame, unit: Unit) -> None:
    """Answer "by month": a table, its values in a sentence where they are few."""
    counted = not frame.dataset.measures[0].column
    coarser = is_coarser(unit, frame.dataset.frequency) or frame.stacked
    if not counted and not coarser and frame.dataset.rows > 40:
        return
    if unit == "month" and _years(frame) > 2.1:
        # Dozens of months in a row answer nothing; the usual year does.
        unit = "month_of_year"
    for line in frame.lines[:6]:
        aggregate = default_aggregate(frame, line)
        found = buckets(frame, line, unit, aggregate)
        if not found:
            continue
        frame.tables.append(_table(frame, line, unit, aggregate, found))
        title = capital(f"{phrase(frame, line, aggregate)}{frame.period} by {unit_name(unit)}")
        if unit in CYCLIC and aggregate == "sum":
            title += " (mean of the totals)"
        values = [
            f"{bucket_text(b.key, unit)} {value_of(frame, line, aggregate, b.value)}" for b in found
        ]
        high, low = max(found, key=lambda b: b.value), min(found, key=lambda b: b.value)
        if len(found) <= 25:
            text = f"{title}: {', '.join(values)}."
        else:
            text = f"{title}: {len(found)} values, from {values[0]} to {values[-1]}."
        if len(found) > 2 and high.value > low.value:
            text += (
                f" Highest in {bucket_text(high.key, unit)}"
                f" ({value_of(frame, line, aggregate, high.value)}), lowest in"
                f" {bucket_text(low.key, unit)} ({value_of(frame, line, aggregate, low.value)})."
            )
        if aggregate == "mean" and frame.measure(line).additive and unit != "weekend":
            totals = buckets(frame, line, unit, "sum")
            sums = [
                f"{bucket_text(b.key, unit)} {value_of(frame, line, 'sum', b.value)}"
                for b in totals
            ]
            if len(sums) <= 12:
                text += f" The {'usual ' if unit in CYCLIC else ''}totals: {', '.join(sums)}."
        frame.add("breakdown", text, **{bucket_text(b.key, unit): b.value for b in found[:60]})


def mean_of_totals(frame: Frame, unit: Unit) -> None:
    """Answer "average monthly rainfall": the mean of the totals of all months."""
    for line in frame.lines[:6]:
        if not frame.measure(line).additive or not (
            is_coarser(unit, frame.dataset.frequency) or frame.stacked
        ):
            continue
        found = without_partial(buckets(frame, line, unit, "sum"), unit)
        if found:
            mean = sum(bucket.value for bucket in found) / len(found)
            frame.add(
                "mean",
                f"The mean total of {frame.name(line)} per {unit_name(unit)}{frame.period} was"
                f" {frame.average(line, mean)} ({len(found)} {unit_name(unit)}s).",
                value=mean,
            )


def unit_name(unit: str) -> str:
    """Write a unit of grouping.

    >>> unit_name("month_of_year")
    'month of the year'
    """
    return {"month_of_year": "month of the year", "hour_of_day": "hour of the day"}.get(unit, unit)


def _table(
    frame: Frame, line: Line, unit: Unit | str, aggregate: Aggregate, found: list[Bucket]
) -> TableResult:
    counted = aggregate in ("count", "threshold")
    return TableResult(
        title=phrase(frame, line, aggregate),
        group=unit_name(unit),
        unit=None if counted else frame.measure(line).unit,
        rows=[
            {"group": bucket_text(b.key, unit), "value": b.value, "rows": b.rows}
            for b in found[:400]
        ],
    )
