"""Capabilities as signature lines, the form in which a planner reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from capgraph.base import CapabilitySpec
from capgraph.base.value_context import value_fields

_PLAIN_KEYS = frozenset(
    ["type", "title", "default", "description", "examples", "format", "minLength", "maxLength"]
)
_SHOWN_FIELDS = 20
_BOUND_SIGNS = {
    "minimum": ">=",
    "maximum": "<=",
    "exclusiveMinimum": ">",
    "exclusiveMaximum": "<",
}


def describe_capability(
    spec: CapabilitySpec, producers: Mapping[str, Collection[str]] | None = None
) -> str:
    """Return the signature line of a capability.

    Args:
        spec: The capability.
        producers: Context type to the capabilities that provide it, for what must come first.

    >>> print(describe_capability(CapabilitySpec("fetch", "Fetches it.", provides=("DATA",))))
    - fetch() -> DATA: Fetches it.
    """
    provided = ", ".join(_outputs(spec))
    line = f"- {spec.name}({', '.join(_arguments(spec))})"
    line += f" -> {provided}" if provided else ""
    line += f": {' '.join(spec.description.split())}"
    if needs := [_need(need, producers or {}) for need in spec.requires]:
        line += f" Needs {', '.join(needs)}."
    if len(spec.provides) > 1:
        line += " Name the wanted one in expected_output."
    if spec.effect == "once":
        line += " Only if asked for."
    return line


def _need(need: Any, producers: Mapping[str, Collection[str]]) -> str:
    found = [] if need.role else sorted(producers.get(need.type, ()))
    return f"{need} from {' or '.join(found)}" if 0 < len(found) <= 2 else str(need)


def _outputs(spec: CapabilitySpec) -> list[str]:
    """Name the outputs, and of some their fields, which parameters may refer to."""
    fields = {kind.CONTEXT_TYPE: value_fields(kind) for kind in spec.context_types}
    shown = {
        kind: ", ".join([*own[:_SHOWN_FIELDS], *(["…"] if len(own) > _SHOWN_FIELDS else [])])
        for kind, own in fields.items()
    }
    return [f"{kind}({shown[kind]})" if shown.get(kind) else kind for kind in spec.provides]


def _arguments(spec: CapabilitySpec) -> list[str]:
    if spec.parameters is None:
        return []
    schema = spec.parameters.model_json_schema()
    defs, needed = schema.get("$defs", {}), schema.get("required", ())
    return [
        _argument(name, part, defs, name in needed)
        for name, part in schema.get("properties", {}).items()
    ]


def _argument(name: str, part: Mapping[str, Any], defs: Mapping[str, Any], needed: bool) -> str:
    default = part.get("default")
    text = f"{name}{'' if needed or default is not None else '?'}: {type_text(part, defs)}"
    if default is not None:
        text += f" = {_json(default)}"
    if described := " ".join(str(part.get("description", "")).split()):
        text += f" ({described})"
    return text


def type_text(part: Any, defs: Mapping[str, Any], depth: int = 0) -> str:
    """Return the type of a JSON schema as a short text; unusual schemas as JSON.

    >>> type_text({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}, {})
    'integer[]'
    """
    if not isinstance(part, Mapping) or not part or depth > 4:
        return "any"
    if "$ref" in part:
        name = str(part["$ref"]).rpartition("/")[2]
        return type_text(defs.get(name, {}), defs, depth + 1)
    if "enum" in part or "const" in part:
        return " | ".join(_json(value) for value in part.get("enum", [part.get("const")]))
    for spelling in ("anyOf", "oneOf"):
        if spelling in part:
            forms = [form for form in part[spelling] if form != {"type": "null"}]
            return " | ".join(dict.fromkeys(type_text(form, defs, depth + 1) for form in forms))
    kind = part.get("type")
    if kind == "array" and "prefixItems" in part:
        return f"[{', '.join(type_text(one, defs, depth + 1) for one in part['prefixItems'])}]"
    if kind == "array" and not part.keys() - _PLAIN_KEYS - {"items", "minItems", "maxItems"}:
        item = type_text(part.get("items"), defs, depth + 1)
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object":
        return _object_text(part, defs, depth)
    if isinstance(kind, str) and not (extra := part.keys() - _PLAIN_KEYS):
        return str(part.get("format", kind))
    if isinstance(kind, str) and extra == {"minimum", "maximum"}:
        return f"{kind} {part['minimum']}..{part['maximum']}"
    if isinstance(kind, str) and extra <= _BOUND_SIGNS.keys():
        return " ".join([kind, *(f"{_BOUND_SIGNS[name]} {part[name]}" for name in sorted(extra))])
    return _json({k: v for k, v in part.items() if k not in ("title", "description", "default")})


def _object_text(part: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> str:
    fields, needed = part.get("properties", {}), part.get("required", ())
    if fields:
        shown = (
            f"{name}{'' if name in needed else '?'}: {type_text(one, defs, depth + 1)}"
            for name, one in fields.items()
        )
        return f"{{{', '.join(shown)}}}"
    values = part.get("additionalProperties")
    return (
        f"{{name: {type_text(values, defs, depth + 1)}}}" if isinstance(values, dict) else "object"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
