"""What the documentation shows exists: commands, options, targets, links, codes, events, rooms."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml

from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.main import app
from capgraph.configs.errors import CapgraphError
from capgraph.configs.settings import Settings, load_settings
from capgraph.evaluation import Dataset
from capgraph.infrastructure.gateway import HELP
from capgraph.planning.problems import PROBLEM_KINDS
from capgraph.telemetry import Event

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(p for p in DOCS.rglob("*.md") if "_build" not in p.parts),
    ]
)
COMMAND_LINE = (DOCS / "guides" / "command_line.md").read_text(encoding="utf-8")
EVALUATE = (DOCS / "guides" / "evaluate.md").read_text(encoding="utf-8")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str) -> Iterator[str]:
    """Yield the code blocks of a page: fenced ones and indented ones."""
    for fenced in re.finditer(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        yield fenced[1]
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for indented in re.finditer(r"(?:^    .*\n|^\n)*^    .*\n?", plain, re.M):
        yield re.sub(r"^    ", "", indented[0], flags=re.M).strip("\n") + "\n"


def shown_commands() -> list[Any]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line.strip() for block in blocks(text) for line in block.splitlines()]
        spans = re.findall(r"`(capgraph [^`]+)`", text)
        for line in dict.fromkeys([*lines, *spans]):
            if line.startswith("capgraph ") and "COMMAND" not in line:
                found.append(pytest.param(line, id=f"{named(page)}: {line}"))
    return found


def inert_command() -> Any:
    """Return the real command, whose parts parse what is typed and do nothing."""
    command = typer.main.get_command(app)
    groups = {path[:1]: command.commands[path[0]] for path in leaves(command)}
    for part in [*leaves(command).values(), *groups.values()]:
        part.callback = lambda **_: None
    return command


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not hasattr(command, "commands"):
        return {path: command}
    found: dict[tuple[str, ...], Any] = {}
    for name, part in command.commands.items():
        found |= leaves(part, (*path, name))
    return found


def options_of(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and p.name != "help"]


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("line", shown_commands())
def test_a_shown_command_can_be_typed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    command = inert_command()
    if arguments[0] in {option for p in options_of(command) for option in p.opts}:
        return  # of the command itself; some of them would act
    group = command.commands.get(arguments[0]) if len(arguments) == 1 else None
    if hasattr(group, "commands"):
        return  # a group of commands, named as such
    assert command.main(arguments, prog_name="capgraph", standalone_mode=False) in {None, 0}, line


@pytest.mark.parametrize("path", leaves(typer.main.get_command(app)), ids=" ".join)
def test_every_command_and_option_is_documented(path: tuple[str, ...]) -> None:
    page = EVALUATE if path == ("eval",) else COMMAND_LINE
    assert f"capgraph {' '.join(path)}" in page
    for option in options_of(leaves(typer.main.get_command(app))[path]):
        for name in [*option.opts, *option.secondary_opts]:
            assert f"`{name}" in page, f"{name} of {' '.join(path)}"


def test_every_documented_option_exists() -> None:
    command = typer.main.get_command(app)
    real = {"--help"}
    for part in [command, *leaves(command).values()]:
        for option in options_of(part):
            real |= {*option.opts, *option.secondary_opts}
    for page in (COMMAND_LINE, EVALUATE):
        assert set(re.findall(r"`(--[a-z][\w-]*)", page)) <= real


def test_the_documented_exit_codes_are_the_real_ones() -> None:
    table = COMMAND_LINE.split("## Exit codes")[1].split("##")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)}
    assert documented == {int(code) for code in ExitCode}


def test_every_slash_command_is_documented() -> None:
    table = COMMAND_LINE.split("## capgraph chat")[1].split("## capgraph")[0]
    assert set(re.findall(r"^\| `(/[\w:]+)`", table, re.M)) == set(HELP)


# --- targets, links, pages ---------------------------------------------------------------------


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line.strip() for block in blocks(text) for line in block.splitlines()]
        spans = re.findall(r"`(make [^`]+)`", text)
        for line in [*lines, *spans]:
            if line.startswith("make "):
                assert line.split()[1] in targets, f"{named(page)}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```(?!\{).*?^```", "", text, flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"^```\{image\} (\S+)", text, re.M)
    for target in targets:
        path, _, _ = target.partition("#")
        if path and "://" not in path:
            assert (page.parent / path).exists(), target
    for target in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text):
        base = DOCS if target.startswith("/") else page.parent
        found = (base / f"{target.lstrip('/')}.md").resolve()
        assert found.exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_names_a_place_of_one_machine(page: Path) -> None:
    assert not re.search(r"(?<![\w.])/(?:work|root|tmp|home)/", page.read_text(encoding="utf-8"))


def test_pictures_name_no_place_and_fetch_nothing() -> None:
    picture = (DOCS / "_static" / "demo.svg").read_text(encoding="utf-8")
    assert "@font-face" not in picture
    assert not re.search(r"/(?:work|root|tmp|home)/", picture)


def error_classes() -> dict[str, str]:
    """Return the errors with a code of their own, each under its public name."""
    found: dict[str, str] = {}
    for room in ("base", "behaviors", "governance", "telemetry", "serve", "compat.element"):
        module = importlib.import_module(f"capgraph.{room}")
        for name in getattr(module, "__all__", vars(module)):
            cls = getattr(module, name)
            if isinstance(cls, type) and issubclass(cls, CapgraphError) and "code" in vars(cls):
                found.setdefault(cls.code, f"capgraph.{room}.{name}")
    return found


def codes_in_sources() -> set[str]:
    """Return every error code that the sources contain, those of HTTP answers included."""
    return {
        code
        for folder in ("framework", "infrastructure", "capabilities", "configs")
        for path in (ROOT / folder).rglob("*.py")
        for code in re.findall(r"[\"'](CG-[A-Z0-9-]+)[\"']", path.read_text(encoding="utf-8"))
    }


def test_every_error_code_has_a_page_and_every_page_a_code() -> None:
    pages = {p.stem for p in (DOCS / "errors").glob("CG-*.md")} - set(PROBLEM_KINDS)
    assert pages == codes_in_sources() - set(PROBLEM_KINDS)
    index = (DOCS / "errors" / "index.md").read_text(encoding="utf-8")
    for code, name in error_classes().items():
        assert f"| {{doc}}`{code}` | `{name}` |" in index
        page = (DOCS / "errors" / f"{code}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {code}: ")
        assert f"`{name}`" in page


def test_every_event_is_documented() -> None:
    union = get_args(Event)[0]
    real = {get_args(cls.model_fields["event_type"].annotation)[0] for cls in get_args(union)}
    page = (DOCS / "guides" / "stream_to_a_web_client.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == real


# --- settings, extras, rooms -------------------------------------------------------------------


def yaml_blocks() -> list[Any]:
    found = []
    for page in PAGES:
        for number, block in enumerate(blocks(page.read_text(encoding="utf-8"))):
            first = re.match(r"([a-z_]+):(?: |$)", block)
            if first and (first[1] in Settings.model_fields or first[1] == "version"):
                found.append(pytest.param(block, id=f"{named(page)}-{number}"))
    return found


@pytest.mark.parametrize("block", yaml_blocks())
def test_a_shown_configuration_can_be_used(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPGRAPH_KEY", "0123456789abcdef")
    if block.startswith("version:"):
        assert Dataset.model_validate(yaml.safe_load(block)).cases
        return
    file = tmp_path / "capgraph.yml"
    file.write_text(block, encoding="utf-8")
    load_settings(file)


def test_the_extras_in_the_readme_are_the_real_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("## Install")[1]
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", readme, re.M)
    documented = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert documented == set(project["optional-dependencies"]) - {"docs", "dev", "bench"}
    used = set(re.findall(r"capgraph\[([\w,]+)\]", "\n".join(p.read_text("utf-8") for p in PAGES)))
    assert {name for names in used for name in names.split(",")} <= set(
        project["optional-dependencies"]
    )


def test_every_room_is_named_in_the_architecture() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Packages")[1].split("##")[0]
    named_rooms = set(
        re.findall(r"`([\w.]+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    )
    rooms = {f"capgraph.{p.parent.name}" for p in (ROOT / "capgraph").glob("*/__init__.py")}
    assert named_rooms == rooms


def test_the_import_order_of_the_architecture_is_the_one_that_is_enforced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    enforced = [{n.strip() for n in row.split("|")} for row in layers]
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    shown = page.split("## Import rules")[1].split("A package may import")[0]
    documented = [{n.strip() for n in row.split("|")} for row in shown.split("→")]
    assert documented == enforced


def test_the_readme_and_the_picture_ask_what_the_demonstration_asks() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    question = re.search(r'^\s+"(What .*\?)" \\$', makefile, re.M)
    assert question is not None
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert question[1] in " ".join(readme.split())
    picture = (DOCS / "_make_picture.py").read_text(encoding="utf-8")
    assert question[1] in re.sub(r'"\s*"', "", picture)


def test_the_readme_repeats_the_table_of_properties() -> None:
    table = (DOCS / "comparison" / "properties.md").read_text(encoding="utf-8").strip()
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=named)
def test_the_reference_lists_what_there_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    listed, there = (
        re.findall(r"^\| (`.*?`) \|", one, re.M)
        for one in (text, runpy.run_path(str(DOCS / "_make_reference.py"))["made"](text))
    )
    assert listed == there, "run: python docs/_make_reference.py"
