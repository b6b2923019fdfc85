"""What a budget has counted of a turn, a thread or a person: one cell, and how it changes.

The cell holds what is used or reserved together, and beside it what each open reservation holds of it,
under the mark of that reservation. So what is reserved goes exactly once, whoever takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

METRICS = ("requests", "tokens", "cost_usd", "tool_calls", "steps", "seconds")
"""What a budget counts, besides failures in a row."""

FAILURES = "consecutive_failures"
Amounts = Mapping[str, int]
_NONE: Amounts = MappingProxyType({})


class CounterKey(NamedTuple):
    """Names one set of counters.

    Attributes:
        scope: Which budget.
        subject: Whose: a turn, a thread, a person.
        period: Which hour, day or month; empty for ever.
    """

    scope: str
    subject: str
    period: str

    @property
    def name(self) -> str:
        """Name of the cell."""
        return "/".join(("budget", *(quote(part, safe="") for part in self)))


class LimitRefusal(NamedTuple):
    """Which limit stands against a change.

    Attributes:
        limit: Name of the limit.
        used: What is used or reserved of it.
        requested: What would come to that.
    """

    limit: str
    used: int
    requested: int


class CounterChange(NamedTuple):
    """One change of counters.

    Attributes:
        reservation_id: Names the reservation.
        reserved: What it holds from now on.
        used: What was used besides.
        failed: ``True`` for one more failure in a row, ``False`` for none, ``None`` to leave it.
        bounds: What the counters that grow may at most be; a counter that is not named has none.
    """

    reservation_id: str
    reserved: Amounts = _NONE
    used: Amounts = _NONE
    failed: bool | None = None
    bounds: Amounts = _NONE

    def apply(self, value: Any, is_stale: Callable[[str], bool]) -> tuple[Any, LimitRefusal | None]:
        """Return the changed cell; but for what is stale the same one when a bound stands against.

        Args:
            value: The cell.
            is_stale: Tells of a mark whether the process died that reserved under it.
        """
        total: Amounts = value[0] if value else {}
        marks: dict[str, Amounts] = dict(value[1]) if value else {}
        for mark in [mark for mark in marks if is_stale(mark)]:
            total = _sum(total, marks.pop(mark), -1)
        after = _sum(_sum(total, marks.get(self.reservation_id, _NONE), -1), self.reserved)
        after = _sum(after, self.used)
        if self.failed is not None:
            after[FAILURES] = after.get(FAILURES, 0) + 1 if self.failed else 0
        for name, bound in self.bounds.items():
            there = total.get(name, 0)
            more = after.get(name, 0) - there
            if there >= bound if name == FAILURES else more > 0 and there + more > bound:
                return (total, marks), LimitRefusal(name, there, more)
        marks[self.reservation_id] = {
            name: amount for name, amount in self.reserved.items() if amount
        }
        if not marks[self.reservation_id]:
            del marks[self.reservation_id]
        return (after, marks), None


def _sum(amounts: Amounts, more: Amounts, sign: int = 1) -> dict[str, int]:
    found = dict(amounts)
    for name, amount in more.items():
        if amount:
            found[name] = found.get(name, 0) + sign * amount
    return found
