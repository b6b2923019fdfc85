"""Typed access to context data: validated in, validated out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError as PydanticValidationError

from framework.base.context import CapabilityContext
from framework.base.errors import ValidationError, to_plain

ContextTypes = Mapping[str, type[CapabilityContext]]


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
    if cls is None:
        return copy.deepcopy(data)  # as a validated object would be: the reader's own
    try:
        return cls.model_validate(data)
    except PydanticValidationError as exc:
        raise ValidationError(
            f"The stored context {kind}.{key} does not fit {cls.__name__}: {_problems(exc)}.",
            fix="Start a new thread, or give the new fields of the type defaults.",
        ) from exc


def dump_context(kind: str, key: str, value: Any, types: ContextTypes) -> Any:
    """Check an output against its type and turn it into plain data.

    Raises:
        ValidationError: The value does not fit the registered type.
    """
    cls = types.get(kind)
    if cls is None:
        if isinstance(value, CapabilityContext):
            return value.model_dump(mode="json")
        return to_plain(value)
    try:
        checked = value if type(value) is cls else cls.model_validate(_as_data(value))
        data = checked.model_dump(mode="json")
    except PydanticValidationError as exc:
        raise ValidationError(
            f"The output {kind} of step {key!r} does not fit {cls.__name__}: {_problems(exc)}.",
            fix=f"Return a {cls.__name__}, or a dictionary with its fields.",
        ) from exc
    return data


def get_context(state: Mapping[str, Any], cls: type[CapabilityContext], key: str) -> Any:
    """Read one context of the state as an object of its type.

    Raises:
        ValidationError: There is no such entry, or it does not fit.
    """
    kind = cls.CONTEXT_TYPE
    entries = (state.get("capability_context_data") or {}).get(kind, {})
    if key not in entries:
        raise ValidationError(
            f"The state holds no {kind} under {key!r}; it has {sorted(entries)}.",
            fix="Read the key from the plan's steps, or from execution_step_results.",
        )
    return load_context(kind, key, entries[key], {kind: cls})


def summarize(kind: str, key: str, data: Any, types: ContextTypes) -> str:
    """Say in words what a stored entry holds."""
    value = load_context(kind, key, data, types)
    if isinstance(value, CapabilityContext):
        return value.get_summary()
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    return str(value)


def _as_data(value: Any) -> Any:
    return value.model_dump() if isinstance(value, CapabilityContext) else value


def _problems(exc: PydanticValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in error['loc']) or 'value'}: {error['msg']}"
        for error in exc.errors(include_url=False)
    )
