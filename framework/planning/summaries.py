"""Summaries of finished and missing steps, for answers and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ValidationError
from capgraph.base.value_context import LIST_SUFFIX
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.person_message import is_readable, readable_text
from capgraph.planning.references import FROM, step_reads
from capgraph.state import ContextTypes, summarize_context

if TYPE_CHECKING:
    from capgraph.planning.strategies import StepSummary

_MAX_COPIES = 10
ANSWER = "ANSWER"
"""``CONTEXT_CATEGORY`` of results that the answer includes even if later steps use them."""


def step_summaries(state: Mapping[str, Any], types: ContextTypes) -> tuple[StepSummary, ...]:
    """Summarize the finished steps of a plan, in plan order."""
    from capgraph.planning.strategies import StepSummary

    steps = (state.get("planning_execution_plan") or {}).get("steps") or []
    results = state.get("execution_step_results") or {}
    data = state.get("capability_context_data") or {}
    keys = {step.get("context_key", "") for step in steps}
    used = {
        # A role does not determine the type of the result.
        (read.label if read.label in data else FROM, read.key)
        for step in steps
        if step["capability"] not in TERMINAL_STEPS
        for read in step_reads(step, keys)
    }
    found = []
    for step in steps:
        key = step.get("context_key", "")
        record = results.get(key) or {}
        if step["capability"] in TERMINAL_STEPS or not record.get("success"):
            continue
        for kind, stored in (record.get("outputs") or {}).items():
            entry = data.get(kind, {}).get(stored)
            category = _find_category(kind, types)
            summary = summarize_entry(kind, stored, entry, types)
            if record.get("source") == "ledger":
                summary = f"{summary} (This was already done earlier in this turn.)"
            found.append(
                StepSummary(
                    context_key=key,
                    objective=step.get("task_objective", ""),
                    kind=kind,
                    summary=summary,
                    terminal=used.isdisjoint(
                        {(kind, stored), (kind.removesuffix(LIST_SUFFIX), stored), (FROM, stored)}
                    )
                    or category == ANSWER,
                    category=category,
                )
            )
    return tuple(found)


def are_answers(results: Iterable[StepSummary]) -> bool:
    """Return True if the results are already answers in words, possibly with files."""
    categories = {result.category for result in results if result.terminal}
    return ANSWER in categories and categories <= {ANSWER, "ARTIFACT"}


def _find_category(kind: str, types: ContextTypes) -> str:
    return types.get(kind, CapabilityContext).CONTEXT_CATEGORY


def summarize_entry(kind: str, key: str, entry: Any, types: ContextTypes) -> str:
    """Summarize a stored result, or explain why a summary is not available."""
    try:
        return summarize_context(kind, key, entry, types)
    except ValidationError as exc:
        return str(exc)
    except Exception as exc:  # a custom get_summary may raise anything
        return f"{kind}.{key} is there but cannot be put into words: {type(exc).__name__}: {exc}"


def describe_missing_steps(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe each planned step that did not finish, with the reason.

    Returns one line per step. If the plan has only a terminal step, the lines describe the
    capabilities that failed.

    Examples:
        >>> step = {"context_key": "readings", "capability": "read_station"}
        >>> results = {
        ...     "readings": {"success": True, "missing": ["readings[6]"]},
        ...     "readings[6]": {"error": "no signal"},
        ... }
        >>> describe_missing_steps(
        ...     {"planning_execution_plan": {"steps": [step]}, "execution_step_results": results}
        ... )
        ('read station (element 7): no signal',)
    """
    steps = (state.get("planning_execution_plan") or {}).get("steps") or []
    results = state.get("execution_step_results") or {}
    missing = []
    if all(step["capability"] in TERMINAL_STEPS for step in steps):
        missing += [
            _format_missing_step(name.replace("_", " "), cause)
            for name, cause in (state.get("planning_excluded") or {}).items()
        ]
    for step in steps:
        record = results.get(step.get("context_key", "")) or {}
        if step["capability"] in TERMINAL_STEPS:
            continue
        for copy in (record.get("missing") or ())[:_MAX_COPIES]:
            cause = results[copy].get("error")
            missing.append(_format_missing_step(_format_step_name(step, copy), cause))
        if record.get("success"):
            continue
        reason = record.get("error") or "it did not run because an earlier step is missing."
        if "not_needed" in record:
            reason = f"not needed: {record['not_needed']}"
        missing.append(_format_missing_step(_format_step_name(step), reason))
    unplanned = state.get("planning_missing") or {}
    return (
        *missing,
        *(_format_missing_step(key.replace("_", " "), cause) for key, cause in unplanned.items()),
    )


def _format_step_name(step: Mapping[str, Any], iteration_key: str = "") -> str:
    """Return a human-readable name for a step, based on its objective or its capability."""
    objective = str(step.get("task_objective") or "")
    name = objective if is_readable(objective) else step["capability"].replace("_", " ")
    number = iteration_key.removeprefix(str(step.get("context_key", ""))).strip("[]#")
    if not number:
        return name.rstrip(".")
    # Indexes count from zero, and readers count from one.
    element = ", ".join(
        str(int(part) + 1) if part.isdigit() else part for part in number.split("][")
    )
    return f"{name.rstrip('.')} (element {element})"


def _format_missing_step(name: str, reason: Any) -> str:
    return f"{name}: {readable_text(str(reason)) or 'it failed.'}"
