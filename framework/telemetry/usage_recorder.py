"""Recorder of model usage in the threads' database.

A separate thread writes the records in batches, so they never slow or break a run. A call has one
row, identified by its run ID, even if several callbacks report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from capgraph.base.ports import SqlExecutor
from capgraph.helpers.threads import run_in_thread
from capgraph.telemetry.event_dispatcher import SinkQueue
from capgraph.telemetry.usage import PriceTable, UsageSnapshot

_TEXT_COLUMNS = [
    "thread_id",
    "turn_id",
    "step_id",
    "capability",
    "role",
    "user_id",
    "tenant",
    "model",
]
_COLUMNS = ("call_id", *_TEXT_COLUMNS, "input_tokens", "output_tokens", "cached_tokens", "cost_usd")
_INSERT = f"INSERT INTO capgraph_usage ({', '.join(_COLUMNS)}, at) VALUES "
_ROW = f"({', '.join('?' * len(_COLUMNS))}, {{now}})"
_SUMS = (
    "count(*) AS calls, sum(input_tokens) AS input, sum(output_tokens) AS output,"
    " sum(cached_tokens) AS cached,"
    " CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END AS cost"
)
_GROUP_COLUMNS = {
    "model": "model",
    "user": "user_id",
    **{name: f"{name}_id" for name in ("turn", "thread")},
    # A call outside of steps, such as planning, is listed under the model's role.
    "step": "CASE WHEN step_id = '' THEN '(' || role || ')' ELSE step_id END",
    "tenant": "tenant",
    "day": "CAST(at AS BIGINT) / 86400",
}
_HISTORY_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Total usage of a group of model calls.

    Attributes:
        model: Name of the model, or of the group if grouped by a different attribute.
        calls: Number of calls.
        input_tokens: Number of prompt tokens.
        output_tokens: Number of output tokens.
        cached_tokens: Number of prompt tokens read from a cache.
        cost_usd: Cost in US dollars, or ``None`` if a price was unknown.
    """

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None


class UsageRecorder:
    """Background recorder that writes the token usage of model calls to a database.

    Args:
        prices: Table of model prices.
        capacity: Maximum number of queued calls. Excess calls are dropped and logged.
    """

    def __init__(self, prices: PriceTable | None = None, *, capacity: int = 10_000) -> None:
        self._prices = prices or PriceTable.of_process()
        self._outlet = SinkQueue(self, capacity)

    def record(
        self,
        tables: SqlExecutor,
        call_id: str,
        model: str,
        usage: UsageSnapshot,
        context: Mapping[str, Any],
    ) -> None:
        """Queue the usage of a model call to be written to the database.

        Args:
            tables: Tables of the database.
            call_id: ID of the model call.
            model: Name of the model.
            usage: Token usage of the call.
            context: Origin of the call, as ``thread_id``, ``turn_id``, ``step_id``, ``capability``,
                ``role``, ``user_id``, and ``tenant``, if known.
        """
        self._outlet.enqueue(
            {"rows": tables, "call": (call_id, model, usage), "about": dict(context)}
        )

    def emit(self, event: Any) -> None:
        """Write one usage record. Runs in the recorder's thread."""
        self.emit_many([event])

    def emit_many(self, events: Sequence[dict[str, Any]]) -> None:
        """Write several usage records. Runs in the recorder's thread."""
        by_database: dict[int, tuple[SqlExecutor, list[Any]]] = {}
        for event in events:
            if (rows := event.get("rows")) is not None:
                by_database.setdefault(id(rows), (rows, []))[1].extend(self._build_row(event))
        for rows, values in by_database.values():
            lines = ", ".join([_ROW] * (len(values) // len(_COLUMNS)))
            rows.run_blocking(f"{_INSERT}{lines} ON CONFLICT (call_id) DO NOTHING", tuple(values))

    def _build_row(self, event: Mapping[str, Any]) -> list[Any]:
        call_id, model, usage = event["call"]
        about = {**event["about"], "model": model}
        return [
            call_id,
            *(str(about.get(name) or "") for name in _TEXT_COLUMNS),
            usage.prompt_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            self._prices.cost(model, usage),
        ]

    async def aflush(self) -> None:
        """Wait until all queued usage records are written, without blocking the event loop."""
        await run_in_thread(self._outlet.drain)

    def flush(self) -> None:
        """Wait until all queued calls are written."""
        self._outlet.drain()


async def usage_totals(
    tables: SqlExecutor,
    *,
    thread_id: str | None = None,
    user_id: str | None = None,
    turn_id: str | None = None,
    tenant: str | None = None,
    group_by: str = "model",
) -> list[UsageTotal]:
    """Return total token usage and cost, grouped by model or a different attribute.

    Args:
        tables: Tables of the usage database.
        thread_id: Include only calls of this thread.
        user_id: Include only calls for this user.
        turn_id: Include only calls of this turn.
        tenant: Include only calls for this tenant. An empty string selects users without a
            tenant.
        group_by: Attribute to group by, which is ``model``, ``day``, ``user``, ``tenant``,
            ``thread``, ``turn``, or ``step``.
    """
    name = _GROUP_COLUMNS[group_by]
    filters = {"thread_id": thread_id, "user_id": user_id, "turn_id": turn_id, "tenant": tenant}
    conditions = {name: value for name, value in filters.items() if value is not None}
    where = f" WHERE {' AND '.join(f'{name} = ?' for name in conditions)}" if conditions else ""
    _, found = await tables.run(
        f"SELECT {name}, {_SUMS} FROM capgraph_usage{where} GROUP BY {name} ORDER BY {name}",
        tuple(conditions.values()),
    )
    return [
        UsageTotal(_format_group(group_by, group), int(n), int(i), int(o), int(c), usd)
        for group, n, i, o, c, usd in found
    ]


def _format_group(by: str, value: Any) -> str:
    if by != "day":
        return str(value)
    return datetime.fromtimestamp(int(value) * 86_400, UTC).date().isoformat()


async def delete_usage(tables: SqlExecutor, *, older_than: timedelta) -> None:
    """Delete usage records older than the given period."""
    await tables.run(
        "DELETE FROM capgraph_usage WHERE at < {now} - ?", (older_than.total_seconds(),)
    )


async def average_capability_usage(
    tables: SqlExecutor, capabilities: Sequence[str]
) -> dict[str, tuple[float, float, float | None]]:
    """Return the average usage per step of each capability over the last thirty days.

    Returns:
        For each capability, the average number of model calls, number of tokens, and cost in
            US dollars (``None`` if a price was unknown). Capabilities without model calls are
            omitted.
    """
    _, found = await tables.run(
        "SELECT capability, count(DISTINCT thread_id || '/' || turn_id || '/' || step_id) AS steps,"
        " count(*) AS calls, sum(input_tokens + output_tokens) AS tokens,"
        " CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END AS cost FROM capgraph_usage"
        f" WHERE capability IN ({', '.join('?' * len(capabilities))}) AND at > {{now}} - ?"
        " GROUP BY capability",
        (*capabilities, _HISTORY_SECONDS),
    )
    return {
        name: (calls / steps, float(tokens) / steps, None if cost is None else cost / steps)
        for name, steps, calls, tokens, cost in found
    }
