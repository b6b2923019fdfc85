"""Finds the gateway of the configured infrastructure by name, for the framework imports none."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from configs.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from configs.settings import Settings


class Prepared(Protocol):
    """What a gateway makes of a line that a person typed."""

    @property
    def input(self) -> Any:
        """Input for the graph, or ``None``."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands for the front end."""

    @property
    def resumes(self) -> bool:
        """Whether the input answers an open question."""

    @property
    def switched(self) -> Mapping[str, bool]:
        """Switches that were set."""


class Gateway(Protocol):
    """The functions of a gateway module that a front end calls."""

    HELP: Mapping[str, str]

    async def prepare(
        self, graph: CompiledStateGraph[Any, Any, Any, Any], text: str, config: Any
    ) -> Prepared:
        """Turn a line into input for the graph."""


def gateway_of(settings: Settings) -> Gateway:
    """Return the gateway module of the first infrastructure package that has one.

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
            gateway: Any = importlib.import_module(name)
            return gateway  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"None of the infrastructure modules {settings.infrastructure} has a gateway.",
        fix="Keep 'infrastructure' in the list, or add a module called gateway to your package.",
    )
