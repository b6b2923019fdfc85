"""Keeping what is done when a plan is replaced."""

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


def fingerprints(plan: ExecutionPlan) -> dict[str, str]:
    """Give every step a stable name for the work it does.

    Two steps have the same fingerprint when they run the same capability with the same
    parameters on the same inputs for the same output. Inputs count by what makes them, not by
    what they are called, so neither new names nor another order of the steps change anything;
    a stored context counts by its type and key. The objective counts, apart from case and
    spacing, for a step without parameters, because nothing else says what it is to do; with
    parameters it is a comment. Doing something twice is not doing it once: for equal steps of
    one plan, and only for them, the key counts too.

    The value therefore survives retries, restarts and replays, and differs as soon as the step
    really does something else: it is the part of an idempotency key that names the step.

    Args:
        plan: A plan that checks clean.

    Returns:
        Fingerprints by step key, in plan order.

    Raises:
        PlanError: A step holds something that is not JSON.

    >>> one = {"steps": [{"context_key": "a", "capability": "fetch", "parameters": {"n": 1}}]}
    >>> two = {"steps": [{"context_key": "b", "capability": "fetch", "parameters": {"n": 1}}]}
    >>> fingerprints(one)["a"] == fingerprints(two)["b"]
    True
    """
    steps = _by_key(plan)
    found = _prints(steps, ())
    counts = Counter(found.values())
    twins = {key for key, value in found.items() if counts[value] > 1}
    return _prints(steps, twins) if twins else found


def _prints(steps: Mapping[str, Any], twins: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, step in steps.items():
        inputs = sorted(
            [read.label, found.get(read.key, f"stored {read.key}")] for read in _work(step, steps)
        )
        own_name = [key] if key in twins else []
        found[key] = _digest([*_content(step), inputs, *own_name], step)
    return found


def _content(step: Mapping[str, Any]) -> list[Any]:
    """Return what a step does, without its inputs."""
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


def _digest(content: object, step: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise PlanError(
            f"The step {step.get('context_key')!r} is not plain JSON: {exc}.",
            fix="Run check_plan before the plan is used.",
        ) from exc
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CarryOver(NamedTuple):
    """Which finished results of an old plan serve a new one.

    Attributes:
        kept: For each step of the new plan that need not run, the step of the old plan whose
            result it takes; the two keys are mostly the same.
        rerun: Keys of the new plan's steps that have to run, in plan order.
        results: The records that count as finished under the new plan, by its keys. Any other
            old record of the same key belongs to a step that has to run again.
    """

    kept: dict[str, str]
    rerun: tuple[str, ...]
    results: dict[str, Any]

    def context_updates(
        self, context_data: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return the contexts to store again because their step has another key now.

        Args:
            context_data: ``capability_context_data`` as it stands.
        """
        moved: dict[str, dict[str, Any]] = {}
        for new, old in self.kept.items():
            for kind, contexts in context_data.items():
                if new != old and old in contexts:
                    moved.setdefault(kind, {})[new] = contexts[old]
        return moved


def carry_over(
    old_plan: ExecutionPlan | None,
    new_plan: ExecutionPlan,
    step_results: Mapping[str, Any],
) -> CarryOver:
    """Find the steps of a new plan that are done already.

    A finished result is kept when the new step does the same work on the same inputs, all the
    way up; it may have another key. A step is never kept when one of its suppliers runs again,
    nor is the closing step. Where several old steps did the same work, the one of the same key
    counts, else the first that no other new step is named after.

    Args:
        old_plan: The plan that is replaced.
        new_plan: The plan that takes its place; it must check clean.
        step_results: The old plan's records by context key; ``{"success": True}`` is finished.

    >>> old = {"steps": [{"context_key": "a", "capability": "fetch"}]}
    >>> new = {"steps": [{"context_key": "z", "capability": "fetch"},
    ...                  {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "z"}]}]}
    >>> carried = carry_over(old, new, {"a": {"success": True}})
    >>> carried.kept, carried.rerun
    ({'z': 'a'}, ('b',))
    """
    finished = {
        key: step for key, step in _by_key(old_plan).items() if _finished(step_results.get(key))
    }
    planned = _by_key(new_plan)
    if not finished:
        return CarryOver(kept={}, rerun=tuple(planned), results={})
    doers: dict[str, list[str]] = {}
    for key, step in finished.items():
        work = _digest([*_content(step), _read(step, finished, {})], step)
        doers.setdefault(work, []).append(key)
    own = {key: _digest(_content(step), step) for key, step in planned.items()}
    old_own = {key: _digest(_content(step), step) for key, step in finished.items()}
    kept: dict[str, str] = {}
    for key, step in planned.items():
        fed = all(r.key in kept or r.key not in planned for r in step_reads(step, planned))
        if not fed or step_capability(step) in TERMINAL_STEPS:
            continue
        work = _digest([*_content(step), _read(step, planned, kept)], step)
        candidates = doers.get(work, [])
        free = [old for old in candidates if own.get(old) != old_own[old]]
        source = key if key in candidates else next(iter(free), None)
        if source is not None:
            kept[key] = source
            candidates.remove(source)
    return CarryOver(
        kept=kept,
        rerun=tuple(key for key in planned if key not in kept),
        results={new: step_results[old] for new, old in kept.items()},
    )


def _read(
    step: Mapping[str, Any], steps: Collection[str], kept: Mapping[str, str]
) -> list[list[str]]:
    """Return what a step reads, by the names that the old plan used."""
    return sorted([read.label, kept.get(read.key, read.key)] for read in _work(step, steps))


def _work(step: Mapping[str, Any], steps: Collection[str]) -> list[StepRead]:
    """Return what a step reads for its work; whether it was needed does not change that."""
    return [read for read in step_reads(step, steps) if read.path[0] != "when"]


def _finished(record: object) -> bool:
    return isinstance(record, Mapping) and record.get("success") is True


class PlanVersion(TypedDict):
    """One entry of a run's plan history: plain JSON, only ever appended.

    Attributes:
        version: Counts from 1.
        author: Who wrote the plan, e.g. ``orchestrator``, ``caller`` or ``approval``.
        reason: Why it was written.
        at: When, as ISO text; ``None`` when the caller gave no time.
        plan: The plan.
        kept: Steps whose finished results were taken over, new key to old key.
        outcome: What the steps of the version before had come to, by key.
        labels: Labels of what its author had before him, each with its source, by the key of the
            steps whose words carry them.
        model_written: True if a planner wrote it that chooses parameters for the request.
        reads_results: True if the planner read the conversation with the results of earlier turns.
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


def _by_key(plan: ExecutionPlan | None) -> dict[str, dict[str, Any]]:
    return {step_key(step, index): step for index, step in enumerate(plan_steps(plan))}
