"""Queries that a chat model writes for questions that the rule-based parser does not understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from capgraph.base.errors import MalformedAnswerError
from capgraph.capabilities.data.lexicon import paraphrase
from capgraph.capabilities.data.profile import TableProfile
from capgraph.capabilities.data.query_grounding import ground_query
from capgraph.capabilities.data.schema import describe_tables, read_tables
from capgraph.capabilities.data.session import open_session
from capgraph.capabilities.periods.options import parse_times
from capgraph.capabilities.prompts import QueryPrompt
from capgraph.capabilities.query import TIME_PARTS, TIME_UNITS, Query
from capgraph.models.calls import generate_structured
from capgraph.models.roles import RoleModel

_AGGREGATES = (
    "rows", "sum", "mean", "median", "min", "max", "std", "distinct", "values", "first", "last",
    "correlation", "none",
)  # fmt: skip
_MAX_DESCRIPTION_CHARS = 2000
_MAX_COLUMNS = 200


@dataclass(frozen=True)
class QueryRequest:
    """Question about tables, with the schema of the query that answers it.

    Attributes:
        question: Question in natural language.
        profiles: Profiles of the tables.
        settings: Settings of the capability.
    """

    question: str
    profiles: Sequence[TableProfile]
    settings: Mapping[str, Any]

    @property
    def messages(self) -> list[BaseMessage]:
        """Prompt messages for the model."""
        tables = describe_tables(self.profiles, self.question, _MAX_DESCRIPTION_CHARS)
        context = {"task": self.question, "tables": tables}
        prompt = QueryPrompt()
        return [
            SystemMessage(prompt.get_prefix(**context)),
            HumanMessage(prompt.get_dynamic_context(**context)),
        ]

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the query, which allows only names of existing columns."""
        columns = {c.name: None for p in self.profiles for c in p.columns}
        column = {"type": "string", "enum": list(columns)[:_MAX_COLUMNS]}
        has_times = any(profile.time for profile in self.profiles)
        groups = [*column["enum"], *((*TIME_UNITS, *TIME_PARTS) if has_times else ())]
        condition = {
            "column": column,
            "op": {"type": "string", "enum": ["=", "!=", "<", "<=", ">", ">="]},
            "value": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        }
        properties: dict[str, Any] = {
            "aggregate": {"type": "string", "enum": list(_AGGREGATES)},
            "value": column,
            "by": column,
            "where": {"type": "array", "maxItems": 4, "items": _build_object(condition)},
            "group_by": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "string", "enum": list(dict.fromkeys(groups))},
            },
            "order": {"type": "string", "enum": ["highest", "lowest"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
            "share": {"type": "boolean"},
        }
        if len(self.profiles) > 1:
            labels = [profile.table.label for profile in self.profiles]
            properties["table"] = {"type": "string", "enum": labels}
        return {"title": "Query", "description": "The query."} | _build_object(
            properties, ["aggregate"]
        )

    def parse_reply(self, reply: Any) -> Query | None:
        """Return the query of the model's reply, or ``None`` if it does not fit the question."""
        if not isinstance(reply, Mapping):
            return None
        tables = {profile.table.label: profile for profile in self.profiles}
        label = reply.get("table") or next(iter(tables))
        if label not in tables:
            return None
        question = paraphrase(self.question)
        times = parse_times(question, self.settings)
        query = ground_query(reply, question, tables[label], times)
        return query and (query.model_copy(update={"table": label}) if len(tables) > 1 else query)


def create_request(
    files: Sequence[str], question: str, settings: Mapping[str, Any]
) -> QueryRequest:
    """Read the profiles of data files, and return the request for a query over their tables.

    Raises:
        ValidationError: A file cannot be read.
    """
    with open_session(settings) as session:
        return QueryRequest(question, read_tables(session, files, settings)[:20], settings)


async def write_query(model: Any, request: QueryRequest) -> Query | None:
    """Ask a chat model for the query that answers a question.

    Returns ``None`` if the model finds no query, or if its query does not fit the question.

    Raises:
        ModelError: The call failed, or the model refused.
    """
    role = RoleModel("capability", model)
    try:
        reply = await generate_structured(role, request.schema, request.messages)
    except MalformedAnswerError:
        return None
    return request.parse_reply(reply)


def _build_object(properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }
