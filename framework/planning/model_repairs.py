"""Repairs of malformed plans from models, applied before a plan is checked.

These repairs apply only to plans that a model wrote. A caller's plan is never changed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel

from capgraph.base import CapabilitySpec
from capgraph.helpers.plain_data import json_values
from capgraph.planning import problems as codes
from capgraph.planning.catalog import Available, Catalog
from capgraph.planning.draft import Repair
from capgraph.planning.name_matching import closest_name, fold_name
from capgraph.planning.plan_access import is_too_deep
from capgraph.planning.schema_shapes import Shape

_MAX_ROUNDS = 40  # more than the maximum depth of a plan
_MAX_STEPS_READ = 1000


class ModelRepair(NamedTuple):
    """Common mistake in model-generated plans that is repaired automatically.

    Attributes:
        name: Name of the repair in events.
        original_form: Description of the mistake.
        repaired_form: Description of the plan after the repair.
        codes: Problem codes that the repair resolves. Empty for a repair before validation.
    """

    name: str
    original_form: str
    repaired_form: str
    codes: tuple[str, ...] = ()


MODEL_REPAIRS: tuple[ModelRepair, ...] = (
    ModelRepair("fenced_json", "JSON inside a code fence or a sentence", "the JSON alone"),
    ModelRepair(
        "call_wrapper",
        '{"name": "ExecutionPlan", "arguments": {"steps": [...]}}',
        '{"steps": [...]}',
    ),
    ModelRepair(
        "call_as_step",
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        '{"capability": "weather", "parameters": {"city": "Oslo"}}',
    ),
    ModelRepair("list_as_plan", '[{"capability": "weather"}]', '{"steps": [...]}'),
    ModelRepair("step_as_plan", '{"capability": "weather"}', '{"steps": [{...}]}'),
    ModelRepair("step_as_list", '"steps": {"capability": "weather"}', '"steps": [{...}]'),
    ModelRepair("text_as_json", '"steps": "[{...}]", "when": "{...}"', "the list, the object"),
    ModelRepair("list_as_object", '"when": [{...}], "parameters": [{...}]', "its only element"),
    ModelRepair(
        "placeholder",
        '"when": {}, "for_each": [], "wait_until": "", "wait_for": "none"',
        "the field is omitted",
    ),
    ModelRepair(
        "schema_wrapper",
        '"parameters": {"properties": {"city": "Oslo"}, "required": ["city"]}',
        '"parameters": {"city": "Oslo"}',
    ),
    ModelRepair(
        "schema_as_value",
        '"city": {"type": "string", "default": "Oslo"}',
        '"city": "Oslo"; without a default, the parameter is omitted',
    ),
    ModelRepair("parameter_name", '"From Unit": "kg"', '"from_unit": "kg"'),
    ModelRepair(
        "choice_form", '"day": "Tomorrow", with the choices today and tomorrow', '"tomorrow"'
    ),
    ModelRepair(
        "null_parameter",
        '"day": null, for a non-nullable parameter with a default',
        "the parameter is omitted",
    ),
    ModelRepair(
        "needless_inputs",
        '"inputs": ["42 kilometers"], which names no step and no stored result',
        "the texts are omitted",
    ),
    ModelRepair(
        "capability_name",
        '"Find Customer", "find-customer"',
        '"find_customer"',
        (codes.UNKNOWN_CAPABILITY,),
    ),
    ModelRepair("parameter_form", '"value": "42"', '"value": 42', (codes.PARAMETER,)),
    ModelRepair(
        "step_order",
        "a step before the step that supplies its input",
        "the steps in the correct order",
        (codes.LATER_STEP,),
    ),
    ModelRepair(
        "input_form",
        '"inputs": {"CUSTOMER": "ada"}, "inputs": ["ada"]',
        '"inputs": [{"CUSTOMER": "ada"}]',
        (codes.MALFORMED_INPUT,),
    ),
    ModelRepair(
        "missing_input",
        "a step without its input, if only one step can supply it",
        "the input from that step",
        (codes.MISSING_INPUT, codes.NO_SUPPLIER, codes.TYPE_MISMATCH),
    ),
    ModelRepair(
        "missing_supplier",
        "no step for an input that only one capability supplies",
        "the plan with that step; the model is asked for its parameters only",
    ),
    ModelRepair(
        "unasked_effect",
        "an effect that the request does not ask for, from a small model",
        "no steps; the answer lists the agent's capabilities",
    ),
)
"""Every repair of a plan that a model wrote, in order of application."""

_BY_CODE = MappingProxyType({code: row.name for row in MODEL_REPAIRS for code in row.codes})
_PLAN_FIELDS = ("steps", "answer")
_CALL_NAMES = ("name", "tool", "function", "capability")
_CALL_ARGUMENTS = ("arguments", "args", "parameters")
_OBJECTS = ("when", "for_each", "parameters")
_EMPTY_MEANS_ABSENT = (
    "when",
    "for_each",
    "wait_until",
    "wait_for",
    "timeout",
    "optional",
    "look_again",
)
_FLAGS = ("optional", "look_again")
_NO_TEXT = ("", "none", "null")
_SCHEMA_WORDS = frozenset(
    ["type", "default", "const", "enum", "title", "description", "minimum", "maximum", "format"]
)
_SCHEMA_FIELDS = frozenset(
    ["properties", "required", "type", "additionalProperties", "title", "description"]
)


class ParsedPlan(NamedTuple):
    """Plan that was parsed from a model's reply, with the repairs that were applied.

    Attributes:
        plan: Repaired plan, or the original reply if it contains no plan.
        repairs: Number of times that each repair was applied, by repair name.
    """

    plan: Any
    repairs: Mapping[str, int]


def count_repairs(repairs: Iterable[Repair]) -> Counter[str]:
    """Count the repairs applied to a plan, by repair name.

    >>> dict(count_repairs([Repair("CG-P14", None, "steps", "a > b", "b > a", "order")]))
    {'step_order': 1}
    """
    return Counter(_BY_CODE[repair.code] for repair in repairs if repair.code in _BY_CODE)


def parse_model_plan(
    reply: object, catalog: Catalog, available: Available | None = None
) -> ParsedPlan:
    """Parse a plan from a model's reply and repair common mistakes.

    A well-formed plan is returned unchanged. A truncated reply is not completed, because the
    result could be a partial plan.

    Args:
        reply: Reply of the model, as a string or as plain data. The reply is not modified.
        catalog: Capabilities that the plan may use.
        available: Stored context keys by type.

    >>> from capgraph.base import CapabilitySpec
    >>> from capgraph.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(CapabilitySpec("weather", "Tell the weather."))
    >>> found = parse_model_plan(
    ...     '{"name": "ExecutionPlan", "arguments": {"steps": [{"capability": "weather", "when": {}}]}}',
    ...     catalog,
    ... )
    >>> found.plan
    {'steps': [{'capability': 'weather'}]}
    >>> dict(found.repairs)
    {'call_wrapper': 1, 'placeholder': 1}
    """
    reader = _PlanParser(catalog, available or {})
    plan: Any = reader.parse_text(reply) if isinstance(reply, str) else reply
    if plan is None or is_too_deep(plan):
        return ParsedPlan(reply, {})
    for _ in range(_MAX_ROUNDS):
        before = reader.repairs.total()
        plan = reader.unwrap_plan(plan)
        if reader.repairs.total() == before:
            break
    steps = plan.get("steps") if isinstance(plan, dict) else None
    if not isinstance(steps, list):
        # A reply without a plan is returned unchanged, since the model sees it again.
        is_answer = isinstance(plan, dict) and "answer" in plan
        return ParsedPlan(plan if is_answer else reply, {})
    reader.note_step_keys(steps)
    repaired = [*map(reader.parse_step, steps[:_MAX_STEPS_READ]), *steps[_MAX_STEPS_READ:]]
    changed = any(new is not old for new, old in zip(repaired, steps, strict=True))
    return ParsedPlan({**plan, "steps": repaired} if changed else plan, reader.repairs)


@dataclass
class _PlanParser:
    """Parser for a single model reply that counts the repairs it applies."""

    catalog: Catalog
    available: Available
    step_keys: set[str] = field(default_factory=set)
    repairs: Counter[str] = field(default_factory=Counter)

    def parse_text(self, reply: str) -> Any:
        """Parse the JSON in a model's reply.

        Multiple function calls are returned as a list of steps.
        """
        values = json_values(reply)
        calls = [value for value in values if self._as_step(value) is not None]
        if not values or (len(values) > 1 and len(calls) < len(values)):
            return None  # several plans are ambiguous
        if not reply.lstrip().startswith(("{", "[")) or not reply.rstrip().endswith(("}", "]")):
            self.repairs["fenced_json"] += 1
        return values[0] if len(values) == 1 else values

    def unwrap_plan(self, plan: Any) -> Any:
        """Remove the object, list, or function call that wraps a plan."""
        if isinstance(plan, list) and all(isinstance(step, dict) for step in plan):
            if len(plan) == 1 and isinstance(plan[0].get("steps"), list):
                self.repairs["list_as_object"] += 1
                return plan[0]
            self.repairs["list_as_plan"] += 1
            return {"steps": plan}
        if not isinstance(plan, dict):
            return plan
        if "steps" in plan:
            return self._unwrap_steps(plan)
        if (inner := _unwrap_call(plan)) is not None:
            self.repairs["call_wrapper"] += 1
            return inner
        if self._as_step(plan) is not None:
            self.repairs["step_as_plan"] += 1
            return {"steps": [plan]}
        return plan

    def _unwrap_steps(self, plan: dict[str, Any]) -> dict[str, Any]:
        steps = plan["steps"]
        if isinstance(steps, str):
            values = json_values(steps)
            if len(values) == 1 and steps.strip()[:1] in ("[", "{"):
                self.repairs["text_as_json"] += 1
                return {**plan, "steps": values[0]}
        elif isinstance(steps, dict) and self._as_step(steps) is not None:
            self.repairs["step_as_list"] += 1
            return {**plan, "steps": [steps]}
        return plan

    def _as_step(self, value: Any) -> dict[str, Any] | None:
        """Convert a step or a capability call to a step, or return ``None`` for other objects."""
        if not isinstance(value, dict) or not value.keys().isdisjoint(_PLAN_FIELDS):
            return None
        if isinstance(value.get("capability"), str) and not value.keys() & {"arguments", "args"}:
            return value
        name_keys = [key for key in _CALL_NAMES if isinstance(value.get(key), str)]
        argument_keys = [key for key in _CALL_ARGUMENTS if key in value]
        if len(name_keys) != 1 or len(argument_keys) != 1:
            return None
        name, arguments = value[name_keys[0]], value[argument_keys[0]]
        if closest_name(name, self.catalog.capabilities) is None:
            return None
        rest = {
            key: item for key, item in value.items() if key not in (name_keys[0], argument_keys[0])
        }
        rest = {key: item for key, item in rest.items() if (key, item) != ("type", "function")}
        return {"capability": name, "parameters": arguments, **rest}

    def parse_step(self, step: Any) -> Any:
        """Repair a step so that it has the form of ``PlannedStep``.

        A well-formed step is returned unchanged.
        """
        for _ in range(_MAX_ROUNDS):
            before = self.repairs.total()
            step = self._repair_step(step)
            if self.repairs.total() == before:
                break
        return step

    def _repair_step(self, step: Any) -> Any:
        found = self._as_step(step)
        if found is None:
            return step
        if found is not step:
            self.repairs["call_as_step"] += 1
        new = dict(found)
        for name in _OBJECTS:
            if name in new:
                new[name] = self._unwrap_object(new[name])
        for name in _EMPTY_MEANS_ABSENT:
            if name in new and (
                _is_placeholder(new[name]) or (name in _FLAGS and new[name] is None)
            ):
                self.repairs["placeholder"] += 1
                del new[name]
        if needless := self._find_needless_inputs(new):
            self.repairs["needless_inputs"] += 1
            new["inputs"] = [entry for entry in new["inputs"] if entry not in needless]
        if isinstance(new.get("parameters"), dict):
            new["parameters"] = self._repair_parameters(new)
        return step if new == step and _have_same_types(new, step) else new

    def _capability_spec(self, step: Mapping[str, Any]) -> CapabilitySpec | None:
        name = step.get("capability")
        near = closest_name(name, self.catalog.capabilities) if isinstance(name, str) else None
        return None if near is None else self.catalog.capabilities[near]

    def note_step_keys(self, steps: Iterable[Any]) -> None:
        """Collect the keys and numbers of a plan's steps."""
        for number, step in enumerate(steps, 1):
            if not isinstance(step, Mapping):
                continue
            spec = self._capability_spec(step)
            named = [
                number,
                step.get("context_key"),
                *((spec.name, *spec.provides) if spec else ()),
            ]
            self.step_keys.update(fold_name(str(name)) for name in named if name is not None)

    def _find_needless_inputs(self, step: Mapping[str, Any]) -> list[str]:
        """Return the texts in a step's inputs that name no result.

        If a capability has no inputs, all texts are needless.
        """
        spec, inputs = self._capability_spec(step), step.get("inputs")
        if spec is None or not isinstance(inputs, list):
            return []
        texts = [entry for entry in inputs if isinstance(entry, str)]
        if not spec.requires:
            return texts
        stored = {key for keys in self.available.values() for key in keys}
        return [text for text in texts if text.strip() not in stored | self.step_keys]

    def _unwrap_object(self, value: Any) -> Any:
        """Unwrap an object that is encoded as a JSON string or is the only item of a list."""
        if isinstance(value, str) and value.lstrip().startswith("{"):
            values = json_values(value)
            if len(values) == 1 and isinstance(values[0], dict):
                self.repairs["text_as_json"] += 1
                value = values[0]
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            self.repairs["list_as_object"] += 1
            value = value[0]
        return value

    def _repair_parameters(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the JSON schema keywords that a model wrapped around parameter values."""
        values = dict(step["parameters"])
        spec = self._capability_spec(step)
        model = spec.parameters if spec is not None else None
        if model is None:
            return values
        shape = Shape.from_model(model, "validation")
        inner = values.get("properties")
        if (
            isinstance(inner, dict)
            and values.keys() <= _SCHEMA_FIELDS
            and shape.at_path(("properties",)) is None
        ):
            self.repairs["schema_wrapper"] += 1
            values = dict(inner)
        values = self._rename_to_declared(values, shape)
        for key, value in list(values.items()):
            if (choice := _find_matching_choice(shape, key, value)) is not None:
                self.repairs["choice_form"] += 1
                values[key] = choice
            elif _is_schema(value) and not _takes_objects(shape, key):
                self.repairs["schema_as_value"] += 1
                known = [value[word] for word in ("const", "default") if word in value]
                values = {k: v for k, v in values.items() if k != key}
                values |= {key: known[0]} if known else {}
            elif value is None and _is_needless_null(model, shape, key):
                self.repairs["null_parameter"] += 1
                del values[key]
        return values

    def _rename_to_declared(self, values: dict[str, Any], shape: Shape) -> dict[str, Any]:
        """Rename misspelled parameters to their declared names.

        Only differences in case and separators are corrected.
        """
        named: dict[str, Any] = {}
        for key, value in values.items():
            plain = fold_name(str(key))
            known = [name for name in shape.field_names if fold_name(name) == plain]
            free = len(known) == 1 and known[0] not in values and known[0] not in named
            if free and plain and shape.at_path((key,)) is None:
                self.repairs["parameter_name"] += 1
                key = known[0]
            named[key] = value
        return named


def _find_matching_choice(shape: Shape, name: str, value: Any) -> str | None:
    """Return the unique schema choice that equals a string apart from case and separators."""
    found = shape.at_path((name,)) if isinstance(value, str) and fold_name(value) else None
    forms = found.alternatives() if found is not None else []
    if not forms or any(not {"enum", "const"} & form.schema.keys() for form in forms):
        return None
    choices = [c for f in forms for c in [*f.schema.get("enum", ()), f.schema.get("const")]]
    texts = [choice for choice in choices if isinstance(choice, str)]
    near = [choice for choice in texts if fold_name(choice) == fold_name(value)]
    return near[0] if len(near) == 1 and value not in texts else None


def _unwrap_call(plan: dict[str, Any]) -> dict[str, Any] | None:
    """Return the plan nested inside a function call or a single-key wrapper object."""
    argument_keys = [key for key in ("arguments", "args", "parameters") if key in plan]
    name_keys = [key for key in ("name", "tool", "function") if isinstance(plan.get(key), str)]
    if (
        len(argument_keys) == 1
        and len(name_keys) == 1
        and plan.keys() <= {*argument_keys, *name_keys, "type", "id"}
    ):
        inner = plan[argument_keys[0]]
    elif len(plan) == 1:
        [inner] = plan.values()
    else:
        return None
    if isinstance(inner, str):
        values = json_values(inner)
        inner = values[0] if len(values) == 1 else None
    is_plan = isinstance(inner, dict) and isinstance(inner.get("steps"), (list, dict))
    return inner if is_plan else None


def _is_placeholder(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().casefold() in _NO_TEXT
    return isinstance(value, (dict, list)) and not value


def _is_schema(value: Any) -> bool:
    """Return True if a parameter value is itself a JSON schema instead of plain data."""
    return (
        isinstance(value, dict)
        and bool(value.keys() & {"type", "enum", "const", "default"})
        and value.keys() <= _SCHEMA_WORDS
    )


def _takes_objects(shape: Shape, name: str) -> bool:
    found = shape.at_path((name,))
    return found is not None and any(
        form.json_type in ("object", None) for form in found.alternatives()
    )


def _is_needless_null(model: type[BaseModel], shape: Shape, name: str) -> bool:
    """Return True if null is invalid for an optional parameter, so it can be removed."""
    for own, info in model.model_fields.items():
        if name in (own, info.alias, info.validation_alias):
            found = shape.at_path((name,)) or shape.at_path((own,))
            forms = [] if found is None else list(found.alternatives())
            kinds = {form.json_type for form in forms}
            return not info.is_required() and bool(kinds) and kinds.isdisjoint({"null", None})
    return False


def _have_same_types(values: Mapping[str, Any], other_values: Mapping[str, Any]) -> bool:
    """Return True if the values of two mappings have the same type for each key.

    This distinguishes 1 from True, which Python considers equal.
    """
    return all(type(values[key]) is type(other_values[key]) for key in values)
