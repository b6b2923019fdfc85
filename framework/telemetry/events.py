"""Typed events of a run, as written to LangGraph's custom stream.

An event is a plain dictionary with the discriminator ``event_type``, so any client can read it.
:func:`parse_event` restores its type. Events of a graph also carry the IDs of their run, thread,
turn, plan, step, and attempt, if any, and ``seq``, the number of the event in its run, from 1.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from capgraph.configs.run_context import override_run_context, run_context
from capgraph.configs.streaming import emit as _emit
from capgraph.configs.streaming import has_listener
from capgraph.helpers.clock import utc_now_text


class _Event(BaseModel):
    # Schemas are built on first use, which keeps the import fast.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", defer_build=True)

    timestamp: str = Field(default_factory=utc_now_text)
    seq: int | None = None
    run_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    plan_id: str | None = None
    step_id: str | None = None
    attempt_id: str | None = None
    parent_id: str | None = None


class _StepEvent(_Event):
    context_key: str
    capability: str
    step: int = 0
    total_steps: int = 0
    attempt: int = 1
    element: int | None = None
    elements: int | None = None


class Status(_Event):
    """Event: a component reported its progress through ``get_streamer``."""

    event_type: Literal["status"] = "status"
    message: str = ""
    component: str = ""
    progress: float | None = None


class CapabilitiesSelected(_Event):
    """Event: the classifier selected capabilities."""

    event_type: Literal["capabilities_selected"] = "capabilities_selected"
    capabilities: list[str]
    reason: str = ""
    scores: dict[str, float] = Field(default_factory=dict)


class PlanMade(_Event):
    """Event: the orchestrator accepted a plan."""

    event_type: Literal["plan_made"] = "plan_made"
    plan: dict[str, Any]
    version: int = 1
    repairs: list[str] = Field(default_factory=list)


class ReplyRepaired(_Event):
    """Event: a malformed model reply was repaired.

    ``repairs`` counts how often each kind of repair was applied.
    """

    event_type: Literal["reply_repaired"] = "reply_repaired"
    role: str
    repairs: dict[str, int]


class StepStarted(_StepEvent):
    """Event: an attempt of a step started."""

    event_type: Literal["step_started"] = "step_started"
    task_objective: str = ""


class StepProgress(_StepEvent):
    """Event: a running step reported progress."""

    event_type: Literal["step_progress"] = "step_progress"
    message: str
    progress: float | None = None


class StepFinished(_StepEvent):
    """Event: a step succeeded."""

    event_type: Literal["step_finished"] = "step_finished"
    duration: float
    outputs: dict[str, str] = Field(default_factory=dict)


class StepFailed(_StepEvent):
    """Event: an attempt of a step failed."""

    event_type: Literal["step_failed"] = "step_failed"
    duration: float
    severity: str
    message: str
    category: str | None = None


class StepSkipped(_StepEvent):
    """Event: a step was skipped.

    ``not_needed`` is True if the step was skipped because its condition was not met.
    """

    event_type: Literal["step_skipped"] = "step_skipped"
    reason: str
    not_needed: bool = False


class Retry(_Event):
    """Event: a failed step or node will be retried."""

    event_type: Literal["retry"] = "retry"
    name: str
    context_key: str | None = None
    attempt: int
    max_attempts: int
    delay: float
    message: str = ""


class Replan(_Event):
    """Event: a new plan was requested."""

    event_type: Literal["replan"] = "replan"
    reason: str
    plans_made: int


class Reclassify(_Event):
    """Event: a new selection of capabilities was requested during a turn."""

    event_type: Literal["reclassify"] = "reclassify"
    reason: str


class TurnSuspended(_Event):
    """Event: a run was suspended because its remaining steps wait for a time or an event."""

    event_type: Literal["waiting"] = "waiting"
    waits: list[dict[str, Any]]


class StepResumed(_StepEvent):
    """Event: a waiting step resumed, because its wait ended or a signal arrived.

    ``by`` is ``time`` or ``signal``.
    """

    event_type: Literal["wait_over"] = "wait_over"
    by: str
    key: str | None = None


class ApprovalRequested(_Event):
    """Event: a person was asked to approve steps."""

    event_type: Literal["approval_asked"] = "approval_asked"
    steps: list[dict[str, Any]]


class _OpenQuestion(_Event):
    ids: list[str]
    steps: dict[str, str | None]


class QuestionDropped(_OpenQuestion):
    """Event: open questions were dropped because a new message arrived.

    ``steps`` maps step keys to capability names.

    ``steps`` maps the context keys of the affected steps to their capabilities.
    """

    event_type: Literal["question_dropped"] = "question_dropped"


class QuestionKept(_OpenQuestion):
    """Event: a new message was blocked because questions are still open.

    ``steps`` maps step keys to capability names.
    """

    event_type: Literal["question_kept"] = "question_kept"


class DialogueChanged(_Event):
    """Event: a different capability, or the planner, will receive the thread's next message.

    ``capability`` is None for the planner. ``reason`` is ``opened``, ``handed over``, ``left``,
    ``failed``, or ``unavailable``.
    """

    event_type: Literal["dialogue_changed"] = "dialogue_changed"
    capability: str | None
    previous: str | None
    reason: str


class ApprovalDecided(_Event):
    """Event: a person decided whether a step may run.

    ``refused`` is the reason why the decision does not count, if it was rejected.
    """

    event_type: Literal["approval_given"] = "approval_given"
    context_key: str
    capability: str
    decision: str
    by: str | None = None
    authenticated: bool = False
    digest: str | None = None
    refused: str | None = None


class AnswerToken(_Event):
    """Event: part of the answer text was generated.

    If ``resets`` is True, discard all earlier parts of the answer.
    """

    event_type: Literal["answer_token"] = "answer_token"
    text: str
    resets: bool | None = None


class AnswerPart(_Event):
    """Event: more of a structured answer was generated.

    ``value`` contains the complete answer so far.
    """

    event_type: Literal["answer_part"] = "answer_part"
    value: dict[str, Any]


class Usage(_Event):
    """Event: a model call consumed tokens.

    Attributes:
        estimated: True if the model reported no usage and the tokens are an estimate.
        request_model: Requested model, if the response names a different model.
        response_id: Response ID assigned by the provider.
        finish_reasons: Reasons why the model stopped, as the provider reported them.
    """

    event_type: Literal["usage"] = "usage"
    role: str
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    provider: str = ""
    duration: float | None = None
    estimated: bool = False
    request_model: str | None = None
    response_id: str | None = None
    finish_reasons: list[str] | None = None


class ModelFallback(_Event):
    """Event: a model call failed, and the role's next configured model will be called.

    Attributes:
        role: Role of the call.
        model: Model whose call failed.
        fallback: Model to call next.
        reason: Kind of failure, such as ``network``, ``rate_limit``, or ``malformed``.
        message: Error message of the failed call.
    """

    event_type: Literal["model_fallback"] = "model_fallback"
    role: str
    model: str = ""
    fallback: str = ""
    reason: str = ""
    message: str = ""


class PromptShortened(_Event):
    """Event: a prompt was too long and will be resent with fewer earlier messages.

    Attributes:
        role: Role of the call.
        model: Name of the model.
        messages_kept: Number of earlier messages that are kept in the prompt.
        messages_dropped: Number of earlier messages that are removed from the prompt.
    """

    event_type: Literal["prompt_shortened"] = "prompt_shortened"
    role: str
    model: str = ""
    messages_kept: int = 0
    messages_dropped: int = 0


class ModelCalled(_Event):
    """Event: a model call failed or ended without an answer.

    Attributes:
        error: Name of the exception type.
    """

    event_type: Literal["model_called"] = "model_called"
    role: str
    model: str = ""
    provider: str = ""
    duration: float = 0.0
    error: str | None = None


class ToolCalled(_Event):
    """Event: a tool call ended, in a step or in the tool loop of a model."""

    event_type: Literal["tool_called"] = "tool_called"
    name: str
    duration: float = 0.0
    error: str | None = None


class CircuitChanged(_Event):
    """Event: a circuit breaker opened, half-opened, or closed."""

    event_type: Literal["circuit_changed"] = "circuit_changed"
    name: str
    state: Literal["closed", "open", "half_open"]
    failures: int = 0
    retry_after: float | None = None


class EventsDropped(_Event):
    """Event: a slow sink missed earlier events.

    The event is delivered only to that sink.
    """

    event_type: Literal["events_lost"] = "events_lost"
    count: int


class PolicyActionApplied(_Event):
    """Event: a rule of a policy engine matched. ``done`` is True if its action was executed."""

    event_type: Literal["policy_acted"] = "policy_acted"
    rule: str
    action: str
    message: str
    params: dict[str, Any] | None = None
    done: bool = True


class TurnFinished(_Event):
    """Event: a turn ended with an ``outcome``."""

    event_type: Literal["turn_finished"] = "turn_finished"
    outcome: dict[str, Any]


Event = Annotated[
    Status
    | CapabilitiesSelected
    | PlanMade
    | ReplyRepaired
    | StepStarted
    | StepProgress
    | StepFinished
    | StepFailed
    | StepSkipped
    | TurnSuspended
    | QuestionDropped
    | QuestionKept
    | DialogueChanged
    | StepResumed
    | Retry
    | Replan
    | Reclassify
    | ApprovalRequested
    | ApprovalDecided
    | AnswerToken
    | AnswerPart
    | Usage
    | CircuitChanged
    | ModelCalled
    | ModelFallback
    | PromptShortened
    | ToolCalled
    | EventsDropped
    | PolicyActionApplied
    | TurnFinished,
    Field(discriminator="event_type"),
]


def emit(event: _Event) -> None:
    """Emit an event on the current run's stream. Outside a run, the event is dropped.

    >>> emit(Reclassify(reason="wrong tools"))
    """
    buffered = run_context().withheld
    if buffered is not None and isinstance(event, (AnswerToken, AnswerPart, TurnFinished)):
        buffered.append(event)
    elif has_listener():
        _emit(event.model_dump(exclude_none=True))


def buffer_answer_events(events: list[_Event]) -> AbstractContextManager[None]:
    """Context manager that collects the answer events in a list instead of emitting them.

    >>> buffered = []
    >>> with buffer_answer_events(buffered):
    ...     emit(AnswerToken(text="Hello"))
    >>> [event.text for event in buffered]
    ['Hello']
    """
    return override_run_context(withheld=events)


def parse_event(data: dict[str, Any]) -> Event:
    """Parse a dictionary from the custom stream as a typed event.

    Raises:
        pydantic.ValidationError: ``data`` is not a capgraph event.

    >>> parse_event({"event_type": "reclassify", "reason": "x"}).reason
    'x'
    """
    event: Event = _adapter().validate_python(data)
    return event


@functools.cache
def _adapter() -> TypeAdapter[Event]:
    return TypeAdapter(Event)
