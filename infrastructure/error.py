"""Ends a turn that failed: says what failed, what was tried and what is done."""

from __future__ import annotations

from typing import Any

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.engine import Services
from capgraph.engine.turn_outcome import outcome_of
from capgraph.infrastructure.respond import finished
from capgraph.planning.summaries import step_summaries
from capgraph.state import AgentState
from capgraph.telemetry import AnswerToken, emit


@infrastructure_node
class ErrorNode(BaseInfrastructureNode):
    """Writes the report of a failure from the state alone; it asks no model, so it cannot fail."""

    name = "error"
    description = "Error report"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Write the report and keep the error for the outcome."""
        text = report(state, services)
        emit(AnswerToken(text=text))
        return finished(text, state, services)


def _undone(state: AgentState) -> list[str]:
    """Say which effects were taken back, and which were not."""
    undo = state.get("control_undo") or {}
    effects = undo.get("effects") or []
    undone = outcome_of(state).get("undone") or []
    left = [key for key in effects if key not in undone]
    lines = [f"Undone: {', '.join(undone)}."] if undone else []
    if left:
        why = f" ({undo['problem']})" if undo.get("problem") else ""
        lines.append(f"Done and not undone: {', '.join(left)}{why}.")
    return lines


def report(state: AgentState, services: Services) -> str:
    """Say in words why a turn failed."""
    info = state.get("control_error_info") or {}
    reason = info.get("user_message") or state.get("control_kill_reason")
    verb = "was stopped" if state.get("control_is_killed") else "failed"
    lines = [str(reason or f"The turn {verb}, and no reason was recorded.")]
    origin = info.get("capability_name") or info.get("node_name")
    key = info.get("context_key")
    attempts = (state.get("control_attempts") or {}).get(key or origin or "", 0)
    if origin and origin != "begin_turn":
        where = f"step {key!r} ({origin})" if key else f"the {origin} node"
        tries = f" after {attempts} attempts" if attempts > 1 else ""
        killed = state.get("control_is_killed")
        lines.append(f"It was stopped at {where}." if killed else f"It failed in {where}{tries}.")
    lines += [
        f"Step {other['context_key']!r} failed too: {other['user_message']}"
        for other in info.get("other_failures") or []
    ]
    plans = state.get("control_plans_created_count") or 0
    if plans > 1:
        lines.append(f"{plans} plans were tried.")
    lines += _undone(state)
    done = step_summaries(state, services.registry.context_types)
    if done:
        lines.append("What was done before:")
        lines += [f"- {result.context_key}: {result.summary}" for result in done]
    return "\n".join(lines)
