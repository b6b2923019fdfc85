"""Earlier messages, as text for a prompt or as messages for a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage

from framework.prompts.data import plain_text

KEPT_MESSAGES = 20
KEPT_CHARACTERS = 4_000


def split_last(messages: Sequence[AnyMessage]) -> tuple[list[BaseMessage], str]:
    """Return what was said before, shortened, and the person's last message.

    >>> earlier, last = split_last([HumanMessage("Hi"), AIMessage("Hello"), HumanMessage("Bye")])
    >>> [message.content for message in earlier], last
    (['Hi', 'Hello'], 'Bye')
    """
    said = [m for m in messages if isinstance(m, (HumanMessage, AIMessage)) and str(m.text).strip()]
    last = ""
    if said and isinstance(said[-1], HumanMessage):
        last = str(said.pop().text).strip()
    return [_short(message) for message in said[-KEPT_MESSAGES:]], last


def transcript(messages: Sequence[BaseMessage]) -> str:
    """Write messages down, one after the other."""
    return "\n".join(
        f"{'person' if isinstance(message, HumanMessage) else 'agent'}: {message.text}"
        for message in messages
    )


def _short(message: BaseMessage) -> BaseMessage:
    # Only text goes on: tool calls without their results are refused by most providers.
    text = plain_text(str(message.text), KEPT_CHARACTERS)
    return HumanMessage(text) if isinstance(message, HumanMessage) else AIMessage(text)
