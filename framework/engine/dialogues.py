"""Dialogues: a capability that received a message also receives the next messages of its thread.

The state key ``control_dialogue`` contains the open dialogue: its ``capability``, the ``step`` and
``turn`` of the last reply, and the ``messages`` that the capability needs to continue. The messages
of a dialogue become plans with one step, which are accepted like any other plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict
from langgraph.errors import GraphBubbleUp

from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.base.step_context import StepContext
from capgraph.engine.plan_acceptance import respond_step
from capgraph.engine.services import Services
from capgraph.planning import TERMINAL_STEPS
from capgraph.state import TurnView
from capgraph.telemetry import DialogueChanged, emit

DIALOGUE_KEY = "control_dialogue"
CONVERSATION = "conversation"
"""State key of an agent's graph with the messages of its earlier runs."""
MAX_MESSAGES = 100
"""Maximum number of messages that a dialogue stores."""
HANDOFF_STAMP = "handoff"
"""Key in the stamp of plans that dialogues and their handoffs propose."""
LEAVE = "/leave"
"""Message that ends a dialogue without its capability."""
_FAILED = ("failed", "stopped", "cancelled")


class HandoffRequest(GraphBubbleUp):
    """Raised by a tool to end an agent's run and hand off the request.

    Args:
        to: Name of the capability that receives the request; empty for the planner.
        task: Task for the capability, or the reason for handing off to the planner.
        labels: Labels (provenance tags) of the data that the agent has read, with their
            sources.
    """

    def __init__(self, to: str, task: str, labels: Mapping[str, str]) -> None:
        super().__init__(to, task, labels)
        self.to = to
        self.task = task
        self.labels = labels


def open_dialogue(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the open dialogue of a thread, or ``{}`` if no dialogue is open.

    A dialogue is a conversation with one capability.

    >>> open_dialogue({"control_dialogue": None})
    {}
    """
    return state.get(DIALOGUE_KEY) or {}


def continue_dialogue(view: TurnView, services: Services, text: str) -> dict[str, Any]:
    """Create the state update that continues or closes the open dialogue for a new message.

    The dialogue is closed and the planner handles the message if the last turn failed, if the
    caller may not use the capability, or if the text begins with ``/leave``.

    Args:
        view: State before the turn is reset.
        services: Services of the graph.
        text: Text of the message.
    """
    name = str(open_dialogue(view.state).get("capability") or "")
    if not name:
        return {}
    status = (view.state.get("execution_outcome") or {}).get("status")
    command, _, request = text.strip().partition(" ")
    if command.casefold() == LEAVE:
        update = _create_closing_update(name, "left")
        if not request:
            steps = [respond_step(text)]
            update["planning_execution_plan"] = ExecutionPlan(
                steps=steps, stamp={HANDOFF_STAMP: name}
            )
            update["task_custom_message"] = f"The dialogue with {name!r} has ended."
        return update
    if status in _FAILED:
        return _create_closing_update(name, "failed")
    if name not in services.registry_for(view).capabilities:
        return _create_closing_update(name, "unavailable")
    step = PlannedStep(capability=name, task_objective=text)
    return {"planning_execution_plan": ExecutionPlan(steps=[step], stamp={HANDOFF_STAMP: name})}


def _create_closing_update(name: str, reason: str) -> dict[str, Any]:
    emit(DialogueChanged(capability=None, previous=name, reason=reason))
    return {DIALOGUE_KEY: None}


def read_messages(state: Mapping[str, Any], capability: str) -> list[BaseMessage]:
    """Return the stored messages of the open dialogue with a capability, or ``[]``."""
    dialogue = open_dialogue(state)
    return (
        messages_from_dict(dialogue["messages"]) if dialogue.get("capability") == capability else []
    )


def dialogue_update(
    step: StepContext, conversation: Sequence[BaseMessage], result: Mapping[str, Any]
) -> dict[str, Any]:
    """Create the state update for a step that keeps its dialogue with the user open.

    Args:
        step: Context of the step.
        conversation: Messages of the dialogue. Only the latest messages are stored.
        result: Result of the step. Its ``output`` is the reply.
    """
    starts = [i for i, message in enumerate(conversation) if message.type == "human"]
    oldest = len(conversation) - MAX_MESSAGES
    start = next((i for i in starts if i >= oldest), starts[-1] if starts else 0)
    dialogue = {
        "capability": step.capability,
        "step": step.planned_step["context_key"],
        "messages": messages_to_dict(conversation[start:]),
        "reply": result["output"],
    }
    return {DIALOGUE_KEY: dialogue}


def handoff_plan(view: TurnView, key: str, request: HandoffRequest) -> ExecutionPlan:
    """Create the plan that hands off an agent's work to a capability or to the planner.

    A handoff to a capability adds a step to the plan. A handoff to the planner marks the
    agent's step for a plan review.

    Args:
        view: Current state of the turn.
        key: Context key of the agent's step.
        request: Handoff that the agent requested.
    """
    finished = view.succeeded_keys | view.skipped_keys
    steps = [step for step in view.steps if step["context_key"] in finished]
    own = view.get_step(key)
    stamp = {HANDOFF_STAMP: request.to}
    if not request.to:
        return ExecutionPlan(steps=[*steps, {**own, "look_again": True}], stamp=stamp)
    task = request.task or view.step_objective(own)
    new = PlannedStep(context_key=f"{key}_{request.to}", capability=request.to, task_objective=task)
    return ExecutionPlan(steps=[*steps, own, new], stamp=stamp)


def settle_dialogue(before: TurnView, after: TurnView, *, can_answer: bool) -> dict[str, Any]:
    """Create the state update for steps that opened, continued, or closed a dialogue.

    A dialogue opens if its step ran alone and all steps of the plan have ended. Its reply is
    then used as the answer, so that no model writes a second answer.

    Args:
        before: View of the turn before the steps ran.
        after: View of the turn after the steps ran.
        can_answer: True if the reply may be the answer, without a planner or an answerer.
    """
    dialogue = open_dialogue(after.state)
    previous = open_dialogue(before.state).get("capability")
    update: dict[str, Any] = {}
    if dialogue and dialogue != open_dialogue(before.state):
        ended = after.succeeded_keys | after.skipped_keys
        work = {s["context_key"] for s in after.steps if s["capability"] not in TERMINAL_STEPS}
        if work - ended or after.succeeded_keys - before.succeeded_keys != {dialogue["step"]}:
            dialogue, update = {}, {DIALOGUE_KEY: None}
        elif can_answer and isinstance(dialogue.get("reply"), str):
            update = {"task_custom_message": dialogue["reply"]}
    name = dialogue.get("capability")
    if name != previous:
        reason = "opened" if name else "handed over"
        emit(DialogueChanged(capability=name, previous=previous, reason=reason))
    return update
