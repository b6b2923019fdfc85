"""The graph's state: flat, prefixed keys that hold plain JSON-able values."""

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
"""What a thread keeps is saved as it comes, and as a whole once in so many writes."""


class AgentState(TypedDict, total=False):
    """Every key that a node may read or write, with who writes it and how long it lives.

    What lives as long as its thread and grows with it is saved write by write
    (``DeltaChannel``), so a turn of a long thread writes what a turn of a short one writes. All
    other keys are emptied by the node that begins a turn. Keys that parallel steps write have
    reducers.
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
    agent_control: Annotated[dict[str, Any], Key("switches"), CallerInput, merge_by_key]
    runtime_info: Annotated[dict[str, Any] | None, Key("counts of the thread", "begin_turn")]
    status_updates: Annotated[
        list[Any], _Turn("what a capability reports", "capabilities"), append_entries
    ]
    progress_events: Annotated[
        list[Any], _Turn("what a capability reports", "capabilities"), append_entries
    ]

    task_current_task: Annotated[str | None, _Turn("what is to be done", "task_extraction")]
    task_depends_on_chat_history: Annotated[
        bool, _Turn("whether the task refers to earlier messages", "task_extraction")
    ]
    task_depends_on_user_memory: Annotated[
        bool, _Turn("whether the task refers to what is remembered", "task_extraction")
    ]
    task_custom_message: Annotated[str | None, _Turn("the message that ends the turn", "any node")]

    planning_active_capabilities: Annotated[
        list[str] | None, _Turn("chosen capabilities", "classifier")
    ]
    planning_selection: Annotated[
        dict[str, Any] | None, _Turn("why they were chosen", "classifier")
    ]
    planning_execution_plan: Annotated[
        ExecutionPlan | None, _Turn("the plan", "orchestrator"), CallerInput
    ]
    planning_accepted: Annotated[
        str | None, _Turn("digest of the plan that was put in force", "orchestrator")
    ]
    planning_excluded: Annotated[
        dict[str, str], _Turn("capabilities that asked for another choice", "router"), merge_by_key
    ]
    planning_current_step_index: Annotated[
        int, _Turn("index of the next step", "router"), last_write_wins
    ]
    planning_ready_for_execution: Annotated[
        bool, _Turn("whether the plan was checked", "orchestrator")
    ]
    planning_notes: Annotated[
        list[str], _Turn("what the outcome reports about the plan", "orchestrator"), append_entries
    ]
    planning_missing: Annotated[
        dict[str, str], _Turn("work that the planner wanted and no plan does", "orchestrator")
    ]
    planning_history: Annotated[
        list[dict[str, Any]], _Turn("earlier plans of the turn", "orchestrator"), append_entries
    ]

    execution_step_results: Annotated[
        dict[str, dict[str, Any]], _Turn("records of steps by context key", "router"), merge_by_key
    ]
    execution_last_result: Annotated[
        dict[str, Any] | None, _Turn("the last record", "router"), last_write_wins
    ]
    execution_effects: Annotated[
        dict[str, dict[str, Any]], _Turn("what was done to the world", "router"), merge_by_key
    ]
    execution_pending_approvals: Annotated[
        dict[str, Any] | None, _Turn("steps that wait for a person", "router")
    ]
    execution_start_time: Annotated[float | None, _Turn("when the turn began", "begin_turn")]
    execution_total_time: Annotated[float | None, _Turn("seconds the turn took", "respond")]
    execution_outcome: Annotated[
        dict[str, Any] | None, _Turn("how the turn ended", "the node that ends it")
    ]
    execution_answer: Annotated[
        dict[str, Any] | None, _Turn("the answer in the form of answer_type", "respond")
    ]

    approval_approved: Annotated[bool | None, _Turn("the last decision", "approval")]
    approved_payload: Annotated[dict[str, Any] | None, _Turn("what was agreed to", "approval")]
    approval_decisions: Annotated[
        dict[str, dict[str, Any]], _Turn("decisions by context key", "approval"), merge_by_key
    ]

    control_turn: Annotated[dict[str, Any] | None, Key("id and number of the turn", "begin_turn")]
    control_labels: Annotated[
        dict[str, str],
        Key("labels of all that steps left behind, each with its source", "router"),
        merge_by_key,
    ]
    control_begun: Annotated[
        list[str],
        Key("marks of the messages that opened turns", "begin_turn"),
        DeltaChannel(append_all, snapshot_frequency=SNAPSHOT_FREQUENCY),
    ]
    control_budget: Annotated[
        dict[str, int], _Turn("what the turn has used up", "every node"), merge_counters
    ]
    control_has_error: Annotated[
        bool, _Turn("whether something failed", "any node"), last_write_wins
    ]
    control_error_info: Annotated[
        dict[str, Any] | None, _Turn("what failed", "any node"), last_write_wins
    ]
    control_last_error: Annotated[dict[str, Any] | None, _Turn("the last failure", "router")]
    control_attempts: Annotated[
        dict[str, int], _Turn("failed tries by step or node", "router"), merge_by_key
    ]
    control_retry_count: Annotated[int, _Turn("retries of the turn", "router"), last_write_wins]
    control_current_step_retry_count: Annotated[
        int, _Turn("retries of the step", "router"), last_write_wins
    ]
    control_max_retries: Annotated[int | None, _Turn("retries beyond the first try", "any node")]
    control_plans_created_count: Annotated[int, _Turn("plans of the turn", "orchestrator")]
    control_reclassification_count: Annotated[int, _Turn("choices made again", "classifier")]
    control_reclassification_reason: Annotated[str | None, _Turn("why to choose again", "any node")]
    control_goto: Annotated[str | None, _Turn("where a node of one's own goes", "any node")]
    control_next_node: Annotated[str | None, _Turn("where the router goes", "router")]
    control_routing_count: Annotated[int, _Turn("decisions of the router", "router")]
    control_is_killed: Annotated[
        bool, _Turn("whether the turn is stopped", "any node"), last_write_wins
    ]
    control_kill_reason: Annotated[
        str | None, _Turn("why it is stopped", "any node"), last_write_wins
    ]
    control_undo: Annotated[
        dict[str, Any] | None, _Turn("what a person is offered to undo after a failure", "router")
    ]
    control_is_awaiting_validation: Annotated[
        bool, _Turn("whether a person is asked about the plan", "orchestrator")
    ]
    control_validation_context: Annotated[
        dict[str, Any] | None, _Turn("which plan is asked about", "orchestrator")
    ]

    control_validation_timestamp: Annotated[
        str | None, _Turn("when it was asked about", "orchestrator")
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
    ui_agent_context: Annotated[dict[str, Any] | None, _Turn("what a front end adds", "any node")]


_SCHEMA = StateSchema.of(AgentState)
STATE_KEYS = _SCHEMA.names


_READ_ELSEWHERE = frozenset({"messages", "planning_execution_plan"})


def check_state_value(name: str, value: Any, writer: str) -> Any:
    """Return what a node writes under a key of ``AgentState`` in the form that the key has.

    A reducer that met something else would end the run with an error that names nobody.

    Args:
        name: The key; keys of one's own come back as they are.
        value: Plain data.
        writer: Name of the node.

    Raises:
        ValidationError: It has another form.

    >>> check_state_value("status_updates", ["half done"], "monitoring")
    ['half done']
    """
    if value is None or name not in STATE_KEYS or name in _READ_ELSEWHERE:
        return value
    try:
        return _form(name).validate_python(value)
    except PydanticError as exc:
        told = exc.errors(include_url=False, include_input=False)[0]
        place = ".".join([name, *(str(part) for part in told["loc"])])
        raise ValidationError(
            f"{writer!r} wrote {name}={value!r:.80}, which has another form: {place}:"
            f" {told['msg']}.",
            fix="See the table of state keys in the documentation (reference/state).",
        ) from None


@cache
def _form(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_SCHEMA.keys[name].type)
