"""Settings from files, environment and arguments, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capgraph.configs.errors import CapgraphError, ConfigurationError
from capgraph.configs.settings import Settings, load_settings
from capgraph.configs.yaml_files import read_yaml


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(text: str, name: str = "agent.yml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_arguments_win_over_environment_over_files_over_defaults(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write("name: one\nlimits: {max_parallel: 2, max_steps: 5, max_attempts: 7}", "a.yml")
    second = write("limits: {max_steps: 6}", "b.yml")
    monkeypatch.setenv("CAPGRAPH_LIMITS__MAX_ATTEMPTS", "4")
    found = load_settings(first, second, limits={"max_parallel": 3})
    assert found.name == "one"
    limits = found.limits
    assert (limits.max_parallel, limits.max_steps, limits.max_attempts) == (3, 6, 4)
    assert limits.max_planning_attempts == 2


def test_the_environment_names_a_file_that_is_read_first(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPGRAPH_CONFIG", str(write("name: env\ndescription: d", "env.yml")))
    found = load_settings(write("name: given"))
    assert (found.name, found.description) == ("given", "d")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("limts: {}", "limts"),
        ("limits: {max_paralel: 2}", "limits.max_paralel"),
        ("models: {planning: {model: x, temprature: 0}}", "models.planning.temprature"),
        ("approvals: {steps: sometimes}", "approvals.steps"),
        ("limits: {max_parallel: 0}", "limits.max_parallel"),
        ("limits: {max_parallel: many}", "limits.max_parallel"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_path(write: Any, text: str, path: str) -> None:
    file = write(text)
    with pytest.raises(ConfigurationError) as info:
        load_settings(file)
    assert f"  {path}:" in str(info.value)
    assert str(file) in str(info.value)


def test_all_problems_stand_in_one_error(write: Any) -> None:
    with pytest.raises(ConfigurationError) as info:
        load_settings(write("one: 1\ntwo: 2\nlimits: {max_steps: 0}"))
    for path in ("one", "two", "limits.max_steps"):
        assert f"  {path}:" in str(info.value)


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("CAPGRAPH_LIMITS__MAX_PARALLEL", "many", "limits.max_parallel"),
        ("CAPGRAPH_LIMITS__MAX_PARALEL", "2", "max_paralel"),
        ("CAPGRAPH_LIMITS", "{broken", "limits"),
        ("CAPGRAPH_MODULES", "not a list", "modules"),
    ],
)
def test_a_wrong_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, word: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=word):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("CAPGRAPH_APPROVAL__STEPS", "'approval' is unknown. Fix: Write CAPGRAPH_APPROVALS__STEPS"),
        ("CAPGRAPH_LIMITS_MAX_STEPS", "Fix: Write CAPGRAPH_LIMITS__MAX_STEPS"),
        ("CAPGRAPH_MODL", "Write CAPGRAPH_MODEL."),
        ("CAPGRAPH_CONFG", "Write CAPGRAPH_CONFIG."),
        ("capgraph_limit__max_steps", "CAPGRAPH_LIMITS__MAX_STEPS"),
        ("CAPGRAPH_ELSEWHERE__A", "Use one of: name, "),
        ("CAPGRAPH_LIMITS__MAX_PARALEL", "write 'max_parallel'"),
    ],
)
@pytest.mark.parametrize("make", [load_settings, Settings])
def test_a_variable_that_would_do_nothing_is_refused_with_the_nearest_key(
    monkeypatch: pytest.MonkeyPatch, variable: str, words: str, make: Any
) -> None:
    monkeypatch.setenv(variable, "2")
    with pytest.raises(ValueError) as caught:
        make()
    if make is load_settings or "PARALEL" not in variable:
        assert isinstance(caught.value, ConfigurationError)
        assert words in str(caught.value)


def test_variables_of_the_application_are_left_alone(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPGRAPH_KEY", "secret")
    assert load_settings(write("description: ${CAPGRAPH_KEY}")).description == "secret"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("limits: {max_parallel: true}", "limits.max_parallel"),
        ("limits: {max_model_calls: false}", "limits.max_model_calls"),
        ("limits: {max_retry_delay_seconds: .inf}", "limits.max_retry_delay_seconds"),
        ("limits: {run_timeout_seconds: .nan}", "limits.run_timeout_seconds"),
        ("limits: {step_timeout_seconds: true}", "limits.step_timeout_seconds"),
        ("selection: {shortlist: true}", "selection.shortlist"),
        (
            "models: {planning: {model: x, timeout_seconds: .inf}}",
            "models.planning.timeout_seconds",
        ),
    ],
)
def test_what_is_no_usable_number_is_refused(write: Any, text: str, path: str) -> None:
    with pytest.raises(ConfigurationError, match=path):
        load_settings(write(text))


def test_the_nearest_key_of_a_file_is_named(write: Any) -> None:
    text = "modl: x\nmodels: {planning: {model: x, temprature: 0}}\npersistence: {ulr: x}"
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(text))
    assert "modl: unknown key. Fix: write 'model'" in str(caught.value)
    assert "models.planning.temprature: unknown key. Fix: write 'temperature'" in str(caught.value)
    assert "persistence.ulr: unknown key. Fix: write 'url'" in str(caught.value)


def test_keys_may_come_from_a_shared_part_of_the_file(write: Any) -> None:
    text = "limits: &l {max_steps: 5}\ncontext: {A: {<<: *l, max_steps: 6}}"
    found = load_settings(write(text))
    assert found.context == {"A": {"max_steps": 6}}


def test_variables_in_files(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHO", "me")
    found = load_settings(write("name: ${WHO}\ndescription: by ${NOBODY:-someone}"))
    assert (found.name, found.description) == ("me", "by someone")
    with pytest.raises(ConfigurationError, match=r"'NOBODY', which 'model'"):
        load_settings(write("model: ${NOBODY}"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "not valid YAML"),
        ("- a\n- b", "type list"),
        ("just text", "type str"),
        ("1: a", "mapping with text keys"),
        ("name: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: &a {b: *a}", "nested too deeply"),
        ("name: a\nname: b", "'name' occurs twice, in lines 1 and 2"),
        (
            "limits:\n  max_steps: 1\n  max_parallel: 2\n  max_steps: 3",
            "'max_steps' occurs twice",
        ),
        ("models: {planning: {model: a}, planning: {model: b}}", "'planning' occurs twice"),
    ],
)
def test_a_file_that_is_no_configuration_says_why(write: Any, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_settings(write(text))


def test_a_file_that_multiplies_itself_is_refused_at_once(write: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ConfigurationError, match="more than 100,000 values"):
        load_settings(write("\n".join(lines)))


def test_a_file_that_is_not_there_or_no_text_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_yaml(tmp_path / "none.yml")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigurationError, match=r"cannot be read|not valid YAML"):
        read_yaml(tmp_path / "binary.yml")


def test_an_empty_file_changes_nothing(write: Any) -> None:
    assert load_settings(write("")) == Settings()


def test_keys_are_never_shown(write: Any) -> None:
    secret = "sk-verysecretvalue"
    found = load_settings(models={"planning": {"model": "x", "api_key": secret}})
    assert secret not in repr(found)
    assert secret not in found.model_dump_json()
    with pytest.raises(ConfigurationError) as info:
        load_settings(write(f"models: {{planning: {{api_key: {secret}, model: 5}}}}"))
    assert secret not in str(info.value)


def test_settings_are_not_shared_between_loads(write: Any) -> None:
    load_settings(write("name: one"))
    assert load_settings().name != "one"
    one = load_settings()
    one.provided_types.append("X")
    assert load_settings().provided_types == []


def test_errors_hold_value_cause_and_fix_and_survive_a_process_boundary() -> None:
    import copy

    error = CapgraphError("Port 0 is not usable.", fix="Give another.")
    again = copy.copy(error)
    assert str(again) == str(error) == "Port 0 is not usable. Fix: Give another."
    assert again.fix == error.fix
    assert error.page == "errors/CG-000"


def test_a_lease_outlasts_a_late_beat() -> None:
    assert load_settings().scale.heartbeat_interval == 10.0
    assert load_settings(scale={"lease_seconds": 3}).scale.heartbeat_interval == 1.0
    assert (
        load_settings(scale={"lease_seconds": 3, "heartbeat_seconds": 1.5}).scale.heartbeat_interval
        == 1.5
    )
    with pytest.raises(ConfigurationError, match=r"at most half of lease_seconds"):
        load_settings(scale={"lease_seconds": 3, "heartbeat_seconds": 2})


def test_the_name_of_a_machine_is_no_misspelt_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPGRAPH_MACHINE", "left")
    load_settings()


@pytest.mark.parametrize(
    ("values", "path", "nearest"),
    [
        ({"persistance": {}}, "persistance", "persistence"),
        ({"limits": {"max_stepz": 3}}, "limits.max_stepz", "max_steps"),
        ({"models": {"answer": {"model": "a:b", "temprature": 1}}}, "temprature", "temperature"),
        ({"serve": {"oidc": {"isuer": "x"}}}, "serve.oidc.isuer", "issuer"),
    ],
)
def test_a_misspelled_argument_names_the_nearest_key(
    values: dict[str, Any], path: str, nearest: str
) -> None:
    for make in (Settings, load_settings):
        with pytest.raises(ConfigurationError) as caught:
            make(**values)
        assert path in str(caught.value)
        assert nearest in str(caught.value)
