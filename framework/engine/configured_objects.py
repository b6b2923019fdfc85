"""What settings name: behaviours around everything, a capability or a role's calls; policies, sinks."""

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


ObjectKind = Literal["behaviour", "policy", "sink", "gate"]
_SOURCES: Mapping[ObjectKind, tuple[str, str]] = {
    "behaviour": ("capgraph.behaviors", "Behavior"),
    "policy": ("capgraph.governance", ""),
    "gate": ("capgraph.governance", ""),
    "sink": ("capgraph.telemetry", "Sink"),
}
"""Where each of them comes from, and what its name ends with."""
_SHIPPED = {"policy": ("InformationFlow", "PolicyEngine", "QualityGate"), "gate": ("QualityGate",)}


def build_configured(items: Any, location: str, kind: ObjectKind = "behaviour") -> Sequence[Any]:
    """Make the items of a list; nothing is imported for an empty one.

    Args:
        items: Objects, which stay as they are, or ``{"use": name, …arguments}`` with the name of a
            shipped one (``retry``, ``information_flow``), of another class of the same room, or
            ``"module:Class"``. Arguments may be such descriptions too, or ``{"object":
            "module:name"}`` for something as it is, such as a function.
        location: Names the list, such as ``models.planning.behaviors``.
        kind: What they are.

    Raises:
        ConfigurationError: A name or an argument is unknown, or does not fit; says which.

    >>> build_configured([{"use": "retry", "max_retries": 2}], "behaviors")
    [RetryBehavior(max_retries=2)]
    """
    return [
        _build_item(item, f"{location}[{place}]", kind) for place, item in enumerate(items or ())
    ]


def _build_item(item: Any, location: str, kind: ObjectKind) -> Any:
    described = isinstance(item, Mapping) and "object" not in item
    return _build_value({"use": None, **item} if described else item, location, kind)


def _build_value(value: Any, location: str, kind: ObjectKind) -> Any:
    """Make what an item or an argument names: ``rules: [{use: GuardrailRule, …}]``."""
    if isinstance(value, list):
        return [
            _build_value(item, f"{location}[{place}]", kind) for place, item in enumerate(value)
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
    known = list(inspect.signature(cls).parameters)
    for name in arguments:
        if name not in known:
            near = closest_match(name, known)
            raise ConfigurationError(
                f"{location}: {value['use']!r} has no argument {name!r}.",
                fix=f"Write {near!r}." if near else f"Use one of: {', '.join(known) or 'none'}.",
            )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(f"{location}: {exc}") from exc


def _find_class(name: Any, location: str, kind: ObjectKind) -> Any:
    module, suffix = _SOURCES[kind]
    room = importlib.import_module(module)
    ending = [n for n in room.__all__ if n.endswith(suffix) and n not in ("BaseBehavior", "Sink")]
    shipped = {_snake_case(n.removesuffix(suffix)): n for n in _SHIPPED.get(kind, ending)}
    if name in shipped or name in room.__all__:
        return getattr(room, shipped.get(name, name))
    if ":" in str(name):
        return import_attribute(name, location)
    near = closest_match(str(name), shipped) if name else None
    said = f"there is no {kind} called {name!r}" if name else f"it does not say which {kind} it is"
    raise ConfigurationError(
        f"{location}: {said}.",
        fix=f"Write 'use: {near}'."
        if near
        else f"Write 'use:' with one of {', '.join(sorted(shipped))}, or 'module:Class'.",
    )


def import_attribute(name: Any, location: str) -> Any:
    """Return what ``"module:attribute"`` names.

    Raises:
        ConfigurationError: There is none; says ``location`` it was named.
    """
    module, _, attribute = str(name).partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"{location}: {name!r} cannot be imported ({exc}).", fix="Write 'module:attribute'."
        ) from exc


def _snake_case(exported: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", exported).lower()


def capability_behaviors(registry: Registry, settings: Settings) -> dict[str, Sequence[Any]]:
    """Return what the settings put around single capabilities.

    Raises:
        ConfigurationError: They name one that there is not: what guards it would guard nothing.
    """
    found = {}
    for name, section in settings.capabilities.items():
        given = section.get("behaviors")
        left_out = name in settings.exclude or (settings.include and name not in settings.include)
        if not given or left_out:
            continue
        where = f"capabilities.{name}.behaviors"
        if name not in registry.capabilities:
            raise ConfigurationError(
                f"{where}: there is no capability called {name!r}.",
                fix=suggest_fix(name, candidates=registry.capabilities),
            )
        found[name] = build_configured(given, where)
    return found


def model_behaviors(items: Sequence[Any], location: str) -> list[Any]:
    """Return what stands around the calls of a model's role, LangChain's middlewares included.

    Raises:
        ConfigurationError: Something cannot stand there.
    """
    if not items:
        return []
    from capgraph.behaviors.langchain_middleware import adapt_middleware

    found = list(
        flatten_behaviors(
            adapt_middleware(item, location) for item in build_configured(items, location)
        )
    )
    check_middleware(found, location, "model")
    return found
