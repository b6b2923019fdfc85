"""Data classes as plain dictionaries and back."""

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
    """What a data class inherits to be written as a dictionary and read again.

    Moments become text; what stands in a field of any type stays what it is.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Note(DictSerializable):
    ...     text: str
    >>> Note.from_dict(Note("full").to_dict())
    Note(text='full')
    """

    def to_dict(self: DataclassInstance) -> dict[str, Any]:
        """Return a dictionary that shares nothing with this."""
        return asdict(self, dict_factory=_fields)

    @classmethod
    @validate_arguments
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ValidationError: A field is missing, or does not fit.
        """
        try:
            found: Self = _reader(cast("Any", cls)).validate_python(dict(data))
        except PydanticValidationError as exc:
            raise ValidationError(
                f"This is no {cls.__name__}: {exc}.", fix="Read what to_dict wrote."
            ) from exc
        return found


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {n: v.isoformat() if isinstance(v, datetime) else v for n, v in pairs}


@cache
def _reader(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
