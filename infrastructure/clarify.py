"""Node that ends a turn with a question to the user."""

from __future__ import annotations

from typing import Any

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.engine import Services
from capgraph.infrastructure.respond import final_update, without_answer_failure, write_answer
from capgraph.planning import CLARIFY
from capgraph.planning.planner_traits import planner_traits
from capgraph.state import AgentState
from capgraph.telemetry import AnswerToken, emit


@infrastructure_node
class ClarifyNode(BaseInfrastructureNode):
    """Node that asks the user for missing information about the task."""

    name = "clarify"
    description = "Question to the person"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Write the question to the user that the ``clarify`` step of the plan requests."""
        steps = (state.get("planning_execution_plan") or {}).get("steps") or []
        clarify_steps = [step for step in steps if step["capability"] == CLARIFY]
        question = clarify_steps[-1].get("task_objective", "") if clarify_steps else ""
        if question and planner_traits(services.planner).reads_conversation:
            # The planner saw the conversation, so its question is used unchanged.
            emit(AnswerToken(text=question))
            return final_update(question, without_answer_failure(state), services)
        text = await write_answer(state, services, "clarify", question=question)
        return final_update(text, without_answer_failure(state), services)

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for transient model-service errors."""
        return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 2.0}
