"""A plan under repair, and the record of what was done to it."""

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
"""Repairs that write the same value in another form."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change that :func:`~capgraph.planning.repair_plan` made.

    Attributes:
        code: Code of the problem that it mends.
        context_key: Key of the step that was changed; ``None`` for the plan as a whole.
        field: The place that was changed.
        before: What stood there, as text.
        after: What stands there now, as text.
        reason: Why this is the one right answer.

    >>> print(Repair("CG-P04", "a", "capability", "'Fetch'", "'fetch'", "the only near name"))
    [CG-P04] 'a', capability: 'Fetch' became 'fetch' (the only near name)
    """

    code: str
    context_key: str | None
    field: str
    before: str
    after: str
    reason: str

    def __str__(self) -> str:
        where = "plan" if self.context_key is None else repr(self.context_key)
        return (
            f"[{self.code}] {where}, {self.field}: {self.before} became {self.after}"
            f" ({self.reason})"
        )


@dataclass(frozen=True, slots=True)
class RepairedPlan:
    """The outcome of a repair.

    Attributes:
        plan: The plan after the repairs.
        repairs: What was done, in order.
        problems: What is still wrong; a plan with a problem must not start.
        inserted: Keys of the steps that were added because another step needs their result.
    """

    plan: ExecutionPlan
    repairs: tuple[Repair, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    inserted: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the plan can run."""
        return not self.problems


@dataclass
class PlanDraft:
    """The steps being repaired; they are the draft's own copies.

    With ``additions_only``, names, keys, and inputs that the author wrote are never replaced. With
    ``open_suppliers``, a supplier is inserted even if its parameters have yet to be given.
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
        """Return every context key that a new step must not take."""
        taken = {key for step in self.steps if isinstance(key := step.get("context_key"), str)}
        for stored in self.available.values():
            taken.update(stored)
        return taken

    def record(
        self, code: str, step: int | None, path: Path, before: object, after: object, reason: str
    ) -> None:
        """Record one change."""
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
        """Replace one value of a step and record it; ``False`` when it is there already."""
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
        """Have some inputs, references and conditions name another key."""
        for index, read in reads:
            step = self.steps[index]
            value: Any = key
            if read.label == FROM:
                text = next(text for path, text in iter_path_reads(step) if path == read.path)
                value = key + text[len(read.key) :]
            if read.path[0] in ("parameters", *WAIT_FIELDS):
                value = {FROM: value}
            self.steps[index] = replace_at(step, read.path, value)
