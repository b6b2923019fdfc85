"""What is said to a chat model: a builder's sections, and a bounded conversation between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage

from capgraph.planning.strategies import AnswerRequest, PlanRequest, attachments, message_text
from capgraph.prompts import PromptBuilder
from capgraph.prompts.data import sanitize_text

_BLOCK_SIZE = (
    10  # messages leave the prompt so many at once: between that its beginning is the same
)
_MAX_MESSAGES = 2 * _BLOCK_SIZE
_MAX_MESSAGE_CHARACTERS = 4_000  # of one message
_MAX_CHARACTERS = _BLOCK_SIZE * _MAX_MESSAGE_CHARACTERS
_MAX_SUMMARY_LINES = 40
_MAX_LINE_CHARACTERS = 100  # of one line


def request_fields(request: AnswerRequest | PlanRequest) -> dict[str, Any]:
    """Return what a request says, by the names under which prompt builders get it."""
    return {field.name: getattr(request, field.name) for field in fields(request)}


def build_prompt(
    builder: PromptBuilder,
    context: Mapping[str, Any],
    *,
    instructions: str = "",
    history: Sequence[BaseMessage] = (),
    messages: Sequence[AnyMessage] = (),
) -> list[BaseMessage]:
    """Put a prompt together: what stays the same from turn to turn comes first.

    Args:
        builder: Makes the sections.
        context: What the sections need.
        instructions: What the application says besides.
        history: The conversation so far.
        messages: The input, whose images and files go with the request.
    """
    system = builder.get_prefix(**context)
    if instructions:
        system += f"\n\nINSTRUCTIONS OF THE APPLICATION:\n{instructions}"
    said = builder.get_dynamic_context(**context)
    blocks = attachments(messages)
    content: Any = [{"type": "text", "text": said}, *blocks] if blocks else said
    return [SystemMessage(system), *history, HumanMessage(content)]


def split_conversation(messages: Sequence[AnyMessage]) -> tuple[list[BaseMessage], str]:
    """Return what was said before, bounded, and the person's last message.

    The last ten to twenty messages stand as they are, each shortened when it is long. One message
    before them says what the person asked for in those that are left out.

    >>> earlier, last = split_conversation([HumanMessage("Hi"), AIMessage("Hello"), HumanMessage("Bye")])
    >>> [message.content for message in earlier], last
    (['Hi', 'Hello'], 'Bye')
    """
    said = [m for m in messages if isinstance(m, (HumanMessage, AIMessage)) and message_text(m)]
    last = ""
    if said and isinstance(said[-1], HumanMessage):
        last = message_text(said.pop())
    start = max(0, -(-(len(said) - _MAX_MESSAGES) // _BLOCK_SIZE) * _BLOCK_SIZE)
    kept = [_shorten_message(message) for message in said[start:]]
    if sum(len(str(m.text)) for m in kept) > _MAX_CHARACTERS and len(kept) > _BLOCK_SIZE:
        start, kept = start + _BLOCK_SIZE, kept[_BLOCK_SIZE:]
    return [*_summarize(said[:start]), *kept], last


def format_transcript(messages: Sequence[BaseMessage]) -> str:
    """Write messages down, one after the other."""
    return "\n".join(
        f"{'person' if isinstance(message, HumanMessage) else 'agent'}: {message.text}"
        for message in messages
    )


def _summarize(omitted: Sequence[BaseMessage]) -> list[BaseMessage]:
    asked = [str(m.text) for m in omitted if isinstance(m, HumanMessage)]
    if not omitted:
        return []
    lines = [
        f"- {sanitize_text(text, _MAX_LINE_CHARACTERS)}" for text in asked[-_MAX_SUMMARY_LINES:]
    ]
    told = f"({len(omitted)} earlier messages are left out. In the last of them I asked:"
    return [HumanMessage("\n".join([told, *lines]) + ")")]


def _shorten_message(message: BaseMessage) -> BaseMessage:
    # Only text goes on: tool calls without their results are refused by most providers.
    text = sanitize_text(message_text(message), _MAX_MESSAGE_CHARACTERS)
    return HumanMessage(text) if isinstance(message, HumanMessage) else AIMessage(text)
