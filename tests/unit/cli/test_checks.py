"""What ``capgraph check`` looks at."""

import asyncio

import pytest

from configs.settings import Settings
from framework.cli import checks
from framework.testing import ScriptedModel


@pytest.mark.parametrize(
    ("settings", "url", "extras"),
    [
        ({}, "memory", {"offline"}),
        ({"model": "openai:x"}, "sqlite:///x", {"models", "sqlite"}),
        (
            {"modules": ["capabilities.plotting"]},
            "postgresql://h/x",
            {"offline", "data", "postgres"},
        ),
        ({"persistence": {"encryption_key": "k" * 16}}, "memory", {"offline", "encryption"}),
    ],
)
def test_the_extras_that_a_configuration_needs(settings, url, extras):
    assert set(checks.needed_extras(Settings(**settings), url)) == extras


def test_a_missing_extra_is_named_with_its_command(monkeypatch):
    listed = ["langgraph>=1", 'no-such-dist>=2; extra == "offline"', 'other; extra == "data"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: listed)
    [found] = checks.check_extras(Settings(), "memory")
    assert found.level == "error"
    assert "no-such-dist" in found.text
    assert found.fix == "pip install 'capgraph[offline]'"


def test_an_outdated_extra_is_named(monkeypatch):
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ['pytest>=999; extra == "offline"']
    )
    [found] = checks.check_extras(Settings(), "memory")
    assert "pytest>=999 (not " in found.text


def test_an_installed_extra_is_fine(monkeypatch):
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ['pytest>=1; extra == "offline"']
    )
    assert [f.level for f in checks.check_extras(Settings(), "memory")] == ["ok"]


class SilentModel(ScriptedModel):
    async def _agenerate(self, *args, **kwargs):
        await asyncio.sleep(60)


def asked(monkeypatch, models, **options):
    monkeypatch.setattr("framework.models.chat_models", lambda configured: models)
    options = {"ask": True, **options}
    return asyncio.run(checks.check_models(Settings(), "some:model", **options))


def test_each_model_is_asked_once_whatever_its_roles(monkeypatch):
    one, other = ScriptedModel(responses=["ready"]), ScriptedModel(responses=["ready"])
    found = asked(monkeypatch, {"planning": one, "answer": one, "selection": other})
    assert [f.level for f in found] == ["ok", "ok"]
    assert "planning, answer" in found[0].text
    assert len(one.calls) == 1


def test_a_model_that_fails_is_told_without_its_key(monkeypatch):
    broken = ScriptedModel(responses=[RuntimeError("401 for api_key=sk-abcdefgh123")])
    [found] = asked(monkeypatch, {"answer": broken})
    assert found.level == "error"
    assert "401" in found.text
    assert "abcdefgh" not in found.text


def test_a_model_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(checks, "MODEL_SECONDS", 0.05)
    [found] = asked(monkeypatch, {"answer": SilentModel(responses=["late"])})
    assert "no answer within" in found.text


def test_models_need_not_be_asked(monkeypatch):
    model = ScriptedModel(responses=["ready"])
    [found] = asked(monkeypatch, {"answer": model}, ask=False)
    assert (found.level, len(model.calls)) == ("ok", 0)


def test_without_a_model_there_is_nothing_to_ask():
    [found] = asyncio.run(checks.check_models(Settings(), None, ask=True))
    assert found.level == "ok"
