"""The demonstration's own evaluation set, and the command over it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from capgraph import Registry, configs
from capgraph.base import CapgraphError
from capgraph.cli.commands.eval import evaluate as command
from capgraph.configs.settings import load_settings
from capgraph.evaluation import evaluate, load_dataset
from tests.support import totals
from tests.support.openai_server import openai_server

DEMO = Path(configs.__file__).with_name("demo_eval.yml")

CAPABILITIES = Path(totals.__file__).read_text(encoding="utf-8")
SET = """
version: 1
name: totals
config: agent.yml
cases:
  - name: total
    request: What is the total of the numbers?
    capabilities: [read, add]
    edges: [read -> add]
    answer: [{number: 3}]
  - name: song
    request: Sing a love song
    capabilities: []
"""

Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    module = f"eval_totals_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(CAPABILITIES, encoding="utf-8")
    agent = {"name": "totals", "modules": [module]}
    (tmp_path / "agent.yml").write_text(json.dumps(agent), encoding="utf-8")
    (tmp_path / "less.yml").write_text(json.dumps({**agent, "exclude": ["add"]}), "utf-8")
    (tmp_path / "set.yml").write_text(SET, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(folder)
    app = typer.Typer()
    app.command()(command)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return call


def test_a_good_run(run: Command) -> None:
    result = run("set.yml")
    assert result.exit_code == 0, result.output
    lines = dict(line.split("\t", 1) for line in result.stdout.splitlines())
    assert lines["cases without a problem"].startswith("2 of 2")
    assert lines["node F1 of the plans"].startswith("1.000")
    assert lines["model calls"].startswith("0")


def test_failures_are_shown_with_a_diff_and_fail_the_command(run: Command, folder: Path) -> None:
    text = SET.replace("number: 3", "number: 4").replace("[read, add]", "[read]")
    (folder / "set.yml").write_text(text.replace("    edges: [read -> add]\n", ""), "utf-8")
    result = run("set.yml")
    assert result.exit_code == 1
    assert "FAILED total: What is the total of the numbers?" in result.output
    assert "  + step add\n" in result.output
    assert "  - the answer does not contain the number 4\n" in result.output
    assert "answer: The total is 3." in result.output
    assert "Below threshold: passed is 0.500, below 1" in result.output


def test_least_values_of_the_set_decide(run: Command, folder: Path) -> None:
    def write(text: str, least: str) -> None:
        first = text.index("\ncases:")
        whole = f"{text[:first]}\nthresholds: {least}{text[first:]}"
        (folder / "set.yml").write_text(whole, "utf-8")

    write(SET.replace("number: 3", "number: 4"), "{passed: 0.5}")
    assert run("set.yml").exit_code == 0
    write(SET.replace("number: 3", "number: 4"), "{passed: 0, recall: 1}")
    assert run("set.yml").exit_code == 0
    write(SET.replace("[read, add]", "[read, add, add]"), "{passed: 0, node_f1: 0.9}")
    result = run("set.yml")
    assert result.exit_code == 1
    assert "Below threshold: node_f1 is 0.800, below 0.9" in result.output


def test_two_configurations_side_by_side(run: Command, folder: Path) -> None:
    judged = ("    capabilities: [read, add]\n", "    edges: [read -> add]\n")
    text = SET
    for line in judged:
        text = text.replace(line, "")
    (folder / "set.yml").write_text(text, "utf-8")
    result = run("set.yml", "--compare", "less.yml", "--json", "out/figures.json")
    assert result.exit_code == 0, "the exit code is about the first configuration"
    lines = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    assert lines[0] == ["figure", "agent", "less", "at least"]
    assert lines[1][1:3] == ["2 of 2", "1 of 2"]
    assert "FAILED less: total" in result.output
    data = json.loads((folder / "out" / "figures.json").read_text("utf-8"))
    assert data["ok"] is True
    assert [report["figures"]["passed"] for report in data["reports"]] == [1.0, 0.5]


def test_models_side_by_side_and_the_run_is_stored(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with openai_server() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        result = run("set.yml", "--model", "openai:a", "--model", "openai:b", "--case", "total")
    lines = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    assert lines[0] == ["figure", "openai:a", "openai:b", "at least"]
    assert any(line[0] == "cost in US dollars" for line in lines)
    [stored] = (folder / "set_runs").glob("*.json")
    data = json.loads(stored.read_text("utf-8"))
    assert [report["label"] for report in data["reports"]] == ["openai:a", "openai:b"]
    assert data["reports"][0]["figures"]["model_calls"] >= 1


def test_runs_are_stored_where_the_server_shows_them(run: Command, folder: Path) -> None:
    agent = json.loads((folder / "agent.yml").read_text("utf-8"))
    agent["serve"] = {"evaluations": str(folder / "kept")}
    (folder / "agent.yml").write_text(json.dumps(agent), "utf-8")
    assert run("set.yml").exit_code == 0
    assert len(list((folder / "kept").glob("*.json"))) == 1
    assert run("set.yml", "--runs", "mine").exit_code == 0
    assert len(list((folder / "mine").glob("*.json"))) == 1


def test_figures_on_standard_output_are_json_alone(run: Command) -> None:
    result = run("set.yml", "--json", "-", "--case", "song")
    data = json.loads(result.stdout)
    assert [case["name"] for case in data["reports"][0]["cases"]] == ["song"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.yml"], "cannot be read"),
        (["set.yml", "--case", "sing"], "total, song"),
        (["set.yml", "--compare", "less.yml"], "unknown capability 'add'"),
        (["set.yml", "--config", "none.yml"], "cannot be read"),
        (["set.yml", "--json", "agent.yml/x.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_used_is_told(run: Command, arguments: list[str], words: str) -> None:
    # The program's entry turns the error into its text and exit code 2.
    result = run(*arguments)
    assert isinstance(result.exception, CapgraphError)
    assert words in str(result.exception)


async def test_the_demonstration_keeps_what_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # plots are written to the working directory
    dataset = await asyncio.to_thread(load_dataset, DEMO)
    settings = load_settings(str(dataset.config))
    report = await evaluate(dataset, Registry.from_settings(settings), settings=settings)
    told: dict[str, Any] = {result.case.name: result.problems for result in report.failures}
    assert [str(item) for item in report.check_thresholds(dataset.thresholds)] == [], told
    unrelated = [result for result in report.results if "unrelated" in result.case.name]
    assert len(unrelated) >= 4
    assert all(result.nodes == () for result in unrelated)


def test_a_configured_role_is_the_caller_of_every_case(run: Command, folder: Path) -> None:
    agent = json.loads((folder / "agent.yml").read_text("utf-8"))
    allowed = {"roles": [{"role": "operator", "mode": "full_access"}]}
    with_roles = {**agent, "permissions": allowed}
    (folder / "agent.yml").write_text(json.dumps({**with_roles, "role": "operator"}), "utf-8")
    (folder / "less.yml").write_text(json.dumps(with_roles), "utf-8")
    result = run("set.yml")
    assert result.exit_code == 0, result.output
    denied = run("set.yml", "--config", "less.yml", "--case", "total")
    assert denied.exit_code == 1
    assert "no capabilities are registered" not in denied.output
    assert "you may not use any capability" in denied.output
