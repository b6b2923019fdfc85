"""Container file and compose file of the guide: every command, setting, and address in them exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml

from capgraph.cli.main import app
from capgraph.configs.settings import Settings
from capgraph.serve.security import PUBLIC_PATHS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
INSTRUCTIONS = [
    tuple(line.split(" ", 1))
    for line in (FOLDER / "Dockerfile").read_text().splitlines()
    if line and not line.startswith("#")
]
KNOWN_INSTRUCTIONS = {
    *("FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "HEALTHCHECK", "CMD")
}
MAX_DRAIN_SECONDS = 25


def check_command(arguments: list[str]) -> None:
    """Parse a command line without running it."""
    program, name, *options = arguments
    assert program == "capgraph"
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, [*options], resilient_parsing=True)
    known = {option for parameter in command.params for option in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known


@pytest.mark.parametrize("name", ["server", "worker"])
def test_service_runs_a_command_with_known_options_and_settings(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    check_command(service["command"])
    for variable, value in service["environment"].items():
        monkeypatch.setenv(variable, value)
    assert Settings().persistence.url == service["environment"]["CAPGRAPH_PERSISTENCE__URL"]
    assert {*service["secrets"]} <= COMPOSE["secrets"].keys()
    assert int(service["stop_grace_period"].removesuffix("s")) > MAX_DRAIN_SECONDS
    mounted = [part for part in service["command"] if part.startswith("/run/secrets/")]
    assert {Path(one).name for one in mounted} <= {*service["secrets"]}


def test_image_has_the_extras_runs_the_server_and_checks_a_public_path() -> None:
    assert {name for name, _ in INSTRUCTIONS} <= KNOWN_INSTRUCTIONS
    image = dict(INSTRUCTIONS)
    extras = re.findall(r"\[(.*)\]", image["ARG"])[0].split(",")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*extras} <= declared["optional-dependencies"].keys()
    check_command(json.loads(image["CMD"]))
    (address,) = re.findall(r"http://[^']*", image["HEALTHCHECK"])
    assert urlsplit(address).path in PUBLIC_PATHS
    assert str(urlsplit(address).port) == image["EXPOSE"]
    assert image["USER"] == "agent"


def test_image_builds_where_an_engine_and_the_base_image_can_be_had(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    base = next(value.split(" ")[0] for name, value in INSTRUCTIONS if name == "FROM")
    if docker is None or subprocess.run([docker, "pull", base], capture_output=True).returncode:
        pytest.skip("no container engine, or no base image")
    (tmp_path / "agent.yml").write_text("name: agent\n")
    command = [docker, "build", "--file", FOLDER / "Dockerfile", tmp_path]
    assert subprocess.run(command, capture_output=True).returncode == 0
