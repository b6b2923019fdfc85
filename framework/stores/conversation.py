"""Conversation data that can be stored without a graph."""

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
    """Message in a conversation between a user and an agent.

    Attributes:
        role: Role of the sender, such as ``user`` or ``assistant``.
        content: Text of the message.
        timestamp: Time at which the message was added.
        metadata: Additional data.
    """

    role: str
    content: str
    timestamp: datetime = field(default_factory=_now)
    metadata: dict[str, Any] = field(default_factory=dict)


@validate_arguments
@dataclass
class ConversationState(DictSerializable):
    """Conversation of a session, with its messages and metadata.

    Attributes:
        session_id: ID of the session.
        messages: Messages, oldest first.
        agent_metadata: Data that the agent stores with the conversation.
        created_at: Time of creation.
        updated_at: Time of the last message.

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
        """Append a message to the conversation. Keyword arguments become the message's metadata."""
        self.messages.append(ConversationMessage(role, content, metadata=metadata))
        self.updated_at = self.messages[-1].timestamp
