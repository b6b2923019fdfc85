"""Policy that asks a person before an effect with default parameters only."""

from __future__ import annotations

from typing import Any

from capgraph.base.plan import PlannedStep
from capgraph.base.ports import Verdict
from capgraph.registry import Registry


class DefaultParametersPolicy:
    """Step policy that requires approval for ``once`` effects that use only default parameters.

    A planner without a model chooses capabilities by context type, which does not determine
    amounts or recipients, so the default values could be wrong for the request. Capabilities
    that declare ``requires_approval`` are exempt, because a person approves them anyway.

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
        """Require approval for a planned ``once`` effect that uses only default parameters.

        All other steps are allowed.
        """
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
