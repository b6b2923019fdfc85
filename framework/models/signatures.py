"""Functions that describe capabilities to a planner as signature lines."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from capgraph.base import CapabilitySpec
from capgraph.base.value_context import value_field_names

_PLAIN_KEYWORDS = frozenset(
    ["type", "title", "default", "description", "examples", "format", "minLength", "maxLength"]
)
_MAX_FIELDS = 20
_MIN_SHARED_TYPE = 20  # characters of a list of choices that is worth a name
NO_NAMES: Mapping[str, str] = MappingProxyType({})
_BOUND_SIGNS = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}


def describe_capability(
    spec: CapabilitySpec,
    producers: Mapping[str, Collection[str]] | None = None,
    *,
    names_output: bool = True,
    has_fields: bool = True,
    has_description: bool = True,
    has_effect_remark: bool = True,
    type_names: Mapping[str, str] = NO_NAMES,
) -> str:
    """Format a capability's signature line for a planning prompt.

    Args:
        spec: Capability to describe.
        producers: Capabilities that provide each context type, to name the sources of inputs.
        names_output: False to omit the name of the only result type.
        has_fields: False to omit the fields of results, which only references need.
        has_description: False to omit the description.
        has_effect_remark: False to omit the remark that the user must ask for an effect.
        type_names: Names that replace types, from :func:`name_shared_choices`.

    >>> print(describe_capability(CapabilitySpec("fetch", "Fetches it.", provides=("DATA",))))
    - fetch() -> DATA: Fetches it.
    """
    outputs = _describe_outputs(spec) if has_fields else list(spec.provides)
    if not names_output and len(outputs) == 1:
        outputs = [outputs[0].removeprefix(spec.provides[0])]
    provided = ", ".join(filter(None, outputs))
    line = f"- {format_call(spec, type_names)}"
    line += f" -> {provided}" if provided else ""
    if has_description:
        line += f": {' '.join(spec.description.split())}"
    if needs := [_describe_requirement(need, producers or {}) for need in spec.requires]:
        line += f" Needs {', '.join(needs)}."
    if len(spec.provides) > 1:
        line += " Name the wanted one in expected_output."
    if spec.effect == "once" and has_effect_remark:
        line += " Only if asked for."
    return line


def _describe_requirement(requirement: Any, producers: Mapping[str, Collection[str]]) -> str:
    suppliers = [] if requirement.role else sorted(producers.get(requirement.type, ()))
    return (
        f"{requirement} from {' or '.join(suppliers)}"
        if 0 < len(suppliers) <= 2
        else str(requirement)
    )


def _describe_outputs(spec: CapabilitySpec) -> list[str]:
    """List a capability's output types, with the fields that parameters may refer to."""
    fields = {kind.CONTEXT_TYPE: value_field_names(kind) for kind in spec.context_types}
    field_texts = {
        kind: ", ".join([*names[:_MAX_FIELDS], *(["…"] if len(names) > _MAX_FIELDS else [])])
        for kind, names in fields.items()
    }
    return [
        f"{kind}({field_texts[kind]})" if field_texts.get(kind) else kind for kind in spec.provides
    ]


def name_shared_choices(specs: Iterable[CapabilitySpec]) -> dict[str, str]:
    """Return a name for each list of choices that several parameters of capabilities share.

    The name is that of the parameter that has the choices most often.
    """
    owners: dict[str, Counter[str]] = defaultdict(Counter)
    for spec in specs:
        for name, part, defs, _ in _iter_parameters(spec):
            text = format_type(part, defs)
            if " | " in text and len(text) >= _MIN_SHARED_TYPE:
                owners[text][name] += 1
    names: dict[str, str] = {}
    for text, counts in owners.items():
        name = counts.most_common(1)[0][0].title().replace("_", "")
        if counts.total() > 1 and name not in names.values():
            names[text] = name
    return names


def format_call(spec: CapabilitySpec, type_names: Mapping[str, str] = NO_NAMES) -> str:
    """Format a capability's name and parameters as a function signature.

    Args:
        spec: Capability to format.
        type_names: Names that replace types, from :func:`name_shared_choices`.
    """
    parameters = (_describe_parameter(*parts, type_names) for parts in _iter_parameters(spec))
    return f"{spec.name}({', '.join(parameters)})"


def _iter_parameters(
    spec: CapabilitySpec,
) -> Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any], bool]]:
    """Yield the name, schema, definitions, and necessity of each parameter."""
    if spec.parameters is None:
        return
    schema = spec.parameters.model_json_schema()
    defs, required = schema.get("$defs", {}), schema.get("required", ())
    for name, part in schema.get("properties", {}).items():
        yield name, part, defs, name in required


def _describe_parameter(
    name: str,
    schema: Mapping[str, Any],
    defs: Mapping[str, Any],
    is_required: bool,
    type_names: Mapping[str, str],
) -> str:
    default = schema.get("default")
    kind = format_type(schema, defs)
    text = (
        f"{name}{'' if is_required or default is not None else '?'}: {type_names.get(kind, kind)}"
    )
    if default is not None:
        text += f" = {_json(default)}"
    if described := " ".join(str(schema.get("description", "")).split()):
        text += f" ({described})"
    return text


def format_type(schema: Any, defs: Mapping[str, Any], depth: int = 0) -> str:
    """Format the type that a JSON schema describes as a short string, such as ``integer[]``.

    Schemas without a short form are returned as JSON.

    >>> format_type({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}, {})
    'integer[]'
    """
    if not isinstance(schema, Mapping) or not schema or depth > 4:
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return format_type(defs.get(name, {}), defs, depth + 1)
    if "enum" in schema or "const" in schema:
        return " | ".join(_json(value) for value in schema.get("enum", [schema.get("const")]))
    for spelling in ("anyOf", "oneOf"):
        if spelling in schema:
            forms = [form for form in schema[spelling] if form != {"type": "null"}]
            return " | ".join(dict.fromkeys(format_type(form, defs, depth + 1) for form in forms))
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return f"[{', '.join(format_type(one, defs, depth + 1) for one in schema['prefixItems'])}]"
    if kind == "array" and not schema.keys() - _PLAIN_KEYWORDS - {"items", "minItems", "maxItems"}:
        item = format_type(schema.get("items"), defs, depth + 1)
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object":
        return _format_object(schema, defs, depth)
    if isinstance(kind, str) and not (extra := schema.keys() - _PLAIN_KEYWORDS):
        return str(schema.get("format", kind))
    if isinstance(kind, str) and extra == {"minimum", "maximum"}:
        return f"{kind} {schema['minimum']}..{schema['maximum']}"
    if isinstance(kind, str) and extra <= _BOUND_SIGNS.keys():
        return " ".join([kind, *(f"{_BOUND_SIGNS[name]} {schema[name]}" for name in sorted(extra))])
    return _json({k: v for k, v in schema.items() if k not in ("title", "description", "default")})


def _format_object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> str:
    fields, required = schema.get("properties", {}), schema.get("required", ())
    if fields:
        field_texts = (
            f"{name}{'' if name in required else '?'}: {format_type(field_schema, defs, depth + 1)}"
            for name, field_schema in fields.items()
        )
        return f"{{{', '.join(field_texts)}}}"
    values = schema.get("additionalProperties")
    return (
        f"{{name: {format_type(values, defs, depth + 1)}}}"
        if isinstance(values, dict)
        else "object"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
