from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel

from capgraph import Registry, build_graph
from capgraph.base import ConfigurationError, MissingExtraError
from capgraph.configs.settings import ModelSettings, load_settings
from capgraph.engine.strategies import resolve_models
from capgraph.models import chat_models, model_strategies
from capgraph.models.roles import MODEL_ROLES
from capgraph.selection import LexicalSelector
from capgraph.testing import ScriptedModel

KEYED = {"model": "openai:gpt-test", "api_key": "sk-0123456789abcdef"}


def test_one_model_serves_every_role_unless_one_is_named() -> None:
    every, answer = ScriptedModel(responses=[]), ScriptedModel(responses=[])
    made = chat_models({"default": every, "answer": answer})
    assert set(made) == set(MODEL_ROLES)
    assert made["answer"] is answer
    assert all(model is every for role, model in made.items() if role != "answer")


def test_equal_settings_share_a_client_without_retries() -> None:
    made = chat_models({"default": ModelSettings(**KEYED), "planning": dict(KEYED)})
    assert len({id(model) for model in made.values()}) == 1
    model: Any = made["answer"]
    assert model.max_retries == 0
    assert model.request_timeout == 60.0


def test_settings_reach_the_client() -> None:
    settings = {
        **KEYED,
        "temperature": 0.25,
        "base_url": "http://localhost:1/v1",
        "timeout_seconds": 7,
        "options": {"max_tokens": 99, "max_retries": 1},
    }
    model: Any = chat_models(ModelSettings(**settings))["answer"]
    assert (model.temperature, model.openai_api_base) == (0.25, "http://localhost:1/v1")
    assert (model.request_timeout, model.max_tokens, model.max_retries) == (7, 99, 1)


def test_missing_api_key_is_reported_at_build_time() -> None:
    with pytest.raises(ConfigurationError) as caught:
        build_graph(Registry(), model="openai:gpt-test")
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "models.default.api_key" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_missing_key_is_found_even_if_the_client_accepts_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Careless(ScriptedModel):
        careless_api_key: str = ""

        @property
        def lc_secrets(self) -> dict[str, str]:
            return {"careless_api_key": "CARELESS_API_KEY"}

    import langchain.chat_models

    monkeypatch.setattr(
        langchain.chat_models, "init_chat_model", lambda *a, **k: Careless(responses=[])
    )
    with pytest.raises(ConfigurationError, match=r"CARELESS_API_KEY.*models\.planning\.api_key"):
        chat_models({"planning": "careless:m"})


@pytest.mark.parametrize(
    ("configured", "told"),
    [
        ({"anwser": "openai:x"}, "'anwser'"),
        ("nobody:model-1", "nobody"),
        ("some-model-of-nobody", "some-model-of-nobody"),
        ("", "''"),
        (42, "int"),
        ({"answer": {"model": "openai:x", "temprature": 1}}, "temprature"),
    ],
)
def test_invalid_models_are_configuration_errors(configured: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        chat_models(configured)


def test_a_key_in_an_error_is_masked() -> None:
    settings = ModelSettings(**KEYED, options={"n": "sk-0123456789abcdef"})
    with pytest.raises(ConfigurationError) as caught:
        chat_models(settings)
    assert "0123456789abcdef" not in str(caught.value)


def test_missing_provider_package_is_reported_with_its_install_command() -> None:
    with pytest.raises(MissingExtraError, match="pip install langchain-mistralai"):
        chat_models("mistralai:m")


def test_missing_extra_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'capgraph\[models\]'"):
        chat_models("openai:gpt-test")


def test_only_roles_with_a_model_get_a_strategy() -> None:
    model = ScriptedModel(responses=[])
    chosen = model_strategies({"answer": model}, Registry(), load_settings(), LexicalSelector())
    assert set(chosen) == {"answerer", "chat_model"}
    assert chosen["chat_model"]("answer") is model
    assert chosen["chat_model"]("capability") is None


def test_a_capability_can_have_a_model_in_an_offline_agent() -> None:
    model = ScriptedModel(responses=[])
    given = {"capability": model}
    chosen = model_strategies(given, Registry(), load_settings(), LexicalSelector())
    assert set(chosen) == {"chat_model"}
    assert chosen["chat_model"]("capability") is model


def test_role_settings_override_the_single_model() -> None:
    settings = load_settings(
        model="openai:gpt-a",
        models={
            "default": {"model": "openai:gpt-a", "api_key": "sk-0123456789"},
            "answer": {"model": "openai:gpt-b", "api_key": "sk-0123456789"},
        },
    )
    configured = resolve_models(None, settings)
    chosen = model_strategies(configured, Registry(), settings, LexicalSelector())
    model: Any = chosen["chat_model"]("answer")
    assert model.model_name == "gpt-b"
    other: Any = chosen["chat_model"]("planning")
    assert other.model_name == "gpt-a"
    assert isinstance(other, BaseChatModel)


def test_lexical_selection_can_be_combined_with_a_model() -> None:
    settings = load_settings(selection={"strategy": "lexical"})
    model = ScriptedModel(responses=[])
    chosen = model_strategies(model, Registry(), settings, LexicalSelector())
    assert "selector" not in chosen
    assert "planner" in chosen
