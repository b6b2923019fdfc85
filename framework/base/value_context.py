"""Context types for functions that return plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

from pydantic import BaseModel, create_model
from pydantic.errors import PydanticUserError
from typing_extensions import is_typeddict

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ValidationError
from capgraph.helpers.plain_data import short_text

LIST_SUFFIX = "[]"
"""Suffix of the context type that holds the results of all ``for_each`` copies of a step."""


class ValueContext(CapabilityContext):
    """Base class of context types that hold one plain value.

    Attributes:
        value: Plain value, such as a number or a list.
        ITEM: Context type of the items, if the value is a list of contexts. An input of many ``ITEM``
            accepts such a value, too.
    """

    ITEM: ClassVar[type[CapabilityContext] | None] = None
    value: Any

    def get_summary(self) -> str:
        """Summarize the value as text.

        A string is returned unchanged. Any other value is preceded by the name of its context type.
        """
        if isinstance(self.value, str):
            return short_text(self.value)
        if self.ITEM is not None and self.value:
            return short_text("\n".join(item.get_summary() for item in self.value))
        data = self.model_dump(mode="json", warnings=False)["value"]
        return f"{self.CONTEXT_TYPE.replace('_', ' ').lower()}: {short_text(data)}"


def unwrap_value(data: Any, kind: type[CapabilityContext] | None) -> Any:
    """Unwrap the value in stored context data.

    Data of a :class:`ValueContext` has the form ``{"value": …}``. Other data is returned
    unchanged.

    Args:
        data: Stored context data.
        kind: Context type of the data, or None if its class is not registered, as for most
            tools.

    >>> unwrap_value({"value": [3]}, None), unwrap_value({"days": 3}, None)
    ([3], {'days': 3})
    """
    is_value = kind is None or issubclass(kind, ValueContext)
    is_wrapped = isinstance(data, Mapping) and data.keys() == {"value"}
    return data["value"] if is_value and is_wrapped else data


def value_field_names(kind: type[CapabilityContext]) -> list[str]:
    """Return the names of a context type's fields to which plans may refer individually.

    These are the fields of a dataclass, pydantic model, or TypedDict that a function returns,
    and the fields that an MCP server declares. The list is empty for other context types,
    because plans refer to them as a whole.
    """
    if not issubclass(kind, ValueContext):
        return list(getattr(kind, "DECLARED_FIELDS", ()))
    annotation = kind.model_fields["value"].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(annotation.model_fields)
    if dataclasses.is_dataclass(annotation):
        return [entry.name for entry in dataclasses.fields(annotation)]
    return list(annotation.__annotations__) if is_typeddict(annotation) else []


def create_value_context(
    name: str, annotation: Any, module: str, item: type[CapabilityContext] | None = None
) -> type[ValueContext]:
    """Create a context type for the return value of a function.

    Args:
        name: Name of the capability, which determines the name of the type.
        annotation: Type of the value, which pydantic must be able to validate and serialize.
        module: Module of the function.
        item: Context type of the items, if the value is a list of contexts.

    Raises:
        ValidationError: Pydantic does not support the type.

    >>> create_value_context("tank_level", float, __name__)(value=2.5).get_summary()
    'tank level: 2.5'
    """
    try:
        context_type = create_model(
            name, __base__=ValueContext, __module__=module, value=(annotation, ...)
        )
    except PydanticUserError as exc:
        shown = getattr(annotation, "__qualname__", None) or repr(annotation)
        cause = str(exc).split("\n")[0]
        raise ValidationError(
            f"{name!r} returns {shown}, which cannot be stored as plain data: {cause}",
            fix="Import TypedDict from typing_extensions."
            if exc.code == "typed-dict-version"
            else "Return text, numbers, lists, dictionaries, a dataclass, a pydantic model or a"
            " TypedDict, or annotate the type with a validator and a serializer:"
            " Annotated[T, PlainValidator(...), PlainSerializer(...)], in this order.",
        ) from exc
    context_type.ITEM = item
    return cast("type[ValueContext]", context_type)


def list_item_types(kinds: Iterable[type[CapabilityContext]]) -> dict[str, str]:
    """Map the name of each context type that is a list to the name of its item type."""
    return {
        kind.CONTEXT_TYPE: kind.ITEM.CONTEXT_TYPE
        for kind in kinds
        if issubclass(kind, ValueContext) and kind.ITEM is not None
    }
