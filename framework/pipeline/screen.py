"""Stage ``screen``: resolves inputs and validates parameters, defaults filled in.

What leaves here is what is shown, agreed to, keyed and run; nothing below rewrites it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel

from framework.base.ports import Attempt
from framework.pipeline.inputs import resolve_inputs
from framework.pipeline.job import Inner, Job, Result
from framework.pipeline.settle import failed_record
from framework.planning.parameters import validated_parameters
from framework.planning.references import references_of, resolve_references


async def screen(job: Job, attempt: Attempt, inner: Inner) -> Result:
    """Give the attempt its inputs and parameters, or fail it."""
    try:
        inputs = resolve_inputs(
            job.spec, attempt.step, job.view.contexts, job.runner.registry.context_types
        )
        given = attempt.step.get("parameters") or {}
        step = attempt.step
        if any(references_of(given)):
            types = job.runner.registry.context_types
            given = resolve_references(given, job.view.contexts, types)
            step = {**step, "parameters": given}
        parameters, values = validated_parameters(job.spec, given)
    except GraphBubbleUp:
        raise
    except Exception as exc:
        return failed_record(job, attempt, exc)
    ready = replace(attempt, step=step, inputs=inputs, parameters=parameters, values=values)
    result: Result = await inner(job, ready)
    return result


async def leave(job: Job, attempt: Attempt, inner: Inner) -> Result:
    """Bring parameters and their plain form together after a middleware changed one of them."""
    values: Any = attempt.values
    if isinstance(attempt.parameters, BaseModel):
        dumped = attempt.parameters.model_dump(mode="json")
        if dumped != values:
            # The one that differs from what the step says is the one that was changed.
            _, planned = validated_parameters(job.spec, attempt.step.get("parameters") or {})
            values = dumped if values == planned else values
    elif isinstance(attempt.parameters, dict) and attempt.parameters != values:
        planned = attempt.step.get("parameters") or {}
        values = attempt.parameters if values == planned else values
    try:
        parameters, values = validated_parameters(job.spec, dict(values))
    except GraphBubbleUp:
        raise
    except Exception as exc:
        return failed_record(job, attempt, exc)
    result: Result = await inner(job, replace(attempt, parameters=parameters, values=values))
    return result
