"""What a user's own code may look like to a type checker; ``make lint`` checks this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node, open_graph
from capgraph.behaviors import (
    AuditBehavior,
    CacheBehavior,
    CircuitBreakerBehavior,
    FallbackBehavior,
    GuardrailBehavior,
    HumanInLoopBehavior,
    RateLimitBehavior,
    RetryBehavior,
    TimeoutBehavior,
)


class Level(CapabilityContext):
    """A level."""

    metres: float


class Report(BaseModel):
    """An answer."""

    metres: float


@capability_node
class Change(BaseCapability):
    """A capability with two inputs of one type."""

    name = "change"
    description = "Tell the change."
    requires = [(Level, "one", "old"), ("LEVEL", "one", "new"), "PLACE", ("TIME", "optional")]

    async def execute(self) -> dict[str, Any]:
        """Tell it."""
        return {}


@capability_node
@dataclass
class Read(BaseCapability):
    """A capability that is a data class, and not a frozen one."""

    name = "read"
    description = "Read."
    effect = "none"
    unit: str = "m"

    async def execute(self) -> dict[str, Any]:
        """Read it."""
        return {}


graph = build_graph(
    [Read],
    behaviors=[
        RetryBehavior(max_retries=2),
        TimeoutBehavior(5),
        RateLimitBehavior(),
        CircuitBreakerBehavior(),
        FallbackBehavior(default={}),
        CacheBehavior(),
        HumanInLoopBehavior(),
        AuditBehavior(),
        GuardrailBehavior(),
    ],
)


async def ask() -> float:
    """Ask with a context, and read a typed answer."""
    typed = build_graph([Read], context_schema=Level, answer_type=Report)
    typed.invoke({}, context=Report(metres=1))  # type: ignore[call-overload]
    async with open_graph([Read], context_schema=Level, answer_type=Report) as opened:
        out = await opened.ainvoke({}, context=Level(metres=1))
        return typed.answer_of(out).metres + opened.answer_of(out).metres
