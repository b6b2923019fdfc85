"""State schemas: keys, reducers, lifetimes, and keys that callers may send."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.graph import StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite

from capgraph.base import ConfigurationError, ValidationError
from capgraph.state import (
    AgentState,
    CallerInput,
    StateSchema,
    TurnScoped,
    append_entries,
    merge_context_data,
)
from capgraph.state.reducers import merge_messages


class MyState(AgentState, total=False):
    tenant: Annotated[str, CallerInput]
    notes: Annotated[list[str], TurnScoped, append_entries]
    visits: NotRequired[Annotated[int, TurnScoped]]
    seen: dict[str, int]


def test_custom_keys_are_read_together_with_the_others() -> None:
    schema, base = StateSchema.from_class(MyState), StateSchema.from_class(AgentState)
    assert schema.names - base.names == {"tenant", "notes", "visits", "seen"}
    assert schema.caller_keys - base.caller_keys == {"tenant"}
    assert schema.reduced_keys - base.reduced_keys == {"notes"}
    assert schema.thread_keys - base.thread_keys == {"tenant", "seen"}
    assert StateSchema.from_class(MyState) is schema


def test_langgraph_reads_a_custom_state_class_in_the_same_way() -> None:
    builder = StateGraph(MyState)
    builder.add_node("node", lambda state: {"notes": ["b"], "visits": 1})
    builder.set_entry_point("node")
    out = builder.compile().invoke(
        {"tenant": "north", "notes": ["a"], "messages": [("user", "Hello")]}
    )
    assert (out["tenant"], out["notes"], out["visits"]) == ("north", ["a", "b"], 1)
    assert out["messages"][0].content == "Hello"
    assert set(builder.channels) == StateSchema.from_class(MyState).names


def test_only_turn_scoped_keys_are_reset_and_only_once() -> None:
    left = {"tenant": "a", "notes": ["x"], "visits": 3, "seen": {"a": 1}, "control_has_error": True}
    update = StateSchema.from_class(MyState).reset(left)
    assert update == {"notes": Overwrite([]), "visits": 0, "control_has_error": Overwrite(False)}
    empty = {**left, "notes": [], "visits": 0, "control_has_error": False}
    assert StateSchema.from_class(MyState).reset(empty) == {}


def test_the_reset_does_not_read_thread_scoped_keys() -> None:
    class Kept(list):
        def __bool__(self) -> bool:
            raise AssertionError

    assert StateSchema.from_class(MyState).reset({"messages": Kept(), "seen": Kept()}) == {}


def test_a_reducer_that_langgraph_would_ignore_is_refused() -> None:
    class Wrong(AgentState, total=False):
        notes: Annotated[list[str], append_entries, CallerInput]

    with pytest.raises(ConfigurationError, match=r"Wrong\.notes is not the last annotation"):
        StateSchema.from_class(Wrong)


def test_the_table_has_every_key() -> None:
    schema = StateSchema.from_class(AgentState)
    lines = schema.to_markdown().splitlines()[2:]
    assert len(lines) == len(schema.keys)
    for name, key in schema.keys.items():
        assert key.metadata.description, name
        assert key.metadata.writer, name
    assert "| `messages` | the conversation | thread | the caller and nodes | merged |" in lines


def test_keys_that_grow_with_a_thread_are_saved_as_deltas() -> None:
    schema = StateSchema.from_class(AgentState)
    for name in ("messages", "capability_context_data"):
        assert isinstance(schema.keys[name].reducer, DeltaChannel)


# --- messages ------------------------------------------------------------------------------

_message = st.one_of(
    st.tuples(st.sampled_from(["user", "ai"]), st.text(max_size=3)),
    st.builds(HumanMessage, st.text(max_size=3), id=st.sampled_from(["1", "2", "3"])),
    st.builds(AIMessage, st.text(max_size=3)),
)


def plain(messages: list[Any]) -> list[Any]:
    return [(type(m).__name__, m.content, m.id) for m in messages]


@given(st.lists(st.lists(_message, max_size=3), max_size=6), st.integers(0, 6))
def test_a_thread_is_the_same_however_its_writes_are_batched(updates: list[Any], cut: int) -> None:
    whole = merge_messages([], [_copied(u) for u in updates])
    parts = merge_messages(
        merge_messages([], [_copied(u) for u in updates[:cut]]), [_copied(u) for u in updates[cut:]]
    )
    assert plain(parts) == plain(whole)
    ids = [m.id for m in whole]
    assert len(set(ids)) == len(ids)
    expected: Any = []
    for update in updates:
        expected = add_messages(expected, _copied(update))
    assert [m.content for m in whole] == [m.content for m in expected]


def _copied(update: list[Any]) -> list[Any]:
    return [one if isinstance(one, tuple) else one.model_copy() for one in update]


def test_messages_are_replaced_and_removed_by_id() -> None:
    one, two = HumanMessage("a", id="1"), AIMessage("b", id="2")
    kept = merge_messages([one, two], [[RemoveMessage(id="1")], HumanMessage("c", id="2")])
    assert plain(kept) == [("HumanMessage", "c", "2")]
    again = merge_messages([one, two], [[RemoveMessage(id="1"), HumanMessage("d", id="1")]])
    assert [m.content for m in again] == ["d", "b"]
    fresh = merge_messages([one], [[RemoveMessage(id=REMOVE_ALL_MESSAGES), ("user", "new")]])
    assert [m.content for m in fresh] == ["new"]
    assert plain(merge_messages([], [AIMessageChunk("x", id="9")])) == [("AIMessage", "x", "9")]
    with pytest.raises(ValidationError, match="message '7'"):
        merge_messages([one], [RemoveMessage(id="7")])


def test_the_same_text_after_a_removal_is_a_new_message() -> None:
    thread = merge_messages([], [[("user", "a"), ("user", "b")]])
    shorter = merge_messages(thread, [[RemoveMessage(id=thread[0].id)], ("user", "b")])
    assert [m.content for m in shorter] == ["b", "b"]


_entries = st.dictionaries(
    st.sampled_from("AB"), st.dictionaries(st.sampled_from("xyz"), st.integers(), max_size=3)
)


@given(_entries, st.lists(_entries, max_size=4))
def test_context_is_merged_in_any_batches(current: Any, updates: list[Any]) -> None:
    expected, before = current, repr(current)
    for update in updates:
        expected = merge_context_data(expected, [update])
    assert merge_context_data(current, updates) == expected
    assert repr(current) == before
