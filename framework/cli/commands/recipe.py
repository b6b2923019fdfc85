"""``capgraph recipe``: make a plan that worked into a capability, and look at those there are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import CapgraphError, ConfigurationError
from framework.cli.options import Shared, takes
from framework.cli.terminal import say, show_rows

if TYPE_CHECKING:
    from framework.planning import Recipe

app = typer.Typer(
    name="recipe", help="Save, list, show and check recipes: plans as capabilities.",
    no_args_is_help=True,
)  # fmt: skip
_FOLDER = "recipes"
_NONE = (
    "None is named under 'recipes' in the configuration (its file, or the folder);"
    " 'capgraph recipe save' writes one."
)


@app.command("save")
@takes("config", "db")
def save(
    shared: Shared,
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
    from framework.graph.turns import thread_values
    from framework.planning import Recipe, recipe_of
    from framework.registry import load_recipe, save_recipe

    shared.need_database()
    settings = shared.settings()
    folders = [Path(place) for place in settings.recipes if not Path(place).suffix]
    target = output or (folders or [Path(_FOLDER)])[0] / f"{name}.yml"

    before = load_recipe(target) if target.is_file() else None

    async def make() -> Recipe:
        async with shared.open_agent(settings) as agent:
            known = agent.registry.capabilities.get(name)
            if known is not None and recipe_of(known) is None:
                raise ConfigurationError(
                    f"{name!r} is a capability already, and no recipe.", fix="Choose another name."
                )
            recipe = Recipe.from_turn(
                await thread_values(agent.graph, thread),
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
    say(f"{target}: version {recipe.version}, {len(recipe.steps)} step(s), parameters: {said}")
    if not {str(target), str(target.parent)} & set(settings.recipes):
        say(f"To use it, name {str(target.parent)!r} under 'recipes' in the configuration.")


@app.command("list")
@takes("config", "as_json")
def list_(shared: Shared) -> None:
    """List the agent's recipes."""
    rows = [
        (
            recipe.name,
            recipe.version,
            ", ".join(recipe.parameters) or "-",
            len(recipe.steps),
            recipe.description,
        )
        for recipe in _recipes(shared).values()
    ]
    headings = ("name", "version", "parameters", "steps", "description")
    data = [dict(zip(headings, row, strict=True)) for row in rows] if shared.as_json else None
    show_rows(headings, rows, none=_NONE, data=data)


@app.command("show")
@takes("config", "as_json")
def show(shared: Shared, name: Annotated[str, typer.Argument(help="Name of the recipe.")]) -> None:
    """Show a recipe as its file has it."""
    import yaml

    known = _recipes(shared)
    if name not in known:
        raise ConfigurationError(
            f"There is no recipe {name!r}.",
            fix=f"Use one of: {', '.join(known)}." if known else _NONE,
        )
    data = known[name].to_dict()
    if shared.as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    say(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100).rstrip())


@app.command("check")
@takes("config")
def check(
    shared: Shared,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders (default: what the configuration names)."),
    ] = None,
) -> None:
    """Check recipes against the agent's capabilities; the exit code is 1 when one cannot be used."""
    from framework.planning.recipes import in_order
    from framework.registry import Registry, load_recipe, recipe_files

    settings = shared.settings()
    registry = Registry.from_settings(settings.model_copy(update={"recipes": []}))
    failed = False
    for recipe in in_order(load_recipe(f) for f in recipe_files(files or settings.recipes)):
        try:
            registry.register(recipe)
            say(f"ok {recipe.name} (version {recipe.version})")
        except CapgraphError as exc:
            failed = True
            say(f"error {recipe.name}: {exc}")
    raise typer.Exit(1 if failed else 0)


def _recipes(shared: Shared) -> dict[str, Recipe]:
    from framework.planning import recipe_of
    from framework.registry import Registry

    specs = Registry.from_settings(shared.settings()).capabilities
    return {name: found for name, spec in specs.items() if (found := recipe_of(spec)) is not None}
