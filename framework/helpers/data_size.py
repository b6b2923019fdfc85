"""Functions that compare the size and the depth of data with a limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

from pydantic import BaseModel

_SCALAR_BYTES = 8


def exceeds_bytes(value: Any, max_bytes: int) -> bool:
    """Return True if the approximate stored size of data exceeds ``max_bytes`` bytes.

    The measurement stops at the limit, so larger data takes no longer to check.

    Args:
        value: Plain data, models, dataclasses, messages, or arrays.
        max_bytes: Size limit in bytes.

    >>> exceeds_bytes({"text": "x" * 100}, 200), exceeds_bytes(["x" * 100] * 3, 200)
    (False, True)
    """
    remaining, pending = max_bytes, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            remaining -= len(item) if item.isascii() else len(item.encode(errors="replace"))
        elif isinstance(item, (bytes, bytearray, memoryview)):
            remaining -= len(item)
        elif item is None or isinstance(item, (bool, int, float)):
            remaining -= _SCALAR_BYTES
        elif (parts := _list_container_parts(item)) is not None:
            remaining -= len(parts)
            pending += parts if remaining >= 0 else ()
        else:
            remaining -= int(getattr(item, "nbytes", _SCALAR_BYTES))
        if remaining < 0:
            return True
    return False


def exceeds_depth(value: Any, max_depth: int) -> bool:
    """Return True if plain data has containers nested more than ``max_depth`` levels deep.

    >>> exceeds_depth([[1]], 2), exceeds_depth({"a": [[1]]}, 2)
    (False, True)
    """
    level = [value]
    for _ in range(max_depth + 1):
        level = [part for item in level for part in _list_container_parts(item) or ()]
        if not level:
            return False
    return True


def _list_container_parts(item: Any) -> list[Any] | None:
    """Return the parts of a container, or ``None`` for a scalar.

    The parts are the items of a sequence or set, or the keys and values of a mapping or model.
    """
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, (list, tuple, Set)):
        return list(item)
    if isinstance(item, BaseModel) or (
        dataclasses.is_dataclass(item) and not isinstance(item, type)
    ):
        fields = dict(item) if isinstance(item, BaseModel) else vars(item)
        return [*fields.keys(), *fields.values()]
    return None
