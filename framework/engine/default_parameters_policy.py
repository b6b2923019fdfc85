"""Policy that asks a person before an effect with default parameters only."""

from __future__ import annotations

from typing import Any

from capgraph.base.plan import PlannedStep
from capgraph.base.ports import Verdict
from capgraph.registry import Registry


class DefaultParametersPolicy:
    """Step policy that asks about ``once`` effects whose parameters the planner did not choose.

    A planner without a model selects a capability by types, which say nothing about amounts or
    recipients. The defaults are examples of the author. Capabilities that require approval are
    excluded, because they are shown to a person in any case.

    Args:
        registry: Registered capabilities.
    """

    def __init__(self, registry: Registry) -> None:
        self._names = {
            spec.name
            for spec in registry.capabilities.values()
            if spec.effect == "once"
            and not spec.requires_approval
            and spec.parameters is not None
            and spec.parameters.model_fields
        }

    def __bool__(self) -> bool:
        return bool(self._names)

    async def decide(self, step: PlannedStep, view: Any) -> Verdict:
        """Return ``ask`` for such a step of a planner's plan, otherwise ``allow``."""
        if step.get("capability") not in self._names:
            return Verdict("allow")
        author = next((v["author"] for v in reversed(view.state.get("planning_history") or [])), "")
        planned = [
            planned_step
            for planned_step in view.steps
            if planned_step.get("context_key") == step.get("context_key")
        ]
        if author != "orchestrator" or any(
            planned_step.get("parameters") for planned_step in planned
        ):
            return Verdict("allow")
        return Verdict("ask", ["All parameters are defaults; nobody chose them."])
