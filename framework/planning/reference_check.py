"""Whether a reference in a parameter fits: who supplies it, and of which type it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from framework.base import CapabilityContext
from framework.base.value_context import ValueContext
from framework.planning.problems import Path
from framework.planning.references import references_of
from framework.planning.view import PlanView

_MAX_DEPTH = 8
_NUMBERS = frozenset({"integer", "number"})
_REMEDY = 'write {"$from": "context_key.field"} with an earlier step and a field that fits'


def reference_problems(
    view: PlanView, index: int, model: type[BaseModel] | None, parameters: object
) -> Iterator[tuple[Path, str, str, str]]:
    """Yield path, text, cause and remedy of every reference of a step that cannot be right.

    Args:
        view: The plan.
        index: The step.
        model: What its capability declares.
        parameters: Its parameters.
    """
    for path, text in references_of(parameters):
        where = ("parameters", *path)
        key = text.partition(".")[0]
        places = view.places.get(key, [])
        before = [place for place in places if place < index]
        if before:
            kinds: Collection[str] | None = view.supplies[before[-1]]
        elif not (kinds := view.stored_as(key)):
            if places:
                cause = f"step {places[0] + 1} does not run before step {index + 1}"
                yield where, text, cause, _REMEDY
            else:
                cause = "no step and no stored context has this context_key"
                yield where, text, cause, _REMEDY
            continue
        known = view.context_types
        if kinds is None or any(kind not in known for kind in kinds):
            continue  # of unknown type: what stands there is read when the step runs
        classes = [known[kind] for kind in kinds]
        found = _fault_of_type(text, classes, _schema_at(model, path))
        if found is not None:
            yield where, text, found, _REMEDY


def _fault_of_type(
    text: str, classes: Collection[type[CapabilityContext]], target: dict[str, Any] | None
) -> str | None:
    """Say why a reference cannot be right; ``None`` when it can.

    Args:
        text: The reference.
        classes: The types that the named result can have.
        target: JSON schema of the parameter; ``None`` when it is not known.
    """
    parts = text.split(".")[1:]
    found = [schema for cls in classes if (schema := _inside(cls, parts)) is not None]
    if not found:
        fields = sorted({name for cls in classes for name in _fields(cls)})
        return (
            f"the result has no {'.'.join(parts)!r}; its fields are {', '.join(fields) or 'none'}"
        )
    if len(found) > 1:
        return "several results of that step have it"
    if target is None or _fits(found[0], target, 0):
        return None
    return f"it is {_named(found[0])} and the parameter is {_named(target)}"


def _schema_at(model: type[BaseModel] | None, path: Path) -> dict[str, Any] | None:
    """Return the JSON schema of a parameter; ``None`` when it is not known."""
    return None if model is None else _walk(_schema(model, "validation"), path)


def _schema(model: type[BaseModel], mode: Any) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(mode=mode)
        inlined: dict[str, Any] = _inlined(schema, schema.get("$defs", {}), 0)
    except Exception:  # a type of the author's that has no schema fits everything
        return {}
    return inlined


def _inlined(schema: Any, named: Mapping[str, Any], depth: int) -> Any:
    if depth > 4 * _MAX_DEPTH:
        return {}
    if isinstance(schema, list):
        return [_inlined(item, named, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _inlined(named.get(reference.rpartition("/")[2], {}), named, depth + 1)
    return {k: _inlined(v, named, depth + 1) for k, v in schema.items() if k != "$defs"}


def _inside(cls: type[CapabilityContext], parts: list[str]) -> dict[str, Any] | None:
    schema = _schema(cls, "serialization")
    if issubclass(cls, ValueContext):
        schema = _walk(schema, ("value",)) or {}
    return _walk(schema, tuple(int(part) if part.isdecimal() else part for part in parts))


def _fields(cls: type[CapabilityContext]) -> list[str]:
    schema = _schema(cls, "serialization")
    if issubclass(cls, ValueContext):
        schema = _walk(schema, ("value",)) or {}
    return list(schema.get("properties", {}))


def _walk(schema: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Follow a path in a schema: ``None`` where it cannot be, ``{}`` where anything can."""
    for part in path:
        choices = [
            found for one in _branches(schema) if (found := _step_into(one, part)) is not None
        ]
        if not choices:
            return None
        schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return schema


def _branches(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one
        for choice in schema.get("anyOf") or schema.get("oneOf") or [schema]
        for one in ([choice] if choice is schema else _branches(choice))
    ]


def _step_into(schema: dict[str, Any], part: int | str) -> dict[str, Any] | None:
    if not schema or "type" not in schema:
        return {}
    if schema["type"] == "array":
        if not isinstance(part, int):
            return None
        prefix = schema.get("prefixItems", [])
        found = prefix[part] if part < len(prefix) else schema.get("items", {})
        return found if isinstance(found, dict) else {}
    if schema["type"] != "object":
        return None
    if str(part) in schema.get("properties", {}):
        known: dict[str, Any] = schema["properties"][str(part)]
        return known
    rest = schema.get("additionalProperties", "properties" not in schema)
    return rest if isinstance(rest, dict) else {} if rest else None


def _fits(given: dict[str, Any], wanted: dict[str, Any], depth: int) -> bool:
    """Tell whether a value of one schema can be one of another; values are checked later."""
    return depth > _MAX_DEPTH or any(
        _one_fits(one, other, depth) for one in _branches(given) for other in _branches(wanted)
    )


def _one_fits(given: dict[str, Any], wanted: dict[str, Any], depth: int) -> bool:
    kind, other = given.get("type"), wanted.get("type")
    if kind is None or other is None:
        return True
    if kind != other:
        return {kind, other} <= _NUMBERS
    if kind == "array":
        return _fits(given.get("items") or {}, wanted.get("items") or {}, depth + 1)
    if kind == "object":
        inside = given.get("properties", {})
        open_ended = given.get("additionalProperties", "properties" not in given)
        for name, schema in wanted.get("properties", {}).items():
            if name in inside:
                if not _fits(inside[name], schema, depth + 1):
                    return False
            elif name in wanted.get("required", ()) and not open_ended:
                return False
    return True


def _named(schema: dict[str, Any]) -> str:
    kinds = {str(one.get("type", "anything")) for one in _branches(schema)}
    return " or ".join(sorted(kinds))
