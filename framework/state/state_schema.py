"""Reads a state class: its keys, how their writes come together, and how long they live.

What a state class says in its annotations is the one table of state keys. The graph's schema, the
reset at the start of a turn, what a caller may send and the documentation follow from it.
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
_READ: WeakKeyDictionary[type[Any], StateSchema] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Key:
    """Says about a state key what its type does not: ``Annotated[T, Key(…), reducer]``.

    Attributes:
        description: What it holds.
        writer: Who writes it.
        lifetime: ``turn``: emptied when the next turn begins; ``thread``: kept.
        from_caller: Whether a caller may send it.
    """

    description: str = ""
    writer: str = ""
    lifetime: Lifetime = "thread"
    from_caller: bool = False


CallerInput: Final = Key(writer="the caller", from_caller=True)
"""Marks a key of one's own state class that a caller may send: ``Annotated[T, CallerInput]``."""
TurnScoped: Final = Key(lifetime="turn")
"""Marks a key of one's own state class that is emptied when a turn begins."""


class StateKey(NamedTuple):
    """One key of a state.

    Attributes:
        name: The key.
        type: Its type, without annotations.
        reducer: What brings parallel writes together: a function or a LangGraph channel; ``None``
            when the last write wins and two at once are an error.
        metadata: Lifetime, writer and meaning.
    """

    name: str
    type: Any
    reducer: Any
    metadata: Key

    @property
    def empty_value(self) -> Any:
        """What it holds when nothing has been written: ``False``, 0, an empty container or ``None``."""
        kind = get_origin(self.type) or self.type
        if kind in (Union, UnionType):
            return None
        if self.reducer is not None or kind in (bool, int, float):
            return kind() if isinstance(kind, type) else None
        return None

    def reset(self) -> Any:
        """Return the write that empties it."""
        return Overwrite(self.empty_value) if self.reducer is not None else self.empty_value


class StateSchema:
    """The keys of a state class: ``AgentState`` or a subclass with keys of one's own.

    Keys of one's own live as long as their thread, as everywhere in LangGraph, unless they are
    marked ``TurnScoped``; a caller may send those marked ``CallerInput``. The reducer stands last.

    Args:
        cls: A ``TypedDict`` class.

    Raises:
        ConfigurationError: An annotation cannot be used.

    >>> from capgraph.state import AgentState
    >>> schema = StateSchema.of(AgentState)
    >>> sorted(schema.caller_keys)
    ['agent_control', 'capability_context_data', 'messages', 'planning_execution_plan']
    >>> schema.reset({"messages": ["kept"], "task_current_task": "Sing", "planning_history": [{}]})
    {'task_current_task': None, 'planning_history': Overwrite(value=[], type='__overwrite__')}
    """

    def __init__(self, cls: type[Any]) -> None:
        hints = typing_hints(cls, include_extras=True)
        self.keys: Mapping[str, StateKey] = {
            name: _read(cls, name, hint) for name, hint in hints.items()
        }

    @classmethod
    def of(cls, state: type[Any]) -> StateSchema:
        """Return the keys of a state class, read once."""
        found = _READ.get(state)
        if found is None:
            found = _READ[state] = cls(state)
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """Every key."""
        return frozenset(self.keys)

    @cached_property
    def reduced_keys(self) -> frozenset[str]:
        """Keys that parallel steps may write."""
        return frozenset(name for name, key in self.keys.items() if key.reducer is not None)

    @cached_property
    def thread_keys(self) -> frozenset[str]:
        """Keys that live as long as their thread."""
        return frozenset(n for n, key in self.keys.items() if key.metadata.lifetime == "thread")

    @cached_property
    def caller_keys(self) -> frozenset[str]:
        """Keys that a caller may send."""
        return frozenset(name for name, key in self.keys.items() if key.metadata.from_caller)

    @cached_property
    def one_turn_caller_keys(self) -> frozenset[str]:
        """Keys of one's own that a caller sends for one turn: emptied where they come in."""
        return self.caller_keys - self.thread_keys - {"planning_execution_plan"}

    @cached_property
    def _of_turn(self) -> tuple[StateKey, ...]:
        return tuple(key for name, key in self.keys.items() if name not in self.thread_keys)

    def reset(self, state: Mapping[str, Any], keep: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the update that begins a turn: everything empty but what survives.

        Args:
            state: The state as the last turn left it; what is empty is not written again.
            keep: Keys to leave alone, such as a plan that the caller brought.
        """
        return {
            key.name: key.reset()
            for key in self._of_turn
            if key.name not in keep and state.get(key.name)
        }

    def to_markdown(self) -> str:
        """Return the keys as a table in Markdown."""
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
            f"The reducer of {cls.__name__}.{name} does not stand last, so LangGraph would not see"
            f" it. Fix: write Annotated[{getattr(kind, '__name__', kind)}, CallerInput, reducer]."
        )
    reducer = channels[0] if channels else marks[-1] if callable(marks[-1]) else None
    key = Key(
        description=next((one.description for one in keys if one.description), ""),
        writer=next((one.writer for one in keys if one.writer), ""),
        lifetime="turn" if any(one.lifetime == "turn" for one in keys) else "thread",
        from_caller=any(one.from_caller for one in keys),
    )
    return StateKey(name, kind, reducer, key)
