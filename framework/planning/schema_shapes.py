"""What a JSON schema allows, as far as a plan can be checked against it before it runs."""

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
_MAX_FORMS = 64
_NUMBERS = frozenset({"integer", "number"})
_OPEN = frozenset({"patternProperties", "if", "dependentSchemas"})
"""What may name further properties in ways that are not followed here."""
_CHOICES = frozenset({"anyOf", "oneOf", "allOf", "$ref"})


@dataclass(frozen=True)
class Shape:
    """A JSON schema and the definitions that it refers to.

    Attributes:
        schema: The schema; an empty one allows everything.
        definitions: The definitions.
    """

    schema: Mapping[str, Any]
    definitions: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_model(
        cls, model: type[BaseModel], mode: Literal["validation", "serialization"]
    ) -> Shape:
        """Return what a model reads or writes.

        >>> Shape.from_model(type("Point", (BaseModel,), {"__annotations__": {"x": int}}), "validation").field_names
        ['x']
        """
        return _shape_of(model, mode)

    @property
    def json_type(self) -> Any:
        """The JSON type; ``None`` where it is not said."""
        return self.schema.get("type")

    @property
    def field_names(self) -> list[str]:
        """The names of its properties."""
        return [name for one in self.alternatives() for name in one.schema.get("properties", {})]

    def alternatives(self, depth: int = 0) -> list[Shape]:
        """Return its alternatives, each without a reference, a further choice or a part."""
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
        found = [{key: value for key, value in self.schema.items() if key not in _CHOICES}]
        for parts in filter(None, choices):
            inner = [
                one.schema for part in parts for one in self._part(part).alternatives(depth + 1)
            ]
            found = [_both(one, other) for one in found for other in inner]
            if len(found) > _MAX_FORMS:
                return [Shape({})]
        return [Shape(one, self.definitions) for one in found]

    def _part(self, schema: Any) -> Shape:
        return Shape(schema if isinstance(schema, dict) else {}, self.definitions)

    def at_path(self, path: Path) -> Shape | None:
        """Follow a path: ``None`` where it cannot be."""
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
            rest = self.schema.get("additionalProperties", not _closed(self.schema))
            if (found := inside.get(str(part), rest)) is False:
                return None
        elif self.json_type is not None:
            return None
        return Shape(found if isinstance(found, dict) else {}, self.definitions)

    def is_compatible_with(self, target: Shape, depth: int = 0) -> bool:
        """Tell whether a value of this shape can be one of another; values are checked later."""
        return depth > _MAX_DEPTH or any(
            one._one_fits(other, depth + 1)
            for one in self.alternatives()
            for other in target.alternatives()
        )

    def _one_fits(self, target: Shape, depth: int) -> bool:
        if self.json_type is None or target.json_type is None:
            return True
        if self.json_type != target.json_type:
            return {self.json_type, target.json_type} <= _NUMBERS
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


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what allows that which both allow."""
    properties = {**one.get("properties", {}), **other.get("properties", {})}
    needed = [*one.get("required", ()), *other.get("required", ())]
    more = {"properties": properties} if properties else {}
    return {**one, **other, **more, **({"required": needed} if needed else {})}


def _closed(schema: Mapping[str, Any]) -> bool:
    """Tell whether an object holds only what is named."""
    return "properties" in schema and not _OPEN & schema.keys()


@lru_cache(maxsize=1024)
def _shape_of(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> Shape:
    # Each step of a plan is checked against it, and pydantic makes it anew at every call.
    try:
        schema = model.model_json_schema(mode=mode)
    except Exception:  # a type of the author's that has no schema allows everything
        return Shape({})
    return Shape(schema, schema.get("$defs", {}))


def result_shape(
    context_class: type[CapabilityContext],
    mode: Literal["validation", "serialization"] = "serialization",
) -> Shape:
    """Return what a parameter can take of a result: of a plain value, the value itself."""
    whole = Shape.from_model(context_class, mode)
    return (
        (whole.at_path(("value",)) or whole) if issubclass(context_class, ValueContext) else whole
    )
