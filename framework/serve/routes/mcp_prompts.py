"""Prompts of the MCP server: recipes, and example requests of capabilities."""

from __future__ import annotations

import re
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
            values = source.recipe.examples[0].parameters
            request = _substitute(
                request, {str(values.get(name, "")): text for name, text in arguments.items()}
            )
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


def _substitute(text: str, replacements: Mapping[str, str]) -> str:
    # In one pass, so that an inserted text is not replaced again. The longest values come first,
    # because one may be part of another.
    values = sorted(filter(None, replacements), key=len, reverse=True)
    if not values:
        return text
    return re.sub("|".join(map(re.escape, values)), lambda found: replacements[found[0]], text)
