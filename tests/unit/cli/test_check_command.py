"""What ``capgraph check`` looks at."""

import asyncio
import json
import sys

import pytest

from capgraph.cli.commands import check as checks
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.settings import Settings
from capgraph.graph.diagnostics import collect_settings_findings
from capgraph.registry import Registry
from capgraph.testing import ScriptedModel
from tests.support.commands import project, typed


def test_late_imported_extras_are_checked():
    settings = Settings(modules=["capgraph.capabilities.plotting"])
    assert [f.text for f in checks.check_extras(settings, offline=True)] == [
        "offline: installed",
        "data: installed",
    ]
    assert list(checks.check_extras(Settings(), offline=False)) == []


def test_missing_extra_is_reported_with_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    [found] = checks.check_extras(Settings(), offline=True)
    assert found.level == "error"
    assert "'numpy'" in found.text
    assert found.fix == "pip install 'capgraph[offline]'"


def test_server_extras_are_checked_if_configured(monkeypatch):
    known = [f.text for f in checks.check_extras(Settings(serve={}), offline=False)]
    assert known == ["serve: installed", "mcp: installed", "a2a: installed"]
    for missing in ("starlette", "mcp.server", "a2a.server.routes"):
        monkeypatch.setitem(sys.modules, missing, None)
    findings = [*checks.check_extras(Settings(serve={}), offline=False)]
    assert [(f.level, f.fix) for f in findings] == [
        ("error", "pip install 'capgraph[serve]'"),
        ("warning", "pip install 'capgraph[mcp]'"),
        ("warning", "pip install 'capgraph[a2a]'"),
    ]
    # What is asked for is not left out.
    tools = Settings(serve={"mcp": {"tools": ["read_level"]}})
    assert [f.level for f in checks.check_extras(tools, offline=False)][1] == "error"


PROXY = {"trusted": ["127.0.0.1"], "user_header": "X-User"}


@pytest.mark.parametrize(
    ("serve", "level"),
    [
        ({}, "ok"),
        ({"mcp": {"tools": ["no_such_tool"]}}, "error"),
        ({"uploads": {"folder": "data/uploads"}, "proxy": PROXY}, "error"),
    ],
)
def test_check_refuses_what_the_server_refuses(serve, level, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings(serve=serve, data_folders=["data"])
    registry = Registry.from_settings(Settings(modules=["capgraph.capabilities.contexts"]))
    [finding] = checks.check_server(settings, registry)
    assert (finding.area, finding.level) == ("serve", level)


UPLOADS = """
modules: [capgraph.capabilities.contexts, capgraph.capabilities.query_data]
provided_types: [DATA_SOURCE]
serve: {uploads: {folder: brought}}
"""


def test_check_creates_no_upload_folder(tmp_path, monkeypatch, capsys):
    with project(tmp_path, monkeypatch, {"agent.yml": UPLOADS}):
        code, out, _ = typed(capsys)("check", "--config", "agent.yml", "--json")
        assert ("serve", "ok") in {(one["area"], one["level"]) for one in json.loads(out)}
        assert code == 0
        assert not (tmp_path / "brought").exists()


@pytest.mark.parametrize("options", [["--auth", "missing.json"], ["--host", "0.0.0.0"]])
def test_check_refuses_the_options_that_the_server_refuses(options, tmp_path, monkeypatch, capsys):
    with project(tmp_path, monkeypatch, {"agent.yml": UPLOADS}):
        code, out, _ = typed(capsys)("check", "--config", "agent.yml", "--json", *options)
        assert ("serve", "error") in {(one["area"], one["level"]) for one in json.loads(out)}
        assert code == 2


class SilentModel(ScriptedModel):
    async def _agenerate(self, *args, **kwargs):
        await asyncio.sleep(60)


def asked(monkeypatch, models, **options):
    monkeypatch.setattr("capgraph.models.chat_models", lambda configured: models)
    return looked_at("some:model", **options)


def looked_at(configured, *, ask=True):
    return asyncio.run(checks.check_models(configured, ask_models=ask))


def test_each_model_gets_one_test_request(monkeypatch):
    one, other = ScriptedModel(responses=["ready"]), ScriptedModel(responses=["ready"])
    found = asked(monkeypatch, {"planning": one, "answer": one, "selection": other})
    assert [f.level for f in found] == ["ok", "ok"]
    assert "planning, answer" in found[0].text
    assert len(one.calls) == 1


def test_failing_model_is_reported_without_its_key(monkeypatch):
    broken = ScriptedModel(responses=[RuntimeError("401 for api_key=sk-abcdefgh123")])
    [found] = asked(monkeypatch, {"answer": broken})
    assert found.level == "error"
    assert "401" in found.text
    assert "abcdefgh" not in found.text


def test_unresponsive_model_times_out(monkeypatch):
    monkeypatch.setattr(checks, "MODEL_SECONDS", 0.05)
    [found] = asked(monkeypatch, {"answer": SilentModel(responses=["late"])})
    assert "no response within" in found.text


def test_model_requests_can_be_disabled(monkeypatch):
    model = ScriptedModel(responses=["ready"])
    [found] = asked(monkeypatch, {"answer": model}, ask=False)
    assert (found.level, len(model.calls)) == ("ok", 0)


def test_check_without_a_model():
    [found] = looked_at(None)
    assert found.level == "ok"


def test_configured_behaviors_are_created():
    settings = Settings(
        behaviors=[{"use": "retri"}],
        capabilities={"reed": {"behaviors": [{"use": "cache"}]}},
        models={"answer": {"model": "openai:x", "behaviors": [{"use": "cache"}]}},
    )
    found = [f for f in collect_settings_findings(settings, Registry()) if f.level == "error"]
    assert len(found) == 3
    told = " ".join(f.text for f in found)
    for part in ("'retri'", "capabilities.reed.behaviors", "models.answer.behaviors"):
        assert part in told
    [made] = collect_settings_findings(Settings(behaviors=[{"use": "retry"}]), Registry())
    assert (made.area, made.level) == ("behaviors", "ok")


def test_broken_recipe_does_not_hide_other_findings(tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text("version: 1\nname: report\n")
    settings = Settings(recipes=[str(broken)], capabilities={"nothing": {}})
    found = [f.text for f in checks.check_registry(settings, offline=True, url="")]
    assert f"'{broken}'" in found[0]
    assert "description: Field required" in found[0]
    assert any(text.startswith("capabilities.nothing: ") for text in found)


def test_missing_recipe_folder_is_empty(tmp_path):
    folder = tmp_path / "recipes"
    settings = Settings(recipes=[str(folder)])
    assert not Registry.from_settings(settings).capabilities
    [found] = [
        one for one in collect_settings_findings(settings, Registry()) if one.area == "recipes"
    ]
    assert found.level == "ok"
    misspelled = Settings(recipes=[str(tmp_path / "reprot.yml")])
    with pytest.raises(ConfigurationError, match="does not exist"):
        Registry.from_settings(misspelled)
