"""``dataclass`` with the cost at first use: a graph imports some seventy of them and makes few.

The standard decorator writes the source of up to six methods and compiles each, half a millisecond
for a frozen class with slots. This one takes the fields as that does, shares all methods but
``__init__``, and has the standard library write that when the first instance is made, or when
somebody asks for the signature. What it gives is a dataclass to everybody: ``fields``, ``replace``,
``asdict``, ``copy`` and type checkers.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, **layout: bool
    ) -> Any:
        """Make a dataclass, as :func:`dataclasses.dataclass` does.

        Args:
            cls: The class.
            frozen: Whether instances stay as they are made.
            eq: Whether instances are equal by value.
            **layout: ``slots``, ``weakref_slot``.

        >>> @dataclass(frozen=True, slots=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1), Point(1) == Point(1, 0), dataclasses.replace(Point(1), y=2)
        (Point(x=1, y=0), True, Point(x=1, y=2))
        """
        if cls is None:
            return functools.partial(dataclass, frozen=frozen, eq=eq, **layout)
        made = dataclasses.dataclass(init=False, repr=False, eq=False, **layout)(cls)
        methods = {"__init__": _late_init(made, frozen), "__repr__": _repr}
        if eq:
            methods |= {"__eq__": _is_equal, "__hash__": _hash if frozen else None}
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse, "__setstate__": _restore}
        for name, method in methods.items():
            if vars(made).get(name) is None:
                setattr(made, name, method)
        made.__signature__ = _SIGNATURE
        return made


def _late_init(cls: type, frozen: bool) -> Callable[..., None]:
    def write() -> Any:
        # The twin is made of the same fields, so its __init__ is the one the class would have.
        own = {"__doc__": cls.__name__}
        if after := getattr(cls, "__post_init__", None):
            own["__post_init__"] = after
        fields = [(field.name, field.type, field) for field in dataclasses.fields(cls)]
        twin = dataclasses.make_dataclass(
            cls.__name__, fields, namespace=own, repr=False, eq=False, frozen=frozen
        )
        init = vars(twin)["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__ = init  # type: ignore[misc]
        return init

    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        write()(self, *args, **kwargs)

    first.write = write  # type: ignore[attr-defined]
    return first


class _Signature:
    """Has ``__init__`` written before somebody reads its parameters."""

    def __get__(self, instance: object, owner: Any) -> NoReturn:
        if write := getattr(owner.__init__, "write", None):
            write()
        raise AttributeError("__signature__")


_SIGNATURE = _Signature()


@functools.cache
def _compared(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.compare]


def _values(one: Any) -> tuple[Any, ...]:
    return tuple([getattr(one, name) for name in _compared(one.__class__)])


def _is_equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, value: object = None) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _restore(self: Any, state: Any) -> None:
    both = state if isinstance(state, tuple) else (state, None)
    for held in both:
        for name, value in (held or {}).items():
            object.__setattr__(self, name, value)
