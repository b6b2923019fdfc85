"""Evaluation of a capability's result gate in the stage ``finalize``."""

from __future__ import annotations

from typing import Any

from capgraph.base.ports import Attempt, GateResult
from capgraph.pipeline.result_normalization import NormalizedResult
from capgraph.pipeline.step_execution import StepExecution
from capgraph.state import load_context


async def run_gate(
    execution: StepExecution, attempt: Attempt, normalized: NormalizedResult
) -> GateResult:
    """Evaluate a step's result with the capability's quality gate.

    Raises:
        CapgraphError: The quality of the result is too low. The error's severity decides how
            the turn continues.
    """
    subject = f"the result of {attempt.key!r} ({attempt.capability})"
    gate_result: GateResult = await execution.spec.gate.evaluate_result(
        _find_result_value(execution, attempt, normalized), subject
    )
    return gate_result


def _find_result_value(
    execution: StepExecution, attempt: Attempt, normalized: NormalizedResult
) -> Any:
    """Return the value that the quality gate evaluates.

    This is the value that the capability returned, or the result's context objects.
    """
    short_circuit = attempt.short_circuit
    if short_circuit is not None and (short_circuit.is_emitted or short_circuit.source != "cache"):
        return short_circuit.value
    if short_circuit is None and (returned := execution.attempt_state.body_result) is not None:
        stored = execution.attempt_state.stored_outputs
        return returned.value if returned.value is not None or not stored else stored[-1]
    types = execution.config.registry.context_types
    objects = {
        kind: load_context(kind, key, data, types)
        for kind, entries in normalized.contexts.items()
        for key, data in entries.items()
    }
    return (
        next(iter(objects.values())) if len(objects) == 1 else objects or dict(normalized.updates)
    )
