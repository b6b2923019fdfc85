"""The graph's state: flat, prefixed keys that hold plain JSON-able values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_origin, get_type_hints

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from framework.base.plan import ExecutionPlan
from framework.state.reducers import append, merge_by_key, merge_context


class AgentState(TypedDict, total=False):
    """Every key that a node may read or write.

    ``messages`` and ``capability_context_data`` survive a turn; all other keys are reset by the
    node that begins a turn. Keys that parallel steps write have reducers.
    """

    messages: Annotated[list[AnyMessage], add_messages]
    capability_context_data: Annotated[dict[str, dict[str, dict[str, Any]]], merge_context]
    agent_control: Annotated[dict[str, Any], merge_by_key]
    runtime_info: dict[str, Any] | None
    runtime_checkpoint_metadata: dict[str, Any] | None
    status_updates: Annotated[list[Any], append]
    progress_events: Annotated[list[Any], append]

    task_current_task: str | None
    task_depends_on_chat_history: bool
    task_depends_on_user_memory: bool
    task_custom_message: str | None

    planning_active_capabilities: list[str] | None
    planning_selection: dict[str, Any] | None
    planning_execution_plan: ExecutionPlan | None
    planning_current_step_index: int
    planning_ready_for_execution: bool
    planning_history: Annotated[list[dict[str, Any]], append]

    execution_step_results: Annotated[dict[str, dict[str, Any]], merge_by_key]
    execution_last_result: dict[str, Any] | None
    execution_pending_approvals: dict[str, Any] | None
    execution_start_time: float | None
    execution_total_time: float | None
    execution_outcome: dict[str, Any] | None

    approval_approved: bool | None
    approved_payload: dict[str, Any] | None
    approval_decisions: Annotated[dict[str, dict[str, Any]], merge_by_key]

    control_has_error: bool
    control_error_info: dict[str, Any] | None
    control_last_error: dict[str, Any] | None
    control_attempts: Annotated[dict[str, int], merge_by_key]
    control_retry_count: int
    control_current_step_retry_count: int
    control_max_retries: int | None
    control_plans_created_count: int
    control_reclassification_count: int
    control_reclassification_reason: str | None
    control_next_node: str | None
    control_routing_count: int
    control_is_killed: bool
    control_kill_reason: str | None
    control_is_awaiting_validation: bool
    control_validation_context: dict[str, Any] | None
    control_validation_timestamp: str | None

    ui_captured_notebooks: Annotated[list[Any], append]
    ui_captured_figures: Annotated[list[Any], append]
    ui_launchable_commands: Annotated[list[Any], append]
    ui_agent_context: dict[str, Any] | None


SURVIVES_A_TURN = frozenset(
    {"messages", "capability_context_data", "agent_control", "runtime_info"}
)

_ZERO: dict[str, Any] = {
    "task_depends_on_chat_history": False,
    "task_depends_on_user_memory": False,
    "planning_current_step_index": 0,
    "planning_ready_for_execution": False,
    "control_has_error": False,
    "control_retry_count": 0,
    "control_current_step_retry_count": 0,
    "control_plans_created_count": 0,
    "control_reclassification_count": 0,
    "control_routing_count": 0,
    "control_is_killed": False,
    "control_is_awaiting_validation": False,
}


def _keys_with_reducer() -> dict[str, Any]:
    empty: dict[str, Any] = {}
    for key, hint in get_type_hints(AgentState, include_extras=True).items():
        if get_origin(hint) is Annotated:
            inner = get_origin(hint.__origin__) or hint.__origin__
            empty[key] = inner
    return empty


def reset_of_turn(state: Mapping[str, Any], keep: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the update that begins a turn: everything empty but what survives.

    Args:
        state: The state as the last turn left it; what is empty already is not written again.
        keep: Keys to leave alone, such as a plan that the caller brought.

    >>> reset_of_turn({"task_current_task": "old", "control_has_error": False, "messages": [1]})
    {'task_current_task': None}
    """
    reducers = _keys_with_reducer()
    update: dict[str, Any] = {}
    for key in AgentState.__annotations__:
        if key in SURVIVES_A_TURN or key in keep or not state.get(key):
            continue
        update[key] = Overwrite(reducers[key]()) if key in reducers else _ZERO.get(key)
    return update


STATE_KEYS = frozenset(AgentState.__annotations__)
REDUCED_KEYS = frozenset(_keys_with_reducer())
