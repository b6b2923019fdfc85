"""Access to private and undocumented parts of LangGraph.

These parts may change with a new version of LangGraph. ``tests/contract/test_langgraph_facts.py``
detects such changes. No other module uses them.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
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
"""Type of the ``checkpointer`` argument of ``compile``."""
INTERRUPT = "__interrupt__"
"""Channel of a checkpoint's pending writes that contains open interrupts."""
RESUME = "__resume__"
"""Channel of the values that resumed a task's interrupts, in order."""
_NON_RESULT_CHANNELS = frozenset({INTERRUPT, RESUME, "__error__", "__error_source_node__"})
"""Channels of events in a task. They are not its result."""
RETURN = "__return__"
"""Channel of the return value of a task inside a node."""
DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Metadata of a checkpoint: updates and checkpoints of each channel since its last full snapshot."""
_TASK_KEYS = tuple(
    f"__pregel_{name}" for name in ("task_id", "resuming", "scratchpad", "read", "send", "call")
)
_NEXT_NODE = ("branch:to:", "__start__")


def is_task(config: Mapping[str, Any]) -> bool:
    """Return True if a graph with this configuration runs inside a task of another graph.

    A graph that a node invokes with a separate ``thread_id`` does not count. The task ID in the
    configuration must match the running task, because callers could forge it.
    """
    named = (config.get("configurable") or {}).get("__pregel_task_id")
    return named is not None and named == _configurable().get("__pregel_task_id")


def forged_task_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the task-only configuration keys that were set outside a running task.

    Only a running LangGraph task may set these keys, so they are forged in any other
    configuration.
    """
    named = config.get("configurable") or {}
    return [] if is_task(config) else [name for name in _TASK_KEYS if name in named]


def outer_checkpoint(config: Mapping[str, Any]) -> str | None:
    """Return the outermost graph's checkpoint ID for a nested graph's configuration.

    The result is None if the graph does not run inside another graph's task.
    """
    configurable = config.get("configurable") or {}
    found: Mapping[str, str] = configurable.get("checkpoint_map") or {}
    return found.get("") if is_task(config) else None


def running_checkpoints(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the namespace and ID of each checkpoint on which the running superstep is based.

    The list begins with the outermost graph and ends with the running one. It is empty if
    nothing is saved before the end of the run. A task inside a node has a namespace but no
    checkpoint.
    """
    configurable = config.get("configurable") or {}
    if configurable.get("__pregel_durability") == "exit":
        return []
    known: Mapping[str, str] = configurable.get("checkpoint_map") or {}
    first = {name: space for space, name in reversed([*known.items()])}
    return [(space, name) for name, space in reversed(first.items())]


def merged_config(graph: Any, config: RunnableConfig | None) -> RunnableConfig:
    """Merge the configurations of the graph, its caller, and any outer graph for a run."""
    return ensure_config(graph.config, config)


def find_saver(graph: Any, config: Mapping[str, Any]) -> BaseCheckpointSaver[Any] | None:
    """Return the checkpoint saver for a run, preferring an outer graph's saver.

    The graph's own saver is the fallback. The result is None if the graph disables checkpoints.
    """
    if graph.checkpointer is False:
        return None
    own = graph.checkpointer if isinstance(graph.checkpointer, BaseCheckpointSaver) else None
    return inherited_saver(config) or own


def inherited_saver(config: Mapping[str, Any]) -> BaseCheckpointSaver[Any] | None:
    """Return the checkpoint saver that an outer graph or a server passes to nested graphs."""
    found = (config.get("configurable") or {}).get("__pregel_checkpointer")
    return found if isinstance(found, BaseCheckpointSaver) else None


def is_same_saver(
    first: BaseCheckpointSaver[Any] | None, second: BaseCheckpointSaver[Any] | None
) -> bool:
    """Return True if two checkpoint savers are the same apart from their serializers.

    LangGraph copies a saver in order to replace its serializer.
    """
    if first is second or first is None or second is None:
        return first is second is not None
    mine, theirs = ({**vars(saver), "serde": None} for saver in (first, second))
    same = mine.keys() == theirs.keys() and all(theirs[name] is mine[name] for name in mine)
    return type(first) is type(second) and same


def cache_task(function: Any, owner: Any) -> None:
    """Cache LangGraph's runnable for a task function as long as the owner exists.

    LangGraph caches runnables only for importable functions. For other functions, it creates
    them again at every call, which takes a tenth of a step's time. The trace input is computed
    without inspecting the signature, because the function takes a single argument, ``payload``.
    """
    key = (function, True)
    CACHE[key] = made = get_runnable_for_task(function)
    vars(made)["trace_inputs"] = _argument
    weakref.finalize(owner, CACHE.pop, key, None)


def _argument(call: tuple[tuple[Any], dict[str, Any]]) -> dict[str, Any]:
    return {"payload": call[0][0]}


RUNTIME_KEY: str = CONFIG_KEY_RUNTIME
"""Key of LangGraph's ``Runtime`` in a configuration."""
STRICT_RESUME = {"__pregel_strict_resume": True}
"""Configuration with which a resume that names a closed interrupt is refused."""


async def last_writer(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> str | None:
    """Return the name of the node that last wrote to a thread, or None.

    LangGraph attributes manual state updates to this node.
    """
    found = await saver.aget_tuple(config)
    seen = found.checkpoint["versions_seen"] if found is not None else {}
    marks = ((mark, node) for node, marks in seen.items() for mark in marks.values())
    return max(marks, default=(None, None))[1]


def has_next_node(values: Mapping[str, Any]) -> bool:
    """Return True if a checkpoint's values schedule a node to run next."""
    return any(name.startswith(_NEXT_NODE) for name in values)


def next_nodes(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the nodes that a checkpoint's values schedule to run next."""
    start = _NEXT_NODE[0]
    return [name.removeprefix(start) for name in values if name.startswith(start)]


def is_state_key(name: str) -> bool:
    """Return True if a channel is a state key rather than an internal LangGraph channel."""
    return not name.startswith(("__", "branch:"))


def open_interrupts(writes: Any, *, include_answered: bool = False) -> list[Interrupt]:
    """Return the unanswered interrupts in a checkpoint's pending writes.

    An answered interrupt stays in the writes, next to its task's result, until the next
    checkpoint.

    Args:
        writes: The pending writes.
        include_answered: True to include answered interrupts as well, for a run that returns to
            this checkpoint.
    """
    given = () if include_answered else writes or ()
    ended = {task for task, channel, _ in given if channel not in _NON_RESULT_CHANNELS}
    return [
        item
        for task, channel, value in writes or ()
        if channel == INTERRUPT and task not in ended
        for item in value
    ]


def is_resume_by_id(answer: Any) -> bool:
    """Return True if LangGraph treats a resume value as a mapping from interrupt ID to answer."""
    return isinstance(answer, dict) and all(re.fullmatch("[0-9a-f]{32}", str(k)) for k in answer)


def count_resume_values(writes: Any) -> list[tuple[str, int]]:
    """Count the resume values of each task in a checkpoint's pending writes.

    Invalid values stay in the writes and are counted as well.
    """
    return [
        (task, len(value) if isinstance(value, list) else 1)
        for task, channel, value in writes or ()
        if channel == RESUME
    ]


def run_input(checkpoint: CheckpointTuple) -> Mapping[str, Any] | None:
    """Return the input of a run from its first checkpoint, or None for a later checkpoint."""
    if checkpoint.metadata.get("source") == "loop":
        return None
    given = checkpoint.checkpoint["channel_values"].get("__start__")
    return given if isinstance(given, Mapping) else {}


def postgres_cursor(saver: Any) -> AbstractAsyncContextManager[Any]:
    """Open a database cursor on a PostgreSQL saver, outside the saver's own transactions."""
    cursor: AbstractAsyncContextManager[Any] = saver._cursor()
    return cursor


def advance_checkpoint_ids(checkpoint_id: str) -> None:
    """Ensure that new checkpoint IDs sort after a given ID, even if the clock was set back."""
    try:
        parsed = checkpoint_ids.UUID(hex=UUID(checkpoint_id).hex)
    except ValueError:
        return
    if parsed.version == 6:
        latest = checkpoint_ids._last_v6_timestamp or 0
        vars(checkpoint_ids)["_last_v6_timestamp"] = max(latest, parsed.time)


def checkpoint_id_at(seconds: float) -> str:
    """Return a checkpoint ID prefix that marks a point in time (Unix seconds).

    It sorts after the IDs of all earlier checkpoints and before the IDs of all later ones.
    """
    ticks = int(seconds * 10_000_000) + 0x01B21DD213814000  # UUID time starts in 1582
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}"


def reset_task_counters() -> None:
    """Reset the running task's interrupt and subgraph counters, as a LangGraph retry does.

    ``interrupt()`` calls are then counted from the first one again, so they find their existing
    answers. Nested graphs keep their namespaces.
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
    """Add callback handlers to all model calls within the ``with`` block.

    Args:
        *handlers: LangChain callback handlers. Handlers that the run already has are skipped.
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


@contextmanager
def replace_configurable(removed: Collection[str], added: Mapping[str, Any]) -> Iterator[None]:
    """Replace keys in the running graph's ``configurable`` within the ``with`` block.

    Args:
        removed: Keys to remove.
        added: Keys to add.
    """
    config = var_child_runnable_config.get()
    if config is None:
        yield
        return
    others = {k: v for k, v in (config.get("configurable") or {}).items() if k not in removed}
    changed: RunnableConfig | None = {**config, "configurable": {**others, **added}}
    with set_context_variable(var_child_runnable_config, changed):
        yield


def has_custom_stream() -> bool:
    """Return True if the running graph's custom stream has a consumer.

    Without a consumer, LangGraph supplies a stream writer that has no closure.
    """
    writer = get_stream_writer()
    return getattr(writer, "__closure__", writer) is not None


def has_other_callbacks(*own_handlers: Any) -> bool:
    """Return True if the current run has callback handlers besides the given ones."""
    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    handlers = manager.handlers if isinstance(manager, BaseCallbackManager) else manager or ()
    return any(handler not in own_handlers for handler in handlers)


def use_runtime_context(
    context: Any, configurable: Mapping[str, Any] | None = None
) -> AbstractContextManager[None]:
    """Return a context manager that sets ``context`` and ``configurable`` outside a graph run."""
    runtime: Any = Runtime(context=context)
    config: RunnableConfig | None = {
        "configurable": {**(configurable or {}), CONFIG_KEY_RUNTIME: runtime}
    }
    return set_context_variable(var_child_runnable_config, config)


@contextmanager
def suppress_message_stream() -> Iterator[None]:
    """Exclude model calls within the ``with`` block from the ``messages`` stream."""
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
    """Write a message or a message chunk to the ``messages`` stream of the current run.

    The message is dropped outside a run, inside :func:`suppress_message_stream`, or if it has
    no ID.
    """
    config = var_child_runnable_config.get() or {}
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager) or TAG_NOSTREAM in manager.tags:
        return
    if message.id is not None:
        push_message(message, state_key=None)


def exclude_from_message_stream(message: AnyMessage) -> None:
    """Exclude a message from the ``messages`` stream when the running node returns it."""
    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    message.id = message.id or str(uuid4())
    for handler in manager.handlers if isinstance(manager, BaseCallbackManager) else ():
        if isinstance(handler, StreamMessagesHandler):
            handler.seen.add(message.id)


def excludes_subgraph_messages() -> bool:
    """Return True if the running graph's ``messages`` stream omits nested graphs' messages.

    Messages of nested graphs must then be forwarded with :func:`write_message`.
    """
    config = var_child_runnable_config.get() or {}
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager) or TAG_NOSTREAM in manager.tags:
        return False
    namespace = graph_namespace(config.get("metadata") or {})
    handlers = [one for one in manager.handlers if isinstance(one, StreamMessagesHandler)]
    return any(not one.subgraphs and namespace in ((), one.parent_ns) for one in handlers)


class _Counter:
    """Counter from 0, like LangGraph's own."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __call__(self) -> int:
        return next(self._count)


def _configurable() -> Mapping[str, Any]:
    config = var_child_runnable_config.get()
    return (config or {}).get("configurable") or {}


_REQUEST_COUNTS: weakref.WeakKeyDictionary[Any, Counter[tuple[str, int]]] = (
    weakref.WeakKeyDictionary()
)
"""Number of times that the body of a running node requested each name. It ends with the node's run."""


def count_request(name: str, attempt: int) -> int:
    """Count a request of the running node, and return the count for the current attempt.

    Args:
        name: Name of the request.
        attempt: Number of the node's attempt. Retries by LangGraph do not reset this number.
    """
    pad = _configurable().get("__pregel_scratchpad")
    if pad is None:
        return 1
    # This attribute belongs to one run of the node and supports weak references.
    counts = _REQUEST_COUNTS.setdefault(pad.get_null_resume, Counter())
    counts[name, attempt] += 1
    return counts[name, attempt]


_NODE_RUN_VALUES: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def get_node_run_value(key: Any, make: Callable[[], T]) -> T | None:
    """Return a value that is cached while the current node runs, or None outside a node.

    Args:
        key: Cache key of the value.
        make: Function that creates the value on first use.
    """
    pad = _configurable().get("__pregel_scratchpad")
    if pad is None:
        return None
    values = _NODE_RUN_VALUES.setdefault(pad.get_null_resume, {})
    value: T = values[key] if key in values else values.setdefault(key, make())
    return value


def running_graph_channels() -> frozenset[str] | None:
    """Return the state keys of the graph whose task is running, or None if they are unknown."""
    read = _configurable().get("__pregel_read")
    args: Any = getattr(read, "args", ())
    if len(args) < 2 or not isinstance(args[1], Mapping):
        return None
    return frozenset(name for name in args[1] if is_state_key(name))


def running_graph_messages() -> Sequence[Any]:
    """Return the messages in the running graph's state, or an empty sequence without any."""
    known = "messages" in (running_graph_channels() or ())
    found: Sequence[Any] = _configurable()["__pregel_read"]("messages") if known else ()
    return found


def graph_keys(graph: Any) -> tuple[list[str], list[str]] | None:
    """Return the input and output keys of a compiled graph, or None if it has no state."""
    builder = getattr(graph, "builder", None)
    if builder is None:
        return None
    return [*builder.schemas[builder.input_schema]], [*builder.schemas[builder.output_schema]]


def count_available_answers() -> int:
    """Return how many resume answers the running task has received, including a new answer."""
    pad = _configurable().get("__pregel_scratchpad")
    if pad is None:
        return 0
    # An answer without an ID stays where it was written, even if later answers have IDs.
    unnamed = not _configurable().get("__pregel_resume_map")
    return len(pad.resume) + (unnamed and pad.get_null_resume(False) is not None)


def is_resuming() -> bool:
    """Return True if the running graph is resuming an earlier run."""
    return bool(_configurable().get("__pregel_resuming"))


def count_consumed_answers() -> int:
    """Return how many resume answers the running task has consumed in earlier runs.

    A new answer is not counted, because an answer without an ID has no recipient until an
    ``interrupt()`` call consumes it.
    """
    pad = _configurable().get("__pregel_scratchpad")
    return 0 if pad is None else len(pad.resume)


def outer_task_namespace() -> str:
    """Return the namespace of the outer task that runs this graph, or an empty string."""
    namespace = str(_configurable().get("checkpoint_ns") or "")
    return namespace.rpartition("|")[0]


_MESSAGES = {
    (cls.__module__, cls.__name__): (cls, set(cls.model_fields))
    for cls in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
}
_CONTAINERS = {dict, list}
# Setters of pydantic's slots, looked up once because a thread has hundreds of messages.
_set_fields, _set_names, _set_more, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in (
        "__dict__",
        "__pydantic_fields_set__",
        "__pydantic_extra__",
        "__pydantic_private__",
    )
)


def _create_message(cls: type[BaseMessage], fields: dict[str, Any], names: set[str]) -> BaseMessage:
    message = object.__new__(cls)
    _set_fields(message, fields)
    _set_names(message, names)  # complete, so an assignment never adds to it
    _set_more(message, {})
    _set_private(message, None)
    return message


def copy_message_fields(message: Any) -> dict[str, Any] | None:
    """Copy the fields of a LangChain message, or return ``None`` for any other class."""
    cls = type(message)
    known = _MESSAGES.get((cls.__module__, cls.__name__))
    fields = getattr(message, "__dict__", {})
    if known is None or known[0] is not cls or fields.keys() != known[1]:
        return None
    return {
        name: value.copy() if type(value) in _CONTAINERS else value
        for name, value in fields.items()
    }


def restore_message(message: BaseMessage, fields: dict[str, Any]) -> BaseMessage:
    """Restore a message from fields that :func:`copy_message_fields` returned.

    The new message has the same class as ``message``.
    """
    own = {n: value.copy() if type(value) in _CONTAINERS else value for n, value in fields.items()}
    return _create_message(type(message), own, set(fields))


def unpack_checkpoint(data: bytes, rebuild: Callable[[int, bytes], Any]) -> Any:
    """Deserialize msgpack data written by LangGraph's serializer.

    Messages make up most of the data that a turn reads. They were validated when they were
    written, so messages with exactly the known fields are created without validation.

    Args:
        data: The serialized data.
        rebuild: Serializer function that creates all other objects.
    """

    def create(code: int, inner: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(unpackb(inner, ext_hook=create, option=OPT_NON_STR_KEYS))
        if code == EXT_PYDANTIC_V2:
            module, name, fields, _ = unpackb(inner, ext_hook=create, option=OPT_NON_STR_KEYS)
            known = _MESSAGES.get((module, name))
            if known is not None and fields.keys() == known[1]:
                return _create_message(known[0], fields, known[1])
        return rebuild(code, inner)

    return unpackb(data, ext_hook=create, option=OPT_NON_STR_KEYS)


def delta_channel_names(checkpoint: CheckpointTuple) -> set[str]:
    """Return the state keys whose values a checkpoint stores as deltas to earlier checkpoints."""
    counted: Any = checkpoint.metadata.get(DELTA_COUNTERS) or {}
    return set(counted)


def replay_channel(channel: DeltaChannel[Any], history: DeltaChannelHistory) -> Any:
    """Return the value of a delta channel after replaying its stored writes."""
    restored = channel.from_checkpoint(history.get("seed", MISSING))
    restored.replay_writes(history["writes"])
    return restored.get()


def plain_values(checkpoint: CheckpointTuple) -> dict[str, Any]:
    """Return a checkpoint's channel values as nodes see them, with delta snapshots unwrapped."""
    return {
        name: value.value if isinstance(value, _DeltaSnapshot) else value
        for name, value in checkpoint.checkpoint["channel_values"].items()
    }


async def materialize_deltas(
    saver: BaseCheckpointSaver[Any],
    saved: CheckpointTuple,
    channels: Mapping[str, DeltaChannel[Any]],
) -> CheckpointTuple:
    """Return a checkpoint with its delta channels expanded to their full values.

    The returned checkpoint can be read without any earlier checkpoint.
    """
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
        # PostgreSQL stores one value per version, so the version must change. These keys start no
        # node.
        versions[name] = saver.get_next_version(versions[name], None)
    checkpoint: Any = {**saved.checkpoint, "channel_values": values, "channel_versions": versions}
    metadata: Any = dict(saved.metadata)
    counters = metadata.pop(DELTA_COUNTERS, None) or {}
    if rest := {name: count for name, count in counters.items() if name not in channels}:
        metadata[DELTA_COUNTERS] = rest
    return saved._replace(checkpoint=checkpoint, metadata=metadata)
