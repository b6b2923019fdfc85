"""An application whose tool, graph, agent and MCP server stand in its configuration alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support import PATIENCE
from tests.support.desk import ANSWERS, CONFIG, STEP_ANSWERS, STEPS, has_ended, run_plan, write_desk

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.may_block, pytest.mark.timeout(600)]
Capgraph = Callable[..., subprocess.CompletedProcess[str]]


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(folder / "data")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert len(CONFIG.splitlines()) <= 25
    write_desk(tmp_path, sys.executable)
    return tmp_path


@pytest.fixture
def capgraph(folder: Path) -> Capgraph:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "capgraph", *words],
            cwd=folder,
            env=_environment(folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


def test_ask_uses_each_of_them_and_closes_the_server(capgraph: Capgraph, folder: Path) -> None:
    for question, answer in ANSWERS.items():
        done = capgraph("ask", question, "-q")
        assert answer in done.stdout, done.stdout + done.stderr
        assert has_ended(folder)
    for question in ("Write a poem", "Close the gate of the lock"):
        assert capgraph("ask", question, "--plain").returncode == 4, "a person is asked first"
    assert "Roses are red." in capgraph("ask", "Write a poem", "--yes", "-q").stdout


def test_eval_uses_each_of_them_and_closes_the_server(capgraph: Capgraph, folder: Path) -> None:
    done = capgraph("eval", "set.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert has_ended(folder)


def test_check_and_capabilities_list_each_of_them(capgraph: Capgraph, folder: Path) -> None:
    listed = json.loads(capgraph("capabilities", "--json").stdout)
    told = {row["name"]: (row["effect"], row["approval"]) for row in listed}
    assert told == {
        "order": ("none", "no"),
        "search": ("none", "no"),
        "pricing": ("none", "no"),
        "poet": ("none", "yes"),
        "pier_tide": ("none", "no"),
        "pier_close_gate": ("once", "yes"),
    }
    findings = json.loads(capgraph("check", "--json", "--no-ask-models").stdout)
    good = {finding["area"] for finding in findings if finding["level"] == "ok"}
    assert {"tools[0]", "graphs[0]", "agents[0]", "mcp[0]"} <= good
    assert not [finding for finding in findings if finding["level"] == "error"]
    assert has_ended(folder)


def test_check_reports_each_entry_that_fails_and_goes_on(capgraph: Capgraph, folder: Path) -> None:
    config = yaml.safe_load((folder / "capgraph.yml").read_text())
    config["tools"][0]["import"] = "desk_app:serach"
    config["agents"][0]["import"] = "no_such_module:poet"
    config["mcp"][0]["command"] = ["no-such-program"]
    (folder / "capgraph.yml").write_text(yaml.safe_dump(config))
    done = capgraph("check", "--json", "--no-ask-models")
    errors = [one["text"] for one in json.loads(done.stdout) if one["level"] == "error"]
    assert [text.split(":")[0].split(".")[0] for text in errors] == [
        "tools[0]",
        "agents[0]",
        "mcp[0]",
    ]
    refused = capgraph("ask", "Search the archive")
    assert refused.returncode == 2
    assert "tools[0]" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_serve_uses_each_of_them_and_closes_the_server(folder: Path) -> None:
    words = ("serve", "--port", "0", "--db", "threads.db", "--no-open")
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "capgraph", *words],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line, (folder / "err").read_text()
        answer = run_plan(line[1], line[2], {"steps": STEPS})
        assert all(text in answer for text in STEP_ANSWERS)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close()  # type: ignore[union-attr]
    assert has_ended(folder)
