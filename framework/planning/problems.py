"""What can be wrong with a plan: stable codes, and one record for each finding."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from dataclasses import dataclass
from typing import Any, NamedTuple

Path = tuple[str | int, ...]
"""Where in a step a problem sits, e.g. ``("inputs", 0, "DATASET")``."""


class _Preview(reprlib.Repr):
    """A ``repr`` of bounded length that no value can make fail."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 4
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of more than 4300 digits.
        return repr(x) if x.bit_length() < 128 else f"<integer of {x.bit_length()} bits>"


_preview = _Preview()


def preview(value: object) -> str:
    """Render any value in at most a few hundred characters, without raising.

    >>> preview({"a": [1, 2]})
    "{'a': [1, 2]}"
    """
    try:
        return _preview.repr(value)
    except Exception:
        # A foreign object's __repr__ may do anything; the type is still worth naming.
        return f"<{type(value).__name__}>"


def _plain(value: object) -> Any:
    """Keep small JSON scalars as they are; everything else becomes its preview."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= 200 else preview(value)
    if isinstance(value, int):
        return value if value.bit_length() < 64 else preview(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    return preview(value)


def render_path(path: Path) -> str:
    """Write a path the way a person would.

    >>> render_path(("inputs", 0, "DATASET"))
    'inputs[0].DATASET'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if len(part) <= 60 else part[:57] + "..."
            text += f".{shown}" if text else shown
    return text


NO_CORRECTION: Any = object()
"""Stands for the right value where a problem does not have exactly one."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a plan.

    Attributes:
        code: Stable code of the kind of problem, e.g. ``CG-P13``.
        step: Index of the step, or ``None`` when the plan as a whole is meant.
        context_key: The step's key, when it has a usable one.
        path: Where in the step (or plan) the value sits.
        value: The offending value; a short text when it is large or not plain.
        cause: What is wrong with it.
        remedy: What to do about it.
        corrected_value: The one value that is right there; ``NO_CORRECTION`` where there is not just one.

    >>> print(Problem("CG-P04", 0, "a", ("capability",), "fetsh", "is unknown", "use 'fetch'"))
    [CG-P04] step 1 'a', capability 'fetsh': is unknown. Fix: use 'fetch'.
    """

    code: str
    step: int | None
    context_key: str | None
    path: Path
    value: Any
    cause: str
    remedy: str
    corrected_value: Any = dataclasses.field(default=NO_CORRECTION, repr=False, compare=False)

    @property
    def field(self) -> str:
        """Where the value sits, as text."""
        return render_path(self.path)

    def __str__(self) -> str:
        where = "plan" if self.step is None else f"step {self.step + 1}"
        if self.context_key is not None:
            where += f" {self.context_key!r}"
        place = f", {self.field}" if self.path else ""
        return f"[{self.code}] {where}{place} {self.value!r}: {self.cause}. Fix: {self.remedy}."


SHAPE = "CG-P01"
EMPTY = "CG-P02"
TOO_LONG = "CG-P03"
UNKNOWN_CAPABILITY = "CG-P04"
INACTIVE_CAPABILITY = "CG-P05"
INFRASTRUCTURE_STEP = "CG-P06"
TERMINAL_STEP_NOT_LAST = "CG-P07"
NO_TERMINAL_STEP = "CG-P08"
MISSING_KEY = "CG-P09"
MALFORMED_KEY = "CG-P10"
DUPLICATE_KEY = "CG-P11"
MALFORMED_INPUT = "CG-P12"
NO_SUPPLIER = "CG-P13"
LATER_STEP = "CG-P14"
TYPE_MISMATCH = "CG-P15"
MISSING_INPUT = "CG-P16"
TOO_MANY_INPUTS = "CG-P17"
CYCLE = "CG-P18"
PARAMETER = "CG-P19"
UNDECLARED_OUTPUT = "CG-P20"
NOT_PLAIN = "CG-P21"
CONDITION = "CG-P22"
FOR_EACH = "CG-P23"


class ProblemKind(NamedTuple):
    """What all problems of one kind have in common.

    Attributes:
        title: The fault in a few words.
        field: The field of the step (or plan) in which it sits.
        remedy: What to do about it, where that is always the same.
        reason: Why the one right value is right, where there is one.
    """

    title: str
    field: str
    remedy: str = ""
    reason: str = ""


_INPUT = "write inputs as a list of objects such as {'TYPE': 'context_key'}, each once"
_SELECT = "use one of the selected capabilities, or have the request classified again"

PROBLEM_KINDS = {
    SHAPE: ProblemKind("Wrong shape", ""),
    EMPTY: ProblemKind("Empty plan", "steps", "plan at least the closing step 'respond'"),
    TOO_LONG: ProblemKind("Plan too long", "steps", "merge or drop steps, or raise the limit"),
    UNKNOWN_CAPABILITY: ProblemKind(
        "Unknown capability",
        "capability",
        "use a registered capability",
        "the only registered name that is near",
    ),
    INACTIVE_CAPABILITY: ProblemKind("Inactive capability", "capability", _SELECT),
    INFRASTRUCTURE_STEP: ProblemKind(
        "Infrastructure node as a step", "capability", "remove the step"
    ),
    TERMINAL_STEP_NOT_LAST: ProblemKind(
        "Closing step is not last",
        "capability",
        "move it to the end and keep only one closing step",
    ),
    NO_TERMINAL_STEP: ProblemKind("No closing step", "steps", "end the plan with 'respond'"),
    MISSING_KEY: ProblemKind(
        "Missing context_key", "context_key", "give it one that no other step has"
    ),
    MALFORMED_KEY: ProblemKind(
        "MalformedAnswerError context_key", "context_key", "rename the step"
    ),
    DUPLICATE_KEY: ProblemKind(
        "Duplicate context_key", "context_key", "rename one of them and the inputs that mean it"
    ),
    MALFORMED_INPUT: ProblemKind("MalformedAnswerError input", "inputs", _INPUT),
    NO_SUPPLIER: ProblemKind("Input without supplier", "inputs"),
    LATER_STEP: ProblemKind("Input from a later step", "inputs"),
    TYPE_MISMATCH: ProblemKind("Type mismatch", "inputs"),
    MISSING_INPUT: ProblemKind("Required input missing", "inputs"),
    TOO_MANY_INPUTS: ProblemKind("Too many inputs", "inputs", "keep one of them"),
    CYCLE: ProblemKind("Cycle", "inputs", "remove one of the inputs that close the circle"),
    PARAMETER: ProblemKind(
        "Wrong parameter", "parameters", reason="the same value in the declared form"
    ),
    UNDECLARED_OUTPUT: ProblemKind(
        "Undeclared output",
        "expected_output",
        reason="the only type that it provides and that is asked for",
    ),
    NOT_PLAIN: ProblemKind("Not plain data", "parameters"),
    CONDITION: ProblemKind(
        "Wrong condition",
        "when",
        "write {'of': 'context_key.field', 'is': '>', 'than': 12}, or 'and', 'or', 'not' of such",
    ),
    FOR_EACH: ProblemKind(
        "Wrong for_each",
        "for_each",
        "write {'of': 'context_key.field', 'as': 'item'} with a list of an earlier step",
    ),
}
"""Code of each kind of problem to what its problems have in common."""


def make_problem(
    code: str,
    step: int | None,
    context_key: str | None,
    value: object,
    cause: str,
    remedy: str = "",
    path: Path | None = None,
    corrected_value: Any = NO_CORRECTION,
) -> Problem:
    """Build a problem whose value is safe to print and to store.

    Args:
        code: Code of its kind.
        step: Index of the step.
        context_key: The step's key, if it has one.
        value: The offending value.
        cause: What is wrong with it.
        remedy: What to do about it, where the kind does not say it.
        path: Where it sits, where the kind's field is not all.
        corrected_value: The one value that is right there.
    """
    kind = PROBLEM_KINDS[code]
    place = (kind.field,) if path is None else path
    told = remedy or kind.remedy
    return Problem(
        code, step, preview_key(context_key), place, _plain(value), cause, told, corrected_value
    )


def preview_key(key: str | None) -> str | None:
    """Return a context key as a problem shows it."""
    return key if key is None or len(key) <= 200 else preview(key)
