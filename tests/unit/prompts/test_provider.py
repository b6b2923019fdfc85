from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from capgraph.base import ConfigurationError, OrchestratorGuide
from capgraph.prompts import (
    PromptBuilder,
    PromptProvider,
    ResponseGenerationPrompt,
    get_framework_prompts,
    use_prompts,
)


class Terse(ResponseGenerationPrompt):
    role = "You say it in five words."


class Weather(PromptBuilder):
    role = "You know the weather."

    def get_orchestrator_guide(self) -> OrchestratorGuide:
        return OrchestratorGuide(instructions="Plan it for weather.")


class OfASubclass(PromptProvider):
    def get_clarification_prompt_builder(self) -> PromptBuilder:
        return Weather()


@pytest.mark.row("B42")
def test_replacing_a_builder_keeps_the_others() -> None:
    ours, theirs = PromptProvider(response_generation=Terse()), PromptProvider()
    assert ours.get_response_generation_prompt_builder().get_role() == Terse.role
    assert theirs.get_response_generation_prompt_builder().get_role() != Terse.role
    assert (
        ours.get_python_prompt_builder().get_role() == theirs.get_python_prompt_builder().get_role()
    )
    assert OfASubclass().get_clarification_prompt_builder().get_role() == Weather.role


def test_an_application_can_add_builders() -> None:
    with use_prompts(PromptProvider(weather=Weather())):
        guide = get_framework_prompts().get_weather_prompt_builder().get_orchestrator_guide()
    assert guide is not None
    assert guide.instructions == "Plan it for weather."
    with pytest.raises(AttributeError, match="get_weather_prompt_builder"):
        get_framework_prompts().get_weather_prompt_builder()


def test_an_invalid_builder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'weather' is a str"):
        PromptProvider(weather="You know")  # type: ignore[arg-type]


@pytest.fixture
def prompts_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("weather_prompts_of_a_test")
    module.INSTANCE = PromptProvider(weather=Weather())  # type: ignore[attr-defined]
    module.OfASubclass = OfASubclass  # type: ignore[attr-defined]
    module.make = lambda: OfASubclass()  # type: ignore[attr-defined]
    module.NOTHING = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize("name", ["INSTANCE", "OfASubclass", "make"])
def test_a_provider_can_be_imported_by_reference(prompts_module: str, name: str) -> None:
    assert isinstance(get_framework_prompts(f"{prompts_module}:{name}"), PromptProvider)


@pytest.mark.parametrize(
    ("application", "value"),
    [
        ("nobody", "'nobody'"),
        ("no.such.module:thing", "no.such.module"),
        ("weather_prompts_of_a_test:absent", "absent"),
        ("weather_prompts_of_a_test:NOTHING", "not a PromptProvider"),
    ],
)
def test_an_unknown_application_is_a_value_error(
    prompts_module: str, application: str, value: str
) -> None:
    with pytest.raises(ValueError, match=value) as caught:
        get_framework_prompts(application)
    assert isinstance(caught.value, ConfigurationError)


def install(folder: Path, name: str, target: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[capgraph.prompts]\n{name} = {target}\n")


def test_a_single_installed_provider_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts_module: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "alpha", f"{prompts_module}:INSTANCE")
    default = get_framework_prompts()
    assert default is get_framework_prompts("alpha")
    assert default.get_weather_prompt_builder().get_role() == Weather.role

    install(tmp_path, "beta", f"{prompts_module}:make")
    with pytest.raises(ValueError, match="alpha, beta"):
        get_framework_prompts()
    assert isinstance(get_framework_prompts("beta"), OfASubclass)


def test_a_provider_that_cannot_be_loaded_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "gamma", "not_a_module_at_all:X")
    with pytest.raises(ConfigurationError, match="not_a_module_at_all"):
        get_framework_prompts("gamma")


@pytest.mark.row("B42")
def test_an_attribute_error_in_a_property_is_raised_unchanged() -> None:
    class Broken(PromptProvider):
        @property
        def get_weather_prompt_builder(self) -> PromptBuilder:
            return self.nothing_of_the_kind  # type: ignore[return-value]

    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        Broken().get_weather_prompt_builder  # noqa: B018 - the look-up is what fails


@pytest.mark.row("B42")
def test_settings_add_prompt_builders() -> None:
    class Ours(PromptBuilder):
        role = "You are ours."

    assert get_framework_prompts().get_python_prompt_builder().get_role()
    provider = PromptProvider(python=Ours())
    assert provider.get_python_prompt_builder().get_role() == "You are ours."
    assert provider.get_memory_extraction_prompt_builder().get_role()
