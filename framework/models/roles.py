"""From a description of models to one chat model for each role."""

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
    from capgraph.models.plan_schema import Rendering

MODEL_ROLES = ("extraction", "selection", "planning", "answer", "capability")
"""What a chat model can be for; ``default`` stands for those that are not named."""

DEFAULT_ROLE = "default"
_EXTRA = "models"
_OPENAI_HOST = "api.openai.com"
_KEY_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN)\b")


@dataclass(frozen=True, slots=True)
class RoleModel:
    """A chat model in a role.

    Attributes:
        role: What it is for.
        model: The chat model.
        timeout_seconds: Time limit of one call, beside the model's own; ``None`` for none.
        behaviors: What stands around each call.
        clock: The graph's clock; ``None`` for the machine's.
        fallbacks: Models that are asked in order when the model fails, refuses, or answers in
            another form.
        structured: How the model is made to keep a form; see ``ModelSettings.structured``.
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
        """How the model is made to keep a form; never ``auto``."""
        return structured_method(self.model, self.structured)

    @property
    def rendering(self) -> Rendering:
        """Rendering of a JSON schema that the model's server honors."""
        if self.method != "json_schema":
            return "open"
        if is_grammar_server(self.model):
            return "grammar"
        return "strict" if _uses_openai_client(self.model) else "optional"

    @property
    def name(self) -> str:
        """Name of the model, for messages and events."""
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
        """Return the error that says what happened to a call; a severity of ``None`` is the cause's."""
        return error_class(
            f"The model {self.name!r} ({self.role}) {text}",
            fix=fix,
            severity=severity,
            person_message=person_message,
        )


PROBED_METHODS: dict[str, StructuredMethod] = {}
"""What a probe found for the servers behind an address; see ``capgraph.models.probing``."""


def probe_key(model: Any) -> str:
    """Return the address of a model's server and the model's name there, for the results of probes."""
    return f"{getattr(model, 'openai_api_base', '') or ''} {model_name(model)}"


def _uses_openai_client(model: Any) -> bool:
    return hasattr(model, "openai_api_base")


def is_grammar_server(model: Any) -> bool:
    """Return True for the plain OpenAI client of another server, such as llama.cpp or vLLM."""
    address = getattr(model, "openai_api_base", None)
    is_elsewhere = isinstance(address, str) and _OPENAI_HOST not in address
    return is_elsewhere and type(model).__name__ == "ChatOpenAI"


def supports_structured_output(model: Any) -> bool:
    """Return True if a model accepts a form for its answer."""
    if not isinstance(model, BaseChatModel):
        return True
    own, base = type(model), BaseChatModel
    given = (own.with_structured_output, own.bind_tools)
    return given != (base.with_structured_output, base.bind_tools)


def structured_method(model: Any, setting: StructuredMethod = "auto") -> StructuredMethod:
    """Return how a model is made to keep a form.

    ``auto`` means the result of a probe for the OpenAI client of another server, ``json_schema``
    where it was not probed and for OpenAI models whose profile has structured output, ``text`` for a model that accepts no form, and otherwise
    ``function_calling``.

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
    knows = (
        _uses_openai_client(model)
        and isinstance(profile, Mapping)
        and profile.get("structured_output")
    )
    return "json_schema" if knows else "function_calling"


def model_name(model: Any) -> str:
    """Return a model's name as its provider knows it, else the name of its class."""
    for attribute in ("model_name", "model", "model_id"):
        value = getattr(model, attribute, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__


def without_streaming(model: Any, role: str = "") -> Any:
    """Return a chat model that answers in one piece, for answers that must be whole.

    What is asked for the role ``answer`` may come in pieces.

    While a graph streams messages, LangChain turns every call into a stream, and completes JSON
    that breaks off in it: half a plan would come out as a plan. The copy shares the client.
    """
    if role == "answer" or not isinstance(model, BaseChatModel):
        return model
    return model.model_copy(update={"disable_streaming": True})


def chat_models(configuration: Any) -> dict[str, BaseChatModel]:
    """Make the chat models that a description asks for.

    Args:
        configuration: ``"provider:name"``, a chat model or ``ModelSettings`` for every role, or a
            mapping from role (or ``default``) to one of these, or to ``{"model": …, "behaviors": […]}``.

    Returns:
        Role to chat model, without the roles that have none.

    Raises:
        ConfigurationError: A role is unknown, a description does not fit, or a key is missing.
        MissingExtraError: The package of a provider is not installed.

    >>> from capgraph.testing import ScriptedModel
    >>> sorted(chat_models({"answer": ScriptedModel(responses=["Hello."])}))
    ['answer']
    """
    wanted = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}
    unknown = sorted(str(role) for role in wanted if role not in {*MODEL_ROLES, DEFAULT_ROLE})
    if unknown:
        raise ConfigurationError(
            f"There is no model role called {', '.join(map(repr, unknown))}.",
            fix=f"Use {', '.join(MODEL_ROLES)} or {DEFAULT_ROLE}.",
        )
    made: dict[str, BaseChatModel] = {}  # by their settings
    ready = {
        role: _resolve_model(role, value, made)
        for role, value in wanted.items()
        if value is not None
    }
    default = ready.pop(DEFAULT_ROLE, None)
    if default is not None:
        ready = {role: ready.get(role, default) for role in MODEL_ROLES}
    return ready


def role_behaviors(configuration: Any) -> dict[str, Sequence[Any]]:
    """Return what a description of models puts around the calls of each role.

    >>> role_behaviors({"default": {"model": "openai:gpt-5", "behaviors": ["x"]}})["planning"]
    ['x']
    """
    wanted = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}

    def of(value: Any) -> Sequence[Any]:
        found = value.get("behaviors") if isinstance(value, Mapping) else None
        return found or getattr(value, "behaviors", None) or ()

    default = of(wanted.get(DEFAULT_ROLE))
    return {role: of(wanted[role]) if wanted.get(role) else default for role in MODEL_ROLES}


def fallback_models(configuration: Any) -> dict[str, list[BaseChatModel]]:
    """Make the fallback models of each role, in their order.

    Args:
        configuration: As for :func:`chat_models`, with ``fallbacks`` in a role's entry.

    >>> from capgraph.testing import ScriptedModel
    >>> role = {"model": ScriptedModel(responses=[]), "fallbacks": [ScriptedModel(responses=[])]}
    >>> {name: len(models) for name, models in fallback_models({"answer": role}).items() if models}
    {'answer': 1}
    """
    wanted = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}
    made: dict[str, BaseChatModel] = {}

    def of(role: str) -> list[BaseChatModel]:
        value = wanted.get(role) or wanted.get(DEFAULT_ROLE)
        given = value.get("fallbacks") if isinstance(value, Mapping) else None
        given = given or getattr(value, "fallbacks", None) or ()
        return [_resolve_model(role, item, made) for item in given]

    return {role: of(role) for role in MODEL_ROLES}


def structured_methods(configuration: Any) -> dict[str, StructuredMethod]:
    """Return how the model of each role is made to keep a form, as a description says.

    >>> structured_methods({"default": {"model": "openai:local", "structured": "text"}})["planning"]
    'text'
    """
    wanted = configuration if isinstance(configuration, Mapping) else {DEFAULT_ROLE: configuration}

    def of(role: str) -> StructuredMethod:
        value = wanted.get(role) or wanted.get(DEFAULT_ROLE)
        found = value.get("structured") if isinstance(value, Mapping) else None
        if found is None and isinstance(value, ModelSettings):
            found = value.structured
        known = get_args(StructuredMethod)
        if found is not None and found not in known:
            raise ConfigurationError(
                f"Invalid structured {found!r} of the role {role!r}: expected one of"
                f" {', '.join(known)}.",
                fix="Write one of these, or leave it out.",
            )
        return found or "auto"

    return {role: of(role) for role in MODEL_ROLES}


def _resolve_model(role: str, value: Any, cache: dict[str, BaseChatModel]) -> BaseChatModel:
    if isinstance(value, Mapping) and hasattr(value.get("model"), "with_structured_output"):
        value = value["model"]
    # A model with fallbacks or bound arguments is a Runnable that still has these two.
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
        told = "; ".join(validation_messages(exc))
        raise ConfigurationError(
            f"The model of the role {role!r} is {type(value).__name__} and cannot be used: {told}.",
            fix="Give 'provider:name', a LangChain chat model or the fields of ModelSettings.",
        ) from exc


def _create_model(role: str, settings: ModelSettings) -> BaseChatModel:
    if ":" not in settings.model and "model_provider" not in settings.options:
        raise ConfigurationError(
            f"The model {settings.model!r} of the role {role!r} names no provider.",
            fix=f"Write 'provider:name', such as 'openai:{settings.model}'.",
        )
    extra = "local" if is_local_model(settings.model) else _EXTRA
    init_chat_model = require_extra("langchain.chat_models", extra).init_chat_model
    if is_local_model(settings.model):
        settings = resolve_local_model(settings)
    arguments: dict[str, Any] = {
        # The router owns retries; a client that retries as well would multiply them.
        "max_retries": 0,
        "timeout": settings.call_timeout_seconds,
        "temperature": settings.temperature,
        "base_url": settings.base_url,
        "api_key": settings.api_key.get_secret_value() if settings.api_key else None,
    }
    if settings.base_url is not None and _is_openai(settings):
        arguments["stream_usage"] = True  # LangChain leaves it off for other addresses
    arguments = {name: value for name, value in arguments.items() if value is not None}
    try:
        model: BaseChatModel = init_chat_model(settings.model, **{**arguments, **settings.options})
    except ImportError as exc:
        raise MissingExtraError(
            f"The model {settings.model!r} of the role {role!r} needs a package that is not"
            f" installed: {exc}.",
            fix=_install_command(str(exc)),
        ) from exc
    except Exception as exc:
        raise _creation_error(role, settings, exc) from exc
    missing = _missing_key_variable(model)
    if missing:
        raise ConfigurationError(
            f"The model {settings.model!r} of the role {role!r} has no API key.",
            fix=_api_key_fix(missing, role),
        )
    return model


def _is_openai(settings: ModelSettings) -> bool:
    provider = settings.options.get("model_provider") or settings.model.partition(":")[0]
    return bool(provider == "openai")


def _creation_error(role: str, settings: ModelSettings, exc: Exception) -> ConfigurationError:
    told = " ".join(mask_secrets(str(exc), MAX_MESSAGE_CHARS).split())
    name = f"The model {settings.model!r} of the role {role!r}"
    lowered = told.lower()
    if "api_key" in lowered or "api key" in lowered or "credentials" in lowered:
        variables = _KEY_VARIABLE.findall(told)
        return ConfigurationError(
            f"{name} has no API key.", fix=_api_key_fix(variables[0] if variables else "", role)
        )
    return ConfigurationError(
        f"{name} cannot be made: {told[:500]}.", fix="Write 'provider:name', and check the options."
    )


def _missing_key_variable(model: BaseChatModel) -> str:
    """Return the environment variable of a key that is not there; ``""`` when none is missing.

    Some providers make a client without its key and fail at the first call.
    """
    keys = {a: env for a, env in model.lc_secrets.items() if a.endswith("api_key")}
    given = any(getattr(model, attribute, None) for attribute in keys)
    return "" if given else next(iter(keys.values()), "")


def _api_key_fix(variable: str, role: str) -> str:
    setting = f"models.{role}.api_key"
    return (
        f"Set the environment variable {variable}, or {setting}." if variable else f"Set {setting}."
    )


def _install_command(message: str) -> str:
    found = re.search(r"pip install (?:-U )?([\w\[\]-]+)", message)
    package = found.group(1) if found else ""
    if not package or package in {"langchain-openai", "langchain"}:
        return f"pip install 'capgraph[{_EXTRA}]'"
    return f"pip install {package}"
