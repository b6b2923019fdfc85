"""Stage ``validate``: resolves inputs and validates parameters, defaults filled in.

What leaves here is what is shown, agreed to, keyed and run; nothing below rewrites it.
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
from capgraph.pipeline.finalize import SkippedStep, failed_record, skipped_record
from capgraph.pipeline.inputs import resolve_inputs
from capgraph.pipeline.step_conditions import resolve_condition
from capgraph.pipeline.step_execution import StepExecution, StepResult
from capgraph.pipeline.step_waits import check_wait
from capgraph.planning.parameters import validated_parameters
from capgraph.planning.references import iter_references, resolve_reference, resolve_references
from capgraph.state import ContextTypes, TurnView


async def validate(job: StepExecution, attempt: Attempt) -> Attempt | StepResult:
    """Give the attempt its inputs and parameters, or fail it; where it has to wait, say so."""
    try:
        found = await _resolve_step(job, attempt)
    except GraphBubbleUp:
        raise
    except Exception as exc:
        return await failed_record(job, attempt, exc)
    return skipped_record(job, attempt, found) if isinstance(found, SkippedStep) else found


async def sync_parameters(job: StepExecution, attempt: Attempt) -> Attempt | StepResult:
    """Bring parameters and their plain form together after a middleware changed one of them."""
    try:
        return _sync_values(job, attempt)
    except Exception as exc:
        return await failed_record(job, attempt, exc)


async def _resolve_step(
    job: StepExecution, attempt: Attempt
) -> Attempt | SkippedStep | ApprovalRequest:
    types = job.config.registry.context_types
    step = resolve_condition(job.spec, attempt.step, job.view, types)
    if isinstance(step, SkippedStep):
        return step
    given = await check_wait(job, attempt, step)
    if isinstance(given, ApprovalRequest):
        return given
    found = attempt if step is attempt.step else replace(attempt, step=step)
    return resolve_attempt(found, job.spec, job.view, types, given)


def resolve_attempt(
    attempt: Attempt,
    spec: CapabilitySpec,
    view: TurnView,
    types: ContextTypes,
    own_values: Mapping[str, Any] | None = None,
) -> Attempt:
    """Return an attempt with its inputs and parameters, validated, defaults filled in.

    Args:
        attempt: The attempt.
        spec: Its capability.
        view: The turn.
        types: The registered types.
        own_values: What only this step can refer to, by name.

    Raises:
        ValidationError: They are not there, or do not fit.
    """
    contexts, step = view.contexts, attempt.step
    inputs = resolve_inputs(spec, step, contexts, types, attempt.element_values)
    given = step.get("parameters") or {}
    if any(iter_references(given)):
        own_values = {**attempt.element_values, **(own_values or {})}
        given = resolve_references(given, contexts, types, own_values)
        step = {**step, "parameters": given}
    parameters, values = validated_parameters(spec, given)
    return replace(attempt, step=step, inputs=inputs, parameters=parameters, values=values)


async def list_elements(job: StepExecution, attempt: Attempt) -> list[Any] | StepRecord:
    """Return for what a step runs, each by itself; or its record, where it cannot run."""
    types = job.config.registry.context_types
    of, bound = (attempt.step.get("for_each") or {})["of"], job.config.limits.max_elements
    try:
        step = resolve_condition(job.spec, attempt.step, job.view, types)
        if isinstance(step, SkippedStep):
            return skipped_record(job, attempt, step)
        found = resolve_reference(of, job.view.contexts, types)
        if isinstance(found, list) and len(found) <= bound:
            return found
        cause = (
            f"a list of {len(found):,}" if isinstance(found, list) else f"{found!r:.80}, no list"
        )
        raise ValidationError(
            f"The step {attempt.key!r} runs for each of {of}, which is {cause}.",
            fix=f"Name a list of at most {bound:,} elements (limits.max_elements), or do it in parts.",
            severity=ErrorSeverity.REPLANNING,
        )
    except ValidationError as exc:
        return await failed_record(job, attempt, exc)


def _sync_values(job: StepExecution, attempt: Attempt) -> Attempt:
    values, changed = dict(attempt.values), attempt.parameters
    if isinstance(changed, BaseModel):
        changed = changed.model_dump(mode="json")
    if isinstance(changed, dict) and changed != values:
        # The one that differs from what the step says is the one that was changed.
        _, planned = validated_parameters(job.spec, attempt.step.get("parameters") or {})
        values = changed if values == planned else values
    parameters, values = validated_parameters(job.spec, values)
    return replace(attempt, parameters=parameters, values=values)
