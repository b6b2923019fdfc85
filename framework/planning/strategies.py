"""Strategies of the infrastructure nodes: one protocol each for extraction, planning, and answers."""

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
    """Task of a conversation, and the schema in which a model returns the task."""

    # Providers with strict schemas require that every field is required.
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
    """Strategy that reduces a conversation to one task."""

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Return the task stated in the last message, given the preceding messages."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Input of a planner.

    Attributes:
        task: Text of the task.
        active: Names of the selected capabilities.
        catalog: Declarations of all capabilities.
        available: Stored context data by type and context key.
        guides: Planning guides of the active capabilities, for a prompt.
        notes: Notes of capabilities about the current state, such as column names.
        failure: Classification of the last plan's failure as a dictionary, if it failed.
        failed_capability: Name of the capability that failed.
        problems: Validation problems of this planner's previous proposal.
        refused: Previous proposal, as the planner wrote it.
        previous: Plan that is being replaced.
        finished: State entries of finished steps, and of failures to review, by context key.
        messages: Messages of the conversation.
        chosen: True if the active capabilities were selected for the task. Otherwise the planner selects
            among all permitted capabilities.
        excluded: Reason for each capability that failed for this task, by name.
        unavailable_capabilities: Reason and expected end of each unavailability, by capability name.
        budget_left: Remaining budget by limit. Empty without a budget.
        instructions: Instructions of the application and of system messages.
        refers_back: True if the task refers to earlier messages.
        look_again: Keys of the finished steps that caused a plan review. Finished steps remain even if
            the new plan omits them. A plan without steps keeps the unfinished steps, unless it contains
            ``answer``, which removes them and ends the turn.
        looks_left: Remaining number of plan reviews after this plan.
        recent: Types and keys of the results of the last turn that had results.
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
    """Strategy that creates plans for requests.

    A planner may declare the traits of :class:`~capgraph.planning.planner_traits.PlannerTraits`
    as class attributes.
    """

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Create a plan for a request. The caller validates the plan.

        A plan without steps may contain ``answer``, which is the answer to a request that requires
        no capability. If the plan contains ``look``, the planner is called again after the steps
        have run and before the answer is written.
        """


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Summary of one finished step, for writing the answer.

    Attributes:
        context_key: Context key of the step.
        objective: Objective of the step.
        kind: Context type of the output.
        summary: Summary of the output.
        terminal: Whether no other step of the plan used this output.
        category: ``CONTEXT_CATEGORY`` of the output.
    """

    context_key: str
    objective: str
    kind: str
    summary: str
    terminal: bool = True
    category: str = ""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Input of an answerer.

    Attributes:
        task: Text of the task.
        purpose: ``results`` to report results, ``conversation`` to reply without results, or ``clarify``
            to ask the user a question.
        results: Summaries of the finished steps, in plan order.
        missing: Descriptions of the steps that did not finish.
        abilities: Description of the agent's capabilities.
        messages: Messages of the conversation.
        question: Question to clarify the request, if ``purpose`` is ``clarify``.
        instructions: Instructions of the application and of system messages.
        response_format: Model class of a structured answer. ``None`` for text.
        problem: Reason why the previous answer was rejected.
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
    """Strategy that writes the final message of a turn."""

    async def answer(self, request: AnswerRequest) -> str | AIMessage | BaseModel:
        """Write the answer to a request as text or as an instance of its response format.

        The answer may be streamed in chunks. A returned message with the same ID as the streamed
        chunks is not streamed again.
        """


def attachments(messages: Sequence[BaseMessage]) -> list[Any]:
    """Return the non-text content blocks, such as images, of a human message.

    The last human message with such blocks is used.

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
    """Join the texts of the system messages."""
    return "\n\n".join(
        text for m in messages if isinstance(m, SystemMessage) and (text := str(m.text).strip())
    )


def message_text(message: BaseMessage) -> str:
    """Return the text of a message, or a placeholder if it has only attachments.

    >>> message_text(HumanMessage([{"type": "image", "url": "https://example.org/tank.png"}]))
    'See what is attached.'
    """
    return str(message.text).strip() or ("See what is attached." if attachments([message]) else "")


def last_request(messages: Sequence[AnyMessage]) -> str:
    """Return the text of the last human message.

    Raises:
        ValidationError: There is no human message, or it is empty.
    """
    last = next((m for m in reversed(messages) if isinstance(m, HumanMessage)), None)
    if last is not None and (text := message_text(last)):
        return text
    raise ValidationError(
        "The message is empty, so there is nothing to do.", fix="Write what you want to know."
    )
