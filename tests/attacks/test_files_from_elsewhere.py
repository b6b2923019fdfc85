"""YAML files, evaluation sets and recipes that somebody else wrote."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from capgraph.base import CapgraphError, PlanError
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.yaml_files import read_yaml
from capgraph.evaluation import load_dataset
from capgraph.planning import StaticCatalog
from capgraph.planning.recipes import Recipe

SET = "version: 1\nname: s\ncases:\n  - {name: a, request: r, answer: [{matches: '%s'}]}\n"


def write(folder: Path, text: str, name: str = "set.yml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def doubling(levels: int, form: str) -> str:
    lines = ["a0: &a0 {k: 1}"]
    for n in range(1, levels):
        lines.append(f"a{n}: &a{n} " + form.format(f"*a{n - 1}"))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        doubling(40, "{{<<: [{0}, {0}]}}"),
        doubling(40, "[{0}, {0}]"),
        "a: &a {" + ", ".join(f"k{n}: 1" for n in range(9000)) + "}\n"
        "b: {<<: [" + ", ".join(["*a"] * 2000) + "]}\n",
    ],
    ids=["merge", "aliases", "wide"],
)
def test_a_short_file_that_grows_is_refused(tmp_path: Path, text: str) -> None:
    """In a process of its own, for the file from before the bounds never ended."""
    path = write(tmp_path, text)
    code = (
        "import sys; from capgraph.configs.yaml_files import read_yaml\n"
        "from capgraph.configs.errors import ConfigurationError\n"
        f"try: read_yaml({str(path)!r})\n"
        "except ConfigurationError: sys.exit(7)"
    )
    found = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert found.returncode == 7


def test_merge_keys_of_ordinary_size_still_work(tmp_path: Path) -> None:
    path = write(tmp_path, "base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}\n")
    assert read_yaml(path)["more"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "value",
    [
        "0x" + "f" * 5000,
        "0b" + "1" * 20_000,
        "0" + "7" * 6000,
        "59" + ":59" * 3000,
        "2024-13-45",
        "!!int nine",
        "9" * 5000,
        "!!float x",
        "!!binary é",
        "!!python/object:os.x {}",
    ],
)
def test_a_value_that_its_type_refuses_names_file_and_key(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, f"limits:\n  max_steps: {value}\n")
    with pytest.raises(ConfigurationError) as caught:
        read_yaml(path)
    assert "set.yml" in str(caught.value)
    assert "max_steps" in str(caught.value) or "line 2" in str(caught.value)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="larger than"):
        read_yaml(write(tmp_path, "a: " + "x" * 5_000_000))


def test_an_evaluation_set_does_not_read_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    found = load_dataset(
        write(tmp_path, SET.replace("request: r", "request: '${SECRET_TOKEN}'") % "x")
    )
    assert found.cases[0].request == "${SECRET_TOKEN}"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*a){20}$", "([a-z]+)*[A-Z]"])
def test_a_pattern_of_a_set_is_searched_in_linear_time(tmp_path: Path, pattern: str) -> None:
    (check,) = load_dataset(write(tmp_path, SET % pattern)).cases[0].answer
    began = time.perf_counter()
    assert check.find_problem("a" * 100_000 + "!") is not None
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "pattern",
    [
        ".{0,1000}.{0,1000}.{0,1000}z",
        "((.{9}){9}){20}z",
        "(.?){5000}z",
        "[^a]{2000}",
        "\\d{1,}" * 1200,
    ],
)
def test_a_pattern_with_many_repetitions_is_refused(tmp_path: Path, pattern: str) -> None:
    """A variant: linear in the text, but with thousands of states per character."""
    with pytest.raises(ConfigurationError, match="size"):
        load_dataset(write(tmp_path, SET % pattern))


def test_patterns_of_ordinary_size_are_used(tmp_path: Path) -> None:
    pattern = r"^\d{4}-\d{2}-\d{2} [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} .{0,200}$"
    (check,) = load_dataset(write(tmp_path, SET % pattern)).cases[0].answer
    text = "2024-01-02 0123abcd-1111-2222-3333-0123456789ab rain"
    assert check.find_problem(text) is None


def test_a_pattern_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="regular expression"):
        load_dataset(write(tmp_path, SET % "a(?=b)"))


@pytest.mark.parametrize("name", ['"own.yml\\0"', "a" * 5000, "a/" * 3000 + "../agent.yml"])
def test_an_impossible_file_name_in_a_set_is_refused(tmp_path: Path, name: str) -> None:
    """A variant: names for which the operating system raises an error."""
    with pytest.raises(ConfigurationError):
        load_dataset(write(tmp_path, f"config: {name}\n" + SET % "x"))


@pytest.mark.parametrize(
    "line",
    [
        "config: ../agent.yml\n",
        "config: /etc/passwd\n",
        "config: sub/../../agent.yml\n",
    ],
)
def test_a_set_names_no_file_outside_its_folder(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "sets"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match="outside"):
        load_dataset(write(folder, line + SET % "x"))
    recorded = SET.replace("request: r", "request: r, recording: ../other.json") % "x"
    with pytest.raises(ConfigurationError, match="outside"):
        load_dataset(write(folder, recorded))


def test_a_link_out_of_the_folder_is_no_way_around(tmp_path: Path) -> None:
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "inside").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="outside"):
        load_dataset(write(folder, "config: inside/agent.yml\n" + SET % "x"))


def recipe(text: str, *names: str) -> Recipe:
    return Recipe(
        recipe=1,
        name="report",
        description="Reports.",
        parameters={name: {"type": "string"} for name in names},
        steps=[{"context_key": "a", "capability": "say", "parameters": {"text": text}}],
    )


def filled(made: Recipe, **given: str) -> str:
    step = {"context_key": "r", "capability": "report", "parameters": given}
    (found,) = made.expand_step(step, StaticCatalog({}))
    return str(found["parameters"]["text"])


def test_a_value_that_holds_a_placeholder_is_not_filled_again() -> None:
    made = recipe("{one} and {two}", "one", "two")
    assert filled(made, one="{two}", two="{one}") == "{two} and {one}"


def test_a_template_that_grows_is_refused() -> None:
    made = recipe("{one}" * 1000, "one")
    with pytest.raises((PlanError, CapgraphError), match="longer than"):
        filled(made, one="x" * 240_000)
