"""What a plan will need, before it runs: by what its capabilities declare and used before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from capgraph.base.spec import CapabilitySpec


class PlanEstimate(NamedTuple):
    """What a plan will need if each step needs what it needed on average.

    Attributes:
        steps: Steps.
        tool_calls: The same; each step calls its capability once.
        requests: Calls of models.
        tokens: Tokens of prompts and answers.
        cost_usd: US dollars, of models and of what capabilities declare.
        unknown: Capabilities that nobody knows the use of, or the price; they count as nothing.
    """

    steps: int = 0
    tool_calls: int = 0
    requests: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unknown: tuple[str, ...] = ()

    def to_limits(self) -> dict[str, float]:
        """Return it by the names of the limits of a budget."""
        names = ("steps", "tool_calls", "requests", "tokens", "cost_usd")
        return {name: getattr(self, name) for name in names}


def estimate_plan(
    capabilities: Iterable[str],
    specs: Mapping[str, CapabilitySpec],
    history: Mapping[str, tuple[float, float, float | None]],
) -> PlanEstimate:
    """Price a plan.

    Args:
        capabilities: The capability of each step that has to run.
        specs: What they declare.
        history: Capability to the calls, tokens and US dollars (``None`` for unknown) of one step.

    >>> spec = CapabilitySpec("ask", "Asks.", cost_usd=0.01)
    >>> found = estimate_plan(["ask", "ask"], {"ask": spec}, {"ask": (1.5, 400.0, 0.02)})
    >>> found.requests, found.tokens, round(found.cost_usd, 2)
    (3, 800, 0.06)
    """
    wanted = list(capabilities)
    requests = tokens = cost = 0.0
    unknown: dict[str, None] = {}
    for name in wanted:
        calls, used, price = history.get(name, (0.0, 0.0, None))
        if price is None:
            unknown[name] = None
        requests += calls
        tokens += used
        cost += (price or 0.0) + specs[name].cost_usd
    return PlanEstimate(
        steps=len(wanted),
        tool_calls=len(wanted),
        requests=math.ceil(requests),
        tokens=math.ceil(tokens),
        cost_usd=cost,
        unknown=tuple(unknown),
    )
