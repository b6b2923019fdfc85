"""Ends a turn with the answer."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage

from framework.base import BaseInfrastructureNode, infrastructure_node
from framework.engine import Services
from framework.engine.turn_outcome import outcome_of
from framework.planning.strategies import AnswerRequest
from framework.planning.summaries import missing_steps, step_summaries
from framework.state import AgentState
from framework.telemetry import AnswerToken, TurnFinished, emit


@infrastructure_node
class RespondNode(BaseInfrastructureNode):
    """Writes the answer from the results of the plan."""

    name = "respond"
    description = "Answer"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Write the final message and say how the turn ended."""
        custom = state.get("task_custom_message")
        if custom:
            emit(AnswerToken(text=custom))
            return finished(custom, without_own_failure(state), services)
        results = step_summaries(state, services.registry.context_types)
        active = state.get("planning_active_capabilities")
        # A plan that the caller brought has steps, though nothing was selected.
        worked = results or active or state.get("execution_step_results")
        purpose = "results" if worked else "conversation"
        streamer.status("Writing the answer")
        request = AnswerRequest(
            task=state.get("task_current_task") or "",
            purpose=purpose,  # type: ignore[arg-type]
            results=results,
            missing=missing_steps(state),
            abilities=services.registry.describe(),
            messages=state.get("messages") or [],
        )
        text = await services.answerer.answer(request)
        if purpose == "conversation" and services.chat_model("answer") is None:
            # Saying what one can do instead is not doing what was asked.
            reason = (state.get("planning_selection") or {}).get("reason")
            return finished(
                text,
                state,
                services,
                {"status": "failed", "reason": reason, "code": "no_capability"},
            )
        return finished(text, without_own_failure(state), services)

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 2.0}


def without_own_failure(state: AgentState) -> AgentState:
    """Return the state as it counts when an answer succeeds after its own failure."""
    info = state.get("control_error_info") or {}
    if info.get("node_name") in {"respond", "clarify"}:
        return {**state, "control_has_error": False}
    return state


def finished(
    text: str | AIMessage,
    state: AgentState,
    services: Services,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the update that ends a turn with a message.

    Args:
        text: The message.
        state: The state at the end of the turn.
        services: Shared dependencies.
        known: What the node knows of the outcome beyond the records.
    """
    outcome = {**outcome_of(state), **(known or {})}
    started = state.get("execution_start_time")
    emit(TurnFinished(outcome=outcome))
    return {
        "messages": [text if isinstance(text, AIMessage) else AIMessage(content=text)],
        "execution_outcome": outcome,
        "execution_total_time": services.clock.now() - started if started else None,
    }
