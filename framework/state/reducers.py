"""How parallel writes to one state key come together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ContextData = dict[str, dict[str, dict[str, Any]]]


def merge_context(current: ContextData | None, update: ContextData | None) -> ContextData:
    """Merge context data by type and key; a key that comes again replaces the whole entry.

    Only the two levels that change are copied, so a merge costs the number of entries of the
    touched types and never the size of the data.

    >>> merge_context({"A": {"x": {"v": 1}}}, {"A": {"y": {"v": 2}}})
    {'A': {'x': {'v': 1}, 'y': {'v': 2}}}
    """
    merged: ContextData = dict(current or {})
    for kind, entries in (update or {}).items():
        merged[kind] = {**merged.get(kind, {}), **entries}
    return merged


def merge_by_key(
    current: Mapping[str, Any] | None, update: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Merge two mappings; the newer value of a key wins.

    >>> merge_by_key({"a": 1, "b": 1}, {"b": 2})
    {'a': 1, 'b': 2}
    """
    return {**(current or {}), **(update or {})}


def append(current: list[Any] | None, update: list[Any] | None) -> list[Any]:
    """Append the new entries.

    >>> append([1], [2, 3])
    [1, 2, 3]
    """
    return [*(current or []), *(update or [])]
