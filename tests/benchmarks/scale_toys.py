"""What the benchmark of workers runs: six steps that cost nothing but their way through the agent."""

from __future__ import annotations

from typing import Any, ClassVar

from capgraph import BaseCapability, CapabilityContext, capability_node


class Value(CapabilityContext):
    number: int


class _Link(BaseCapability):
    provides = ["VALUE"]
    requires: ClassVar[list[Any]] = [("VALUE", "many")]

    async def execute(self) -> Value:
        return Value(number=1 + sum(value.number for value in self.inputs.get("VALUE") or ()))


@capability_node
class Begin(_Link):
    """Needs nothing."""

    name = "begin"
    description = "Begin"
    requires: ClassVar[list[Any]] = []

    async def execute(self) -> Value:
        return Value(number=1)


@capability_node
class Link(_Link):
    """Changes nothing."""

    name = "link"
    description = "Link"


@capability_node
class Act(_Link):
    """Acts once."""

    name = "act"
    description = "Act"
    effect = "once"


def _step(key: str, capability: str, *needs: str) -> dict[str, Any]:
    return {
        "context_key": key,
        "capability": capability,
        "inputs": [{"VALUE": need} for need in needs],
    }


PLAN = {
    "steps": [
        _step("a", "begin"),
        _step("b", "link", "a"),
        _step("c", "link", "a"),
        _step("d", "link", "b", "c"),
        _step("e", "act", "d"),
        _step("f", "link", "e"),
    ]
}
"""Six steps, two of them side by side, one with an effect."""
