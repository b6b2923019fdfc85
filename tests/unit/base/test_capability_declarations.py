"""Declarations of classes, functions and nodes, and errors about invalid ones."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, Field

from capgraph import CapabilityContext, Registry
from capgraph.base import (
    BaseCapability,
    BaseInfrastructureNode,
    CapabilityError,
    RegistryError,
    TaskClassifierGuide,
    ValidationError,
    capability_node,
    infrastructure_node,
)
from capgraph.base.spec import DECLARED
from capgraph.pipeline.step_state import StepState


class Reading(CapabilityContext):
    value: float


class Total(CapabilityContext):
    value: float


def make(**attributes: Any) -> type[BaseCapability]:
    async def execute(self: Any) -> None:
        return None

    namespace = {"name": "made", "description": "Made", "execute": execute}
    return type("Made", (BaseCapability,), {**namespace, **attributes})


# --- types of inputs and outputs --------------------------------------------------------------------


def test_context_classes_are_accepted_as_names_and_registered_with_the_capability() -> None:
    made = capability_node(make(provides=[Total], requires=[Reading, ("UNIT", "optional")]))
    assert made.capability_spec.provides == ("TOTAL",)
    assert [(n.type, n.cardinality) for n in made.capability_spec.requires] == [
        ("READING", "one"),
        ("UNIT", "optional"),
    ]
    many = capability_node(make(requires=[(Reading, "many")]))
    assert many.capability_spec.requires[0].cardinality == "many"
    registry = Registry()
    registry.register(made)
    assert set(registry.context_types.values()) == {Reading, Total}


@pytest.mark.row("B1")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("provides", "requires") for value in ("TOTAL", Total)),
        ("requires", ("TOTAL", "many")),
        ("provides", {"TOTAL": Total}),
    ],
)
def test_a_single_type_instead_of_a_list_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=rf"Made\.{name} is .*Total.*|'TOTAL'") as caught:
        capability_node(make(**{name: value}))
    assert f"Write {name} = [" in str(caught.value)


def test_an_output_that_is_not_a_context_type_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"Made\.provides contains 3"):
        capability_node(make(provides=[3]))


# --- declarations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("effect", "twice"),
        ("on_unknown", "shrug"),
        ("max_parallel", 0),
        ("max_parallel", True),
        ("timeout_seconds", -1),
        ("timeout_seconds", float("inf")),
        ("timeout_seconds", float("nan")),
        ("requires_approval", "yes"),
        ("repeatable", 1),
        ("effect_key", "order"),
    ],
)
@pytest.mark.parametrize("form", ["class", "function"])
def test_an_invalid_declaration_is_named(name: str, value: Any, form: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} is {value!r}"):
        if form == "class":
            capability_node(make(**{name: value}))
        else:

            @capability_node(**{name: value})
            async def act() -> None:
                """Act."""


def test_every_declaration_is_known_to_all_three_forms() -> None:
    class Plain:
        name = "plain"
        description = "Inherits nothing"
        classify_error = staticmethod(lambda exc, context: None)
        get_retry_policy = staticmethod(dict)

        @staticmethod
        async def execute(state: Any) -> dict[str, Any]:
            return {}

    @capability_node(**DECLARED)
    async def act() -> None:
        """Act."""

    for spec in (
        capability_node(Plain).capability_spec,  # type: ignore[attr-defined]
        capability_node(make()).capability_spec,
        act.capability_spec,  # type: ignore[attr-defined]
    ):
        assert {name: getattr(spec, name) for name in DECLARED} == DECLARED


def test_the_effect_key_names_parameters() -> None:
    class Options(BaseModel):
        order: str
        note: str = ""

    spec = capability_node(make(Parameters=Options, effect_key=["order"])).capability_spec
    assert spec.effect_key == ("order",)
    with pytest.raises(
        ValidationError, match=r"effect_key contains \['ordre'\].*Fix: .*order, note"
    ):
        capability_node(make(Parameters=Options, effect_key=["ordre"]))
    with pytest.raises(ValidationError, match="Parameters model"):
        capability_node(make(effect_key=["order"]))

    @capability_node(effect="once", effect_key=["order"], repeatable=True)
    async def pay(order: str, note: str = "") -> Total:
        """Pay an order."""
        return Total(value=1)

    assert pay.capability_spec.effect_key == ("order",)  # type: ignore[attr-defined]
    assert pay.capability_spec.repeatable  # type: ignore[attr-defined]


def test_annotated_constraints_of_function_parameters_are_enforced() -> None:
    @capability_node
    async def hold(
        reading: Annotated[Reading, "an input"],
        percent: Annotated[int, Field(ge=0, le=100, description="how much")] = 50,
    ) -> Annotated[Total, "an output"]:
        """Hold."""
        return Total(value=percent)

    model = hold.Parameters
    assert model is not None
    assert model.model_json_schema()["properties"]["percent"]["maximum"] == 100
    with pytest.raises(ValueError, match="less than or equal to 100"):
        model(percent=101)
    assert hold.capability_spec.provides == ("TOTAL",)  # type: ignore[attr-defined]


# --- decorators -------------------------------------------------------------------------------------


@pytest.mark.row("B12", "B19")
def test_the_class_may_be_passed_by_keyword() -> None:
    made = make()
    assert capability_node(cls=made) is made

    class Monitor(BaseInfrastructureNode):
        name = "monitoring"
        description = "Looks on"

        @staticmethod
        async def execute(state: Any) -> dict[str, Any]:
            return {}

    assert infrastructure_node(cls=Monitor) is Monitor
    assert infrastructure_node(after="respond")(Monitor).infrastructure_spec.after == "respond"


async def _asks(state: Any, config: Any) -> dict[str, Any]:
    return {}


async def _takes_nothing() -> dict[str, Any]:
    return {}


@functools.wraps(_asks)
async def _brings_it(state: Any) -> dict[str, Any]:
    return await _asks(state, {})


def test_a_static_execute_receives_its_arguments_or_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown arguments \['config'\]. Fix: take state"):
        capability_node(make(execute=staticmethod(_asks)))
    with pytest.raises(ValueError, match="no 'state' argument"):
        capability_node(make(execute=staticmethod(_takes_nothing)))
    capability_node(make(execute=staticmethod(_brings_it)))


@pytest.mark.row("B12")
@pytest.mark.parametrize("method", ["classify_error", "get_retry_policy"])
def test_methods_that_are_called_on_the_class_must_be_static(method: str) -> None:
    def on_self(self: Any, *given: Any) -> None: ...

    async def coroutine(*given: Any) -> None: ...

    with pytest.raises(ValueError, match=f"'{method}' of the capability Made.*not static"):
        capability_node(make(**{method: on_self}))
    with pytest.raises(ValueError, match=f"'{method}' of the capability Made.*coroutine"):
        capability_node(make(**{method: staticmethod(coroutine)}))
    capability_node(make(**{method: classmethod(on_self)}))


@pytest.mark.row("B3")
@pytest.mark.parametrize("base", [BaseCapability, BaseInfrastructureNode])
async def test_the_abstract_execute_is_not_implemented(base: Any) -> None:
    with pytest.raises(NotImplementedError, match="abstract"):
        await base.execute({})


def test_keywords_for_a_class_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"got \['effect'\] for the class Made"):
        capability_node(effect="once")(make())


@pytest.mark.row("B12")
def test_an_undecorated_subclass_does_not_run_its_parent() -> None:
    parent = capability_node(make())
    child = type("Child", (parent,), {"name": "child"})
    with pytest.raises(AttributeError, match=r"Child is not decorated.*would run Made"):
        child.langgraph_node  # noqa: B018 - the look-up is what fails
    with pytest.raises(RegistryError, match=r"Child.*only its base class is decorated"):
        Registry().register(child)
    assert capability_node(child).langgraph_node.name == "child"  # type: ignore[attr-defined]


# --- guides -----------------------------------------------------------------------------------------


@pytest.mark.row("B7")
def test_an_attribute_error_in_a_guide_is_not_hidden() -> None:
    def guide(self: Any) -> None:
        return self.no_such_thing

    capability = make(
        _create_classifier_guide=guide, __getattr__=lambda self, name: f"no {name}"[:0].missing
    )()
    with pytest.raises(CapabilityError, match=r"classifier guide of <Made: made>"):
        getattr(capability, "classifier_guide", None)


@pytest.mark.row("B7")
def test_guides_are_created_once_from_many_threads() -> None:
    calls: list[int] = []
    together = threading.Barrier(4, timeout=30)

    def guide(self: Any) -> None:
        calls.append(1)
        time.sleep(0.01)  # long enough for the others to look as well

    capability = make(_create_orchestrator_guide=guide)()

    def read() -> None:
        together.wait()
        assert capability.orchestrator_guide is None

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


@pytest.mark.row("B6")
def test_a_class_without_examples_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = make()
    with caplog.at_level(logging.WARNING):
        for capability in (made(), made()):
            assert capability.orchestrator_guide is None
            assert capability.classifier_guide is None
    [record] = caplog.records
    assert "Made has no examples" in record.getMessage()


def test_a_class_without_a_planning_guide_causes_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Advised(make()):
        def _create_classifier_guide(self) -> TaskClassifierGuide:
            return TaskClassifierGuide(instructions="When asked", examples=[])

    with caplog.at_level(logging.WARNING):
        assert Advised().classifier_guide is not None
        assert Advised().orchestrator_guide is None
    assert not caplog.records


# --- the state that a step reads --------------------------------------------------------------------


def test_the_state_of_a_step_copies_and_merges_like_a_dictionary() -> None:
    data = {"capability_context_data": {"READING": {"a": {"value": 1}}}, "task_current_task": "x"}
    state = StepState(data)
    copied = state.copy()
    assert copied == data
    assert type(copied) is dict
    copied["capability_context_data"]["READING"]["a"]["value"] = 2
    assert data["capability_context_data"]["READING"]["a"]["value"] == 1  # type: ignore[index]
    assert (state | {"task_current_task": "y"})["task_current_task"] == "y"
    assert ({"task_current_task": "y"} | state)["task_current_task"] == "x"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic supports typing.TypedDict here")
def test_fix_for_a_typed_dict_of_typing_names_the_right_module() -> None:
    class Record(TypedDict):
        day: str

    def read() -> Any:
        """Read a record."""

    read.__annotations__["return"] = Record
    with pytest.raises(ValidationError) as error:
        capability_node(read)
    assert error.value.fix == "Import TypedDict from typing_extensions."
