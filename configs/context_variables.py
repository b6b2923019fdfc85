"""Context manager that sets a context variable."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Generic, TypeVar

T = TypeVar("T")


class set_context_variable(Generic[T]):  # noqa: N801 - used like a function
    """Context manager that sets a context variable for the duration of a ``with`` block.

    Tasks that start inside the block inherit the value. This is a class rather than a generator
    function because every step enters several such blocks, and a generator would be slower.

    Args:
        variable: Context variable to set.
        value: Value inside the block. The previous value is restored afterwards.

    >>> depth: ContextVar[int] = ContextVar("depth", default=0)
    >>> with set_context_variable(depth, 1):
    ...     depth.get()
    1
    >>> depth.get()
    0
    """

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
