"""What calls used, kept in the database of the threads: by model, step, turn, thread, user and tenant.

It is written by a thread of its own, many calls at once, and never slows or breaks a run. A call has
one row, named by its run id, however often it is told of.
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

_TEXTS = ["thread_id", "turn_id", "step_id", "capability", "role", "user_id", "tenant", "model"]
_COLUMNS = ("call_id", *_TEXTS, "input_tokens", "output_tokens", "cached_tokens", "cost_usd")
_INSERT = f"INSERT INTO capgraph_usage ({', '.join(_COLUMNS)}, at) VALUES "
_ONE = f"({', '.join('?' * len(_COLUMNS))}, {{now}})"
_SUMS = (
    "count(*) AS calls, sum(input_tokens) AS input, sum(output_tokens) AS output,"
    " sum(cached_tokens) AS cached,"
    " CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END AS cost"
)
_BY = {
    "model": "model",
    "user": "user_id",
    **{name: f"{name}_id" for name in ("step", "turn", "thread")},
    "tenant": "tenant",
    "day": "CAST(at AS BIGINT) / 86400",
}
_HISTORY_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """What calls used together.

    Attributes:
        model: The model.
        calls: How many.
        input_tokens: Tokens of their prompts.
        output_tokens: Tokens of their answers.
        cached_tokens: Tokens of their prompts that came out of a cache.
        cost_usd: US dollars; ``None`` when the price of one was unknown.
    """

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None


class UsageRecorder:
    """Takes up calls and writes them down soon.

    Args:
        prices: What models cost.
        capacity: Calls that may wait to be written; what comes beyond is lost, which is logged.
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
        """Take up a call.

        Args:
            tables: Where it is kept.
            call_id: Names it.
            model: The model.
            usage: What it used.
            context: ``thread_id``, ``turn_id``, ``step_id``, ``capability``, ``role``, ``user_id`` and
                ``tenant``, as far as there is one.
        """
        self._outlet.put({"rows": tables, "call": (call_id, model, usage), "about": dict(context)})

    def emit(self, event: Any) -> None:
        """Write one call down; called on the book's own thread."""
        self.emit_many([event])

    def emit_many(self, events: Sequence[dict[str, Any]]) -> None:
        """Write calls down; called on the book's own thread."""
        by_place: dict[int, tuple[SqlExecutor, list[Any]]] = {}
        for event in events:
            if (rows := event.get("rows")) is not None:
                by_place.setdefault(id(rows), (rows, []))[1].extend(self._row(event))
        for rows, values in by_place.values():
            lines = ", ".join([_ONE] * (len(values) // len(_COLUMNS)))
            rows.run_blocking(f"{_INSERT}{lines} ON CONFLICT (call_id) DO NOTHING", tuple(values))

    def _row(self, event: Mapping[str, Any]) -> list[Any]:
        call_id, model, usage = event["call"]
        about = {**event["about"], "model": model}
        return [
            call_id,
            *(str(about.get(name) or "") for name in _TEXTS),
            usage.prompt_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            self._prices.cost(model, usage),
        ]

    async def aflush(self) -> None:
        """Wait, without holding the loop, until what was taken up so far is written."""
        await run_in_thread(self._outlet.drain)

    def flush(self) -> None:
        """Wait until what was taken up so far is written."""
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
    """Return what each model used.

    Args:
        tables: Where it is kept.
        thread_id: Only calls of this thread.
        user_id: Only calls for this person.
        turn_id: Only calls of this turn.
        tenant: Only calls for people of this tenant; an empty one for people of none.
        group_by: ``day``, ``user``, ``tenant``, ``thread``, ``turn`` or ``step`` for what each of them
            used; it stands in the place of the model then.
    """
    name = _BY[group_by]
    chosen = {"thread_id": thread_id, "user_id": user_id, "turn_id": turn_id, "tenant": tenant}
    named = {name: value for name, value in chosen.items() if value is not None}
    where = f" WHERE {' AND '.join(f'{name} = ?' for name in named)}" if named else ""
    _, found = await tables.run(
        f"SELECT {name}, {_SUMS} FROM capgraph_usage{where} GROUP BY {name} ORDER BY {name}",
        tuple(named.values()),
    )
    return [
        UsageTotal(_told(group_by, told), int(n), int(i), int(o), int(c), usd)
        for told, n, i, o, c, usd in found
    ]


def _told(by: str, value: Any) -> str:
    if by != "day":
        return str(value)
    return datetime.fromtimestamp(int(value) * 86_400, UTC).date().isoformat()


async def delete_usage(tables: SqlExecutor, *, older_than: timedelta) -> None:
    """Drop what calls used longer ago than that."""
    await tables.run(
        "DELETE FROM capgraph_usage WHERE at < {now} - ?", (older_than.total_seconds(),)
    )


async def average_capability_usage(
    tables: SqlExecutor, capabilities: Sequence[str]
) -> dict[str, tuple[float, float, float | None]]:
    """Return what one step of each capability used on average in the last thirty days.

    Returns:
        Name to requests, tokens and US dollars (``None`` when a price was unknown); without those
        that called no model.
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
