"""Files of recipes: YAML, one recipe each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import ValidationError

from capgraph.base.errors import ConfigurationError
from capgraph.base.files import write_whole
from capgraph.base.values import misfits
from capgraph.configs.yaml_files import read_yaml
from capgraph.planning.recipes import Recipe

_ENDINGS = (".yml", ".yaml")


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from its file; whether it fits to an agent is checked when it is registered.

    Raises:
        ConfigurationError: The file cannot be read, or has not the form; lists every problem.
    """
    try:
        return Recipe.model_validate(read_yaml(path, variables=False))
    except ValidationError as exc:
        raise ConfigurationError(
            f"The recipe {os.fspath(path)!r} cannot be used: {'; '.join(misfits(exc, 'the file'))}.",
            fix="Correct the file; 'capgraph recipe save' writes one.",
        ) from exc


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write a recipe to its file, whole or not at all."""
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True, width=100)
    write_whole(Path(path), text)


def recipe_files(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files of recipes that some files and folders stand for.

    Raises:
        ConfigurationError: One of them does not exist.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            found += sorted(file for file in place.iterdir() if file.suffix in _ENDINGS)
        elif place.is_file():
            found.append(place)
        else:
            raise ConfigurationError(
                f"There are no recipes at {str(place)!r}.",
                fix="Name a file, or a folder with files, under 'recipes'.",
            )
    return found
