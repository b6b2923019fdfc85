"""Capability that answers questions about the user's data files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field, model_validator
from pydantic import ValidationError as PydanticError

from capgraph.base import ValidationError, capability_node
from capgraph.base.capability import ContextType
from capgraph.base.error_classification import ErrorClassification
from capgraph.capabilities.contexts import DataSource, QueryResult, TimeRange
from capgraph.capabilities.data.answer import answer_query, answer_question
from capgraph.capabilities.data.query_writer import create_request, write_query
from capgraph.capabilities.data.question_parser import UNPARSED_WORDS
from capgraph.capabilities.data.schema import describe_files
from capgraph.capabilities.data.thread_pool import DataThreadPool, classify_data_error
from capgraph.capabilities.guided import GuidedCapability
from capgraph.capabilities.query import Aggregate, Order, Query

_QUESTION_PHRASE = re.compile(
    r"^\W*(?:and|what about|how about)\b|\b(?:mean|average|avg|total|sum|median|max(?:imum)?"
    r"|min(?:imum)?|highest|lowest|how many|number of|(?:share|fraction|percentage|pct) of"
    r"|correlat\w*|standard deviation|percentile)\b",
    re.IGNORECASE,
)


class QueryDataParameters(Query):
    """Query to compute. If all fields are empty, the query is parsed from the task."""

    aggregate: Aggregate | None = Field(  # type: ignore[assignment]
        default=None, description=Query.model_fields["aggregate"].description
    )
    # No default: a default value would count as a supplied query.
    order: Order | None = Field(  # type: ignore[assignment]
        default=None, description=Query.model_fields["order"].description
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> QueryDataParameters:
        _ = self.query
        return self

    @property
    def query(self) -> Query | None:
        """Query in the step's parameters, or ``None`` if all query fields are empty."""
        fields = self.model_dump(exclude_defaults=True)
        return Query.model_validate(fields) if fields else None


@capability_node
class QueryData(GuidedCapability):
    """Capability that runs typed queries over tabular data files with DuckDB.

    Without a query in the step's parameters, the task is parsed by rules. If the rules do not
    understand the task, the chat model of the role ``capability`` writes the query. The query is
    used only if each of its parts corresponds to words of the task.

    Settings are ``timezone``, ``now``, ``day_first``, ``hemisphere``, and the limits
    ``max_seconds``, ``max_rows``, ``max_columns``, ``max_file_bytes``, ``max_spill_bytes``, and
    ``memory_limit``.
    """

    name = "query_data"
    libraries: ClassVar[Sequence[str]] = ("duckdb",)
    description = (
        "Answers a question about measurements and tables in the user's data files: highest and"
        " lowest values with their dates, averages, totals, counts, shares, changes, comparisons,"
        " breakdowns by month or category, correlations."
    )
    provides: Sequence[ContextType] = ["QUERY_RESULT"]
    requires: Sequence[ContextType | tuple[ContextType, str]] = [
        "DATA_SOURCE",
        ("TIME_RANGE", "optional"),
    ]

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
        """Classify an error from a data operation by severity."""
        return classify_data_error(exc, context)

    thread_pool: ClassVar[DataThreadPool] = DataThreadPool()
    parses_task = True
    Parameters: ClassVar[type[BaseModel] | None] = QueryDataParameters

    async def execute(self) -> QueryResult:
        """Run the query in the step's parameters, or else the query that the task describes."""
        source: DataSource = self.inputs["DATA_SOURCE"]
        times: TimeRange | None = self.inputs.get("TIME_RANGE")
        if not _is_from_current_plan(self.state, self.step, "TIME_RANGE"):
            times = None
        query = self.parameters.query
        self.progress(f"Reading {', '.join(source.files)[:200]}")
        if query is not None:
            return await self.thread_pool.run(
                self.config, answer_query, source.files, query, times, self.config
            )
        try:
            return await self.thread_pool.run(
                self.config, answer_question, source.files, self.task, times,
                _load_previous_queries(self.state, source.files), self.config,
            )  # fmt: skip
        except ValidationError as exc:
            if UNPARSED_WORDS not in exc.facts or (model := self.chat_model()) is None:
                raise
            result = await self._answer_with_model(source, model)
            if result is None:
                raise
            return result

    async def _answer_with_model(self, source: DataSource, model: Any) -> QueryResult | None:
        """Answer the task with a query that a chat model writes.

        Returns ``None`` if the model writes no query that fits the task and finds rows.
        """
        config, run = self.config, self.thread_pool.run
        request = await run(config, create_request, source.files, self.task, config)
        query = await write_query(model, request)
        if query is None:
            return None
        result = await run(config, answer_query, source.files, query, None, config)
        return result if any(answer.rows for answer in result.answers) else None

    @staticmethod
    def matches_task(task: str) -> bool | None:
        """Return True if the task asks for a value in the data or follows up on such a question.

        Returns ``None`` otherwise.
        """
        return True if _QUESTION_PHRASE.search(task) else None

    @staticmethod
    async def planning_notes(state: Mapping[str, Any], config: Mapping[str, Any]) -> str:
        """Describe the tables in the available data files for the planner's prompt."""
        stored = (state.get("capability_context_data") or {}).get("DATA_SOURCE") or {}
        parts = []
        for key, data in list(stored.items())[-3:]:
            try:
                files = DataSource.model_validate(data).files
            except PydanticError:
                continue  # the step that reads the context reports the error
            task = str(state.get("task_current_task") or "")
            parts.append(
                f"{key}:\n"
                + await QueryData.thread_pool.run(config, describe_files, files, task, config)
            )
        return "\n".join(parts)


def _load_previous_queries(state: Mapping[str, Any], files: list[str]) -> list[Query]:
    """Return the queries of the thread's latest result over the same files.

    Follow-up questions build on these queries.
    """
    stored = (state.get("capability_context_data") or {}).get("QUERY_RESULT") or {}
    for data in reversed(list(stored.values())):
        try:
            result = QueryResult.model_validate(data)
        except PydanticError:
            continue
        if result.files == files:
            return [answer.query for answer in result.answers]
    return []


def _is_from_current_plan(
    state: Mapping[str, Any], step: Mapping[str, Any], context_type: str
) -> bool:
    """Return True if a step's input was produced by a different step of the current plan.

    Contexts (typed step results) outlive a turn, but the time range of an earlier question does
    not apply to a new question. Without a plan, as when a step runs on its own, every input
    counts.
    """
    plan = state.get("planning_execution_plan") or {}
    keys = {planned.get("context_key") for planned in plan.get("steps") or []}
    links = [link[context_type] for link in step.get("inputs") or [] if context_type in link]
    return not keys or not links or any(link in keys for link in links)
