"""The draft of a plan under repair, and the records of the repairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from capgraph.base import ExecutionPlan
from capgraph.planning.catalog import Available, Catalog
from capgraph.planning.parameters import replace_at
from capgraph.planning.problems import (
    MALFORMED_INPUT,
    PARAMETER,
    Path,
    Problem,
    preview,
    render_path,
)
from capgraph.planning.references import FROM, StepRead, iter_path_reads
from capgraph.planning.waits import WAIT_FIELDS

_SAME_VALUE = (MALFORMED_INPUT, PARAMETER)
"""Codes whose repairs write the same value in another form."""

_OMITTED = frozenset(map(preview, (None, "nothing", "no terminal step")))
"""Previous values of the repairs that fill in what a plan leaves out."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Single change that :func:`~capgraph.planning.repair_plan` made to a plan.

    Attributes:
        code: Code of the repaired problem.
        context_key: Key of the changed step, or ``None`` for the plan itself.
        field: Name of the changed field.
        before: Previous value, as text.
        after: New value, as text.
        reason: Explanation of why the new value is the only correct one.

    >>> print(Repair("CG-P04", "a", "capability", "'Fetch'", "'fetch'", "the only near name"))
    [CG-P04] 'a', capability: 'Fetch' became 'fetch' (the only near name)
    """

    code: str
    context_key: str | None
    field: str
    before: str
    after: str
    reason: str

    @property
    def fills_omission(self) -> bool:
        """True if the repair filled in a part that the plan left out, and replaced nothing."""
        return self.before in _OMITTED

    def __str__(self) -> str:
        where = "plan" if self.context_key is None else repr(self.context_key)
        return (
            f"[{self.code}] {where}, {self.field}: {self.before} became {self.after}"
            f" ({self.reason})"
        )


@dataclass(frozen=True, slots=True)
class RepairedPlan:
    """Result of :func:`~capgraph.planning.repair_plan`.

    Attributes:
        plan: Plan after the repairs.
        repairs: Repairs in order of application.
        problems: Remaining problems. A plan with problems must not run.
        inserted: Keys of the steps that were inserted to supply an input.
    """

    plan: ExecutionPlan
    repairs: tuple[Repair, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    inserted: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the plan can run."""
        return not self.problems


@dataclass
class PlanDraft:
    """Mutable copy of a plan's steps, to which repairs are applied.

    Attributes:
        steps: Copies of the plan's steps.
        catalog: Capabilities that the plan may use.
        available: Stored context keys by type.
        max_steps: Maximum number of steps.
        additions_only: True if names, keys, and inputs in the plan must not be replaced.
        open_suppliers: True if a supplier may be inserted before its parameters are known.
        repairs: Repairs applied so far.
        inserted: Keys of the inserted steps.
    """

    steps: list[dict[str, Any]]
    catalog: Catalog
    available: Available
    max_steps: int
    additions_only: bool = False
    open_suppliers: bool = False
    repairs: list[Repair] = field(default_factory=list)
    inserted: list[str] = field(default_factory=list)

    def used_keys(self) -> set[str]:
        """Return all context keys that are already taken, which a new step must not use."""
        keys = {key for step in self.steps if isinstance(key := step.get("context_key"), str)}
        for stored in self.available.values():
            keys.update(stored)
        return keys

    def record(
        self, code: str, step: int | None, path: Path, before: object, after: object, reason: str
    ) -> None:
        """Record a change to the plan in ``repairs``.

        Args:
            code: Code of the repaired problem.
            step: Index of the changed step, or ``None`` for the plan itself.
            path: Path of the changed value.
            before: Previous value.
            after: New value.
            reason: Explanation of why the new value is the only correct one.
        """
        key = None if step is None else self.steps[step].get("context_key")
        self.repairs.append(
            Repair(
                code,
                key if isinstance(key, str) else None,
                render_path(path),
                preview(before),
                preview(after),
                reason,
            )
        )

    def replace_value(self, code: str, step: int, path: Path, value: object, reason: str) -> bool:
        """Replace one value in a step and record the change.

        Return False if nothing changed.

        Args:
            code: Code of the repaired problem.
            step: Index of the step.
            path: Path of the value in the step.
            value: New value.
            reason: Explanation of why the new value is the only correct one.
        """
        before: Any = self.steps[step]
        for part in path:
            before = before.get(part) if isinstance(before, dict) else before[part]
        if before == value and type(before) is type(value):
            return False
        if self.additions_only and before not in (None, "") and code not in _SAME_VALUE:
            return False
        self.steps[step] = replace_at(self.steps[step], path, value)
        self.record(code, step, path, before, value, reason)
        return True

    def rename_reads(self, reads: Iterable[tuple[int, StepRead]], key: str) -> None:
        """Redirect the given inputs, references, and conditions to a different context key."""
        for index, read in reads:
            step = self.steps[index]
            value: Any = key
            if read.label == FROM:
                text = next(text for path, text in iter_path_reads(step) if path == read.path)
                value = key + text[len(read.key) :]
            if read.path[0] in ("parameters", *WAIT_FIELDS):
                value = {FROM: value}
            self.steps[index] = replace_at(step, read.path, value)
