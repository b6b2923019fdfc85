"""Node that selects the capabilities for a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.engine import Services
from capgraph.engine.recipes import match_example
from capgraph.planning import requires_closure
from capgraph.planning.recipes import drop_overlapping
from capgraph.registry import Registry
from capgraph.selection import Selection
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import CapabilitiesSelected, emit


@infrastructure_node
class ClassifierNode(BaseInfrastructureNode):
    """Node that selects the capabilities for the task and the capabilities they depend on."""

    name = "classifier"
    description = "Capability selection"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Select the capabilities for the task.

        After a RECLASSIFICATION failure, the capabilities that failed are excluded.
        """
        streamer.status("Selecting capabilities")
        view = services.view(state)
        registry = services.registry_for(view)
        selection = await _select_capabilities(view, registry, services)
        # The selector knows neither the answer type nor the instructions.
        has_type = services.answer_type_of(state) is not None
        has_free_form = not has_type and not await services.instructions(view)
        answer = selection.answer if has_free_form else ""
        always = [name for name, spec in registry.capabilities.items() if spec.always_active]
        chosen = [name for name in selection.names if name in registry.capabilities]
        selected = list(dict.fromkeys([*chosen, *always]))
        selection_record = {
            "chosen": chosen,
            "reason": selection.reason,
            "deferred": selection.deferred,
        }
        if selection.deferred:
            # The planner selects; capabilities that failed with RECLASSIFICATION stay excluded.
            active = selected
        else:
            # Producers of stored contexts stay active: a plan may need fresh data.
            closure = requires_closure(selected, registry, task=view.task)
            active = list(dict.fromkeys([*selected, *closure]))
            scores = {n: selection.scores[n] for n in active if n in selection.scores}
            emit(CapabilitiesSelected(capabilities=active, reason=selection.reason, scores=scores))
        return {
            "planning_active_capabilities": active,
            "planning_selection": selection_record,
            "planning_execution_plan": None,
            "task_custom_message": answer or None,
        }

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for transient model-service errors."""
        return {"max_attempts": 4, "delay_seconds": 1.0, "backoff_factor": 1.8}


async def _select_capabilities(view: TurnView, registry: Registry, services: Services) -> Selection:
    candidates = registry.candidates()
    if view.caller_switches.get("capability_selection_bypass_enabled"):
        names = tuple(c.name for c in candidates if c.name not in view.excluded_capabilities)
        return Selection(names=names, scores={}, best=1.0, reason="Selection is disabled.")
    if recipe := match_example(view.task, registry, view.excluded_capabilities):
        return Selection((recipe,), best=1.0, reason=f"The recipe {recipe!r} matches this request.")
    found = await services.selector.select(
        view.task, candidates, excluded=dict(view.excluded_capabilities)
    )
    return (
        found if found.deferred else replace(found, names=drop_overlapping(found.names, registry))
    )
