"""A small agent for tests with models: one capability reads, one adds up, one acts."""

from __future__ import annotations

from typing import ClassVar

from capgraph import BaseCapability, CapabilityContext, Registry, capability_node
from capgraph.base import CapabilityError, ClassifierExample, ErrorSeverity, TaskClassifierGuide


class Reading(CapabilityContext):
    """What a sensor said."""

    value: float
    note: str = ""

    def get_summary(self) -> str:
        """Say it."""
        return f"The sensor reads {self.value}. {self.note}".strip()


class Total(CapabilityContext):
    """A sum."""

    total: float


@capability_node
class ReadSensor(BaseCapability):
    """Reads the sensor."""

    name = "read_sensor"
    description = "Reads the sensor."
    provides = ["READING"]
    note: ClassVar[str] = ""

    async def execute(self) -> Reading:
        """Read it."""
        return Reading(value=3.5, note=type(self).note)

    def _create_classifier_guide(self) -> TaskClassifierGuide:
        return TaskClassifierGuide(
            instructions="Whenever a value of the sensor is wanted.",
            examples=[
                ClassifierExample("What does the sensor say?", True, "asks for the value"),
                ClassifierExample("Tell me a joke", False, "no value"),
            ],
        )


@capability_node
class AddUp(BaseCapability):
    """Adds up readings."""

    name = "add_up"
    description = "Adds up readings."
    provides = ["TOTAL"]
    requires = [("READING", "many")]

    async def execute(self) -> Total:
        """Add."""
        return Total(total=sum(reading.value for reading in self.inputs["READING"]))


@capability_node
class OldSensor(BaseCapability):
    """A sensor that is broken."""

    name = "old_sensor"
    description = "Reads the old sensor."
    provides = ["READING"]

    async def execute(self) -> Reading:
        """Fail, asking for another plan."""
        raise CapabilityError(
            "The old sensor is silent.",
            fix="Read the new one.",
            severity=ErrorSeverity.REPLANNING,
        )


@capability_node
class Wipe(BaseCapability):
    """Acts on the world."""

    name = "wipe"
    description = "Erases all readings."
    effect = "once"
    wiped: ClassVar[list[int]] = []

    async def execute(self) -> dict[str, str]:
        """Note that it ran, which no test wants to see."""
        Wipe.wiped.append(1)
        return {}


def sensor_registry(extra: int = 0) -> Registry:
    """Return the agent's registry, with any number of further capabilities."""
    registry = Registry()
    for item in (Reading, Total, ReadSensor, AddUp, OldSensor, Wipe):
        registry.register(item)
    for number in range(extra):
        registry.register(_filler(number))
    return registry


def _filler(number: int) -> type[BaseCapability]:
    async def execute(self: BaseCapability) -> dict[str, str]:
        return {}

    topic = ("orders", "invoices", "letters", "recipes", "songs")[number % 5]
    body = {
        "name": f"archive_{number}",
        "description": f"Files {topic} of department {number}.",
        "execute": execute,
    }
    return capability_node(type(f"Archive{number}", (BaseCapability,), body))


def step(key: str, capability: str, **fields: object) -> dict[str, object]:
    """Write a planned step as a model would."""
    objective = f"Do {capability}"
    return {"context_key": key, "capability": capability, "task_objective": objective, **fields}


READ = step("value", "read_sensor", expected_output="READING")
ADD = step("sum", "add_up", expected_output="TOTAL", inputs=[{"READING": "value"}])
RESPOND = step("answer", "respond")
