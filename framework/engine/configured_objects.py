"""Creation of behaviors, policies, gates, and sinks that the settings name."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from capgraph.base.errors import ConfigurationError
from capgraph.configs.suggestions import closest_match, suggest_fix
from capgraph.pipeline.middleware import check_middleware, flatten_behaviors
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


ObjectKind = Literal["behavior", "policy", "sink", "gate"]
_SOURCES: Mapping[ObjectKind, tuple[str, str]] = {
    "behavior": ("capgraph.behaviors", "Behavior"),
    "policy": ("capgraph.governance", ""),
    "gate": ("capgraph.governance", ""),
    "sink": ("capgraph.telemetry", "Sink"),
}
"""Package and class name suffix of each kind of object."""
_SHIPPED = {"policy": ("InformationFlow", "PolicyEngine", "QualityGate"), "gate": ("QualityGate",)}


def build_configured(items: Any, location: str, kind: ObjectKind = "behavior") -> Sequence[Any]:
    """Create the objects described by a list in the settings.

    Args:
        items: Objects, which are returned unchanged, or descriptions ``{"use": name,
            …arguments}``. The name refers to a built-in class (``retry``,
            ``information_flow``), another class in the same package, or ``"module:Class"``. An
            argument may also be a description, or ``{"object": "module:name"}`` for an existing
            object, such as a function.
        location: Location of the list in the settings, such as ``models.planning.behaviors``,
            for error messages.
        kind: Kind of the objects.

    Raises:
        ConfigurationError: A name or an argument is unknown or invalid.

    >>> build_configured([{"use": "retry", "max_retries": 2}], "behaviors")
    [RetryBehavior(max_retries=2)]
    """
    return [
        _build_item(item, f"{location}[{index}]", kind) for index, item in enumerate(items or ())
    ]


def _build_item(item: Any, location: str, kind: ObjectKind) -> Any:
    described = isinstance(item, Mapping) and "object" not in item
    return _build_value({"use": None, **item} if described else item, location, kind)


def _build_value(value: Any, location: str, kind: ObjectKind) -> Any:
    """Create the object described by an item or argument in the settings.

    Values that do not describe an object are returned unchanged.
    """
    if isinstance(value, list):
        return [
            _build_value(item, f"{location}[{index}]", kind) for index, item in enumerate(value)
        ]
    if not isinstance(value, Mapping) or not ("use" in value or "object" in value):
        return value
    if "object" in value:
        return import_attribute(value["object"], location)
    cls = _find_class(value["use"], location, kind)
    arguments = {
        name: _build_value(item, f"{location}.{name}", kind)
        for name, item in value.items()
        if name != "use"
    }
    parameter_names = list(inspect.signature(cls).parameters)
    for name in arguments:
        if name not in parameter_names:
            suggestion = closest_match(name, parameter_names)
            raise ConfigurationError(
                f"Unknown argument {name!r} of {value['use']!r} at {location}.",
                fix=f"use {suggestion!r}."
                if suggestion
                else f"use one of: {', '.join(parameter_names) or 'none'}.",
            )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(f"{location}: {exc}") from exc


def _find_class(name: Any, location: str, kind: ObjectKind) -> Any:
    module, suffix = _SOURCES[kind]
    package = importlib.import_module(module)
    matching = [
        n for n in package.__all__ if n.endswith(suffix) and n not in ("BaseBehavior", "Sink")
    ]
    shipped = {_to_snake_case(n.removesuffix(suffix)): n for n in _SHIPPED.get(kind, matching)}
    if name in shipped or name in package.__all__:
        return getattr(package, shipped.get(name, name))
    if ":" in str(name):
        return import_attribute(name, location)
    suggestion = closest_match(str(name), shipped) if name else None
    cause = f"unknown {kind} {name!r}" if name else "'use' is missing"
    raise ConfigurationError(
        f"{location}: {cause}.",
        fix=f"write 'use: {suggestion}'."
        if suggestion
        else f"write 'use:' with one of {', '.join(sorted(shipped))}, or 'module:Class'.",
    )


def import_attribute(name: Any, location: str) -> Any:
    """Import the object referenced by a ``"module:attribute"`` string.

    Args:
        name: Import reference.
        location: Location of the reference in the settings, for error messages.

    Raises:
        ConfigurationError: The object cannot be imported.
    """
    module, _, attribute = str(name).partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"{name!r} at {location} cannot be imported: {exc}.", fix="Write 'module:attribute'."
        ) from exc


def _to_snake_case(exported: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", exported).lower()


def capability_behaviors(registry: Registry, settings: Settings) -> dict[str, Sequence[Any]]:
    """Create the behaviors that the settings declare for individual capabilities.

    Raises:
        ConfigurationError: The settings contain an unknown capability, whose behaviors would
            have no effect.
    """
    behaviors = {}
    for name, section in settings.capabilities.items():
        items = section.get("behaviors")
        left_out = name in settings.exclude or (settings.include and name not in settings.include)
        if not items or left_out:
            continue
        where = f"capabilities.{name}.behaviors"
        if name not in registry.capabilities:
            raise ConfigurationError(
                f"Unknown capability {name!r} at {where}.",
                fix=suggest_fix(name, candidates=registry.capabilities),
            )
        behaviors[name] = build_configured(items, where)
    return behaviors


def model_behaviors(items: Sequence[Any], location: str) -> list[Any]:
    """Create the behaviors declared for a model role. LangChain middleware is also accepted.

    Raises:
        ConfigurationError: A behavior cannot wrap model calls.
    """
    if not items:
        return []
    from capgraph.behaviors.langchain_middleware import adapt_middleware

    behaviors = list(
        flatten_behaviors(
            adapt_middleware(item, location) for item in build_configured(items, location)
        )
    )
    check_middleware(behaviors, location, "model")
    return behaviors
