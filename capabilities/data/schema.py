"""Descriptions of tables for a planner, in limited space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capgraph.base import ValidationError
from capgraph.capabilities.data.files import find_file, list_tables
from capgraph.capabilities.data.mentions import concept_of
from capgraph.capabilities.data.profile import TableColumn, TableProfile, profile_table
from capgraph.capabilities.data.session import DataSession, open_session
from capgraph.capabilities.data.words import split_name, split_words
from capgraph.capabilities.formatting import date_range_text

MAX_DESCRIPTION_CHARS = 6000
_MAX_VALUES = 12
_MAX_VALUE_CHARS = 40


def read_tables(
    session: DataSession, files: Sequence[str], settings: Mapping[str, Any]
) -> list[TableProfile]:
    """Return the profiles of all tables in the given data files.

    Unchanged files are profiled only once.

    Raises:
        ValidationError: A file cannot be read.
    """
    zone, day_first = settings.get("timezone") or "UTC", bool(settings.get("day_first", False))
    found: list[TableProfile] = []
    for name in files:
        path = find_file(name, settings)
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns, zone, day_first, session.operation.limits)

        def profile_file(path: Path = path) -> list[TableProfile]:
            tables = list_tables(session, path)
            return [profile_table(session, table, zone, day_first) for table in tables]

        found += session.operation.cache.get_or_compute(key, profile_file)
    return found


def describe_tables(
    profiles: Sequence[TableProfile], task: str, max_chars: int = MAX_DESCRIPTION_CHARS
) -> str:
    """Describe tables and their columns for the planner's prompt.

    Columns that the task mentions come first.

    Args:
        profiles: Profiles of the tables to describe.
        task: Task text. If space is short, columns that the task does not mention are omitted
            first.
        max_chars: Maximum length of the description.
    """
    concepts = {concept_of(word.stem) for word in split_words(task)}
    share = max_chars // max(1, len(profiles[:20]))
    return "\n".join(
        _describe_table(profile, concepts, max(400, share)) for profile in profiles[:20]
    )[:max_chars]


def _describe_table(profile: TableProfile, concepts: set[str], max_chars: int) -> str:
    head = f"{profile.table.label}: {profile.rows:,} rows"
    if profile.time and profile.first and profile.last:
        names = " + ".join(profile.time.columns)
        covered = date_range_text(profile.first, profile.last, profile.frequency)
        head += f", time from {names}: {covered}"
        head += f", a row each {profile.frequency}" if profile.unique_times else ""
        head += f" for each {' and '.join(profile.series)}" if profile.series else ""
    dates = {p.time.columns[0]: p for p in profile.alternate_profiles if p.time}
    columns = sorted(
        profile.columns,
        key=lambda column: -len(concepts & {concept_of(word) for word in split_name(column.name)}),
    )
    lines, remaining_chars = [head], max_chars - len(head) - 60
    for number, column in enumerate(columns):
        line = f"  {_describe_column(column, dates.get(column.name))}"
        if len(line) > remaining_chars:
            lines.append(f"  … {len(columns) - number:,} more columns")
            break
        remaining_chars -= len(line) + 1
        lines.append(line)
    return "\n".join(lines)


def _describe_column(column: TableColumn, time_profile: TableProfile | None) -> str:
    if time_profile is not None and time_profile.first and time_profile.last:
        covered = date_range_text(time_profile.first, time_profile.last, time_profile.frequency)
        return f"{column.name[:80]!r} another time: {covered}"
    text = f"{column.name[:80]!r} {column.kind}"
    if column.unit:
        text += f", {column.unit}"
    if column.low is not None and column.high is not None:
        text += f", {column.low:g} to {column.high:g}"
    if column.kind == "category":
        shown = ", ".join(repr(value[:_MAX_VALUE_CHARS]) for value in column.values[:_MAX_VALUES])
        more = len(column.values) - _MAX_VALUES
        text += f": {shown}" + (f" and {more:,} more" if more > 0 else "")
    return text


def describe_files(files: Sequence[str], task: str, settings: Mapping[str, Any]) -> str:
    """Describe the tables in data files, or return the error message if a file cannot be read."""
    with open_session(settings) as session:
        try:
            return describe_tables(read_tables(session, files, settings), task)
        except ValidationError as exc:
            return str(exc)
