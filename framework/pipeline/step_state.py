"""Read-only view of the state for a capability."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from capgraph.base.errors import CapabilityError
from capgraph.helpers.plain_data import copy_plain

_CONTEXT_LEVELS = 2


class StepState(Mapping[str, Any]):
    """Read-only mapping that copies each value of the state when its key is first read.

    Without copies, a capability's in-place changes would affect parallel steps and would be saved even
    if the step failed. Values that are never read are not copied.

    Args:
        state: State at the start of the step.
        levels: Number of nested levels that are also copied key by key. Context data has two
            levels, type and key.
        missing_keys: Keys that were not transferred to this worker.
        on_read: Callback that receives the path of keys to each value before its first read.
        path: Path of keys to the state itself.

    >>> state = {"ui_captured_figures": ["a.png"]}
    >>> StepState(state)["ui_captured_figures"].append("b.png")
    >>> state
    {'ui_captured_figures': ['a.png']}
    """

    __slots__ = ("_absent", "_copies", "_levels", "_on_read", "_path", "_state")

    def __init__(
        self,
        state: Mapping[str, Any],
        levels: int = 0,
        missing_keys: Collection[str] = (),
        on_read: Callable[[tuple[str, ...]], None] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        self._on_read, self._path = on_read, path
        self._state = state
        self._absent = missing_keys
        self._levels = levels
        self._copies: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key in self._absent:
            raise CapabilityError(
                f"State key {key!r} is not available because the step runs on a remote worker.",
                fix="declare the data as an input in 'requires', or remove 'queue' from the capability.",
            )
        if key not in self._copies:
            if self._on_read is not None:
                self._on_read((*self._path, key))
            value = self._state[key]
            levels = _CONTEXT_LEVELS if key == "capability_context_data" else self._levels
            if levels and isinstance(value, Mapping):
                # Reading one entry must not copy the results of all earlier steps.
                self._copies[key] = StepState(
                    value, levels - 1, on_read=self._on_read, path=(*self._path, key)
                )
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
        """Copy the state to a plain dictionary, including nested ``StepState`` values.

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
