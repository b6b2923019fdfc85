"""What settings name: behaviours around everything, a capability or a role's calls; policies, sinks."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from capgraph.base.errors import ConfigurationError
from capgraph.configs.near import nearest, use_known
from capgraph.pipeline.middlewares import check_middlewares, in_parts
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


Kind = Literal["behaviour", "policy", "sink", "gate"]
_ROOMS: Mapping[Kind, tuple[str, str]] = {
    "behaviour": ("capgraph.behaviors", "Behavior"),
    "policy": ("capgraph.governance", ""),
    "gate": ("capgraph.governance", ""),
    "sink": ("capgraph.telemetry", "Sink"),
}
"""Where each of them comes from, and what its name ends with."""
_SHIPPED = {"policy": ("InformationFlow", "PolicyEngine", "QualityGate"), "gate": ("QualityGate",)}


def named(given: Any, where: str, kind: Kind = "behaviour") -> Sequence[Any]:
    """Make the items of a list; nothing is imported for an empty one.

    Args:
        given: Objects, which stay as they are, or ``{"use": name, …arguments}`` with the name of a
            shipped one (``retry``, ``information_flow``), of another class of the same room, or
            ``"module:Class"``. Arguments may be such descriptions too, or ``{"object":
            "module:name"}`` for something as it is, such as a function.
        where: Names the list, such as ``models.planning.behaviors``.
        kind: What they are.

    Raises:
        ConfigurationError: A name or an argument is unknown, or does not fit; says which.

    >>> named([{"use": "retry", "max_retries": 2}], "behaviors")
    [RetryBehavior(max_retries=2)]
    """
    return [_item(item, f"{where}[{place}]", kind) for place, item in enumerate(given or ())]


def _item(item: Any, where: str, kind: Kind) -> Any:
    described = isinstance(item, Mapping) and "object" not in item
    return _inside({"use": None, **item} if described else item, where, kind)


def _inside(value: Any, where: str, kind: Kind) -> Any:
    """Make what an item or an argument names: ``rules: [{use: GuardrailRule, …}]``."""
    if isinstance(value, list):
        return [_inside(item, f"{where}[{place}]", kind) for place, item in enumerate(value)]
    if not isinstance(value, Mapping) or not ("use" in value or "object" in value):
        return value
    if "object" in value:
        return imported(value["object"], where)
    cls = _found(value["use"], where, kind)
    arguments = {
        name: _inside(item, f"{where}.{name}", kind)
        for name, item in value.items()
        if name != "use"
    }
    known = list(inspect.signature(cls).parameters)
    for name in arguments:
        if name not in known:
            near = nearest(name, known)
            raise ConfigurationError(
                f"{where}: {value['use']!r} has no argument {name!r}.",
                fix=f"Write {near!r}." if near else f"Use one of: {', '.join(known) or 'none'}.",
            )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(f"{where}: {exc}") from exc


def _found(name: Any, where: str, kind: Kind) -> Any:
    module, suffix = _ROOMS[kind]
    room = importlib.import_module(module)
    ending = [n for n in room.__all__ if n.endswith(suffix) and n not in ("BaseBehavior", "Sink")]
    shipped = {_short(n.removesuffix(suffix)): n for n in _SHIPPED.get(kind, ending)}
    if name in shipped or name in room.__all__:
        return getattr(room, shipped.get(name, name))
    if ":" in str(name):
        return imported(name, where)
    near = nearest(str(name), shipped) if name else None
    said = f"there is no {kind} called {name!r}" if name else f"it does not say which {kind} it is"
    raise ConfigurationError(
        f"{where}: {said}.",
        fix=f"Write 'use: {near}'."
        if near
        else f"Write 'use:' with one of {', '.join(sorted(shipped))}, or 'module:Class'.",
    )


def imported(name: Any, where: str) -> Any:
    """Return what ``"module:attribute"`` names.

    Raises:
        ConfigurationError: There is none; says ``where`` it was named.
    """
    module, _, attribute = str(name).partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"{where}: {name!r} cannot be imported ({exc}).", fix="Write 'module:attribute'."
        ) from exc


def _short(exported: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", exported).lower()


def of_capabilities(registry: Registry, settings: Settings) -> dict[str, Sequence[Any]]:
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
                fix=use_known(name, known=registry.capabilities),
            )
        found[name] = named(given, where)
    return found


def of_role(given: Sequence[Any], where: str) -> list[Any]:
    """Return what stands around the calls of a model's role, LangChain's middlewares included.

    Raises:
        ConfigurationError: Something cannot stand there.
    """
    if not given:
        return []
    from capgraph.behaviors.langchain import adapted

    found = list(in_parts(adapted(item, where) for item in named(given, where)))
    check_middlewares(found, where, "model")
    return found
