"""Parameters that a JSON schema declares, in the form in which a plan is checked against them."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, ClassVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic import ValidationError as PydanticError
from pydantic_core import InitErrorDetails, PydanticCustomError

from capgraph.base.errors import ConfigurationError, ValidationError, require_extra
from capgraph.configs.linear_regex import LinearTimeRegex
from capgraph.configs.logger import get_logger
from capgraph.planning.problems import Path, preview
from capgraph.planning.schema_shapes import Shape

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
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SAID = 300
_MOST_LEVELS = 64
_MOST_PARTS = 20_000
_PLAIN = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_SAYS_LITTLE = {
    *("$defs", "$schema", "additionalProperties", "default", "description", "properties"),
    *("required", "title", "type"),
}
_VALUES = ("default", "enum", "const", "examples")


class JsonParameters(BaseModel):
    """Base of the parameters that are declared by a JSON schema.

    Attributes:
        json_schema: The schema, in the words of JSON schema.
        defaults: What stands for what is left out.
        schema_validator: Knows the schema.
        plain_types: Name of each parameter of which only a type is said, to what may stand there;
            most calls have no other, and need no more than a look.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow", validate_by_name=True, validate_by_alias=True
    )

    json_schema: ClassVar[dict[str, Any]] = {}
    defaults: ClassVar[dict[str, Any]] = {}
    schema_validator: ClassVar[Any] = None
    plain_types: ClassVar[dict[str, tuple[type, ...]]] = {}

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the schema as it was declared."""
        return deepcopy(cls.json_schema)

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, given: Any, handler: Any) -> Any:
        if not isinstance(given, dict):
            return handler(given)
        known = cls.plain_types
        plain = all(name in given for name in cls.json_schema.get("required", ()))
        plain = plain and all(type(value) in known.get(name, ()) for name, value in given.items())
        if not plain and (faults := list(_faults(cls, given))):
            raise PydanticError.from_exception_data(cls.__name__, faults)
        return handler({**deepcopy(cls.defaults), **given})

    @model_serializer(mode="wrap")
    def _given(self, handler: Any) -> dict[str, Any]:
        fields = type(self).model_fields
        left_out = {
            spelled
            for name, info in fields.items()
            if name not in self.model_fields_set
            for spelled in (name, info.alias)
        }
        return {name: value for name, value in handler(self).items() if name not in left_out}


def json_parameters(name: str, schema: Mapping[str, Any]) -> type[JsonParameters]:
    """Make the parameters model of a JSON schema.

    A plan is checked against the schema itself, and a model that plans is shown it as it is. Types
    may also be written as in Python or Java (``dict``, ``float``, ``tuple``, ``HashMap``). A name
    that the schema does not declare is an error unless it says ``additionalProperties``; a
    ``default`` that fits stands for what is left out.

    Args:
        name: Names the model.
        schema: The schema of an object.

    Raises:
        MissingExtraError: ``jsonschema`` is not installed.
        ValidationError: The schema is none, or refers to something outside of it.

    >>> model = json_parameters("days", {"properties": {"n": {"type": "int", "default": 3}}})
    >>> model().n, model.model_json_schema()["properties"]["n"]["type"]
    (3, 'integer')
    """
    jsonschema = require_extra("jsonschema", "tools")
    validators = require_extra("jsonschema.validators", "tools")
    _check_size(schema, name)
    plain = {"properties": {}, **_plain(schema, name), "type": "object"}
    kind = validators.validator_for(plain, default=jsonschema.Draft202012Validator)
    kind = validators.extend(kind, {"pattern": _pattern, "patternProperties": _named_like})
    try:
        kind.check_schema(plain)
    except jsonschema.SchemaError as exc:
        raise ValidationError(
            f"The parameters of {name!r} are no JSON schema: {preview(exc.message)} at"
            f" {exc.json_path}.",
            fix="Correct the schema of the tool.",
        ) from exc
    properties = plain["properties"]
    needed = plain.get("required", [])
    fields: dict[str, Any] = {}
    for number, own in enumerate(dict.fromkeys([*properties, *needed])):
        safe = (
            own.isidentifier() and not keyword.iskeyword(own) and not hasattr(JsonParameters, own)
        )
        key = own if safe and not own.startswith(("_", "model_")) else f"parameter_{number}"
        said = properties.get(own)
        told = said.get("description") if isinstance(said, dict) else None
        default: Any = ... if own in needed else None
        fields[key] = (Any, Field(default, alias=None if key == own else own, description=told))
    made: Any = create_model(
        name, __base__=JsonParameters, __doc__=schema.get("description"), **fields
    )
    made.json_schema = plain
    if plain.keys() <= _SAYS_LITTLE:
        made.plain_types = {
            own: _PLAIN[said["type"]]
            for own, said in properties.items()
            if isinstance(said, dict) and said.keys() <= _SAYS_LITTLE and _is_plain(said)
        }
    # Nothing is fetched: a reference to another document is none that can be followed.
    made.schema_validator = kind(plain, registry=require_extra("referencing", "tools").Registry())
    made.defaults = {
        own: said["default"]
        for own, said in properties.items()
        if isinstance(said, dict)
        and "default" in said
        and made.schema_validator.evolve(schema=said).is_valid(said["default"])
    }
    return cast("type[JsonParameters]", made)


def _check_size(schema: Mapping[str, Any], owner: str) -> None:
    """Refuse a schema that is large, deep, or grows when its references are followed.

    Raises:
        ValidationError: It has too many parts.
    """
    known: dict[str, int] = {}

    def count(part: Any, depth: int) -> int:
        if depth > _MOST_LEVELS:
            raise _too_large(owner, f"is nested more than {_MOST_LEVELS} levels deep")
        inner = part.values() if isinstance(part, Mapping) else part
        total = 1 + sum(count(one, depth + 1) for one in inner if isinstance(one, (Mapping, list)))
        name = part.get("$ref") if isinstance(part, Mapping) else None
        if isinstance(name, str) and name.startswith("#"):
            if name not in known:
                known[name] = 1  # a reference to what it stands in is followed once
                known[name] = count(_target(schema, name), depth + 1)
            total += known[name]
        if total > _MOST_PARTS:
            raise _too_large(owner, f"has more than {_MOST_PARTS:,} parts with its references")
        return total

    count(schema, 0)


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    found: Any = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        found = found.get(part, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, (Mapping, list)) else {}


def _too_large(owner: str, told: str) -> ValidationError:
    return ValidationError(
        f"The parameters' schema of {owner!r} {told}.",
        fix="Declare fewer parameters, or leave this tool out.",
    )


def _is_plain(said: Mapping[str, Any]) -> bool:
    return isinstance(said.get("type"), str) and said["type"] in _PLAIN


def _faults(model: type[JsonParameters], given: dict[str, Any]) -> Iterator[InitErrorDetails]:
    for error in model.schema_validator.iter_errors(given):
        path = tuple(error.absolute_path)
        if "default" in error.schema and _same(error.instance, error.schema["default"]):
            continue  # whoever writes a default that does not fit takes it all the same
        if error.validator == "required":
            # One error for each name, of which only the text says the name.
            missing = next(n for n in error.validator_value if error.message.startswith(repr(n)))
            yield {"type": "missing", "loc": (*path, missing), "input": error.instance}
        elif error.validator not in ("additionalProperties", "unevaluatedProperties"):
            said = PydanticCustomError("json_schema", "{said}", {"said": error.message[:_SAID]})
            yield {"type": said, "loc": path, "input": error.instance}
    for path, value in _strangers(Shape.from_model(model, "validation"), given, ()):
        yield {"type": "extra_forbidden", "loc": path, "input": value}


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return what searches for a pattern in linear time, whoever wrote it."""
    try:
        return LinearTimeRegex(pattern).search
    except ConfigurationError:
        get_logger("framework", "parameters").warning(
            "The pattern %r cannot be checked in bounded time: any text passes", pattern
        )
        return lambda _: True


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError as Fault

    if isinstance(value, str) and not _matcher(pattern)(value):
        yield Fault(f"{value!r} does not match {pattern!r}")


def _named_like(checker: Any, patterns: Any, value: Any, _: Any) -> Iterator[Exception]:
    for pattern, inner in patterns.items() if isinstance(value, dict) else ():
        for name, item in value.items():
            if _matcher(pattern)(name):
                yield from checker.descend(item, inner, path=name, schema_path=pattern)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _strangers(shape: Shape, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Find what a schema does not declare: it would be dropped, or taken for something else."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for part, item in inside:
        found = shape.at_path((part,))
        if found is None and isinstance(value, dict):
            yield (*path, part), item
        elif found is not None and isinstance(item, (dict, list)):
            yield from _strangers(found, item, (*path, part))


def _plain(schema: Any, owner: str) -> Any:
    """Write a schema in the words of JSON schema."""
    if isinstance(schema, list):
        return [_plain(part, owner) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = dict(_plain_pairs(schema, owner))
    if "properties" in found and "type" not in schema:
        found["type"] = "object"
    of_items = found.get("type") == "array" and "enum" in found
    if of_items and not any(isinstance(value, list) for value in found["enum"]):
        # Some say at the list what its items may be.
        found["items"] = {**found.get("items", {}), "enum": found.pop("enum")}
    inside = schema.get("properties")
    inside = inside if isinstance(inside, Mapping) else {}
    # Some say of a property itself that it is required.
    own = [n for n, p in inside.items() if isinstance(p, Mapping) and p.get("required") is True]
    return {**found, "required": [*found.get("required", []), *own]} if own else found


def _plain_pairs(schema: Mapping[str, Any], owner: str) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _VALUES:
            yield key, value
        elif key in _BY_NAME and isinstance(value, Mapping):
            inner = {name: _plain(part, owner) for name, part in value.items()}
            yield "$defs" if key == "definitions" else key, inner
        elif key == "$ref" and isinstance(value, str):
            yield key, _local(value, owner)
        elif key == "type":
            kinds = [
                _json_type(one, owner) for one in (value if isinstance(value, list) else [value])
            ]
            if "" not in kinds:
                yield key, kinds if isinstance(value, list) else kinds[0]
        elif not (key in ("required", "optional") and isinstance(value, bool)):
            yield key, _plain(value, owner)


def _json_type(name: Any, owner: str) -> str:
    found = _TYPES.get(str(name).partition("[")[0].partition("<")[0].strip().lower())
    if found is None:
        get_logger("framework", "parameters").warning(
            "The parameters of %r name the type %r, which is not known: any value passes there",
            owner,
            name,
        )
    return found or ""


def _local(reference: str, owner: str) -> str:
    if not reference.startswith("#"):
        raise ValidationError(
            f"The parameters of {owner!r} refer to {preview(reference)}, outside of their schema.",
            fix="Write the definition into the schema, under '$defs'.",
        )
    return reference.replace("#/definitions/", "#/$defs/")
