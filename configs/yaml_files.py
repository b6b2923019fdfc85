"""YAML files of settings: safe, bounded, each key once, with values from the environment."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.suggestions import closest_match, correct_spelling

# A default ends before the next "${": scanning past it would take quadratic time.
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}$]*(?:\$(?!\{)[^}$]*)*))?\}")
_MAX_VALUES = 100_000
_MAX_BYTES = 4 * 1024**2
_MAX_MERGED = 10_000
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: str | os.PathLike[str], *, expand_variables: bool = True) -> dict[str, Any]:
    """Read one YAML file safely; ``${NAME}`` and ``${NAME:-default}`` come from the environment.

    Args:
        path: The file.
        expand_variables: Whether they do; otherwise such text stays as it is.

    Raises:
        ConfigurationError: The file cannot be read, is no mapping, or names an unset variable.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigurationError(
                f"The configuration file {str(path)!r} is too large: more than {_MAX_BYTES:,} bytes."
                " Fix: shorten it."
            )
        text = content.decode("utf-8")
        values = yaml.load(text, _UniqueKeys)  # noqa: S506 - derived from the safe loader
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            f"The configuration file {str(path)!r} cannot be read: {exc}."
            " Fix: check the path and its permissions."
        ) from exc
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as exc:
        raise ConfigurationError(
            f"The configuration file {str(path)!r} is not valid YAML: {exc}."
            " Fix: correct the place that the message names."
        ) from exc
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigurationError(
            f"The configuration file {str(path)!r} holds {type(values).__name__}, not settings."
            " Fix: write 'key: value' lines."
        )
    expanded: dict[str, Any] = _expand(values, str(path), "", itertools.count(1), expand_variables)
    return expanded


class _UniqueKeys(yaml.SafeLoader):
    """The safe loader, which would keep the last of two equal keys and drop the first.

    It bounds what merge keys (``<<``) bring together, and names the key of a value that its type
    refuses, such as the date 2024-13-01.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the pairs of merge keys into a mapping."""
        merged = 0
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    merged += len(part.value)
                if merged > _MAX_MERGED:
                    raise yaml.YAMLError(
                        f"the merge keys in line {node.start_mark.line + 1} bring together more"
                        f" than {_MAX_MERGED:,} values"
                    )
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are each given once."""
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            self._check_value(key, value)
            line = key.start_mark.line + 1
            if key.value in seen:
                raise yaml.YAMLError(
                    f"the key {key.value!r} is given twice, in lines {seen[key.value]} and {line}"
                )
            seen[key.value] = line
        return super().construct_mapping(node, deep)

    def _check_value(self, key: yaml.ScalarNode, value: yaml.Node) -> None:
        if not isinstance(value, yaml.ScalarNode):
            return
        try:
            self.construct_object(value)
        except (ValueError, OverflowError, LookupError) as exc:
            raise yaml.YAMLError(
                f"the value of {key.value!r} in line {value.start_mark.line + 1} cannot be read"
                f" ({str(exc)[:200]}); quote it if it is a text"
            ) from exc


def _expand(
    value: Any, file: str, where: str, seen: Iterator[int], variables: bool, depth: int = 0
) -> Any:
    if next(seen) > _MAX_VALUES:
        raise ConfigurationError(
            f"The configuration file {file!r} is too large: more than {_MAX_VALUES:,} values."
            " Fix: shorten it; YAML references count each time."
        )
    if depth > 50:
        raise ConfigurationError(
            f"The configuration file {file!r} is nested too deeply at {where!r}."
            " Fix: flatten it; YAML references must not form a loop."
        )
    if isinstance(value, dict):
        return {
            key: _expand(item, file, f"{where}.{key}".lstrip("."), seen, variables, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            _expand(item, file, f"{where}[{n}]", seen, variables, depth + 1)
            for n, item in enumerate(value)
        ]
    if not variables or not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise ConfigurationError(
                f"{where!r} in {file!r} needs the environment variable {match['name']!r},"
                f" which is not set. Fix: set it, or write ${{{match['name']}:-default}}."
            )
        return found

    return _VARIABLE.sub(replace, value)


def format_validation_errors(
    exc: ValidationError, known_keys: Callable[[tuple[Any, ...]], Iterable[str]] = lambda _: ()
) -> str:
    """Return what is wrong with a file of a fixed form, a line for each place.

    Args:
        exc: What the form said.
        known_keys: Gives the keys that may stand at a place.
    """
    lines = []
    for error in exc.errors(include_url=False, include_input=False):
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]
        ).lstrip(".")
        told = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            key, keys = str(error["loc"][-1]), list(known_keys(error["loc"]))
            near = closest_match(key, keys) or correct_spelling(key, keys)
            fix = f"write {near!r}" if near else "remove it, or check the spelling"
            told = f"unknown key. Fix: {fix}"
        lines.append(f"  {path or 'the file'}: {told}.")
    return "\n".join(lines)


def deep_merge(base: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another, section by section."""
    merged = dict(base)
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = deep_merge(merged[key], value)
        else:
            merged[key] = value
    return merged
