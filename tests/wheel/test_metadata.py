"""The distribution: one version, and metadata that a package index can show."""

from __future__ import annotations

import importlib.metadata
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = PROJECT["project"]["version"]
SOURCE: str = PROJECT["project"]["urls"]["Source"]


def run(*command: str, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    [found] = importlib.metadata.distributions(name="capgraph", path=[str(wheel)])
    return found.metadata  # type: ignore[return-value]


def links(text: str) -> Iterator[str]:
    """Yield the address of every link and picture of a Markdown text."""
    yield from re.findall(r"\]\(\s*<?([^)\s>]+)", text)
    yield from re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", text)
    yield from re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.M)


# --- version ------------------------------------------------------------------------------------


def test_the_command_names_the_version_of_the_project() -> None:
    assert importlib.metadata.version("capgraph") == VERSION
    assert run("-m", "capgraph", "--version").strip() == f"capgraph {VERSION}"


def test_the_documentation_names_the_version_of_the_project() -> None:
    settings = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    assert settings["release"] == settings["version"] == VERSION
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", changes, re.M)[0] == VERSION


def test_the_wheel_has_the_version_of_the_project(wheel: Path, metadata: Message) -> None:
    assert wheel.name.startswith(f"capgraph-{VERSION}-")
    assert metadata["Version"] == VERSION


# --- metadata -----------------------------------------------------------------------------------


def test_the_description_has_absolute_links_only(metadata: Message) -> None:
    description = str(metadata.get_payload() or metadata["Description"])
    found = list(links(description))
    assert len(found) >= 10
    assert [one for one in found if not one.startswith("https://")] == []
    tagged = re.compile(rf"{re.escape(SOURCE)}/(blob|raw)/v{re.escape(VERSION)}/([^#]+)")
    ours = [match for one in found if (match := tagged.match(one))]
    assert len(ours) >= 10
    for kind, path in (match.groups() for match in ours):
        assert (ROOT / path).is_file(), path
        assert (kind == "raw") == path.endswith((".png", ".svg")), path


def test_the_description_is_the_readme(metadata: Message) -> None:
    description = str(metadata.get_payload() or metadata["Description"])
    relative = re.sub(rf"{re.escape(SOURCE)}/(?:blob|raw)/v[^/]+/", "", description)
    assert relative.split() == (ROOT / "README.md").read_text(encoding="utf-8").split()


def test_addresses_of_the_repository_have_one_prefix() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", text)
    assert set(found) == {SOURCE}
    urls = PROJECT["project"]["urls"]
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(SOURCE) for url in urls.values())


def test_the_metadata_is_what_an_index_accepts(metadata: Message) -> None:
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert any(one.startswith("Operating System ::") for one in classifiers)
    # A license expression excludes license classifiers.
    assert metadata["License-Expression"] == PROJECT["project"]["license"]
    assert not any(one.startswith("License ::") for one in classifiers)
    assert metadata["Keywords"]
