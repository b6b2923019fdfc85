"""Schedules of a database."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph.base.errors import ValidationError
from capgraph.scale.schedules import Schedule, Schedules
from capgraph.stores import Persistence, open_saver


class Clockwork:
    """Keeps no time."""

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Ask for nothing."""


async def test_unreadable_schedule_does_not_hide_others() -> None:
    engine: Any = Clockwork()
    async with open_saver("sqlite://:memory:") as saver:
        assert saver is not None
        schedules = Schedules(saver)
        for name in "ab":
            await schedules.add(Schedule(name, "0 7 * * *", f"{name}?"), engine)
        rows: Any = Persistence.of(saver).tables
        await rows.run("UPDATE capgraph_schedules SET request = 'x' WHERE id = 'a'")
        bad, good = await schedules.list_all()
        assert "cannot be read" in bad.unreadable
        assert (bad.id, bad.cron, bad.message) == ("a", "0 7 * * *", "")
        assert good == await schedules.get("b") == Schedule("b", "0 7 * * *", "b?")
        assert await schedules.get("c") is None
        # The last is no day of any year.
        for never in ("x", "* * * *", "0 0 31 2 *"):
            with pytest.raises(ValidationError, match="never matches"):
                await schedules.add(Schedule("c", never, "c?"), engine)
