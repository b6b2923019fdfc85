"""``capgraph new``: a project, a capability or a node that runs and passes its own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="new", help="Write a new project, capability or node.", no_args_is_help=True)
_Name = Annotated[str, typer.Argument(help="Its name.")]


@app.command("project")
def project(
    name: _Name,
    folder: Annotated[Path, typer.Option("--in", help="Folder that it is made in.")] = Path(),
) -> None:
    """Write a project: an agent with two capabilities, its configuration and its tests."""
    from framework.cli.scaffold import new_project

    _say(new_project(name, folder))
    typer.echo(f"Next: cd {folder / name} && capgraph ask 'How warm is it on average?'")


@app.command("capability")
def capability(
    name: _Name,
    function: Annotated[
        bool, typer.Option("--function", help="One annotated function instead of a class.")
    ] = False,
    folder: Annotated[Path, typer.Option("--in", help="Folder of the project.")] = Path(),
) -> None:
    """Write a capability and its test into the project of this folder."""
    from framework.cli.scaffold import find_project, new_capability

    _say(new_capability(name, find_project(folder), function=function))
    typer.echo("Next: python -m pytest")


@app.command("node")
def node(
    name: _Name,
    role: Annotated[
        str, typer.Option("--role", help="Built-in node that it replaces.")
    ] = "respond",
    folder: Annotated[Path, typer.Option("--in", help="Folder of the project.")] = Path(),
) -> None:
    """Write a node that takes the place of a built-in one, and its test, into this project."""
    from framework.cli.scaffold import find_project, new_node

    _say(new_node(name, role, find_project(folder)))
    typer.echo("Next: python -m pytest")


def _say(files: list[Path]) -> None:
    from framework.cli.terminal import one_line

    for file in files:
        typer.echo(f"wrote {one_line(file, 4000)}")
