"""Whether a step is needed, once all that it reads has ended.

What it reads may never come to be: the step that would give it is not needed itself, failed and was
optional, or was skipped. A step does without an optional input, and without some of many; without
anything else that it reads it cannot run.
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
    """Return a step with the inputs that there are, or why nobody will run it.

    Args:
        spec: Its capability.
        step: The step.
        view: The turn as it stands.
        types: The registered types.

    Raises:
        ValidationError: Its condition cannot be judged; the severity is REPLANNING.
    """
    results, condition = view.results, step.get("when")
    reads = list(step_reads(step, view.steps_by_key))
    absent = {
        r.key for r in reads if r.key in view.steps_by_key and _is_skipped(results.get(r.key))
    }
    if condition:

        def value_of(text: str) -> Any:
            gone = reference_key(text, view.steps_by_key) in absent
            return MISSING if gone else resolve_reference(text, view.contexts, types)

        held = evaluate_condition(condition, value_of)
        if held is False:
            return SkippedStep(
                f"{describe_condition(condition)} does not hold.", is_not_needed=True
            )
        if held is None:
            gone = {r.key for r in reads if r.path[0] == "when"} & absent
            return _missing_inputs(
                gone, view, f"nobody knows whether {describe_condition(condition)}: "
            )
    if not absent:
        return step
    kinds = {need.label: need.cardinality for need in spec.requires}
    named: dict[str, set[str]] = {}
    for read in reads:
        if read.path[0] != "when":
            named.setdefault(read.label, set()).add(read.key)
    lost: set[str] = set()
    for label, keys in named.items():
        kind = kinds.get(label, "one")
        if kind == "one" or (kind == "many" and keys <= absent):
            lost |= keys & absent
    if lost:
        return _missing_inputs(lost, view)
    entries = [{k: v for k, v in e.items() if v not in absent} for e in step.get("inputs") or ()]
    return {**step, "inputs": [entry for entry in entries if entry]}


def _is_skipped(record: Any) -> bool:
    return bool(record) and bool(record.get("skipped"))


def _missing_inputs(keys: set[str], view: TurnView, prefix: str = "") -> SkippedStep:
    """Say that a step cannot do without results that will never be there."""
    lost = sorted(key for key in keys if not view.results[key].get("not_needed"))
    if not lost:
        names = ", ".join(map(repr, sorted(keys)))
        return SkippedStep(f"{prefix}it reads {names}, which is not needed.", is_not_needed=True)
    return SkippedStep(f"{prefix}it reads {', '.join(map(repr, lost))}, which is missing.")
