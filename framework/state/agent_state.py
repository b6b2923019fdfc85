"""Schema of the graph's state: flat, prefixed keys with plain JSON values."""

from functools import cache, partial
from typing import Annotated, Any

from langchain_core.messages import AnyMessage
from langgraph.channels import DeltaChannel
from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from typing_extensions import TypedDict

from capgraph.base.errors import ValidationError
from capgraph.base.plan import ExecutionPlan
from capgraph.state.reducers import (
    append_all,
    append_entries,
    last_write_wins,
    merge_by_key,
    merge_context_data,
    merge_counters,
    merge_messages,
)
from capgraph.state.state_schema import CallerInput, Key, StateSchema

_Turn = partial(Key, lifetime="turn")
SNAPSHOT_FREQUENCY = 200
"""Number of writes to a thread-scoped key after which its full value is stored."""


class AgentState(TypedDict, total=False):
    """State of the graph, which contains all keys that nodes read and write.

    Thread-scoped keys that grow are stored as deltas (``DeltaChannel``), so the cost of a turn
    does not depend on the length of its thread. All other keys are reset when a turn begins.
    Keys that parallel steps write have reducers.
    """

    messages: Annotated[
        list[AnyMessage],
        Key("the conversation"),
        CallerInput,
        DeltaChannel(merge_messages, snapshot_frequency=SNAPSHOT_FREQUENCY),
    ]
    capability_context_data: Annotated[
        dict[str, dict[str, Any]],
        Key("results by context type and key"),
        CallerInput,
        DeltaChannel(merge_context_data, snapshot_frequency=SNAPSHOT_FREQUENCY),
    ]
    capability_context_labels: Annotated[
        dict[str, dict[str, dict[str, str]]],
        Key("labels of the results, each with its source", "router"),
        DeltaChannel(merge_context_data, snapshot_frequency=SNAPSHOT_FREQUENCY),
    ]
    agent_control: Annotated[
        dict[str, Any], Key("switches of the caller"), CallerInput, merge_by_key
    ]
    runtime_info: Annotated[dict[str, Any] | None, Key("counters of the thread", "begin_turn")]
    status_updates: Annotated[
        list[Any], _Turn("messages that capabilities report", "capabilities"), append_entries
    ]
    progress_events: Annotated[
        list[Any], _Turn("messages that capabilities report", "capabilities"), append_entries
    ]

    task_current_task: Annotated[str | None, _Turn("task of the turn", "task_extraction")]
    task_depends_on_chat_history: Annotated[
        bool, _Turn("whether the task refers to earlier messages", "task_extraction")
    ]
    task_depends_on_user_memory: Annotated[
        bool, _Turn("whether the task refers to stored memories", "task_extraction")
    ]
    task_custom_message: Annotated[str | None, _Turn("final message of the turn", "any node")]

    planning_active_capabilities: Annotated[
        list[str] | None, _Turn("selected capabilities", "classifier")
    ]
    planning_selection: Annotated[
        dict[str, Any] | None, _Turn("reasons for the selection", "classifier")
    ]
    planning_execution_plan: Annotated[
        ExecutionPlan | None, _Turn("current plan", "orchestrator"), CallerInput
    ]
    planning_accepted: Annotated[str | None, _Turn("digest of the accepted plan", "orchestrator")]
    planning_excluded: Annotated[
        dict[str, str],
        _Turn("capabilities that requested another selection", "router"),
        merge_by_key,
    ]
    planning_current_step_index: Annotated[
        int, _Turn("index of the next step", "router"), last_write_wins
    ]
    planning_ready_for_execution: Annotated[
        bool, _Turn("whether the plan was checked", "orchestrator")
    ]
    planning_notes: Annotated[
        list[str], _Turn("remarks about the plan for the outcome", "orchestrator"), append_entries
    ]
    planning_missing: Annotated[
        dict[str, str],
        _Turn("work that the planner requested and no capability can do", "orchestrator"),
    ]
    planning_history: Annotated[
        list[dict[str, Any]], _Turn("earlier plans of the turn", "orchestrator"), append_entries
    ]

    execution_step_results: Annotated[
        dict[str, dict[str, Any]], _Turn("records of steps by context key", "router"), merge_by_key
    ]
    execution_last_result: Annotated[
        dict[str, Any] | None, _Turn("record of the last step", "router"), last_write_wins
    ]
    execution_effects: Annotated[
        dict[str, dict[str, Any]], _Turn("effect records", "router"), merge_by_key
    ]
    execution_pending_approvals: Annotated[
        dict[str, Any] | None, _Turn("steps that wait for a decision", "router")
    ]
    execution_start_time: Annotated[float | None, _Turn("start time of the turn", "begin_turn")]
    execution_total_time: Annotated[
        float | None, _Turn("duration of the turn in seconds", "respond")
    ]
    execution_outcome: Annotated[
        dict[str, Any] | None, _Turn("outcome of the turn", "the final node")
    ]
    execution_answer_schema: Annotated[
        dict[str, Any] | None,
        _Turn("JSON schema of the answer, in place of answer_type"),
        CallerInput,
    ]
    execution_answer: Annotated[dict[str, Any] | None, _Turn("typed answer", "respond")]

    approval_approved: Annotated[bool | None, _Turn("last decision", "approval")]
    approved_payload: Annotated[dict[str, Any] | None, _Turn("approved data", "approval")]
    approval_decisions: Annotated[
        dict[str, dict[str, Any]],
        _Turn("approval decisions by context key", "approval"),
        merge_by_key,
    ]

    control_turn: Annotated[dict[str, Any] | None, Key("ID and number of the turn", "begin_turn")]
    control_labels: Annotated[
        dict[str, str],
        Key("labels of all step results, each with its source", "router"),
        merge_by_key,
    ]
    control_begun: Annotated[
        list[str],
        Key("IDs of the messages that opened turns", "begin_turn"),
        DeltaChannel(append_all, snapshot_frequency=SNAPSHOT_FREQUENCY),
    ]
    control_dialogue: Annotated[
        dict[str, Any] | None,
        Key("capability that receives the next message, with its messages", "capabilities"),
        last_write_wins,
    ]
    control_budget: Annotated[
        dict[str, int], _Turn("counters of the turn", "every node"), merge_counters
    ]
    control_has_error: Annotated[
        bool, _Turn("whether something failed", "any node"), last_write_wins
    ]
    control_error_info: Annotated[
        dict[str, Any] | None, _Turn("last unhandled failure", "any node"), last_write_wins
    ]
    control_last_error: Annotated[dict[str, Any] | None, _Turn("last handled failure", "router")]
    control_attempts: Annotated[
        dict[str, int], _Turn("failed attempts by step or node", "router"), merge_by_key
    ]
    control_retry_count: Annotated[
        int, _Turn("number of retries in the turn", "router"), last_write_wins
    ]
    control_current_step_retry_count: Annotated[
        int, _Turn("number of retries of the step", "router"), last_write_wins
    ]
    control_max_retries: Annotated[int | None, _Turn("maximum number of retries", "any node")]
    control_plans_created_count: Annotated[
        int, _Turn("number of plans in the turn", "orchestrator")
    ]
    control_reclassification_count: Annotated[
        int, _Turn("number of repeated selections", "classifier")
    ]
    control_reclassification_reason: Annotated[
        str | None, _Turn("reason for another selection", "any node")
    ]
    control_goto: Annotated[str | None, _Turn("next node that a custom node requested", "any node")]
    control_next_node: Annotated[str | None, _Turn("next node that the router chose", "router")]
    control_routing_count: Annotated[int, _Turn("number of routing decisions", "router")]
    control_is_killed: Annotated[
        bool, _Turn("whether the turn is stopped", "any node"), last_write_wins
    ]
    control_kill_reason: Annotated[
        str | None, _Turn("reason for stopping the turn", "any node"), last_write_wins
    ]
    control_undo: Annotated[
        dict[str, Any] | None, _Turn("undo steps that are offered after a failure", "router")
    ]
    control_is_awaiting_validation: Annotated[
        bool, _Turn("whether the plan waits for approval", "orchestrator")
    ]
    control_validation_context: Annotated[
        dict[str, Any] | None, _Turn("plan that waits for approval", "orchestrator")
    ]

    control_validation_timestamp: Annotated[
        str | None, _Turn("time of the approval request for the plan", "orchestrator")
    ]

    ui_captured_notebooks: Annotated[
        list[Any], _Turn("notebooks to show", "capabilities"), append_entries
    ]
    ui_captured_figures: Annotated[
        list[Any], _Turn("figures to show", "capabilities"), append_entries
    ]
    ui_launchable_commands: Annotated[
        list[Any], _Turn("commands to offer", "capabilities"), append_entries
    ]
    ui_agent_context: Annotated[dict[str, Any] | None, _Turn("data from the front end", "any node")]


_SCHEMA = StateSchema.from_class(AgentState)
STATE_KEYS = _SCHEMA.names


_VALIDATED_ELSEWHERE = frozenset({"messages", "planning_execution_plan"})


def check_state_value(name: str, value: Any, writer: str) -> Any:
    """Validate a value that a node writes to a state key, and convert it to the key's type.

    Without this check, an invalid value would fail in a reducer, whose error does not name the writer.

    Args:
        name: Name of the key. The value is returned unchanged if ``AgentState`` does not have the key.
        value: Value to write, as plain data.
        writer: Name of the node, for the error message.

    Raises:
        ValidationError: The value does not match the type of the key.

    >>> check_state_value("status_updates", ["half done"], "monitoring")
    ['half done']
    """
    if value is None or name not in STATE_KEYS or name in _VALIDATED_ELSEWHERE:
        return value
    try:
        return _type_adapter(name).validate_python(value)
    except PydanticError as exc:
        error = exc.errors(include_url=False, include_input=False)[0]
        path = ".".join([name, *(str(part) for part in error["loc"])])
        raise ValidationError(
            f"The node {writer!r} wrote the invalid value {value!r:.80} to the state key "
            f"{name!r}. {path}: {error['msg']}.",
            fix="See the table of state keys in the documentation (reference/state).",
            facts={"key": name, "writer": writer},
        ) from None


@cache
def _type_adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_SCHEMA.keys[name].type)
