"""Kinds of problems that a plan can have, with stable codes, and the record of one problem."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from dataclasses import dataclass
from typing import Any, NamedTuple

Path = tuple[str | int, ...]
"""Location of a value in a step, such as ``("inputs", 0, "DATASET")``."""


class _Preview(reprlib.Repr):
    """A ``repr`` with bounded length."""

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
    """Return a truncated ``repr`` of a value, without raising an exception.

    The result has at most a few hundred characters.

    >>> preview({"a": [1, 2]})
    "{'a': [1, 2]}"
    """
    try:
        return _preview.repr(value)
    except Exception:
        # A custom __repr__ may raise anything.
        return f"<{type(value).__name__}>"


def _plain_value(value: object) -> Any:
    """Return a short JSON scalar unchanged, or a string preview of any other value."""
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
    """Format the path of a plan field as a string.

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
"""Marker for a problem that does not have exactly one correct value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem that validation found in a plan.

    Attributes:
        code: Stable code of the kind of problem, such as ``CG-P13``.
        step: Index of the step, or ``None`` if the problem concerns the whole plan.
        context_key: The step's key, if it has a valid one.
        path: Path of the invalid value in the step or plan.
        value: Invalid value, or a preview if it is large or not plain data.
        cause: Reason why the value is invalid.
        remedy: Instruction that corrects the problem.
        corrected_value: The only correct value, or ``NO_CORRECTION`` if there are none or several.

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
        """Path of the invalid value as a string, such as ``inputs[0].DATASET``."""
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
    """Kind of problem that plan validation reports, with the texts shared by its problems.

    Attributes:
        title: Short name of the problem kind.
        field: Name of the affected field of the step or plan.
        remedy: Default instruction for correcting the problem.
        reason: Explanation of why a corrected value is the only valid value.
    """

    title: str
    field: str
    remedy: str = ""
    reason: str = ""


_INPUT = "write inputs as a list of objects such as {'TYPE': 'context_key'}, each once"
_SELECT = "use one of the selected capabilities, or have the request classified again"

PROBLEM_KINDS = {
    SHAPE: ProblemKind("Wrong shape", ""),
    EMPTY: ProblemKind("Empty plan", "steps", "plan at least the terminal step 'respond'"),
    TOO_LONG: ProblemKind("Plan too long", "steps", "merge or remove steps, or raise the limit"),
    UNKNOWN_CAPABILITY: ProblemKind(
        "Unknown capability",
        "capability",
        "use a registered capability",
        "the only similar registered name",
    ),
    INACTIVE_CAPABILITY: ProblemKind("Inactive capability", "capability", _SELECT),
    INFRASTRUCTURE_STEP: ProblemKind(
        "Infrastructure node as a step", "capability", "remove the step"
    ),
    TERMINAL_STEP_NOT_LAST: ProblemKind(
        "Terminal step is not last",
        "capability",
        "move it to the end and keep only one terminal step",
    ),
    NO_TERMINAL_STEP: ProblemKind("No terminal step", "steps", "end the plan with 'respond'"),
    MISSING_KEY: ProblemKind(
        "Missing context_key", "context_key", "add a context_key that no other step has"
    ),
    MALFORMED_KEY: ProblemKind("Malformed context_key", "context_key", "rename the step"),
    DUPLICATE_KEY: ProblemKind(
        "Duplicate context_key", "context_key", "rename one of them and the inputs that read it"
    ),
    MALFORMED_INPUT: ProblemKind("Malformed input", "inputs", _INPUT),
    NO_SUPPLIER: ProblemKind("Input without supplier", "inputs"),
    LATER_STEP: ProblemKind("Input from a later step", "inputs"),
    TYPE_MISMATCH: ProblemKind("Type mismatch", "inputs"),
    MISSING_INPUT: ProblemKind("Required input missing", "inputs"),
    TOO_MANY_INPUTS: ProblemKind("Too many inputs", "inputs", "keep one of them"),
    CYCLE: ProblemKind("Cycle", "inputs", "remove one of the inputs in the cycle"),
    PARAMETER: ProblemKind(
        "Wrong parameter", "parameters", reason="the same value in the declared form"
    ),
    UNDECLARED_OUTPUT: ProblemKind(
        "Undeclared output",
        "expected_output",
        reason="the only provided type that other steps read",
    ),
    NOT_PLAIN: ProblemKind("Not plain data", "parameters"),
    CONDITION: ProblemKind(
        "Wrong condition",
        "when",
        "write {'of': 'context_key.field', 'is': '>', 'than': 12}, or combine such comparisons with"
        " 'and', 'or', and 'not'",
    ),
    FOR_EACH: ProblemKind(
        "Wrong for_each",
        "for_each",
        "write {'of': 'context_key.field', 'as': 'item'} with a list from an earlier step",
    ),
}
"""Problem code to its kind."""


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
    """Create a plan problem with a value preview that is safe to print and to store.

    Args:
        code: Code of the problem kind.
        step: Index of the step, or ``None`` if the problem concerns the whole plan.
        context_key: Key of the step, if it has a key.
        value: Invalid value.
        cause: Reason why the value is invalid.
        remedy: Instruction for correcting the problem. Defaults to the kind's remedy.
        path: Path of the value. Defaults to the kind's field.
        corrected_value: The only valid value, if there is exactly one.
    """
    kind = PROBLEM_KINDS[code]
    place = (kind.field,) if path is None else path
    remedy = remedy or kind.remedy
    return Problem(
        code,
        step,
        preview_key(context_key),
        place,
        _plain_value(value),
        cause,
        remedy,
        corrected_value,
    )


def preview_key(key: str | None) -> str | None:
    """Shorten a long context key for display."""
    return key if key is None or len(key) <= 200 else preview(key)
