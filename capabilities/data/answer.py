"""Functions that answer queries and questions about data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capgraph.base import ErrorSeverity, ValidationError
from capgraph.capabilities.contexts import QueryAnswer, QueryResult, TimeRange
from capgraph.capabilities.data.answer_text import describe_result
from capgraph.capabilities.data.lexicon import paraphrase
from capgraph.capabilities.data.query_builder import build_queries, recurring_filters
from capgraph.capabilities.data.query_engine import compute_query
from capgraph.capabilities.data.schema import read_tables
from capgraph.capabilities.data.session import open_session
from capgraph.capabilities.periods.options import MAX_TEXT_CHARS, parse_times
from capgraph.capabilities.query import Query


def answer_query(
    files: Sequence[str], query: Query, times: TimeRange | None, settings: Mapping[str, Any]
) -> QueryResult:
    """Run a query that the caller supplied and return its answer.

    Args:
        files: Paths of the data files.
        query: Query to compute without changes.
        times: Time range for a query without periods.
        settings: Settings of the capability.

    Raises:
        ValidationError: The query does not match the data. The message lists valid names.
    """
    if times is not None and not query.periods:
        query = query.model_copy(update=_convert_times(times, query))
    return _compute_answers(files, lambda _profiles: [query], settings, "")


def answer_question(
    files: Sequence[str],
    question: str,
    times: TimeRange | None,
    previous: Sequence[Query],
    settings: Mapping[str, Any],
) -> QueryResult:
    """Parse a natural-language question into queries and run them on the data files.

    Args:
        files: Paths of the data files.
        question: Question in natural language.
        times: Time range that an earlier step parsed from the question, if any.
        previous: Queries of the thread's previous question, for follow-up questions.
        settings: Settings of the capability.

    Raises:
        ValidationError: The question contains unknown words, or no rows match.
    """
    question = question[:MAX_TEXT_CHARS]
    asked, question = question, paraphrase(question)
    parsed = None
    if times is not None and times.read_from == asked:
        parsed = parse_times(question, settings)
        parsed.periods, parsed.endpoints = times.periods, times.endpoints
    try:
        return _compute_answers(
            files,
            lambda profiles: build_queries(question, profiles, settings, previous, parsed),
            settings,
            asked,
        )
    except ValidationError as exc:
        # Without a model, planning again cannot rephrase the question.
        exc.severity = ErrorSeverity.CRITICAL
        raise


def _compute_answers(
    files: Sequence[str], make_queries: Any, settings: Mapping[str, Any], question: str
) -> QueryResult:
    answers: list[QueryAnswer] = []
    notes: list[str] = []
    with open_session(settings) as session:
        profiles = read_tables(session, files, settings)
        for query in make_queries(profiles):
            computed = compute_query(session, profiles, query)
            notes += [note for note in computed.notes if note not in notes]
            answers.append(
                QueryAnswer(
                    query=computed.query,
                    table=computed.profile.table.label,
                    unit=computed.unit,
                    frequency=computed.profile.frequency,
                    rows=computed.rows,
                    text=describe_result(computed),
                )
            )
    return QueryResult(answers=answers, notes=notes, files=list(files), question=question)


def _convert_times(times: TimeRange, query: Query) -> dict[str, Any]:
    periods = [(period.start, period.end) for period in times.periods]
    return {"periods": periods, "where": [*query.where, *recurring_filters(times)]}
