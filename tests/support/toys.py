"""The smallest capabilities that tests are made of: one measures, one adds, one does nothing."""

from __future__ import annotations

from typing import Any

from capgraph import BaseCapability, CapabilityContext, capability_node
from tests.support.one_door import said

__all__ = ["Reading", "Total", "add", "capability", "measure", "said"]


class Reading(CapabilityContext):
    """A number."""

    value: float

    def get_summary(self) -> str:
        return f"The value is {self.value:g}."


class Total(CapabilityContext):
    """A sum."""

    value: float


@capability_node
async def measure() -> Reading:
    """Measure the value."""
    return Reading(value=7)


@capability_node
async def add(readings: list[Reading]) -> Total:
    """Add values."""
    return Total(value=sum(reading.value for reading in readings))


def capability(name: str, **attributes: Any) -> Any:
    """Return a capability that does nothing; keywords are attributes of its class."""

    async def execute(self: Any) -> None:
        return None

    namespace = {"name": name, "description": f"Does {name}", "execute": execute, **attributes}
    return capability_node(type(name.title(), (BaseCapability,), namespace))
