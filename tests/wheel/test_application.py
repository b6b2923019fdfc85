"""The documented examples and a configured application, run where only the wheel is installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import PATIENCE
from tests.support.desk import (
    ANSWERS,
    CONFIG,
    STEP_ANSWERS,
    STEPS,
    has_ended,
    run_plan,
    write_desk,
)
from tests.wheel.conftest import ROOT, Environment

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(900)]


def blocks(page: str) -> list[str]:
    """Return the Python blocks of a page in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def test_the_first_example_of_the_readme_runs(environment: Environment, tmp_path: Path) -> None:
    first = blocks("README.md")[0]
    (tmp_path / "example.py").write_text(first, encoding="utf-8")
    done = environment.run("python", "-W", "error", "example.py", cwd=tmp_path)
    assert done.stdout.strip() == re.findall(r"print\(.*\)  # (.*)", first)[0]


def test_the_blocks_of_the_tutorial_are_one_program(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "tutorial.py").write_text("\n".join(blocks("docs/tutorial.md")), encoding="utf-8")
    done = environment.run("python", "-W", "error", "tutorial.py", cwd=tmp_path)
    assert "21.0 °C" in done.stdout


@pytest.fixture
def desk(environment: Environment, tmp_path: Path) -> Path:
    assert len(CONFIG.splitlines()) <= 25
    write_desk(tmp_path, str(environment.bin / "python"))
    return tmp_path


def test_a_configured_application_answers_and_ends_its_server(
    environment: Environment, desk: Path
) -> None:
    for question, answer in ANSWERS.items():
        assert answer in environment.run("capgraph", "ask", question, "-q", cwd=desk).stdout
        assert has_ended(desk)
    asked = environment.run("capgraph", "ask", "Write a poem", "--plain", cwd=desk, check=False)
    assert asked.returncode == 4, "a person is asked first"
    poem = environment.run("capgraph", "ask", "Write a poem", "--yes", "-q", cwd=desk)
    assert "Roses are red." in poem.stdout


def test_a_configured_application_passes_its_evaluation(
    environment: Environment, desk: Path
) -> None:
    environment.run("capgraph", "eval", "set.yml", cwd=desk)
    assert has_ended(desk)


def test_a_configured_application_is_checked_without_an_error(
    environment: Environment, desk: Path
) -> None:
    done = environment.run("capgraph", "check", "--json", "--no-ask-models", cwd=desk)
    findings = json.loads(done.stdout)
    assert not [found for found in findings if found["level"] == "error"]
    good = {found["area"] for found in findings if found["level"] == "ok"}
    assert {"tools[0]", "graphs[0]", "agents[0]", "mcp[0]"} <= good


def test_a_configured_application_is_served(environment: Environment, desk: Path) -> None:
    words = ("serve", "--port", "0", "--db", "threads.db", "--no-open")
    variables = {"HOME": str(desk), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    with (desk / "err").open("w") as err:
        process = subprocess.Popen(
            [str(environment.bin / "capgraph"), *words],
            cwd=desk,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    assert process.stdout is not None
    with process.stdout:
        try:
            line = process.stdout.readline().split()
            assert line, (desk / "err").read_text()
            answer = run_plan(line[1], line[2], {"steps": STEPS})
            assert all(text in answer for text in STEP_ANSWERS)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    assert has_ended(desk)
