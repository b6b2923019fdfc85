"""Probes of servers whose structured output is unknown, on loopback."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capgraph import open_graph
from capgraph.cli.main import app
from capgraph.models import probing
from capgraph.models.roles import PROBED_METHODS
from capgraph.testing import ScriptedModel
from tests.support.local_servers import FORM, TEXT, LocalServer, llama_cpp_server
from tests.support.openai_server import Reply, fail, give, say
from tests.support.readings import READ, RESPOND, sensor_registry

PLAN = {"steps": [READ, RESPOND]}
KEPT = give({"word": "capgraph"})
IGNORED = say('{"word": "ready"}')


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probing, "PROBE_SECONDS", 5.0)
    PROBED_METHODS.clear()
    with llama_cpp_server() as running:
        running.on(TEXT, say("It reads 3.5."))
        yield running
    PROBED_METHODS.clear()


async def ask(server: LocalServer, **more: Any) -> Any:
    own = {"model": "openai:gpt-test", "base_url": server.url, "api_key": "none", **more}
    async with open_graph(sensor_registry(), model={"default": own}) as graph:
        return await graph.ainvoke({"messages": [("user", "What does the sensor say?")]})


def methods(server: LocalServer) -> list[str]:
    """Name the method of each request for a form."""
    return [
        "json_schema" if body.get("response_format") else "function_calling"
        for body in server.asked(FORM)
    ]


async def test_one_probe_at_the_start_is_cached_and_logged(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(FORM, KEPT, give(PLAN))
    with caplog.at_level(logging.INFO):
        await ask(server)
    assert methods(server) == ["json_schema", "json_schema"]
    assert "enforces json_schema (probed)" in caplog.text
    PROBED_METHODS.clear()  # as in the next process
    server.on(FORM, give(PLAN)).on(TEXT, say("It reads 3.5."))
    await ask(server)
    assert len(server.asked(FORM)) == 3


async def test_a_server_that_ignores_forms_is_told_them_in_the_prompt(server: LocalServer) -> None:
    server.on(FORM, IGNORED, IGNORED)
    server.replies[TEXT] = [say(json.dumps(PLAN)), say("It reads 3.5.")]
    out = await ask(server)
    assert methods(server) == ["json_schema", "function_calling"]
    assert out["execution_outcome"]["status"] == "completed"


async def test_a_server_that_refuses_schemas_is_asked_for_calls(server: LocalServer) -> None:
    server.on(FORM, fail(400), IGNORED)
    server.replies[TEXT] = [say(json.dumps(PLAN)), say("It reads 3.5.")]
    out = await ask(server)
    assert out["execution_outcome"]["status"] == "completed"


async def test_a_failed_probe_decides_nothing(server: LocalServer) -> None:
    server.on(FORM, Reply(status=401, text="bad key"), give(PLAN))
    out = await ask(server)
    assert out["execution_outcome"]["status"] == "completed"
    assert not PROBED_METHODS


@pytest.mark.parametrize("structured", ["json_schema", "function_calling"])
async def test_nothing_is_probed_if_the_setting_is_given(
    server: LocalServer, structured: str
) -> None:
    server.on(FORM, give(PLAN))
    await ask(server, structured=structured)
    assert len(server.asked(FORM)) == 1


async def test_a_scripted_model_is_not_probed() -> None:
    model = ScriptedModel(responses=[PLAN, "It reads 3.5."])
    async with open_graph(sensor_registry(), model=model) as graph:
        await graph.ainvoke({"messages": [("user", "What does the sensor say?")]})
    assert len(model.calls) == 2


def test_check_shows_the_method_of_each_role_and_why(server: LocalServer, tmp_path: Path) -> None:
    server.on(FORM, KEPT)
    own = {"base_url": server.url, "api_key": "none"}
    settings = {
        "models": {
            "planning": {"model": "openai:gpt-test", **own},
            "answer": {"model": "openai:gpt-test", **own, "structured": "text"},
        }
    }
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(settings))
    server.on(TEXT, say("ready"), say("ready"))
    run = CliRunner().invoke(app, ["check", "--models", "--config", str(file), "--db", "memory"])
    assert "planning: json_schema (found by a probe)" in run.output
    assert "answer: text (set by structured)" in run.output
