"""Fills a query from a question without a model.

Every word of the question is placed in the query or is known to carry nothing. Where a word is
left over, or two readings are possible, there is no query but an error that names the words: an
answer to another question is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capabilities.data.clause import BothError, Unplaced, refusal
from capabilities.data.forms import Form
from capabilities.data.lexicon import NOTHING
from capabilities.data.phrases import CLAUSE, FOLLOWING
from capabilities.data.profile import TableProfile
from capabilities.data.query import Query
from capabilities.data.words import blank, words_of
from capabilities.periods.connect import ParsedTime
from capabilities.periods.reading import read_times
from framework.base import ValidationError


def fill(
    text: str,
    profiles: Sequence[TableProfile],
    settings: Mapping[str, Any],
    previous: Sequence[Query] = (),
    parsed: ParsedTime | None = None,
) -> list[Query]:
    """Fill a query for each part of a question.

    Args:
        text: The question.
        profiles: The tables at hand.
        settings: ``now``, ``timezone``, ``day_first``, ``hemisphere``.
        previous: Queries of the question before, for one that follows it ("and in 1985?").
        parsed: The times of the question, where they were read before.

    Raises:
        ValidationError: A word cannot be placed, or may mean several things.
    """
    clauses = _clauses(text, settings)
    follows = bool(FOLLOWING.search(text)) and previous
    queries: list[Query] = []
    for clause in clauses:
        base = queries[-1] if queries else previous[-1] if follows else None
        times = parsed if parsed is not None and len(clauses) == 1 else read_times(clause, settings)
        continued = bool(queries)
        try:
            queries.append(_fill_clause(clause, profiles, times, base, continued))
        except BothError:
            queries += [
                _fill_clause(clause, profiles, times, base, continued, wanted)
                for wanted in ("max", "min")
            ]
    if not queries:
        raise refusal(["nothing"], profiles[0])
    # "Number of events per weekday, which day has most?": the second part only sorts the first.
    if (
        len(queries) == 2
        and queries[1].model_copy(update={"order": "group", "limit": None}) == queries[0]
    ):
        return [queries[1].model_copy(update={"limit": None})]
    return queries


def _clauses(text: str, settings: Mapping[str, Any]) -> list[str]:
    """Split a question that asks twice; "In 2007, how many …" asks once."""
    parts = [part for part in CLAUSE.split(text) if part and part.strip(" ?.!,")]
    for part in parts[:-1]:
        rest = words_of(blank(part, read_times(part, settings).spans))
        if all(word.stem in NOTHING for word in rest):
            return [text]
    return parts


def _fill_clause(
    text: str,
    profiles: Sequence[TableProfile],
    times: ParsedTime,
    base: Query | None,
    continued: bool,
    wanted: str | None = None,
) -> Query:
    """Fill one query from the only table that places every word."""
    found: list[tuple[int, Query]] = []
    problems: list[Unplaced] = []
    for profile in profiles:
        others = [other for other in profiles if other is not profile]
        for join in [None, *(other for other in others if _joins(profile, other))]:
            try:
                clause = Form(
                    text, profile, join, times, base, continued, len(profiles) > 1, wanted
                )
                query = clause.query()
            except Unplaced as exc:
                problems.append(exc)
                continue
            if join is None or clause.joined:
                found.append((clause.named_table + (join is None), query))
                break
    if not found:
        raise min(problems, key=lambda exc: len(exc.words)).error
    best = max(score for score, _ in found)
    fitting = [query for score, query in found if score == best]
    if len(fitting) > 1:
        labels = ", ".join(str(query.table) for query in fitting)
        raise ValidationError(
            f"The question may be about several tables: {labels}.", fix="Name the table."
        )
    return fitting[0]


def _joins(profile: TableProfile, other: TableProfile) -> bool:
    """Say whether a table holds the key of another one."""
    names = {column.name for column in profile.columns}
    return any(
        column.name in names and len(column.values) == other.rows for column in other.columns
    )
