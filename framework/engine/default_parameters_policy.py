"""Ask before an effect that keeps its default parameters where the planner chooses none."""

from __future__ import annotations

from typing import Any

from capgraph.base.plan import PlannedStep
from capgraph.base.ports import Verdict
from capgraph.registry import Registry


class DefaultParametersPolicy:
    """Asks before a ``once`` step that the planner left at its default parameters.

    Types say which capability is meant, never how much or to whom; the defaults are the author's
    example, not the person's wish. What needs approval anyhow is shown, or has a rule already.

    Args:
        registry: The capabilities.
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
        """Allow everything but such a step of a plan that the planner wrote."""
        if step.get("capability") not in self._names:
            return Verdict("allow")
        author = next((v["author"] for v in reversed(view.state.get("planning_history") or [])), "")
        planned = [own for own in view.steps if own.get("context_key") == step.get("context_key")]
        if author != "orchestrator" or any(own.get("parameters") for own in planned):
            return Verdict("allow")
        return Verdict("ask", ["Nobody chose its parameters; they are all defaults."])
