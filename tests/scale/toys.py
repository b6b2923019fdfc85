"""Capabilities of a tank that workers look after; copied beside a configuration."""

import asyncio
import os
import time
from pathlib import Path

from capgraph.base import BaseCapability, CapabilityContext, capability_node

LOG = Path(os.environ.get("TOY_LOG", "toy.log"))
GATE = Path(os.environ.get("TOY_GATE", "toy.gate"))


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
    note(f"fill {os.getpid()}")
    while not await asyncio.to_thread(GATE.exists):
        await asyncio.sleep(0.02)
    note("filled")
    return Filled(litres=level.litres + 1)


@capability_node
async def block_tank(level: Level) -> Filled:
    """Shake the tank, and hold up everything meanwhile."""
    note(f"block {os.getpid()}")
    time.sleep(float(os.environ.get("TOY_BLOCK", "1")))
    note("blocked")
    return Filled(litres=level.litres)


@capability_node
class OpenValve(BaseCapability):
    name = "open_valve"
    description = "Open the valve of the tank."
    requires = ["LEVEL"]
    effect = "once"
    requires_approval = True

    async def execute(self):
        note(f"opened {os.getpid()}")


@capability_node
class SealTank(BaseCapability):
    name = "seal_tank"
    description = "Seal the tank."
    requires = ["FILLED"]
    effect = "once"

    async def execute(self):
        note(f"sealed {os.getpid()}")


class Film(CapabilityContext):
    frames: str

    def get_summary(self) -> str:
        return f"A film of {len(self.frames)} frames."


@capability_node
async def film_tank(frames: int = 1000) -> Film:
    """Film the tank."""
    note("film")
    return Film(frames="x" * frames)
