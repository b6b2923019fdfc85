"""Counters of a budget: one atomic value per turn, thread, user, or tenant.

The value contains the totals (used or reserved) and the amounts of each open reservation by its ID.
A reservation is therefore removed exactly once, whichever process removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

METRICS = ("requests", "tokens", "cost_usd", "tool_calls", "steps", "seconds")
"""Metrics of a budget other than consecutive failures."""

FAILURES = "consecutive_failures"
Amounts = Mapping[str, int]
_NONE: Amounts = MappingProxyType({})


class CounterKey(NamedTuple):
    """Key of a set of counters.

    Attributes:
        scope: Scope of the budget.
        subject: ID of the turn, thread, user, or tenant.
        period: Hour, day, or month; empty for a budget without a window.
    """

    scope: str
    subject: str
    period: str

    @property
    def name(self) -> str:
        """Name of the atomic value."""
        return "/".join(("budget", *(quote(part, safe="") for part in self)))


class LimitRefusal(NamedTuple):
    """Limit that a change would exceed.

    Attributes:
        limit: Name of the limit.
        used: Amount used or reserved.
        requested: Amount that the change would add.
    """

    limit: str
    used: int
    requested: int


class CounterChange(NamedTuple):
    """Change of a set of counters.

    Attributes:
        reservation_id: ID of the reservation.
        reserved: Amounts that the reservation holds after the change.
        used: Amounts to add to the usage.
        failed: True to add a consecutive failure, False to reset them, ``None`` to keep the count.
        bounds: Maximum totals of growing counters. A counter without an entry is unlimited.
    """

    reservation_id: str
    reserved: Amounts = _NONE
    used: Amounts = _NONE
    failed: bool | None = None
    bounds: Amounts = _NONE

    def apply(self, value: Any, is_stale: Callable[[str], bool]) -> tuple[Any, LimitRefusal | None]:
        """Return the changed value, or the refusal of a limit.

        A refused change still removes stale reservations.

        Args:
            value: Current value.
            is_stale: Function that returns whether the process of a reservation has died.
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
