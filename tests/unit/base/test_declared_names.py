"""Names that each form of a capability accepts, and errors about unknown names."""

from __future__ import annotations

import dataclasses
import functools
import logging
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, Registry, bind, build_graph, open_graph
from capgraph.adapters import (
    agent_capability,
    as_mcp_server,
    graph_capability,
    mcp_capabilities,
    open_registry,
    remote_capability,
    tool_capability,
)
from capgraph.agents import ReActAgent
from capgraph.base import (
    BaseInfrastructureNode,
    CapgraphError,
    ClassifierExample,
    ConfigurationError,
    TaskClassifierGuide,
    ValidationError,
    capability_node,
    infrastructure_node,
)
from capgraph.base.declarations import FORMS, YAML_FORMS, Form, accepted_names
from capgraph.base.spec import DECLARED
from capgraph.configs.settings import McpSettings, load_settings

ROOT = Path(__file__).parents[3]


class Order(CapabilityContext):
    amount: int


class Price(CapabilityContext):
    total: int


class Pricing(TypedDict):
    amount: int
    total: int


def class_with(**attributes: Any) -> type[BaseCapability]:
    async def execute(self: Any) -> None:
        return None

    namespace = {"name": "made", "description": "Made.", "execute": execute}
    return type("Made", (BaseCapability,), {**namespace, **attributes})


def declared_class(**attributes: Any) -> Any:
    return capability_node(class_with(**attributes))


def declared_function(**options: Any) -> Any:
    @capability_node(**options)
    async def pay(order: str = "") -> str:
        """Pay."""
        return order

    return pay


def declared_tool(**options: Any) -> Any:
    def pay(order: str = "") -> str:
        """Pay."""
        return order

    return tool_capability(pay, **options)


def declared_graph(**options: Any) -> Any:
    builder = StateGraph(Pricing).add_node("add", lambda state: {"total": state["amount"]})
    graph = builder.add_edge(START, "add").compile(name="pricing")
    return graph_capability(graph, input=Order, output=Price, **options)


def declared_agent(**options: Any) -> Any:
    async def poet(task: str) -> str:
        return task

    return agent_capability(poet, **options)


def declared_remote(**options: Any) -> Any:
    return remote_capability("http://weather.example", "weather", **options)


MAKERS: dict[Form, Callable[..., Any]] = {
    "class": declared_class,
    "function": declared_function,
    "tool": declared_tool,
    "graph": declared_graph,
    "agent": declared_agent,
    "remote": declared_remote,
}


async def declare_as(form: Form, **options: Any) -> Any:
    if form == "mcp":  # names are checked before the server is reached
        return await mcp_capabilities("http://127.0.0.1:9/mcp", **options)
    return MAKERS[form](**options)


def misspelling(name: str) -> str:
    """Leave out a letter in the middle."""
    middle = len(name) // 2
    return name[:middle] + name[middle + 1 :]


# --- every form ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "name"), [(f, n) for f in FORMS for n in accepted_names(f)])
async def test_a_misspelled_declaration_is_refused_with_the_nearest_name(
    form: Form, name: str
) -> None:
    value = "x" if form != "class" or name not in _METHODS else _METHODS[name]
    with pytest.raises(ValidationError) as caught:
        await declare_as(form, **{misspelling(name): value})
    assert f"{misspelling(name)}" in str(caught.value)
    assert repr(name) in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("section", "name"),
    [(s, n) for s, f in YAML_FORMS.items() for n in accepted_names(f, yaml=True)],
)
async def test_a_misspelled_key_of_a_yaml_entry_is_refused_with_the_nearest_name(
    section: str, name: str
) -> None:
    wrong = misspelling(name)
    given = {"url": "http://127.0.0.1:9/mcp"} if section == "mcp" else {}
    with pytest.raises(CapgraphError) as caught:
        async with open_registry(load_settings(**{section: [{**given, wrong: "x"}]})):
            pass
    assert f"{section}[0]" in str(caught.value)
    assert wrong in str(caught.value)
    assert repr(name) in str(caught.value)


def test_settings_of_a_server_have_every_declaration_of_its_tools() -> None:
    assert set(McpSettings.model_fields) == set(accepted_names("mcp", yaml=True))


_METHODS: dict[str, Any] = {
    "classify_error": staticmethod(lambda exc, context: None),
    "parameters_from": staticmethod(lambda task: {}),
    "Parameters": type("Parameters", (BaseModel,), {}),
}


@pytest.mark.parametrize("form", [form for form in FORMS if form != "mcp"])
@pytest.mark.parametrize("name", DECLARED)
async def test_every_declaration_is_accepted_in_every_form(form: Form, name: str) -> None:
    # A graph and an agent take no parameters, so no key can be made of them.
    needs_parameters = name == "effect_key" and form not in ("function", "tool")
    effect = {"effect": "once"} if name == "undo" else {}
    value = () if needs_parameters else VALUES[name]
    made = await declare_as(form, **{**effect, name: value})
    assert getattr(made.capability_spec, name) is not None
    if name == "examples":
        assert made.capability_spec.examples == ("pay it",)


VALUES: dict[str, Any] = {
    **DECLARED,
    "examples": ["pay it"],
    "effect": "once",
    "requires_approval": True,
    "max_parallel": 2,
    "timeout_seconds": 3.0,
    "effect_key": ["order"],
    "permission": "full_access",
    "labels": ["secret"],
    "removes_labels": ["untrusted"],
    "undo": "refund",
    "queue": "gpu",
    "gate": type("Gate", (), {"evaluate_result": staticmethod(lambda value: None)})(),
}


def test_every_declaration_is_in_the_table_of_every_form() -> None:
    for form in FORMS:
        missing = set(DECLARED) - set(accepted_names(form))
        assert missing <= ({"effect"} if form == "mcp" else set())
    for form in YAML_FORMS.values():
        assert set(accepted_names(form)) <= set(accepted_names(form, yaml=True))


def test_the_documented_table_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/declarations.md").read_text("utf-8")
    made = runpy.run_path(str(ROOT / "docs/_make_reference.py"))["made"]
    assert made(page) == page, "run: python docs/_make_reference.py"


def test_retries_and_methods_are_keywords_in_forms_without_a_class_body() -> None:
    def read(task: str) -> dict[str, Any]:
        return {"order": "7"}

    for maker in (declared_function, declared_tool, declared_agent, declared_graph):
        made = maker(max_attempts=7, delay_seconds=0.1, parameters_from=read)
        policy = made.get_retry_policy()
        assert (policy["max_attempts"], policy["delay_seconds"]) == (7, 0.1)
        assert made.parameters_from("x") == {"order": "7"}


# --- classes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["requires_aproval", "efect", "Effect", "timeout_second", "provide", "cost_usdd"]
)
def test_a_misspelled_inherited_attribute_is_refused(name: str) -> None:
    class Mixin:
        pass

    setattr(Mixin, name, True)
    derived = type("Derived", (Mixin, class_with()), {})
    with pytest.raises(ValidationError, match=rf"Mixin\.{name} is not a declaration"):
        capability_node(derived)
    base = class_with(**{name: True})
    with pytest.raises(ValidationError, match=rf"Made\.{name} is not a declaration"):
        capability_node(type("Derived", (base,), {}))


def test_a_misspelled_class_variable_or_field_is_refused_too() -> None:
    class Annotated(class_with()):  # type: ignore[misc]
        requires_aproval: ClassVar[bool] = True

    class Field(class_with()):  # type: ignore[misc]
        requires_aproval: bool = True

    for wrong in (Annotated, dataclasses.dataclass(Field)):
        with pytest.raises(ValidationError, match="'requires_approval'"):
            capability_node(wrong)


@pytest.mark.parametrize("name", ["calls", "rate", "unit", "max_attempts", "table"])
def test_any_other_plain_attribute_is_refused_with_instructions_to_keep_it(name: str) -> None:
    with pytest.raises(ValidationError, match=rf"Made\.{name} is not a declaration") as caught:
        declared_class(**{name: 1})
    told = "get_retry_policy" if name == "max_attempts" else "underscore"
    assert told in str(caught.value)


def test_an_author_keeps_attributes_of_their_own() -> None:
    class Base(BaseCapability):
        name = "own"
        description = "Has its own attributes."
        LIMIT = 3
        logger = logging.getLogger("own")
        rate: ClassVar[float] = 1.0
        calls: "ClassVar[int]" = 0  # noqa: UP037 - both forms of an annotation
        _cache: dict[str, str] = {}
        total = property(lambda self: 3)
        twice = staticmethod(lambda: 2)

        class Helper(BaseModel):
            value: int

        class Parameter(BaseModel):
            value: int

        class Parameters(BaseModel):
            values: list[int] = []

        @functools.cached_property
        def size(self) -> int:
            return 1

        def label(self) -> str:
            return "own"

        async def execute(self) -> dict[str, Any]:
            return {}

    @capability_node
    class Derived(Base):
        calls = 2  # the class above says that it is a class variable

    assert Derived.calls == 2
    assert Derived.capability_spec.name == "own"


def test_annotated_attributes_of_a_class_with_an_initializer_are_its_own() -> None:
    @capability_node
    @dataclasses.dataclass
    class Read(BaseCapability):
        name = "read"
        description = "Read."
        unit: str = "m"

        async def execute(self) -> dict[str, Any]:
            return {}

    assert Read("km").unit == "km"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("parameter_from", "parameters_from"),
        ("clasify_error", "classify_error"),
        ("get_retry_polcy", "get_retry_policy"),
        ("_create_classifer_guide", "_create_classifier_guide"),
    ],
)
def test_a_misspelled_method_is_refused(wrong: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=f"'{meant}'"):
        declared_class(**{wrong: lambda *_: None})
    # Beside the method that is meant, it is a helper.
    if meant != "_create_classifier_guide":
        existing = staticmethod(getattr(BaseCapability, meant))
        declared_class(**{wrong: lambda *_: None, meant: existing})


def test_a_class_that_inherits_nothing_is_checked_too() -> None:
    def plain(**attributes: Any) -> Any:
        async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
            return {}

        methods = {
            "execute": staticmethod(execute),
            "classify_error": staticmethod(lambda exc, context: None),
            "get_retry_policy": staticmethod(dict),
        }
        namespace = {"name": "plain", "description": "Plain.", **methods, **attributes}
        return capability_node(type("Plain", (), namespace))

    assert plain(provides=["A"], requires=["B"]).capability_spec.provides == ("A",)
    with pytest.raises(ValidationError, match="'requires_approval'"):
        plain(requires_aproval=True)
    registry = Registry()
    registry.register(plain(examples=["do it plainly"]))
    assert registry.candidates()[0].positives == ("do it plainly",)


# --- examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in FORMS if form != "mcp"])
async def test_declared_examples_reach_the_selection(form: Form) -> None:
    registry = Registry()
    registry.register(await declare_as(form, examples=["what does order 7 cost?"]))
    assert registry.candidates()[0].positives == ("what does order 7 cost?",)


def test_only_examples_may_be_passed_to_the_decorator_of_a_class() -> None:
    made = capability_node(examples=["do it"])(class_with())
    assert made.capability_spec.examples == ("do it",)
    with pytest.raises(ValidationError, match="once"):
        capability_node(examples=["do it"])(class_with(examples=["do that"]))
    with pytest.raises(ValidationError, match="'examples'"):
        capability_node(exampels=["do it"])(class_with())
    with pytest.raises(ValidationError, match="attribute of the class"):
        capability_node(requires_approval=True)(class_with())


def test_examples_are_added_to_those_of_a_guide() -> None:
    class Guided(class_with(examples=["b", "c"])):  # type: ignore[misc]
        def _create_classifier_guide(self) -> TaskClassifierGuide:
            known = [ClassifierExample("a", False, "no"), ClassifierExample("b", True, "yes")]
            return TaskClassifierGuide(instructions="Advice", examples=known)

    guide = capability_node(Guided)().classifier_guide
    assert guide is not None
    assert guide.instructions == "Advice"
    assert [(e.query, e.result) for e in guide.examples] == [("a", False), ("b", True), ("c", True)]


@pytest.mark.parametrize("wrong", ["do it", [""], [3]])
def test_empty_examples_are_refused(wrong: Any) -> None:
    for maker in (declared_class, declared_function, declared_tool):
        with pytest.raises(ValidationError, match="examples is"):
            maker(examples=wrong)


def test_a_class_is_selected_by_its_examples() -> None:
    @capability_node
    class Sail(BaseCapability):
        name = "sail"
        description = "Judges the wind."
        examples = ["shall we take the boat out?"]

        async def execute(self) -> dict[str, Any]:
            return {"SAILING": {"value": "Go!"}}

        provides = ["SAILING"]

    @capability_node(examples=["how full is the tank?"])
    def tank_level() -> float:
        """Read the water level of the tank."""
        return 2.5

    graph = build_graph([Sail, tank_level])
    out = graph.invoke({"messages": [("user", "Shall we take the boat out today?")]})
    assert out["planning_execution_plan"]["steps"][0]["capability"] == "sail"


# --- nodes, graphs ------------------------------------------------------------------------------


def node_with(**attributes: Any) -> type[BaseInfrastructureNode]:
    async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    namespace = {"name": "extra", "description": "Extra.", "execute": staticmethod(execute)}
    return type("Extra", (BaseInfrastructureNode,), {**namespace, **attributes})


@pytest.mark.parametrize("name", ["befor", "afer", "quite"])
def test_a_misspelled_option_of_a_node_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=f"'{name}'") as caught:
        infrastructure_node(**{name: "classifier"})
    assert "Write" in str(caught.value)
    with pytest.raises(ValidationError, match=rf"Extra\.{name} is not a declaration"):
        infrastructure_node(node_with(**{name: "classifier"}))


def test_a_node_may_set_the_options_of_the_decorator_as_attributes() -> None:
    made: Any = infrastructure_node(node_with(before="classifier", quiet=True, _own=1, LIMIT=2))
    spec = made.infrastructure_spec
    assert (spec.before, spec.quiet) == ("classifier", True)


async def test_a_misspelled_keyword_of_a_graph_is_refused_with_the_nearest_name() -> None:
    for make in (build_graph, bind):
        with pytest.raises(ConfigurationError, match=r"'budjet'.*Write 'budget'"):
            make([declared_function()], budjet=None)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=r"open_graph.*'polices'.*Write 'policies'"):
        async with open_graph([declared_function()], polices=[]):
            pass
    with pytest.raises(ConfigurationError, match=r"open_graph.*'checkpointer'"):
        async with open_graph([declared_function()], checkpointer=None):
            pass
    with pytest.raises(CapgraphError, match=r"'descripton'.*Write 'description'"):
        declared_graph(descripton="x")
    with pytest.raises(ConfigurationError, match=r"as_mcp_server.*'nam'.*Write 'name'"):
        as_mcp_server([declared_function()], nam="desk")
    with pytest.raises(ConfigurationError, match=r"'instructons'.*Write 'instructions'"):
        as_mcp_server([declared_function()], instructons="Ask first.")


def test_a_misspelled_keyword_of_an_initializer_names_the_created_class() -> None:
    with pytest.raises(ConfigurationError, match=r"ReActAgent .*'max_stepz'") as caught:
        ReActAgent(None, max_stepz=3)
    assert "'max_steps'" in str(caught.value)
    with pytest.raises(TypeError):  # as Python raises for any other function
        ReActAgent(None, services=None, tolls=[])


@pytest.mark.parametrize(("name", "value"), [("once", True), ("parameters", ["a"]), ("task", "x")])
def test_plain_data_under_the_name_of_a_method_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=rf"replace BaseCapability\.{name}"):
        declared_class(**{name: value})


def test_methods_and_callables_under_the_name_of_a_method_override_it() -> None:
    def never(word: str, task: str) -> bool:
        return word in task

    made = declared_class(matches_task=functools.partial(never, "x"), classifier_guide=None)
    assert made.matches_task("axb")


def test_a_string_as_examples_is_refused() -> None:
    with pytest.raises(ValidationError, match="should be a list"):
        declared_tool(examples="pay the order")


class Pay(BaseCapability):
    """Pay a bill."""

    name = "pay"
    description = "Pays a bill"
    effect = "once"

    async def execute(self) -> dict[str, Any]:
        return {}


def test_a_declaration_assigned_after_decoration_is_refused() -> None:
    decorated: Any = capability_node(type("Paid", (Pay,), {}))
    for name, value in (("requires_approval", True), ("effect", "none"), ("name", "other")):
        with pytest.raises(ValidationError, match=rf"Paid\.{name}"):
            setattr(decorated, name, value)
    late: Any = type("Late", (Pay,), {})
    late.requires_approval = True
    assert capability_node(late).capability_spec.requires_approval is True
    again: Any = capability_node(type("Again", (decorated,), {"requires_approval": True}))
    decorated.note = "The author's own"
    assert again.capability_spec.requires_approval is True


def test_a_declaration_of_a_node_assigned_after_decoration_is_refused() -> None:
    @infrastructure_node
    class Record(BaseInfrastructureNode):
        """Record a turn."""

        name = "record"
        description = "Records a turn"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
            return {}

    with pytest.raises(ValidationError, match=r"Record\.after"):
        Record.after = "respond"
