"""Functions that build prompts from a builder's sections and a bounded conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage

from capgraph.planning.strategies import AnswerRequest, PlanRequest, attachments, message_text
from capgraph.prompts import PromptBuilder
from capgraph.prompts.data import sanitize_text

# Messages are dropped in blocks, so that the prompt prefix stays cacheable in between.
_BLOCK_SIZE = 10
_MAX_MESSAGES = 2 * _BLOCK_SIZE
_MAX_MESSAGE_CHARACTERS = 4_000
_MAX_CHARACTERS = _BLOCK_SIZE * _MAX_MESSAGE_CHARACTERS
_MAX_SUMMARY_LINES = 40
_MAX_LINE_CHARACTERS = 100


def request_fields(request: AnswerRequest | PlanRequest) -> dict[str, Any]:
    """Return a request's fields as keyword arguments for prompt builders."""
    return {field.name: getattr(request, field.name) for field in fields(request)}


def build_prompt(
    builder: PromptBuilder,
    context: Mapping[str, Any],
    *,
    instructions: str = "",
    history: Sequence[BaseMessage] = (),
    messages: Sequence[AnyMessage] = (),
) -> list[BaseMessage]:
    """Build a prompt's messages, starting with the part that is the same in every turn.

    Args:
        builder: Builder of the prompt sections.
        context: Keyword arguments for the builder.
        instructions: Application-specific instructions.
        history: Earlier messages of the conversation.
        messages: Input messages, whose images and files are attached to the request.
    """
    system = builder.get_prefix(**context)
    if instructions:
        system += f"\n\nINSTRUCTIONS OF THE APPLICATION:\n{instructions}"
    request_text = builder.get_dynamic_context(**context)
    blocks = attachments(messages)
    content: Any = [{"type": "text", "text": request_text}, *blocks] if blocks else request_text
    return [SystemMessage(system), *history, HumanMessage(content)]


def split_conversation(messages: Sequence[AnyMessage]) -> tuple[list[BaseMessage], str]:
    """Split a conversation into its recent history and the user's last message.

    The history holds ten to twenty messages, and long messages are shortened. Older messages are
    replaced by one message that summarizes the user's requests in them.

    >>> earlier, last = split_conversation(
    ...     [HumanMessage("Hi"), AIMessage("Hello"), HumanMessage("Bye")]
    ... )
    >>> [message.content for message in earlier], last
    (['Hi', 'Hello'], 'Bye')
    """
    spoken = [m for m in messages if isinstance(m, (HumanMessage, AIMessage)) and message_text(m)]
    last = ""
    if spoken and isinstance(spoken[-1], HumanMessage):
        last = message_text(spoken.pop())
    start = max(0, -(-(len(spoken) - _MAX_MESSAGES) // _BLOCK_SIZE) * _BLOCK_SIZE)
    kept = [_shorten_message(message) for message in spoken[start:]]
    if sum(len(str(m.text)) for m in kept) > _MAX_CHARACTERS and len(kept) > _BLOCK_SIZE:
        start, kept = start + _BLOCK_SIZE, kept[_BLOCK_SIZE:]
    return [*_summarize(spoken[:start]), *kept], last


def format_transcript(messages: Sequence[BaseMessage]) -> str:
    """Format messages as a transcript with one line per message, prefixed by its author."""
    return "\n".join(
        f"{'person' if isinstance(message, HumanMessage) else 'agent'}: {message.text}"
        for message in messages
    )


def _summarize(omitted: Sequence[BaseMessage]) -> list[BaseMessage]:
    requests = [str(m.text) for m in omitted if isinstance(m, HumanMessage)]
    if not omitted:
        return []
    lines = [
        f"- {sanitize_text(text, _MAX_LINE_CHARACTERS)}" for text in requests[-_MAX_SUMMARY_LINES:]
    ]
    heading = f"({len(omitted)} earlier messages are left out. In the last of them I asked:"
    return [HumanMessage("\n".join([heading, *lines]) + ")")]


def _shorten_message(message: BaseMessage) -> BaseMessage:
    # Only text is kept, because most providers reject tool calls without their results.
    text = sanitize_text(message_text(message), _MAX_MESSAGE_CHARACTERS)
    return HumanMessage(text) if isinstance(message, HumanMessage) else AIMessage(text)
