"""Import of packages, entry points, and ``module:attribute`` references by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from capgraph.base.errors import RegistryError

ENTRY_POINT_GROUP = "capgraph.capabilities"


def import_modules(package: str, failures: list[str]) -> Iterator[ModuleType]:
    """Import a module, or all modules of a package in alphabetical order.

    Modules whose name starts with an underscore are skipped.

    Args:
        package: Dotted name of the module or package.
        failures: List to which an error message is appended for each failed import.
    """
    import pkgutil

    try:
        root = importlib.import_module(package)
    except Exception as exc:  # the module may raise anything
        failures.append(f"{package} cannot be imported ({type(exc).__name__}: {exc})")
        return
    yield root
    for info in sorted(
        pkgutil.iter_modules(getattr(root, "__path__", []), prefix=f"{package}."),
        key=lambda item: item.name,
    ):
        if info.name.rsplit(".", 1)[-1].startswith("_"):
            continue
        yield from import_modules(info.name, failures)


def import_object(reference: str) -> Any:
    """Import the object specified by a ``"module:attribute"`` reference.

    Raises:
        RegistryError: The reference is malformed, or the object does not exist.

    >>> import_object("json:dumps").__name__
    'dumps'
    """
    module_name, separator, attribute = reference.partition(":")
    if not separator or not module_name or not attribute:
        raise RegistryError(
            f"{reference!r} is not an import reference of the form 'module:attribute'.",
            fix="Write 'package.module:Name'.",
        )
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as exc:
        raise RegistryError(
            f"{reference!r} cannot be loaded: {exc}.",
            fix="Check the spelling and install the package.",
        ) from exc
    return value


def load_entry_points(group: str) -> Iterator[tuple[str, Any]]:
    """Load the entry points of a group and yield their names and objects alphabetically.

    Raises:
        RegistryError: An entry point cannot be loaded. The message states the distribution and
            the cause.
    """
    for point in sorted(metadata.entry_points(group=group), key=lambda item: item.name):
        try:
            yield point.name, point.load()
        except Exception as exc:
            origin = point.dist.name if point.dist else "unknown distribution"
            raise RegistryError(
                f"The entry point {point.name!r} ({point.value}) of the distribution {origin!r} "
                f"cannot be loaded: {type(exc).__name__}: {exc}.",
                fix="Correct or uninstall that distribution.",
            ) from exc
