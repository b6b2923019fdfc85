"""Plain data: what may enter the graph's state, and short texts of what may be large."""

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
_HOW = (
    "Give text, numbers, lists or dictionaries; for another type declare a context type whose"
    " field has a serializer (pydantic: @field_serializer, or Annotated[T, PlainValidator(...), PlainSerializer(...)])."
)


def parse_enum(enum: type[EnumT], value: Any, label: str) -> EnumT:
    """Return the member of an enumeration that a value or a name says.

    Args:
        enum: The enumeration.
        value: A member, its value or its name.
        label: What it is, for the message.

    Raises:
        ValidationError: There is none; names all.
    """
    try:
        named = enum.__members__.get(value.upper()) if isinstance(value, str) else None
        return enum(value) if named is None else named
    except ValueError:
        known = ", ".join(name.lower() for name in enum.__members__)
        raise ValidationError(f"{value!r} is no {label}.", fix=f"Use one of: {known}.") from None


def to_plain(value: Any, path: str = "value", *, lenient: bool = False) -> Any:
    """Turn a value into JSON-able data, and refuse what has no such form.

    Args:
        value: Built-in data, enums, dates, decimals, paths, models, data classes, numpy numbers
            and arrays.
        path: Name of the value; an error names the place below it.
        lenient: Write what has no plain form as text. For details of errors only, which must
            not fail in their turn.

    Raises:
        ValidationError: Something in it has no plain form; names where it sits and the fix.

    >>> to_plain({"when": datetime.date(2026, 1, 2), 1: {2.5}})
    {'when': '2026-01-02', '1': [2.5]}
    >>> to_plain({"source": object}, "report")
    Traceback (most recent call last):
    ...
    capgraph.configs.errors.ValidationError: report.source is of type type, which cannot be kept...
    """
    try:
        with suppress(_Odd, UnicodeEncodeError):
            return _copied(value)
        return _plain(value, path, lenient)
    except RecursionError:
        if lenient:
            return f"<{type(value).__name__} nested too deeply>"
        raise ValidationError(
            f"{path[:200]} nests too deeply, or holds itself.", fix="Flatten it."
        ) from None


def to_json_text(value: Any, path: str = "value") -> str:
    """Write data as JSON text that reads as exactly the same data; nothing is converted.

    Args:
        value: Dictionaries with names of text, lists, text, finite numbers, booleans, ``None``.
        path: Name of the value; an error names the place below it.

    Raises:
        ValidationError: Something in it is none of these, or it nests too deeply.

    >>> to_json_text({"a": [1, None]})
    '{"a": [1, null]}'
    >>> to_json_text({"a": [1, (2,)]}, "plan")
    Traceback (most recent call last):
    ...
    capgraph.configs.errors.ValidationError: plan.a[1] is of type tuple, which JSON does not keep...
    """
    try:
        with suppress(_Odd, ValueError):
            return json.dumps(_copied(value), allow_nan=False, ensure_ascii=False)
        place, found = next(_odd(value, path))
    except RecursionError:
        place, found = path, "nested too deeply, or holds itself"
    raise ValidationError(
        f"{place[:200]} is {found}, which JSON does not keep as it is.",
        fix="Give dictionaries with names of text, lists, text, finite numbers, booleans or None.",
    )


def _odd(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if type(value) is list:
        for index, item in enumerate(value):
            yield from _odd(item, f"{where}[{index}]")
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                yield f"A name in {where}", f"of type {type(key).__qualname__}"
            yield from _odd(item, f"{where}.{key}")
    else:
        with suppress(_Odd, ValueError):
            json.dumps(_copied(value), allow_nan=False)
            return
        said = {float: "no finite number", str: "text with half a character"}
        yield where, said.get(type(value)) or _kind(value)


def copy_plain(value: Any) -> Any:
    """Return a copy that shares nothing with the value; fast for data that is plain.

    >>> copy_plain({"a": [1, 2]})
    {'a': [1, 2]}
    """
    with suppress(_Odd, UnicodeEncodeError):
        return _copied(value)
    return copy.deepcopy(value)


class _Odd(Exception):
    """Something is not plain data yet."""


def _copied(value: Any) -> Any:
    # Most of what comes here is plain already, and every step passes: no names of places are made.
    kind = type(value)
    if kind is str:
        if not value.isascii():
            value.encode()
        return value
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise _Odd
        # Leaves are told apart here: a call for each would be most of the work.
        return {
            key: item
            if item is None or ((of := type(item)) is str and item.isascii()) or of is bool
            else _copied(item)
            for key, item in value.items()
        }
    if kind is list:
        return [item if type(item) is str and item.isascii() else _copied(item) for item in value]
    if value is None or kind in (bool, float) or (kind is int and -(2**63) <= value < 2**64):
        return value
    raise _Odd


def _plain(value: Any, where: str, lenient: bool) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float):
        return value
    if kind is str:
        return value if value.isascii() else _text(value, where, lenient)
    if kind is int:
        return value if -(2**63) <= value < 2**64 else _refuse(value, where, lenient)
    if isinstance(value, Mapping):
        return _mapping(value, where, lenient)
    if isinstance(value, (list, tuple, Set)):
        items: Iterable[Any] = _sorted(value) if isinstance(value, Set) else value
        return [_plain(item, f"{where}[{n}]", lenient) for n, item in enumerate(items)]
    if isinstance(value, Enum):
        return _plain(value.value, where, lenient)
    if isinstance(value, BaseModel):
        return _plain(_fields_of(value, where, lenient), where, lenient)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return _mapping(fields, where, lenient)
    return _scalar(value, where, lenient)


def _mapping(value: Mapping[Any, Any], where: str, lenient: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        key = key.value if isinstance(key, Enum) else key
        if not isinstance(key, (str, int, float)) and key is not None:
            key = _refuse(key, f"a key of {where}", lenient)
        name = str(key)
        if name in plain:
            if not lenient:
                raise ValidationError(
                    f"{where} has two keys that are both {name!r} as text.",
                    fix="Use text for keys.",
                )
            continue
        plain[name] = _plain(item, f"{where}.{name}", lenient)
    return plain


def _fields_of(model: BaseModel, where: str, lenient: bool) -> Any:
    try:
        return model.model_dump(warnings=False)
    except Exception as exc:  # a serializer of the author's, which may raise anything
        if lenient:
            return f"<{type(model).__name__}>"
        raise ValidationError(
            f"{where} ({type(model).__name__}) cannot be kept as plain data: {exc}.", fix=_HOW
        ) from exc


def _scalar(value: Any, where: str, lenient: bool) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        if (
            value.dtype.kind in _NUMPY_KINDS and value.dtype.itemsize <= 8
        ) or value.dtype.kind == "U":
            return value.tolist()
        if value.dtype.kind == "O":
            return _plain(value.tolist(), where, lenient)
        return _refuse(value, where, lenient)
    for base in (int, float):  # a number of a subclass is kept as the number
        if isinstance(value, base):
            return _plain(base(value), where, lenient)
    if isinstance(value, str):
        return _plain(str.__str__(value), where, lenient)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath, datetime.timedelta)):
        return str(value)
    return _refuse(value, where, lenient)


def _text(value: str, where: str, lenient: bool) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        if lenient:
            return value.encode(errors="backslashreplace").decode()
        raise ValidationError(
            f"{where} holds text that is not Unicode: {value[:80]!r}.",
            fix="Decode it with the right encoding.",
        ) from None
    return value


def _sorted(value: Set[Any]) -> list[Any]:
    # A set of texts has another order in every process; what is kept must not.
    try:
        return sorted(value)
    except TypeError:
        return sorted(value, key=str)


def _refuse(value: Any, where: str, lenient: bool) -> str:
    if lenient:
        try:
            return _text(str(value), where, lenient)
        except Exception:  # the __str__ of a foreign object; its type is still worth telling
            return f"<{type(value).__name__}>"
    raise ValidationError(
        f"{where} is {_kind(value)}, which cannot be kept as plain data.", fix=_HOW
    )


_JSON_START = re.compile(r"\{|\[(?=\s*[{\]])")


def first_json_object(text: str) -> Any:
    """Return the first JSON object of a text; ``None`` where there is no whole one.

    A strict reader: one that completes half an answer would run half a plan.

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
    r"""Return the JSON objects and lists of a text, in order; none where one of them is cut off.

    Text around them is passed over, such as the marks of a code fence. A list counts if it is empty
    or begins with an object: a sentence may have other brackets.

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


def _kind(value: Any) -> str:
    if type(value) is int:
        return f"an integer of {value.bit_length()} bits"
    return f"of type {type(value).__qualname__}"


# --- short texts --------------------------------------------------------------------------------

_ITEMS = 20
_CHARACTERS = 2_000


def validation_messages(exc: PydanticValidationError, root_label: str = "") -> list[str]:
    """Return what does not fit, place by place; without the values, which may be secret."""
    found = exc.errors(include_url=False, include_context=False, include_input=False)
    told = ((".".join(map(str, error["loc"])) or root_label, error["msg"]) for error in found)
    return [": ".join(filter(None, parts)) for parts in told]


def short_text(value: Any, limit: int = _CHARACTERS) -> str:
    """Write a value as text of bounded length; what is left out is counted.

    >>> short_text([1, 2])
    '[1, 2]'
    >>> short_text(list(range(1000)))[-14:]
    '9, … 980 more]'
    """
    text = value if isinstance(value, str) else _shown(value, limit, 0)
    left_out = len(text) - limit
    return f"{text[:limit]} … ({left_out:,} more characters)" if left_out > 0 else text


def short_summary(value: Any) -> str:
    """Write the fields of a model or mapping as one bounded line.

    >>> short_summary({"place": "Oslo", "celsius": 3})
    'place: Oslo, celsius: 3'
    """
    if isinstance(value, BaseModel):
        value = _fields_of(value, "", lenient=True)
    if not isinstance(value, Mapping):
        return short_text(value)
    parts: list[str] = []
    room = _CHARACTERS
    for name, item in value.items():
        if room <= 0:
            parts.append(f"… {len(value) - len(parts):,} more")
            break
        parts.append(f"{name}: {short_text(item, max(room, 100))}")
        room -= len(parts[-1])
    return ", ".join(parts)


def _shown(value: Any, limit: int, depth: int) -> str:
    if isinstance(value, BaseModel):
        value = _fields_of(value, "", lenient=True)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (Mapping, list, tuple, Set)):
        if depth > 5:
            return "…"
        pairs = isinstance(value, Mapping)
        items: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
        parts: list[str] = []
        room = limit
        for item in items:
            if len(parts) == _ITEMS or room <= 0:
                break
            text = (
                f"{_shown(item[0], room, depth + 1)}: {_shown(item[1], room, depth + 1)}"
                if pairs
                else _shown(item, room, depth + 1)
            )
            parts.append(text)
            room -= len(text)
        if len(value) > len(parts):
            parts.append(f"… {len(value) - len(parts):,} more")
        return ("{%s}" if pairs else "[%s]") % ", ".join(parts)
    if isinstance(value, str):
        return repr(short_text(value, limit))
    return short_text(str(to_plain(value, lenient=True)), limit)
