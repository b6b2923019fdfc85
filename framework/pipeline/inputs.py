"""Resolution of a planned step's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ErrorSeverity, ValidationError
from capgraph.base.plan import PlannedStep
from capgraph.base.spec import CapabilitySpec
from capgraph.base.value_context import LIST_SUFFIX, ValueContext, list_item_types
from capgraph.state import ContextTypes, load_context


def resolve_inputs(
    spec: CapabilitySpec,
    step: PlannedStep,
    context_data: Mapping[str, Mapping[str, Any]],
    types: ContextTypes,
    own_values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load and validate the inputs of a planned step.

    Args:
        spec: Declarations of the capability.
        step: Planned step.
        context_data: Stored results by type and key.
        types: Registered context types.
        own_values: Current element of the ``for_each`` list, by the element's name.

    Returns:
        Inputs by role or context type: an object, a list of objects (``many``), or ``None``
        (missing optional input).

    Raises:
        ValidationError: An input is missing or invalid. The severity is REPLANNING, because a
            different plan may supply the input.
    """
    named: dict[str, list[str]] = {}
    kinds = {requirement.label: requirement.type for requirement in spec.requires}
    for entry in step.get("inputs") or []:
        for label, key in entry.items():
            named.setdefault(label, []).append(key)
            if key in (own_values or {}):
                kind, value = kinds.get(label, label), (own_values or {})[key]
                if issubclass(types.get(kind, CapabilityContext), ValueContext):
                    value = {"value": value}
                context_data = {**context_data, kind: {**context_data.get(kind, {}), key: value}}
    inputs: dict[str, Any] = {}
    for requirement in spec.requires:
        keys = named.pop(requirement.label, [])
        if requirement.cardinality == "many":
            lists = [
                _load_contexts(spec, requirement.type, key, context_data, types) for key in keys
            ]
            inputs[requirement.label] = [item for items in lists for item in items]
            continue
        values = [_load_context(spec, requirement.type, key, context_data, types) for key in keys]
        if len(values) == 1:
            inputs[requirement.label] = values[0]
        elif not values and requirement.cardinality == "optional":
            inputs[requirement.label] = None
        elif values or step.get("context_key"):
            raise ValidationError(
                f"Step {step.get('context_key')!r} has {len(values)} inputs {requirement.label}:"
                f" {spec.name!r} requires one.",
                fix=f"give the step exactly one input {requirement.label} of type {requirement.type}.",
                severity=ErrorSeverity.REPLANNING,
            )
    for kind, keys in named.items():
        values = [v for key in keys for v in _load_contexts(spec, kind, key, context_data, types)]
        alone = len(keys) == 1 and keys[0] in context_data.get(kind, {})
        inputs[kind] = values[0] if alone else values
    return inputs


def _load_contexts(
    spec: CapabilitySpec,
    kind: str,
    key: str,
    context_data: Mapping[str, Mapping[str, Any]],
    types: ContextTypes,
) -> list[Any]:
    """Load a single context object, or all elements if the stored result is a list."""
    if key in context_data.get(kind + LIST_SUFFIX, {}):
        return list(_load_context(spec, kind + LIST_SUFFIX, key, context_data, types))
    if key not in context_data.get(kind, {}):
        for listed, item in list_item_types(types.values()).items():
            if item == kind and key in context_data.get(listed, {}):
                return list(_load_context(spec, listed, key, context_data, types).value)
    return [_load_context(spec, kind, key, context_data, types)]


def _load_context(
    spec: CapabilitySpec,
    kind: str,
    key: str,
    context_data: Mapping[str, Mapping[str, Any]],
    types: ContextTypes,
) -> Any:
    stored = context_data.get(kind, {})
    if key not in stored:
        raise ValidationError(
            f"Input {kind}.{key} of {spec.name!r} is missing: the stored keys are {sorted(stored)}.",
            fix="plan a step that provides it first.",
            severity=ErrorSeverity.REPLANNING,
        )
    return load_context(kind, key, stored[key], types)
