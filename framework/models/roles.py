"""Chat models for each role, created from a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError as PydanticValidationError

from capgraph.base import (
    ConfigurationError,
    ErrorSeverity,
    MissingExtraError,
    ModelError,
    require_extra,
)
from capgraph.base.ports import AnyBehavior
from capgraph.configs.logger import MAX_MESSAGE_CHARS, mask_secrets
from capgraph.configs.settings import ModelSettings, StructuredMethod
from capgraph.helpers.clock import Clock
from capgraph.helpers.plain_data import validation_messages
from capgraph.models.local import is_local_model, resolve_local_model

if TYPE_CHECKING:
    from capgraph.models.plan_schema import SchemaStyle

MODEL_ROLES = ("extraction", "selection", "planning", "answer", "capability")
"""Roles of chat models. A configuration for ``default`` applies to all roles that it does not name.
"""

DEFAULT_ROLE = "default"
_EXTRA = "models"
_OPENAI_HOST = "api.openai.com"
_KEY_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN)\b")


@dataclass(frozen=True, slots=True)
class RoleModel:
    """Chat model for a role, with its middleware and fallback models.

    Attributes:
        role: Name of the role.
        model: The chat model.
        timeout_seconds: Timeout for one call, in addition to the model's own timeout. ``None``
            means no timeout.
        behaviors: Middleware and hooks around each call.
        clock: Clock of the graph. ``None`` means the system clock.
        fallbacks: Models to use in order when the model fails, refuses, or returns a malformed
            answer.
        structured: Structured output method; see ``ModelSettings.structured``.
    """

    role: str
    model: BaseChatModel
    timeout_seconds: float | None = None
    behaviors: Sequence[AnyBehavior] = ()
    clock: Clock | None = None
    fallbacks: Sequence[BaseChatModel] = ()
    structured: StructuredMethod = "auto"

    @property
    def method(self) -> StructuredMethod:
        """Structured output method, with ``auto`` resolved for the model."""
        return structured_method(self.model, self.structured)

    @property
    def schema_style(self) -> SchemaStyle:
        """Plan schema style that the model's server supports."""
        if self.method != "json_schema":
            return "open"
        if is_grammar_server(self.model):
            return "grammar"
        return "strict" if _uses_openai_client(self.model) else "optional"

    @property
    def name(self) -> str:
        """Name of the model, as shown in error messages and events."""
        return model_name(self.model)

    def error(
        self,
        text: str,
        fix: str | None = None,
        severity: ErrorSeverity | None = None,
        error_class: type[ModelError] = ModelError,
        *,
        person_message: str = "",
    ) -> ModelError:
        """Create an error about a failed call of this model.

        Args:
            text: Predicate of the message, such as ``refused``. The model's name precedes it.
            fix: Imperative sentence that tells the user how to solve the problem.
            severity: Severity of the error. ``None`` uses the severity of the cause.
            error_class: Class of the error.
            person_message: Sentence for the end user.
        """
        return error_class(
            f"The model {self.name!r} ({self.role}) {text}",
            fix=fix,
            severity=severity,
            person_message=person_message,
        )


PROBED_METHODS: dict[str, StructuredMethod] = {}
"""Structured output methods found by probes, by server and model name; see
``capgraph.models.probing``.
"""


def probe_key(model: Any) -> str:
    """Return the cache key for a model's probe result: its base URL and model name."""
    return f"{getattr(model, 'openai_api_base', '') or ''} {model_name(model)}"


def _uses_openai_client(model: Any) -> bool:
    return hasattr(model, "openai_api_base")


def is_grammar_server(model: Any) -> bool:
    """Return True if an OpenAI client connects to another server, such as llama.cpp or vLLM."""
    address = getattr(model, "openai_api_base", None)
    is_elsewhere = isinstance(address, str) and _OPENAI_HOST not in address
    return is_elsewhere and type(model).__name__ == "ChatOpenAI"


def supports_structured_output(model: Any) -> bool:
    """Return True if a model supports structured output through a JSON schema or tools."""
    if not isinstance(model, BaseChatModel):
        return True
    model_class, base = type(model), BaseChatModel
    methods = (model_class.with_structured_output, model_class.bind_tools)
    return methods != (base.with_structured_output, base.bind_tools)


def structured_method(model: Any, setting: StructuredMethod = "auto") -> StructuredMethod:
    """Resolve the structured output method for a model.

    ``auto`` resolves to:

    - ``text`` for a model that accepts neither a schema nor tools,
    - the probe result for an OpenAI client of a different server, or ``json_schema`` before a
      probe,
    - ``json_schema`` for OpenAI models whose profile lists structured output,
    - ``function_calling`` for all others.

    >>> from capgraph.testing import ScriptedModel
    >>> structured_method(ScriptedModel(responses=[]))
    'function_calling'
    """
    if setting != "auto":
        return setting
    if not supports_structured_output(model):
        return "text"
    if is_grammar_server(model):
        return PROBED_METHODS.get(probe_key(model), "json_schema")
    profile = getattr(model, "profile", None) or {}
    lists_support = (
        _uses_openai_client(model)
        and isinstance(profile, Mapping)
        and profile.get("structured_output")
    )
    return "json_schema" if lists_support else "function_calling"


def model_name(model: Any) -> str:
    """Return a model's name at its provider, or its class name if it has none."""
    for attribute in ("model_name", "model", "model_id"):
        value = getattr(model, attribute, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__


def without_streaming(model: Any, role: str = "") -> Any:
    """Return a copy of a chat model with streaming disabled. The copy shares the client.

    While a graph streams messages, LangChain streams every model call and completes truncated
    JSON, which could turn an incomplete plan into a valid one. A model for the ``answer`` role
    is returned unchanged.
    """
    if role == "answer" or not isinstance(model, BaseChatModel):
        return model
    return model.model_copy(update={"disable_streaming": True})


def chat_models(configuration: Any) -> dict[str, BaseChatModel]:
    """Create the chat models of a configuration.

    Args:
        configuration: ``"provider:name"``, a chat model or ``ModelSettings`` for every role, or a
            mapping from role (or ``default``) to one of these or to ``{"model": …, "behaviors":
            […]}``.

    Returns:
        Chat models by role. Roles without a model are omitted.

    Raises:
        ConfigurationError: A role is unknown, a value is invalid, or an API key is missing.
        MissingExtraError: A provider's package is not installed.

    >>> from capgraph.testing import ScriptedModel
    >>> sorted(chat_models({"answer": ScriptedModel(responses=["Hello."])}))
    ['answer']
    """
    by_role = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}
    unknown = sorted(str(role) for role in by_role if role not in {*MODEL_ROLES, DEFAULT_ROLE})
    if unknown:
        raise ConfigurationError(
            f"The model roles {', '.join(map(repr, unknown))} are unknown.",
            fix=f"Use {', '.join(MODEL_ROLES)} or {DEFAULT_ROLE}.",
        )
    cache: dict[str, BaseChatModel] = {}  # by settings
    models = {
        role: _resolve_model(role, value, cache)
        for role, value in by_role.items()
        if value is not None
    }
    default = models.pop(DEFAULT_ROLE, None)
    if default is not None:
        models = {role: models.get(role, default) for role in MODEL_ROLES}
    return models


def role_behaviors(configuration: Any) -> dict[str, Sequence[Any]]:
    """Return the middleware and hooks that a model configuration declares for each role.

    >>> role_behaviors({"default": {"model": "openai:gpt-5", "behaviors": ["x"]}})["planning"]
    ['x']
    """
    by_role = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}

    def behaviors_of(value: Any) -> Sequence[Any]:
        behaviors = value.get("behaviors") if isinstance(value, Mapping) else None
        return behaviors or getattr(value, "behaviors", None) or ()

    default = behaviors_of(by_role.get(DEFAULT_ROLE))
    return {
        role: behaviors_of(by_role[role]) if by_role.get(role) else default for role in MODEL_ROLES
    }


def fallback_models(configuration: Any) -> dict[str, list[BaseChatModel]]:
    """Create the fallback models for each role, in order of use.

    Args:
        configuration: Same as for :func:`chat_models`, with ``fallbacks`` in a role's entry.

    >>> from capgraph.testing import ScriptedModel
    >>> role = {"model": ScriptedModel(responses=[]), "fallbacks": [ScriptedModel(responses=[])]}
    >>> {name: len(models) for name, models in fallback_models({"answer": role}).items() if models}
    {'answer': 1}
    """
    by_role = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}
    cache: dict[str, BaseChatModel] = {}

    def fallbacks_of(role: str) -> list[BaseChatModel]:
        value = by_role.get(role) or by_role.get(DEFAULT_ROLE)
        fallbacks = value.get("fallbacks") if isinstance(value, Mapping) else None
        fallbacks = fallbacks or getattr(value, "fallbacks", None) or ()
        return [_resolve_model(role, item, cache) for item in fallbacks]

    return {role: fallbacks_of(role) for role in MODEL_ROLES}


def structured_methods(configuration: Any) -> dict[str, StructuredMethod]:
    """Return the structured output method that is configured for each model role.

    >>> structured_methods({"default": {"model": "openai:local", "structured": "text"}})["planning"]
    'text'
    """
    by_role = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}

    def method_of(role: str) -> StructuredMethod:
        value = by_role.get(role) or by_role.get(DEFAULT_ROLE)
        method = value.get("structured") if isinstance(value, Mapping) else None
        if method is None and isinstance(value, ModelSettings):
            method = value.structured
        methods = get_args(StructuredMethod)
        if method is not None and method not in methods:
            raise ConfigurationError(
                f"The value {method!r} of 'structured' for the role {role!r} is unknown:"
                f" expected one of {', '.join(methods)}.",
                fix="Use one of these, or remove the key.",
            )
        return method or "auto"

    return {role: method_of(role) for role in MODEL_ROLES}


def _resolve_model(role: str, value: Any, cache: dict[str, BaseChatModel]) -> BaseChatModel:
    if isinstance(value, Mapping) and hasattr(value.get("model"), "with_structured_output"):
        value = value["model"]
    # A model with fallbacks or bound arguments is a Runnable that has these two methods.
    if hasattr(value, "with_structured_output") and hasattr(value, "astream"):
        model: BaseChatModel = value
        return model
    settings = _validate_settings(role, value)
    settings = settings.model_copy(update={"behaviors": [], "fallbacks": [], "structured": "auto"})
    key = repr((settings, settings.api_key and settings.api_key.get_secret_value()))
    if key not in cache:
        cache[key] = _create_model(role, settings)
    return cache[key]


def _validate_settings(role: str, value: Any) -> ModelSettings:
    try:
        return ModelSettings.model_validate({"model": value} if isinstance(value, str) else value)
    except PydanticValidationError as exc:
        problems = "; ".join(validation_messages(exc))
        raise ConfigurationError(
            f"The configuration of the model for the role {role!r} is invalid"
            f" ({type(value).__name__}): {problems}.",
            fix="Pass 'provider:name', a LangChain chat model, or the fields of ModelSettings.",
        ) from exc


def _create_model(role: str, settings: ModelSettings) -> BaseChatModel:
    if ":" not in settings.model and "model_provider" not in settings.options:
        raise ConfigurationError(
            f"The model {settings.model!r} for the role {role!r} has no provider.",
            fix=f"Write 'provider:name', such as 'openai:{settings.model}'.",
        )
    extra = "local" if is_local_model(settings.model) else _EXTRA
    init_chat_model = require_extra("langchain.chat_models", extra).init_chat_model
    if is_local_model(settings.model):
        settings = resolve_local_model(settings)
    arguments: dict[str, Any] = {
        # The router retries. Retries by the client as well would multiply the attempts.
        "max_retries": 0,
        "timeout": settings.call_timeout_seconds,
        "temperature": settings.temperature,
        "base_url": settings.base_url,
        "api_key": settings.api_key.get_secret_value() if settings.api_key else None,
    }
    if settings.base_url is not None and _is_openai(settings):
        arguments["stream_usage"] = True  # LangChain disables it for other base URLs
    arguments = {name: value for name, value in arguments.items() if value is not None}
    try:
        model: BaseChatModel = init_chat_model(settings.model, **{**arguments, **settings.options})
    except ImportError as exc:
        raise MissingExtraError(
            f"The model {settings.model!r} for the role {role!r} requires a package that is not"
            f" installed: {exc}.",
            fix=_format_install_command(str(exc)),
        ) from exc
    except Exception as exc:
        raise _create_error(role, settings, exc) from exc
    missing = _find_missing_key(model)
    if missing:
        raise ConfigurationError(
            f"The model {settings.model!r} for the role {role!r} has no API key.",
            fix=_format_key_fix(missing, role),
        )
    return model


def _is_openai(settings: ModelSettings) -> bool:
    provider = settings.options.get("model_provider") or settings.model.partition(":")[0]
    return bool(provider == "openai")


def _create_error(role: str, settings: ModelSettings, exc: Exception) -> ConfigurationError:
    cause = " ".join(mask_secrets(str(exc), MAX_MESSAGE_CHARS).split())
    name = f"The model {settings.model!r} of the role {role!r}"
    lowered = cause.lower()
    if "api_key" in lowered or "api key" in lowered or "credentials" in lowered:
        variables = _KEY_VARIABLE.findall(cause)
        return ConfigurationError(
            f"{name} has no API key.", fix=_format_key_fix(variables[0] if variables else "", role)
        )
    return ConfigurationError(
        f"{name} cannot be created: {cause[:500]}.", fix="Check the model's name and options."
    )


def _find_missing_key(model: BaseChatModel) -> str:
    """Return the environment variable of a model's missing API key, or an empty string.

    This check is needed because some providers create a client without a key, and only the
    first call fails.
    """
    keys = {a: env for a, env in model.lc_secrets.items() if a.endswith("api_key")}
    has_key = any(getattr(model, attribute, None) for attribute in keys)
    return "" if has_key else next(iter(keys.values()), "")


def _format_key_fix(variable: str, role: str) -> str:
    setting = f"models.{role}.api_key"
    return (
        f"Set the environment variable {variable} or the setting {setting}."
        if variable
        else f"Set {setting}."
    )


def _format_install_command(message: str) -> str:
    match = re.search(r"pip install (?:-U )?([\w\[\]-]+)", message)
    package = match.group(1) if match else ""
    if not package or package in {"langchain-openai", "langchain"}:
        return f"pip install 'capgraph[{_EXTRA}]'"
    return f"pip install {package}"
