"""All that touches private or undocumented parts of LangGraph, each part with a contract test.

What stands here may change with a new LangGraph; ``tests/contract/test_langgraph_facts.py`` says
so at once. Nothing else in the project reads such a name.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._config import ensure_config
from langgraph._internal._constants import CONFIG_KEY_RUNTIME
from langgraph._internal._typing import MISSING
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.base import id as checkpoint_ids
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_PYDANTIC_V2
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.graph.message import push_message
from langgraph.pregel._call import CACHE, get_runnable_for_task
from langgraph.pregel._checkpoint import LATEST_VERSION as LATEST_VERSION
from langgraph.pregel._checkpoint import achannels_from_checkpoint
from langgraph.pregel._messages import StreamMessagesHandler, graph_namespace
from langgraph.runtime import Runtime
from langgraph.types import Interrupt
from ormsgpack import OPT_NON_STR_KEYS, unpackb
from pydantic import BaseModel

from capgraph.configs.context_variables import set_context_variable

T = TypeVar("T")
Checkpointer: TypeAlias = BaseCheckpointSaver[Any] | bool | None
"""Argument of ``compile``; LangGraph's own alias leaves out the type of versions."""
INTERRUPT = "__interrupt__"
"""The channel of a checkpoint's writes that holds open questions."""
RESUME = "__resume__"
"""The one that holds what was answered to a task's questions, in order."""
_OF_NO_RESULT = frozenset({INTERRUPT, RESUME, "__error__", "__error_source_node__"})
"""Those that hold what happened to a task, not what it gave."""
RETURN = "__return__"
"""The one that holds what a task inside a node gave."""
DELTA_COUNTERS = "counters_since_delta_snapshot"
"""In a checkpoint's metadata: channel to updates and checkpoints since it was saved as a whole."""
_OF_A_TASK = tuple(
    f"__pregel_{name}" for name in ("task_id", "resuming", "scratchpad", "read", "send", "call")
)
_NEXT_NODE = ("branch:to:", "__start__")


def is_task(config: Mapping[str, Any]) -> bool:
    """Tell whether a graph that is run with this configuration is run inside another's task.

    A graph that a node calls with a ``thread_id`` of its own is not: LangGraph drops the task.
    A caller could write the name of a task; only the one that is running counts.
    """
    named = (config.get("configurable") or {}).get("__pregel_task_id")
    return named is not None and named == _configurable().get("__pregel_task_id")


def forged_task_keys(config: Mapping[str, Any]) -> list[str]:
    """Name what only a running task can say of itself, where a configuration comes from none."""
    named = config.get("configurable") or {}
    return [] if is_task(config) else [name for name in _OF_A_TASK if name in named]


def outer_checkpoint(config: Mapping[str, Any]) -> str | None:
    """Return the checkpoint of the outermost graph inside whose task this configuration runs."""
    configurable = config.get("configurable") or {}
    found: Mapping[str, str] = configurable.get("checkpoint_map") or {}
    return found.get("") if is_task(config) else None


def running_checkpoints(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return namespace and id of the checkpoints on which the running superstep builds.

    That of the outermost graph is the first, that of the running one the last. There are none where
    nothing is saved before the end. A task inside a node has a namespace, but no checkpoint of its
    own: it builds on that of the graph.
    """
    configurable = config.get("configurable") or {}
    if configurable.get("__pregel_durability") == "exit":
        return []
    known: Mapping[str, str] = configurable.get("checkpoint_map") or {}
    first = {name: space for space, name in reversed([*known.items()])}
    return [(space, name) for name, space in reversed(first.items())]


def merged_config(graph: Any, config: RunnableConfig | None) -> RunnableConfig:
    """Return the configuration that a run of a graph has: its own, the caller's, the outer one's."""
    return ensure_config(graph.config, config)


def find_saver(graph: Any, config: Mapping[str, Any]) -> BaseCheckpointSaver[Any] | None:
    """Return where a run of a graph is kept: with an outer graph, or at its own saver."""
    if graph.checkpointer is False:
        return None
    own = graph.checkpointer if isinstance(graph.checkpointer, BaseCheckpointSaver) else None
    return inherited_saver(config) or own


def inherited_saver(config: Mapping[str, Any]) -> BaseCheckpointSaver[Any] | None:
    """Return the saver that an outer graph, or a server, lends to what runs inside."""
    found = (config.get("configurable") or {}).get("__pregel_checkpointer")
    return found if isinstance(found, BaseCheckpointSaver) else None


def is_same_saver(
    first: BaseCheckpointSaver[Any] | None, second: BaseCheckpointSaver[Any] | None
) -> bool:
    """Return whether two savers are one, or LangGraph's copies of it with other serializers."""
    if first is second or first is None or second is None:
        return first is second is not None
    mine, theirs = ({**vars(saver), "serde": None} for saver in (first, second))
    same = mine.keys() == theirs.keys() and all(theirs[name] is mine[name] for name in mine)
    return type(first) is type(second) and same


def cache_task(function: Any, owner: Any) -> None:
    """Have LangGraph keep what it makes of a task's function, as long as the owner lives.

    It keeps this only for functions that can be imported, and makes it anew at every call of
    others, which costs a tenth of a step. What a trace shows as input it finds out by the
    function's signature at every call; here that is one argument, ``payload``.
    """
    key = (function, True)
    CACHE[key] = made = get_runnable_for_task(function)
    vars(made)["trace_inputs"] = _argument
    weakref.finalize(owner, CACHE.pop, key, None)


def _argument(call: tuple[tuple[Any], dict[str, Any]]) -> dict[str, Any]:
    return {"payload": call[0][0]}


STRICT_RESUME = {"__pregel_strict_resume": True}
"""Configuration with which a resume that names a closed interrupt is refused."""


async def last_writer(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> str | None:
    """Name the node that wrote last to a thread, as which LangGraph changes it by hand."""
    found = await saver.aget_tuple(config)
    seen = found.checkpoint["versions_seen"] if found is not None else {}
    marks = ((mark, node) for node, marks in seen.items() for mark in marks.values())
    return max(marks, default=(None, None))[1]


def has_next_node(values: Mapping[str, Any]) -> bool:
    """Tell whether a checkpoint's values say that a node is to run next."""
    return any(name.startswith(_NEXT_NODE) for name in values)


def next_nodes(values: Mapping[str, Any]) -> list[str]:
    """Name the nodes that are to run next, of a checkpoint's values."""
    start = _NEXT_NODE[0]
    return [name.removeprefix(start) for name in values if name.startswith(start)]


def is_state_key(name: str) -> bool:
    """Tell whether a channel is a key of the state, and not LangGraph's."""
    return not name.startswith(("__", "branch:"))


def open_interrupts(writes: Any, *, include_answered: bool = False) -> list[Interrupt]:
    """Return the questions among a checkpoint's pending writes that nobody has answered.

    The question of a task stays beside what the task gave once it had the answer, until the next
    checkpoint is saved.

    Args:
        writes: The pending writes.
        include_answered: Whether those count that were answered: somebody goes back to this checkpoint.
    """
    given = () if include_answered else writes or ()
    ended = {task for task, channel, _ in given if channel not in _OF_NO_RESULT}
    return [
        item
        for task, channel, value in writes or ()
        if channel == INTERRUPT and task not in ended
        for item in value
    ]


def is_resume_by_id(answer: Any) -> bool:
    """Tell whether LangGraph takes an answer for answers by the ids of questions."""
    return isinstance(answer, dict) and all(re.fullmatch("[0-9a-f]{32}", str(k)) for k in answer)


def count_resume_values(writes: Any) -> list[tuple[str, int]]:
    """Count the answers among a checkpoint's pending writes, by task: one that did not fit stays."""
    return [
        (task, len(value) if isinstance(value, list) else 1)
        for task, channel, value in writes or ()
        if channel == RESUME
    ]


def run_input(checkpoint: CheckpointTuple) -> Mapping[str, Any] | None:
    """Return what a run was given, of the checkpoint with which it began; ``None`` for a later one."""
    if checkpoint.metadata.get("source") == "loop":
        return None
    given = checkpoint.checkpoint["channel_values"].get("__start__")
    return given if isinstance(given, Mapping) else {}


def postgres_cursor(saver: Any) -> AbstractAsyncContextManager[Any]:
    """Open a cursor of a PostgreSQL saver, apart from its own transactions."""
    cursor: AbstractAsyncContextManager[Any] = saver._cursor()
    return cursor


def advance_checkpoint_ids(checkpoint_id: str) -> None:
    """Make identities of new checkpoints sort after this one, whatever the clock says."""
    try:
        parsed = checkpoint_ids.UUID(hex=UUID(checkpoint_id).hex)
    except ValueError:
        return
    if parsed.version == 6:
        latest = checkpoint_ids._last_v6_timestamp or 0
        vars(checkpoint_ids)["_last_v6_timestamp"] = max(latest, parsed.time)


def checkpoint_id_at(seconds: float) -> str:
    """Return what sorts before every checkpoint id of a moment or later, and after all others."""
    ticks = int(seconds * 10_000_000) + 0x01B21DD213814000  # since 1582, as such ids count
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}"


def reset_task_counters() -> None:
    """Set the running task back as LangGraph's own retry does, before a body is tried again.

    Its ``interrupt()`` calls count from the first again, so that they find the answers that are
    there, and a graph that it calls goes on in the namespace that it had.
    """
    config = var_child_runnable_config.get()
    pad = ((config or {}).get("configurable") or {}).get("__pregel_scratchpad")
    if config is None or pad is None:
        return
    fresh = replace(pad, interrupt_counter=_Counter(), subgraph_counter=_Counter())
    more = {"__pregel_scratchpad": fresh, "__pregel_resuming": True}
    var_child_runnable_config.set({**config, "configurable": {**config["configurable"], **more}})


@contextmanager
def add_callbacks(*handlers: Any) -> Iterator[None]:
    """Have handlers told of the models that are called inside, beside those of the run.

    Args:
        *handlers: LangChain's callback handlers; one that the run has already is not told twice.
    """
    config = var_child_runnable_config.get()
    manager = config.get("callbacks") if config else None
    known = manager.handlers if isinstance(manager, BaseCallbackManager) else manager or []
    missing = [handler for handler in handlers if handler not in known]
    if config is None or not missing:
        yield
        return
    added: Any = [*known, *missing]
    if isinstance(manager, BaseCallbackManager):
        added = manager.copy()
        for handler in missing:
            added.add_handler(handler, inherit=True)
    told: RunnableConfig | None = {**config, "callbacks": added}
    with set_context_variable(var_child_runnable_config, told):
        yield


def has_custom_stream() -> bool:
    """Tell whether the custom stream of the graph that runs here goes anywhere.

    Where nobody asked for it LangGraph hands out a function that holds nothing.
    """
    writer = get_stream_writer()
    return getattr(writer, "__closure__", writer) is not None


def has_other_callbacks(*own_handlers: Any) -> bool:
    """Tell whether anybody besides some handlers is told of what LangChain runs here."""
    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    handlers = manager.handlers if isinstance(manager, BaseCallbackManager) else manager or ()
    return any(handler not in own_handlers for handler in handlers)


def use_runtime_context(
    context: Any, configurable: Mapping[str, Any] | None = None
) -> AbstractContextManager[None]:
    """Give the block, which is in no run, a caller's ``context=`` and ``configurable``."""
    runtime: Any = Runtime(context=context)
    config: RunnableConfig | None = {
        "configurable": {**(configurable or {}), CONFIG_KEY_RUNTIME: runtime}
    }
    return set_context_variable(var_child_runnable_config, config)


@contextmanager
def suppress_message_stream() -> Iterator[None]:
    """Keep the words of models that are called inside the block out of the ``messages`` stream."""
    config = var_child_runnable_config.get()
    manager = (config or {}).get("callbacks")
    if config is None or not isinstance(manager, BaseCallbackManager):
        yield
        return
    quiet = manager.copy()
    quiet.add_tags([TAG_NOSTREAM], inherit=True)
    told: RunnableConfig | None = {**config, "callbacks": quiet}
    with set_context_variable(var_child_runnable_config, told):
        yield


def write_message(message: AnyMessage) -> None:
    """Write a message or a piece of one to the ``messages`` stream of the current run.

    Nothing happens outside of a run, inside of :func:`held_back`, and for a message without an id.
    """
    config = var_child_runnable_config.get() or {}
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager) or TAG_NOSTREAM in manager.tags:
        return
    if message.id is not None:
        push_message(message, state_key=None)


def excludes_subgraph_messages() -> bool:
    """Return True if the messages stream of the running graph leaves out those of nested graphs.

    What a nested graph streams then has to be passed on by :func:`write_message`.
    """
    config = var_child_runnable_config.get() or {}
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager) or TAG_NOSTREAM in manager.tags:
        return False
    namespace = graph_namespace(config.get("metadata") or {})
    handlers = [one for one in manager.handlers if isinstance(one, StreamMessagesHandler)]
    return any(not one.subgraphs and namespace in ((), one.parent_ns) for one in handlers)


class _Counter:
    """Counts from 0, as LangGraph's counters do."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __call__(self) -> int:
        return next(self._count)


def _configurable() -> Mapping[str, Any]:
    config = var_child_runnable_config.get()
    return (config or {}).get("configurable") or {}


_ASKED: weakref.WeakKeyDictionary[Any, Counter[tuple[str, int]]] = weakref.WeakKeyDictionary()
"""How often the body of a running node asked for what; it ends with the run of the node."""


def count_request(name: str, attempt: int) -> int:
    """Return how often a try of the running node has asked for something, this time included.

    Args:
        name: What it asks for.
        attempt: Which try of the node it is; a retry of LangGraph's own keeps the rest.
    """
    pad = _configurable().get("__pregel_scratchpad")
    if pad is None:
        return 1
    # The one part of it that belongs to this run of the node alone and can be referred to weakly.
    asked = _ASKED.setdefault(pad.get_null_resume, Counter())
    asked[name, attempt] += 1
    return asked[name, attempt]


_HELD_BY_RUN: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def get_node_run_value(key: Any, make: Callable[[], T]) -> T | None:
    """Return an object that ends with the run of the running node; ``None`` outside of one.

    Args:
        key: Names the object.
        make: Makes it when it is first asked for.
    """
    pad = _configurable().get("__pregel_scratchpad")
    if pad is None:
        return None
    held = _HELD_BY_RUN.setdefault(pad.get_null_resume, {})
    found: T = held[key] if key in held else held.setdefault(key, make())
    return found


def running_graph_channels() -> frozenset[str] | None:
    """Return the state keys of the graph whose task is running; ``None`` when they are not known."""
    read = _configurable().get("__pregel_read")
    args: Any = getattr(read, "args", ())
    if len(args) < 2 or not isinstance(args[1], Mapping):
        return None
    return frozenset(name for name in args[1] if is_state_key(name))


def running_graph_messages() -> Sequence[Any]:
    """Return the messages in the state of the graph whose task is running, if it has any."""
    known = "messages" in (running_graph_channels() or ())
    found: Sequence[Any] = _configurable()["__pregel_read"]("messages") if known else ()
    return found


def graph_keys(graph: Any) -> tuple[list[str], list[str]] | None:
    """Return the keys that a compiled graph takes and leaves; ``None`` for one without a state."""
    builder = getattr(graph, "builder", None)
    if builder is None:
        return None
    return [*builder.schemas[builder.input_schema]], [*builder.schemas[builder.output_schema]]


def count_available_answers() -> int:
    """Return how many answers the running task has been given, a new one among them."""
    pad = _configurable().get("__pregel_scratchpad")
    if pad is None:
        return 0
    # One without a name stays where it was written, also when later ones have names.
    unnamed = not _configurable().get("__pregel_resume_map")
    return len(pad.resume) + (unnamed and pad.get_null_resume(False) is not None)


def is_resuming() -> bool:
    """Tell whether the running graph goes on with a run that has begun before."""
    return bool(_configurable().get("__pregel_resuming"))


def count_consumed_answers() -> int:
    """Return how many answers the running task took in earlier runs; a new one is not among them.

    Of an answer without a name nobody can tell whose it is before an ``interrupt()`` takes it.
    """
    pad = _configurable().get("__pregel_scratchpad")
    return 0 if pad is None else len(pad.resume)


def outer_task_namespace() -> str:
    """Return the namespace of the task of an outer graph that runs this one; empty for none."""
    namespace = str(_configurable().get("checkpoint_ns") or "")
    return namespace.rpartition("|")[0]


_MESSAGES = {
    (cls.__module__, cls.__name__): (cls, set(cls.model_fields))
    for cls in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
}
# A thread has hundreds of messages: how a slot is set is looked up once.
_set_fields, _set_names, _set_more, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in (
        "__dict__",
        "__pydantic_fields_set__",
        "__pydantic_extra__",
        "__pydantic_private__",
    )
)


def unpack_checkpoint(data: bytes, rebuild: Callable[[int, bytes], Any]) -> Any:
    """Turn msgpack of LangGraph's serializer into a value.

    The messages of a thread are most of what a turn reads. They were valid when they were written,
    so one that has all its fields, and no others, is put together without being checked again.

    Args:
        data: What was written.
        rebuild: Makes every other object: the serializer's own.
    """

    def made(code: int, inner: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(unpackb(inner, ext_hook=made, option=OPT_NON_STR_KEYS))
        if code == EXT_PYDANTIC_V2:
            module, name, fields, _ = unpackb(inner, ext_hook=made, option=OPT_NON_STR_KEYS)
            known = _MESSAGES.get((module, name))
            if known is not None and fields.keys() == known[1]:
                message = object.__new__(known[0])
                _set_fields(message, fields)
                _set_names(message, known[1].copy())
                _set_more(message, {})
                _set_private(message, None)
                return message
        return rebuild(code, inner)

    return unpackb(data, ext_hook=made, option=OPT_NON_STR_KEYS)


def delta_channel_names(checkpoint: CheckpointTuple) -> set[str]:
    """Name the keys of a checkpoint whose values follow from earlier checkpoints."""
    counted: Any = checkpoint.metadata.get(DELTA_COUNTERS) or {}
    return set(counted)


def replay_channel(channel: DeltaChannel[Any], history: DeltaChannelHistory) -> Any:
    """Return what a channel holds after what was written to it."""
    made = channel.from_checkpoint(history.get("seed", MISSING))
    made.replay_writes(history["writes"])
    return made.get()


def plain_values(checkpoint: CheckpointTuple) -> dict[str, Any]:
    """Return the values of a checkpoint as a node would see them."""
    return {
        name: value.value if isinstance(value, _DeltaSnapshot) else value
        for name, value in checkpoint.checkpoint["channel_values"].items()
    }


async def materialize_deltas(
    saver: BaseCheckpointSaver[Any],
    saved: CheckpointTuple,
    channels: Mapping[str, DeltaChannel[Any]],
) -> CheckpointTuple:
    """Return a checkpoint that holds the values of delta channels, and needs none before it."""
    versions = saved.checkpoint["channel_versions"]
    missing = {
        name: channel
        for name, channel in channels.items()
        if name in versions and name not in saved.checkpoint["channel_values"]
    }
    read, _ = await achannels_from_checkpoint(
        missing, saved.checkpoint, saver=saver, config=saved.config
    )
    values = {**saved.checkpoint["channel_values"]}
    versions = {**versions}
    for name, channel in read.items():
        values[name] = _DeltaSnapshot(channel.get())
        # PostgreSQL writes a value once for each version; no node is started by such a key.
        versions[name] = saver.get_next_version(versions[name], None)
    checkpoint: Any = {**saved.checkpoint, "channel_values": values, "channel_versions": versions}
    metadata: Any = dict(saved.metadata)
    counters = metadata.pop(DELTA_COUNTERS, None) or {}
    if rest := {name: count for name, count in counters.items() if name not in channels}:
        metadata[DELTA_COUNTERS] = rest
    return saved._replace(checkpoint=checkpoint, metadata=metadata)
