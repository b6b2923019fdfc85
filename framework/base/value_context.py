"""Context types of plain values, for functions that return no context type of their own."""

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
"""Ends the name of what copies of one step gave: a list of contexts of the type before it."""


class ValueContext(CapabilityContext):
    """Base of the context types that hold one plain value.

    Attributes:
        value: The value.
        ITEM: The context type of the items, where the value is a list of contexts: whoever takes
            many of that type takes them from here too.
    """

    ITEM: ClassVar[type[CapabilityContext] | None] = None
    value: Any

    def get_summary(self) -> str:
        """Return text as it is; any other value with the name of what gave it.

        Contexts say themselves what they are.
        """
        if isinstance(self.value, str):
            return short_text(self.value)
        if self.ITEM is not None and self.value:
            return short_text("\n".join(item.get_summary() for item in self.value))
        data = self.model_dump(mode="json", warnings=False)["value"]
        return f"{self.CONTEXT_TYPE.replace('_', ' ').lower()}: {short_text(data)}"


def unwrap_value(data: Any, kind: type[CapabilityContext] | None) -> Any:
    """Return what a path reads of stored data: of a plain value the value itself.

    Args:
        data: The stored data.
        kind: Its context type; ``None`` if no class is registered, as for most tools.

    >>> unwrap_value({"value": [3]}, None), unwrap_value({"days": 3}, None)
    ([3], {'days': 3})
    """
    is_value = kind is None or issubclass(kind, ValueContext)
    wrapped = isinstance(data, Mapping) and data.keys() == {"value"}
    return data["value"] if is_value and wrapped else data


def value_field_names(kind: type[CapabilityContext]) -> list[str]:
    """Name the fields of a plain value of a structured type, or of what a server declares.

    Other context types have none here: they are inputs, which plans name as a whole.
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
    """Make the context type of what a function returns.

    Args:
        name: Name of the capability; the type is named after it.
        annotation: Type of the value: anything that pydantic reads and writes.
        module: Where the function stands.
        item: The context type of the items, where it is a list of contexts.

    Raises:
        ValidationError: The value could not be kept as plain data.

    >>> create_value_context("tank_level", float, __name__)(value=2.5).get_summary()
    'tank level: 2.5'
    """
    try:
        made = create_model(name, __base__=ValueContext, __module__=module, value=(annotation, ...))
    except PydanticUserError as exc:
        shown = getattr(annotation, "__qualname__", None) or repr(annotation)
        told = str(exc).split("\n")[0]
        raise ValidationError(
            f"{name!r} returns {shown}, which cannot be kept as plain data: {told}",
            fix="Return text, numbers, lists, dictionaries, a data class, a pydantic model or a"
            " TypedDict; or say how it is written and read:"
            " Annotated[T, PlainValidator(...), PlainSerializer(...)], in this order.",
        ) from exc
    made.ITEM = item
    # Two functions of one name in different modules are two types; the registry tells them apart.
    return cast("type[ValueContext]", made)


def list_item_types(kinds: Iterable[type[CapabilityContext]]) -> dict[str, str]:
    """Tell of which type the items are, by name of each context type that is a list of contexts."""
    return {
        kind.CONTEXT_TYPE: kind.ITEM.CONTEXT_TYPE
        for kind in kinds
        if issubclass(kind, ValueContext) and kind.ITEM is not None
    }
