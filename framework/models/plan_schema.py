"""JSON schemas of a plan: one form for each capability, rendered for what serves the model.

A server that constrains what a model writes can only exclude what its schema excludes. So each
capability has a form of its own here, with its name and its own parameters. Providers accept
different parts of JSON schema, therefore the forms are rendered in four ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from capgraph.base import CapabilitySpec
from capgraph.base.value_context import ValueContext, value_fields
from capgraph.configs.logger import get_logger
from capgraph.planning import CLARIFY

Rendering = Literal["open", "grammar", "strict", "optional"]
"""Form of the schema.

- ``open``: names are not constrained and parameters are an open object; the plan check reads them.
- ``grammar``: for servers that compile a schema to a grammar (llama.cpp, vLLM, Ollama).
- ``strict``: for OpenAI's strict mode. Every property is required; null means the default.
- ``optional``: for Anthropic and Google. Optional properties are left out; no bounds.
"""

Parameter = tuple[str, str]
"""A capability and the name of one of its parameters."""

FEATURES = ("references", "for_each", "when", "look_again", "wait_until")
"""Features of plans that are part of schema and prompt only if an agent can use them."""

MAX_STEPS = 10
"""Longest list of steps that a grammar allows: a small model may repeat a step without end."""

TITLE = "ExecutionPlan"
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
_DEEPEST = 3
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
_OF_FEATURES: dict[str, dict[str, Any]] = {
    "references": {"context_key": _TEXT},
    "for_each": {"context_key": _TEXT, "for_each": _LIST},
    "when": {"context_key": _TEXT, "when": _CONDITION},
    "look_again": {"look_again": {"type": "boolean"}},
    "wait_until": {"wait_until": _TEXT},
}
_BOUNDS = frozenset(
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
_KEPT = frozenset(
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
"""What providers accept at most; tests hold the same figures with date and source."""


class _InexpressibleError(Exception):
    """A provider's schema language cannot express a parameter."""


def plan_schema(
    specs: Sequence[CapabilitySpec],
    rendering: Rendering,
    features: Collection[str] = (),
    *,
    referring: Collection[Parameter] | None = None,
    can_clarify: bool = True,
) -> tuple[dict[str, Any], bool]:
    """Return the schema of a plan, and whether it constrains names and parameters.

    Args:
        specs: The capabilities that a plan may use.
        rendering: Form of the schema.
        features: Features of plans beside capability and parameters; see :data:`FEATURES`, and
            ``inputs``.
        referring: Parameters that may refer to a result if ``features`` has references; ``None``
            for all.
        can_clarify: True if a plan may ask the person back.

    >>> schema, typed = plan_schema([CapabilitySpec("fetch", "Fetches.")], "grammar")
    >>> schema["properties"]["steps"]["items"]["anyOf"][0]["properties"]
    {'capability': {'const': 'fetch'}}
    """
    if rendering == "open":
        return open_schema(specs, features), False
    try:
        forms = [_form(spec, rendering, features, referring) for spec in specs]
    except _InexpressibleError as exc:
        return _past_limits(specs, features, rendering, str(exc)), False
    if can_clarify:
        question = {"capability": _name(CLARIFY, rendering), "task_objective": _TEXT}
        forms.append(_object(question, list(question)))
    steps: dict[str, Any] = {"type": "array", "items": {"anyOf": forms}}
    if rendering == "grammar":
        steps["maxItems"] = MAX_STEPS
    answer = {"anyOf": [_TEXT, _NULL]} if rendering == "strict" else _TEXT
    needed = ["steps", "answer"] if rendering == "strict" else ["steps"]
    schema = _titled(_object({"steps": steps, "answer": answer}, needed))
    if excess := past_limit(schema, rendering):
        return _past_limits(specs, features, rendering, excess), False
    return schema, True


def open_schema(
    specs: Sequence[CapabilitySpec], features: Collection[str], *, names: bool = False
) -> dict[str, Any]:
    """Return a schema in which parameters are an open object, optionally with the names as enum."""
    name: dict[str, Any] = dict(_TEXT)
    if names:
        name["enum"] = [*(spec.name for spec in specs), CLARIFY]
    step: dict[str, Any] = {
        "capability": name,
        "parameters": {"type": "object", "additionalProperties": True},
        "inputs": {"type": "array", "items": _TEXT},
        "task_objective": _TEXT,
    }
    if any(len(spec.provides) > 1 for spec in specs):
        step["expected_output"] = _TEXT
    for feature in FEATURES:
        if feature in features:
            # Conditions and lists stay open here: some clients have them written as text.
            step |= {
                key: {"type": "object"} if part["type"] == "object" else part
                for key, part in _OF_FEATURES[feature].items()
            }
    items = {"type": "object", "properties": step, "required": ["capability"]}
    steps = {"type": "array", "items": items}
    return _titled(
        {
            "type": "object",
            "properties": {"steps": steps, "answer": _TEXT},
            "required": ["steps"],
        }
    )


def _past_limits(
    specs: Sequence[CapabilitySpec], features: Collection[str], rendering: str, cause: str
) -> dict[str, Any]:
    get_logger("framework", "planner").info(
        "The plan's schema lists only names: %s (%s). The plan check reads the parameters.",
        cause,
        rendering,
    )
    return open_schema(specs, features, names=True)


def past_limit(schema: Mapping[str, Any], rendering: str) -> str:
    """Name the provider's limit that a schema exceeds; empty if it exceeds none.

    >>> past_limit({"type": "object", "properties": {}}, "strict")
    ''
    """
    limits = _LIMITS.get(rendering, {})
    found = dict.fromkeys(limits, 0)
    for part, depth in _parts(schema, 0):
        own = part.get("properties", {})
        values = [*part.get("enum", ()), *([part["const"]] if "const" in part else ())]
        sizes = {
            "properties": len(own),
            "values": len(values),
            "characters": sum(map(len, own)) + sum(len(str(value)) for value in values),
            # Of an enumeration with more than 250 values.
            "enum_characters": sum(map(len, map(str, values))) if len(values) > 250 else 0,
            "depth": depth,
            "left_out": len(own) - len(part.get("required", ())),
            "unions": "anyOf" in part,
        }
        for name in found:
            is_each = name in ("depth", "enum_characters")
            found[name] = max(found[name], sizes[name]) if is_each else found[name] + sizes[name]
    return next((f"{n} {found[n]} > {limits[n]}" for n in limits if found[n] > limits[n]), "")


def _parts(schema: Mapping[str, Any], depth: int) -> Iterable[tuple[Mapping[str, Any], int]]:
    yield schema, depth
    below = [*schema.get("properties", {}).values()]
    below += [part for part in (schema.get("items"),) if isinstance(part, dict)]
    for part in below:
        yield from _parts(part, depth + 1)
    for part in schema.get("anyOf", ()):
        yield from _parts(part, depth)


def _titled(schema: dict[str, Any]) -> dict[str, Any]:
    return {"title": TITLE, "description": "The plan.", **schema}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _name(name: str, rendering: Rendering) -> dict[str, Any]:
    return {"const": name} if rendering == "grammar" else {"type": "string", "enum": [name]}


def _form(
    spec: CapabilitySpec,
    rendering: Rendering,
    features: Collection[str],
    referring: Collection[Parameter] | None,
) -> dict[str, Any]:
    own: dict[str, Any] = {"capability": _name(spec.name, rendering)}
    needed = ["capability"]
    if spec.parameters is not None and spec.parameters.model_fields:
        own["parameters"] = parameters = _parameters(spec, rendering)
        if "references" in features or "for_each" in features:
            parameters["properties"] = {
                name: _union([part, _REFERENCE])
                if referring is None or (spec.name, name) in referring
                else part
                for name, part in parameters["properties"].items()
            }
        if parameters["required"]:
            needed.append("parameters")
    if spec.requires and "inputs" in features:
        own["inputs"] = {"type": "array", "items": _TEXT}
    if len(spec.provides) > 1:
        own["expected_output"] = {"type": "string", "enum": list(spec.provides)}
    for feature in FEATURES:
        if feature in features:
            own |= _OF_FEATURES[feature]
    if rendering == "strict":
        own = {n: p if n in needed else {"anyOf": [p, _NULL]} for n, p in own.items()}
        needed = list(own)
    if rendering == "strict" or "when" in own:
        own = deepcopy(own)
    return _object(own, needed)


def _parameters(spec: CapabilitySpec, rendering: Rendering) -> dict[str, Any]:
    assert spec.parameters is not None
    whole = spec.parameters.model_json_schema()
    schema = _render(whole, whole.get("$defs", {}), rendering, ())
    schema.setdefault("properties", {})
    schema.setdefault("required", [])
    return schema


def _render(
    schema: Any, defs: Mapping[str, Any], rendering: Rendering, seen: tuple[str, ...]
) -> dict[str, Any]:
    """Return a schema in the part of the language that a rendering has, without references."""
    if not isinstance(schema, dict) or not schema:
        return _anything(rendering, "of any type")
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in seen or name not in defs:
            return _anything(rendering, "of a recursive type")
        return _render(defs[name], defs, rendering, (*seen, name))
    if len(schema.get("allOf", ())) > 1:
        return _anything(rendering, "of several types at once")
    for spelling in ("anyOf", "oneOf", "allOf"):
        if spelling in schema:
            return _union([_render(form, defs, rendering, seen) for form in schema[spelling]])
    kept = _KEPT | _BOUNDS if rendering == "grammar" else _KEPT
    made = {key: value for key, value in schema.items() if key in kept}
    if "const" in made and rendering != "grammar":
        made["enum"] = [made.pop("const")]
    if made.get("type") == "array":
        made["items"] = _render(made.get("items"), defs, rendering, seen)
    if made.get("type") == "object":
        _render_object(made, schema, defs, rendering, seen)
    return made


def _anything(rendering: Rendering, what: str) -> dict[str, Any]:
    if rendering == "grammar":
        return {}
    raise _InexpressibleError(f"a parameter {what}")


def _render_object(
    made: dict[str, Any],
    schema: Mapping[str, Any],
    defs: Mapping[str, Any],
    rendering: Rendering,
    seen: tuple[str, ...],
) -> None:
    extra = schema.get("additionalProperties")
    properties = made.get("properties", {})
    if extra not in (None, False) or not (properties or "properties" in schema):
        if rendering != "grammar":
            raise _InexpressibleError("an object of unknown names")
        if isinstance(extra, dict):
            made["additionalProperties"] = _render(extra, defs, rendering, seen)
    else:
        made["additionalProperties"] = False
    parts = {n: _render(part, defs, rendering, seen) for n, part in properties.items()}
    needed = [name for name in made.get("required", ()) if name in parts]
    if rendering == "strict":
        parts = {n: p if n in needed else _union([p, _NULL]) for n, p in parts.items()}
        needed = list(parts)
    else:
        # Leaving a value out is simpler than writing null.
        parts = {n: p if n in needed else _without_null(p) for n, p in parts.items()}
    made["properties"], made["required"] = parts, needed


def _union(forms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a union of forms, flat and each one once."""
    flat: list[dict[str, Any]] = []
    for form in forms:
        parts = form["anyOf"] if set(form) == {"anyOf"} else [form]
        flat += [part for part in parts if part not in flat]
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def _without_null(part: dict[str, Any]) -> dict[str, Any]:
    if set(part) != {"anyOf"}:
        return part
    return _union([form for form in part["anyOf"] if form != _NULL] or part["anyOf"])


def without_nulls(step: dict[str, Any], spec: CapabilitySpec | None) -> None:
    """Remove nulls that stand for a default from the parameters of a step.

    >>> from pydantic import BaseModel
    >>> class P(BaseModel):
    ...     n: int = 3
    >>> step = {"parameters": {"n": None}}
    >>> without_nulls(step, CapabilitySpec("x", "X.", parameters=P))
    >>> step
    {'parameters': {}}
    """
    given = step.get("parameters")
    if spec is None or spec.parameters is None or not isinstance(given, dict):
        return
    needed = spec.parameters.model_json_schema().get("required", ())
    step["parameters"] = {n: v for n, v in given.items() if v is not None or n in needed}


def usable_features(
    specs: Sequence[CapabilitySpec], *, by_name: bool = False
) -> Mapping[str, frozenset[Parameter]]:
    """Return the features that outputs and parameters of capabilities make useful.

    ``references``: a field of an output, or of an element of one, fits a parameter of another
    capability; an output of unknown form, as of most tools, fits any. ``for_each``: an
    output holds a list whose elements fit one. ``inputs``: several results may fit an input.

    Args:
        specs: The capabilities.
        by_name: Let values fit only a parameter of the same name. Small models otherwise write
            references where the request has the value.

    Returns:
        Feature to the parameters that may refer to a result because of it.
    """
    wanted: dict[Parameter, str] = {}
    for spec in specs:
        if spec.parameters is not None:
            properties = spec.parameters.model_json_schema().get("properties", {})
            wanted |= {(spec.name, name): _kind(part) for name, part in properties.items()}
    needed = {need.type for spec in specs for need in spec.requires}
    references: set[Parameter] = set()
    for_each: set[Parameter] = set()
    for spec in specs:
        others = {one: (one[1], kind) for one, kind in wanted.items() if one[0] != spec.name}
        inner = _inner_parts(spec, needed)
        outputs = [(field, part, _kind(part)) for field, part in _outputs(spec)]
        elements = [
            (field.removesuffix("s"), _kind(part["items"]))
            for field, part, kind in outputs
            if kind == "array" and part.get("items")
        ]
        for one, other in others.items():
            if any(_part_fits(part, other, by_name) for part in inner) or any(
                _fits(field, kind, other, by_name) for field, _, kind in outputs
            ):
                references.add(one)
            # The fields of an object are named by the model.
            if any(k == "object" or _fits(field, k, other, by_name) for field, k in elements):
                for_each.add(one)
    found = {"references": references, "for_each": for_each}
    usable = {feature: frozenset(fitting) for feature, fitting in found.items() if fitting}
    return usable | ({"inputs": frozenset()} if _several_fit(specs) else {})


def _several_fit(specs: Sequence[CapabilitySpec]) -> bool:
    """Tell whether several results may fit one input."""
    producers = Counter(kind for spec in specs for kind in spec.provides)
    return any(
        need.cardinality != "one" or producers[need.type] > 1 or need.type in spec.provides
        for spec in specs
        for need in spec.requires
    )


def _inner_parts(spec: CapabilitySpec, needed: Collection[str]) -> list[tuple[str, Any]]:
    """Return what a path can reach inside of the outputs; an input of others is no such output."""
    known = {kind.CONTEXT_TYPE for kind in spec.context_types}.union(needed)
    found = [inner for field, part in _outputs(spec) for inner in _inside(field, part)]
    return found + [("", {}) for kind in spec.provides if kind not in known]


def _outputs(spec: CapabilitySpec) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the fields of what a capability provides, each with its schema."""
    for kind in spec.context_types:
        if kind.CONTEXT_TYPE not in spec.provides:
            continue
        try:
            schema = kind.model_json_schema()
        except Exception:  # noqa: S112 - a type without a schema fits no parameter
            continue
        defs = schema.get("$defs", {})
        fields = schema.get("properties", {})
        if issubclass(kind, ValueContext) and value_fields(kind):
            inner = _resolved(fields.get("value", {}), defs)
            fields = inner.get("properties", fields)
        for name, part in fields.items():
            yield name, {"$defs": defs, **_resolved(part, defs)}


def _inside(field: str, part: Mapping[str, Any], depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield what a path can reach inside of an output; an empty schema where anything may be."""
    defs = part.get("$defs", {})
    part = _resolved(dict(part), defs)
    kind, more = part.get("type"), part.get("additionalProperties", True)
    if not part.keys() - {"title", "description", "$defs"}:
        yield field, {}
    elif depth < _DEEPEST and kind in ("array", "object"):
        parts = {field: part.get("items", {})} if kind == "array" else part.get("properties", {})
        if kind == "object" and not parts and more:
            parts = {"": more if isinstance(more, dict) else {}}
        for name, one in parts.items():
            yield from _inside(name, {"$defs": defs, **_resolved(one, defs)}, depth + 1)
    elif depth:
        yield field, part


def _part_fits(part: tuple[str, Any], other: tuple[str, str], by_name: bool) -> bool:
    (field, schema), (name, wanted) = part, other
    if not schema:
        return wanted not in ("choice", "boolean") and (not by_name or "_" in name)
    # The ID of an element, such as "id", fits "hotel_id".
    same = f"_{name}".lower().endswith(f"_{field}".lower()) and "_" in name
    return _fits(field, _kind(schema), other, by_name=False) and (same or not by_name)


def _resolved(part: dict[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    name = str(part.get("$ref", "")).rpartition("/")[2]
    return defs.get(name, part) if name else part


def _kind(part: Mapping[str, Any]) -> str:
    if "anyOf" in part:
        kinds = [_kind(form) for form in part["anyOf"] if form != _NULL]
        return kinds[0] if len(set(kinds)) == 1 else ""
    if "enum" in part or "const" in part:
        return "choice"
    return "number" if part.get("type") == "integer" else str(part.get("type", ""))


def _fits(field: str, kind: str, other: tuple[str, str], by_name: bool) -> bool:
    name, wanted = other
    if kind != wanted or kind in ("", "choice"):
        return False
    # A name of several words, such as customer_id, says what it is; name or text does not.
    return not by_name or (name.lower() == field.lower() and (kind != "string" or "_" in name))
