"""Stage ``validate``: resolve inputs and validate parameters.

The attempt that leaves this stage is shown to a person, approved, used for keys, and run. Inner
stages cannot change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel

from capgraph.base.errors import ErrorSeverity, ValidationError
from capgraph.base.ports import ApprovalRequest, Attempt, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.pipeline.finalize import SkippedStep, create_skipped_record, failed_record
from capgraph.pipeline.inputs import resolve_inputs
from capgraph.pipeline.step_conditions import resolve_condition
from capgraph.pipeline.step_execution import StepExecution, StepResult
from capgraph.pipeline.step_waits import check_wait
from capgraph.planning.parameters import validated_parameters
from capgraph.planning.references import iter_references, resolve_reference, resolve_references
from capgraph.state import ContextTypes, TurnView


async def validate(execution: StepExecution, attempt: Attempt) -> Attempt | StepResult:
    """Resolve and validate the inputs and parameters of a step attempt.

    Returns:
        The attempt with inputs and parameters, a failed or skipped record, or a request to
        suspend the step.
    """
    try:
        outcome = await _resolve_step(execution, attempt)
    except GraphBubbleUp:
        raise
    except Exception as exc:
        return await failed_record(execution, attempt, exc)
    return (
        create_skipped_record(execution, attempt, outcome)
        if isinstance(outcome, SkippedStep)
        else outcome
    )


async def sync_parameters(execution: StepExecution, attempt: Attempt) -> Attempt | StepResult:
    """Synchronize a step's parameters with their plain form after middleware changed either."""
    try:
        return _synchronize_values(execution, attempt)
    except Exception as exc:
        return await failed_record(execution, attempt, exc)


async def _resolve_step(
    execution: StepExecution, attempt: Attempt
) -> Attempt | SkippedStep | ApprovalRequest:
    types = execution.config.registry.context_types
    step = resolve_condition(execution.spec, attempt.step, execution.view, types)
    if isinstance(step, SkippedStep):
        return step
    event = await check_wait(execution, attempt, step)
    if isinstance(event, ApprovalRequest):
        return event
    resolved_attempt = attempt if step is attempt.step else replace(attempt, step=step)
    return resolve_attempt(resolved_attempt, execution.spec, execution.view, types, event)


def resolve_attempt(
    attempt: Attempt,
    spec: CapabilitySpec,
    view: TurnView,
    types: ContextTypes,
    own_values: Mapping[str, Any] | None = None,
) -> Attempt:
    """Resolve an attempt's inputs and validate its parameters, including defaults.

    Args:
        attempt: Attempt to resolve.
        spec: Declarations of the capability.
        view: Current state of the turn.
        types: Registered context types.
        own_values: Values by name that only this step can reference, such as a list element.

    Raises:
        ValidationError: An input or a parameter is missing or invalid.
    """
    contexts, step = view.contexts, attempt.step
    inputs = resolve_inputs(spec, step, contexts, types, attempt.element_values)
    parameters_input = step.get("parameters") or {}
    if any(iter_references(parameters_input)):
        own_values = {**attempt.element_values, **(own_values or {})}
        parameters_input = resolve_references(parameters_input, contexts, types, own_values)
        step = {**step, "parameters": parameters_input}
    parameters, values = validated_parameters(spec, parameters_input)
    return replace(attempt, step=step, inputs=inputs, parameters=parameters, values=values)


async def list_elements(execution: StepExecution, attempt: Attempt) -> list[Any] | StepRecord:
    """Return a ``for_each`` step's list elements, or its record if the step cannot run."""
    types = execution.config.registry.context_types
    reference, max_elements = (
        (attempt.step.get("for_each") or {})["of"],
        execution.config.limits.max_elements,
    )
    try:
        step = resolve_condition(execution.spec, attempt.step, execution.view, types)
        if isinstance(step, SkippedStep):
            return create_skipped_record(execution, attempt, step)
        value = resolve_reference(reference, execution.view.contexts, types)
        if isinstance(value, list) and len(value) <= max_elements:
            return value
        cause = (
            f"has {len(value):,} elements"
            if isinstance(value, list)
            else f"is {value!r:.80}, not a list"
        )
        raise ValidationError(
            f"Invalid 'for_each' of step {attempt.key!r}: {reference} {cause}.",
            fix=f"use a list of at most {max_elements:,} elements (limits.max_elements).",
            severity=ErrorSeverity.REPLANNING,
        )
    except ValidationError as exc:
        return await failed_record(execution, attempt, exc)


def _synchronize_values(execution: StepExecution, attempt: Attempt) -> Attempt:
    values, changed = dict(attempt.values), attempt.parameters
    if isinstance(changed, BaseModel):
        changed = changed.model_dump(mode="json")
    if isinstance(changed, dict) and changed != values:
        # The form that differs from the planned step is the one that was changed.
        _, planned = validated_parameters(execution.spec, attempt.step.get("parameters") or {})
        values = changed if values == planned else values
    parameters, values = validated_parameters(execution.spec, values)
    return replace(attempt, parameters=parameters, values=values)
