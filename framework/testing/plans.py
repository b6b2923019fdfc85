"""Assertions about plans that say everything that differs at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from framework.planning import CLOSING, Available, Catalog, check_plan, dependencies


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
    reading = _Reading(steps, found)
    for first, second in before:
        if (pair := reading.pair(first, second)) and pair[0] not in reading.waits(pair[1]):
            found.append(f"{second!r} does not wait for {first!r}.")
    for first, second in parallel:
        if (pair := reading.pair(first, second)) and (
            pair[0] in reading.waits(pair[1]) or pair[1] in reading.waits(pair[0])
        ):
            found.append(
                f"{first!r} and {second!r} do not run in parallel: one waits for the other."
            )
    reading.compare("inputs", inputs or {})
    reading.compare("parameters", parameters or {})
    if registry is not None:
        found += [str(problem) for problem in check_plan(plan, registry, available)]
    if found:
        listed = "\n".join(f"  {line}" for line in found)
        raise AssertionError(f"The plan is not as expected:\n{listed}\nPlan: {_in_words(steps)}")


class _Reading:
    """Finds steps by either name and knows what waits for what."""

    def __init__(self, steps: list[Mapping[str, Any]], found: list[str]) -> None:
        self._steps = steps
        self._found = found
        self._needs: Mapping[str, set[str]] | None = None

    def key(self, name: str) -> str | None:
        keys = [s["context_key"] for s in self._steps if s.get("context_key") == name]
        keys = keys or [s["context_key"] for s in self._steps if s.get("capability") == name]
        if len(keys) == 1:
            return str(keys[0])
        what = "no step" if not keys else f"{len(keys)} steps"
        self._found.append(f"{name!r} names {what}.")
        return None

    def pair(self, first: str, second: str) -> tuple[str, str] | None:
        keys = (self.key(first), self.key(second))
        return (keys[0], keys[1]) if keys[0] is not None and keys[1] is not None else None

    def waits(self, key: str) -> set[str]:
        if self._needs is None:
            self._needs = dependencies({"steps": self._steps})  # type: ignore[typeddict-item]
        seen: set[str] = set()
        pending = [key]
        while pending:
            new = self._needs[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    def compare(self, field: str, expected: Mapping[str, Mapping[str, Any]]) -> None:
        for name, wanted in expected.items():
            key = self.key(name)
            if key is None:
                continue
            step = next(s for s in self._steps if s["context_key"] == key)
            given = step.get(field) or {}
            pairs = (
                [pair for entry in given for pair in entry.items()]
                if isinstance(given, list)
                else list(given.items())
            )
            missing = {k: v for k, v in wanted.items() if (k, v) not in pairs}
            if missing:
                self._found.append(f"{name!r} has {field} {given}, without {missing}.")


def _in_words(steps: list[Mapping[str, Any]]) -> str:
    words = []
    for step in steps:
        links = ", ".join(f"{k}: {v}" for e in step.get("inputs") or [] for k, v in e.items())
        taken = f"({links})" if links else ""
        words.append(f"{step.get('context_key')}={step.get('capability')}{taken}")
    return ", ".join(words) or "no steps"
