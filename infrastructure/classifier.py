"""Chooses the capabilities that a task needs."""

from __future__ import annotations

from typing import Any

from framework.base import BaseInfrastructureNode, infrastructure_node
from framework.engine import Services
from framework.planning import requires_closure
from framework.selection import Selection
from framework.state import AgentState
from framework.telemetry import CapabilitiesSelected, emit


@infrastructure_node
class ClassifierNode(BaseInfrastructureNode):
    """Writes the active capabilities: chosen ones, always active ones, and what they require."""

    name = "classifier"
    description = "Capability selection"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Select capabilities; after a RECLASSIFICATION failure, knowing what did not work."""
        streamer.status("Choosing capabilities")
        registry = services.registry
        again = _reclassified(state)
        selection = await _select(state, services, again)
        always = [name for name, spec in registry.capabilities.items() if spec.always_active]
        chosen = [name for name in selection.names if name in registry.capabilities]
        wanted = list(dict.fromkeys([*chosen, *always]))
        # Producers of what is stored already stay in reach: a plan may want fresh data.
        active = list(dict.fromkeys([*wanted, *requires_closure(wanted, registry)]))
        emit(
            CapabilitiesSelected(
                capabilities=active,
                reason=selection.reason,
                scores={
                    name: selection.scores[name] for name in active if name in selection.scores
                },
            )
        )
        update: dict[str, Any] = {
            "planning_active_capabilities": active,
            "planning_selection": {"chosen": chosen, "reason": selection.reason},
            "planning_execution_plan": None,
        }
        if again:
            info = state.get("control_error_info") or {}
            update |= {
                "control_has_error": False,
                "control_error_info": None,
                "control_last_error": info,
                "control_reclassification_reason": info.get("user_message"),
                "control_reclassification_count": state.get("control_reclassification_count", 0)
                + 1,
            }
        return update

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 4, "delay_seconds": 1.0, "backoff_factor": 1.8}


def _reclassified(state: AgentState) -> dict[str, str]:
    """Return the capability that asked for another choice, with its reason."""
    info = state.get("control_error_info") if state.get("control_has_error") else None
    if not info or info.get("classification", {}).get("severity") != "reclassification":
        return {}
    origin = info.get("capability_name") or info.get("node_name") or ""
    return {origin: info.get("user_message") or "it did not fit"}


async def _select(state: AgentState, services: Services, again: dict[str, str]) -> Selection:
    control = state.get("agent_control") or {}
    candidates = services.registry.candidates()
    if control.get("capability_selection_bypass_enabled"):
        names = tuple(c.name for c in candidates if c.name not in again)
        return Selection(names=names, scores={}, best=1.0, reason="Selection is switched off.")
    return await services.selector.select(
        state.get("task_current_task") or "", candidates, excluded=again
    )
