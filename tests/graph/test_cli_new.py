"""What ``capgraph new`` writes runs and passes its own tests."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import project, typed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with project(tmp_path, monkeypatch, {}) as found:
        yield found


@pytest.fixture
def new(folder, capsys):
    return partial(typed(capsys), "new")


def in_project(folder, *command):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )


def test_a_new_project_with_capabilities_and_a_node_passes_its_tests(folder, new):
    assert new("project", "my-station")[0] == 0
    project = folder / "my-station"
    for arguments in (
        ("capability", "wind-speed"),
        ("capability", "tide", "--function"),
        ("node", "brief-answer"),
    ):
        code, _, err = new(*arguments, "--in", str(project))
        assert (code, err) == (0, "")
    done = in_project(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
    done = in_project(project, "capgraph", "ask", "How warm is it on average?", "-q")
    assert done.stdout == "The mean temperature at roof is 21.0 °C.\n", done.stderr
    done = in_project(project, "capgraph", "check")
    assert "0 error(s)" in done.stdout, done.stdout
    done = in_project(project, "capgraph", "capabilities")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "average",
        "read_station",
        "tide",
        "wind_speed",
    ]


def test_what_is_written_is_formatted_and_clean(folder, new):
    new("project", "station")
    new("capability", "wind", "--in", "station")
    new("capability", "tide", "--function", "--in", "station")
    new("node", "brief", "--role", "clarify", "--in", "station")
    for command in (("ruff", "format", "--check"), ("ruff", "check", "--select", "E,F,D1,UP,B")):
        done = in_project(
            folder / "station", *command, "--isolated", "--line-length", "100", "station"
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_overwritten(folder, new):
    new("project", "station")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert new("project", "station")[0] == 2
    assert new("capability", "average", "--in", "station")[0] == 2
    assert new("node", "brief", "--role", "nobody", "--in", "station")[0] == 2
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "name", ["capgraph", "json", "class", "../up", "1st", "", "a b", "x" * 99, "tests"]
)
def test_names_that_cannot_work_are_refused(folder, new, name):
    code, _, err = new("project", name)
    assert code == 2
    assert "Fix:" in err
    assert list(folder.iterdir()) == []


def test_capabilities_belong_to_a_project(folder, new):
    code, _, err = new("capability", "wind")
    assert code == 2
    assert "no capgraph.yml" in err
    (folder / "capgraph.yml").write_text("modules: [json]")
    code, _, err = new("capability", "wind")
    assert code == 2
    assert "no package of the same folder" in " ".join(err.split())


def test_a_second_node_stands_beside_the_first(folder, new):
    new("project", "station")
    new("node", "brief", "--in", "station")
    for more in (("other",), ("error",), ("third", "--role", "clarify")):
        code, _, err = new("node", *more, "--in", "station")
        assert (code, err) == (0, "")
    code, _, err = new("node", "fourth", "--role", "clarify", "--in", "station")
    assert code == 2
    assert "The node 'clarify' is already replaced by" in " ".join(err.split())
    done = in_project(folder / "station", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_node_that_nothing_would_find_is_not_written(folder, new):
    new("project", "station")
    config = folder / "station" / "capgraph.yml"
    config.write_text(config.read_text().replace("  - station.nodes\n", ""))
    code, _, err = new("node", "brief", "--in", "station")
    assert code == 2
    assert "station.nodes is not listed under 'infrastructure'" in " ".join(err.split())
    assert not (folder / "station" / "station" / "nodes" / "brief.py").exists()


def test_a_new_project_is_served_by_the_agent_server(folder, new):
    new("project", "station")
    served = json.loads((folder / "station" / "langgraph.json").read_text())
    module, _, name = served["graphs"]["agent"].partition(":")
    assert (folder / "station" / module).is_file()
    assert f"def {name}(" in (folder / "station" / module).read_text()


KEEPS = """
import asyncio
from keeping.agent import make_graph

async def turns():
    for _ in range(2):
        async with make_graph() as graph:
            thread = {"configurable": {"thread_id": "1"}}
            given = {"messages": [("user", "How warm is it on average?")]}
            out = await graph.ainvoke(given, thread)
    print(len(out["messages"]))

asyncio.run(turns())
"""


def test_a_new_project_keeps_threads_in_the_database_that_it_configures(folder, new):
    new("project", "keeping")
    project = folder / "keeping"
    with (project / "capgraph.yml").open("a") as config:
        config.write(f"persistence: {{url: 'sqlite:///{project}/threads.sqlite'}}\n")
    done = in_project(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (project / "threads.sqlite").exists(), "tests leave the database alone"
    (project / "keeps.py").write_text(KEEPS)
    done = in_project(project, "keeps")
    assert done.stdout.split() == ["4"], done.stderr
