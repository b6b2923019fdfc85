"""Asks a person before risky steps run. Does nothing else, so resuming never repeats work."""

from __future__ import annotations

from typing import Any

from langgraph.types import interrupt

from framework.base import BaseInfrastructureNode, infrastructure_node
from framework.execution import Services
from framework.execution.approvals import apply_answers, question_for, read_answers
from framework.execution.routing import route
from framework.state import AgentState
from framework.telemetry import ApprovalAsked, emit


@infrastructure_node
class ApprovalNode(BaseInfrastructureNode):
    """One interrupt for every step of a wave that needs a decision."""

    name = "approval"
    description = "Approval by a person"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Ask until the answer can be used, and write the decisions."""
        keys = route(state, services.registry, services.limits).steps
        question = question_for(keys, state, services)
        emit(ApprovalAsked(steps=question["steps"]))
        problems: list[str] = []
        while True:
            asked = {**question, "problems": problems} if problems else question
            answers, problems = read_answers(interrupt(asked), question, services)
            if not problems:
                return apply_answers(answers, question, state, services)
