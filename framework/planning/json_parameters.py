"""Parameter models that are generated from JSON schemas, such as those of tools."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, create_model, model_serializer, model_validator
from pydantic import ValidationError as PydanticError
from pydantic_core import InitErrorDetails, PydanticCustomError

from capgraph.base.errors import ValidationError
from capgraph.configs.logger import get_logger
from capgraph.helpers.plain_data import is_equal_json
from capgraph.planning.problems import Path, preview
from capgraph.planning.schema_shapes import Shape
from capgraph.planning.schema_validation import BoundedValidator

_JSON_TYPES = {
    "array": "array arraylist list queue set stack tuple",
    "boolean": "bool boolean",
    "integer": "bigint byte int integer long short",
    "null": "none null undefined void",
    "number": "bigdecimal decimal double float number",
    "object": "dict dictionary hashmap hashtable map mapping object",
    "string": "char character datetime date str string text",
    "": "any anything",
}
_TYPES = {name: kind for kind, names in _JSON_TYPES.items() for name in names.split()}
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_MAX_MESSAGE_LENGTH = 300
_MAX_LEVELS = 64
_MAX_PARTS = 20_000
_MAX_PARAMETERS = 2_000
_PLAIN_TYPES = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_PLAIN_KEYWORDS = {
    *("$defs", "$schema", "additionalProperties", "default", "description", "properties"),
    *("required", "title", "type"),
}
_VALUE_KEYWORDS = ("default", "enum", "const", "examples")


class JsonParameters(BaseModel):
    """Base class of parameter models that are generated from a JSON schema.

    Attributes:
        json_schema: JSON schema of the parameters.
        defaults: Default values by parameter name.
        schema_validator: Validator of the parameters.
        plain_types: Accepted Python types of each parameter that declares only a type. Such values
            are validated without ``jsonschema``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    json_schema: ClassVar[dict[str, Any]] = {}
    defaults: ClassVar[dict[str, Any]] = {}
    schema_validator: ClassVar[BoundedValidator]
    plain_types: ClassVar[dict[str, tuple[type, ...]]] = {}

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the declared schema."""
        return deepcopy(cls.json_schema)

    @model_validator(mode="wrap")
    @classmethod
    def _validate_schema(cls, values: Any, handler: Any) -> Any:
        if not isinstance(values, dict):
            return handler(values)
        plain_types = cls.plain_types
        plain = all(name in values for name in cls.json_schema.get("required", ()))
        plain = plain and all(
            type(value) in plain_types.get(name, ()) for name, value in values.items()
        )
        if not plain and (errors := list(_iter_schema_errors(cls, values))):
            raise PydanticError.from_exception_data(cls.__name__, errors)
        return handler({**deepcopy(cls.defaults), **values})

    @model_serializer(mode="wrap")
    def _omit_unset(self, handler: Any) -> dict[str, Any]:
        fields = type(self).model_fields
        left_out = {
            spelled
            for name, info in fields.items()
            if name not in self.model_fields_set
            for spelled in (name, info.alias)
        }
        return {name: value for name, value in handler(self).items() if name not in left_out}


def json_parameters(name: str, schema: Mapping[str, Any]) -> type[JsonParameters]:
    """Create a pydantic model for a capability's parameters from a JSON schema.

    Plans are validated against the schema, and prompts include the schema unchanged. Python and
    Java type names (``dict``, ``float``, ``tuple``, ``HashMap``) are converted. An undeclared
    parameter is an error unless the schema allows ``additionalProperties``. A valid ``default``
    is used for a missing parameter.

    Args:
        name: Name of the model.
        schema: JSON schema of an object.

    Raises:
        MissingExtraError: ``jsonschema`` is not installed.
        ValidationError: The schema is invalid, too large, or refers to another document.

    >>> model = json_parameters("days", {"properties": {"n": {"type": "int", "default": 3}}})
    >>> model().n, model.model_json_schema()["properties"]["n"]["type"]
    (3, 'integer')
    """
    _check_size(schema, name)
    plain = {"properties": {}, **_normalize_schema(schema, name), "type": "object"}
    if len(plain["properties"]) + len(plain.get("required") or []) > _MAX_PARAMETERS:
        raise _too_large_error(name, f"it has more than {_MAX_PARAMETERS:,} parameters")
    validator = BoundedValidator(plain)
    if (fault := validator.find_schema_fault()) is not None:
        raise ValidationError(
            f"The parameters of {name!r} are not a valid JSON schema: {preview(fault.message)} at"
            f" {fault.json_path}.",
            fix="Correct the schema of the tool.",
        )
    properties = plain["properties"]
    needed = plain.get("required", [])
    fields: dict[str, Any] = {}
    for number, property_name in enumerate(dict.fromkeys([*properties, *needed])):
        safe = (
            property_name.isidentifier()
            and not keyword.iskeyword(property_name)
            and not hasattr(JsonParameters, property_name)
        )
        key = (
            property_name
            if safe and not property_name.startswith(("_", "model_"))
            else f"parameter_{number}"
        )
        declaration = properties.get(property_name)
        description = declaration.get("description") if isinstance(declaration, dict) else None
        default: Any = ... if property_name in needed else None
        fields[key] = (
            Any,
            Field(
                default,
                alias=None if key == property_name else property_name,
                description=description,
            ),
        )
    model: Any = create_model(
        name, __base__=JsonParameters, __doc__=schema.get("description"), **fields
    )
    model.json_schema = plain
    if plain.keys() <= _PLAIN_KEYWORDS:
        model.plain_types = {
            property_name: _PLAIN_TYPES[declaration["type"]]
            for property_name, declaration in properties.items()
            if isinstance(declaration, dict)
            and declaration.keys() <= _PLAIN_KEYWORDS
            and _is_plain_type(declaration)
        }
    model.schema_validator = validator
    model.defaults = {
        property_name: declaration["default"]
        for property_name, declaration in properties.items()
        if isinstance(declaration, dict)
        and "default" in declaration
        and not validator.list_errors(declaration["default"], declaration)
    }
    return cast("type[JsonParameters]", model)


def _check_size(schema: Mapping[str, Any], owner: str) -> None:
    """Reject a schema that is too large, too deeply nested, or expands too much by ``$ref``.

    Raises:
        ValidationError: The schema is too large.
    """
    known: dict[str, int] = {}

    def count(part: Any, depth: int) -> int:
        if depth > _MAX_LEVELS:
            raise _too_large_error(owner, f"it is nested more than {_MAX_LEVELS} levels deep")
        inner = part.values() if isinstance(part, Mapping) else part
        total = 1 + sum(count(one, depth + 1) for one in inner if isinstance(one, (Mapping, list)))
        name = part.get("$ref") if isinstance(part, Mapping) else None
        if isinstance(name, str) and name.startswith("#"):
            if name not in known:
                known[name] = 1  # a recursive reference is followed once
                known[name] = count(_resolve_reference(schema, name), depth + 1)
            total += known[name]
        if total > _MAX_PARTS:
            raise _too_large_error(
                owner, f"it has more than {_MAX_PARTS:,} parts with its references"
            )
        return total

    count(schema, 0)


def _resolve_reference(schema: Mapping[str, Any], reference: str) -> Any:
    found: Any = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        found = found.get(part, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, (Mapping, list)) else {}


def _too_large_error(owner: str, cause: str) -> ValidationError:
    return ValidationError(
        f"The parameter schema of {owner!r} is too large: {cause}.",
        fix="Declare fewer parameters, or exclude this tool.",
    )


def _is_plain_type(declaration: Mapping[str, Any]) -> bool:
    return isinstance(declaration.get("type"), str) and declaration["type"] in _PLAIN_TYPES


def _iter_schema_errors(
    model: type[JsonParameters], values: dict[str, Any]
) -> Iterator[InitErrorDetails]:
    for error in model.schema_validator.list_errors(values):
        path = tuple(error.absolute_path)
        if "default" in error.schema and is_equal_json(error.instance, error.schema["default"]):
            continue  # a declared default is accepted even if it is not valid
        if error.validator == "required":
            # One error per missing name. Only the message contains the name.
            missing = next(n for n in error.validator_value if error.message.startswith(repr(n)))
            yield {"type": "missing", "loc": (*path, missing), "input": error.instance}
        elif error.validator not in ("additionalProperties", "unevaluatedProperties"):
            error_type = PydanticCustomError(
                "json_schema", "{said}", {"said": error.message[:_MAX_MESSAGE_LENGTH]}
            )
            yield {"type": error_type, "loc": path, "input": error.instance}
    for path, value in _iter_undeclared_values(Shape.from_model(model, "validation"), values, ()):
        yield {"type": "extra_forbidden", "loc": path, "input": value}


def _iter_undeclared_values(shape: Shape, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the nested values that a JSON schema does not declare, with their paths."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for part, item in inside:
        found = shape.at_path((part,))
        if found is None and isinstance(value, dict):
            yield (*path, part), item
        elif found is not None and isinstance(item, (dict, list)):
            yield from _iter_undeclared_values(found, item, (*path, part))


def _normalize_schema(schema: Any, owner: str) -> Any:
    """Convert a schema to standard JSON Schema keywords and type names."""
    if isinstance(schema, list):
        return [_normalize_schema(part, owner) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = dict(_normalize_items(schema, owner))
    if "properties" in found and "type" not in schema:
        found["type"] = "object"
    of_items = found.get("type") == "array" and "enum" in found
    if of_items and not any(isinstance(value, list) for value in found["enum"]):
        # Some schemas declare the choices of the items at the list.
        found["items"] = {**found.get("items", {}), "enum": found.pop("enum")}
    inside = schema.get("properties")
    inside = inside if isinstance(inside, Mapping) else {}
    # Some schemas mark a property itself as required.
    own = [n for n, p in inside.items() if isinstance(p, Mapping) and p.get("required") is True]
    return {**found, "required": [*found.get("required", []), *own]} if own else found


def _normalize_items(schema: Mapping[str, Any], owner: str) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _VALUE_KEYWORDS:
            yield key, value
        elif key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            inner = {name: _normalize_schema(part, owner) for name, part in value.items()}
            yield "$defs" if key == "definitions" else key, inner
        elif key == "$ref" and isinstance(value, str):
            yield key, _check_local_reference(value, owner)
        elif key == "type":
            kinds = [
                _to_json_type(one, owner) for one in (value if isinstance(value, list) else [value])
            ]
            if "" not in kinds:
                yield key, kinds if isinstance(value, list) else kinds[0]
        elif not (key in ("required", "optional") and isinstance(value, bool)):
            yield key, _normalize_schema(value, owner)


def _to_json_type(name: Any, owner: str) -> str:
    found = _TYPES.get(str(name).partition("[")[0].partition("<")[0].strip().lower())
    if found is None:
        get_logger("framework", "parameters").warning(
            "The parameters of %r declare the unknown type %r: any value is accepted", owner, name
        )
    return found or ""


def _check_local_reference(reference: str, owner: str) -> str:
    if not reference.startswith("#"):
        raise ValidationError(
            f"The parameters of {owner!r} contain the reference {preview(reference)}, which "
            "points outside their schema.",
            fix="Add the definition to the schema under '$defs'.",
        )
    return reference.replace("#/definitions/", "#/$defs/")
