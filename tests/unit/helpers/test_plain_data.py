"""Conversion to plain data, and errors about values that cannot be stored."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import uuid
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)

from capgraph import CapabilityContext
from capgraph.base import ErrorClassification, ErrorSeverity, ValidationError
from capgraph.helpers.plain_data import short_text, to_plain
from capgraph.state import dump_context, load_context, summarize_context


class Level(IntEnum):
    HIGH = 3


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: Any


class Model(BaseModel):
    y: Any


class Masked(BaseModel):
    name: str
    key: str
    note: str = Field("", exclude=True)

    @field_serializer("name")
    def _lower(self, name: str) -> str:
        return name.lower()

    @field_serializer("key")
    def _mask(self, key: str) -> str:
        return "***"


class Many(RootModel[list[Any]]):
    """A model that is a list."""


@pytest.mark.row("F5")
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(1.5), 1.5),
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array(["a"], dtype=object), ["a"]),
        ({np.int64(1): np.float64(2)}, None),
        (Level.HIGH, 3),
        ({Colour.RED: (1, {2})}, {"red": [1, [2]]}),
        (Point(Point(1)), {"x": {"x": 1}}),
        (Model(y=np.int8(1)), {"y": 1}),
        (Model(y=[Model(y=float("-inf"))]), {"y": [{"y": float("-inf")}]}),
        (Masked(name="Ada", key="k", note="n"), {"name": "ada", "key": "***"}),
        (Many([Level.HIGH]), [3]),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (pathlib.Path("a/b"), "a/b"),
        ({"b", "a", "c"}, ["a", "b", "c"]),
        ({1: "x", None: "y"}, {"1": "x", "None": "y"}),
    ],
)
def test_values_with_a_plain_form_are_converted_to_it(value: Any, plain: Any) -> None:
    if plain is None:
        with pytest.raises(ValidationError, match="a key of value is"):
            to_plain(value)
        return
    found = to_plain(value)
    assert found == plain
    assert type(found) is type(plain)
    kind, data = JsonPlusSerializer().dumps_typed(found)
    assert JsonPlusSerializer().loads_typed((kind, data)) == plain


@pytest.mark.parametrize(
    "value",
    [
        object(),
        int,
        b"\xff",
        2**64,
        -(2**63) - 1,
        complex(1, 2),
        "\ud800",
        np.datetime64("2026-01-02", "ns"),
        np.array([1j]),
        {(1, 2): 3},
        {1: "a", "1": "b"},
        (item for item in "ab"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_plain_form_are_refused_with_their_path(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"report\.rows\[1\].*Fix: ") as caught:
        to_plain({"rows": [1, value]}, "report")
    assert len(str(caught.value)) < 500
    # The details of an error must never fail in their turn.
    told = ErrorClassification(ErrorSeverity.CRITICAL, "x", {"value": value}).to_dict()
    JsonPlusSerializer().dumps_typed(told)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValidationError, match="nested too deeply"):
        to_plain(loop)
    assert to_plain(loop, lenient=True)


# --- context types ----------------------------------------------------------------------------------


class Circle(CapabilityContext):
    radius: float = Field(alias="r")
    unit: str = Field("m", validation_alias=AliasChoices("unit", "u"), serialization_alias="U")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> float:
        return 3 * self.radius**2


class Anything(CapabilityContext):
    x: Any = None
    y: Any = None


class Grid(CapabilityContext):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    cells: np.ndarray


class KeptGrid(Grid):
    @field_serializer("cells")
    def _write(self, cells: Any) -> Any:
        return cells.tolist()

    @field_validator("cells", mode="before")
    @classmethod
    def _read(cls, cells: Any) -> Any:
        return np.array(cells)


class Login(CapabilityContext):
    user: str
    secret: SecretStr
    note: str = Field("", exclude=True)


class OneWay(CapabilityContext):
    n: int

    @field_serializer("n")
    def _write(self, n: int) -> str:
        return f"number {n}"


def there_and_back(context: CapabilityContext) -> Any:
    types = {context.CONTEXT_TYPE: type(context)}
    data = dump_context(context.CONTEXT_TYPE, "k", context, types)
    return load_context(context.CONTEXT_TYPE, "k", data, types)


@pytest.mark.parametrize(
    "context",
    [
        Circle(r=2, u="km"),
        Anything(x={"n": float("inf")}),
        Anything(x=np.float64(1), y=[1, {"a": None}]),
    ],
    ids=["aliases and a computed field", "no finite number", "a numpy number"],
)
def test_a_context_is_restored_as_it_was_stored(context: CapabilityContext) -> None:
    assert there_and_back(context) == context


def test_callers_and_authors_may_use_aliases() -> None:
    types = {"CIRCLE": Circle}
    assert load_context("CIRCLE", "k", {"r": 2, "unit": "cm"}, types).area == 12
    data = dump_context("CIRCLE", "k", {"r": 2}, types)
    assert data == {"radius": 2.0, "unit": "m"}
    assert dump_context("CIRCLE", "k", {"radius": 2}, types) == data


def test_numpy_in_a_context_becomes_numbers() -> None:
    data = dump_context("ANYTHING", "k", Anything(x=np.int64(2), y=np.arange(3)), {})
    assert data == {"x": 2, "y": [0, 1, 2]}


def test_a_type_with_a_serializer_and_a_validator_is_stored() -> None:
    assert (there_and_back(KeptGrid(cells=np.eye(2))).cells == np.eye(2)).all()


@pytest.mark.row("F5")
@pytest.mark.parametrize(
    ("context", "words"),
    [
        (
            Anything(y=object()),
            r"output ANYTHING of step 'k': field 'y'.*of type object.*serializer",
        ),
        (Anything(y={"deep": [2**70]}), r"output ANYTHING of step 'k'\.y\.deep\[0\].*71 bits"),
        (Grid(cells=np.eye(2)), r"not a valid Grid.*cells.*also needs a validator"),
        (Login(user="ada", secret="pw"), r"field 'secret' is a secret.*serializer"),  # type: ignore[arg-type]
        (Anything(x=[SecretStr("pw")]), r"field 'x' is a secret"),
        (Anything(y={"deep": Login(user="a", secret="pw")}), r"'deep'.*'secret' is a secret"),  # type: ignore[arg-type]
        (OneWay(n=1), r"not a valid OneWay: n:.*also needs a validator"),
    ],
)
@pytest.mark.parametrize("registered", [True, False])
def test_a_value_that_could_not_be_restored_is_refused_when_it_is_stored(
    context: CapabilityContext, words: str, registered: bool
) -> None:
    kind = context.CONTEXT_TYPE
    with pytest.raises(ValidationError, match=words):
        dump_context(kind, "k", context, {kind: type(context)} if registered else {})


def test_a_value_changed_after_its_creation_is_validated_again() -> None:
    circle = Circle(r=2)
    circle.radius = "wide"  # type: ignore[assignment]
    with pytest.raises(ValidationError, match="radius"):
        dump_context("CIRCLE", "k", circle, {"CIRCLE": Circle})


# --- summaries --------------------------------------------------------------------------------------


def test_a_summary_of_a_million_rows_is_short_and_counts_the_omitted_rows() -> None:
    rows = [[n, "x" * 50] for n in range(1_000_000)]
    text = Anything(x=rows, y="z" * 100_000).get_summary()
    assert len(text) < 3_000
    assert text.startswith("x: [[0, 'xxx")
    assert "999,980 more" in text
    assert "more characters" in text
    assert len(summarize_context("OTHER", "a", {"rows": rows}, {})) < 3_000
    assert len(summarize_context("OTHER", "a", rows, {})) < 3_000
    wide = {f"column {n}": "y" * 90 for n in range(10_000)}
    assert "more" in summarize_context("OTHER", "a", wide, {})
    assert len(summarize_context("OTHER", "a", wide, {})) < 3_000


def test_a_summary_shows_only_serialized_fields() -> None:
    text = Login(user="ada", secret="pw", note="inner").get_summary()  # type: ignore[arg-type]
    assert text == "user: ada, secret: **********"
    assert short_text([Masked(name="Ada", key="k")]) == "[{'name': 'ada', 'key': '***'}]"


def test_short_values_are_shown_unchanged() -> None:
    assert Anything(x=[1, "a"], y={"k": None}).get_summary() == "x: [1, 'a'], y: {'k': None}"
    assert short_text("plain") == "plain"
