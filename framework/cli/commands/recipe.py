"""``capgraph recipe``: save a plan as a capability."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.planning import Recipe

app: typer.Typer = typer.Typer(
    name="recipe", help="Save plans as recipes, which are capabilities.", no_args_is_help=True
)
_DEFAULT_FOLDER = "recipes"


@app.command("save")
@with_shared_options("config", "db")
def save(
    shared: SharedOptions,
    thread: Annotated[str, typer.Argument(help="Thread whose last turn becomes the recipe.")],
    name: Annotated[str, typer.Argument(help="Name of the capability.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            help="Value that becomes a parameter, as step.value or step.value=name; can be repeated"
            " (default: every value that occurs in the request).",
        ),
    ] = None,
    description: Annotated[
        str, typer.Option("--description", help="Description of the capability.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Output file (default: NAME.yml in the first folder of 'recipes').",
        ),
    ] = None,
) -> None:
    """Save the plan of a thread's last turn as a reusable recipe."""
    from capgraph.graph.turn_runner import load_thread_values
    from capgraph.planning import Recipe, recipe_of
    from capgraph.registry import load_recipe, save_recipe

    shared.require_database()
    settings = shared.settings()
    folders = [Path(place) for place in settings.recipes if not Path(place).suffix]
    target = output or (folders or [Path(_DEFAULT_FOLDER)])[0] / f"{name}.yml"

    existing = load_recipe(target) if target.is_file() else None

    async def make() -> Recipe:
        async with shared.open_agent(settings) as agent:
            capability = agent.registry.capabilities.get(name)
            if capability is not None and recipe_of(capability) is None:
                raise ConfigurationError(
                    f"The name {name!r} is already used by a capability that is not a recipe.",
                    fix="Choose another name.",
                )
            recipe = Recipe.from_turn(
                await load_thread_values(agent.graph, thread),
                name,
                agent.registry,
                parameters=parameter or None,
                description=description or (existing.description if existing else ""),
                version=existing.version + 1 if existing else 1,
            )
            if existing is not None:
                kept_examples = [
                    e for e in existing.examples if e.parameters.keys() <= recipe.parameters.keys()
                ]
                new_examples = [e for e in recipe.examples if e not in kept_examples]
                recipe = recipe.model_copy(update={"examples": [*kept_examples, *new_examples]})
            recipe.check(agent.registry)
            return recipe

    recipe = asyncio.run(make())
    save_recipe(recipe, target)
    parameter_names = ", ".join(recipe.parameters) or "none"
    print_text(
        f"{target}: version {recipe.version}, {len(recipe.steps)} step(s), parameters: {parameter_names}"
    )
    if not {str(target), str(target.parent)} & set(settings.recipes):
        print_text(f"To use it, name {str(target.parent)!r} under 'recipes' in the configuration.")
