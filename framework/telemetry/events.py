"""The one union of typed events that a run writes to LangGraph's custom stream.

An event travels as a plain dictionary with ``event_type`` as discriminator, so any client can
read it; :func:`parse_event` gives it its type back. Events of a graph carry the ids of what they
are about, as far as there is one, and ``seq``, which counts the events of a run, from 1.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from capgraph.base.ports import utc_now_text
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.configs.streaming import emit as _emit
from capgraph.configs.streaming import has_listener


class _Event(BaseModel):
    # Schemas are built on first use, which keeps the import short.
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
    """A line of progress from any component; what ``get_streamer`` sends."""

    event_type: Literal["status"] = "status"
    message: str = ""
    component: str = ""
    progress: float | None = None


class CapabilitiesSelected(_Event):
    """The classifier chose capabilities."""

    event_type: Literal["capabilities_selected"] = "capabilities_selected"
    capabilities: list[str]
    reason: str = ""
    scores: dict[str, float] = Field(default_factory=dict)


class PlanMade(_Event):
    """The orchestrator has a checked plan."""

    event_type: Literal["plan_made"] = "plan_made"
    plan: dict[str, Any]
    version: int = 1
    repairs: list[str] = Field(default_factory=list)


class ReplyRepaired(_Event):
    """A model's reply was read after repairs; ``repairs`` counts each by its name in the table."""

    event_type: Literal["reply_repaired"] = "reply_repaired"
    role: str
    repairs: dict[str, int]


class StepStarted(_StepEvent):
    """An attempt at a step began."""

    event_type: Literal["step_started"] = "step_started"
    task_objective: str = ""


class StepProgress(_StepEvent):
    """A running step says how far it is."""

    event_type: Literal["step_progress"] = "step_progress"
    message: str
    progress: float | None = None


class StepFinished(_StepEvent):
    """A step succeeded."""

    event_type: Literal["step_finished"] = "step_finished"
    duration: float
    outputs: dict[str, str] = Field(default_factory=dict)


class StepFailed(_StepEvent):
    """An attempt at a step failed."""

    event_type: Literal["step_failed"] = "step_failed"
    duration: float
    severity: str
    message: str
    category: str | None = None


class StepSkipped(_StepEvent):
    """Nobody will run a step; ``not_needed`` when the plan has it so: a condition does not hold."""

    event_type: Literal["step_skipped"] = "step_skipped"
    reason: str
    not_needed: bool = False


class Retry(_Event):
    """A step or node will be tried again."""

    event_type: Literal["retry"] = "retry"
    name: str
    context_key: str | None = None
    attempt: int
    max_attempts: int
    delay: float
    message: str = ""


class Replan(_Event):
    """A new plan is asked for."""

    event_type: Literal["replan"] = "replan"
    reason: str
    plans_made: int


class Reclassify(_Event):
    """Capabilities are chosen again."""

    event_type: Literal["reclassify"] = "reclassify"
    reason: str


class TurnSuspended(_Event):
    """A turn ends its run, because all that is left waits for a moment or for an event."""

    event_type: Literal["waiting"] = "waiting"
    waits: list[dict[str, Any]]


class StepResumed(_StepEvent):
    """A step that waited goes on: its moment has come (``time``) or its event (``signal``)."""

    event_type: Literal["wait_over"] = "wait_over"
    by: str
    key: str | None = None


class ApprovalRequested(_Event):
    """A person is asked before steps run."""

    event_type: Literal["approval_asked"] = "approval_asked"
    steps: list[dict[str, Any]]


class _OpenQuestion(_Event):
    ids: list[str]
    steps: dict[str, str | None]


class QuestionDropped(_OpenQuestion):
    """A new message dropped questions that were open; ``steps`` maps keys to capabilities."""

    event_type: Literal["question_dropped"] = "question_dropped"


class QuestionKept(_OpenQuestion):
    """A new message was refused, because questions are open; ``steps`` as in QuestionDropped."""

    event_type: Literal["question_kept"] = "question_kept"


class ApprovalDecided(_Event):
    """Somebody decided about a step; ``refused`` says why it does not count."""

    event_type: Literal["approval_given"] = "approval_given"
    context_key: str
    capability: str
    decision: str
    by: str | None = None
    authenticated: bool = False
    digest: str | None = None
    refused: str | None = None


class AnswerToken(_Event):
    """A piece of the answer; with ``resets`` what came before it is no part of the answer."""

    event_type: Literal["answer_token"] = "answer_token"
    text: str
    resets: bool | None = None


class AnswerPart(_Event):
    """What there is so far of an answer with a form of its own; ``value`` grows."""

    event_type: Literal["answer_part"] = "answer_part"
    value: dict[str, Any]


class Usage(_Event):
    """Tokens of a model call.

    Attributes:
        estimated: True if the model reported no usage and the tokens are an estimate.
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


class ModelFallback(_Event):
    """A model call failed, and the role's next model is asked.

    Attributes:
        role: Role of the call.
        model: The model that failed.
        fallback: The model that is asked next.
        reason: Kind of the failure: ``network``, ``rate_limit``, ``refused``, ``malformed``, …
        message: The error.
    """

    event_type: Literal["model_fallback"] = "model_fallback"
    role: str
    model: str = ""
    fallback: str = ""
    reason: str = ""
    message: str = ""


class PromptShortened(_Event):
    """A prompt exceeded the model's context, and is sent again with fewer earlier messages.

    Attributes:
        role: Role of the call.
        model: The model.
        messages_kept: Earlier messages that are sent again.
        messages_dropped: Earlier messages that are left out.
    """

    event_type: Literal["prompt_shortened"] = "prompt_shortened"
    role: str
    model: str = ""
    messages_kept: int = 0
    messages_dropped: int = 0


class ModelCalled(_Event):
    """A call of a chat model failed, or ended without an answer.

    Attributes:
        error: Type of what was raised.
    """

    event_type: Literal["model_called"] = "model_called"
    role: str
    model: str = ""
    provider: str = ""
    duration: float = 0.0
    error: str | None = None


class ToolCalled(_Event):
    """A tool was called inside a step or a model's loop, and ended."""

    event_type: Literal["tool_called"] = "tool_called"
    name: str
    duration: float = 0.0
    error: str | None = None


class CircuitChanged(_Event):
    """A circuit breaker opened, lets probes in, or closed."""

    event_type: Literal["circuit_changed"] = "circuit_changed"
    name: str
    state: Literal["closed", "open", "half_open"]
    failures: int = 0
    retry_after: float | None = None


class EventsDropped(_Event):
    """A sink was too slow: events before this one never reached it. On no stream, only there."""

    event_type: Literal["events_lost"] = "events_lost"
    count: int


class PolicyActionApplied(_Event):
    """A rule of a policy engine applied; ``done`` says what came of its action."""

    event_type: Literal["policy_acted"] = "policy_acted"
    rule: str
    action: str
    message: str
    params: dict[str, Any] | None = None
    done: bool = True


class TurnFinished(_Event):
    """The turn ended; ``outcome`` says how."""

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
    """Send an event to the stream of the current run; nothing happens outside of one.

    >>> emit(Reclassify(reason="wrong tools"))
    """
    kept = run_context().withheld
    if kept is not None and isinstance(event, (AnswerToken, AnswerPart, TurnFinished)):
        kept.append(event)
    elif has_listener():
        _emit(event.model_dump(exclude_none=True))


def buffer_answer_events(events: list[_Event]) -> AbstractContextManager[None]:
    """Keep what is said of the answer inside a ``with`` block, instead of sending it.

    >>> kept = []
    >>> with buffer_answer_events(kept):
    ...     emit(AnswerToken(text="Hello"))
    >>> [event.text for event in kept]
    ['Hello']
    """
    return override_run_context(withheld=events)


def parse_event(data: dict[str, Any]) -> Event:
    """Give an event of the custom stream its type back.

    Raises:
        pydantic.ValidationError: The data is no event of this project.

    >>> parse_event({"event_type": "reclassify", "reason": "x"}).reason
    'x'
    """
    event: Event = _adapter().validate_python(data)
    return event


@functools.cache
def _adapter() -> TypeAdapter[Event]:
    return TypeAdapter(Event)
