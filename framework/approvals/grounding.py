"""Detection of ungrounded parameters: values in a step's parameters that a model invented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from langchain_core.messages import SystemMessage

from capgraph.base.errors import ValidationError
from capgraph.base.plan import plan_key
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.clock import current_clock
from capgraph.planning import recipe_of
from capgraph.planning.grounding import GroundingSources, find_ungrounded_values, possible_today
from capgraph.planning.parameters import validated_parameters
from capgraph.planning.references import step_reads
from capgraph.registry import Registry
from capgraph.state import TurnView


def is_model_plan(view: TurnView) -> bool:
    """Return True if the current plan of the turn was written by a model."""
    history = view.state.get("planning_history") or []
    return bool(history and history[-1].get("model_written"))


def is_grounding_checked(spec: CapabilitySpec, view: TurnView) -> bool:
    """Return True if a capability's parameters must be checked for values that the model invented.

    The check applies to capabilities with an effect when a model wrote the plan.
    """
    return spec.effect != "none" and is_model_plan(view)


def ungrounded_parameters(
    step: Mapping[str, Any],
    values: Mapping[str, Any],
    view: TurnView,
    registry: Registry,
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the parameter values of a step that a model invented, by path.

    Invented values are called ungrounded. A value is grounded if it occurs in the conversation,
    in a result that the step or the planner reads, or among declared values. Plans from callers
    and edits by approvers are always grounded.

    Args:
        step: Planned step.
        values: Validated parameter values of the step.
        view: View of the turn.
        registry: Registry of the agent.
        inputs: Input data of the step. Defaults to the stored results to which the step refers.
    """
    spec = registry.capabilities.get(step["capability"])
    planned = view.steps_by_key.get(plan_key(step["context_key"]))
    if spec is None or planned is None or not is_grounding_checked(spec, view):
        return {}
    if planned["capability"] != spec.name:
        return {}
    texts = [str(m.text) for m in view.messages if not isinstance(m, SystemMessage)]
    results = [inputs] if inputs is not None else list(_iterate_inputs(planned, view))
    results += _iterate_planner_results(view)
    grounds = GroundingSources(texts, results, possible_today(current_clock().now()))
    declared = [
        *_iterate_recipe_values(spec.name, registry),
        *_iterate_user_values(spec.name, view),
    ]
    parameters: Any = planned.get("parameters") or {}
    ungrounded = find_ungrounded_values(spec, values, parameters, grounds, declared)
    return {item.path: item.value for item in ungrounded}


def ungrounded_steps(view: TurnView, registry: Registry) -> dict[str, dict[str, Any]]:
    """Find the ungrounded parameters in all steps of the current plan.

    Ungrounded values were invented by the model. They are returned by context key and path.
    """
    found = {}
    for step in view.steps:
        spec = registry.capabilities.get(step["capability"])
        values: Any = step.get("parameters") or {}
        with suppress(ValidationError):  # references are not resolved yet
            values = validated_parameters(spec, values)[1] if spec is not None else values
        if ungrounded := ungrounded_parameters(step, values, view, registry):
            found[step["context_key"]] = ungrounded
    return found


def describe_ungrounded(values: Mapping[str, Any]) -> str:
    """Format a warning for the approver about parameter values that the model invented.

    >>> describe_ungrounded({"to": "Ada"})
    "Ungrounded: to='Ada'. Neither the conversation nor a result that the step reads contains it."
    """
    listed = ", ".join(f"{path}={value!r:.200}" for path, value in values.items())
    it = "it" if len(values) == 1 else "them"
    return (
        f"Ungrounded: {listed}. Neither the conversation nor a result that the step reads contains"
        f" {it}."
    )


def _iterate_inputs(step: Mapping[str, Any], view: TurnView) -> Iterator[Any]:
    keys = {read.key for read in step_reads(step)}
    for entries in view.contexts.values():
        yield from (data for key, data in entries.items() if key in keys)


def _iterate_planner_results(view: TurnView) -> Iterator[Any]:
    """Yield the stored results from which the planner may have copied values.

    These are the results reviewed in the current turn, or all results if the planner reads the
    conversation.
    """
    history = view.state.get("planning_history") or []
    if history and history[-1].get("reads_results"):
        for entries in view.contexts.values():
            yield from entries.values()
        return
    for record in view.results.values():
        for kind, key in (record.get("outputs") or {}).items() if record.get("looked") else ():
            yield view.contexts.get(kind, {}).get(key)


def _iterate_recipe_values(capability: str, registry: Registry) -> Iterator[Any]:
    """Yield the values that recipes (stored plans) set for a capability."""
    for spec in registry.capabilities.values():
        recipe = recipe_of(spec)
        for step in recipe.steps if recipe is not None else ():
            if step.get("capability") == capability:
                yield from _iterate_scalars(step.get("parameters") or {})


def _iterate_user_values(capability: str, view: TurnView) -> Iterator[Any]:
    """Yield the values that users set for a capability in earlier plans of the turn."""
    for version in view.state.get("planning_history") or []:
        for step in [] if version.get("model_written") else version["plan"]["steps"]:
            if step["capability"] == capability:
                yield from _iterate_scalars(step.get("parameters") or {})


def _iterate_scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_scalars(item)
    else:
        yield value
