"""Schema of a state class: its keys, their reducers, and their lifetimes.

The annotations of a state class are the only source. The schema of the graph, the reset at the start
of a turn, the keys that callers may send, and the documentation are derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)
from typing import get_type_hints as typing_hints
from weakref import WeakKeyDictionary

from langgraph.channels.base import BaseChannel
from langgraph.types import Overwrite

from capgraph.base.errors import ConfigurationError

Lifetime = Literal["turn", "thread"]
_SCHEMAS: WeakKeyDictionary[type[Any], StateSchema] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Key:
    """Metadata of a state key, declared as ``Annotated[T, Key(…), reducer]``.

    Attributes:
        description: Content of the key.
        writer: Name of the node that writes the key.
        lifetime: ``turn`` (reset when the next turn begins) or ``thread``.
        from_caller: True if callers may send a value for the key.
    """

    description: str = ""
    writer: str = ""
    lifetime: Lifetime = "thread"
    from_caller: bool = False


CallerInput: Final = Key(writer="the caller", from_caller=True)
"""Marks a custom state key that callers may send: ``Annotated[T, CallerInput]``."""
TurnScoped: Final = Key(lifetime="turn")
"""Marks a custom state key that is reset when a turn begins."""


class StateKey(NamedTuple):
    """State key that was read from an annotation of a state class.

    Attributes:
        name: Name of the key.
        type: Type of the value, without ``Annotated`` metadata.
        reducer: Function or LangGraph channel that merges parallel writes. None if a parallel write
            is an error.
        metadata: Description, writer, and lifetime.
    """

    name: str
    type: Any
    reducer: Any
    metadata: Key

    @property
    def empty_value(self) -> Any:
        """Initial value of the state key: ``False``, 0, an empty container, or ``None``."""
        kind = get_origin(self.type) or self.type
        if kind in (Union, UnionType):
            return None
        if self.reducer is not None or kind in (bool, int, float):
            return kind() if isinstance(kind, type) else None
        return None

    def reset(self) -> Any:
        """Return the value that resets the state key to its initial value when written."""
        return Overwrite(self.empty_value) if self.reducer is not None else self.empty_value


class StateSchema:
    """Schema of a state class, which is ``AgentState`` or a subclass with additional keys.

    As in LangGraph, the keys of a subclass are thread-scoped, unless they are marked
    ``TurnScoped``. Callers may send keys that are marked ``CallerInput``. A reducer must be the
    last annotation.

    Args:
        cls: A ``TypedDict`` class.

    Raises:
        ConfigurationError: An annotation is invalid.

    >>> from capgraph.state import AgentState
    >>> schema = StateSchema.from_class(AgentState)
    >>> sorted(schema.caller_keys)
    ['agent_control', 'capability_context_data', 'execution_answer_schema', 'messages', 'planning_execution_plan']
    >>> schema.reset({"messages": ["kept"], "task_current_task": "Sing", "planning_history": [{}]})
    {'task_current_task': None, 'planning_history': Overwrite(value=[], type='__overwrite__')}
    """

    def __init__(self, cls: type[Any]) -> None:
        hints = typing_hints(cls, include_extras=True)
        self.keys: Mapping[str, StateKey] = {
            name: _read(cls, name, hint) for name, hint in hints.items()
        }

    @classmethod
    def from_class(cls, state: type[Any]) -> StateSchema:
        """Return the schema of a state class, which is cached after the first call."""
        schema = _SCHEMAS.get(state)
        if schema is None:
            schema = _SCHEMAS[state] = cls(state)
        return schema

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all keys."""
        return frozenset(self.keys)

    @cached_property
    def reduced_keys(self) -> frozenset[str]:
        """Names of the state keys with a reducer, which parallel steps may write."""
        return frozenset(name for name, key in self.keys.items() if key.reducer is not None)

    @cached_property
    def thread_keys(self) -> frozenset[str]:
        """Thread-scoped keys."""
        return frozenset(n for n, key in self.keys.items() if key.metadata.lifetime == "thread")

    @cached_property
    def caller_keys(self) -> frozenset[str]:
        """Keys that callers may send."""
        return frozenset(name for name, key in self.keys.items() if key.metadata.from_caller)

    @cached_property
    def one_turn_caller_keys(self) -> frozenset[str]:
        """Turn-scoped state keys that callers may send, except the plan.

        These keys are reset when new input arrives.
        """
        return self.caller_keys - self.thread_keys - {"planning_execution_plan"}

    @cached_property
    def _turn_keys(self) -> tuple[StateKey, ...]:
        return tuple(key for name, key in self.keys.items() if name not in self.thread_keys)

    def reset(self, state: Mapping[str, Any], keep: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the state update that resets all turn-scoped keys at the start of a turn.

        Args:
            state: State at the end of the last turn. Empty keys are not written.
            keep: Keys to keep, such as a plan that the caller sent.
        """
        return {
            key.name: key.reset()
            for key in self._turn_keys
            if key.name not in keep and state.get(key.name)
        }

    def to_markdown(self) -> str:
        """Return the keys as a Markdown table."""
        lines = ["| key | holds | lives | written by | parallel writes |", "|---|---|---|---|---|"]
        for name, key in self.keys.items():
            merged = "merged" if key.reducer is not None else "-"
            writer = (
                "the caller and nodes" if key.metadata.from_caller else key.metadata.writer or "-"
            )
            lines.append(
                f"| `{name}` | {key.metadata.description} | {key.metadata.lifetime} | {writer} | {merged} |"
            )
        return "\n".join(lines)


def _read(cls: type[Any], name: str, hint: Any) -> StateKey:
    while get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    if get_origin(hint) is not Annotated:
        return StateKey(name, hint, None, Key())
    kind, *marks = get_args(hint)
    while get_origin(kind) in (Required, NotRequired):
        (kind,) = get_args(kind)
    keys = [mark for mark in marks if isinstance(mark, Key)]
    channels = [mark for mark in marks if isinstance(mark, BaseChannel)]
    if any(callable(mark) and not isinstance(mark, BaseChannel) for mark in marks[:-1]):
        raise ConfigurationError(
            f"The reducer of {cls.__name__}.{name} is not the last annotation: LangGraph would"
            " ignore it.",
            fix=f"Write Annotated[{getattr(kind, '__name__', kind)}, CallerInput, reducer].",
        )
    reducer = channels[0] if channels else marks[-1] if callable(marks[-1]) else None
    key = Key(
        description=next((one.description for one in keys if one.description), ""),
        writer=next((one.writer for one in keys if one.writer), ""),
        lifetime="turn" if any(one.lifetime == "turn" for one in keys) else "thread",
        from_caller=any(one.from_caller for one in keys),
    )
    return StateKey(name, kind, reducer, key)
