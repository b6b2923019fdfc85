"""Files of recipes: YAML, one recipe each."""

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

_ENDINGS = (".yml", ".yaml")


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from its file; whether it fits to an agent is checked when it is registered.

    Raises:
        ConfigurationError: The file cannot be read, or has not the form; lists every problem.
    """
    try:
        return Recipe.model_validate(read_yaml(path, expand_variables=False))
    except ValidationError as exc:
        lines = [
            line.strip(" .") for line in format_validation_errors(exc, _known_keys).splitlines()
        ]
        wrong = "; ".join(lines).replace(". Fix: ", ", ")
        raise ConfigurationError(
            f"The recipe {os.fspath(path)!r} cannot be used: {wrong}.",
            fix="Correct the file; 'capgraph recipe save' writes one.",
        ) from exc


def _known_keys(place: tuple[Any, ...]) -> Iterable[str]:
    """Return the keys that a part of the file has; ``place`` ends with the unknown one."""
    parts: dict[Any, type[BaseModel]] = {"parameters": RecipeParameter, "examples": RecipeExample}
    part = parts.get(place[0], Recipe) if len(place) > 1 else Recipe
    return list(part.model_fields)


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write a recipe to its file, whole or not at all."""
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True, width=100)
    write_atomic(Path(path), text)


def find_recipe_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files of recipes that some files and folders stand for.

    A folder that does not exist yet is empty: the first saved recipe makes it.

    Raises:
        ConfigurationError: A file does not exist.

    >>> find_recipe_files(["no/such/folder"])
    []
    """
    found: list[Path] = []
    for place in map(Path, paths):
        if place.is_dir():
            found += sorted(file for file in place.iterdir() if file.suffix in _ENDINGS)
        elif place.is_file():
            found.append(place)
        elif place.suffix in _ENDINGS:
            raise ConfigurationError(
                f"The recipe {str(place)!r} does not exist.",
                fix="Correct its path under 'recipes', or name its folder.",
            )
    return found
