"""Static compatibility checks between the JSON schemas of results and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel

from capgraph.base import CapabilityContext
from capgraph.base.value_context import ValueContext
from capgraph.planning.problems import Path

_MAX_DEPTH = 8
_MAX_ALTERNATIVES = 64
_NUMERIC_TYPES = frozenset({"integer", "number"})
_OPEN_KEYWORDS = frozenset({"patternProperties", "if", "dependentSchemas"})
"""Keywords that may declare further properties in ways that are not analyzed."""
_CHOICE_KEYWORDS = frozenset({"anyOf", "oneOf", "allOf", "$ref"})


@dataclass(frozen=True)
class Shape:
    """JSON schema of a value, together with the definitions it references.

    Attributes:
        schema: JSON schema. An empty schema allows every value.
        definitions: Schemas that ``$ref`` refers to, by name.
    """

    schema: Mapping[str, Any]
    definitions: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_model(
        cls, model: type[BaseModel], mode: Literal["validation", "serialization"]
    ) -> Shape:
        """Create the JSON schema of a pydantic model.

        The ``validation`` schema describes input data, and the ``serialization`` schema describes
        dumped data.

        >>> Point = type("Point", (BaseModel,), {"__annotations__": {"x": int}})
        >>> Shape.from_model(Point, "validation").field_names
        ['x']
        """
        return _build_shape(model, mode)

    @property
    def json_type(self) -> Any:
        """JSON type that the schema declares, or ``None`` if it does not declare a type."""
        return self.schema.get("type")

    @property
    def field_names(self) -> list[str]:
        """The names of the declared properties."""
        return [name for one in self.alternatives() for name in one.schema.get("properties", {})]

    def alternatives(self, depth: int = 0) -> list[Shape]:
        """Return the schema's alternatives after resolving ``$ref``, ``anyOf``, and ``allOf``."""
        if depth > _MAX_DEPTH:
            return [Shape({})]
        choices = [self.schema.get(name) for name in ("anyOf", "oneOf")]
        choices += [[part] for part in self.schema.get("allOf") or ()]
        if isinstance(name := self.schema.get("$ref"), str):
            choices.append([self.definitions.get(name.rpartition("/")[2], {})])
        if isinstance(self.json_type, list):
            choices.append([{"type": kind} for kind in self.json_type])
        if not any(choices):
            return [self]
        found = [{key: value for key, value in self.schema.items() if key not in _CHOICE_KEYWORDS}]
        for parts in filter(None, choices):
            inner = [
                one.schema for part in parts for one in self._to_shape(part).alternatives(depth + 1)
            ]
            found = [_intersect_schemas(one, other) for one in found for other in inner]
            if len(found) > _MAX_ALTERNATIVES:
                return [Shape({})]
        return [Shape(one, self.definitions) for one in found]

    def _to_shape(self, schema: Any) -> Shape:
        return Shape(schema if isinstance(schema, dict) else {}, self.definitions)

    def at_path(self, path: Path) -> Shape | None:
        """Return the schema of the value at a path, or ``None`` if no value is allowed there."""
        found = self
        for part in path:
            inner = [
                one for form in found.alternatives() if (one := form._step_into(part)) is not None
            ]
            if not inner:
                return None
            choice = {"anyOf": [one.schema for one in inner]}
            found = inner[0] if len(inner) == 1 else Shape(choice, self.definitions)
        return found

    def _step_into(self, part: int | str) -> Shape | None:
        found: Any = {}
        if self.json_type == "array":
            if not isinstance(part, int):
                return None
            prefix = self.schema.get("prefixItems", [])
            found = prefix[part] if part < len(prefix) else self.schema.get("items", {})
        elif self.json_type == "object":
            inside = self.schema.get("properties", {})
            rest = self.schema.get("additionalProperties", not _is_closed(self.schema))
            if (found := inside.get(str(part), rest)) is False:
                return None
        elif self.json_type is not None:
            return None
        return Shape(found if isinstance(found, dict) else {}, self.definitions)

    def is_compatible_with(self, target: Shape, depth: int = 0) -> bool:
        """Return True if a value of this schema may be valid for a target schema.

        Only types are compared.

        Args:
            target: Schema that the value must match.
            depth: Current recursion depth, which is limited.
        """
        return depth > _MAX_DEPTH or any(
            one._is_one_compatible(other, depth + 1)
            for one in self.alternatives()
            for other in target.alternatives()
        )

    def _is_one_compatible(self, target: Shape, depth: int) -> bool:
        if self.json_type is None or target.json_type is None:
            return True
        if self.json_type != target.json_type:
            return {self.json_type, target.json_type} <= _NUMERIC_TYPES
        if self.json_type == "array":
            mine, other = (
                Shape(s.schema.get("items") or {}, s.definitions) for s in (self, target)
            )
            return mine.is_compatible_with(other, depth)
        needed = target.schema.get("required", ())
        for name in target.schema.get("properties", {}) if self.json_type == "object" else ():
            mine_at, other_at = self.at_path((name,)), target.at_path((name,))
            if name in needed and mine_at is None:
                return False
            if (
                mine_at is not None
                and other_at is not None
                and not mine_at.is_compatible_with(other_at, depth)
            ):
                return False
        return True

    def __str__(self) -> str:
        return " or ".join(
            sorted({str(one.json_type or "anything") for one in self.alternatives()})
        )


def _intersect_schemas(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two JSON schemas into one that combines their properties and required fields."""
    properties = {**first.get("properties", {}), **second.get("properties", {})}
    needed = [*first.get("required", ()), *second.get("required", ())]
    more = {"properties": properties} if properties else {}
    return {**first, **second, **more, **({"required": needed} if needed else {})}


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Return True if an object schema allows only its declared properties."""
    return "properties" in schema and not _OPEN_KEYWORDS & schema.keys()


@lru_cache(maxsize=1024)
def _build_shape(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> Shape:
    # Cached: pydantic generates the schema again on every call.
    try:
        schema = model.model_json_schema(mode=mode)
    except Exception:  # a custom type without a schema allows every value
        return Shape({})
    return Shape(schema, schema.get("$defs", {}))


def result_shape(
    context_class: type[CapabilityContext],
    mode: Literal["validation", "serialization"] = "serialization",
) -> Shape:
    """Return the schema of a result as seen by references in a plan.

    The wrapper around a plain value is removed.

    Args:
        context_class: Class of the result's context type.
        mode: ``serialization`` for stored results, ``validation`` for inputs.
    """
    whole = Shape.from_model(context_class, mode)
    return (
        (whole.at_path(("value",)) or whole) if issubclass(context_class, ValueContext) else whole
    )
