"""What can be wrong with a plan: stable codes, and one record for each finding."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
"""Where in a step a problem sits, e.g. ``("inputs", 0, "DATASET")``."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One class of faults, as the documentation describes it.

    Attributes:
        code: Stable code, also the name of its page.
        title: The fault in a few words.
        meaning: Why a plan with it cannot run.
        remedy: What the writer of a plan does about it.
        repair: When :func:`~framework.planning.repair_plan` mends it; empty for never.
    """

    code: str
    title: str
    meaning: str
    remedy: str
    repair: str = ""


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

    @property
    def field(self) -> str:
        """Where the value sits, as text."""
        return render_path(self.path)

    @property
    def page(self) -> str:
        """Name of the documentation page about this kind of problem."""
        return f"errors/{self.code}"

    @property
    def title(self) -> str:
        """The kind of problem in a few words."""
        return PROBLEM_KINDS[self.code].title

    def __str__(self) -> str:
        where = "plan" if self.step is None else f"step {self.step + 1}"
        if self.context_key is not None:
            where += f" {self.context_key!r}"
        place = f", {self.field}" if self.path else ""
        return f"[{self.code}] {where}{place} {self.value!r}: {self.cause}. Fix: {self.remedy}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for state, events and prompts."""
        return {
            "code": self.code,
            "title": self.title,
            "step": self.step,
            "context_key": self.context_key,
            "field": self.field,
            "value": self.value,
            "cause": self.cause,
            "remedy": self.remedy,
            "page": self.page,
        }


def make_problem(
    code: str,
    step: int | None,
    context_key: str | None,
    path: Path,
    value: object,
    cause: str,
    remedy: str,
) -> Problem:
    """Build a problem whose value is safe to print and to store."""
    key = context_key if context_key is None or len(context_key) <= 200 else preview(context_key)
    return Problem(code, step, key, path, _plain(value), cause, remedy)


def format_problems(problems: list[Problem], limit: int | None = None) -> str:
    """List problems one a line, for people and for the next planning prompt.

    Args:
        problems: What :func:`~framework.planning.check_plan` found.
        limit: How many to write out; the rest is counted.
    """
    shown = problems if limit is None else problems[:limit]
    lines = [f"- {problem}" for problem in shown]
    if len(problems) > len(shown):
        lines.append(f"- and {len(problems) - len(shown)} more")
    return "\n".join(lines)


SHAPE = "CG-P01"
EMPTY = "CG-P02"
TOO_LONG = "CG-P03"
UNKNOWN_CAPABILITY = "CG-P04"
INACTIVE_CAPABILITY = "CG-P05"
INFRASTRUCTURE_STEP = "CG-P06"
CLOSING_NOT_LAST = "CG-P07"
NO_CLOSING = "CG-P08"
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

PROBLEM_KINDS: dict[str, ProblemKind] = {
    kind.code: kind
    for kind in (
        ProblemKind(
            SHAPE,
            "Wrong shape",
            "A plan is an object whose 'steps' is a list of objects; a part of it is something"
            " else, so it cannot be read.",
            "Write the named part in the documented form.",
            "A bare list of steps is wrapped.",
        ),
        ProblemKind(
            EMPTY,
            "Empty plan",
            "A plan without steps does nothing and answers nobody.",
            "Give at least the closing step 'respond'.",
            "The closing step is added.",
        ),
        ProblemKind(
            TOO_LONG,
            "Plan too long",
            "The plan has more steps than the limit allows, which is most often a planner that"
            " repeats itself.",
            "Merge or drop steps, or raise the limit in the settings.",
        ),
        ProblemKind(
            UNKNOWN_CAPABILITY,
            "Unknown capability",
            "No registered capability has this name.",
            "Use a registered name.",
            "Exactly one registered name differs only by case, separators or a typing error.",
        ),
        ProblemKind(
            INACTIVE_CAPABILITY,
            "Inactive capability",
            "The capability exists but was not selected for this request.",
            "Use a selected capability, or have the request classified again.",
        ),
        ProblemKind(
            INFRASTRUCTURE_STEP,
            "Infrastructure node as a step",
            "Nodes of the framework run on their own; a plan may only close with 'respond' or"
            " 'clarify'.",
            "Remove the step.",
        ),
        ProblemKind(
            CLOSING_NOT_LAST,
            "Closing step is not last",
            "'respond' and 'clarify' end the turn, so nothing behind them would run.",
            "Move the closing step to the end and keep one.",
            "The plan has one 'respond' and no 'clarify': it is moved to the end.",
        ),
        ProblemKind(
            NO_CLOSING,
            "No closing step",
            "A plan that does not end with 'respond' or 'clarify' answers nobody.",
            "End the plan with 'respond'.",
            "The closing step is added.",
        ),
        ProblemKind(
            MISSING_KEY,
            "Missing context_key",
            "The result of the step could not be stored under a name.",
            "Give the step a context_key of its own.",
            "The step is named after its output.",
        ),
        ProblemKind(
            MALFORMED_KEY,
            "Malformed context_key",
            "A context_key is text of at most 128 letters, digits and '_', '.', ':' or '-' that"
            " starts with a letter, a digit or '_'.",
            "Rename the step.",
            "Other characters become '_', in the key and in every input that names it.",
        ),
        ProblemKind(
            DUPLICATE_KEY,
            "Duplicate context_key",
            "Two steps would overwrite each other's result.",
            "Give each step a context_key of its own.",
            "An exact copy of a step is dropped; another step is renamed when it is certain"
            " which inputs mean it.",
        ),
        ProblemKind(
            MALFORMED_INPUT,
            "Malformed input",
            "An input is an object {context_type: context_key}; each is given once.",
            "Write one object for each input.",
            "Other spellings of the same inputs are rewritten; copies and empty entries are"
            " dropped.",
        ),
        ProblemKind(
            NO_SUPPLIER,
            "Input without supplier",
            "No step and no stored context has the context_key that the input names.",
            "Name an earlier step or a stored context, or plan a step that supplies it.",
            "Exactly one supplier can be meant, or exactly one capability can supply it.",
        ),
        ProblemKind(
            LATER_STEP,
            "Input from a later step",
            "The input names a step that runs afterwards.",
            "Put the supplier first.",
            "The steps are put in the order of their data; steps that do not matter keep theirs.",
        ),
        ProblemKind(
            TYPE_MISMATCH,
            "Type mismatch",
            "What the input names exists, but is of another context type.",
            "Name a supplier of that type, or correct the type.",
            "Exactly one correction makes the input fit.",
        ),
        ProblemKind(
            MISSING_INPUT,
            "Required input missing",
            "The capability needs a context of this type and the step names none.",
            "Add the input.",
            "Exactly one supplier exists, or exactly one capability can supply it.",
        ),
        ProblemKind(
            TOO_MANY_INPUTS,
            "Too many inputs",
            "The capability takes one context of this type and the step names several.",
            "Keep one, or merge them in a step before.",
        ),
        ProblemKind(
            CYCLE,
            "Cycle",
            "The steps wait for each other, so none could start.",
            "Remove one of the inputs that close the circle.",
        ),
        ProblemKind(
            PARAMETER,
            "Wrong parameter",
            "A parameter does not fit what the capability declares.",
            "Give the value in the declared form.",
            "The value has exactly one lossless form of the declared type, as '5' has 5.",
        ),
        ProblemKind(
            UNDECLARED_OUTPUT,
            "Undeclared output",
            "The step expects an output that its capability does not provide, or does not say"
            " which of several it expects.",
            "Name a type that the capability provides.",
            "The capability provides one type, or the inputs that read the step agree on one.",
        ),
        ProblemKind(
            NOT_PLAIN,
            "Not plain data",
            "Plans are stored as JSON: finite numbers, text, lists and objects of moderate depth.",
            "Replace the value by plain data.",
        ),
    )
}
