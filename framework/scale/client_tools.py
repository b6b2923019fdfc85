"""Client tools: capabilities that a front end declares for a turn and runs itself.

A step with a client tool interrupts the turn. The front end runs the tool and sends the result, which
resumes the turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.capability import BaseCapability
from capgraph.base.errors import CapabilityError, RegistryError, ValidationError
from capgraph.base.step_context import StepContext
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.graph.build import extend_graph
from capgraph.scale.agui_events import CLIENT_TOOL

MAX_CLIENT_TOOLS = 64
_MAX_GRAPHS = 32
_FACTS = {"key": "client_tools"}
"""Facts of errors about client tools: the argument of ``Runs.start`` that is invalid."""


def client_tool(name: str, description: str, parameters: Any = None) -> type[BaseCapability]:
    """Create a capability that is executed by the front end (a client tool).

    Args:
        name: Name of the tool.
        description: Description of the tool for planners.
        parameters: JSON schema of the tool's parameters.

    Raises:
        ValidationError: The name or the schema is invalid.

    >>> client_tool("paint", "Paint the page.").capability_spec.provides
    ('PAINT_RESULT',)
    """

    async def call(values: dict[str, Any], _: StepContext) -> Any:
        from langgraph.types import interrupt

        result = interrupt({"type": CLIENT_TOOL, "tool": name, "parameters": values})
        if isinstance(result, Mapping) and [*result] == ["error"]:
            raise CapabilityError(f"The client tool {name!r} failed: {result['error']}")
        return result

    if not name.strip():
        raise ValidationError("A client tool has no name.", fix="Send the name of each tool.")
    schema = parameters if isinstance(parameters, Mapping) and parameters else None
    return capability_from_schema(name, description or name, schema, call, max_attempts=1)


class ClientToolGraphs:
    """Cache of graphs extended with client tools, compiled once for each set of tools.

    Args:
        graph: Graph created by ``build_graph``, without client tools.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._extended: BoundedDict[str, Any] = BoundedDict(_MAX_GRAPHS)

    async def get(self, tools: Sequence[Mapping[str, Any]] | None) -> Any:
        """Return the graph extended with the client tools of a turn.

        Args:
            tools: Keyword arguments of :func:`client_tool` for each tool.

        Raises:
            ValidationError: A tool is invalid, or there are too many tools.
        """
        if not tools:
            return self._graph
        key = json.dumps(tools, sort_keys=True)
        if key not in self._extended:
            self._extended[key] = await asyncio.to_thread(self._extend, tools)
        return self._extended[key]

    def _extend(self, tools: Sequence[Mapping[str, Any]]) -> Any:
        if len(tools) > MAX_CLIENT_TOOLS:
            raise ValidationError(
                f"The request has {len(tools)} client tools: the limit is {MAX_CLIENT_TOOLS}.",
                fix="Send fewer tools.",
                facts=_FACTS,
            )
        known = self._graph.services.registry.capabilities
        for tool in tools:
            if tool["name"] in known:
                raise ValidationError(
                    f"The client tool {tool['name']!r} has the same name as a capability of the "
                    "agent.",
                    fix="Rename the tool.",
                    facts=_FACTS,
                )
        try:
            return extend_graph(self._graph, *(client_tool(**tool) for tool in tools))
        except (RegistryError, ValidationError) as exc:
            raise ValidationError(
                f"Invalid client tools: {exc.message}", fix=exc.fix, facts=_FACTS
            ) from exc
