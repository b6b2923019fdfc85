"""Recipe files: YAML with one recipe per file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from capgraph.base.errors import ConfigurationError
from capgraph.configs.yaml_files import format_validation_errors, read_yaml
from capgraph.helpers.files import write_atomic
from capgraph.planning.recipes import Recipe, RecipeExample, RecipeParameter

_SUFFIXES = (".yml", ".yaml")


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Load a recipe (a reusable plan with parameters) from a YAML file.

    The recipe's capabilities are checked only when the recipe is registered.

    Args:
        path: Path to the YAML file.

    Raises:
        ConfigurationError: The file cannot be read or is invalid. The message lists every
            problem.
    """
    try:
        return Recipe.model_validate(read_yaml(path, expand_variables=False))
    except ValidationError as exc:
        lines = [
            line.strip(" .") for line in format_validation_errors(exc, _known_keys).splitlines()
        ]
        wrong = "; ".join(lines).replace(". Fix: ", ", ")
        raise ConfigurationError(
            f"The recipe file {os.fspath(path)!r} is invalid: {wrong}.",
            fix="Correct the file; 'capgraph recipe save' writes one.",
        ) from exc


def _known_keys(path: tuple[Any, ...]) -> Iterable[str]:
    """Return the valid keys at a position in a recipe file.

    ``path`` is the path to the unknown key.
    """
    parts: dict[Any, type[BaseModel]] = {"parameters": RecipeParameter, "examples": RecipeExample}
    part = parts.get(path[0], Recipe) if len(path) > 1 else Recipe
    return list(part.model_fields)


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write a recipe to a YAML file atomically.

    Args:
        recipe: Recipe to write.
        path: Path to the YAML file.
    """
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True, width=100)
    write_atomic(Path(path), text)


def find_recipe_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Find recipe files in a list of files and folders.

    A missing folder is treated as empty, because saving the first recipe creates it.

    Args:
        paths: Paths to recipe files, or to folders that contain them.

    Raises:
        ConfigurationError: A file does not exist.

    >>> find_recipe_files(["no/such/folder"])
    []
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        elif path.is_file():
            found.append(path)
        elif path.suffix in _SUFFIXES:
            raise ConfigurationError(
                f"The recipe file {str(path)!r} does not exist.",
                fix="Correct its path in the setting 'recipes', or use its folder.",
            )
    return found
