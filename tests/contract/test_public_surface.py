"""Every public name resolves, is documented and is typed."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOTS = ("capgraph",)


def packages() -> Iterator[str]:
    for root in ROOTS:
        package = importlib.import_module(root)
        yield root
        for info in pkgutil.walk_packages(package.__path__, prefix=f"{root}."):
            private = any(part.startswith("_") for part in info.name.split("."))
            if info.ispkg and not private:
                yield info.name


def public_names() -> Iterator[tuple[str, str]]:
    for name in packages():
        for exported in getattr(importlib.import_module(name), "__all__", ()):
            yield name, exported


NAMES = sorted(public_names())


def test_there_is_a_public_surface() -> None:
    assert len(NAMES) > 100


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_says_what_it_is_for_and_lists_what_it_exports(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__, package
    exported = list(getattr(module, "__all__", ()))
    assert len(exported) == len(set(exported)), "a name is listed twice"
    # What a package imports from its own modules is meant for others, so it is listed.
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(f"{package}.")
        and name != "lazy_exports"
    }
    listed = {*exported, *(own & sys.stdlib_module_names)}
    assert own <= listed, f"not listed: {sorted(own - listed)}"


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[f"{p}.{n}" for p, n in NAMES])
def test_a_public_name_is_documented_and_typed(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value):
        assert is_documented(value), f"{name} has no docstring of its own"
        for attribute, member in public_methods(value):
            assert inspect.getdoc(member), f"{name}.{attribute} has no docstring"
            check_typed(member, f"{name}.{attribute}")
    elif inspect.isfunction(value):
        assert value.__doc__, f"{name} has no docstring"
        check_typed(value, name)


def is_documented(cls: type[Any]) -> bool:
    text = cls.__dict__.get("__doc__") or ""
    return bool(text) and not text.startswith(f"{cls.__name__}(")  # what a dataclass makes up


def public_methods(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    if issubclass(cls, enum.Enum):
        return
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        raw = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        raw = raw.fget if isinstance(raw, property) else raw
        if inspect.isfunction(raw) and (raw.__module__ or "").split(".")[0] in ROOTS:
            if name == "execute" or name == "langgraph_node":  # any signature may stand there
                continue
            yield name, raw


def check_typed(function: Any, label: str) -> None:
    for position, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if position == 0 and name in {"self", "cls"}:
            continue
        assert parameter.annotation is not parameter.empty, f"{label}: {name} has no type"
    assert function.__annotations__.get("return", "-") != "-", f"{label} has no return type"


@pytest.mark.parametrize("root", ROOTS)
def test_importing_a_package_configures_nothing(root: str) -> None:
    # In a process of its own: a test that ran the command here has configured logging.
    code = f"import logging, {root}; assert not logging.getLogger('capgraph').handlers"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_room_has_its_unit_tests() -> None:
    root = Path(__file__).parents[2]
    # A room that only has its name so far has no tests either.
    rooms = {path.parent.name for path in (root / "capgraph").glob("*/[!_]*.py")}
    unit = root / "tests" / "unit"
    assert {path.name for path in unit.iterdir() if any(path.glob("test_*.py"))} == rooms


def test_a_graph_brings_nothing_that_nobody_declared() -> None:
    """What a room gives is imported when it is asked for; this keeps the import of a graph short."""
    code = (
        "import sys, capgraph.graph\n"
        "print([name for name in sys.modules if name in {"
        "'capgraph.governance.policies', 'capgraph.governance.permissions',"
        "'capgraph.governance.recovery',"
        "'capgraph.behaviors', 'capgraph.telemetry.otel', 'capgraph.telemetry.builtin_sinks',"
        "'capgraph.telemetry.audit_log', 'capgraph.telemetry.agent_events',"
        "'capgraph.approvals.standing_rules', 'capgraph.planning.repair', 'capgraph.planning.recipes', 'capgraph.selection', 'yaml',"
        "'capgraph.engine.auditing', 'capgraph.configs.settings', 'capgraph.models'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", sorted(packages()))
def test_type_checkers_and_python_see_the_same_exports(package: str) -> None:
    module = importlib.import_module(package)
    if "__getattr__" not in vars(module):
        return
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("capgraph.")
        for alias in node.names
        if alias.asname
    }
    assert sorted(told) == dir(module)
    assert sorted(module.__all__) == sorted({*told} - sys.stdlib_module_names)
    for name, place in told.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(place)), name)
    with pytest.raises(AttributeError, match=package):
        _ = module.nothing_of_this_name


@pytest.mark.parametrize("package", ["capgraph", "capgraph.graph"])
def test_a_star_import_does_not_replace_a_module_of_the_standard_library(package: str) -> None:
    names: dict[str, Any] = {"signal": signal}
    exec(f"from {package} import *", names)
    assert names["signal"] is signal
    assert importlib.import_module(package).signal is not signal
    assert callable(names["build_graph"])
