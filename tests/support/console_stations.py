"""The agent of the console's tests with many states: retries, failed elements, and a rich form."""

from __future__ import annotations

import asyncio
import os
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import CapabilityError, ErrorSeverity, Progress
from tests.support.console_agent import wait_for_file


class Stations(CapabilityContext):
    """The stations of the network."""

    codes: list[str]

    def get_summary(self) -> str:
        return f"{len(self.codes)} stations."


class Reading(CapabilityContext):
    """The temperature at a station."""

    code: str
    celsius: float


class Rates(CapabilityContext):
    """The exchange rates."""

    usd: float
    year: int

    def get_summary(self) -> str:
        return f"The sensor of S017 costs {self.usd:g} USD. Rates of {self.year}."


class Accuracy(CapabilityContext):
    """The accuracy of the trained model."""

    value: float


class Mean(CapabilityContext):
    """The mean temperature."""

    celsius: float

    def get_summary(self) -> str:
        return f"The mean temperature is {self.celsius:.1f} °C."


def _is_repaired() -> bool:
    return Path(os.environ.get("STATION_REPAIRED") or "missing").exists()


@capability_node
async def list_stations(count: int = 12) -> Stations:
    """List the stations of the network."""
    await asyncio.sleep(0.1)
    return Stations(codes=[f"S{n:03}" for n in range(1, count + 1)])


class Station(BaseModel):
    code: str = ""
    seconds: float = 0.1


@capability_node
class ReadStation(BaseCapability):
    name = "read_station"
    description = "Read the temperature at a station."
    examples = ("Read station S003",)
    provides = ["READING"]
    Parameters = Station

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        return {"max_attempts": 1, "delay_seconds": 0, "backoff_factor": 1}

    async def execute(self) -> Any:
        await asyncio.sleep(self.parameters.seconds)
        if self.parameters.code == "S007" and not await asyncio.to_thread(_is_repaired):
            raise CapabilityError("station S007 gives no signal", fix="replace its battery")
        return Reading(code=self.parameters.code, celsius=12 + int(self.parameters.code[1:]) / 10)


class Rating(BaseModel):
    failures: int = 2
    gate: str = ""


@capability_node
class FetchRates(BaseCapability):
    name = "fetch_rates"
    description = "Fetch the exchange rates."
    examples = ("Fetch the exchange rates", "What does a sensor cost?")
    provides = ["RATES"]
    Parameters = Rating

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        return {"max_attempts": 4, "delay_seconds": 0.8, "backoff_factor": 1}

    async def execute(self) -> Any:
        await asyncio.sleep(0.2)
        if self.attempt <= self.parameters.failures:
            raise CapabilityError(
                "the service has no answer", fix="wait", severity=ErrorSeverity.RETRIABLE
            )
        await wait_for_file(self.parameters.gate)
        return Rates(usd=17.25, year=2015)


@capability_node
async def train_model(progress: Progress, seconds: float = 1.0, gate: str = "") -> Accuracy:
    """Train the model of the weather; the fourth epoch waits for the gate."""
    for epoch in range(1, 11):
        progress(f"epoch {epoch} of 10", epoch / 10)
        if epoch == 4:
            await wait_for_file(gate)
        await asyncio.sleep(seconds / 10)
    return Accuracy(value=0.913)


@capability_node(max_attempts=1)
async def compute_mean() -> Mean:
    """Compute the mean temperature."""
    await asyncio.sleep(0.1)
    if not await asyncio.to_thread(_is_repaired):
        raise CapabilityError("too few readings for a mean", fix="repair the stations")
    return Mean(celsius=12.4)


class Position(BaseModel):
    part: str = ""
    quantity: int = Field(1, ge=1, le=100)


class Order(BaseModel):
    quantity: int = Field(3, ge=1, le=100, description="Number of sensors")
    supplier: Literal["Acme", "Globex"] = "Acme"
    deliver_on: date = date(2026, 12, 1)
    pickup_at: datetime | None = None
    tags: list[str] = Field(default_factory=lambda: ["urgent", "roof"])
    positions: list[Position] = Field(
        default_factory=lambda: [Position(part="sensor", quantity=3), Position(part="cable")]
    )
    express: bool = False
    note: str | None = None


@capability_node
class OrderSensors(BaseCapability):
    name = "order_sensors"
    description = "Order new sensors."
    examples = ("Order new sensors",)
    effect = "once"
    requires_approval = True
    Parameters = Order

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        return {"max_attempts": 1, "delay_seconds": 0, "backoff_factor": 1}

    async def execute(self) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        if self.parameters.note == "rare part" and not await asyncio.to_thread(_is_repaired):
            raise CapabilityError("the part is not in stock", fix="order it elsewhere")
        return {}
