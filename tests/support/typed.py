"""What a user's own code may look like to a type checker; ``make lint`` checks this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framework import BaseCapability, build_graph, capability_node
from framework.behaviors import (
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
