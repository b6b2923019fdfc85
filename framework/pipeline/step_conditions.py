"""Decision whether a step is needed, after all steps that it reads have ended.

A step that it reads may have no result: it was not needed, failed although optional, or was
skipped. The reading step runs without an optional input and without some inputs of a ``many`` role.
Without any other input it is skipped.
"""

from __future__ import annotations

from typing import Any

from capgraph.base.plan import PlannedStep
from capgraph.base.spec import CapabilitySpec
from capgraph.pipeline.finalize import SkippedStep
from capgraph.planning.conditions import MISSING, describe_condition, evaluate_condition
from capgraph.planning.references import reference_key, resolve_reference, step_reads
from capgraph.state import ContextTypes, TurnView


def resolve_condition(
    spec: CapabilitySpec, step: PlannedStep, view: TurnView, types: ContextTypes
) -> PlannedStep | SkippedStep:
    """Evaluate a step's ``when`` condition, and remove inputs that come from skipped steps.

    The result is the step with its available inputs, or the reason to skip the step.

    Args:
        spec: Declarations of the capability.
        step: Planned step.
        view: Current state of the turn.
        types: Registered context types.

    Raises:
        ValidationError: The condition cannot be evaluated. The severity is REPLANNING.
    """
    results, condition = view.results, step.get("when")
    reads = list(step_reads(step, view.steps_by_key))
    absent = {
        r.key for r in reads if r.key in view.steps_by_key and _is_skipped(results.get(r.key))
    }
    if condition:

        def value_of(text: str) -> Any:
            lost_keys = reference_key(text, view.steps_by_key) in absent
            return MISSING if lost_keys else resolve_reference(text, view.contexts, types)

        holds_now = evaluate_condition(condition, value_of)
        if holds_now is False:
            return SkippedStep(
                f"{describe_condition(condition)} does not hold.", is_not_needed=True
            )
        if holds_now is None:
            lost_keys = {r.key for r in reads if r.path[0] == "when"} & absent
            return _create_skipped_step(
                lost_keys,
                view,
                f"the condition {describe_condition(condition)} cannot be evaluated: ",
            )
    if not absent:
        return step
    kinds = {requirement.label: requirement.cardinality for requirement in spec.requires}
    named: dict[str, set[str]] = {}
    for read in reads:
        if read.path[0] != "when":
            named.setdefault(read.label, set()).add(read.key)
    missing_keys: set[str] = set()
    for label, keys in named.items():
        kind = kinds.get(label, "one")
        if kind == "one" or (kind == "many" and keys <= absent):
            missing_keys |= keys & absent
    if missing_keys:
        return _create_skipped_step(missing_keys, view)
    entries = [{k: v for k, v in e.items() if v not in absent} for e in step.get("inputs") or ()]
    return {**step, "inputs": [entry for entry in entries if entry]}


def _is_skipped(record: Any) -> bool:
    return bool(record) and bool(record.get("skipped"))


def _create_skipped_step(keys: set[str], view: TurnView, prefix: str = "") -> SkippedStep:
    """Create the result of a step that is skipped because it reads from skipped steps."""
    lost = sorted(key for key in keys if not view.results[key].get("not_needed"))
    if not lost:
        names = ", ".join(map(repr, sorted(keys)))
        return SkippedStep(
            f"{prefix}it reads {names}, which the plan does not need.", is_not_needed=True
        )
    return SkippedStep(f"{prefix}it reads {', '.join(map(repr, lost))}, which is missing.")
