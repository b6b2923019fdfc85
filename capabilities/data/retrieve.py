"""Retrieval as a plain function: files and a question in, a described data set out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from capabilities.contexts import Dataset, Period, TimeRange
from capabilities.data.files import list_tables
from capabilities.data.profile import TableProfile, profile_table
from capabilities.data.relation import dataset_sql
from capabilities.data.selection import build_dataset
from capabilities.data.session import Session, open_session
from capabilities.data.table_match import Wish, choose_match, match_table
from capabilities.data.wording import date_range, date_text, listed
from capabilities.data.words import MAX_TEXT
from capabilities.periods.items import floor, shift
from capabilities.periods.reading import read_times, to_time_range
from framework.base import ValidationError

_PREVIEW = 8


def retrieve(
    files: Sequence[str],
    text: str,
    time_range: TimeRange | None = None,
    wish: Wish | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _message: None,
) -> Dataset:
    """Describe the data that a question is about.

    Args:
        files: Paths, or ``vega:NAME``.
        text: The question or the objective of the step.
        time_range: Which times; read from the text when not given.
        wish: Columns and series that are stated outright.
        settings: ``timezone``, ``now``, ``day_first``, ``max_file_bytes``, ``memory_limit``.
        progress: Told what is being done.

    Raises:
        ValidationError: The files, the columns or the times do not fit the question; says how.
    """
    settings = settings or {}
    wish = wish or Wish()
    text = text[:MAX_TEXT]
    parsed = read_times(text, settings)
    if time_range is None:
        time_range = to_time_range(parsed, settings)
    with open_session(settings) as session:
        profiles: list[TableProfile] = []
        for name in files:
            for table in list_tables(name, settings):
                progress(f"Reading {table.label}")
                profiles.append(
                    profile_table(
                        session,
                        table,
                        settings.get("timezone") or "UTC",
                        bool(settings.get("day_first", False)),
                    )
                )
        matches = [match_table(session, p, text, parsed.spans, wish) for p in profiles]
        chosen = choose_match(matches, text, wish)
        profile = chosen[0].profile
        _check_time(profile, time_range)
        time_range = _resolve_window(profile, time_range)
        dataset = build_dataset(chosen, text, time_range, wish)
        dataset.files, dataset.read_from = list(files), text
        covering = [m.profile for m in chosen]
        progress(f"Selecting {', '.join(m.label for m in dataset.measures)}")
        return _count(session, dataset, covering)


def _check_time(profile: TableProfile, time_range: TimeRange) -> None:
    if profile.time is None and not time_range.whole:
        raise ValidationError(
            f"{profile.table.label} has no column with dates, so {time_range.label!r} cannot be"
            " selected.",
            fix=f"Ask without a time, or give data with dates; columns: {profile.names()}.",
        )


def _resolve_window(profile: TableProfile, time_range: TimeRange) -> TimeRange:
    window = time_range.window
    if window is None or profile.first is None or profile.last is None:
        return time_range
    unit = window.unit
    if window.edge == "last":
        end = shift(floor(profile.last, unit), 1, unit)
        start = shift(end, -window.amount, unit)
    else:
        start = floor(profile.first, unit)
        end = shift(start, window.amount, unit)
    dates = date_range(max(start, profile.first), min(end - timedelta(seconds=1), profile.last))
    label = f"{time_range.label} ({dates})"
    return time_range.model_copy(
        update={
            "periods": [Period(start=start, end=end, label=label)],
            "label": label,
            "window": None,
        }
    )


def _count(session: Session, dataset: Dataset, profiles: list[TableProfile]) -> Dataset:
    sql = dataset_sql(session, dataset)
    label = dataset.parts[0].table.label
    rows, first, last = session.query(
        f"SELECT count(*), min(t), max(t) FROM ({sql})",  # noqa: S608
        label=label,
    )[0]
    starts = [p.first for p in profiles if p.first is not None]
    ends = [p.last for p in profiles if p.last is not None]
    covered = [min(starts), max(ends)] if starts and ends else []
    if rows == 0:
        raise _empty(dataset, covered, profiles[0])
    if dataset.series_name is not None:
        named = session.query(
            f"SELECT DISTINCT s FROM ({sql}) WHERE s IS NOT NULL ORDER BY s LIMIT 100",  # noqa: S608
            label=label,
        )
        dataset.series = [row[0] for row in named] if not dataset.series else dataset.series
    dataset.rows, dataset.first, dataset.last, dataset.covered = rows, first, last, covered
    dataset.preview = _preview(session, dataset, sql)
    dataset.notes += _coverage_notes(dataset)
    for profile, part in zip(profiles, dataset.parts, strict=False):
        dataset.notes += profile.unread(column.name for column in part.columns)
    guessed = [measure for measure in dataset.measures if measure.unit_inferred]
    if guessed:
        names = listed([measure.label for measure in guessed])
        dataset.notes.append(f"The unit {guessed[0].unit} of {names} is inferred from the values")
    return dataset


def _empty(dataset: Dataset, covered: list[datetime], profile: TableProfile) -> ValidationError:
    label = dataset.parts[0].table.label
    filters = " and ".join(
        f"{item.column} = {' or '.join(item.values)}" for item in dataset.parts[0].filters
    )
    rows = f"{label} has no rows" + (f" with {filters}" if filters else "")
    if not dataset.time_range.whole and covered:
        span = date_range(covered[0], covered[1], profile.frequency)
        return ValidationError(
            f"{rows} for {dataset.time_range.label}; the data covers {span}.",
            fix="Ask about a time inside that range.",
        )
    return ValidationError(
        f"{rows} with a value in {', '.join(m.label for m in dataset.measures)}.",
        fix=f"Ask about another column: {profile.names()}.",
    )


def _preview(session: Session, dataset: Dataset, sql: str) -> list[dict[str, Any]]:
    rows = session.query(f"SELECT t, s, m, v FROM ({sql}) ORDER BY t, s, m LIMIT {_PREVIEW}")  # noqa: S608
    preview = []
    for moment, series, number, value in rows:
        row: dict[str, Any] = {"time": moment.isoformat() if moment else None}
        if series is not None:
            row["series"] = series
        row[dataset.measures[number].label] = value
        preview.append(row)
    return preview


def _coverage_notes(dataset: Dataset) -> list[str]:
    """Say which periods the data covers only partly or not at all."""
    if not dataset.covered:
        return []
    first, last = dataset.covered
    slack = {"year": 366, "quarter": 92, "month": 31, "week": 7}.get(dataset.frequency or "", 1)
    notes = []
    for period in dataset.time_range.periods:
        if (period.start and period.start > last) or (period.end and period.end <= first):
            notes.append(
                f"There is no data for {period.label}; it covers"
                f" {date_range(first, last, dataset.frequency)}"
            )
        elif period.end and period.end > last + timedelta(days=slack):
            notes.append(
                f"The data ends with {date_text(last, dataset.frequency)}, within {period.label}"
            )
        elif period.start and period.start < first and period.end:
            notes.append(
                f"The data begins with {date_text(first, dataset.frequency)}, within {period.label}"
            )
    return notes
