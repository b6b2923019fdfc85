"""Execution plans: plain dictionaries that survive a checkpoint, and their files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from typing_extensions import TypedDict

from capgraph.base.errors import PlanError
from capgraph.configs.suggestions import correct_spelling
from capgraph.helpers.files import write_atomic

PLAN_FILE_VERSION = "1.0"
METADATA_KEY = "__metadata__"


class PlannedStep(TypedDict, total=False):
    """One step of a plan: which capability runs, on what, for what.

    Attributes:
        context_key: Name of the step's result; unique within the plan.
        capability: The capability that runs.
        task_objective: What the step is for, complete in itself.
        success_criteria: How one can tell that it worked.
        expected_output: Context type of the result; ``None`` for the only one it provides.
        parameters: Settings of the capability for this step.
        inputs: ``{context_type: context_key}`` mappings, one for each input; a role takes the place
            of the type where a capability takes several of one.
        when: Condition on results, ``{"of": "forecast.wind", "is": ">", "than": 12}``, or ``and``,
            ``or``, ``not`` of such; where it does not hold, the step is not needed.
        for_each: Over which list the step runs, ``{"of": "batch.rows", "as": "item", "on_failure":
            "stop"}``: once for each element, which ``{"$from": "item"}`` in its parameters means.
            With ``"collect"`` the others go on when one fails.
        optional: Whether the plan goes on, and the answer says so, if the step fails.
        timeout: Seconds that one try may take, in place of what the capability says.
        look_again: Whether, when the step has ended, the planner sees the results and may change
            what has not begun. On the closing ``respond``: whether the planner sees all results
            before the answer, and may plan more steps or write the answer.
        wait_until: Moment with its offset, or time from when it could run (``"2h"``), before which it
            does not run.
        wait_for: Key of an event from outside without which it does not run, or
            ``{"key": "paid", "within": "2d"}``.
    """

    context_key: str
    capability: str
    task_objective: str
    success_criteria: str
    expected_output: str | None
    parameters: dict[str, str | int | float] | None
    inputs: list[dict[str, str]] | None
    when: dict[str, Any] | None
    for_each: dict[str, str] | None
    optional: bool
    timeout: float | None
    look_again: bool
    wait_until: Any
    wait_for: Any


class ExecutionPlan(TypedDict, total=False):
    """An ordered list of steps.

    Attributes:
        steps: The steps; an input may only name the result of an earlier one.
        deadline: Seconds that the steps may take, all in all; waiting for a person does not count.
        budget: What the turn may use up from then on, by the names of a ``Budget``.
        stamp: Who wrote the plan (set by the graph, absent on plans of a caller).
    """

    steps: list[PlannedStep]
    deadline: float | None
    budget: dict[str, float] | None
    stamp: dict[str, Any]


BUDGET_NAMES = (
    "requests",
    "tokens",
    "cost_usd",
    "tool_calls",
    "steps",
    "seconds",
    "consecutive_failures",
)
"""What the budget of a plan may bound."""


def plan_limits(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds of a plan: ``deadline`` and ``budget``, as far as it has them.

    >>> plan_limits({"steps": [], "deadline": 5, "budget": None})
    {'deadline': 5}
    """
    return {name: plan[name] for name in ("deadline", "budget") if plan.get(name) not in (None, {})}


def tighten_limits(current: Mapping[str, Any], replacement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds of a plan that takes the place of another: never wider ones.

    >>> tighten_limits({"deadline": 5, "budget": {"steps": 3}}, {"deadline": 9, "budget": {"tokens": 8}})
    {'deadline': 5, 'budget': {'steps': 3, 'tokens': 8}}
    """
    found, more = plan_limits(current), plan_limits(replacement)
    if deadlines := [given["deadline"] for given in (found, more) if "deadline" in given]:
        found["deadline"] = min(deadlines)
    budget = dict(found.get("budget", {}))
    for name, value in more.get("budget", {}).items():
        budget[name] = min(value, budget.get(name, value))
    return {**found, "budget": budget} if budget else found


def element_key(key: str, number: int) -> str:
    """Name the copy of a step that runs for one element of its list, from 0.

    >>> element_key("pay", 3), plan_key("pay[3]"), plan_key("pay")
    ('pay[3]', 'pay', 'pay')
    """
    return f"{key}[{number}]"


def plan_key(key: str) -> str:
    """Return the key of the planned step to which a copy belongs; any other key as it is."""
    return key.partition("[")[0]


def save_execution_plan_to_file(plan: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a plan as UTF-8 JSON; the file is replaced in one step or not at all.

    Args:
        plan: The plan to write.
        path: Target file; missing parent folders are made.

    Raises:
        PlanError: The plan is none, or holds something that is not JSON.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "plans" / "a.json"
    >>> save_execution_plan_to_file({"steps": [{"context_key": "a"}]}, file)
    >>> load_execution_plan_from_file(file)
    {'steps': [{'context_key': 'a'}]}
    """
    target = Path(path)
    _check_plan_object(plan, f"The plan for {str(target)!r}")
    document = {
        METADATA_KEY: {
            "version": PLAN_FILE_VERSION,
            "serialization_type": "execution_plan",
            "created_at": datetime.now(UTC).isoformat(),
        },
        "steps": plan.get("steps", []),
        **plan_limits(plan),
    }
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except (TypeError, ValueError) as exc:
        raise PlanError(
            f"The plan for {str(target)!r} is not plain JSON: {exc}.",
            fix="Keep parameters to text, numbers, booleans, lists and dictionaries.",
        ) from exc
    write_atomic(target, text)


def load_execution_plan_from_file(path: str | os.PathLike[str]) -> ExecutionPlan:
    """Read a plan that :func:`save_execution_plan_to_file` wrote, or a bare plan or list of steps.

    Args:
        path: The file to read.

    Returns:
        The plan without the file's metadata. It is not checked against a registry here.

    Raises:
        PlanError: The file cannot be read, is not a plan, or is of a newer version.
    """
    source = Path(path)
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
    except OSError as exc:
        raise PlanError(
            f"The plan file {str(source)!r} cannot be read: {exc.strerror or exc}.",
            fix="Check the path and its permissions.",
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise PlanError(
            f"The plan file {str(source)!r} is not valid JSON: {exc}.",
            fix="Write plans with save_execution_plan_to_file.",
        ) from exc
    metadata = document.pop(METADATA_KEY, None) if isinstance(document, dict) else None
    if metadata is not None:
        _check_metadata(metadata, source)
        document.setdefault("steps", [])
    is_steps = isinstance(document, list) and all(isinstance(step, dict) for step in document)
    if document and is_steps:  # the form in which callers may give a plan, too
        document = {"steps": document}
    _check_plan_object(document, f"The plan file {str(source)!r}", needs_steps=True)
    return cast("ExecutionPlan", {"steps": document["steps"], **plan_limits(document)})


def _check_plan_object(plan: Any, label: str, *, needs_steps: bool = False) -> None:
    """Refuse what is no plan, in the same way before it is written and after it is read."""
    missing: Any = None if needs_steps else []
    fields = ExecutionPlan.__annotations__
    for name in map(str, plan if isinstance(plan, dict) else ()):
        if name not in fields and (near := correct_spelling(name, fields)) is not None:
            raise PlanError(f"{label} has the unknown field {name!r}.", fix=f"Write {near!r}.")
    if not isinstance(plan, dict) or not isinstance(plan.get("steps", missing), list):
        raise PlanError(f"{label} holds no list of steps.", fix='A plan is {"steps": [...]}.')
    unknown = sorted(str(key) for key in set(plan) - ExecutionPlan.__annotations__.keys())
    if unknown:
        raise PlanError(
            f"{label} has unknown fields {unknown}.",
            fix="Remove them; a plan holds 'steps', and may have 'deadline' and 'budget'.",
        )


def _check_metadata(metadata: object, source: Path) -> None:
    kind = metadata.get("serialization_type") if isinstance(metadata, dict) else None
    version = metadata.get("version") if isinstance(metadata, dict) else None
    if kind != "execution_plan":
        raise PlanError(
            f"The file {str(source)!r} is of type {kind!r}, not 'execution_plan'.",
            fix="Give a file that save_execution_plan_to_file wrote.",
        )
    if not isinstance(version, str) or version.split(".")[0] != PLAN_FILE_VERSION.split(".")[0]:
        raise PlanError(
            f"The plan file {str(source)!r} has version {version!r};"
            f" this release reads version {PLAN_FILE_VERSION}.",
            fix="Save the plan again with this release.",
        )
