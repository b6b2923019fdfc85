"""The times of a clause, as periods and tests of a query."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from capabilities.data.phrases import CHANGE, GREW, ORDER
from capabilities.data.placing import Placing
from capabilities.data.query import Filter
from capabilities.periods.items import floor, shift
from framework.base import ValidationError


class Timing(Placing):
    """Turns the times that a clause names into slots of its query."""

    def _single_row(self) -> bool:
        """Say whether the asked time is one row of the table."""
        return not self.slots.groups and not self._several_series() and self._one_step()

    def _one_step(self) -> bool:
        """Say whether the asked time is one time of the table."""
        frequency = self.profile.frequency
        if len(self.times.intervals) != 1 or frequency not in ORDER or frequency == "minute":
            return False
        start, end = self.times.intervals[0].start, self.times.intervals[0].end
        if start is None or end is None:
            return False
        return end <= shift(floor(start, frequency), 1, frequency)

    def _time_slots(self, update: dict[str, Any]) -> dict[str, Any]:
        """Return what the times of the clause add to a query."""
        times, profile = self.times, self.profile
        if not self.timed:
            if times.intervals or times.window:
                raise self._unplaced(
                    [times.label],
                    ValidationError(
                        f"{profile.table.label} has no column with dates, so {times.label!r} cannot"
                        " be selected.",
                        fix=f"Ask without a time; columns: {profile.names()}.",
                    ),
                )
            return {}
        if times.days:
            raise self._unplaced([times.label])
        where = list(update.get("where") or [])
        where += [
            Filter(column=column, op="in", value=list(numbers))
            for column, numbers in (
                ("month_of_year", times.months),
                ("weekday", times.weekdays),
                ("hour_of_day", times.hours),
            )
            if numbers
        ]
        periods = self._periods()
        if not periods and self.base is not None:
            periods = self.base.periods
        change = len(periods) > 1 and update["aggregate"] != "values" and not update.get("rolling")
        return {"where": where, "periods": periods, "change": change}

    def _periods(self) -> list[tuple[datetime | None, datetime | None]]:
        times, profile = self.times, self.profile
        if times.window is not None and profile.first and profile.last:
            edge, amount, unit = times.window
            if edge == "last":
                end = shift(floor(profile.last, unit), 1, unit)
                return [(shift(end, -amount, unit), end)]
            start = floor(profile.first, unit)
            return [(start, shift(start, amount, unit))]
        apart = bool(times.endpoints) and bool(CHANGE.search(self.text) or GREW.search(self.text))
        return [(i.start, i.end) for i in (times.endpoints if apart else times.intervals)]
