"""Tests of the validation of step parameters."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, field_validator

from capgraph import ErrorSeverity
from capgraph.base import CapabilitySpec, PlanError, ValidationError, capability_node
from capgraph.planning import StaticCatalog, check_plan, repair_plan, validated_parameters
from capgraph.planning.request_values import extract_named_values


class Item(BaseModel):
    size: int
    colour: str = "red"


class Order(BaseModel):
    amount: int
    currency: str = "EUR"
    when: datetime.date = datetime.date(2026, 1, 2)
    items: list[Item] = Field(default_factory=list)
    by_name: dict[str, Item] = Field(default_factory=dict)
    note: str = Field("", alias="remark")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


SPEC = CapabilitySpec("pay", "Pay.", parameters=Order, effect="once")
CATALOG = StaticCatalog.of(SPEC, CapabilitySpec("any", "Any.", parameters=Open))


def plan(parameters: Any, capability: str = "pay") -> dict[str, Any]:
    step = {"context_key": "a", "capability": capability, "parameters": parameters}
    return {"steps": [step, {"context_key": "b", "capability": "respond"}]}


@pytest.mark.row("B48")
@pytest.mark.parametrize(
    ("parameters", "field", "words"),
    [
        ({"amount": 1, "ammount": 2}, "parameters.ammount", "write 'amount', or use only"),
        ({"amount": 1, "x": 2}, "parameters.x", "use only: amount, by_name, currency"),
        (
            {"amount": 1, "items": [{"size": 1, "coulor": "blue"}]},
            "parameters.items[0].coulor",
            "colour",
        ),
        (
            {"amount": 1, "by_name": {"a": {"size": 1, "y": 2}}},
            "parameters.by_name.a.y",
            "use only: colour, size",
        ),
        ({"amount": "many", "x": 2}, "parameters.x", "use only"),
    ],
)
def test_an_unknown_name_is_reported_and_never_dropped(
    parameters: dict[str, Any], field: str, words: str
) -> None:
    found = {problem.field: problem for problem in check_plan(plan(parameters), CATALOG)}
    assert field in found
    assert "does not declare this parameter" in found[field].cause
    assert words in found[field].remedy
    # Which parameter was meant is for the planner or a person to say.
    assert any(
        problem.field == field for problem in repair_plan(plan(parameters), CATALOG).problems
    )
    with pytest.raises(ValidationError, match="does not declare this parameter") as caught:
        validated_parameters(SPEC, parameters)
    assert caught.value.severity is ErrorSeverity.REPLANNING


def test_a_misspelled_step_field_is_reported() -> None:
    value = plan({"amount": 1})
    value["steps"][0]["paramters"] = {"currency": "USD"}
    [problem] = check_plan(value, CATALOG)
    assert (problem.field, problem.remedy) == ("paramters", "write 'parameters'")
    value["steps"][0] |= {f"x{n}": n for n in range(100_000)} | {3: 4}
    assert 1 < len(check_plan(value, CATALOG)) < 20


def test_many_unknown_names_are_refused_without_naming_all() -> None:
    many = {"amount": 1, **{f"amounts{n}": n for n in range(100_000)}}
    assert 1 < len(check_plan(plan(many), CATALOG)) < 30


def test_a_model_that_allows_extra_fields_accepts_them() -> None:
    assert not check_plan(plan({"x": 1}, "any"), CATALOG)
    assert validated_parameters(CATALOG.capabilities["any"], {"x": 1})[1] == {"x": 1}


class Nested(BaseModel):
    inner: Open = Open()
    either: Open | int = 3
    strict: Item | None = None


@pytest.mark.parametrize(
    ("parameters", "unknown"),
    [
        ({"inner": {"x": 1}}, []),
        ({"either": {"x": 1}}, []),
        ({"strict": {"size": 1, "x": 2}}, ["parameters.strict.x"]),
        ({"inner": {"x": 1}, "outer": 2}, ["parameters.outer"]),
    ],
)
def test_extra_fields_are_allowed_only_in_nested_models_that_declare_it(
    parameters: Any, unknown: list[str]
) -> None:
    catalog = StaticCatalog.of(CapabilitySpec("nest", "Nest.", parameters=Nested))
    found = [problem.field for problem in check_plan(plan(parameters, "nest"), catalog)]
    assert found == unknown
    if not unknown:
        assert validated_parameters(catalog.capabilities["nest"], parameters)[1].items() >= (
            parameters.items()
        )


def test_a_function_without_parameters_refuses_parameters() -> None:
    @capability_node
    async def wait() -> None:
        """Wait."""

    spec = wait.capability_spec  # type: ignore[attr-defined]
    assert validated_parameters(spec, None)[1] == {}
    with pytest.raises(ValidationError, match=r"seconds.*leave it out"):
        validated_parameters(spec, {"seconds": 1})


def test_defaults_are_included_under_the_names_of_a_plan() -> None:
    model, plain = validated_parameters(
        SPEC, {"amount": "5", "remark": "x", "items": [{"size": 2}]}
    )
    assert plain == {
        "amount": 5,
        "currency": "EUR",
        "when": "2026-01-02",
        "items": [{"size": 2, "colour": "red"}],
        "by_name": {},
        "remark": "x",
    }
    assert model == Order(amount=5, remark="x", items=[Item(size=2)])
    again, same = validated_parameters(SPEC, plain)
    assert (again, same) == (model, plain)
    assert not check_plan(plan(plain), CATALOG)


def test_without_a_model_values_are_returned_unchanged() -> None:
    spec = CapabilitySpec("free", "Free.")
    assert validated_parameters(spec, {"x": 1}) == ({"x": 1}, {"x": 1})
    with pytest.raises(ValidationError, match=r"x '\[1\]'"):
        validated_parameters(spec, {"x": [1]})


class Cents(BaseModel):
    amount: int
    key: SecretStr = SecretStr("none")

    @field_validator("amount")
    @classmethod
    def _to_cents(cls, amount: int) -> int:
        return amount * 100


class Broken(BaseModel):
    n: int = 1

    @field_serializer("n")
    def _write(self, n: int) -> Any:
        raise RuntimeError("no form")


def test_plain_data_validates_to_the_same_parameters() -> None:
    spec = CapabilitySpec("pay", "Pay.", parameters=Cents)
    model, plain = validated_parameters(spec, {"amount": 5, "key": "abc"})
    assert (model.amount, model.key.get_secret_value()) == (500, "abc")
    assert plain == {"amount": 5, "key": "abc"}
    broken = CapabilitySpec("broken", "Broken.", parameters=Broken)
    with pytest.raises(ValidationError, match=r"cannot be serialized.*Declare a serializer"):
        validated_parameters(broken, {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
names = st.sampled_from(["amount", "items", "by_name", "when", "remark", "note"]) | st.text()


@given(json_values | st.dictionaries(names, json_values))
def test_any_value_returns_parameters_or_a_validation_error(value: Any) -> None:
    problems = [p for p in check_plan(plan(value), CATALOG) if p.field.startswith("parameters")]
    try:
        _, plain = validated_parameters(SPEC, value)
    except ValidationError:
        assert problems
    else:
        assert not check_plan(plan(plain), CATALOG)


def test_short_choices_with_a_digit_are_recognized_without_their_name() -> None:
    class Tank(BaseModel):
        tank: Literal["T1", "T2"] = "T1"

    class Side(BaseModel):
        side: Literal["a", "b"] = "a"

    assert extract_named_values(Tank, "Is t2 healthy?") == {"tank": "T2"}
    assert extract_named_values(Side, "Is this a good side?") == {}
    with pytest.raises(PlanError) as error:
        extract_named_values(Tank, "Are tanks T1 and T2 healthy?")
    assert "T1 and T2" in error.value.person_message
