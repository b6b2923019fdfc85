"""What a capability's gate says of its result, inside the stage ``finalize``."""

from __future__ import annotations

from typing import Any

from capgraph.base.ports import Attempt, GateResult
from capgraph.pipeline.result_normalization import NormalizedResult
from capgraph.pipeline.step_execution import StepExecution
from capgraph.state import load_context


async def run_gate(job: StepExecution, attempt: Attempt, found: NormalizedResult) -> GateResult:
    """Let a result pass, perhaps when a person has looked at it.

    Raises:
        CapgraphError: It is not good enough; the severity says what happens then.
    """
    what = f"the result of {attempt.key!r} ({attempt.capability})"
    seen: GateResult = await job.spec.gate.evaluate_result(_value(job, attempt, found), what)
    return seen


def _value(job: StepExecution, attempt: Attempt, found: NormalizedResult) -> Any:
    """Return what the capability returned; of a result that was there already, its objects."""
    given = attempt.short_circuit
    if given is not None and (given.is_emitted or given.source != "cache"):
        return given.value
    if given is None and (returned := job.attempt_state.body_result) is not None:
        stored = job.attempt_state.stored_outputs
        return returned.value if returned.value is not None or not stored else stored[-1]
    types = job.config.registry.context_types
    objects = {
        kind: load_context(kind, key, data, types)
        for kind, entries in found.contexts.items()
        for key, data in entries.items()
    }
    return next(iter(objects.values())) if len(objects) == 1 else objects or dict(found.updates)
