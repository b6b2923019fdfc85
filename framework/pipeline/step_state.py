"""The state as a capability sees it: to read, never to write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from capgraph.base.errors import CapabilityError
from capgraph.helpers.plain_data import copy_plain

_CONTEXT_LEVELS = 2


class StepState(Mapping[str, Any]):
    """Hands out copies, made when a key is first read.

    What a capability changed in place would otherwise be seen by the steps beside it, and saved
    although the step failed. A key that nobody reads costs nothing, however large it is.

    Args:
        state: The state when the step began.
        levels: How many levels below are opened key by key as well; context data has two (type
            and key).
        missing_keys: Keys that stayed with the turn, which runs on another worker.

    >>> state = {"ui_captured_figures": ["a.png"]}
    >>> StepState(state)["ui_captured_figures"].append("b.png")
    >>> state
    {'ui_captured_figures': ['a.png']}
    """

    __slots__ = ("_absent", "_copies", "_levels", "_state")

    def __init__(
        self, state: Mapping[str, Any], levels: int = 0, missing_keys: Collection[str] = ()
    ) -> None:
        self._state = state
        self._absent = missing_keys
        self._levels = levels
        self._copies: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key in self._absent:
            raise CapabilityError(
                f"The state's {key!r} is not here: the step runs on another worker than its turn.",
                fix="Take what is needed from its inputs (requires), or leave out the queue.",
            )
        if key not in self._copies:
            value = self._state[key]
            levels = _CONTEXT_LEVELS if key == "capability_context_data" else self._levels
            if levels and isinstance(value, Mapping):
                # Reading one entry must not cost a copy of all that earlier steps left.
                self._copies[key] = StepState(value, levels - 1)
            else:
                self._copies[key] = copy_plain(value)
        return self._copies[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def copy(self) -> dict[str, Any]:
        """Return all of it as a dictionary of one's own, as ``dict.copy`` does.

        >>> StepState({"a": 1}).copy() | {"a": 2}
        {'a': 2}
        """
        return {
            key: value.copy() if isinstance(value, StepState) else value
            for key, value in self.items()
        }

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"<StepState: {', '.join(self._state)}>"
