"""A conversation with an agent, as data of one's own beside or without a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.dict_serialization import DictSerializable


def _now() -> datetime:
    return datetime.now(UTC)


@validate_arguments
@dataclass
class ConversationMessage(DictSerializable):
    """One message.

    Attributes:
        role: Whose it is, such as ``user`` or ``assistant``.
        content: Its text.
        timestamp: When it was added.
        metadata: What else is known of it.
    """

    role: str
    content: str
    timestamp: datetime = field(default_factory=_now)
    metadata: dict[str, Any] = field(default_factory=dict)


@validate_arguments
@dataclass
class ConversationState(DictSerializable):
    """A conversation.

    Attributes:
        session_id: Names it.
        messages: Its messages, the oldest first.
        agent_metadata: What the agent notes down about it.
        created_at: When it began.
        updated_at: When the last message was added.

    >>> state = ConversationState("7")
    >>> state.add_message("user", "How full is the tank?", channel="web")
    >>> ConversationState.from_dict(state.to_dict()) == state
    True
    """

    session_id: str
    messages: list[ConversationMessage] = field(default_factory=list)
    agent_metadata: dict[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=_now)
    updated_at: datetime = field(default_factory=_now)

    def add_message(self, role: str, content: str, **metadata: Any) -> None:
        """Add a message."""
        self.messages.append(ConversationMessage(role, content, metadata=metadata))
        self.updated_at = self.messages[-1].timestamp
