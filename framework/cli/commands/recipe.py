"""``capgraph recipe``: make a plan that worked into a capability."""

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
    name="recipe", help="Save recipes: plans as capabilities.", no_args_is_help=True
)
_DEFAULT_FOLDER = "recipes"


@app.command("save")
@with_shared_options("config", "db")
def save(
    shared: SharedOptions,
    thread: Annotated[str, typer.Argument(help="Thread whose last turn is to become a recipe.")],
    name: Annotated[str, typer.Argument(help="What the capability shall be called.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            help="step.value or step.value=name that becomes a parameter; may be repeated"
            " (default: every value that the request says).",
        ),
    ] = None,
    description: Annotated[str, typer.Option("--description", help="What it does.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File (default: NAME.yml in the first of 'recipes')."),
    ] = None,
) -> None:
    """Make a recipe of a thread's last turn and write it to a file."""
    from capgraph.graph.turn_runner import load_thread_values
    from capgraph.planning import Recipe, recipe_of
    from capgraph.registry import load_recipe, save_recipe

    shared.require_database()
    settings = shared.settings()
    folders = [Path(place) for place in settings.recipes if not Path(place).suffix]
    target = output or (folders or [Path(_DEFAULT_FOLDER)])[0] / f"{name}.yml"

    before = load_recipe(target) if target.is_file() else None

    async def make() -> Recipe:
        async with shared.open_agent(settings) as agent:
            known = agent.registry.capabilities.get(name)
            if known is not None and recipe_of(known) is None:
                raise ConfigurationError(
                    f"{name!r} is a capability already, and no recipe.", fix="Choose another name."
                )
            recipe = Recipe.from_turn(
                await load_thread_values(agent.graph, thread),
                name,
                agent.registry,
                parameters=parameter or None,
                description=description or (before.description if before else ""),
                version=before.version + 1 if before else 1,
            )
            if before is not None:
                fitting = [
                    e for e in before.examples if e.parameters.keys() <= recipe.parameters.keys()
                ]
                new = [e for e in recipe.examples if e not in fitting]
                recipe = recipe.model_copy(update={"examples": [*fitting, *new]})
            recipe.check(agent.registry)
            return recipe

    recipe = asyncio.run(make())
    save_recipe(recipe, target)
    said = ", ".join(recipe.parameters) or "none"
    print_text(
        f"{target}: version {recipe.version}, {len(recipe.steps)} step(s), parameters: {said}"
    )
    if not {str(target), str(target.parent)} & set(settings.recipes):
        print_text(f"To use it, name {str(target.parent)!r} under 'recipes' in the configuration.")
