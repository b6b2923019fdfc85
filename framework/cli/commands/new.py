"""``capgraph new``: a project, a capability or a node that runs and passes its own tests.

What is written lies below ``templates``: ``string.Template`` fills in names, and the folder
``package`` stands for the project's own package.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from capgraph.configs.errors import ConfigurationError

app: typer.Typer = typer.Typer(
    name="new", help="Write a new project, capability or node.", no_args_is_help=True
)
_NameArgument = Annotated[str, typer.Argument(help="Its name.")]
_ProjectOption = Annotated[Path, typer.Option("--in", help="Folder of the project.")]
_TEMPLATES = Path(__file__).parents[1] / "templates"
_SUFFIX = ".tmpl"
_RESERVED_NAMES = {"capgraph", "capgraph_pytest", "tests"}


@app.command("project")
def project(
    name: _NameArgument,
    folder: Annotated[Path, typer.Option("--in", help="Folder that it is made in.")] = Path(),
) -> None:
    """Write a project: an agent with two capabilities, its configuration and its tests."""
    package = python_name(name)
    if package in _RESERVED_NAMES or package in sys.stdlib_module_names:
        raise ConfigurationError(
            f"The name {name!r} is that of another package.", fix="Choose another name."
        )
    target = folder / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(
            f"{str(target)!r} exists and is not empty.", fix="Choose another name or folder."
        )
    root = _TEMPLATES / "project"
    places = {"package": package, "gitignore": ".gitignore"}
    files = []
    for file in sorted(root.rglob(f"*{_SUFFIX}")):
        parts = file.relative_to(root).as_posix().removesuffix(_SUFFIX).split("/")
        files.append((file, target.joinpath(*(places.get(part, part) for part in parts))))
    _write(files, package=package, distribution=package.replace("_", "-"))
    typer.echo(f"Next: cd {target} && capgraph ask 'How warm is it on average?'")


@app.command("capability")
def capability(
    name: _NameArgument,
    function: Annotated[
        bool, typer.Option("--function", help="One annotated function instead of a class.")
    ] = False,
    folder: _ProjectOption = Path(),
) -> None:
    """Write a capability and its test into the project of this folder."""
    module, (package, _) = python_name(name), read_project(folder)
    klass = f"{_to_camel_case(module)}Capability"
    _write_with_test(
        "capability",
        "function" if function else "capability",
        folder / package / "capabilities" / f"{module}.py",
        folder / "tests" / f"test_{module}.py",
        name=module,
        words=module.replace("_", " "),
        klass=klass,
        context=f"{_to_camel_case(module)}Result",
        context_type=f"{module.upper()}_RESULT",
        module=f"{package}.capabilities.{module}",
        item=module if function else klass,
    )


@app.command("node")
def node(
    name: _NameArgument,
    role: Annotated[
        str | None,
        typer.Option("--role", help="Built-in node that it replaces; without it, respond."),
    ] = None,
    folder: _ProjectOption = Path(),
) -> None:
    """Write a node that takes the place of a built-in one, and its test, into this project.

    Where a node of the project has the place and no role is given, it stands after that.
    """
    from capgraph.registry import Registry

    module, (package, settings) = python_name(name), read_project(folder)
    known = Registry().infrastructure
    asked, role = role, role or (module if module in known else "respond")
    if role not in known:
        raise ConfigurationError(
            f"There is no node {role!r} to replace.", fix=f"Use one of: {', '.join(known)}."
        )
    if f"{package}.nodes" not in (settings.get("infrastructure") or []):
        raise ConfigurationError(
            f"{package}.nodes does not stand under 'infrastructure', so no node there is found.",
            fix=f"Write both 'capgraph.infrastructure' and '{package}.nodes' there, and make the package.",
        )
    nodes = folder / package / "nodes"
    own = next((f for f in sorted(nodes.glob("*.py")) if f'name = "{role}"' in f.read_text()), None)
    if own is not None and (asked or module == role):
        raise ConfigurationError(
            f"{str(own)!r} takes the place of {role!r} already.",
            fix="Leave --role out, so that the new node stands after it, or change that file.",
        )
    _write_with_test(
        "node",
        "node" if own is None else "beside",
        nodes / f"{module}.py",
        folder / "tests" / f"test_{module}.py",
        name=module,
        klass=f"{_to_camel_case(module)}Node",
        role=role,
        node=role if own is None else module,
        builtin=known[role].cls.__name__,
        package=package,
    )


def python_name(name: str) -> str:
    """Return the Python name that a name stands for.

    Raises:
        ConfigurationError: It stands for none.

    >>> python_name("my-station")
    'my_station'
    """
    found = name.strip().replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", found) or keyword.iskeyword(found):
        raise ConfigurationError(
            f"{name[:80]!r} is no name that Python can use.",
            fix="Use letters, digits and underscores, beginning with a letter: my_station.",
        )
    return found


def read_project(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the package and the configuration of the project in a folder.

    Raises:
        ConfigurationError: There is none, or none of its modules is a package of it.
    """
    from capgraph.configs.yaml_files import read_yaml

    config = folder / "capgraph.yml"
    if not config.is_file():
        raise ConfigurationError(
            f"There is no capgraph.yml in {str(folder)!r}.",
            fix="Go to the folder of a project, or make one: capgraph new project NAME.",
        )
    settings = read_yaml(config)
    modules = settings.get("modules") or []
    for module in modules if isinstance(modules, list) else []:
        package = str(module).split(".")[0]
        if (folder / package / "__init__.py").is_file():
            return package, settings
    raise ConfigurationError(
        f"None of the modules {modules!r} of {str(config)!r} is a package beside it.",
        fix="Name a package that lies beside capgraph.yml, such as my_app.capabilities.",
    )


def _write_with_test(
    kind: str, template: str, target: Path, test: Path, /, *, name: str, **values: str
) -> None:
    source = _TEMPLATES / kind
    files = [
        (source / f"{template}.py{_SUFFIX}", target),
        (source / f"test_{kind}.py{_SUFFIX}", test),
    ]
    _write(files, name=name, title=name.replace("_", " ").capitalize(), **values)
    typer.echo("Next: python -m pytest")


def _write(files: Iterable[tuple[Path, Path]], **values: str) -> None:
    """Write all files or none; nothing is overwritten."""
    from capgraph.cli.terminal import one_line, write_file

    texts = {
        target: Template(source.read_text(encoding="utf-8")).substitute(values)
        for source, target in files
    }
    for target in texts:
        if target.exists():
            raise ConfigurationError(
                f"{str(target)!r} exists already.", fix="Choose another name, or remove the file."
            )
    for target, text in texts.items():
        write_file(target, text)
        typer.echo(f"wrote {one_line(target, 4000)}")


def _to_camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
