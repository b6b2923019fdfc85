"""Tests of the registry: registration, discovery, and errors."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from capgraph import BaseCapability, CapabilityContext, Registry
from capgraph.base import (
    BaseInfrastructureNode,
    ClassifierExample,
    OrchestratorGuide,
    RegistryError,
    TaskClassifierGuide,
    infrastructure_node,
)
from capgraph.engine.bind import as_registry
from capgraph.registry.discovery import import_object
from tests.support.toys import Reading, capability


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a package of one module for each keyword; it is gone after the test."""
    name = "capgraph_test_package"

    def write(**modules: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return name

    yield write
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


SOURCE = '''
from capgraph import CapabilityContext
from capgraph.base import capability_node

class {type}(CapabilityContext):
    value: float

@capability_node
async def {name}() -> {type}:
    """Do {name}."""
    return {type}(value=1)
'''


# --- register ----------------------------------------------------------------------------------------


@pytest.mark.row("B19")
def test_a_new_registry_contains_only_the_built_in_nodes() -> None:
    registry = Registry()
    assert {"router", "respond", "error"} <= set(registry.infrastructure)
    assert not registry.capabilities
    assert not registry.context_types


def test_registries_are_independent() -> None:
    one, two = Registry(), Registry()
    one.register(capability("a"))
    one.declare_provided("X")
    assert not two.capabilities
    assert not two.provided_types


def test_register_returns_the_item_and_keeps_the_order() -> None:
    registry = Registry()
    first, second = capability("b"), capability("a")
    assert registry.register(first) is first
    registry.register(second)
    assert list(registry.capabilities) == ["b", "a"]


def test_only_the_same_item_can_be_registered_twice() -> None:
    registry = Registry()
    first = registry.register(capability("a"))
    registry.register(first)
    with pytest.raises(RegistryError, match=r"'a' is registered twice.*override=True"):
        registry.register(capability("a"))
    other = capability("a")
    registry.register(other, override=True)
    assert registry.capabilities["a"].cls is other
    assert list(registry.with_(first, first).capabilities) == ["a"]
    assert list(as_registry([first, first]).capabilities) == ["a"]
    for make in (registry.with_, lambda *items: as_registry(items)):
        with pytest.raises(RegistryError, match="'a' is registered twice"):
            make(first, other)


@pytest.mark.parametrize("name", ["__start__", "__input__", "a|b", "a:b", "a\nb", "\u202eabc"])
def test_an_invalid_node_name_is_refused(name: str) -> None:
    with pytest.raises(RegistryError, match=r"capability name .*letters, digits"):
        Registry().register(capability(name))
    parts = {"name": name, "description": "Looks on", "execute": staticmethod(looking)}
    watch = type("Watch", (BaseInfrastructureNode,), parts)
    with pytest.raises(RegistryError, match=r"infrastructure node name .*letters, digits"):
        Registry().register(infrastructure_node(before="classifier")(watch))


async def looking(state: Any) -> dict[str, Any]:
    return {}


def test_duplicate_context_type_names_are_refused() -> None:
    registry = Registry()
    registry.register(Reading)
    with pytest.raises(RegistryError, match="READING"):
        registry.register(type("Reading", (CapabilityContext,), {"__module__": __name__}))


@pytest.mark.parametrize("item", [5, "text", object, BaseCapability, lambda: None])
def test_undecorated_items_are_refused(item: Any) -> None:
    with pytest.raises(RegistryError, match="Fix:"):
        Registry().register(item)


def test_an_undecorated_child_of_a_decorated_class_is_refused() -> None:
    child = type("Child", (capability("a"),), {})
    with pytest.raises(RegistryError, match="capability_node"):
        Registry().register(child)


def test_the_mappings_are_read_only() -> None:
    with pytest.raises(TypeError):
        Registry().capabilities["a"] = None  # type: ignore[index]


def test_the_error_for_an_unknown_capability_lists_the_known_ones() -> None:
    registry = Registry()
    registry.register(capability("a"))
    with pytest.raises(RegistryError, match=r"'b'.*Use one of: a"):
        registry.capability("b")


# --- discover ---------------------------------------------------------------------------------------


def test_discovery_imports_a_package_without_private_modules(package: Any) -> None:
    name = package(
        one=SOURCE.format(type="One", name="make_one") + "\nAlso = One\n",
        two=SOURCE.format(type="Two", name="make_two"),
        _private="raise RuntimeError('must not be imported')",
    )
    registry = Registry()
    found = registry.discover(name)
    assert found == ["ONE", "make_one", "TWO", "make_two"]
    assert set(registry.capabilities) == {"make_one", "make_two"}
    assert set(registry.context_types) == {"ONE", "TWO"}


def test_import_failures_are_reported_with_module_and_cause_and_the_rest_is_kept(
    package: Any,
) -> None:
    name = package(
        bad="import nowhere_to_be_found",
        good=SOURCE.format(type="One", name="make_one"),
        worse="1 / 0",
    )
    registry = Registry()
    with pytest.raises(RegistryError) as info:
        registry.discover(name)
    for part in (f"{name}.bad", "nowhere_to_be_found", f"{name}.worse", "ZeroDivisionError"):
        assert part in str(info.value)
    assert list(registry.capabilities) == ["make_one"]


def test_imported_classes_are_not_registered(package: Any) -> None:
    name = package(
        one=SOURCE.format(type="One", name="make_one"),
        uses="from capgraph_test_package.one import One, make_one",
    )
    assert Registry().discover(name) == ["ONE", "make_one"]


def test_discovery_of_an_unknown_package_is_refused() -> None:
    with pytest.raises(RegistryError, match="no_such_package"):
        Registry().discover("no_such_package")


def test_duplicate_names_across_modules_are_refused(package: Any) -> None:
    name = package(
        one=SOURCE.format(type="One", name="same"), two=SOURCE.format(type="Two", name="same")
    )
    with pytest.raises(RegistryError, match="'same' is registered twice"):
        Registry().discover(name)


# --- entry points -----------------------------------------------------------------------------------


def entry_points(monkeypatch: pytest.MonkeyPatch, *points: metadata.EntryPoint) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: list(points))


def test_entry_points_may_be_modules_or_items(
    package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = package(
        one=SOURCE.format(type="One", name="make_one"),
        two=SOURCE.format(type="Two", name="make_two"),
    )
    group = "capgraph.capabilities"
    entry_points(
        monkeypatch,
        metadata.EntryPoint("whole", f"{name}.one", group),
        metadata.EntryPoint("single", f"{name}.two:make_two", group),
    )
    registry = Registry()
    found = registry.load_entry_points()
    assert set(registry.capabilities) == {"make_one", "make_two"}
    assert {"make_one", "single"} <= set(found)


def test_an_entry_point_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("broken", "no_such_module:X", "capgraph.capabilities")
    entry_points(monkeypatch, point)
    with pytest.raises(RegistryError, match=r"'broken'.*no_such_module"):
        Registry().load_entry_points()


@pytest.mark.parametrize("reference", ["json", "json:", ":dumps", "json:nothing", "nothing_here:x"])
def test_an_invalid_import_reference_is_refused(reference: str) -> None:
    with pytest.raises(RegistryError, match="Fix:"):
        import_object(reference)


# --- configure --------------------------------------------------------------------------------------


def test_include_exclude_and_override(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    for name in "abc":
        registry.register(capability(name))
    module = ModuleType("capgraph_replacements")
    module.Other = capability("b")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "capgraph_replacements", module)
    registry.configure(
        include=["a", "b"], exclude=["a"], override={"b": "capgraph_replacements:Other"}
    )
    assert list(registry.capabilities) == ["b"]
    assert registry.capabilities["b"].cls is module.Other
    with pytest.raises(RegistryError, match="cannot replace the capability 'z'"):
        registry.configure(override={"z": "capgraph_replacements:Other"})
    with pytest.raises(RegistryError, match="'q'"):
        registry.configure(include=["q"])


# --- describe and guides ----------------------------------------------------------------------------


def test_describe_returns_a_readable_list() -> None:
    registry = Registry()
    registry.register(capability("b"))
    registry.register(capability("a"))
    assert registry.describe() == "- b: Does b\n- a: Does a"


@pytest.mark.row("B36", "B38")
def test_planning_guides_are_sorted_by_priority_and_name() -> None:
    registry = Registry()
    for name, priority in [("zed", 0), ("late", 9), ("alpha", 0), ("first", -1)]:
        guide = OrchestratorGuide(instructions=f"Use {name}", priority=priority)
        registry.register(
            capability(name, _create_orchestrator_guide=lambda self, guide=guide: guide)
        )
    registry.register(capability("silent"))
    text = registry.planning_guides(["zed", "late", "alpha", "first", "silent", "unknown"])
    assert text == (
        "# CAPABILITY PLANNING GUIDELINES\n"
        "## First\nUse first\n## Alpha\nUse alpha\n## Zed\nUse zed\n## Late\nUse late"
    )
    assert registry.planning_guides(["silent"]) == ""


def test_candidates_exclude_always_active_capabilities_and_split_examples() -> None:
    guide = TaskClassifierGuide(
        instructions="When asked",
        examples=[ClassifierExample("yes", True, "r"), ClassifierExample("no", False, "r")],
    )
    registry = Registry()
    registry.register(capability("a", _create_classifier_guide=lambda self: guide))
    registry.register(capability("b", always_active=True))
    (candidate,) = registry.candidates()
    assert (candidate.name, candidate.instructions) == ("a", "When asked")
    assert (candidate.positives, candidate.negatives) == (("yes",), ("no",))


# --- a registry as a value ------------------------------------------------------------------------


def test_a_frozen_registry_refuses_every_change() -> None:
    registry = Registry()
    one = registry.register(capability("one"))
    registry.freeze()
    for change in (
        lambda: registry.register(capability("two")),
        lambda: registry.register(one),
        lambda: registry.unregister("one"),
        lambda: registry.declare_provided("READING"),
        lambda: registry.discover("capgraph.infrastructure", override=True),
    ):
        with pytest.raises(RegistryError, match=r"frozen.*registry\.with_"):
            change()
    assert registry.freeze() is registry


def test_with_returns_a_changed_copy() -> None:
    registry = Registry(provided_types=["PLACE"])
    registry.register(capability("one"))
    registry.register(capability("two"))
    registry.freeze()
    new = capability("two", description="Better")
    other = registry.with_(capability("three"), new, Reading, without=["one"])
    assert list(other.capabilities) == ["two", "three"]
    assert other.capabilities["two"].cls is new
    assert other.context_types["READING"] is Reading
    assert other.provided_types == registry.provided_types
    assert list(registry.capabilities) == ["one", "two"]
    assert not registry.context_types
    other.register(capability("four"))
    with pytest.raises(RegistryError, match="'nine'"):
        registry.with_(without=["nine"])


# --- what discovery passes by ---------------------------------------------------------------------

UNDECORATED = """
from capgraph.base import BaseCapability, BaseInfrastructureNode, capability_node

class _Shared(BaseCapability):
    name = description = "shared"
    async def execute(self): ...

class Half(BaseCapability):
    "Only others derive from it: it has no name."

@capability_node
class Good(_Shared):
    name = "good"

class Child(Good):
    name = "child"

class Watcher(BaseInfrastructureNode):
    name = description = "watch"
    @staticmethod
    async def execute(state): ...
"""


def test_discovery_reports_undecorated_classes(package: Any) -> None:
    registry = Registry()
    with pytest.raises(RegistryError) as caught:
        registry.discover(package(things=UNDECORATED))
    text = str(caught.value)
    assert "things.Child is not decorated (@capability_node)" in text
    assert "things.Watcher is not decorated (@infrastructure_node)" in text
    assert list(registry.capabilities) == ["good"]


# --- infrastructure nodes of one's own --------------------------------------------------------------


def infrastructure(name: str, **attributes: Any) -> Any:
    async def execute(state: Any) -> dict[str, Any]:
        return {}

    namespace = {"name": name, "description": "Looks on", "execute": staticmethod(execute)}
    base = (BaseInfrastructureNode,)
    return infrastructure_node(type("Watcher", base, {**namespace, **attributes}))


@pytest.mark.row("B19")
def test_an_unreachable_node_is_refused() -> None:
    registry = Registry()
    with pytest.raises(RegistryError, match=r"'monitoring'.*never run.*task_extraction, classif"):
        registry.register(infrastructure("monitoring"))
    with pytest.raises(RegistryError, match=r"before 'router'"):
        registry.register(infrastructure("monitoring", before="router"))
    with pytest.raises(ValueError, match="before='classifier' and after='respond'"):
        infrastructure("monitoring", before="classifier", after="respond")
    registry.register(infrastructure("monitoring", after="respond"))
    assert registry.infrastructure["monitoring"].after == "respond"


def test_candidates_of_a_frozen_registry_are_cached() -> None:
    registry = Registry()
    registry.register(capability("a"))
    assert registry.candidates() is not registry.candidates()
    registry.freeze()
    assert registry.candidates() is registry.candidates()
    assert [c.name for c in registry.with_(capability("b")).candidates()] == ["a", "b"]


ADAPTED = '''
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from typing import TypedDict

from capgraph import CapabilityContext, capability_node
from capgraph.adapters import agent_capability, graph_capability, tool_capability

class Order(CapabilityContext):
    amount: int

class State(TypedDict):
    amount: int

@tool
def search(query: str) -> str:
    """Search the archive."""
    return query

def shout(text: str) -> str:
    """Shout a text."""
    return text.upper()

async def poet(task: str) -> str:
    return task

builder = StateGraph(State).add_node("double", lambda state: {"amount": state["amount"] * 2})
graph = builder.add_edge(START, "double").compile(name="pricing")

found = tool_capability(search)
priced = graph_capability(graph, input=Order, output=Order)
CAPABILITIES = [tool_capability(shout), agent_capability(poet)]
'''


def test_discovery_finds_adapted_tools_graphs_and_agents_and_lists_of_them(package: Any) -> None:
    name = package(things=ADAPTED)
    registry = Registry()
    assert registry.discover(name) == ["ORDER", "search", "pricing", "shout", "poet"]
    assert list(registry.capabilities) == ["search", "pricing", "shout", "poet"]


def test_an_adapted_capability_in_two_modules_is_registered_once(package: Any) -> None:
    uses = "from capgraph_test_package.a_things import CAPABILITIES, found, Order\n"
    registry = Registry()
    assert registry.discover(package(a_things=ADAPTED, uses=uses)).count("search") == 1


def test_discovery_registers_an_imported_function_that_the_module_decorates(package: Any) -> None:
    library = "def level() -> float:\n    'Read the level.'\n    return 1.0\n"
    uses = (
        "from capgraph import capability_node\n"
        "from capgraph_test_package.library import level\n"
        "read = capability_node(level)\n"
    )
    assert Registry().discover(package(library=library, uses=uses)) == ["level"]


def test_discovery_leaves_imported_capabilities_to_their_own_module(package: Any) -> None:
    uses = "from capgraph_test_package.things import one, One\nboth = [one]\n"
    name = package(things=SOURCE.format(type="One", name="one"), uses=uses)
    assert Registry().discover(f"{name}.uses") == []


def test_discovery_finds_adapted_capabilities_in_mappings_and_sets(package: Any) -> None:
    things = ADAPTED.replace("CAPABILITIES = [", "BY_NAME = {'a': tool_capability(shout)}\nSET = {")
    things = things.replace(
        "tool_capability(shout), agent_capability(poet)]", "agent_capability(poet)}"
    )
    registry = Registry()
    registry.discover(package(things=things))
    assert list(registry.capabilities) == ["search", "pricing", "shout", "poet"]


def test_a_provided_class_is_registered_as_a_context_type() -> None:
    class Tanks(CapabilityContext):
        CONTEXT_TYPE: ClassVar[str] = "TANKS"

    registry = Registry()
    registry.declare_provided(Tanks)

    assert registry.context_types["TANKS"] is Tanks
