"""Typed access to context data: validated in, validated out."""

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
_SUMMARIES = 50
_SERIALIZERS = (PlainSerializer, WrapSerializer)
_MASKED = str(SecretStr("x")).encode()


def load_context(kind: str, key: str, data: Any, types: ContextTypes) -> Any:
    """Rebuild the typed object of a stored entry.

    Args:
        kind: Context type.
        key: Context key.
        data: What the state holds.
        types: The registered types; data of an unregistered type comes back as plain data.

    Raises:
        ValidationError: The data does not fit its type (an older version, or a foreign hand).
    """
    cls = types.get(kind)
    if cls is None and kind.endswith(LIST_SUFFIX) and isinstance(data, list):
        one = kind.removesuffix(LIST_SUFFIX)
        return [load_context(one, f"{key}.{n}", item, types) for n, item in enumerate(data)]
    if cls is None:
        return copy_plain(data)  # as a validated object would be: the reader's own
    try:
        # Stored by name; a caller may give an alias.
        return cls.model_validate(data, by_alias=True, by_name=True)
    except PydanticValidationError as exc:
        raise ValidationError(
            f"The stored context {kind}.{key} does not fit {cls.__name__}: {'; '.join(validation_messages(exc, 'value'))}.",
            fix="Start a new thread, or give the new fields of the type defaults.",
        ) from exc


def dump_context(kind: str, key: str, value: Any, types: ContextTypes) -> Any:
    """Check an output against its type and turn it into plain data.

    Raises:
        ValidationError: The value does not fit the registered type.
    """
    where = f"The output {kind} of step {key!r}"
    cls = types.get(kind)
    if cls is None and not isinstance(value, CapabilityContext):
        return _fits_the_saver(to_plain(value, where), where)
    try:
        checked = value if cls is None or type(value) is cls else _validated(cls, value)
        data = _dumped(checked, where)
        # What cannot be read back must not be stored; the next step would find out too late.
        back = _validated(type(checked), data)
        _refuse_lost_keys(checked, back, where)
    except PydanticValidationError as exc:
        kind_of = cls or type(value)
        name = kind_of.__name__
        plain = issubclass(kind_of, ValueContext)
        right = (
            "what the annotation says" if plain else f"a {name}, or a dictionary with its fields"
        )
        raise ValidationError(
            f"{where} does not fit {name}: {'; '.join(validation_messages(exc, 'value'))}.",
            fix=f"Return {right}; a field whose serializer"
            " writes another form needs a validator that reads it.",
        ) from exc
    return _fits_the_saver(data, where, checked)


def _validated(cls: type[CapabilityContext], value: Any) -> CapabilityContext:
    if isinstance(value, CapabilityContext):
        value = value.model_dump(round_trip=True, warnings=False)
    return cls.model_validate(value, by_alias=True, by_name=True)


def _dumped(context: CapabilityContext, where: str, **only: Any) -> dict[str, Any]:
    """Write a context as plain data by field name, without what is computed from the rest."""
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
                _dumped(context, f"{where}: field {name!r}", include={name})
            except ValidationError:
                raise
            except Exception as cause:  # whatever the field's serializer raised
                value, place = getattr(context, name), f"{where}: field {name!r}"
                told = f"{place}, of type {type(value).__qualname__}, cannot be kept as plain data."
                try:
                    to_plain(value, place)
                except ValidationError as found:  # it says where in it, too
                    told = found.message
                raise ValidationError(
                    f"{told.rstrip('.')}: {cause}.",
                    fix=f"Declare a serializer for {name!r} (pydantic: @field_serializer).",
                ) from cause
        raise ValidationError(
            f"{where} cannot be kept as plain data: {exc}.",
            fix="Declare serializers for its fields (pydantic: @field_serializer).",
        ) from exc


def _refuse_lost_keys(context: CapabilityContext, back: CapabilityContext, where: str) -> None:
    """Refuse keys that would come back as text, unless the field says how it is written and read."""
    cls = type(context)
    own = {f for d in cls.__pydantic_decorators__.field_serializers.values() for f in d.info.fields}
    for name, info in cls.model_fields.items():
        if name in own or any(isinstance(m, _SERIALIZERS) for m in info.metadata):
            continue
        keys = _odd_keys(getattr(context, name, None))
        if len(keys) > len(_odd_keys(getattr(back, name, None)) if keys else ()):
            raise ValidationError(
                f"{where}: field {name!r}: the key {repr(keys[0])[:80]} of a dictionary is of type"
                f" {type(keys[0]).__name__} and would come back as text.",
                fix="Use text for keys, or say how the field is written and read:"
                " Annotated[T, PlainValidator(...), PlainSerializer(...)].",
            )


def _odd_keys(value: Any) -> list[Any]:
    """Return the keys of dictionaries that text cannot stand for, or that text stands beside."""
    found: list[Any] = []
    level = [value]
    for _ in range(8):
        below: list[Any] = []
        for item in level:
            item = _fields_of(item)
            if isinstance(item, Mapping):
                found += [key for key in item if not isinstance(key, str) and _is_odd(key, item)]
                below += item.values()
            elif isinstance(item, (list, tuple)):
                below += item
        level = below
    return found


def _is_odd(key: Any, item: Mapping[Any, Any]) -> bool:
    return isinstance(key, (tuple, frozenset)) or str(key) in item


def _fields_of(value: Any) -> Any:
    """Return what a model or data class holds, by name; any other value as it is."""
    if isinstance(value, BaseModel):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name, None) for entry in fields(value)}
    return value


def _refuse_masked(value: Any, data: Any, where: str) -> None:
    """Refuse a secret that would come back as asterisks, wherever it stands."""
    if isinstance(value, (SecretStr, SecretBytes)) and data == str(value):
        raise ValidationError(
            f"{where} is a secret and would be kept as {data!r}.",
            fix="Keep a name by which the next step finds the secret, or declare a serializer"
            " (pydantic: @field_serializer) if it may be stored.",
        )
    value = _fields_of(value)
    if isinstance(value, Mapping) and isinstance(data, Mapping):
        for name in value.keys() & data.keys():
            _refuse_masked(value[name], data[name], f"{where}: field {name!r}")
    elif isinstance(value, (list, tuple)) and isinstance(data, list):
        for item, kept in zip(value, data, strict=False):
            _refuse_masked(item, kept, where)


def _fits_the_saver(data: Any, where: str, value: Any = None) -> Any:
    try:
        packed = ormsgpack.packb(data)
    except (TypeError, ValueError) as exc:
        # Rare: walk the data for the place, then say what the saver said.
        to_plain(data, where)
        raise ValidationError(
            f"{where} cannot be kept as plain data: {exc}.", fix="Give plain data."
        ) from exc
    if _MASKED in packed:
        _refuse_masked(value, data, where)
    return data


def summarize_context(kind: str, key: str, data: Any, types: ContextTypes) -> str:
    """Say in words what a stored entry holds."""
    # What has no type is only looked at: no copy of it is needed.
    typed = kind in types or kind.endswith(LIST_SUFFIX)
    value = load_context(kind, key, data, types) if typed else data
    if isinstance(value, list) and all(isinstance(item, CapabilityContext) for item in value):
        told = [item.get_summary() for item in value[:_SUMMARIES]]
        more = [f"And {len(value) - _SUMMARIES} more."] if len(value) > _SUMMARIES else []
        return "\n".join([*told, *more])
    if isinstance(value, CapabilityContext):
        return value.get_summary()
    return short_summary(value)
