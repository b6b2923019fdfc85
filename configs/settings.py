"""Settings: one validated tree from YAML files, environment variables and arguments.

Precedence, highest first: keyword arguments, environment (``CAPGRAPH_LIMITS__MAX_PARALLEL=4``),
the YAML files that are given, the defaults below. An unknown key is an error with its path.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from configs.errors import ConfigurationError
from configs.limits import Limits

_MAX_VALUES = 100_000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelSettings(_Section):
    """One chat model.

    Attributes:
        model: ``"provider:name"``, as ``langchain.chat_models.init_chat_model`` reads it.
        temperature: Sampling temperature; the provider's default when not given.
        base_url: Address of an OpenAI-compatible endpoint.
        api_key: Key; the provider's environment variable when not given.
        timeout_seconds: Time limit of one call.
        options: Further arguments of the model's class.
    """

    model: str
    temperature: float | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout_seconds: float | None = Field(60.0, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)


class SelectionSettings(_Section):
    """How capabilities are chosen.

    Attributes:
        strategy: ``auto`` asks the model when there is one, else ``lexical``; ``per_capability``
            asks the model one yes/no question for each capability.
        shortlist: With more capabilities than this, the model sees only the nearest ones.
        max_concurrency: Questions under way at once with ``per_capability``.
    """

    strategy: Literal["auto", "lexical", "model", "per_capability"] = "auto"
    shortlist: int = Field(20, ge=1)
    max_concurrency: int = Field(5, ge=1)


class ApprovalSettings(_Section):
    """When a person is asked.

    Attributes:
        steps: ``declared`` asks for capabilities that say so, ``all`` for each, ``none`` never.
        plans: Whether every plan is shown before it runs.
        max_rejections: Rejections after which the turn ends instead of planning again.
    """

    steps: Literal["declared", "all", "none"] = "declared"
    plans: bool = False
    max_rejections: int = Field(3, ge=1)


class PersistenceSettings(_Section):
    """Where threads live.

    Attributes:
        url: ``sqlite:///file.db`` or ``postgresql://…``; ``None`` for no persistence.
        encryption_key: 16, 24 or 32 bytes that encrypt checkpoints at rest.
        keep_turns: How many turns of a thread can still be gone back to; ``None`` for all. Messages
            and context data stay whole in any case.
        keep_checkpoints: How many checkpoints of a thread can still be gone back to.
        keep_days: Threads that were not saved for so many days are dropped, unless a person is
            asked. ``capgraph threads prune`` does what these three say.
    """

    url: str | None = None
    encryption_key: SecretStr | None = None
    keep_turns: int | None = Field(None, ge=1)
    keep_checkpoints: int | None = Field(None, ge=1)
    keep_days: float | None = Field(None, gt=0)


class Settings(BaseSettings):
    """All settings of one agent.

    Attributes:
        name: Name of the agent.
        description: What it is for; used when it says what it can do.
        infrastructure: Modules or packages that hold the infrastructure nodes.
        modules: Modules or packages that hold capabilities and context types.
        include: Names of capabilities to keep; ``None`` for all.
        exclude: Names of capabilities to leave out.
        override: Capability name to ``"module:Class"`` that takes its place.
        given: Context types that the caller supplies.
        model: ``"provider:name"`` for all roles; ``None`` runs without a model.
        models: Role (``extraction``, ``selection``, ``planning``, ``answer``, ``capability``)
            to its own model.
        prompts: ``"module:provider"`` of an application's prompts; the built-in ones otherwise.
        limits: Bounds of a run.
        selection: How capabilities are chosen.
        approvals: When a person is asked.
        persistence: Where threads live.
        capabilities: Capability name to its own settings.
        context: Context data that every turn of a new thread begins with.

    >>> Settings().limits.max_planning_attempts
    2
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        env_prefix="CAPGRAPH_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    name: str = "capgraph agent"
    description: str = ""
    infrastructure: list[str] = Field(default_factory=lambda: list(_packaged()["infrastructure"]))
    modules: list[str] = Field(default_factory=list)
    include: list[str] | None = None
    exclude: list[str] = Field(default_factory=list)
    override: dict[str, str] = Field(default_factory=dict)
    given: list[str] = Field(default_factory=list)
    model: str | None = None
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    prompts: str | None = None
    limits: Limits = Field(default_factory=lambda: Limits())
    selection: SelectionSettings = Field(default_factory=lambda: SelectionSettings())
    approvals: ApprovalSettings = Field(default_factory=lambda: ApprovalSettings())
    persistence: PersistenceSettings = Field(default_factory=lambda: PersistenceSettings())
    capabilities: dict[str, dict[str, Any]] = Field(default_factory=dict)
    context: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then the environment, then what the files said."""
        files = _FileSource(settings_cls)
        return init_settings, env_settings, files


class _FileSource(PydanticBaseSettingsSource):
    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(_file_values.get())


def _packaged() -> dict[str, Any]:
    text = resources.files("configs").joinpath("agent.yml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def load_settings(*files: str | os.PathLike[str], **overrides: Any) -> Settings:
    """Read settings from YAML files, the environment and arguments.

    Args:
        *files: YAML files; a later one wins. ``CAPGRAPH_CONFIG`` names one more, read first.
        **overrides: Values that win over everything else.

    Raises:
        ConfigurationError: A file cannot be read, a key is unknown, or a value does not fit; the
            message has the path of each.

    >>> load_settings(limits={"max_parallel": 2}).limits.max_parallel
    2
    """
    named = os.environ.get("CAPGRAPH_CONFIG")
    values: dict[str, Any] = {}
    for file in ([named] if named else []) + [os.fspath(item) for item in files]:
        values = _deep_merge(values, read_yaml(file))
    token = _file_values.set(values)
    try:
        return Settings(**overrides)
    except ValidationError as exc:
        raise ConfigurationError(_explain(exc, [str(file) for file in files])) from exc
    except SettingsError as exc:
        raise ConfigurationError(
            f"The settings cannot be used: {exc}."
            " Fix: write lists and sections in environment variables as JSON."
        ) from exc
    finally:
        _file_values.reset(token)


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read one YAML file safely; ``${NAME}`` and ``${NAME:-default}`` come from the environment.

    Raises:
        ConfigurationError: The file cannot be read, is no mapping, or names an unset variable.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            f"The configuration file {str(path)!r} cannot be read: {exc}."
            " Fix: check the path and its permissions."
        ) from exc
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigurationError(
            f"The configuration file {str(path)!r} is not valid YAML: {exc}."
            " Fix: correct the place that the message names."
        ) from exc
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigurationError(
            f"The configuration file {str(path)!r} holds {type(values).__name__}, not settings."
            " Fix: write 'key: value' lines."
        )
    expanded: dict[str, Any] = _expand(values, str(path), "", itertools.count(1))
    return expanded


def _expand(value: Any, file: str, where: str, seen: Iterator[int], depth: int = 0) -> Any:
    import re

    if next(seen) > _MAX_VALUES:
        raise ConfigurationError(
            f"The configuration file {file!r} is too large: more than {_MAX_VALUES:,} values."
            " Fix: shorten it; YAML references count each time."
        )
    if depth > 50:
        raise ConfigurationError(
            f"The configuration file {file!r} is nested too deeply at {where!r}."
            " Fix: flatten it; YAML references must not form a loop."
        )
    if isinstance(value, dict):
        return {
            key: _expand(item, file, f"{where}.{key}".lstrip("."), seen, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            _expand(item, file, f"{where}[{n}]", seen, depth + 1) for n, item in enumerate(value)
        ]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise ConfigurationError(
                f"{where!r} in {file!r} needs the environment variable {match['name']!r},"
                f" which is not set. Fix: set it, or write ${{{match['name']}:-default}}."
            )
        return found

    return re.sub(r"\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}", replace, value)


def _deep_merge(base: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _deep_merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _explain(exc: ValidationError, files: list[str]) -> str:
    source = f" (files: {', '.join(files)})" if files else ""
    lines = []
    for error in exc.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            lines.append(f"  {path}: unknown key. Fix: remove it, or check the spelling.")
        else:
            lines.append(f"  {path}: {error['msg']}.")
    return f"The settings cannot be used{source}:\n" + "\n".join(lines)


def _context_values() -> Any:
    from contextvars import ContextVar

    empty: Mapping[str, Any] = {}
    return ContextVar("capgraph_settings_files", default=empty)


_file_values = _context_values()
