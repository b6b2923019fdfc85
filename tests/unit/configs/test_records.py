"""A dataclass whose methods are made late is a dataclass to everybody who looks at it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from dataclasses import field
from typing import Any

import pytest
from pydantic import TypeAdapter

from configs.records import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True)
class Named(Point):
    """A place with a name."""

    name: str = field(default="", repr=False)


@dataclass
class Counted:
    """Is changed; what is derived is derived when it is made."""

    value: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.value


def test_its_signature_is_known_before_the_first_instance() -> None:
    @dataclass(slots=True)
    class Fresh:
        """New."""

        a: int
        b: str = "x"

    assert list(inspect.signature(Fresh).parameters) == ["a", "b"]
    assert Fresh(1) == Fresh(a=1, b="x")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        Fresh()  # type: ignore[call-arg]


def test_it_is_compared_hashed_and_shown_by_its_fields() -> None:
    assert Point(1, 2, ["a"]) == Point(1, 2) != Point(2, 2)
    assert Point(1) != Named(1)
    assert len({Point(1), Point(1, 0), Named(1)}) == 2
    assert repr(Named(1, 2, name="n")) == "Named(x=1, y=2, tags=[])"
    assert Counted(2) == Counted(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Counted(2))


def test_a_frozen_one_stays_as_it_is() -> None:
    one: Any = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del one.x
    assert not hasattr(one, "__dict__")


def test_what_reads_dataclasses_reads_it() -> None:
    one = Named(1, 2, ["t"], "n")
    assert dataclasses.asdict(one) == {"x": 1, "y": 2, "tags": ["t"], "name": "n"}
    assert dataclasses.replace(one, x=3) == Named(3, 2, ["t"], "n")
    assert copy.deepcopy(one) == copy.copy(one) == one
    assert TypeAdapter(Named).validate_python({"x": 1, "name": "n"}) == Named(1, name="n")
    match one:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_what_is_derived_is_derived() -> None:
    one = Counted(2)
    one.value = 5
    assert (one.value, one.double) == (5, 4)
    assert list(inspect.signature(Counted).parameters) == ["value"]
