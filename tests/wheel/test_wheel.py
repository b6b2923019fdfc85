"""The installed package: what it holds, and that it works where nobody sees the checkout."""

from __future__ import annotations

import compileall
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, Environment, build

OLD_NAMES = ("framework", "capabilities", "infrastructure", "configs")


def entries(wheel: Path) -> dict[str, str]:
    """Return the digest of each file of a wheel but the one that lists them."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if not name.endswith(("/RECORD", "/WHEEL"))
        }


def test_the_wheel_of_the_sdist_holds_what_the_wheel_of_the_tree_holds(
    wheel: Path, tmp_path: Path
) -> None:
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    assert entries(build(source, tmp_path / "wheel", "wheel")) == entries(wheel)
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)], check=True
    )


def test_the_wheel_holds_one_package_and_the_pytest_plugin(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in entries(wheel) if ".dist-info/" not in name}
    assert tops == {"capgraph", "capgraph_pytest.py"}
    shipped = [
        path.relative_to(ROOT).as_posix()
        for folder in OLD_NAMES
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.is_symlink()
    ]
    expected = {
        f"capgraph/{name.removeprefix('framework/')}" for name in shipped if "framework/" in name
    } | {f"capgraph/{name}" for name in shipped if "framework/" not in name}
    assert expected <= entries(wheel).keys()
    done = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", "--ignore", "W009", str(wheel)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_it_is_imported_from_the_environment_without_a_warning(
    environment: Environment, tmp_path: Path
) -> None:
    code = "import capgraph, capgraph_pytest; capgraph.Registry(); print(capgraph.__file__)"
    found = environment.python(code, cwd=tmp_path).stdout
    assert str(environment.site) in found
    pip = [sys.executable, "-m", "pip", "--python", str(environment.bin / "python"), "check"]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_without_source_files_it_is_imported_and_lists_its_names(
    new_environment: Callable[[], Environment], tmp_path: Path
) -> None:
    bare = new_environment()
    package = bare.site / "capgraph"
    assert compileall.compile_dir(package, quiet=2, legacy=True)
    for source in package.rglob("*.py"):
        source.unlink()
    code = (
        "import capgraph, capgraph.base\n"
        "from capgraph import build_graph, capability_node\n"
        "@capability_node(examples=['how full is the tank?'])\n"
        "def tank_level() -> float:\n"
        "    'Read the water level of the tank.'\n"
        "    return 2.5\n"
        "out = build_graph([tank_level]).invoke({'messages': [('user', 'How full is the tank?')]})\n"
        "print(out['messages'][-1].content, 'BaseCapability' in dir(capgraph))\n"
    )
    # A capability's source lines are not needed either.
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    assert "2.5 True" in bare.run("python", "app.py", cwd=tmp_path).stdout


def test_a_new_project_answers_and_its_tests_pass(environment: Environment, tmp_path: Path) -> None:
    environment.run("capgraph", "new", "project", "station", cwd=tmp_path)
    project = tmp_path / "station"
    answer = environment.run("capgraph", "ask", "How warm is it on average?", cwd=project)
    assert "°C" in answer.stdout or "C" in answer.stdout
    done = environment.run("python", "-m", "pytest", "-q", cwd=project)
    assert " passed" in done.stdout
    module = environment.run("python", "-m", "capgraph", "--version", cwd=project)
    assert module.stdout == environment.run("capgraph", "--version", cwd=project).stdout


PROJECT = """
import capabilities, configs, framework, infrastructure

assert capabilities.MINE and configs.MINE and framework.MINE and infrastructure.MINE

import asyncio
from capgraph import Registry, build_graph
from capgraph.configs.settings import load_settings

settings = load_settings(
    modules=["capgraph.capabilities.contexts", "capgraph.capabilities.time_range_parsing",
             "capgraph.capabilities.query_data", "capabilities.own"],
    provided_types=["DATA_SOURCE"],
    data_folders=[FOLDER],
)
graph = build_graph(Registry.from_settings(settings), settings=settings)
given = {"messages": [("user", "What was the highest level?")],
         "capability_context_data": {"DATA_SOURCE": {"data": {"files": [FILE]}}}}
out = asyncio.run(graph.ainvoke(given))
print(out["messages"][-1].content)
"""


def test_a_project_with_packages_of_the_same_names_uses_the_data_capabilities(
    environment: Environment, tmp_path: Path
) -> None:
    for name in OLD_NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n", encoding="utf-8")
    (tmp_path / "capabilities" / "own.py").write_text(
        "from capgraph import capability_node\n"
        "@capability_node(examples=['open the valve'])\n"
        "def open_valve() -> str:\n    'Open the valve.'\n    return 'open'\n",
        encoding="utf-8",
    )
    data = tmp_path / "tank.csv"
    data.write_text("day,level\n2026-01-01,3\n2026-01-02,7\n2026-01-03,5\n", encoding="utf-8")
    code = PROJECT.replace("FOLDER", repr(str(tmp_path))).replace("FILE", repr(str(data)))
    (tmp_path / "main.py").write_text(code, encoding="utf-8")
    assert "7" in environment.run("python", "main.py", cwd=tmp_path).stdout


def test_another_distribution_with_these_names_changes_nothing(
    new_environment: Callable[[], Environment], tmp_path: Path
) -> None:
    shared = new_environment()
    for name in OLD_NAMES:  # as an installer would lay them into the same site-packages
        (shared.site / name).mkdir()
        (shared.site / name / "__init__.py").write_text("OTHER = True\n", encoding="utf-8")
        (shared.site / name / "settings.py").write_text("OTHER = True\n", encoding="utf-8")
    shared.run("capgraph", "new", "project", "station", cwd=tmp_path)
    shared.run("capgraph", "ask", "How warm is it on average?", cwd=tmp_path / "station")
    code = (
        "import framework\n"
        "from capgraph.compat.framework_alias import install_framework_alias\n"
        "from capgraph.configs.errors import ConfigurationError\n"
        "assert framework.OTHER\n"
        "try:\n    install_framework_alias()\n"
        "except ConfigurationError as exc:\n    print('refused', exc)\n"
    )
    assert "refused" in shared.python(code, cwd=tmp_path).stdout


def test_old_names_are_imported_only_after_the_alias_is_installed(
    environment: Environment, tmp_path: Path
) -> None:
    assert "No module named 'framework'" in (
        environment.python("import framework", cwd=tmp_path, check=False).stderr
    )
    code = (
        "from capgraph.compat import install_framework_alias\n"
        "install_framework_alias()\n"
        "import framework, framework.base.errors, configs.streaming, capabilities.memory\n"
        "from framework.base import BaseCapability, capability_node\n"
        "from infrastructure import router\n"
        "import capgraph, capgraph.base, capgraph.base.errors, capgraph.configs.streaming\n"
        "import capgraph.infrastructure.router, capgraph.capabilities.memory\n"
        "assert framework is capgraph and BaseCapability is capgraph.base.BaseCapability\n"
        "assert framework.base.errors is capgraph.base.errors\n"
        "assert configs.streaming is capgraph.configs.streaming\n"
        "assert capabilities.memory is capgraph.capabilities.memory\n"
        "assert router is capgraph.infrastructure.router\n"
        "assert framework.base.errors.__spec__.name == 'capgraph.base.errors'\n"
        "try:\n    import framework.nothing\n"
        "except ModuleNotFoundError as exc:\n    print('missing', exc.name)\n"
    )
    assert "missing framework.nothing" in environment.python(code, cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["framework", "framework.base", "configs", "capabilities.memory"])
def test_in_a_checkout_the_folders_are_the_same_modules(name: str, tmp_path: Path) -> None:
    """The folders are on the path there: they must not become second copies."""
    new = f"capgraph.{name}".replace("capgraph.framework", "capgraph")
    code = (
        f"import importlib\nold = importlib.import_module({name!r})\n"
        f"assert old is importlib.import_module({new!r})\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)
