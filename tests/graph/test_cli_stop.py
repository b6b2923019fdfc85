"""``capgraph stop``: what an operator types, and what a run then says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capgraph.cli.main import app

pytestmark = pytest.mark.may_block


@pytest.fixture
def stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.db").touch()

    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["stop", *arguments, "--db", str(tmp_path / "t.db")])
        return found.output + repr(found.exception or "")

    return run


def test_stop_list_and_let_go(stop: Any) -> None:
    assert "trip" not in stop("--list")
    assert "Stopped." in stop("trip", "--reason", "wrong price")
    assert "Stopped." in stop("--user", "ann")
    assert "Stopped." in stop("--all")
    told = stop("--list")
    assert all(word in told for word in ("trip", "wrong price", "ann", "all"))
    assert "Cleared." in stop("--clear", "trip")
    assert "It was not stopped." in stop("trip", "--clear")
    assert "trip" not in stop("--list")


def test_it_has_to_be_said_what(stop: Any) -> None:
    assert "Exactly one of thread, user, and all" in stop()
    assert "Exactly one of thread, user, and all" in stop("trip", "--all")
