"""Where budgets count: in memory, or in a table that processes share.

One change is one statement: it adds to the counters only if they stay within their bounds, so two
processes can never both take the last of something.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from framework.base.ports import Rows

METRICS = ("requests", "tokens", "cost_usd", "tool_calls", "steps", "seconds")
"""What a budget counts, besides failures in a row."""

FAILURES = "consecutive_failures"
_COLUMNS = (*METRICS, FAILURES)
_MOST_PLACES = 100_000
Amounts = Mapping[str, int]


class Place(NamedTuple):
    """Names one set of counters.

    Attributes:
        scope: Which budget.
        subject: Whose: a turn, a thread, a person.
        period: Which hour, day or month; empty for ever.
    """

    scope: str
    subject: str
    period: str


class Change(NamedTuple):
    """One change of counters.

    Attributes:
        add: What is added, by name; may be negative.
        bounds: What the counters that grow may at most be; a counter that is not named has none.
        failed: ``True`` for one more failure in a row, ``False`` for none, ``None`` to leave it.
        old: The mark of a reservation that goes.
        new: The mark that takes its place.
    """

    add: Amounts
    bounds: Amounts = MappingProxyType({})
    failed: bool | None = None
    old: str = ""
    new: str = ""

    def fits(self, found: Amounts) -> bool:
        """Tell whether the counters stay within their bounds."""
        if found.get(FAILURES, 0) >= self.bounds.get(FAILURES, 1 << 62):
            return False
        return all(
            found.get(name, 0) + self.add[name] <= self.bounds[name]
            for name in METRICS
            if self.add.get(name, 0) > 0 and name in self.bounds
        )


class Found(NamedTuple):
    """Counters as they stand, and the marks of reservations that are open."""

    counters: Amounts
    marks: str


class Counters(Protocol):
    """Keeps counters."""

    durable: bool
    """Whether they outlive the process."""

    async def change(self, place: Place, change: Change) -> Found | None:
        """Change counters in one piece; ``None``, and nothing changed, when a bound stands against."""

    async def read(self, place: Place) -> Found:
        """Return counters; 0 where nothing was counted."""


class MemoryCounters:
    """Counters of this process. The oldest go when there are very many."""

    durable = False

    def __init__(self) -> None:
        self._kept: OrderedDict[Place, dict[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    async def change(self, place: Place, change: Change) -> Found | None:
        """Change counters in one piece."""
        with self._lock:
            kept = self._kept.setdefault(place, dict.fromkeys(_COLUMNS, 0))
            self._kept.move_to_end(place)
            if len(self._kept) > _MOST_PLACES:
                self._kept.popitem(last=False)
            if not change.fits(kept):
                return None
            for name, amount in change.add.items():
                kept[name] += amount
            if change.failed is not None:
                kept[FAILURES] = kept[FAILURES] + 1 if change.failed else 0
            return Found(dict(kept), "")

    async def read(self, place: Place) -> Found:
        """Return counters."""
        with self._lock:
            return Found(dict(self._kept.get(place) or dict.fromkeys(_COLUMNS, 0)), "")


_TABLE = (
    "CREATE TABLE IF NOT EXISTS capgraph_budgets (scope TEXT NOT NULL, subject TEXT NOT NULL,"
    " period TEXT NOT NULL, "
    + ", ".join(f"{name} BIGINT NOT NULL" for name in _COLUMNS)
    + ", marks TEXT NOT NULL, PRIMARY KEY (scope, subject, period))"
)
_NAMES = ", ".join(_COLUMNS)
_CHANGE = (
    f"INSERT INTO capgraph_budgets (scope, subject, period, {_NAMES}, marks)"
    f" VALUES ({', '.join('?' * (len(_COLUMNS) + 4))})"
    " ON CONFLICT (scope, subject, period) DO UPDATE SET "
    + ", ".join(f"{name} = capgraph_budgets.{name} + excluded.{name}" for name in METRICS)
    + f", {FAILURES} = CASE WHEN ? = 1 THEN 0"
    f" ELSE capgraph_budgets.{FAILURES} + excluded.{FAILURES} END,"
    " marks = replace(capgraph_budgets.marks, ?, '') || excluded.marks"
)
_READ = (
    f"SELECT {_NAMES}, marks FROM capgraph_budgets WHERE scope = ? AND subject = ? AND period = ?"
)


class SharedCounters:
    """Counters in a table.

    Args:
        rows: The database.
    """

    durable = True

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def change(self, place: Place, change: Change) -> Found | None:
        """Change counters in one piece."""
        await self._rows.table(_TABLE)
        if not change.fits({}):
            return None
        added = [change.add.get(name, 0) for name in METRICS]
        values = [*place, *added, int(change.failed is True), change.new]
        values += [int(change.failed is False), change.old]
        where = []
        for name in METRICS:
            if change.add.get(name, 0) > 0 and name in change.bounds:
                where.append(f"capgraph_budgets.{name} + excluded.{name} <= ?")
                values.append(change.bounds[name])
        if FAILURES in change.bounds:
            where.append(f"capgraph_budgets.{FAILURES} < ?")
            values.append(change.bounds[FAILURES])
        statement = _CHANGE + (f" WHERE {' AND '.join(where)}" if where else "")
        _, found = await self._rows.run(f"{statement} RETURNING {_NAMES}, marks", tuple(values))
        return _found(found[0]) if found else None

    async def read(self, place: Place) -> Found:
        """Return counters."""
        await self._rows.table(_TABLE)
        _, found = await self._rows.run(_READ, tuple(place))
        return _found(found[0]) if found else Found(dict.fromkeys(_COLUMNS, 0), "")


def _found(row: tuple[int | str, ...]) -> Found:
    *counters, marks = row
    return Found({n: int(c) for n, c in zip(_COLUMNS, counters, strict=True)}, str(marks))
