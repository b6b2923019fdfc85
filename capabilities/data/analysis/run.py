"""From a question and its data set to the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from capabilities.contexts import Dataset, Statistics
from capabilities.data.analysis import changes, special
from capabilities.data.analysis.aggregates import (
    aggregates,
    by_series,
    count_rows,
    describe,
)
from capabilities.data.analysis.buckets import breakdown, is_coarser, mean_of_totals
from capabilities.data.analysis.extremes import extremes
from capabilities.data.analysis.frame import MAX_LINES, Frame
from capabilities.data.analysis.request import Request, Threshold, parse_request
from capabilities.data.session import open_session
from capabilities.data.vocabulary import Direction
from capabilities.data.words import MAX_TEXT
from capabilities.periods.reading import read_times

_FELL = re.compile(r"\bfell\b|\bfall\b|\bfallen\b", re.IGNORECASE)
_WORST = re.compile(r"\b(?:worst|best)\b", re.IGNORECASE)
_BAD = re.compile(
    r"pm\s?\d|no2|so2|co2|ozone|pollut|loss|error|defect|death|unemploy|delay|crime|accident"
    r"|emission|fatal|injur|fail|wait|latency|cost",
    re.IGNORECASE,
)
_DRY = re.compile(r"\b(?:dry|drought|without|no rain|rainless)\b", re.IGNORECASE)


def compute(
    dataset: Dataset,
    text: str,
    settings: Mapping[str, Any] | None = None,
    request: Request | None = None,
    progress: Callable[[str], None] = lambda _message: None,
) -> Statistics:
    """Answer a question over a data set.

    Args:
        dataset: What to compute over.
        text: The question.
        settings: As for retrieval.
        request: What to compute; read from the text when not given.
        progress: Told what is being done.
    """
    settings = settings or {}
    text = text[:MAX_TEXT]
    if request is None:
        names = [measure.label for measure in dataset.measures]
        request = parse_request(text, read_times(text, settings).spans, names)
    with open_session(settings) as session:
        progress(f"Computing over {dataset.rows:,} rows")
        frame = Frame(session, dataset, request)
        if len(dataset.series) > len(frame.series) > 0 or (
            len(dataset.series) > MAX_LINES and not frame.series and not frame.summed
        ):
            frame.notes.append(f"Computed over all {len(dataset.series)} series together.")
        _turn_bad_quantities(frame, text)
        _answer(frame, text)
        if not frame.findings:
            _default(frame)
        notes = [f"{note}." for note in dataset.notes]
        return Statistics(
            findings=frame.findings,
            tables=frame.tables,
            marks=frame.marks,
            notes=[*frame.notes, *notes],
        )


def _answer(frame: Frame, text: str) -> None:
    request, data = frame.request, frame.dataset
    counts_rows = all(not measure.column for measure in data.measures)
    if data.focus:
        special.share(frame)
    elif request.asks("share") and len(data.measures) > 1:
        special.measure_share(frame)
    elif request.asks("correlation") and len(data.measures) > 1:
        special.correlation(frame)
    elif request.asks("run"):
        special.longest_run(frame, dry=bool(_DRY.search(text)))
    elif request.asks("crossing"):
        special.crossing(frame)
    elif counts_rows:
        _count(frame)
    elif _counts_amounts(frame) or request.asks("threshold"):
        _beyond(frame)
    else:
        _values(frame, text)


def _turn_bad_quantities(frame: Frame, text: str) -> None:
    """The worst air quality or delay is the highest value, not the lowest."""
    labels = " ".join(measure.label for measure in frame.dataset.measures)
    if _WORST.search(text) and _BAD.search(labels):
        other: dict[str, Direction] = {"max": "min", "min": "max"}
        frame.request.directions = [(other[d], q) for d, q in frame.request.directions]
        names = frame.request.statistics
        frame.request.statistics = [other.get(name, name) for name in names]


def _count(frame: Frame) -> None:
    request = frame.request
    if frame.dataset.group_columns:
        by_series(frame)
    elif request.grouped_extreme and request.group and request.directions:
        extremes(frame)
    elif len(frame.dataset.time_range.periods) > 1:
        changes.compare_periods(frame)
    elif request.asks("breakdown") and request.group:
        breakdown(frame, request.group)
    else:
        count_rows(frame)


def _counts_amounts(frame: Frame) -> bool:
    """Say whether "how many days did it rain" asks for days with any amount."""
    request = frame.request
    if not request.asks("count") or not request.counted or request.threshold is not None:
        return False
    if not all(measure.additive for measure in frame.dataset.measures):
        return False
    request.threshold = Threshold(">", 0.0)
    return True


def _beyond(frame: Frame) -> None:
    request = frame.request
    request.statistics.append("threshold")
    if request.grouped_extreme and request.group and request.directions:
        extremes(frame)
    elif request.asks("breakdown") and request.group:
        breakdown(frame, request.group)
    else:
        special.count_beyond(frame)


def _values(frame: Frame, text: str) -> None:
    request, data = frame.request, frame.dataset
    if request.how_much and all(m.additive for m in data.measures) and _FELL.search(text):
        # "How much rain fell" asks for an amount and not for a change.
        request.statistics = [name for name in request.statistics if name != "change"]
    extreme = bool(request.directions)
    comparing = request.asks("compare") or request.comparative
    several = len(data.time_range.periods) > 1
    if several and (comparing or not extreme) and not request.grouped_extreme:
        changes.compare_periods(frame)
    elif request.asks("change") and extreme and len(frame.lines) > 1:
        changes.change(frame)
    else:
        _levels(frame, comparing)
        _movements(frame)


def _levels(frame: Frame, comparing: bool) -> None:
    """Answer how high the values are: extremes, averages, totals, groups."""
    request = frame.request
    grouped, extreme = bool(frame.dataset.group_columns), bool(request.directions)
    _drop_idle_group(frame)
    if request.mean_of and not extreme and not grouped:
        mean_of_totals(frame, request.mean_of)
    if comparing and len(frame.lines) > 1 and not grouped:
        changes.compare_lines(frame)
    elif grouped and not (extreme and request.grouped_extreme):
        by_series(frame)
    elif extreme:
        extremes(frame)
    elif request.asks("breakdown") and request.group:
        breakdown(frame, request.group)
    in_groups = grouped or bool(request.group and request.asks("mean", "sum"))
    if in_groups or request.asks("compare"):
        return
    if not extreme or request.asks("percentile", "range"):
        aggregates(frame)


def _drop_idle_group(frame: Frame) -> None:
    """Forget a grouping into the very steps of the data: "average daily rainfall" of daily rows."""
    request, data = frame.request, frame.dataset
    if not request.group or request.directions or frame.stacked:
        return
    if is_coarser(request.group, data.frequency):
        return
    if data.rows > 40 or request.asks("mean", "median", "sum"):
        request.group = None
        request.statistics = [name for name in request.statistics if name != "breakdown"]


def _movements(frame: Frame) -> None:
    """Answer how the values moved, and which of them are odd."""
    request, data = frame.request, frame.dataset
    if request.asks("anomalies"):
        special.anomalies(frame)
    ranked = bool(request.directions) and len(frame.lines) > 1
    changed = request.asks("change") and not data.group_columns and not ranked
    coarse = data.frequency not in ("minute", "hour", "day")
    if changed and (coarse or data.time_range.endpoints or not request.asks("trend")):
        changes.change(frame)
    else:
        changed = False
    if request.asks("trend"):
        changes.trend(frame, with_ends=not changed)


def _default(frame: Frame) -> None:
    """Answer a question that names no statistic."""
    request = frame.request
    lines = frame.lines
    additive = all(measure.additive for measure in frame.dataset.measures)
    if (request.how_much or request.asks("count")) and additive and frame.dataset.rows > 1:
        request.statistics.append("sum")
        aggregates(frame)
    if not frame.findings:
        for line in lines[:MAX_LINES]:
            describe(frame, line)
    if len(lines) > MAX_LINES:
        frame.notes.append(f"Only the first {MAX_LINES} of {len(lines)} series are described.")
