"""First node of every turn: resets what belongs to one turn and checks what came in."""

from __future__ import annotations

from typing import Any

from framework.base import (
    BaseInfrastructureNode,
    CapgraphError,
    PlanError,
    ValidationError,
    infrastructure_node,
)
from framework.engine import Services
from framework.engine.caller_plan import is_left_over, refusal, taken_over
from framework.engine.default_strategies import last_request
from framework.state import AgentState, reset_of_turn


@infrastructure_node(quiet=True)
class BeginTurnNode(BaseInfrastructureNode):
    """Keeps context and messages, empties all else, and recognises a plan of the caller."""

    name = "begin_turn"
    description = "Begin a turn"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Return the reset, and an error entry when the request cannot be used."""
        info = state.get("runtime_info") or {}
        plan = state.get("planning_execution_plan")
        brought = plan is not None and not is_left_over(plan, info)
        keep = frozenset({"planning_execution_plan"} if brought else ())
        update = reset_of_turn(state, keep)
        turn = int(info.get("turn", 0)) + 1
        update["runtime_info"] = {**info, "turn": turn, "seconds_used": 0.0}
        update["execution_start_time"] = services.clock.now()
        if turn == 1 and services.settings.context:
            # What the caller brings goes before what the settings would give.
            stored = state.get("capability_context_data") or {}
            update["capability_context_data"] = {
                kind: entries
                for kind, entries in services.settings.context.items()
                if kind not in stored
            }
        problem: CapgraphError | None = _problem(state, services, brought)
        if brought:
            try:
                taken = taken_over(plan)
            except PlanError as exc:
                problem = problem or exc
                update["planning_execution_plan"] = None
            else:
                update["planning_execution_plan"] = taken
                update["runtime_info"]["plan_stamp"] = taken["stamp"]["id"]
        if problem is not None:
            update |= refusal("begin_turn", problem)
        return update


def _problem(state: AgentState, services: Services, brought: bool) -> ValidationError | None:
    messages = state.get("messages") or []
    if brought and not messages:
        return None
    try:
        text = last_request(messages)
    except ValidationError as exc:
        return None if brought else exc
    limit = services.limits.max_message_chars
    if len(text) > limit:
        return ValidationError(
            f"The message has {len(text):,} characters; at most {limit:,} are read.",
            fix="Put long data into a file and name the file, or raise limits.max_message_chars.",
        )
    return None
