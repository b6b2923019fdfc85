"""Ends a turn that failed: says what failed, what was tried and what is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.engine import Services
from capgraph.engine.turn_outcome import outcome_of
from capgraph.infrastructure.respond import finished
from capgraph.models.echo import remove_echo
from capgraph.planning.person_message import describe_failure, readable
from capgraph.planning.summaries import step_summaries
from capgraph.state import AgentState, TurnView
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


def report(state: AgentState, services: Services) -> str:
    """Tell a person why a turn failed, and what was done.

    Codes, keys of steps, names of models, and fixes stay in the outcome, in events, and in the logs.
    """
    info = state.get("control_error_info") or {}
    objectives = _objectives(state)
    lines = [_reason(state, info, objectives)]
    origin = info.get("context_key") or info.get("capability_name") or info.get("node_name")
    attempts = (state.get("control_attempts") or {}).get(str(origin), 0)
    if attempts > 1 and not state.get("control_is_killed"):
        lines.append(f"It was tried {attempts} times.")
    for other in info.get("other_failures") or []:
        told = describe_failure(other, objectives.get(other.get("context_key"), ""))
        lines.append(f"Another step failed too: {told}")
    plans = state.get("control_plans_created_count") or 0
    if plans > 1:
        lines.append(f"{plans} plans were tried.")
    lines += _undone(state, objectives)
    done = step_summaries(state, services.registry.context_types)
    if done:
        lines.append("What was done before:")
        lines += [f"- {remove_echo(result.summary)}" for result in done]
    return "\n".join(lines)


def _reason(
    state: AgentState, info: Mapping[str, Any], objectives: Mapping[str | None, str]
) -> str:
    if info:
        return describe_failure(info, objectives.get(info.get("context_key"), ""))
    verb = "was stopped" if state.get("control_is_killed") else "failed"
    told = readable(str(state.get("control_kill_reason") or ""))
    return told or f"The turn {verb}, and no reason was recorded."


def _objectives(state: AgentState) -> dict[str | None, str]:
    """Return the name of each step for a person: its objective, else its capability in words."""
    return {
        key: str(step.get("task_objective") or step["capability"].replace("_", " "))
        for key, step in TurnView(state).planned.items()
    }


def _undone(state: AgentState, objectives: Mapping[str | None, str]) -> list[str]:
    """Say which effects were taken back, and which were not."""
    undo = state.get("control_undo") or {}
    effects = undo.get("effects") or []
    undone = outcome_of(state).get("undone") or []
    left = [key for key in effects if key not in undone]
    lines = [f"Undone: {_listed(undone, objectives)}."] if undone else []
    if left:
        why = readable(str(undo.get("problem") or ""))
        lines.append(
            f"Done and not undone: {_listed(left, objectives)}{f' ({why})' if why else ''}."
        )
    return lines


def _listed(keys: Sequence[str], objectives: Mapping[str | None, str]) -> str:
    return "; ".join(objectives.get(key, key.replace("_", " ")).rstrip(".") for key in keys)
