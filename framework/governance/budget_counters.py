"""Counters of a budget: one atomic value per turn, thread, user, or tenant.

The value contains the totals (used or reserved) and the amounts of each open reservation by its ID.
Therefore each reservation is removed exactly once, whichever process removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

METRICS = ("requests", "tokens", "cost_usd", "tool_calls", "steps", "seconds")
"""Metrics of a budget, without consecutive failures."""

FAILURES = "consecutive_failures"
Amounts = Mapping[str, int]
_NO_AMOUNTS: Amounts = MappingProxyType({})


class CounterKey(NamedTuple):
    """Key that identifies the counters of a budget for one subject and period.

    Attributes:
        scope: Scope of the budget.
        subject: ID of the turn, thread, user, or tenant.
        period: Hour, day, or month. Empty for a budget without a window.
    """

    scope: str
    subject: str
    period: str

    @property
    def name(self) -> str:
        """Storage key of the budget counters."""
        return "/".join(("budget", *(quote(part, safe="") for part in self)))


class LimitRefusal(NamedTuple):
    """Details of the budget limit that refused a change to the counters.

    Attributes:
        limit: Name of the limit.
        used: Amount that is used or reserved.
        requested: Amount that the change would add.
    """

    limit: str
    used: int
    requested: int


class CounterChange(NamedTuple):
    """Change to the counters of a budget.

    Attributes:
        reservation_id: ID of the reservation.
        reserved: Amounts that are reserved after the change.
        used: Amounts to add to the usage.
        failed: True to add a consecutive failure, False to reset them, ``None`` to keep the count.
        bounds: Maximum totals of growing counters. A counter without an entry is unlimited.
    """

    reservation_id: str
    reserved: Amounts = _NO_AMOUNTS
    used: Amounts = _NO_AMOUNTS
    failed: bool | None = None
    bounds: Amounts = _NO_AMOUNTS

    def apply(self, value: Any, is_stale: Callable[[str], bool]) -> tuple[Any, LimitRefusal | None]:
        """Apply the change to a counter value, or return the limit that refused the change.

        Stale reservations are removed even if the change is refused.

        Args:
            value: Current value.
            is_stale: Function that returns True if a reservation's process has died.
        """
        total: Amounts = value[0] if value else {}
        reservations: dict[str, Amounts] = dict(value[1]) if value else {}
        for reservation in [reservation for reservation in reservations if is_stale(reservation)]:
            total = _add(total, reservations.pop(reservation), -1)
        new_total = _add(
            _add(total, reservations.get(self.reservation_id, _NO_AMOUNTS), -1), self.reserved
        )
        new_total = _add(new_total, self.used)
        if self.failed is not None:
            new_total[FAILURES] = new_total.get(FAILURES, 0) + 1 if self.failed else 0
        for name, bound in self.bounds.items():
            current = total.get(name, 0)
            increase = new_total.get(name, 0) - current
            if (
                current >= bound
                if name == FAILURES
                else increase > 0 and current + increase > bound
            ):
                return (total, reservations), LimitRefusal(name, current, increase)
        reservations[self.reservation_id] = {
            name: amount for name, amount in self.reserved.items() if amount
        }
        if not reservations[self.reservation_id]:
            del reservations[self.reservation_id]
        return (new_total, reservations), None


def _add(amounts: Amounts, added: Amounts, sign: int = 1) -> dict[str, int]:
    result = dict(amounts)
    for name, amount in added.items():
        if amount:
            result[name] = result.get(name, 0) + sign * amount
    return result
