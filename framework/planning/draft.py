"""A plan under repair, and the record of what was done to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from framework.base import ExecutionPlan
from framework.planning.catalog import Available, Catalog
from framework.planning.problems import Path, Problem, preview, render_path
from framework.planning.view import PlanView


@dataclass(frozen=True, slots=True)
class Repair:
    """One change that :func:`~framework.planning.repair_plan` made.

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
    """

    plan: ExecutionPlan
    repairs: tuple[Repair, ...] = ()
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the plan can run."""
        return not self.problems


@dataclass
class Draft:
    """The steps being repaired; they are the draft's own copies."""

    steps: list[dict[str, Any]]
    catalog: Catalog
    available: Available
    active: Collection[str] | None
    max_steps: int
    repairs: list[Repair] = field(default_factory=list)

    def view(self) -> PlanView:
        """Read the steps as they stand now."""
        return PlanView(self.steps, self.catalog, self.available, self.active)

    def keys(self) -> set[str]:
        """Return every context key that a new step must not take."""
        taken = {key for step in self.steps if isinstance(key := step.get("context_key"), str)}
        for stored in self.available.values():
            taken.update(stored)
        return taken

    def note(
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

    def set_field(self, code: str, step: int, name: str, value: object, reason: str) -> bool:
        """Replace one field of a step and record it; ``False`` when it has the value already."""
        before = self.steps[step].get(name)
        if before == value:
            return False
        self.steps[step][name] = value
        self.note(code, step, (name,), before, value, reason)
        return True

    def inputs_of(self, step: int) -> list[Any]:
        """Return a step's inputs as a list that may be changed."""
        inputs = self.steps[step].get("inputs")
        copied = [dict(entry) if isinstance(entry, dict) else entry for entry in inputs or ()]
        self.steps[step]["inputs"] = copied
        return copied

    def rename_inputs(self, renamed: dict[tuple[int, str, str], str]) -> None:
        """Give inputs other keys; each is named by step, context type and present key."""
        for index in sorted({step for step, _, _ in renamed}):
            for entry in self.inputs_of(index):
                if isinstance(entry, dict):
                    for context_type, key in entry.items():
                        if isinstance(key, str):
                            entry[context_type] = renamed.get((index, context_type, key), key)
