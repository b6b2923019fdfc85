"""Reuse of finished results when a plan is replaced."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, NotRequired

from typing_extensions import TypedDict

from capgraph.base import ExecutionPlan, PlanError
from capgraph.planning.catalog import TERMINAL_STEPS
from capgraph.planning.plan_access import plan_steps, step_capability, step_key
from capgraph.planning.references import StepRead, element_name, step_reads
from capgraph.planning.schedule import recorded_order


def fingerprints(plan: ExecutionPlan) -> dict[str, str]:
    """Compute a fingerprint of each step, which identifies its work across plans.

    Two steps have the same fingerprint if they run the same capability with the same parameters on the
    same inputs for the same output:

    - An input is identified by the work that produces it, so renaming or reordering steps changes
      nothing. A stored context is identified by its type and key.
    - The objective is compared only for a step without parameters, ignoring case and spacing.
    - Identical steps of one plan are distinguished by their context keys, because running a step twice
      is not the same as running it once.

    Fingerprints do not change in retries, restarts, and replays, so idempotency keys contain them.

    Args:
        plan: Valid plan.

    Returns:
        Fingerprints by context key, in plan order.

    Raises:
        PlanError: A step is not JSON-serializable.

    >>> one = {"steps": [{"context_key": "a", "capability": "fetch", "parameters": {"n": 1}}]}
    >>> two = {"steps": [{"context_key": "b", "capability": "fetch", "parameters": {"n": 1}}]}
    >>> fingerprints(one)["a"] == fingerprints(two)["b"]
    True
    """
    steps = _steps_by_key(plan)
    found = _fingerprint_steps(steps, ())
    counts = Counter(found.values())
    twins = {key for key, value in found.items() if counts[value] > 1}
    return _fingerprint_steps(steps, twins) if twins else found


def _fingerprint_steps(steps: Mapping[str, Any], twins: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, step in steps.items():
        inputs = sorted(
            [read.label, found.get(read.key, f"stored {read.key}")]
            for read in _find_work_reads(step, steps)
        )
        own_name = [key] if key in twins else []
        found[key] = _hash_content([*_step_content(step), inputs, *own_name], step)
    return found


def _step_content(step: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a step that determine its work, apart from its inputs."""
    parameters = step.get("parameters") or {}
    text = step.get("task_objective")
    if not isinstance(text, str) or parameters:
        text = ""
    objective = " ".join(text.casefold().split()).rstrip(".!? ")
    alias, more = element_name(step), [step["for_each"]] if step.get("for_each") else []
    if alias is not None:
        pairs = (pair for entry in step.get("inputs") or () for pair in entry.items())
        more += [label for label, key in pairs if key == alias]
    return [step_capability(step), parameters, step.get("expected_output"), objective, *more]


def _hash_content(content: object, step: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise PlanError(
            f"The step {step.get('context_key')!r} is not JSON-serializable: {exc}.",
            fix="Validate the plan with check_plan before using it.",
        ) from exc
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CarryOver(NamedTuple):
    """Results of a replaced plan that the new plan reuses.

    Attributes:
        kept: Keys of old steps whose results are reused, by the key of the new step that is
            skipped.
        rerun: Keys of the new steps that must run, in plan order.
        results: State entries of the reused results, keyed by new step.
    """

    kept: dict[str, str]
    rerun: tuple[str, ...]
    results: dict[str, Any]

    def context_updates(
        self, context_data: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return a state update that stores the reused results under the new steps' keys.

        Args:
            context_data: Current value of ``capability_context_data`` in the graph state.
        """
        moved: dict[str, dict[str, Any]] = {}
        for new, old in self.kept.items():
            for kind, contexts in context_data.items():
                if new != old and old in contexts:
                    moved.setdefault(kind, {})[new] = contexts[old]
        return moved


def carry_over(
    old_plan: ExecutionPlan | None, new_plan: ExecutionPlan, step_results: Mapping[str, Any]
) -> CarryOver:
    """Match the steps of a new plan to finished results of the plan it replaces.

    A result is reused if the new step does the same work on the same inputs, including all
    upstream steps. Its context key may differ. A result is not reused if the step depends on a
    step that runs again, through its inputs or through state keys that it may read. The
    terminal step always runs again. If several old steps did the same work, the step with the
    same key is preferred, followed by the first step whose key is not used by a different new
    step.

    Args:
        old_plan: Plan to replace, or ``None``.
        new_plan: Valid plan that replaces the old one.
        step_results: State entries of the old plan's steps, by context key. An entry with
            ``{"success": True}`` is finished.

    >>> old = {"steps": [{"context_key": "a", "capability": "fetch"}]}
    >>> new = {"steps": [{"context_key": "z", "capability": "fetch"},
    ...                  {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "z"}]}]}
    >>> carried = carry_over(old, new, {"a": {"success": True}})
    >>> carried.kept, carried.rerun
    ({'z': 'a'}, ('b',))
    """
    finished = {
        key: step
        for key, step in _steps_by_key(old_plan).items()
        if _is_finished(step_results.get(key))
    }
    planned = _steps_by_key(new_plan)
    if not finished:
        return CarryOver(kept={}, rerun=tuple(planned), results={})
    steps_by_work: dict[str, list[str]] = {}
    for key, step in finished.items():
        work = _hash_content([*_step_content(step), _find_read_keys(step, finished, {})], step)
        steps_by_work.setdefault(work, []).append(key)
    new_contents = {key: _hash_content(_step_content(step), step) for key, step in planned.items()}
    old_contents = {key: _hash_content(_step_content(step), step) for key, step in finished.items()}
    reused: dict[str, str] = {}
    predecessors = recorded_order(new_plan)
    for key, step in planned.items():
        reads = {read.key for read in step_reads(step, planned)}.union(predecessors.get(key, ()))
        inputs_reused = all(read in reused or read not in planned for read in reads)
        if not inputs_reused or step_capability(step) in TERMINAL_STEPS:
            continue
        work = _hash_content([*_step_content(step), _find_read_keys(step, planned, reused)], step)
        candidates = steps_by_work.get(work, [])
        unclaimed = [old for old in candidates if new_contents.get(old) != old_contents[old]]
        source = key if key in candidates else next(iter(unclaimed), None)
        if source is not None:
            reused[key] = source
            candidates.remove(source)
    return CarryOver(
        kept=reused,
        rerun=tuple(key for key in planned if key not in reused),
        results={new: step_results[old] for new, old in reused.items()},
    )


def _find_read_keys(
    step: Mapping[str, Any], steps: Collection[str], reused: Mapping[str, str]
) -> list[list[str]]:
    """Return the label and context key of each result that a step's work depends on.

    Keys of reused results are translated to those of the old plan.
    """
    return sorted(
        [read.label, reused.get(read.key, read.key)] for read in _find_work_reads(step, steps)
    )


def _find_work_reads(step: Mapping[str, Any], steps: Collection[str]) -> list[StepRead]:
    """Return the results that affect a step's work.

    Results that only the ``when`` condition reads are excluded.
    """
    return [read for read in step_reads(step, steps) if read.path[0] != "when"]


def _is_finished(record: object) -> bool:
    return isinstance(record, Mapping) and record.get("success") is True


class PlanVersion(TypedDict):
    """Entry of a run's plan history. The history is plain JSON and append-only.

    Attributes:
        version: Number of the version, starting at 1.
        author: Author of the plan, such as ``orchestrator``, ``caller``, or ``approval``.
        reason: Reason for the new version.
        at: ISO timestamp, or ``None`` if it is unknown.
        plan: Plan of this version.
        kept: Old step key of each reused result, by new step key.
        outcome: Outcomes of the previous version's steps, by context key.
        labels: Labels (provenance tags) of the data that the author read, each with its source, by the
            context key of the labeled step.
        model_written: True if the planner chose parameters for the request.
        reads_results: True if the planner read the conversation and the results of earlier turns.
    """

    version: int
    author: str
    reason: str
    at: str | None
    plan: ExecutionPlan
    kept: dict[str, str]
    outcome: dict[str, str]
    labels: NotRequired[dict[str, dict[str, str]]]
    model_written: NotRequired[bool]
    reads_results: NotRequired[bool]


def _steps_by_key(plan: ExecutionPlan | None) -> dict[str, dict[str, Any]]:
    return {step_key(step, index): step for index, step in enumerate(plan_steps(plan))}
