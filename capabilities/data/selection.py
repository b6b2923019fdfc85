"""From a question and its tables to a described data set."""

from __future__ import annotations

import re
from pathlib import Path

from capabilities.contexts import ColumnRef, DataPart, Dataset, Filter, TimeRange
from capabilities.data.matching import column_by_name
from capabilities.data.measures import choose_measures, to_measure
from capabilities.data.profile import Column
from capabilities.data.table_match import Match, Wish, missing_columns
from capabilities.data.wording import listed
from capabilities.data.words import fold
from framework.base import ValidationError

_SHARE = re.compile(r"\b(?:share|proportion|fraction|percent(?:age)?|part)\b(?!\s+change)", re.I)


def _share_of(match: Match, text: str) -> Filter | None:
    """Return the category whose share of the whole is asked for."""
    filters = match.rows.filters
    return filters[-1] if filters and _SHARE.search(text) else None


def build_part(
    match: Match, columns: list[Column], wish: Wish, focused: Filter | None = None
) -> DataPart:
    """Describe what is taken from a table.

    Args:
        match: The table and what the question means in it.
        columns: What to measure.
        wish: What is stated outright.
        focused: A category whose share is asked for, so that the others are needed too.
    """
    profile = match.profile
    filters = list(match.rows.filters)
    for value in wish.series:
        owner = next(
            (c for c in profile.categories for v in c.values if fold(v) == fold(value)), None
        )
        if owner is None:
            names = [c.name for c in profile.categories]
            raise ValidationError(
                f"No column of {profile.table.label} holds {value!r}.",
                fix=f"Columns with names: {listed(names) or 'none'}.",
            )
        exact = next(v for v in owner.values if fold(v) == fold(value))
        same = next((item for item in filters if item.column == owner.name), None)
        if same is None:
            filters.append(Filter(column=owner.name, values=[exact]))
        elif exact not in same.values:
            same.values.append(exact)
    groups = [wish.group_by] if wish.group_by else match.rows.groups
    if wish.group_by and column_by_name(profile, wish.group_by) is None:
        raise missing_columns(profile, repr(wish.group_by))
    if focused is not None:
        filters = [item for item in filters if item is not focused]
        groups = [focused.column]
    single = {item.column for item in filters if len(item.values) == 1}
    several = [item.column for item in filters if len(item.values) > 1]
    # Values that are named side by side are what is to be told apart, and nothing else.
    series = list(dict.fromkeys([*groups, *several]))
    series = series or [name for name in profile.series if name not in single]
    return DataPart(
        table=profile.table,
        time=profile.time,
        columns=[ColumnRef(name=c.name, reading=c.reading) for c in columns],
        series=series,
        filters=filters,
        label_column=profile.label_column,
    )


def build_dataset(matches: list[Match], text: str, time_range: TimeRange, wish: Wish) -> Dataset:
    """Describe the data set that a question means, before anything is counted."""
    first = matches[0]
    # A word that one of several chosen files explains is explained.
    common = [i for i in first.leftover if all(i in match.leftover for match in matches)]
    for match in matches:
        match.leftover = common
    columns, notes = choose_measures(first, text)
    measures = [to_measure(first.profile, column, wish) for column in columns]
    focused = _share_of(first, text)
    parts = [build_part(first, columns, wish, focused)]
    for other in matches[1:]:
        theirs, _ = choose_measures(other, text)
        parts.append(build_part(other, theirs, wish))
    series_name = ", ".join(parts[0].series) or None
    series: list[str] = []
    if len(parts) > 1:
        series_name = "file"
        series = [Path(part.table.path).stem + (part.table.table or "") for part in parts]
        for part in parts:
            part.series = []
    proper = [
        first.question.words[i].text
        for i in first.leftover
        if first.question.words[i].text[0].isupper() and first.question.words[i].begin > 0
    ]
    if proper and not notes:
        notes.append(f"The data does not mention {listed(list(dict.fromkeys(proper)))}")
    return Dataset(
        parts=parts,
        measures=measures,
        series_name=series_name,
        series=series,
        focus=focused.values if focused else [],
        group_columns=[wish.group_by] if wish.group_by else first.rows.groups,
        time_range=time_range,
        frequency=first.profile.frequency,
        notes=notes,
    )
