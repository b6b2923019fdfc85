"""What stands in ``framework/langgraph_compat.py`` is still so in the LangGraph that is installed."""

from __future__ import annotations

import ast
import operator
import time
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.config import get_config
from langgraph.errors import UnknownInterruptError
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

import capgraph
from capgraph import langgraph_compat as compat
from capgraph.testing import ScriptedModel

ROOT = Path(capgraph.__file__).parent.parent
CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Tiny(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]


def add_all(current: list[int], updates: list[Any]) -> list[int]:
    return [*current, *(number for update in updates for number in update)]


class Growing(TypedDict, total=False):
    numbers: Annotated[list[int], DeltaChannel(add_all)]


def graph_of(node: Any, saver: Any = None, state: Any = Tiny) -> Any:
    builder = StateGraph(state)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)


def test_nothing_else_reads_a_private_name_of_langgraph() -> None:
    private = ("__pregel", "branch:to:", "__interrupt__", "_last_v6_timestamp", "._cursor(")
    found = []
    for room in ("framework", "infrastructure", "capabilities", "configs"):
        for file in (ROOT / room).rglob("*.py"):
            if file.name == "langgraph_compat.py":
                continue
            text = file.read_text(encoding="utf-8")
            found += [(file.name, name) for name in private if name in text]
            for node in ast.walk(ast.parse(text)):
                module = getattr(node, "module", None) or ""
                if isinstance(node, ast.ImportFrom) and module.startswith("langgraph."):
                    hidden = [part for part in module.split(".") if part.startswith("_")]
                    names = [one.name for one in node.names if one.name.startswith("_")]
                    found += [(file.name, part) for part in hidden + names]
    assert set(found) <= KNOWN


# Places that still read one; the list only shrinks.
KNOWN = {("evaluator.py", "__interrupt__"), ("approval.py", "__pregel")}


async def test_a_task_its_outer_checkpoint_and_the_lent_saver_are_told() -> None:
    saver, told = InMemorySaver(), []

    async def inside(state: Tiny) -> dict[str, Any]:
        config = get_config()
        told.append((compat.is_task(config), compat.outer_checkpoint(config)))
        own = {"configurable": {"thread_id": "2"}}
        told.append(compat.is_task(compat.merged_config(bare, own)))
        assert compat.find_saver(bare, config) is saver
        assert bool(compat.running_checkpoints(config)) is (state["seen"] == ["go"])
        return {}

    bare = graph_of(lambda state: {})
    graph = graph_of(inside, saver)
    await graph.ainvoke({"seen": ["go"]}, CONFIG)
    (task, outer), own = told
    ids = [item.checkpoint["id"] async for item in saver.alist(CONFIG)]
    assert (task, own) == (True, False)
    assert outer in ids
    assert not compat.is_task(compat.merged_config(graph, CONFIG))
    assert compat.find_saver(graph, CONFIG) is saver
    await graph.ainvoke({"seen": ["on"]}, {"configurable": {"thread_id": "3"}}, durability="exit")


async def test_open_questions_and_nodes_to_run_are_told() -> None:
    saver = InMemorySaver()
    graph = graph_of(lambda state: {"seen": [interrupt("How many?")]}, saver)
    await graph.ainvoke({"seen": []}, CONFIG)
    found = await saver.aget_tuple(CONFIG)
    (asked,) = compat.open_interrupts(found.pending_writes)
    assert asked.value == "How many?"
    assert compat.has_next_node(found.checkpoint["channel_values"])
    await graph.ainvoke(Command(resume={asked.id: "3"}), CONFIG)
    found = await saver.aget_tuple(CONFIG)
    assert compat.open_interrupts(found.pending_writes) == []
    assert not compat.has_next_node(found.checkpoint["channel_values"])


async def test_a_question_is_closed_as_soon_as_what_its_task_gave_is_saved() -> None:
    class Ends(InMemorySaver):
        over = False

        async def aput(self, *args: Any) -> Any:
            if self.over:
                raise ConnectionError("the process ended")
            return await super().aput(*args)

    saver = Ends()
    graph = graph_of(lambda state: {"seen": [interrupt("How many?")]}, saver)
    await graph.ainvoke({"seen": []}, CONFIG)
    saver.over = True
    with pytest.raises(ConnectionError):
        await graph.ainvoke(Command(resume="3"), CONFIG)
    found, saver.over = await saver.aget_tuple(CONFIG), False
    assert compat.INTERRUPT in [channel for _, channel, _ in found.pending_writes]
    assert compat.open_interrupts(found.pending_writes) == []
    assert (await graph.ainvoke(None, CONFIG))["seen"] == ["3"]


async def test_a_resume_that_names_a_closed_question_is_refused() -> None:
    graph = graph_of(lambda state: {"seen": [interrupt("How many?")]}, InMemorySaver())
    strict: Any = {"configurable": {**CONFIG["configurable"], **compat.STRICT_RESUME}}
    await graph.ainvoke({"seen": []}, strict)
    with pytest.raises(UnknownInterruptError):
        await graph.ainvoke(Command(resume={"0" * 32: "3"}), strict)


async def test_a_checkpoint_of_deltas_is_made_whole() -> None:
    saver = InMemorySaver()
    graph = graph_of(lambda state: {"numbers": [2]}, saver, Growing)
    await graph.ainvoke({"numbers": [1]}, CONFIG)
    found = await saver.aget_tuple(CONFIG)
    assert "numbers" not in found.checkpoint["channel_values"]
    assert compat.delta_channel_names(found) == {"numbers"}
    whole = await compat.materialize_deltas(saver, found, {"numbers": graph.channels["numbers"]})
    assert compat.plain_values(whole)["numbers"] == [1, 2]
    assert compat.delta_channel_names(whole) == set()
    copy: Any = {"configurable": {"thread_id": "2", "checkpoint_ns": ""}}
    await saver.aput(copy, whole.checkpoint, whole.metadata, whole.checkpoint["channel_versions"])
    assert (await graph.ainvoke({"numbers": [3]}, copy))["numbers"] == [1, 2, 3, 2]


async def test_what_a_run_was_given_stands_in_its_first_checkpoint() -> None:
    saver = InMemorySaver()
    graph = graph_of(lambda state: {"seen": ["node"]}, saver)
    await graph.ainvoke({"seen": ["a"]}, CONFIG)
    await graph.ainvoke({"seen": ["b"]}, CONFIG)
    given = [compat.run_input(found) async for found in saver.alist(CONFIG)]
    assert given == [None, None, {"seen": ["b"]}, None, None, {"seen": ["a"]}]


def test_new_checkpoints_sort_after_a_known_one() -> None:
    ahead = "3f000000-0000-6000-8000-000000000001"
    compat.advance_checkpoint_ids(empty_checkpoint()["id"])
    compat.advance_checkpoint_ids("no id")
    before = vars(compat.checkpoint_ids)["_last_v6_timestamp"]
    try:
        compat.advance_checkpoint_ids(ahead)
        assert empty_checkpoint()["id"] > ahead
    finally:
        vars(compat.checkpoint_ids)["_last_v6_timestamp"] = before


_CALL = {"name": "open", "args": {"valve": 1}, "id": "c", "type": "tool_call"}
_USED = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("Hello", id="1", name="Ann"),
        HumanMessage([{"type": "text", "text": "Hello"}], additional_kwargs={"a": {"b": [1]}}),
        AIMessage("", tool_calls=[_CALL], usage_metadata=_USED, response_metadata={"m": "x"}),
        SystemMessage("Be brief"),
        ToolMessage("7", tool_call_id="c", artifact={"rows": [1]}, status="error"),
        HumanMessage("Hello", of_ones_own=1),
        RemoveMessage(id="1"),
        AIMessage.model_construct(content="not whole"),
    ],
    ids=lambda message: f"{message.type}-{message.content or 'x'}"[:20],
)
def test_a_message_comes_back_as_langgraph_would_give_it(message: BaseMessage) -> None:
    theirs = JsonPlusSerializer(allowed_msgpack_modules=None)
    kind, data = theirs.dumps_typed({"seen": _DeltaSnapshot([message, (message,)])})
    expected = theirs.loads_typed((kind, data))["seen"]
    found = compat.unpack_checkpoint(data, theirs._unpack_ext_hook)["seen"]
    assert type(found) is _DeltaSnapshot
    assert found.value == expected.value
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__"):
        assert getattr(found.value[0], slot) == getattr(expected.value[0], slot)
    assert found.value[0].model_copy(update={"id": "2"}).id == "2"
    assert theirs.dumps_typed(found) == theirs.dumps_typed(expected)


def test_a_type_that_is_not_known_is_not_made() -> None:
    theirs = JsonPlusSerializer(allowed_msgpack_modules=None)
    _, data = theirs.dumps_typed([compat.Interrupt("x", id="1"), Path("/tmp")])
    assert compat.unpack_checkpoint(data, theirs._unpack_ext_hook) == theirs.loads_typed(
        ("msgpack", data)
    )


async def test_a_handler_is_told_of_what_is_called_inside_and_once() -> None:
    heard: list[str] = []

    class Hearing(BaseCallbackHandler):
        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            heard.append("call")

    ear = Hearing()

    async def node(state: Tiny) -> Tiny:
        with compat.add_callbacks(ear), compat.add_callbacks(ear):
            await ScriptedModel(responses=["hm"]).ainvoke("Hi")
        await ScriptedModel(responses=["hm"]).ainvoke("Hi")
        return {}

    builder: Any = StateGraph(Tiny)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    await builder.compile().ainvoke({})
    assert heard == ["call"]
    await builder.compile().ainvoke({}, {"callbacks": [ear]})
    assert heard == ["call"] * 3


async def test_what_a_checkpoint_says_of_nodes_answers_and_tasks() -> None:
    @task
    async def inner() -> int:
        return 5

    async def node(state: Any) -> dict[str, Any]:
        return {"seen": [f"{await inner()}{interrupt('Well?')}"]}

    saver = InMemorySaver()
    graph = graph_of(node, saver)
    await graph.ainvoke({"seen": []}, CONFIG)
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert await compat.last_writer(saver, CONFIG) == "node"
    [at] = [one async for one in saver.alist(CONFIG) if compat.next_nodes(compat.plain_values(one))]
    assert compat.next_nodes(compat.plain_values(at)) == ["node"]
    assert at.checkpoint["v"] == compat.LATEST_VERSION
    found = {channel: value for _, channel, value in at.pending_writes or ()}
    assert (found[compat.RETURN], found[compat.RESUME]) == (5, ["yes"])
    assert [name for name in found if compat.is_state_key(name)] == ["seen"]


def test_the_keys_of_a_graph_are_told() -> None:
    class Wide(Tiny, total=False):
        more: int

    builder = StateGraph(Wide, input_schema=Tiny)
    builder.add_node("node", lambda state: {})
    builder.add_edge(START, "node")
    assert compat.graph_keys(builder.compile()) == (["seen"], ["seen", "more"])
    assert compat.graph_keys(object()) is None


async def test_who_watches_is_told() -> None:
    class Watch(BaseCallbackHandler):
        pass

    def node(state: Any) -> None:
        seen.append((compat.has_other_callbacks(), compat.has_other_callbacks(one)))

    seen: list[Any] = []
    one = Watch()
    graph = graph_of(node)
    await graph.ainvoke({"seen": []})
    await graph.ainvoke({"seen": []}, {"callbacks": [one]})
    assert seen == [(False, False), (True, False)]


async def test_whether_the_custom_stream_goes_anywhere_is_told() -> None:
    seen: list[bool] = []

    def node(_: Any) -> None:
        seen.append(compat.has_custom_stream())

    async def outer(_: Any) -> None:
        await inner.ainvoke({"seen": []})

    inner = graph_of(node)
    for graph in (inner, graph_of(outer)):
        await graph.ainvoke({"seen": []})
        [_ async for _ in graph.astream({"seen": []}, stream_mode="values", subgraphs=True)]
        [_ async for _ in graph.astream({"seen": []}, stream_mode=["custom"], subgraphs=True)]
    assert seen == [False, False, True] * 2


async def test_answers_that_a_task_took_before_are_counted() -> None:
    counts: list[int] = []

    def ask(_: Any) -> dict[str, Any]:
        counts.append(compat.count_consumed_answers())
        return {"seen": [interrupt("first"), interrupt("second")]}

    def later(_: Any) -> dict[str, Any]:
        counts.append(compat.count_consumed_answers())
        return {}

    builder = StateGraph(Tiny)
    builder.add_node("ask", ask)
    builder.add_node("later", later)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "later")
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({}, CONFIG)
    await graph.ainvoke(Command(resume="one"), CONFIG)
    found = await graph.ainvoke(Command(resume="two"), CONFIG)
    assert found["seen"] == ["one", "two"]
    assert counts == [0, 0, 1, 0]  # the answer of another task is none of its own


async def test_a_new_try_finds_the_answers_that_are_there_and_all_are_counted() -> None:
    told: list[Any] = []

    def node(_: Any) -> dict[str, Any]:
        told.append((compat.count_available_answers(), compat.count_request("name", 1)))
        first = interrupt("first")
        compat.reset_task_counters()
        assert (interrupt("first"), compat.count_request("name", 1)) == (first, 2)
        return {"seen": [interrupt("second")]}

    saver = InMemorySaver()
    graph = graph_of(node, saver)
    await graph.ainvoke({}, CONFIG)
    out = await graph.ainvoke(Command(resume="one"), CONFIG)
    found: Any = await saver.aget_tuple(CONFIG)
    assert {count for _, count in compat.count_resume_values(found.pending_writes)} == {1}
    [question] = out["__interrupt__"]
    out = await graph.ainvoke(Command(resume={question.id: "two"}), CONFIG)
    assert out["seen"] == ["two"]
    assert told == [(0, 1), (1, 1), (2, 1)]


async def test_a_node_is_told_its_graphs_keys_and_the_task_around_it() -> None:
    told: list[Any] = []

    def look(_: Any) -> dict[str, Any]:
        told.append(
            (compat.running_graph_channels(), compat.outer_task_namespace().partition(":")[0])
        )
        told.append(compat.inherited_saver(get_config()))
        return {}

    async def outer(_: Any) -> dict[str, Any]:
        await graph_of(look).ainvoke({})
        return {}

    saver = InMemorySaver()
    await graph_of(look, saver).ainvoke({}, CONFIG)
    await graph_of(outer, saver).ainvoke({}, CONFIG)
    assert told == [({"seen"}, ""), saver, ({"seen"}, "node"), saver]
    assert (compat.running_graph_channels(), compat.outer_task_namespace()) == (None, "")


async def test_words_that_are_held_back_are_not_streamed() -> None:
    async def node(_: Any) -> dict[str, Any]:
        with compat.suppress_message_stream():
            await ScriptedModel(responses=["secret"]).ainvoke("Hi")
        await ScriptedModel(responses=["said"]).ainvoke("Hi")
        return {}

    words = [part.content async for part, _ in graph_of(node).astream({}, stream_mode="messages")]
    assert "".join(words) == "said"


def test_a_tasks_function_is_kept_as_long_as_its_owner_and_ids_sort_by_time() -> None:
    class Owner:
        pass

    async def work() -> None:
        """Do nothing."""

    owner, before = Owner(), len(compat.CACHE)
    compat.cache_task(work, owner)
    assert len(compat.CACHE) == before + 1
    del owner
    assert len(compat.CACHE) == before
    made, now = str(uuid6()), time.time()
    assert compat.checkpoint_id_at(now - 60) < made < compat.checkpoint_id_at(now + 60)
