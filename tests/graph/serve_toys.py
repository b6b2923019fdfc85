"""Capabilities of a served tank for tests with real processes; copied beside a configuration."""

import asyncio
import os
from pathlib import Path

from capgraph.base import BaseCapability, CapabilityContext, capability_node

LOG = Path(os.environ.get("TOY_LOG", ""))
GATE = Path(os.environ.get("TOY_GATE", ""))


def note(line):
    with LOG.open("a") as file:
        file.write(f"{line}\n")


class Level(CapabilityContext):
    litres: float


class Filled(CapabilityContext):
    litres: float


@capability_node
async def read_level() -> Level:
    """Read the level of the tank."""
    note("read")
    return Level(litres=7)


@capability_node
async def fill_tank(level: Level) -> Filled:
    """Fill the tank, as soon as the gate is open."""
    note("fill")
    while not await asyncio.to_thread(GATE.exists):
        await asyncio.sleep(0.02)
    note("filled")
    return Filled(litres=level.litres + 1)


@capability_node
class OpenValve(BaseCapability):
    name = "open_valve"
    description = "Open the valve of the tank."
    requires = ["LEVEL"]
    effect = "once"
    requires_approval = True

    async def execute(self):
        note("opened")
