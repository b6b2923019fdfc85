"""The tables as a planner must see them to fill a query, in as few words as fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capgraph.base import ValidationError
from capgraph.capabilities.data.files import find_file, list_tables
from capgraph.capabilities.data.mentions import concept
from capgraph.capabilities.data.profile import Column, TableProfile, profile_table
from capgraph.capabilities.data.session import Session, open_session
from capgraph.capabilities.data.words import name_words, words_of
from capgraph.capabilities.wording import date_range

MOST_CHARACTERS = 6000
_VALUES = 12
_LONGEST = 40


def read_tables(
    session: Session, files: Sequence[str], settings: Mapping[str, Any]
) -> list[TableProfile]:
    """Look at every table of some files; a file that has not changed is looked at once.

    Raises:
        ValidationError: A file cannot be read, or may not be.
    """
    zone, day_first = settings.get("timezone") or "UTC", bool(settings.get("day_first", False))
    found: list[TableProfile] = []
    for name in files:
        path = find_file(name, settings)
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns, zone, day_first, session.work.bounds)

        def profiled(path: Path = path) -> list[TableProfile]:
            tables = list_tables(session, path)
            return [profile_table(session, table, zone, day_first) for table in tables]

        found += session.work.kept.get(key, profiled)
    return found


def describe(profiles: Sequence[TableProfile], task: str, limit: int = MOST_CHARACTERS) -> str:
    """Write down tables and columns, those first that the task speaks of.

    Args:
        profiles: The tables.
        task: What is asked; decides what is left out where not everything fits.
        limit: Characters.
    """
    asked = {concept(word.stem) for word in words_of(task)}
    share = limit // max(1, len(profiles[:20]))
    return "\n".join(_table(profile, asked, max(400, share)) for profile in profiles[:20])[:limit]


def _table(profile: TableProfile, asked: set[str], limit: int) -> str:
    head = f"{profile.table.label}: {profile.rows:,} rows"
    if profile.time and profile.first and profile.last:
        names = " + ".join(profile.time.columns)
        covered = date_range(profile.first, profile.last, profile.frequency)
        head += f", time from {names}: {covered}"
        head += f", a row each {profile.frequency}" if profile.unique_times else ""
        head += f" for each {' and '.join(profile.series)}" if profile.series else ""
    dates = {p.time.columns[0]: p for p in profile.others if p.time}
    columns = sorted(
        profile.columns,
        key=lambda column: -len(asked & {concept(word) for word in name_words(column.name)}),
    )
    lines, left = [head], limit - len(head) - 60
    for number, column in enumerate(columns):
        line = f"  {_column(column, dates.get(column.name))}"
        if len(line) > left:
            lines.append(f"  … {len(columns) - number:,} more columns")
            break
        left -= len(line) + 1
        lines.append(line)
    return "\n".join(lines)


def _column(column: Column, timed: TableProfile | None) -> str:
    if timed is not None and timed.first and timed.last:
        covered = date_range(timed.first, timed.last, timed.frequency)
        return f"{column.name[:80]!r} another time: {covered}"
    text = f"{column.name[:80]!r} {column.kind}"
    if column.unit:
        text += f", {column.unit}"
    if column.low is not None and column.high is not None:
        text += f", {column.low:g} to {column.high:g}"
    if column.kind == "category":
        shown = ", ".join(repr(value[:_LONGEST]) for value in column.values[:_VALUES])
        more = len(column.values) - _VALUES
        text += f": {shown}" + (f" and {more:,} more" if more > 0 else "")
    return text


def schema_of(files: Sequence[str], task: str, settings: Mapping[str, Any]) -> str:
    """Describe the tables of files; what cannot be read is said instead."""
    with open_session(settings) as session:
        try:
            return describe(read_tables(session, files, settings), task)
        except ValidationError as exc:
            return str(exc)
