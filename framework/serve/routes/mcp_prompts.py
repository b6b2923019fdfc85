"""Prompts of the MCP server: recipes, and example requests of capabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from capgraph.base.ports import Caller
from capgraph.engine.services import Services
from capgraph.planning.recipes import Recipe, recipe_of
from capgraph.registry import Registry


class _PromptSource(NamedTuple):
    """Source of an MCP prompt, which contains a request to the agent.

    Attributes:
        description: Description of the prompt.
        request: Request text of the prompt.
        recipe: Recipe whose parameters are the prompt's arguments.
    """

    description: str
    request: str
    recipe: Recipe | None = None


class McpPrompts:
    """MCP prompts offered by the server.

    Each recipe and each capability with an example request becomes a prompt with the same name.

    Args:
        services: Services of the graph.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def list_prompts(self, caller: Caller) -> ListPromptsResult:
        """Return the MCP prompts whose capabilities the caller may use."""
        prompts = [
            Prompt(
                name=name,
                description=source.description,
                arguments=[
                    PromptArgument(
                        name=parameter,
                        description=declared.description or None,
                        required="default" not in declared.model_fields_set,
                    )
                    for parameter, declared in source.recipe.parameters.items()
                ]
                if source.recipe is not None
                else [],
            )
            for name, source in self._sources(caller).items()
        ]
        return ListPromptsResult(prompts=prompts)

    def get(self, caller: Caller, name: str, arguments: Mapping[str, str]) -> GetPromptResult:
        """Return the request text of a prompt with the arguments filled in.

        Raises:
            MCPError: The prompt does not exist, or an argument is missing or unknown.
        """
        source = self._sources(caller).get(name)
        if source is None:
            raise MCPError(INVALID_PARAMS, f"The prompt {name!r} does not exist.")
        parameters = source.recipe.parameters if source.recipe is not None else {}
        required = {n for n, one in parameters.items() if "default" not in one.model_fields_set}
        if wrong := sorted(required - {*arguments}) + sorted({*arguments} - {*parameters}):
            raise MCPError(
                INVALID_PARAMS,
                f"The arguments {wrong} of the prompt {name!r} are missing or unknown.",
            )
        request = source.request
        if source.recipe is not None:
            # The longest values first: one may be part of another.
            values = source.recipe.examples[0].parameters
            for parameter in sorted(arguments, key=lambda one: -len(str(values.get(one, "")))):
                if example_value := str(values.get(parameter, "")):
                    request = request.replace(example_value, arguments[parameter])
        message = PromptMessage(role="user", content=TextContent(text=request))
        return GetPromptResult(description=source.description, messages=[message])

    def complete(self, caller: Caller, name: str, argument: str, prefix: str) -> list[str]:
        """Suggest values from examples that complete the prefix of a prompt argument."""
        source = self._sources(caller).get(name)
        if source is None or source.recipe is None:
            return []
        values = (str(one.parameters.get(argument, "")) for one in source.recipe.examples)
        return sorted({value for value in values if value and value.startswith(prefix)})

    def _sources(self, caller: Caller) -> dict[str, _PromptSource]:
        permissions = self._services.permissions
        registry: Registry = (
            permissions.visible_registry(caller) if permissions else self._services.registry
        )
        sources = {}
        for candidate in registry.candidates():
            spec = registry.capabilities[candidate.name]
            recipe = recipe_of(spec)
            if recipe is not None and recipe.examples:
                request = recipe.examples[0].request
                sources[spec.name] = _PromptSource(spec.description, request, recipe)
            elif recipe is None and candidate.positives:
                sources[spec.name] = _PromptSource(spec.description, candidate.positives[0])
        return sources
