"""Conversion of values to plain data, the only data that state may contain, and to short texts."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import json
import pathlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic import ValidationError as PydanticValidationError

from capgraph.configs.errors import ValidationError

EnumT = TypeVar("EnumT", bound=Enum)

_NUMPY_KINDS = "biufU"  # those whose items have exactly one plain form
_FIX = (
    "Use text, numbers, lists or dictionaries. For another type, declare a context type whose field"
    " has a serializer (pydantic: @field_serializer, or Annotated[T, PlainValidator(...),"
    " PlainSerializer(...)])."
)


def parse_enum(enum: type[EnumT], value: Any, label: str) -> EnumT:
    """Convert a value or a name to the matching member of an enumeration.

    Args:
        enum: Enumeration class.
        value: Member, member value, or member name.
        label: Description of the value, for the error message.

    Raises:
        ValidationError: The enumeration has no such member. The message lists all members.
    """
    try:
        member = enum.__members__.get(value.upper()) if isinstance(value, str) else None
        return enum(value) if member is None else member
    except ValueError:
        names = ", ".join(name.lower() for name in enum.__members__)
        raise ValidationError(
            f"The {label} {value!r} is unknown.", fix=f"Use one of: {names}."
        ) from None


def to_plain(value: Any, path: str = "value", *, lenient: bool = False) -> Any:
    """Convert a value to plain data that JSON can represent.

    Args:
        value: Built-in data, enums, dates, decimals, paths, models, dataclasses, or numpy
            numbers and arrays.
        path: Name of the value. Error messages append the path of the invalid part.
        lenient: True to convert unsupported values to strings. Used only for error details,
            which must not raise a second error.

    Raises:
        ValidationError: A part of the value has no plain form.

    >>> to_plain({"when": datetime.date(2026, 1, 2), 1: {2.5}})
    {'when': '2026-01-02', '1': [2.5]}
    >>> to_plain({"source": object}, "report")
    Traceback (most recent call last):
    ...
    capgraph.configs.errors.ValidationError: report.source is of type type, which cannot be stored...
    """
    try:
        with suppress(_NotPlainError, UnicodeEncodeError):
            return _copy(value)
        return _convert(value, path, lenient)
    except RecursionError:
        if lenient:
            return f"<{type(value).__name__} nested too deeply>"
        raise ValidationError(
            f"{path[:200]} is nested too deeply or contains itself.", fix="Flatten the value."
        ) from None


def to_json_text(value: Any, path: str = "value") -> str:
    """Serialize data to a JSON string that parses back to exactly the same data.

    Args:
        value: Dictionaries with string keys, lists, strings, finite numbers, booleans, and
            None.
        path: Name of the value. Error messages append the path of the invalid part to it.

    Raises:
        ValidationError: A part of the value has another type, or it is nested too deeply.

    >>> to_json_text({"a": [1, None]})
    '{"a": [1, null]}'
    >>> to_json_text({"a": [1, (2,)]}, "plan")
    Traceback (most recent call last):
    ...
    capgraph.configs.errors.ValidationError: plan.a[1] is of type tuple, which JSON cannot represent...
    """
    try:
        with suppress(_NotPlainError, ValueError):
            return json.dumps(_copy(value), allow_nan=False, ensure_ascii=False)
        place, problem = next(_find_unsupported(value, path))
    except RecursionError:
        place, problem = path, "nested too deeply or contains itself"
    raise ValidationError(
        f"{place[:200]} is {problem}, which JSON cannot represent exactly.",
        fix="Use dictionaries with text keys, lists, text, finite numbers, booleans, or None.",
    )


def _find_unsupported(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if type(value) is list:
        for index, item in enumerate(value):
            yield from _find_unsupported(item, f"{where}[{index}]")
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                yield f"A key in {where}", f"of type {type(key).__qualname__}"
            yield from _find_unsupported(item, f"{where}.{key}")
    else:
        with suppress(_NotPlainError, ValueError):
            json.dumps(_copy(value), allow_nan=False)
            return
        problems = {float: "not a finite number", str: "text with a lone surrogate"}
        yield where, problems.get(type(value)) or _describe_type(value)


def is_equal_json(one: object, other: object) -> bool:
    """Return True if two values are equal in JSON, where booleans do not equal numbers.

    >>> is_equal_json(1, 1.0), is_equal_json(1, True)
    (True, False)
    """
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def copy_plain(value: Any) -> Any:
    """Return a deep copy of a value.

    Plain data takes a faster path than ``copy.deepcopy``, which copies all other values.

    >>> copy_plain({"a": [1, 2]})
    {'a': [1, 2]}
    """
    with suppress(_NotPlainError, UnicodeEncodeError):
        return _copy(value)
    return copy.deepcopy(value)


class _NotPlainError(Exception):
    """Raised when a value to copy contains an object that is not plain data."""


def _copy(value: Any) -> Any:
    # Fast path, used in every step: most values are plain, so no paths are built.
    kind = type(value)
    if kind is str:
        if not value.isascii():
            value.encode()
        return value
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise _NotPlainError
        # Leaf values are handled inline: a call for each of them would dominate the cost.
        return {
            key: item
            if item is None or ((of := type(item)) is str and item.isascii()) or of is bool
            else _copy(item)
            for key, item in value.items()
        }
    if kind is list:
        return [item if type(item) is str and item.isascii() else _copy(item) for item in value]
    if value is None or kind in (bool, float) or (kind is int and -(2**63) <= value < 2**64):
        return value
    raise _NotPlainError


def _convert(value: Any, where: str, lenient: bool) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float):
        return value
    if kind is str:
        return value if value.isascii() else _convert_text(value, where, lenient)
    if kind is int:
        return value if -(2**63) <= value < 2**64 else _refuse(value, where, lenient)
    if isinstance(value, Mapping):
        return _convert_mapping(value, where, lenient)
    if isinstance(value, (list, tuple, Set)):
        items: Iterable[Any] = _sort_items(value) if isinstance(value, Set) else value
        return [_convert(item, f"{where}[{n}]", lenient) for n, item in enumerate(items)]
    if isinstance(value, Enum):
        return _convert(value.value, where, lenient)
    if isinstance(value, BaseModel):
        return _convert(_convert_model(value, where, lenient), where, lenient)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return _convert_mapping(fields, where, lenient)
    return _convert_scalar(value, where, lenient)


def _convert_mapping(value: Mapping[Any, Any], where: str, lenient: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        key = key.value if isinstance(key, Enum) else key
        if not isinstance(key, (str, int, float)) and key is not None:
            key = _refuse(key, f"a key of {where}", lenient)
        name = str(key)
        if name in plain:
            if not lenient:
                raise ValidationError(
                    f"{where} has two keys that both become {name!r} as text.", fix="Use text keys."
                )
            continue
        plain[name] = _convert(item, f"{where}.{name}", lenient)
    return plain


def _convert_model(model: BaseModel, where: str, lenient: bool) -> Any:
    try:
        return model.model_dump(warnings=False)
    except Exception as exc:  # the author's serializer may raise anything
        if lenient:
            return f"<{type(model).__name__}>"
        raise ValidationError(
            f"{where} ({type(model).__name__}) cannot be stored as plain data: {exc}.", fix=_FIX
        ) from exc


def _convert_scalar(value: Any, where: str, lenient: bool) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        if (
            value.dtype.kind in _NUMPY_KINDS and value.dtype.itemsize <= 8
        ) or value.dtype.kind == "U":
            return value.tolist()
        if value.dtype.kind == "O":
            return _convert(value.tolist(), where, lenient)
        return _refuse(value, where, lenient)
    for base in (int, float):  # instances of subclasses become plain numbers
        if isinstance(value, base):
            return _convert(base(value), where, lenient)
    if isinstance(value, str):
        return _convert(str.__str__(value), where, lenient)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath, datetime.timedelta)):
        return str(value)
    return _refuse(value, where, lenient)


def _convert_text(value: str, where: str, lenient: bool) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        if lenient:
            return value.encode(errors="backslashreplace").decode()
        raise ValidationError(
            f"{where} contains text that is not valid Unicode: {value[:80]!r}.",
            fix="Decode the text with its encoding.",
        ) from None
    return value


def _sort_items(value: Set[Any]) -> list[Any]:
    # The order of a set of strings differs between processes; stored data must not.
    try:
        return sorted(value)
    except TypeError:
        return sorted(value, key=str)


def _refuse(value: Any, where: str, lenient: bool) -> str:
    if lenient:
        try:
            return _convert_text(str(value), where, lenient)
        except Exception:  # __str__ of a foreign object may raise anything
            return f"<{type(value).__name__}>"
    raise ValidationError(
        f"{where} is {_describe_type(value)}, which cannot be stored as plain data.", fix=_FIX
    )


_JSON_START = re.compile(r"\{|\[(?=\s*[{\]])")


def first_json_object(text: str) -> Any:
    """Parse the first JSON object in a string, or return None if no object is complete.

    Incomplete objects are not repaired, because a truncated plan must not run.

    >>> first_json_object('Sure: {"target": "sales"}, I think.')
    {'target': 'sales'}
    """
    start = text.find("{")
    if start < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def json_values(text: str) -> list[Any]:
    r"""Parse all JSON objects and lists in a string.

    The result is empty if one of them is incomplete. All other text, such as a code fence, is
    ignored. A list counts only if it is empty or begins with an object, because sentences may
    contain brackets.

    >>> json_values('```json\n[{"a": 1}]\n```')
    [[{'a': 1}]]
    >>> json_values('{"a": 1} {"b": ')
    []
    """
    found: list[Any] = []
    place = 0
    while (start := _JSON_START.search(text, place)) is not None:
        try:
            value, place = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            return []
        found.append(value)
    return found


def _describe_type(value: Any) -> str:
    if type(value) is int:
        return f"an integer of {value.bit_length()} bits"
    return f"of type {type(value).__qualname__}"


# --- short texts --------------------------------------------------------------------------------

_MAX_ITEMS = 20
_MAX_CHARS = 2_000


def validation_messages(exc: PydanticValidationError, root_label: str = "") -> list[str]:
    """Format each error in a pydantic validation error as a ``path: message`` string.

    Input values are omitted because they may contain secrets.

    Args:
        exc: Pydantic validation error.
        root_label: Label for errors in the value as a whole, which have no path.
    """
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    pairs = ((".".join(map(str, error["loc"])) or root_label, error["msg"]) for error in errors)
    return [": ".join(filter(None, pair)) for pair in pairs]


def short_text(value: Any, limit: int = _MAX_CHARS) -> str:
    """Format a value as a string of limited length, noting how much text was omitted.

    >>> short_text([1, 2])
    '[1, 2]'
    >>> short_text(list(range(1000)))[-14:]
    '9, … 980 more]'
    """
    text = value if isinstance(value, str) else _format_bounded(value, limit, 0)
    left_out = len(text) - limit
    return f"{text[:limit]} … ({left_out:,} more characters)" if left_out > 0 else text


def short_summary(value: Any) -> str:
    """Format the fields of a model or mapping as a single line of limited length.

    >>> short_summary({"place": "Oslo", "celsius": 3})
    'place: Oslo, celsius: 3'
    """
    if isinstance(value, BaseModel):
        value = _convert_model(value, "", lenient=True)
    if not isinstance(value, Mapping):
        return short_text(value)
    parts: list[str] = []
    remaining = _MAX_CHARS
    for name, item in value.items():
        if remaining <= 0:
            parts.append(f"… {len(value) - len(parts):,} more")
            break
        parts.append(f"{name}: {short_text(item, max(remaining, 100))}")
        remaining -= len(parts[-1])
    return ", ".join(parts)


def _format_bounded(value: Any, limit: int, depth: int) -> str:
    if isinstance(value, BaseModel):
        value = _convert_model(value, "", lenient=True)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (Mapping, list, tuple, Set)):
        if depth > 5:
            return "…"
        is_mapping = isinstance(value, Mapping)
        items: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
        parts: list[str] = []
        remaining = limit
        for item in items:
            if len(parts) == _MAX_ITEMS or remaining <= 0:
                break
            entry = item if is_mapping else (item,)
            text = ": ".join(_format_bounded(part, remaining, depth + 1) for part in entry)
            parts.append(text)
            remaining -= len(text)
        if len(value) > len(parts):
            parts.append(f"… {len(value) - len(parts):,} more")
        return ("{%s}" if is_mapping else "[%s]") % ", ".join(parts)
    if isinstance(value, str):
        return repr(short_text(value, limit))
    return short_text(str(to_plain(value, lenient=True)), limit)
