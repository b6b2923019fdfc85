"""Conversations as data."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from capgraph.base.errors import ValidationError
from capgraph.stores import ConversationMessage, ConversationState, InMemoryStateStore

pytestmark = pytest.mark.row("G5")


async def test_a_conversation_goes_through_a_store_and_back() -> None:
    state = ConversationState("7", agent_metadata={"mood": "calm"})
    state.add_message("user", "How full is the tank?", channel="web")
    state.add_message("assistant", "2.5 m")
    assert state.messages[0].metadata == {"channel": "web"}
    assert state.updated_at == state.messages[-1].timestamp >= state.created_at
    assert state.created_at.tzinfo is datetime.UTC
    store = InMemoryStateStore()
    await store.set("7", state.to_dict())
    assert ConversationState.from_dict(await store.get("7")) == state


def test_from_dict_copies_and_rejects_invalid_data() -> None:
    state = ConversationState("7", [ConversationMessage("user", "Hello")])
    plain: dict[str, Any] = state.to_dict()
    plain["messages"][0]["content"] = "changed"
    assert state.messages[0].content == "Hello"
    short = {
        "session_id": "8",
        "created_at": plain["created_at"],
        "updated_at": plain["updated_at"],
    }
    assert ConversationState.from_dict(short).messages == []
    with pytest.raises(ValidationError, match="session_id"):
        ConversationState.from_dict({"messages": []})


async def test_the_store_rejects_metadata_that_is_not_plain_data() -> None:
    state = ConversationState("7")
    state.add_message("user", "Hello", at=datetime.date(2026, 1, 1))
    with pytest.raises(ValidationError, match=r"messages\[0\]\.metadata\.at"):
        await InMemoryStateStore().set("7", state.to_dict())
