"""Assertions about plans that say everything that differs at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from framework.planning import CLOSING, Available, Catalog, check_plan, dependencies
from framework.planning.graphs import reachable_from


def assert_plan(
    plan: Mapping[str, Any],
    *,
    capabilities: Sequence[str] | None = None,
    before: Iterable[tuple[str, str]] = (),
    parallel: Iterable[tuple[str, str]] = (),
    inputs: Mapping[str, Mapping[str, str]] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    registry: Catalog | None = None,
    available: Available | None = None,
) -> None:
    """Check a plan; steps are named by their capability or by their context key.

    Args:
        plan: A plan, or the output of a graph that holds one.
        capabilities: The capabilities in the plan's order, without the closing step.
        before: Pairs of which the second waits for the first, directly or not.
        parallel: Pairs of which neither waits for the other.
        inputs: Step to ``{context type: context key}`` that it takes; others may be there too.
        parameters: Step to parameters that it has; others may be there too.
        registry: Also check the plan as the graph would, against these capabilities.
        available: Stored context data for that check.

    Raises:
        AssertionError: The plan differs; the message lists every difference and the plan.

    >>> plan = {"steps": [
    ...     {"context_key": "a", "capability": "fetch"},
    ...     {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "a"}]},
    ...     {"context_key": "c", "capability": "respond"},
    ... ]}
    >>> assert_plan(plan, capabilities=["fetch", "sum"], before=[("fetch", "sum")])
    >>> assert_plan(plan, parallel=[("fetch", "sum")])
    Traceback (most recent call last):
        ...
    AssertionError: The plan is not as expected:
      'fetch' and 'sum' do not run in parallel: one waits for the other.
    Plan: a=fetch, b=sum(DATA: a), c=respond
    """
    plan = plan.get("planning_execution_plan") or plan
    steps = list(plan.get("steps") or [])
    found: list[str] = []
    planned = [s.get("capability") for s in steps if s.get("capability") not in CLOSING]
    if capabilities is not None and planned != list(capabilities):
        found.append(f"It runs {planned}, not {list(capabilities)}.")
    found += _order_problems(steps, before, parallel)
    found += _field_problems(steps, "inputs", inputs or {})
    found += _field_problems(steps, "parameters", parameters or {})
    if registry is not None:
        found += [str(problem) for problem in check_plan(plan, registry, available)]
    if found:
        listed = "\n".join(f"  {line}" for line in found)
        raise AssertionError(f"The plan is not as expected:\n{listed}\nPlan: {_in_words(steps)}")


def _key_of(steps: Sequence[Mapping[str, Any]], name: str, found: list[str]) -> str | None:
    """Return the key of the step that is meant by its key or its capability."""
    keys = [s["context_key"] for s in steps if s.get("context_key") == name]
    keys = keys or [s["context_key"] for s in steps if s.get("capability") == name]
    if len(keys) == 1:
        return str(keys[0])
    found.append(f"{name!r} names {f'{len(keys)} steps' if keys else 'no step'}.")
    return None


def _order_problems(
    steps: list[Any], before: Iterable[tuple[str, str]], parallel: Iterable[tuple[str, str]]
) -> list[str]:
    pairs = [(True, *pair) for pair in before] + [(False, *pair) for pair in parallel]
    needs = dependencies({"steps": steps}) if pairs else {}
    found: list[str] = []
    for ordered, first, second in pairs:
        one, other = _key_of(steps, first, found), _key_of(steps, second, found)
        if one is None or other is None:
            continue
        waits = one in reachable_from([other], needs)
        if ordered and not waits:
            found.append(f"{second!r} does not wait for {first!r}.")
        elif not ordered and (waits or other in reachable_from([one], needs)):
            found.append(
                f"{first!r} and {second!r} do not run in parallel: one waits for the other."
            )
    return found


def _field_problems(
    steps: list[Any], field: str, expected: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    found: list[str] = []
    for name, wanted in expected.items():
        key = _key_of(steps, name, found)
        step = next((s for s in steps if s["context_key"] == key), {field: wanted})
        given = step.get(field) or {}
        entries = given if isinstance(given, list) else [given]
        there = [pair for entry in entries for pair in entry.items()]
        missing = {k: v for k, v in wanted.items() if (k, v) not in there}
        if missing:
            found.append(f"{name!r} has {field} {given}, without {missing}.")
    return found


def _in_words(steps: list[Mapping[str, Any]]) -> str:
    words = []
    for step in steps:
        links = ", ".join(f"{k}: {v}" for e in step.get("inputs") or [] for k, v in e.items())
        taken = f"({links})" if links else ""
        words.append(f"{step.get('context_key')}={step.get('capability')}{taken}")
    return ", ".join(words) or "no steps"
