"""JSON schemas for execution plans, with one variant for each capability.

A server that constrains model output can exclude only what the schema excludes. The schema
therefore has one variant for each capability, with its name and its parameters. Providers support
different parts of JSON schema, so the variants can be written in four styles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from capgraph.base import CapabilitySpec
from capgraph.base.value_context import ValueContext, value_field_names
from capgraph.configs.logger import get_logger
from capgraph.planning import CLARIFY

SchemaStyle = Literal["open", "grammar", "strict", "optional"]
"""Style of the schema.

- ``open``: names are not constrained, and parameters are an open object that the plan check reads.
- ``grammar``: for servers that compile a schema to a grammar (llama.cpp, vLLM, Ollama).
- ``strict``: for OpenAI's strict mode. Every property is required, and null means the default.
- ``optional``: for Anthropic and Google. Optional properties may be missing, and there are no
  bounds.
"""

ParameterKey = tuple[str, str]
"""Names of a capability and of one of its parameters."""

PLAN_FEATURES = ("references", "for_each", "when", "look_again", "wait_until")
"""Optional plan features. Schema and prompt contain them only if an agent can use them."""

MAX_GRAMMAR_STEPS = 10
"""Maximum number of plan steps, and of a step's inputs, in a grammar. Small models may repeat an item
endlessly."""

PLAN_TITLE = "ExecutionPlan"
_TEXT: dict[str, Any] = {"type": "string"}
_NULL = {"type": "null"}
_REFERENCE = {
    "type": "object",
    "properties": {"$from": _TEXT},
    "required": ["$from"],
    "additionalProperties": False,
}
_LIST = {
    "type": "object",
    "properties": {"of": _TEXT},
    "required": ["of"],
    "additionalProperties": False,
}
_MAX_DEPTH = 3
_SINGLE_VALUES = frozenset({"string", "number", "boolean", "choice"})
_VALUE = {"anyOf": [_TEXT, {"type": "number"}, {"type": "boolean"}]}
_CONDITION = {
    "type": "object",
    "properties": {
        "of": _TEXT,
        "is": {"type": "string", "enum": ["<", "<=", "==", "!=", ">=", ">", "in"]},
        "than": _VALUE,
    },
    "required": ["of", "is", "than"],
    "additionalProperties": False,
}
_FEATURE_PROPERTIES: dict[str, dict[str, Any]] = {
    "references": {"context_key": _TEXT},
    "for_each": {"context_key": _TEXT, "for_each": _LIST},
    "when": {"context_key": _TEXT, "when": _CONDITION},
    "look_again": {"look_again": {"type": "boolean"}},
    "wait_until": {"wait_until": _TEXT},
}
_BOUND_KEYWORDS = frozenset(
    [
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
    ]
)
_PORTABLE_KEYWORDS = frozenset(
    ["type", "enum", "const", "anyOf", "properties", "required", "items", "additionalProperties"]
)
_LIMITS: dict[str, dict[str, int]] = {
    "strict": {
        "properties": 5000,
        "values": 1000,
        "characters": 120_000,
        "depth": 10,
        "enum_characters": 15_000,
    },
    "optional": {"left_out": 24, "unions": 16},
}
"""Schema limits of model providers. The tests contain the same values with their date and source.
"""


class _UnsupportedSchemaError(Exception):
    """Raised when a provider's schema language cannot express a parameter's type."""


def plan_schema(
    specs: Sequence[CapabilitySpec],
    style: SchemaStyle,
    features: Collection[str] = (),
    *,
    reference_parameters: Collection[ParameterKey] | None = None,
    can_clarify: bool = True,
) -> tuple[dict[str, Any], bool]:
    """Build the JSON schema for plans.

    The second return value is True if the schema constrains both capability names and
    parameters.

    Args:
        specs: Capabilities that a plan may use.
        style: Schema style that the provider supports.
        features: Plan features to include: :data:`PLAN_FEATURES` and ``inputs``.
        reference_parameters: Parameters that may refer to a result if ``features`` contains
            ``references``. ``None`` allows all parameters.
        can_clarify: True if a plan may ask the user for clarification.

    >>> schema, typed = plan_schema([CapabilitySpec("fetch", "Fetches.")], "grammar")
    >>> schema["properties"]["steps"]["items"]["anyOf"][0]["properties"]
    {'capability': {'const': 'fetch'}}
    """
    if style == "open":
        return open_schema(specs, features, can_clarify=can_clarify), False
    try:
        variants = [_build_step(spec, style, features, reference_parameters) for spec in specs]
    except _UnsupportedSchemaError as exc:
        return _build_names_only_schema(specs, features, style, str(exc), can_clarify), False
    if can_clarify:
        question = {"capability": _build_name(CLARIFY, style), "task_objective": _TEXT}
        variants.append(_build_object(question, list(question)))
    steps: dict[str, Any] = {"type": "array", "items": {"anyOf": variants}}
    if style == "grammar":
        steps["maxItems"] = MAX_GRAMMAR_STEPS
    answer = {"anyOf": [_TEXT, _NULL]} if style == "strict" else _TEXT
    required = ["steps", "answer"] if style == "strict" else ["steps"]
    schema = _add_title(_build_object({"steps": steps, "answer": answer}, required))
    if excess := find_exceeded_limit(schema, style):
        return _build_names_only_schema(specs, features, style, excess, can_clarify), False
    return schema, True


def open_schema(
    specs: Sequence[CapabilitySpec],
    features: Collection[str],
    *,
    list_names: bool = False,
    can_clarify: bool = True,
) -> dict[str, Any]:
    """Build a plan schema in which a step's parameters may be any object.

    Args:
        specs: Capabilities that a plan may use.
        features: Plan features to include.
        list_names: True to constrain the capability names with an enum.
        can_clarify: True if a plan may ask the user for clarification.
    """
    name: dict[str, Any] = dict(_TEXT)
    if list_names:
        name["enum"] = [*(spec.name for spec in specs), *([CLARIFY] if can_clarify else [])]
    step: dict[str, Any] = {
        "capability": name,
        "parameters": {"type": "object", "additionalProperties": True},
    }
    if any(spec.requires for spec in specs):
        step["inputs"] = {"type": "array", "items": _TEXT}
    # A capability without declared parameters, such as an agent, reads the objective.
    if can_clarify or any(spec.parameters is None for spec in specs):
        step["task_objective"] = _TEXT
    if any(len(spec.provides) > 1 for spec in specs):
        step["expected_output"] = _TEXT
    for feature in PLAN_FEATURES:
        if feature in features:
            # Objects stay open here, because some clients make models write them as text.
            step |= {
                key: {"type": "object"} if part["type"] == "object" else part
                for key, part in _FEATURE_PROPERTIES[feature].items()
            }
    items = {"type": "object", "properties": step, "required": ["capability"]}
    steps = {"type": "array", "items": items}
    return _add_title(
        {"type": "object", "properties": {"steps": steps, "answer": _TEXT}, "required": ["steps"]}
    )


def _build_names_only_schema(
    specs: Sequence[CapabilitySpec],
    features: Collection[str],
    style: str,
    reason: str,
    can_clarify: bool,
) -> dict[str, Any]:
    """Build a plan schema that constrains only capability names, and log the reason."""
    get_logger("framework", "planner").info(
        "The plan schema constrains only names: %s (%s). The plan check validates the parameters.",
        reason,
        style,
    )
    return open_schema(specs, features, list_names=True, can_clarify=can_clarify)


def find_exceeded_limit(schema: Mapping[str, Any], style: str) -> str:
    """Return the provider limit that a JSON schema exceeds, or an empty string.

    >>> find_exceeded_limit({"type": "object", "properties": {}}, "strict")
    ''
    """
    limits = _LIMITS.get(style, {})
    totals = dict.fromkeys(limits, 0)
    for part, depth in _iter_subschemas(schema, 0):
        properties = part.get("properties", {})
        values = [*part.get("enum", ()), *([part["const"]] if "const" in part else ())]
        sizes = {
            "properties": len(properties),
            "values": len(values),
            "characters": sum(map(len, properties)) + sum(len(str(value)) for value in values),
            # The limit applies to enumerations with more than 250 values.
            "enum_characters": sum(map(len, map(str, values))) if len(values) > 250 else 0,
            "depth": depth,
            "left_out": len(properties) - len(part.get("required", ())),
            "unions": "anyOf" in part,
        }
        for name in totals:
            is_maximum = name in ("depth", "enum_characters")
            totals[name] = (
                max(totals[name], sizes[name]) if is_maximum else totals[name] + sizes[name]
            )
    return next((f"{n} {totals[n]} > {limits[n]}" for n in limits if totals[n] > limits[n]), "")


def _iter_subschemas(
    schema: Mapping[str, Any], depth: int
) -> Iterable[tuple[Mapping[str, Any], int]]:
    yield schema, depth
    below = [*schema.get("properties", {}).values()]
    below += [part for part in (schema.get("items"),) if isinstance(part, dict)]
    for part in below:
        yield from _iter_subschemas(part, depth + 1)
    for part in schema.get("anyOf", ()):
        yield from _iter_subschemas(part, depth)


def _add_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {"title": PLAN_TITLE, "description": "The plan.", **schema}


def _build_object(properties: dict[str, Any], required_names: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required_names,
        "additionalProperties": False,
    }


def _build_name(name: str, style: SchemaStyle) -> dict[str, Any]:
    return {"const": name} if style == "grammar" else {"type": "string", "enum": [name]}


def _build_step(
    spec: CapabilitySpec,
    style: SchemaStyle,
    features: Collection[str],
    reference_parameters: Collection[ParameterKey] | None,
) -> dict[str, Any]:
    properties: dict[str, Any] = {"capability": _build_name(spec.name, style)}
    required = ["capability"]
    if spec.parameters is not None and spec.parameters.model_fields:
        properties["parameters"] = parameters = _build_parameters(spec, style)
        if "references" in features or "for_each" in features:
            parameters["properties"] = {
                name: _build_union([part, _REFERENCE])
                if reference_parameters is None or (spec.name, name) in reference_parameters
                else part
                for name, part in parameters["properties"].items()
            }
        if parameters["required"]:
            required.append("parameters")
    if spec.requires and "inputs" in features:
        properties["inputs"] = {"type": "array", "items": _TEXT}
        if style == "grammar":
            properties["inputs"]["maxItems"] = MAX_GRAMMAR_STEPS
    if len(spec.provides) > 1:
        properties["expected_output"] = {"type": "string", "enum": list(spec.provides)}
    for feature in PLAN_FEATURES:
        if feature in features:
            properties |= _FEATURE_PROPERTIES[feature]
    if style == "strict":
        properties = {
            n: p if n in required else {"anyOf": [p, _NULL]} for n, p in properties.items()
        }
        required = list(properties)
    if style == "strict" or "when" in properties:
        properties = deepcopy(properties)
    return _build_object(properties, required)


def _build_parameters(spec: CapabilitySpec, style: SchemaStyle) -> dict[str, Any]:
    assert spec.parameters is not None
    full_schema = spec.parameters.model_json_schema()
    schema = _convert_schema(full_schema, full_schema.get("$defs", {}), style, ())
    schema.setdefault("properties", {})
    schema.setdefault("required", [])
    return schema


def _convert_schema(
    schema: Any, defs: Mapping[str, Any], style: SchemaStyle, expanded_refs: tuple[str, ...]
) -> dict[str, Any]:
    """Resolve a schema's references, and keep only keywords that the schema style supports."""
    if not isinstance(schema, dict) or not schema:
        return _build_any(style, "of any type")
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in expanded_refs or name not in defs:
            return _build_any(style, "of a recursive type")
        return _convert_schema(defs[name], defs, style, (*expanded_refs, name))
    if len(schema.get("allOf", ())) > 1:
        return _build_any(style, "of several types at once")
    for spelling in ("anyOf", "oneOf", "allOf"):
        if spelling in schema:
            return _build_union(
                [
                    _convert_schema(variant, defs, style, expanded_refs)
                    for variant in schema[spelling]
                ]
            )
    keywords = _PORTABLE_KEYWORDS | _BOUND_KEYWORDS if style == "grammar" else _PORTABLE_KEYWORDS
    rendered = {key: value for key, value in schema.items() if key in keywords}
    if "const" in rendered and style != "grammar":
        rendered["enum"] = [rendered.pop("const")]
    if rendered.get("type") == "array":
        rendered["items"] = _convert_schema(rendered.get("items"), defs, style, expanded_refs)
    if rendered.get("type") == "object":
        _convert_object(rendered, schema, defs, style, expanded_refs)
    return rendered


def _build_any(style: SchemaStyle, description: str) -> dict[str, Any]:
    if style == "grammar":
        return {}
    raise _UnsupportedSchemaError(f"a parameter {description}")


def _convert_object(
    target: dict[str, Any],
    schema: Mapping[str, Any],
    defs: Mapping[str, Any],
    style: SchemaStyle,
    expanded_refs: tuple[str, ...],
) -> None:
    extra = schema.get("additionalProperties")
    properties = target.get("properties", {})
    if extra not in (None, False) or not (properties or "properties" in schema):
        if style != "grammar":
            raise _UnsupportedSchemaError("an object of unknown names")
        if isinstance(extra, dict):
            target["additionalProperties"] = _convert_schema(extra, defs, style, expanded_refs)
    else:
        target["additionalProperties"] = False
    parts = {n: _convert_schema(part, defs, style, expanded_refs) for n, part in properties.items()}
    required = [name for name in target.get("required", ()) if name in parts]
    if style == "strict":
        parts = {n: p if n in required else _build_union([p, _NULL]) for n, p in parts.items()}
        required = list(parts)
    else:
        # Models omit a value more reliably than they write null.
        parts = {n: p if n in required else _remove_null(p) for n, p in parts.items()}
    target["properties"], target["required"] = parts, required


def _build_union(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Build a flat ``anyOf`` union of JSON schemas without duplicates."""
    flat: list[dict[str, Any]] = []
    for variant in schemas:
        parts = variant["anyOf"] if set(variant) == {"anyOf"} else [variant]
        flat += [part for part in parts if part not in flat]
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def _remove_null(schema: dict[str, Any]) -> dict[str, Any]:
    if set(schema) != {"anyOf"}:
        return schema
    return _build_union(
        [variant for variant in schema["anyOf"] if variant != _NULL] or schema["anyOf"]
    )


def remove_default_nulls(step: dict[str, Any], spec: CapabilitySpec | None) -> None:
    """Remove null parameters that stand for default values from a step, in place.

    >>> from pydantic import BaseModel
    >>> class P(BaseModel):
    ...     n: int = 3
    >>> step = {"parameters": {"n": None}}
    >>> remove_default_nulls(step, CapabilitySpec("x", "X.", parameters=P))
    >>> step
    {'parameters': {}}
    """
    parameters = step.get("parameters")
    if spec is None or spec.parameters is None or not isinstance(parameters, dict):
        return
    required = spec.parameters.model_json_schema().get("required", ())
    step["parameters"] = {n: v for n, v in parameters.items() if v is not None or n in required}


def usable_features(
    specs: Sequence[CapabilitySpec], *, by_name: bool = False, copies_values: bool = False
) -> Mapping[str, frozenset[ParameterKey]]:
    """Return the plan features that the capabilities' outputs and parameters can use.

    - ``references``: an output field, or a field of a list element, fits a parameter of another
      capability. An output of unknown schema, such as that of most tools, fits any parameter.
    - ``for_each``: an output contains a list whose elements fit a parameter.
    - ``inputs``: several results may fit the same input.

    Args:
        specs: Capabilities that a plan may use.
        by_name: True to match values only with parameters of the same name. Without this
            restriction, small models write references even where the request contains the
            value.
        copies_values: True for a planner that reads results before it plans the steps that need
            them. It copies single values, so only lists and objects are worth a reference.

    Returns:
        Usable features by name, each with the parameters that it lets refer to a result.
    """
    parameter_types: dict[ParameterKey, str] = {}
    for spec in specs:
        if spec.parameters is not None:
            properties = spec.parameters.model_json_schema().get("properties", {})
            parameter_types |= {
                (spec.name, name): _get_json_type(part) for name, part in properties.items()
            }
    required_types = {need.type for spec in specs for need in spec.requires}
    references: set[ParameterKey] = set()
    for_each: set[ParameterKey] = set()
    for spec in specs:
        other_parameters = {
            key: (key[1], kind) for key, kind in parameter_types.items() if key[0] != spec.name
        }
        nested = _list_nested_values(spec, required_types)
        outputs = [(field, part, _get_json_type(part)) for field, part in _iter_output_fields(spec)]
        elements = [
            (field.removesuffix("s"), _get_json_type(part["items"]))
            for field, part, kind in outputs
            if kind == "array" and part.get("items")
        ]
        for key, parameter in other_parameters.items():
            if (not copies_values or parameter[1] not in _SINGLE_VALUES) and (
                any(_can_fit_nested(part, parameter, by_name) for part in nested)
                or any(_can_fit(field, kind, parameter, by_name) for field, _, kind in outputs)
            ):
                references.add(key)
            # For an object, the model names the field.
            if any(
                k == "object" or _can_fit(field, k, parameter, by_name) for field, k in elements
            ):
                for_each.add(key)
    candidates = {"references": references, "for_each": for_each}
    usable = {feature: frozenset(keys) for feature, keys in candidates.items() if keys}
    return usable | ({"inputs": frozenset()} if _has_ambiguous_inputs(specs) else {})


def _has_ambiguous_inputs(specs: Sequence[CapabilitySpec]) -> bool:
    """Return True if more than one result could fit the same capability input."""
    producers = Counter(kind for spec in specs for kind in spec.provides)
    return any(
        need.cardinality != "one" or producers[need.type] > 1 or need.type in spec.provides
        for spec in specs
        for need in spec.requires
    )


def _list_nested_values(
    spec: CapabilitySpec, required_types: Collection[str]
) -> list[tuple[str, Any]]:
    """List the values nested in a capability's outputs that a reference can address.

    Outputs of unknown type are included with an empty schema.
    """
    known_types = {kind.CONTEXT_TYPE for kind in spec.context_types}.union(required_types)
    nested = [
        inner
        for field, part in _iter_output_fields(spec)
        for inner in _iter_nested_values(field, part)
    ]
    return nested + [("", {}) for kind in spec.provides if kind not in known_types]


def _iter_output_fields(spec: CapabilitySpec) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the fields of a capability's outputs, each with its JSON schema."""
    for kind in spec.context_types:
        if kind.CONTEXT_TYPE not in spec.provides:
            continue
        try:
            schema = kind.model_json_schema()
        except Exception:  # noqa: S112 - a type without a schema fits no parameter
            continue
        defs = schema.get("$defs", {})
        fields = schema.get("properties", {})
        if issubclass(kind, ValueContext) and value_field_names(kind):
            inner = _resolve_ref(fields.get("value", {}), defs)
            fields = inner.get("properties", fields)
        for name, part in fields.items():
            yield name, {"$defs": defs, **_resolve_ref(part, defs)}


def _iter_nested_values(
    field: str, schema: Mapping[str, Any], depth: int = 0
) -> Iterable[tuple[str, Any]]:
    """Yield the values nested in an output field, each with its JSON schema.

    The schema is empty if the type of a value is unknown.
    """
    defs = schema.get("$defs", {})
    schema = _resolve_ref(dict(schema), defs)
    json_type, additional = schema.get("type"), schema.get("additionalProperties", True)
    if not schema.keys() - {"title", "description", "$defs"}:
        yield field, {}
    elif depth < _MAX_DEPTH and json_type in ("array", "object"):
        parts = (
            {field: schema.get("items", {})}
            if json_type == "array"
            else schema.get("properties", {})
        )
        if json_type == "object" and not parts and additional:
            parts = {"": additional if isinstance(additional, dict) else {}}
        for name, value in parts.items():
            yield from _iter_nested_values(
                name, {"$defs": defs, **_resolve_ref(value, defs)}, depth + 1
            )
    elif depth:
        yield field, schema


def _can_fit_nested(value: tuple[str, Any], parameter: tuple[str, str], by_name: bool) -> bool:
    (field, schema), (name, expected_type) = value, parameter
    if not schema:
        return expected_type not in ("choice", "boolean") and (not by_name or "_" in name)
    # The field "id" of an element fits the parameter "hotel_id".
    has_same_name = f"_{name}".lower().endswith(f"_{field}".lower()) and "_" in name
    return _can_fit(field, _get_json_type(schema), parameter, by_name=False) and (
        has_same_name or not by_name
    )


def _resolve_ref(schema: dict[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return defs.get(name, schema) if name else schema


def _get_json_type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_get_json_type(variant) for variant in schema["anyOf"] if variant != _NULL]
        return kinds[0] if len(set(kinds)) == 1 else ""
    if "enum" in schema or "const" in schema:
        return "choice"
    return "number" if schema.get("type") == "integer" else str(schema.get("type", ""))


def _can_fit(field: str, json_type: str, parameter: tuple[str, str], by_name: bool) -> bool:
    name, expected_type = parameter
    if json_type != expected_type or json_type in ("", "choice"):
        return False
    # A name of several words, such as customer_id, is specific. "name" or "text" is not.
    return not by_name or (name.lower() == field.lower() and (json_type != "string" or "_" in name))
