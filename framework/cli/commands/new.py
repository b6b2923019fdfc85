"""``capgraph new``: create a project, a capability, or a node, with passing tests.

The files are in ``templates``. ``string.Template`` fills in names, and the folder ``package`` is
renamed to the project's package.
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
    name="new", help="Create a project, capability, or node.", no_args_is_help=True
)
_NameArgument = Annotated[str, typer.Argument(help="Name.")]
_ProjectOption = Annotated[Path, typer.Option("--in", help="Folder of the project.")]
_TEMPLATES = Path(__file__).parents[1] / "templates"
_SUFFIX = ".tmpl"
_RESERVED_NAMES = {"capgraph", "capgraph_pytest", "tests"}


@app.command("project")
def project(
    name: _NameArgument,
    folder: Annotated[Path, typer.Option("--in", help="Parent folder of the project.")] = Path(),
) -> None:
    """Create a new agent project with two capabilities, a configuration, and tests."""
    package = python_name(name)
    if package in _RESERVED_NAMES or package in sys.stdlib_module_names:
        raise ConfigurationError(
            f"The name {name!r} is used by another package.", fix="Choose another name."
        )
    target = folder / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(
            f"The folder {str(target)!r} is not empty.", fix="Choose another name or folder."
        )
    root = _TEMPLATES / "project"
    renames = {"package": package, "gitignore": ".gitignore"}
    files = []
    for file in sorted(root.rglob(f"*{_SUFFIX}")):
        parts = file.relative_to(root).as_posix().removesuffix(_SUFFIX).split("/")
        files.append((file, target.joinpath(*(renames.get(part, part) for part in parts))))
    _write(files, package=package, distribution=package.replace("_", "-"))
    typer.echo(f"Next: cd {target} && capgraph ask 'How warm is it on average?'")


@app.command("capability")
def capability(
    name: _NameArgument,
    function: Annotated[
        bool, typer.Option("--function", help="Create an annotated function instead of a class.")
    ] = False,
    folder: _ProjectOption = Path(),
) -> None:
    """Create a capability and its test in an existing project."""
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
        typer.Option("--role", help="Built-in node to replace (default: respond)."),
    ] = None,
    folder: _ProjectOption = Path(),
) -> None:
    """Create a graph node that replaces a built-in node, with a test.

    If the project already replaces that node and --role is omitted, the new node is added after
    the existing one.
    """
    from capgraph.registry import Registry

    module, (package, settings) = python_name(name), read_project(folder)
    builtin_nodes = Registry().infrastructure
    given_role, role = role, role or (module if module in builtin_nodes else "respond")
    if role not in builtin_nodes:
        raise ConfigurationError(
            f"Unknown node {role!r}.", fix=f"Use one of: {', '.join(builtin_nodes)}."
        )
    if f"{package}.nodes" not in (settings.get("infrastructure") or []):
        raise ConfigurationError(
            f"The package {package}.nodes is not listed under 'infrastructure' in capgraph.yml.",
            fix=f"List 'capgraph.infrastructure' and '{package}.nodes', and create the package.",
        )
    nodes = folder / package / "nodes"
    existing = next(
        (f for f in sorted(nodes.glob("*.py")) if f'name = "{role}"' in f.read_text()), None
    )
    if existing is not None and (given_role or module == role):
        raise ConfigurationError(
            f"The node {role!r} is already replaced by {str(existing)!r}.",
            fix="Omit --role to run the new node after it, or change that file.",
        )
    _write_with_test(
        "node",
        "node" if existing is None else "beside",
        nodes / f"{module}.py",
        folder / "tests" / f"test_{module}.py",
        name=module,
        klass=f"{_to_camel_case(module)}Node",
        role=role,
        node=role if existing is None else module,
        builtin=builtin_nodes[role].cls.__name__,
        package=package,
    )


def python_name(name: str) -> str:
    """Convert a name to a valid Python identifier.

    Raises:
        ConfigurationError: The name cannot be converted.

    >>> python_name("my-station")
    'my_station'
    """
    found = name.strip().replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", found) or keyword.iskeyword(found):
        raise ConfigurationError(
            f"Invalid name {name[:80]!r}: it cannot be converted to a Python identifier.",
            fix="Use letters, digits, and underscores, starting with a letter: my_station.",
        )
    return found


def read_project(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the package name and the parsed configuration of the project in a folder.

    Raises:
        ConfigurationError: The folder has no configuration, or none of the configured modules
            is a package in the folder.
    """
    from capgraph.configs.yaml_files import read_yaml

    config = folder / "capgraph.yml"
    if not config.is_file():
        raise ConfigurationError(
            f"Folder {str(folder)!r} is not a project folder, because it has no capgraph.yml.",
            fix="Change to a project folder, or create one: capgraph new project NAME.",
        )
    settings = read_yaml(config)
    modules = settings.get("modules") or []
    for module in modules if isinstance(modules, list) else []:
        package = str(module).split(".")[0]
        if (folder / package / "__init__.py").is_file():
            return package, settings
    raise ConfigurationError(
        f"The modules {modules!r} in {str(config)!r} include no package of the same folder.",
        fix="Add a package that is next to capgraph.yml, such as my_app.capabilities.",
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
    """Create all files from their templates, or none of them if one already exists."""
    from capgraph.cli.terminal import one_line, write_file

    texts = {
        target: Template(source.read_text(encoding="utf-8")).substitute(values)
        for source, target in files
    }
    for target in texts:
        if target.exists():
            raise ConfigurationError(
                f"The file {str(target)!r} already exists.",
                fix="Choose another name, or delete the file.",
            )
    for target, text in texts.items():
        write_file(target, text, mode=0o666)
        typer.echo(f"wrote {one_line(target, 4000)}")


def _to_camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
