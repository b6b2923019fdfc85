"""A safe reader of YAML settings files with limits on size and support for variables."""

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
_MAX_NUMBER_CHARS = 100
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: str | os.PathLike[str], *, expand_variables: bool = True) -> dict[str, Any]:
    """Read a YAML file and expand environment variables.

    The variables are written as ``${NAME}`` or ``${NAME:-default}``.

    Args:
        path: Path of the file.
        expand_variables: True to expand environment variables.

    Raises:
        ConfigurationError: The file cannot be read, is not a mapping, or refers to an unset
            variable.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigurationError(
                f"The configuration file {str(path)!r} is larger than {_MAX_BYTES:,} bytes.",
                fix="Split the file, or remove settings that you do not need.",
            )
        text = content.decode("utf-8")
        values = yaml.load(text, _StrictLoader)  # noqa: S506 - derived from the safe loader
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            f"The configuration file {str(path)!r} cannot be read: {exc}.",
            fix="Check the path and its permissions.",
        ) from exc
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as exc:
        raise ConfigurationError(
            f"The configuration file {str(path)!r} is not valid YAML: {exc}.",
            fix="Correct the line that the error names.",
        ) from exc
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigurationError(
            f"The configuration file {str(path)!r} must be a mapping with text keys,"
            f" not a value of type {type(values).__name__}.",
            fix="Write settings as 'key: value' lines.",
        )
    expanded: dict[str, Any] = _expand(values, str(path), "", itertools.count(1), expand_variables)
    return expanded


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML loader that rejects duplicate keys and limits merge keys (``<<``).

    Errors for an invalid value, such as the date 2024-13-01, name the key of the value.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the values of YAML merge keys (``<<``) into a mapping, up to a maximum number."""
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
                        f"the merge keys in line {node.start_mark.line + 1} contain more than"
                        f" {_MAX_MERGED:,} values"
                    )
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct the dictionary for a YAML mapping, or raise an error for duplicate keys."""
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            self._check_scalar(key, value)
            line = key.start_mark.line + 1
            if key.value in seen:
                raise yaml.YAMLError(
                    f"the key {key.value!r} occurs twice, in lines {seen[key.value]} and {line}"
                )
            seen[key.value] = line
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Construct an integer of limited length, because its text form takes quadratic time."""
        if len(node.value) > _MAX_NUMBER_CHARS:
            raise ValueError(f"the number has more than {_MAX_NUMBER_CHARS} characters")
        return int(super().construct_yaml_int(node))

    def _check_scalar(self, key: yaml.ScalarNode, value: yaml.Node) -> None:
        if not isinstance(value, yaml.ScalarNode):
            return
        try:
            self.construct_object(value)
        except (ValueError, OverflowError, LookupError) as exc:
            raise yaml.YAMLError(
                f"the value of {key.value!r} in line {value.start_mark.line + 1} is invalid"
                f" ({str(exc)[:200]}); quote it if it is text"
            ) from exc


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


def _expand(
    value: Any, file: str, where: str, counter: Iterator[int], variables: bool, depth: int = 0
) -> Any:
    if next(counter) > _MAX_VALUES:
        raise ConfigurationError(
            f"The configuration file {file!r} has more than {_MAX_VALUES:,} values; each use of"
            " a YAML alias counts.",
            fix="Shorten the file, or use fewer aliases.",
        )
    if depth > 50:
        raise ConfigurationError(
            f"The configuration file {file!r} is nested too deeply at {where!r}.",
            fix="Flatten the value. YAML aliases must not form a cycle.",
        )
    if isinstance(value, dict):
        return {
            key: _expand(item, file, f"{where}.{key}".lstrip("."), counter, variables, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            _expand(item, file, f"{where}[{n}]", counter, variables, depth + 1)
            for n, item in enumerate(value)
        ]
    if not variables or not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        value = os.environ.get(match["name"], match["default"])
        if value is None:
            raise ConfigurationError(
                f"The environment variable {match['name']!r}, which {where!r} in {file!r} refers "
                "to, is not set.",
                fix=f"Set it, or write ${{{match['name']}:-default}}.",
            )
        return value

    return _VARIABLE.sub(replace, value)


def format_validation_errors(
    exc: ValidationError, known_keys: Callable[[tuple[Any, ...]], Iterable[str]] = lambda _: ()
) -> str:
    """Format pydantic's validation errors as text, with one line per error.

    Args:
        exc: Validation error of pydantic.
        known_keys: Function that returns the valid keys at a path.
    """
    lines = []
    for error in exc.errors(include_url=False, include_input=False):
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]
        ).lstrip(".")
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            key, keys = str(error["loc"][-1]), list(known_keys(error["loc"]))
            near = closest_match(key, keys) or correct_spelling(key, keys)
            fix = f"write {near!r}" if near else "remove it, or check the spelling"
            message = f"unknown key. Fix: {fix}"
        lines.append(f"  {path or 'the file'}: {message}.")
    return "\n".join(lines)


def deep_merge(base: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """Merge a dictionary recursively into a copy of a different dictionary.

    Values in ``update`` take precedence over values in ``base``.
    """
    merged = dict(base)
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = deep_merge(merged[key], value)
        else:
            merged[key] = value
    return merged
