"""Ends a turn with a question to the person."""

from __future__ import annotations

from typing import Any

from framework.base import BaseInfrastructureNode, infrastructure_node
from framework.engine import Services
from framework.planning import CLARIFY
from framework.planning.strategies import AnswerRequest
from framework.planning.summaries import missing_steps, step_summaries
from framework.state import AgentState
from infrastructure.respond import finished, without_own_failure


@infrastructure_node
class ClarifyNode(BaseInfrastructureNode):
    """Asks for what is missing to do the task."""

    name = "clarify"
    description = "Question to the person"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Write the question that the plan's last step names."""
        steps = (state.get("planning_execution_plan") or {}).get("steps") or []
        asked = [step for step in steps if step["capability"] == CLARIFY]
        request = AnswerRequest(
            task=state.get("task_current_task") or "",
            purpose="clarify",
            results=step_summaries(state, services.registry.context_types),
            missing=missing_steps(state),
            abilities=services.registry.describe(),
            messages=state.get("messages") or [],
            question=asked[-1].get("task_objective", "") if asked else "",
        )
        text = await services.answerer.answer(request)
        return finished(text, without_own_failure(state), services)

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 2.0}
