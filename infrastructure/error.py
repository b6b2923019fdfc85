"""Node that ends a failed turn with a report of the failure and of the completed work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.engine import Services
from capgraph.engine.turn_outcome import describe_outcome
from capgraph.infrastructure.respond import final_update
from capgraph.models.prompt_echo import remove_echo
from capgraph.planning.person_message import describe_failure, readable_text
from capgraph.planning.summaries import step_summaries
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import AnswerToken, emit


@infrastructure_node
class ErrorNode(BaseInfrastructureNode):
    """Node that reports a failure to the user.

    The node reads only the state and calls no model, so that it cannot fail itself.
    """

    name = "error"
    description = "Error report"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Write the failure report and record the failure in the turn outcome."""
        text = failure_report(state, services)
        emit(AnswerToken(text=text))
        return final_update(text, state, services)


def failure_report(state: AgentState, services: Services) -> str:
    """Write a report for the user about why the turn failed and which steps finished.

    Codes, step keys, model names, and fixes are omitted, because they appear in the turn
    outcome, in events, and in logs.
    """
    info = state.get("control_error_info") or {}
    objectives = _find_step_names(state)
    lines = [_describe_failure_reason(state, info, objectives)]
    origin = info.get("context_key") or info.get("capability_name") or info.get("node_name")
    attempts = (state.get("control_attempts") or {}).get(str(origin), 0)
    if attempts > 1 and not state.get("control_is_killed"):
        lines.append(f"It was tried {attempts} times.")
    for other in info.get("other_failures") or []:
        failure = describe_failure(other, objectives.get(other.get("context_key"), ""))
        lines.append(f"Another step failed too: {failure}")
    plans = state.get("control_plans_created_count") or 0
    if plans > 1:
        lines.append(f"{plans} plans were tried.")
    lines += _describe_undone_effects(state, objectives)
    done = step_summaries(state, services.registry.context_types)
    if done:
        lines.append("What was done before:")
        lines += [f"- {remove_echo(result.summary)}" for result in done]
    return "\n".join(lines)


def _describe_failure_reason(
    state: AgentState, info: Mapping[str, Any], step_names: Mapping[str | None, str]
) -> str:
    if info:
        return describe_failure(info, step_names.get(info.get("context_key"), ""))
    verb = "was stopped" if state.get("control_is_killed") else "failed"
    reason = readable_text(str(state.get("control_kill_reason") or ""))
    return reason or f"The turn {verb}, and no reason was recorded."


def _find_step_names(state: AgentState) -> dict[str | None, str]:
    """Map each step's context key to a readable name, such as the step's objective.

    The names are mapped by context key.
    """
    return {
        key: str(step.get("task_objective") or str(step.get("capability", key)).replace("_", " "))
        for key, step in TurnView(state).steps_by_key.items()
    }


def _describe_undone_effects(state: AgentState, step_names: Mapping[str | None, str]) -> list[str]:
    """Describe which side effects were undone and which were not, as lines of text."""
    undo = state.get("control_undo") or {}
    effects = undo.get("effects") or []
    undone = describe_outcome(state).get("undone") or []
    remaining = [key for key in effects if key not in undone]
    lines = [f"Undone: {_join_step_names(undone, step_names)}."] if undone else []
    if remaining:
        reason = readable_text(str(undo.get("problem") or ""))
        lines.append(
            f"Done and not undone: {_join_step_names(remaining, step_names)}{f' ({reason})' if reason else ''}."
        )
    return lines


def _join_step_names(keys: Sequence[str], step_names: Mapping[str | None, str]) -> str:
    return "; ".join(step_names.get(key, key.replace("_", " ")).rstrip(".") for key in keys)
