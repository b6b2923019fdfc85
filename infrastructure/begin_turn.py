"""First node of every turn: resets the state of the previous turn and validates the input."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage

from capgraph.base import (
    BaseInfrastructureNode,
    CapgraphError,
    ExecutionPlan,
    PlanError,
    ValidationError,
    infrastructure_node,
)
from capgraph.engine import Services
from capgraph.engine.caller_plan import caller_plan_id, check_plan_form
from capgraph.engine.dialogues import continue_dialogue
from capgraph.engine.run_scope import find_dropped_questions
from capgraph.engine.turn_guardrails import guard_input
from capgraph.engine.turn_suspension import clear_wait, pending_waits
from capgraph.langgraph_compat import outer_task_namespace
from capgraph.pipeline.failures import create_refusal_failure, failure_update
from capgraph.pipeline.run_config import billing_subject
from capgraph.pipeline.step_execution import LABELS_KEY
from capgraph.planning.strategies import attachments, last_request, system_text
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import QuestionDropped, emit
from capgraph.telemetry.event_dispatcher import current_event_ids


@infrastructure_node(quiet=True)
class BeginTurnNode(BaseInfrastructureNode):
    """Node that begins a turn by resetting the state of the previous turn.

    The stored contexts and the messages are kept.
    """

    name = "begin_turn"
    description = "Begin a turn"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> dict[str, Any]:
        """Create the state update that resets the state for a new turn.

        If the input is invalid, the update contains an error entry.
        """
        view = services.view(state)
        plan = state.get("planning_execution_plan")
        plan_id = caller_plan_id(plan, view.turn)
        kept_keys = {"planning_execution_plan"} if plan_id else set()
        schema = services.runner_config.schema
        update = schema.reset(state, schema.one_turn_caller_keys | kept_keys)
        message = _find_last_message(view.messages)
        number = view.turn_number + 1
        fingerprint = _compute_turn_fingerprint(message)
        earlier_turns = state.get("control_begun") or []
        opened_by = plan_id or (str(message.id or "") if message is not None else "")
        prefix = f"{_hash(opened_by)}."
        if not plan_id and any(known.startswith(prefix) for known in earlier_turns):
            opened_by = (
                f"{opened_by}.{fingerprint}"  # the message replaces an earlier one with its ID
            )
        update["control_turn"] = _create_turn(opened_by, number)
        update["control_turn"]["recent"] = (
            _list_recent_outputs(view) or view.turn.get("recent") or []
        )
        update["runtime_info"] = {"turn": number, "seconds_used": 0.0}
        update["execution_start_time"] = services.clock.now()
        update["control_error_info"] = None  # the key always exists after a turn
        if number == 1 and services.settings.context:
            # Contexts of the caller take precedence over those of the settings.
            stored = state.get("capability_context_data") or {}
            update["capability_context_data"] = {
                kind: entries
                for kind, entries in services.settings.context.items()
                if kind not in stored
            }
        if services.flow is not None and (labels := _find_message_labels(view.messages)):
            update["control_labels"] = labels
        if services.requires_other_approver:
            opened = services.view({**state, **update})
            await services.ledger(opened).approvals.record_requester(opened.caller)
        if pending_waits(view):
            await clear_wait(services)  # a new message cancels a suspended turn
        problem: CapgraphError | None = _find_input_error(state, services, plan_id, fingerprint)
        update["control_turn"]["messages"] = len(view.messages)
        fingerprints = [] if fingerprint is None or fingerprint in earlier_turns else [fingerprint]
        if services.guard is not None:
            guarded_update, guard_error, asks = await guard_input(view, services, services.guard)
            problem = problem or guard_error
            update["control_turn"]["asks"] = asks
            data = update.pop("capability_context_data", {})
            update |= guarded_update
            if data:
                update["capability_context_data"] = data | guarded_update.get(
                    "capability_context_data", {}
                )
            # A reworded message is still the message that opened this turn.
            fingerprints += [
                _compute_turn_fingerprint(m) or ""
                for m in guarded_update.get("messages", ())
                if m.type == "human"
            ]
        update |= _expire_old_results(view, update, services)
        if problem is None and fingerprints:
            update["control_begun"] = fingerprints
        if plan_id:
            update["control_turn"]["plan"] = plan_id
            update["planning_execution_plan"], plan_error = _read_caller_plan(plan)
            problem = problem or plan_error
        elif problem is None:
            update |= continue_dialogue(view, services, _find_last_text(view, update))
        if problem is not None:
            update |= failure_update([create_refusal_failure("begin_turn", problem)])
        return update


def _create_turn(turn_id: str, number: int) -> dict[str, Any]:
    """Create the state entry for a new turn, with its ID, number, caller, and trace.

    If the new turn drops an open question, an event is emitted.
    """
    turn: dict[str, Any] = {"id": turn_id or str(number), "number": number}
    caller = asdict(billing_subject())
    turn["caller"] = {name: value for name, value in caller.items() if value}
    turn["approval_scope"] = uuid.uuid4().hex
    if trace := current_event_ids().get("turn_trace"):
        turn["trace"] = str(trace)
    if dropped := find_dropped_questions():
        turn["question"] = {"status": "dropped", **asdict(dropped)}
        emit(QuestionDropped(**asdict(dropped)))
    return turn


def _find_message_labels(messages: Sequence[AnyMessage]) -> dict[str, str]:
    """Return the provenance labels of messages written by other systems, with their sources."""
    return {
        label: source
        for message in messages
        for label, source in (message.response_metadata.get(LABELS_KEY) or {}).items()
    }


def _list_recent_outputs(view: TurnView) -> list[list[str]]:
    """Return the type and key of each result from the previous turn."""
    records = view.results.values()
    return [[*pair] for record in records for pair in (record.get("outputs") or {}).items()]


def _expire_old_results(
    view: TurnView, update: Mapping[str, Any], services: Services
) -> dict[str, Any]:
    """Create state updates that delete old results and their labels.

    The latest results of each type are kept, up to the ``keep_results`` setting.
    """
    if (keep := services.settings.persistence.keep_results) is None:
        return {}
    data = dict(update.get("capability_context_data") or {})
    labels: dict[str, Any] = {}
    for kind, entries in view.contexts.items():
        old = dict.fromkeys([*entries][:-keep])
        if old:
            data[kind] = {**old, **data.get(kind, {})}
        if expired := {key: None for key in old if key in view.labels.get(kind, {})}:
            labels[kind] = expired
    found = {"capability_context_data": data, "capability_context_labels": labels}
    return {name: value for name, value in found.items() if value}


def _find_last_message(messages: Sequence[AnyMessage]) -> HumanMessage | None:
    return next((m for m in reversed(messages) if isinstance(m, HumanMessage)), None)


def _read_caller_plan(plan: Any) -> tuple[ExecutionPlan | None, PlanError | None]:
    """Validate the form of a plan supplied by the caller.

    Returns the plan and None, or None and the error.
    """
    try:
        return check_plan_form(plan), None
    except PlanError as exc:
        return None, exc


def _find_last_text(view: TurnView, update: Mapping[str, Any]) -> str:
    """Return the text of the last message, including changes made by a guardrail."""
    reworded = {message.id: message for message in update.get("messages", ())}
    message = _find_last_message(view.messages)
    return "" if message is None else str(reworded.get(message.id, message).text)


def _compute_turn_fingerprint(message: HumanMessage | None) -> str | None:
    """Compute a fingerprint of the message that begins a turn, or ``None`` if there is none.

    In a graph nested in an outer graph, the fingerprint includes the outer task.
    """
    if message is None:
        return None
    content = f"{outer_task_namespace()}|{message.id}|{message.content!r}"
    return f"{_hash(str(message.id or ''))}.{_hash(content)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _find_unreadable_content(
    messages: Sequence[AnyMessage], services: Services
) -> ValidationError | None:
    """Return an error if the input has content that requires a model and none is configured.

    Such content includes attachments and system messages.
    """
    if services.chat_model("planning") or services.chat_model("answer"):
        return None
    kinds = {f"a block of the type {block.get('type')!r}" for block in attachments(messages)}
    if system_text(messages):
        kinds.add("a system message")
    if not kinds:
        return None
    return ValidationError(
        f"The input contains {' and '.join(sorted(kinds))}, but no chat model is configured.",
        fix="Pass a model to build_graph, or remove this content.",
    )


def _find_input_error(
    state: AgentState, services: Services, caller_plan_id: str | None, fingerprint: str | None
) -> ValidationError | None:
    stored: Mapping[str, Any] = TurnView(state).contexts
    for kind, entries in stored.items():
        if not isinstance(entries, Mapping):
            return ValidationError(
                f"The entries of {kind} in the checkpoint are invalid: expected a mapping, got"
                f" {type(entries).__name__}.",
                fix="Start a new thread, or repair the checkpoint.",
            )
    messages = state.get("messages") or []
    if caller_plan_id and not messages:
        return None
    try:
        text = last_request(messages)
    except ValidationError as exc:
        return None if caller_plan_id else exc
    unread = _find_unreadable_content(messages, services)
    if unread is not None:
        return unread
    limit = services.limits.max_message_chars
    if len(text) > limit:
        return ValidationError(
            f"The message has {len(text):,} characters: the limit is {limit:,}.",
            fix="Put long data into a file and refer to it, or raise limits.max_message_chars.",
        )
    if not caller_plan_id and fingerprint in (state.get("control_begun") or []):
        return ValidationError(
            "The input has no new message: the last one already has a turn.",
            fix="Send a new message, or None to resume an unfinished turn.",
        )
    return None
