"""Behaviours that settings name."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from configs.near import nearest
from framework.base.errors import ConfigurationError


def behaviors_from(given: Iterable[Any], where: str) -> list[Any]:
    """Make the behaviours of a list; what is one already stays as it is.

    Args:
        given: Objects, or ``{"use": name, …arguments}`` with the name of a shipped behaviour
            (``retry``, ``circuit_breaker``), of another class of ``framework.behaviors`` or
            ``"module:Class"``; arguments may be such descriptions too.
        where: Names the list, such as ``models.planning.behaviors``.

    Raises:
        ConfigurationError: A name or an argument is unknown, or does not fit; says which.

    >>> behaviors_from([{"use": "retry", "max_retries": 2}], "behaviors")
    [RetryBehavior(max_retries=2)]
    """
    return [
        _made(item, f"{where}[{place}]") if isinstance(item, Mapping) else item
        for place, item in enumerate(given)
    ]


def _made(item: Mapping[str, Any], where: str) -> Any:
    cls = _named(item.get("use"), where)
    arguments = {
        name: _inside(value, f"{where}.{name}") for name, value in item.items() if name != "use"
    }
    known = list(inspect.signature(cls).parameters)
    for name in arguments:
        if name not in known:
            near = nearest(name, known)
            raise ConfigurationError(
                f"{where}: {item['use']!r} has no argument {name!r}.",
                fix=f"Write {near!r}." if near else f"Use one of: {', '.join(known) or 'none'}.",
            )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(f"{where}: {exc}") from exc


def _inside(value: Any, where: str) -> Any:
    """Make what an argument names: ``rules: [{use: GuardrailRule, …}]``."""
    if isinstance(value, Mapping) and "use" in value:
        return _made(value, where)
    if isinstance(value, list):
        return [_inside(item, f"{where}[{place}]") for place, item in enumerate(value)]
    return value


def _named(name: Any, where: str) -> Any:
    room = importlib.import_module("framework.behaviors")

    shipped = {
        _short(exported): exported
        for exported in room.__all__
        if exported.endswith("Behavior") and exported != "BaseBehavior"
    }
    if name in shipped or name in room.__all__:
        return getattr(room, shipped.get(name, name))
    module, _, attribute = str(name or "").partition(":")
    if not attribute:
        near = nearest(str(name), shipped) if name else None
        raise ConfigurationError(
            f"{where}: there is no behaviour called {name!r}."
            if name
            else f"{where}: it does not say which behaviour it is.",
            fix=f"Write 'use: {near}'."
            if near
            else f"Write 'use:' with one of {', '.join(sorted(shipped))}, or 'module:Class'.",
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            f"{where}: {name!r} cannot be imported ({exc}).", fix="Write 'module:Class'."
        ) from exc


def _short(exported: str) -> str:
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", exported.removesuffix("Behavior"))
    return words.lower()
