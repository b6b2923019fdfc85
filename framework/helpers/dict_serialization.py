"""Mixin that converts dataclasses to plain dictionaries and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticValidationError

from capgraph.configs.errors import ValidationError
from capgraph.helpers.argument_validation import validate_arguments

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class DictSerializable:
    """Mixin that adds ``to_dict`` and ``from_dict`` methods to dataclasses.

    Datetimes are converted to ISO strings. Values of fields annotated as ``Any`` are not
    converted.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Note(DictSerializable):
    ...     text: str
    >>> Note.from_dict(Note("full").to_dict())
    Note(text='full')
    """

    def to_dict(self: DataclassInstance) -> dict[str, Any]:
        """Convert the dataclass to a dictionary, copying nested values."""
        return asdict(self, dict_factory=_fields)

    @classmethod
    @validate_arguments
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create an instance from a dictionary that :meth:`to_dict` returned.

        Raises:
            ValidationError: A field is missing or invalid.
        """
        try:
            found: Self = _reader(cast("Any", cls)).validate_python(dict(data))
        except PydanticValidationError as exc:
            raise ValidationError(
                f"The data is not a valid {cls.__name__}: {exc}.",
                fix="Pass data that to_dict returned.",
            ) from exc
        return found


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {n: v.isoformat() if isinstance(v, datetime) else v for n, v in pairs}


@cache
def _reader(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
