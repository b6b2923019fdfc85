"""Behaviours that settings name: around everything, around a capability, around a role's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from framework.base.errors import ConfigurationError
from framework.pipeline.runner import check_middlewares, in_parts
from framework.registry import Registry

if TYPE_CHECKING:
    from configs.settings import Settings


def named(given: Any, where: str) -> Sequence[Any]:
    """Make the behaviours of a list; nothing is imported for an empty one.

    Raises:
        ConfigurationError: A name or an argument is unknown, or does not fit.
    """
    if not given:
        return ()
    from framework.behaviors.named import behaviors_from

    return behaviors_from(given, where)


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
                fix=f"Use one of: {', '.join(sorted(registry.capabilities))}.",
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
    from framework.behaviors.langchain import adapted

    found = list(in_parts(adapted(item, where) for item in named(given, where)))
    check_middlewares(found, where, "model")
    return found
