"""What is said to a chat model: a builder's sections, and a bounded conversation between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage

from capgraph.planning.strategies import AnswerRequest, PlanRequest, attached, words_of
from capgraph.prompts import PromptBuilder
from capgraph.prompts.data import plain_text

_BLOCK = 10  # messages leave the prompt so many at once: between that its beginning is the same
_KEPT_MESSAGES = 2 * _BLOCK
_KEPT_CHARACTERS = 4_000  # of one message
_ALL_CHARACTERS = _BLOCK * _KEPT_CHARACTERS
_SUMMARY_LINES = 40
_SUMMARY_CHARACTERS = 100  # of one line


def fields_of(request: AnswerRequest | PlanRequest) -> dict[str, Any]:
    """Return what a request says, by the names under which prompt builders get it."""
    return {field.name: getattr(request, field.name) for field in fields(request)}


def prompt_of(
    builder: PromptBuilder,
    context: Mapping[str, Any],
    *,
    instructions: str = "",
    earlier: Sequence[BaseMessage] = (),
    messages: Sequence[AnyMessage] = (),
) -> list[BaseMessage]:
    """Put a prompt together: what stays the same from turn to turn comes first.

    Args:
        builder: Makes the sections.
        context: What the sections need.
        instructions: What the application says besides.
        earlier: The conversation so far.
        messages: The input, whose images and files go with the request.
    """
    system = builder.get_prefix(**context)
    if instructions:
        system += f"\n\nINSTRUCTIONS OF THE APPLICATION:\n{instructions}"
    said = builder.get_dynamic_context(**context)
    blocks = attached(messages)
    content: Any = [{"type": "text", "text": said}, *blocks] if blocks else said
    return [SystemMessage(system), *earlier, HumanMessage(content)]


def split_last(messages: Sequence[AnyMessage]) -> tuple[list[BaseMessage], str]:
    """Return what was said before, bounded, and the person's last message.

    The last ten to twenty messages stand as they are, each shortened when it is long. One message
    before them says what the person asked for in those that are left out.

    >>> earlier, last = split_last([HumanMessage("Hi"), AIMessage("Hello"), HumanMessage("Bye")])
    >>> [message.content for message in earlier], last
    (['Hi', 'Hello'], 'Bye')
    """
    said = [m for m in messages if isinstance(m, (HumanMessage, AIMessage)) and words_of(m)]
    last = ""
    if said and isinstance(said[-1], HumanMessage):
        last = words_of(said.pop())
    start = max(0, -(-(len(said) - _KEPT_MESSAGES) // _BLOCK) * _BLOCK)
    kept = [_short(message) for message in said[start:]]
    if sum(len(str(m.text)) for m in kept) > _ALL_CHARACTERS and len(kept) > _BLOCK:
        start, kept = start + _BLOCK, kept[_BLOCK:]
    return [*_summary(said[:start]), *kept], last


def transcript(messages: Sequence[BaseMessage]) -> str:
    """Write messages down, one after the other."""
    return "\n".join(
        f"{'person' if isinstance(message, HumanMessage) else 'agent'}: {message.text}"
        for message in messages
    )


def _summary(left_out: Sequence[BaseMessage]) -> list[BaseMessage]:
    asked = [str(m.text) for m in left_out if isinstance(m, HumanMessage)]
    if not left_out:
        return []
    lines = [f"- {plain_text(text, _SUMMARY_CHARACTERS)}" for text in asked[-_SUMMARY_LINES:]]
    told = f"({len(left_out)} earlier messages are left out. In the last of them I asked:"
    return [HumanMessage("\n".join([told, *lines]) + ")")]


def _short(message: BaseMessage) -> BaseMessage:
    # Only text goes on: tool calls without their results are refused by most providers.
    text = plain_text(words_of(message), _KEPT_CHARACTERS)
    return HumanMessage(text) if isinstance(message, HumanMessage) else AIMessage(text)
