"""Cost estimate for a plan, from declared costs and past usage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from capgraph.base.spec import CapabilitySpec


class PlanEstimate(NamedTuple):
    """Estimated usage of a plan, based on the past average usage of its capabilities.

    Attributes:
        steps: Number of steps.
        tool_calls: Number of capability calls, which equals the number of steps.
        requests: Number of model calls.
        tokens: Prompt and output tokens.
        cost_usd: Cost in US dollars, of model calls and as declared by capabilities.
        unknown: Capabilities whose usage or price is unknown. These count as zero.
    """

    steps: int = 0
    tool_calls: int = 0
    requests: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unknown: tuple[str, ...] = ()

    def to_limits(self) -> dict[str, float]:
        """Convert the usage estimate to amounts by budget limit name."""
        names = ("steps", "tool_calls", "requests", "tokens", "cost_usd")
        return {name: getattr(self, name) for name in names}


def estimate_plan(
    capabilities: Iterable[str],
    specs: Mapping[str, CapabilitySpec],
    history: Mapping[str, tuple[float, float, float | None]],
) -> PlanEstimate:
    """Estimate the usage of a plan from the past average usage of its capabilities.

    Args:
        capabilities: Capability of each step that has to run.
        specs: Specifications of the capabilities.
        history: Average usage per step by capability: model calls, tokens, and cost in US dollars
            (``None`` if unknown).

    >>> spec = CapabilitySpec("ask", "Asks.", cost_usd=0.01)
    >>> found = estimate_plan(["ask", "ask"], {"ask": spec}, {"ask": (1.5, 400.0, 0.02)})
    >>> found.requests, found.tokens, round(found.cost_usd, 2)
    (3, 800, 0.06)
    """
    names = list(capabilities)
    requests = tokens = cost = 0.0
    unknown: dict[str, None] = {}
    for name in names:
        calls, used, price = history.get(name, (0.0, 0.0, None))
        if price is None:
            unknown[name] = None
        requests += calls
        tokens += used
        cost += (price or 0.0) + specs[name].cost_usd
    return PlanEstimate(
        steps=len(names),
        tool_calls=len(names),
        requests=math.ceil(requests),
        tokens=math.ceil(tokens),
        cost_usd=cost,
        unknown=tuple(unknown),
    )
