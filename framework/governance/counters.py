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

    @property
    def cell(self) -> str:
        """Name of the cell."""
        return "/".join(("budget", *(quote(part, safe="") for part in self)))


class Refusal(NamedTuple):
    """Which limit stands against a change.

    Attributes:
        limit: Name of the limit.
        used: What is used or reserved of it.
        asked: What would come to that.
    """

    limit: str
    used: int
    asked: int


class Change(NamedTuple):
    """One change of counters.

    Attributes:
        mark: Names the reservation.
        held: What it holds from now on.
        used: What was used besides.
        failed: ``True`` for one more failure in a row, ``False`` for none, ``None`` to leave it.
        bounds: What the counters that grow may at most be; a counter that is not named has none.
    """

    mark: str
    held: Amounts = _NONE
    used: Amounts = _NONE
    failed: bool | None = None
    bounds: Amounts = _NONE

    def apply(self, cell: Any, stale: Callable[[str], bool]) -> tuple[Any, Refusal | None]:
        """Return the changed cell; but for what is stale the same one when a bound stands against.

        Args:
            cell: The cell.
            stale: Tells of a mark whether the process died that reserved under it.
        """
        total: Amounts = cell[0] if cell else {}
        marks: dict[str, Amounts] = dict(cell[1]) if cell else {}
        for mark in [mark for mark in marks if stale(mark)]:
            total = _sum(total, marks.pop(mark), -1)
        after = _sum(_sum(total, marks.get(self.mark, _NONE), -1), self.held)
        after = _sum(after, self.used)
        if self.failed is not None:
            after[FAILURES] = after.get(FAILURES, 0) + 1 if self.failed else 0
        for name, bound in self.bounds.items():
            there = total.get(name, 0)
            more = after.get(name, 0) - there
            if there >= bound if name == FAILURES else more > 0 and there + more > bound:
                return (total, marks), Refusal(name, there, more)
        marks[self.mark] = {name: amount for name, amount in self.held.items() if amount}
        if not marks[self.mark]:
            del marks[self.mark]
        return (after, marks), None


def _sum(amounts: Amounts, more: Amounts, sign: int = 1) -> dict[str, int]:
    found = dict(amounts)
    for name, amount in more.items():
        if amount:
            found[name] = found.get(name, 0) + sign * amount
    return found
