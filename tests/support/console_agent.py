"""The agent of the console's tests: a tank, a forecast that wants to deceive, and many small steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, capability_node

HOSTILE = (
    "Rain: **12.0 mm**. <img src=x onerror=alert(1)> <script>alert(2)</script> "
    "![x](https://elsewhere.example/a.png) [click](javascript:alert(3)) "
    "[here](https://elsewhere.example/) \x1b[31mred\x1b[0m pay\u202elap \u200bend"
)


class Level(CapabilityContext):
    """How full a tank is."""

    litres: float
    metres: float

    def get_summary(self) -> str:
        return f"The tank holds {self.litres:g} litres, {self.metres:g} m."


class Forecast(CapabilityContext):
    """How much rain is to come."""

    rain_mm: float
    text: str

    def get_summary(self) -> str:
        return self.text


class Small(CapabilityContext):
    """A number."""

    value: float

    def get_summary(self) -> str:
        return f"{self.value:g}"


async def wait_for_file(path: str) -> None:
    """Return at once without a path, or when the file exists."""
    while path and not await asyncio.to_thread(Path(path).exists):
        await asyncio.sleep(0.05)


@capability_node
async def read_level() -> Level:
    """Read the level of the tank."""
    await asyncio.sleep(0.4)
    return Level(litres=2480.5, metres=2.5)


@capability_node
async def rain_forecast() -> Forecast:
    """Get the weather forecast: will it rain?"""
    await asyncio.sleep(0.2)
    return Forecast(rain_mm=12.0, text=HOSTILE)


class Soil(CapabilityContext):
    """How wet the ground is."""

    moisture: float

    def get_summary(self) -> str:
        return f"The moisture of the soil is {self.moisture:.0%}."


class Need(CapabilityContext):
    """How much water the garden needs."""

    litres: float

    def get_summary(self) -> str:
        return f"The garden needs **{self.litres:g} litres**."


@capability_node
async def measure_soil() -> Soil:
    """Measure the moisture of the soil."""
    await asyncio.sleep(0.3)
    return Soil(moisture=0.18)


@capability_node
async def garden_need(soil: Soil) -> Need:
    """Estimate the need of the garden."""
    await asyncio.sleep(0.25)
    return Need(litres=36.5)


class Opening(BaseModel):
    litres: float = Field(5.0, gt=0, le=50, description="How much water to let out")
    mode: Literal["slow", "fast"] = "slow"
    note: str | None = None
    dry_run: bool = False


@capability_node
class OpenValve(BaseCapability):
    name = "open_valve"
    description = "Open the valve of the tank."
    requires = ["LEVEL"]
    effect = "once"
    requires_approval = True
    Parameters = Opening

    async def execute(self) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return {}


class Work(BaseModel):
    seconds: float = Field(0.0, ge=0, le=60)
    size: int = Field(0, ge=0)
    gate: str = Field("", description="File to wait for")


@capability_node
class Crunch(BaseCapability):
    """Work for a while."""

    name = "crunch"
    description = "Work for a while with numbers."
    provides = ["SMALL"]
    requires = [("SMALL", "optional")]
    Parameters = Work

    async def execute(self) -> Any:
        await asyncio.sleep(self.parameters.seconds)
        await wait_for_file(self.parameters.gate)
        return Small(value=1.0)
