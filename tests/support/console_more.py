"""What a person meets more rarely: two people, unknown outcomes, other plans, waits, copies of a step."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.governance import ApprovalPolicy


class Weather(CapabilityContext):
    """What the weather is."""

    words: str
    days: list[str] = Field(default_factory=lambda: ["mon", "tue", "wed"])

    def get_summary(self) -> str:
        return f"The weather is {self.words}."


class Report(CapabilityContext):
    """What is made of it."""

    text: str


@capability_node
async def station() -> Weather:
    """Ask the station for the weather."""
    await asyncio.sleep(0.2)
    raise CapabilityError(
        "the station is silent", fix="ask another", severity=ErrorSeverity.RECLASSIFICATION
    )


@capability_node
async def satellite() -> Weather:
    """Ask the satellite for the weather."""
    await asyncio.sleep(0.2)
    return Weather(words="fine")


@capability_node
async def base() -> Report:
    """Make the first report."""
    return Report(text="first")


class Day(BaseModel):
    day: str = ""


@capability_node
class OneDay(BaseCapability):
    name = "one_day"
    description = "Look at a day."
    provides = ["REPORT"]
    Parameters = Day

    async def execute(self) -> Any:
        await asyncio.sleep(0.1)
        return Report(text=self.parameters.day)


class Sum(BaseModel):
    amount: int = Field(100, ge=1)


@capability_node
class Pay(BaseCapability):
    """Pays when two people agree."""

    name = "pay"
    description = "Pay."
    effect = "once"
    requires_approval = ApprovalPolicy(approvers=2)
    Parameters = Sum

    async def execute(self) -> dict[str, Any]:
        return {}


@capability_node
class Transfer(BaseCapability):
    """Transfers when two people other than the requester agree."""

    name = "transfer"
    description = "Transfer the money."
    effect = "once"
    requires_approval = ApprovalPolicy(approvers=2, not_requester=True, expires_seconds=3600)
    Parameters = Sum

    async def execute(self) -> dict[str, Any]:
        return {}


@capability_node
class Launch(BaseCapability):
    """Does something, and takes its time to say so."""

    name = "launch"
    description = "Launch."
    effect = "once"
    requires_approval = True
    Parameters = Sum

    async def execute(self) -> dict[str, Any]:
        path = Path(os.environ.get("LAUNCHED") or os.devnull)
        if not await asyncio.to_thread(path.exists):
            await asyncio.to_thread(path.write_text, "x")
            await asyncio.sleep(60)
        return {}
