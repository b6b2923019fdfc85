"""Finds the gateway of the configured infrastructure by name, for the framework imports none."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigurationError

if TYPE_CHECKING:
    from configs.settings import Settings


def gateway_of(settings: Settings) -> Any:
    """Return the gateway module of the first infrastructure package that has one.

    Its ``prepare(graph, text, config)`` makes input for the graph of what a person typed, and
    ``HELP`` names the commands that it knows.

    Args:
        settings: All settings; ``infrastructure`` names packages and modules.

    Raises:
        ConfigurationError: None of them has a gateway.
    """
    roots = dict.fromkeys(name.split(".")[0] for name in settings.infrastructure)
    for root in [*settings.infrastructure, *roots]:
        name = f"{root}.gateway"
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # the name is a module, which holds no further module
            continue
        if found:
            return importlib.import_module(name)
    raise ConfigurationError(
        f"None of the infrastructure modules {settings.infrastructure} has a gateway.",
        fix="Keep 'infrastructure' in the list, or add a module called gateway to your package.",
    )
