"""Writes new projects, capabilities and nodes from templates."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from configs.errors import ConfigurationError

_SUFFIX = ".tmpl"
_TEMPLATES = Path(__file__).with_name("templates")
_TAKEN = {"framework", "capabilities", "infrastructure", "configs", "tests"}


@dataclass(frozen=True, slots=True)
class Project:
    """A project that ``capgraph.yml`` describes.

    Attributes:
        folder: Where ``capgraph.yml`` lies.
        package: The package of the project's own modules.
    """

    folder: Path
    package: str


def check_name(name: str) -> str:
    """Return the Python name that a name stands for.

    Raises:
        ConfigurationError: It stands for none.

    >>> check_name("my-station")
    'my_station'
    """
    found = name.strip().replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", found) or keyword.iskeyword(found):
        raise ConfigurationError(
            f"{name[:80]!r} is no name that Python can use.",
            fix="Use letters, digits and underscores, beginning with a letter: my_station.",
        )
    return found


def new_project(name: str, parent: Path) -> list[Path]:
    """Write a project that runs and passes its tests; returns its files.

    Raises:
        ConfigurationError: The name cannot be used, or the folder is not empty.
    """
    package = check_name(name)
    if package in _TAKEN or package in sys.stdlib_module_names:
        raise ConfigurationError(
            f"The name {name!r} is that of another package.", fix="Choose another name."
        )
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{str(folder)!r} exists and is not empty.", fix="Choose another name or folder."
        )
    values = {"package": package, "distribution": package.replace("_", "-")}
    return _write_all("project", folder, values, {"package": package, "gitignore": ".gitignore"})


def new_capability(name: str, project: Project, *, function: bool = False) -> list[Path]:
    """Write a capability and its test into a project; returns the files.

    Raises:
        ConfigurationError: The name cannot be used, or a file exists.
    """
    module = check_name(name)
    title = module.replace("_", " ").capitalize()
    context = f"{_camel(module)}Result"
    klass = f"{_camel(module)}Capability"
    values = {
        "name": module,
        "title": title,
        "words": title.lower(),
        "klass": klass,
        "context": context,
        "context_type": f"{module.upper()}_RESULT",
        "module": f"{project.package}.capabilities.{module}",
        "item": module if function else klass,
    }
    template = "function.py" if function else "capability.py"
    folder = project.folder / project.package / "capabilities"
    return _write_each(
        {
            folder / f"{module}.py": f"capability/{template}",
            project.folder / "tests" / f"test_{module}.py": "capability/test_capability.py",
        },
        values,
    )


def new_node(name: str, role: str, project: Project) -> list[Path]:
    """Write a node that takes the place of a built-in one; returns the files.

    Raises:
        ConfigurationError: The name or role cannot be used, or a file exists.
    """
    from framework.registry import Registry

    module = check_name(name)
    known = Registry().infrastructure
    if role not in known:
        raise ConfigurationError(
            f"There is no node {role!r} to replace.", fix=f"Use one of: {', '.join(known)}."
        )
    values = {
        "name": module,
        "title": module.replace("_", " ").capitalize(),
        "klass": f"{_camel(module)}Node",
        "role": role,
        "builtin": known[role].cls.__name__,
        "package": project.package,
    }
    config = project.folder / "capgraph.yml"
    text = _with_node(config, f"{project.package}.nodes.{module}")
    folder = project.folder / project.package / "nodes"
    written = _write_each(
        {
            folder / f"{module}.py": "node/node.py",
            project.folder / "tests" / f"test_{module}.py": "node/test_node.py",
        },
        values,
    )
    if not (folder / "__init__.py").exists():
        (folder / "__init__.py").write_text('"""Nodes of this agent."""\n', encoding="utf-8")
    config.write_text(text, encoding="utf-8")
    return [*written, config]


def _with_node(config: Path, module: str) -> str:
    """Return the configuration with one more module of nodes; a later one replaces an earlier."""
    text = config.read_text(encoding="utf-8").rstrip() + "\n"
    if not re.search(r"^infrastructure:", text, re.MULTILINE):
        return f"{text}infrastructure:\n  - infrastructure\n  - {module}\n"
    found = re.search(r"^infrastructure:[ ]*(#.*)?\n((?:[ ]*-[ ].*\n)+)", text, re.MULTILINE)
    if found is None:
        raise ConfigurationError(
            f"What {str(config)!r} says under 'infrastructure' is not one module a line.",
            fix=f"Add {module} at its end by hand.",
        )
    indent = found[2][: found[2].index("-")]
    return f"{text[: found.end()]}{indent}- {module}\n{text[found.end() :]}"


def find_project(folder: Path) -> Project:
    """Find the project of a folder by its ``capgraph.yml``.

    Raises:
        ConfigurationError: There is none, or none of its modules is a package of it.
    """
    from configs.yaml_files import read_yaml

    config = folder / "capgraph.yml"
    if not config.is_file():
        raise ConfigurationError(
            f"There is no capgraph.yml in {str(folder)!r}.",
            fix="Go to the folder of a project, or make one: capgraph new project NAME.",
        )
    modules: Any = read_yaml(config).get("modules") or []
    for module in modules if isinstance(modules, list) else []:
        package = str(module).split(".")[0]
        if (folder / package / "__init__.py").is_file():
            return Project(folder, package)
    raise ConfigurationError(
        f"None of the modules {modules!r} of {str(config)!r} is a package beside it.",
        fix="Name a package that lies beside capgraph.yml, such as my_app.capabilities.",
    )


def _write_all(
    template: str, folder: Path, values: Mapping[str, str], names: Mapping[str, str]
) -> list[Path]:
    root = _TEMPLATES / template
    files: dict[Path, str] = {}
    for file in sorted(root.rglob(f"*{_SUFFIX}")):
        source = file.relative_to(root).as_posix().removesuffix(_SUFFIX)
        target = folder.joinpath(*(names.get(part, part) for part in source.split("/")))
        files[target] = f"{template}/{source}"
    return _write_each(files, values)


def _write_each(files: Mapping[Path, str], values: Mapping[str, str]) -> list[Path]:
    for target in files:
        if target.exists():
            raise ConfigurationError(
                f"{str(target)!r} exists already.", fix="Choose another name, or remove the file."
            )
    for target, source in files.items():
        text = (_TEMPLATES / f"{source}{_SUFFIX}").read_text(encoding="utf-8")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(text).substitute(values), encoding="utf-8")
        except OSError as exc:
            raise ConfigurationError(
                f"{str(target)!r} cannot be written: {exc.strerror or exc}.",
                fix="Check the folder and your rights.",
            ) from exc
    return list(files)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
