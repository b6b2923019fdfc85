"""What the nodes ask of their strategies: one protocol each, with and without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel, ConfigDict, Field

from capgraph.base.errors import ValidationError
from capgraph.base.plan import ExecutionPlan
from capgraph.planning import Catalog, Problem


class ExtractedTask(BaseModel):
    """The one task that a conversation comes down to; also the form in which a model gives it."""

    # Providers that hold a model to the form want every field required.
    model_config: ClassVar[ConfigDict] = ConfigDict(
        title="Task",
        extra="forbid",
        frozen=True,
        json_schema_extra=lambda form: form.update(required=list(form["properties"])),
    )

    task: str = Field(description="The task, complete in itself.")
    depends_on_chat_history: bool = Field(
        False, description="Whether earlier messages were needed."
    )
    depends_on_user_memory: bool = Field(
        False, description="Whether stored facts about the person matter."
    )


class TaskExtractor(Protocol):
    """Reduces a conversation to one task."""

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Return the task of the last message in the light of the earlier ones."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All that a planner may use.

    Attributes:
        task: What is to be done.
        active: Capabilities that were chosen.
        catalog: What every capability declares.
        available: Stored context data: type to key to data.
        guides: Describes the active capabilities for a prompt.
        notes: What capabilities tell about the state at hand, such as names of columns.
        failure: Why the last plan failed (a classification as a dictionary), if it did.
        failed_capability: The capability that failed.
        problems: What was wrong with the plan that this planner proposed just before.
        refused: The plan with these problems, as the planner wrote it.
        previous: The plan that is being replaced.
        finished: Step records of what is already done, by context key; and of failures that the
            planner observes.
        messages: The conversation.
        chosen: Whether the active capabilities were chosen for the task; otherwise they are all
            that may be used, and the planner chooses.
        excluded: Capabilities that were tried for the task in vain, with the reason.
        unavailable_capabilities: Capabilities that cannot be called now, with why and until when.
        budget_left: What is left of each limit of the budget; empty without one.
        instructions: What the application, and system messages of the input, say besides.
        refers_back: Whether the task refers to earlier messages.
        look_again: Steps of the plan in force that have ended, and after which what has not begun
            may be changed. Finished steps stay, written or not. A plan without steps keeps the
            open ones; with ``answer`` it drops them and ends the turn.
        looks_left: How often the planner may look after this plan.
        recent: Types and keys of the results of the last turn that had any.
    """

    task: str
    active: tuple[str, ...]
    catalog: Catalog
    available: Mapping[str, Mapping[str, Any]]
    guides: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None
    failed_capability: str | None = None
    problems: tuple[Problem, ...] = ()
    refused: Any = None
    previous: ExecutionPlan | None = None
    finished: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    messages: Sequence[AnyMessage] = ()
    chosen: bool = True
    excluded: Mapping[str, str] = field(default_factory=dict)
    unavailable_capabilities: Mapping[str, str] = field(default_factory=dict)
    budget_left: Mapping[str, float] = field(default_factory=dict)
    instructions: str = ""
    refers_back: bool = False
    look_again: tuple[str, ...] = ()
    looks_left: int = 1
    recent: tuple[tuple[str, str], ...] = ()


class Planner(Protocol):
    """Writes plans.

    A planner may declare the properties of
    :class:`~capgraph.planning.planner_traits.PlannerTraits` as class attributes.
    """

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Return a plan; it need not be right, it is checked afterwards.

        One without steps may bring ``answer``, the reply to a request that needs none. With
        ``look`` the planner is asked again when the steps have ended, before the answer.
        """


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One finished step in words.

    Attributes:
        context_key: The step.
        objective: What it was for.
        kind: Context type of the output.
        summary: What the output says.
        terminal: Whether no other step of the plan used this output.
    """

    context_key: str
    objective: str
    kind: str
    summary: str
    terminal: bool = True


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """All that an answer may use.

    Attributes:
        task: What was asked.
        purpose: ``results`` reports, ``conversation`` talks or says that nothing fits,
            ``clarify`` asks the person back.
        results: Finished steps, in the plan's order.
        missing: What could not be done, in words.
        abilities: What the agent can do, in words.
        messages: The conversation.
        question: What is unclear, when ``purpose`` is ``clarify``.
        instructions: What the application, and system messages of the input, say besides.
        response_format: The form that the answer has to have; ``None`` for text.
        problem: What was wrong with the answer before, which was refused.
    """

    task: str
    purpose: Literal["results", "conversation", "clarify"]
    results: tuple[StepSummary, ...] = ()
    missing: tuple[str, ...] = ()
    abilities: str = ""
    messages: Sequence[AnyMessage] = ()
    question: str = ""
    instructions: str = ""
    response_format: type[BaseModel] | None = None
    problem: str = ""


class Answerer(Protocol):
    """Writes the message that ends a turn."""

    async def answer(self, request: AnswerRequest) -> str | AIMessage | BaseModel:
        """Return the whole text, or an instance of the request's form.

        Pieces may be streamed on the way. A message whose id is that of the streamed pieces is
        not streamed a second time.
        """


def attachments(messages: Sequence[BaseMessage]) -> list[Any]:
    """Return the images, files and other blocks of the person's last message that has some.

    >>> image = {"type": "image", "url": "https://example.org/tank.png"}
    >>> attachments([HumanMessage([{"type": "text", "text": "How full?"}, image])]) == [image]
    True
    """
    for message in reversed(messages):
        if isinstance(message.content, list) and isinstance(message, HumanMessage):
            blocks = [b for b in message.content if isinstance(b, dict) and b.get("type") != "text"]
            if blocks:
                return blocks
    return []


def system_text(messages: Sequence[AnyMessage]) -> str:
    """Return what system messages of the input say."""
    return "\n\n".join(
        text for m in messages if isinstance(m, SystemMessage) and (text := str(m.text).strip())
    )


def message_text(message: BaseMessage) -> str:
    """Return what a message says; one that is an image or a file alone says that.

    >>> message_text(HumanMessage([{"type": "image", "url": "https://example.org/tank.png"}]))
    'See what is attached.'
    """
    return str(message.text).strip() or ("See what is attached." if attachments([message]) else "")


def last_request(messages: Sequence[AnyMessage]) -> str:
    """Return the text of the last message that a person wrote.

    Raises:
        ValidationError: There is none, or it is empty.
    """
    last = next((m for m in reversed(messages) if isinstance(m, HumanMessage)), None)
    if last is not None and (text := message_text(last)):
        return text
    raise ValidationError(
        "The message is empty, so there is nothing to do.", fix="Write what you want to know."
    )
