"""Validation of context data when it is written to state and read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import ormsgpack
from pydantic import BaseModel, PlainSerializer, SecretBytes, SecretStr, WrapSerializer
from pydantic import ValidationError as PydanticValidationError

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ValidationError
from capgraph.base.value_context import LIST_SUFFIX, ValueContext
from capgraph.helpers.plain_data import copy_plain, short_summary, to_plain, validation_messages

ContextTypes = Mapping[str, type[CapabilityContext]]
_MAX_SUMMARIES = 50
_SERIALIZERS = (PlainSerializer, WrapSerializer)
_MASKED = str(SecretStr("x")).encode()


def load_context(kind: str, key: str, data: Any, types: ContextTypes) -> Any:
    """Validate stored context data and convert it to an instance of its context class.

    Args:
        kind: Name of the context type.
        key: Context key.
        data: Stored data.
        types: Registered context classes by name. Data of other types is returned as plain data.

    Raises:
        ValidationError: The data does not match its class, for example because an older version of
            the class wrote it.
    """
    cls = types.get(kind)
    if cls is None and kind.endswith(LIST_SUFFIX) and isinstance(data, list):
        item_kind = kind.removesuffix(LIST_SUFFIX)
        return [load_context(item_kind, f"{key}.{n}", item, types) for n, item in enumerate(data)]
    if cls is None:
        return copy_plain(data)  # a copy, like a validated object
    try:
        # State has field names; callers may send aliases.
        return cls.model_validate(data, by_alias=True, by_name=True)
    except PydanticValidationError as exc:
        raise ValidationError(
            f"The stored context {kind}.{key} is not a valid {cls.__name__}:"
            f" {'; '.join(validation_messages(exc, 'value'))}.",
            fix="Start a new thread, or add defaults to new fields of the class.",
            facts={"context_type": kind, "key": key},
        ) from exc


def dump_context(kind: str, key: str, value: Any, types: ContextTypes) -> Any:
    """Validate a step's output and convert it to plain data that can be stored.

    Args:
        kind: Name of the context type.
        key: Context key.
        value: Output to validate.
        types: Registered context classes by name.

    Raises:
        ValidationError: The value does not match the registered class.
    """
    where = f"The output {kind} of step {key!r}"
    cls = types.get(kind)
    if cls is None and not isinstance(value, CapabilityContext):
        return _check_serializable(to_plain(value, where), where)
    try:
        context = value if cls is None or type(value) is cls else _validate(cls, value)
        data = _dump(context, where)
        # Read the data back now. Otherwise the next step would discover that it cannot.
        restored = _validate(type(context), data)
        _reject_lossy_keys(context, restored, where)
    except PydanticValidationError as exc:
        expected_cls = cls or type(value)
        name = expected_cls.__name__
        expected = (
            "a value of the annotated type"
            if issubclass(expected_cls, ValueContext)
            else f"a {name}, or a dictionary with its fields"
        )
        raise ValidationError(
            f"{where} is not a valid {name}: {'; '.join(validation_messages(exc, 'value'))}.",
            fix=f"Return {expected}. A field with a custom serializer also needs a validator that"
            " reads its output.",
        ) from exc
    return _check_serializable(data, where, context)


def _validate(cls: type[CapabilityContext], value: Any) -> CapabilityContext:
    if isinstance(value, CapabilityContext):
        value = value.model_dump(round_trip=True, warnings=False)
    return cls.model_validate(value, by_alias=True, by_name=True)


def _dump(context: CapabilityContext, where: str, **only: Any) -> dict[str, Any]:
    """Serialize a context object to plain data by field name, without computed fields."""
    try:
        return context.model_dump(
            mode="json",
            by_alias=False,
            round_trip=True,
            warnings=False,
            fallback=lambda value: to_plain(value, where),
            **only,
        )
    except Exception as exc:
        if only:
            raise
        for name in type(context).model_fields:
            try:
                _dump(context, f"{where}: field {name!r}", include={name})
            except ValidationError:
                raise
            except Exception as cause:  # the field's serializer may raise anything
                value, path = getattr(context, name), f"{where}: field {name!r}"
                kind = type(value).__qualname__
                problem = f"{path}, of type {kind}, cannot be stored as plain data."
                try:
                    to_plain(value, path)
                except ValidationError as error:  # its message has the exact path
                    problem = error.message
                raise ValidationError(
                    f"{problem.rstrip('.')}: {cause}.",
                    fix=f"Declare a serializer for {name!r} (pydantic: @field_serializer).",
                ) from cause
        raise ValidationError(
            f"{where} cannot be stored as plain data: {exc}.",
            fix="Declare serializers for its fields (pydantic: @field_serializer).",
        ) from exc


def _reject_lossy_keys(context: CapabilityContext, restored: CapabilityContext, where: str) -> None:
    """Reject dictionary keys that JSON would convert to strings.

    Keys in fields with a custom serializer are accepted.
    """
    cls = type(context)
    serialized = {
        name
        for decorator in cls.__pydantic_decorators__.field_serializers.values()
        for name in decorator.info.fields
    }
    for name, info in cls.model_fields.items():
        if name in serialized or any(isinstance(m, _SERIALIZERS) for m in info.metadata):
            continue
        keys = _find_ambiguous_keys(getattr(context, name, None))
        if len(keys) > len(_find_ambiguous_keys(getattr(restored, name, None)) if keys else ()):
            raise ValidationError(
                f"{where}: field {name!r}: the dictionary key {repr(keys[0])[:80]} of type"
                f" {type(keys[0]).__name__} would be converted to text.",
                fix="Use text as keys, or annotate the field with a validator and a serializer:"
                " Annotated[T, PlainValidator(...), PlainSerializer(...)].",
            )


def _find_ambiguous_keys(value: Any) -> list[Any]:
    """Return non-string dictionary keys that would change or collide when converted to strings."""
    keys: list[Any] = []
    level = [value]
    for _ in range(8):
        next_level: list[Any] = []
        for item in level:
            item = _to_mapping(item)
            if isinstance(item, Mapping):
                keys += [
                    key for key in item if not isinstance(key, str) and _is_ambiguous(key, item)
                ]
                next_level += item.values()
            elif isinstance(item, (list, tuple)):
                next_level += item
        level = next_level
    return keys


def _is_ambiguous(key: Any, mapping: Mapping[Any, Any]) -> bool:
    return isinstance(key, (tuple, frozenset)) or str(key) in mapping


def _to_mapping(value: Any) -> Any:
    """Convert a model or dataclass to a mapping of its fields. Other values are unchanged."""
    if isinstance(value, BaseModel):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name, None) for entry in fields(value)}
    return value


def _check_masked(value: Any, data: Any, where: str) -> None:
    """Reject a pydantic secret, because it would be stored as asterisks."""
    if isinstance(value, (SecretStr, SecretBytes)) and data == str(value):
        raise ValidationError(
            f"{where} is a secret and would be stored as {data!r}.",
            fix="Store a name with which the next step can look up the secret. If the secret may be"
            " stored, declare a serializer (pydantic: @field_serializer).",
        )
    value = _to_mapping(value)
    if isinstance(value, Mapping) and isinstance(data, Mapping):
        for name in value.keys() & data.keys():
            _check_masked(value[name], data[name], f"{where}: field {name!r}")
    elif isinstance(value, (list, tuple)) and isinstance(data, list):
        for item, stored in zip(value, data, strict=False):
            _check_masked(item, stored, where)


def _check_serializable(data: Any, where: str, value: Any = None) -> Any:
    try:
        packed = ormsgpack.packb(data)
    except (TypeError, ValueError) as exc:
        # to_plain raises an error with the path of the invalid part, if it finds one.
        to_plain(data, where)
        raise ValidationError(
            f"{where} cannot be stored as plain data: {exc}.",
            fix="Return text, numbers, booleans, lists, or dictionaries.",
        ) from exc
    if _MASKED in packed:
        _check_masked(value, data, where)
    return data


def summarize_context(kind: str, key: str, data: Any, types: ContextTypes) -> str:
    """Return a short summary of stored context data.

    The summary comes from ``get_summary`` of the context class, or is a short text form of the
    data.

    Args:
        kind: Name of the context type.
        key: Context key.
        data: Stored data.
        types: Registered context classes by name.
    """
    # Data without a class is only read, so it is not copied.
    is_typed = kind in types or kind.endswith(LIST_SUFFIX)
    value = load_context(kind, key, data, types) if is_typed else data
    if isinstance(value, list) and all(isinstance(item, CapabilityContext) for item in value):
        lines = [item.get_summary() for item in value[:_MAX_SUMMARIES]]
        more = [f"And {len(value) - _MAX_SUMMARIES} more."] if len(value) > _MAX_SUMMARIES else []
        return "\n".join([*lines, *more])
    if isinstance(value, CapabilityContext):
        return value.get_summary()
    return short_summary(value)
