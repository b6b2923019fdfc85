"""Execution plans as plain dictionaries, and their JSON files."""

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
    """One step of a plan.

    Attributes:
        context_key: Name of the step's result, unique within the plan.
        capability: Name of the capability.
        task_objective: Objective of the step, understandable without other text.
        success_criteria: Criteria for the success of the step.
        expected_output: Context type of the result. None if the capability provides only one.
        parameters: Parameters of the capability.
        inputs: ``{context_type: context_key}`` mappings, one for each input. If a capability requires
            several inputs of one type, the role replaces the type.
        when: Condition on results, ``{"of": "forecast.wind", "is": ">", "than": 12}``, or a combination
            with ``and``, ``or``, ``not``. If it is false, the step is skipped as not needed.
        for_each: List over which the step runs, ``{"of": "batch.rows", "as": "item", "on_failure":
            "stop"}``. The step runs once per element; ``{"$from": "item"}`` in its parameters refers
            to the element. With ``"collect"`` the other elements continue if one fails.
        optional: True if the plan continues if the step fails. The answer mentions the failure.
        timeout: Time limit of one attempt in seconds. It replaces the capability's own one.
        look_again: True if the planner reviews the results after the step and may change the steps that
            have not started. On the final ``respond`` step: True if the planner reviews all results
            before the answer and may plan more steps or write the answer.
        wait_until: Earliest start: a time with a UTC offset, or a delay such as ``"2h"`` after the
            step's inputs are available.
        wait_for: Key of the external event that the step waits for, or ``{"key": "paid", "within":
            "2d"}``.
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
    """Execution plan with an ordered list of steps and optional limits.

    Attributes:
        steps: Steps in order of execution. An input may refer only to the result of an earlier
            step.
        deadline: Maximum duration of all steps in seconds. Time spent waiting for approvals
            does not count.
        budget: Usage limits for the rest of the turn, keyed by the names of ``Budget``
            arguments.
        stamp: Origin of the plan, and the order of steps that share state keys. The graph sets
            this value, so plans from callers do not have it.
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
"""Limits that the budget of a plan may contain."""


def plan_limits(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``deadline`` and ``budget`` of a plan, omitting limits that are not set.

    >>> plan_limits({"steps": [], "deadline": 5, "budget": None})
    {'deadline': 5}
    """
    return {name: plan[name] for name in ("deadline", "budget") if plan.get(name) not in (None, {})}


def tighten_limits(current: Mapping[str, Any], replacement: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the limits of a plan with those of its replacement, using the stricter values.

    Args:
        current: Plan that is being replaced.
        replacement: Plan that replaces the current plan.

    >>> tighten_limits({"deadline": 5, "budget": {"steps": 3}}, {"deadline": 9, "budget": {"tokens": 8}})
    {'deadline': 5, 'budget': {'steps': 3, 'tokens': 8}}
    """
    limits, new_limits = plan_limits(current), plan_limits(replacement)
    deadlines = [plan["deadline"] for plan in (limits, new_limits) if "deadline" in plan]
    if deadlines:
        limits["deadline"] = min(deadlines)
    budget = dict(limits.get("budget", {}))
    for name, value in new_limits.get("budget", {}).items():
        budget[name] = min(value, budget.get(name, value))
    return {**limits, "budget": budget} if budget else limits


def element_key(key: str, number: int) -> str:
    """Return the context key for one copy of a ``for_each`` step.

    Each copy processes the list element with the given index.

    >>> element_key("pay", 3), plan_key("pay[3]"), plan_key("pay")
    ('pay[3]', 'pay', 'pay')
    """
    return f"{key}[{number}]"


def plan_key(key: str) -> str:
    """Return the context key of a planned step without a list index.

    The index is added by :func:`element_key`.
    """
    return key.partition("[")[0]


def save_execution_plan_to_file(plan: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Save an execution plan to a UTF-8 JSON file, replacing an existing file atomically.

    Args:
        plan: Plan to save.
        path: Path of the file. Missing directories are created.

    Raises:
        PlanError: The value is not a plan, or contains data that JSON cannot represent.

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
            f"The plan for {str(target)!r} is not valid JSON data: {exc}.",
            fix="Use only text, numbers, booleans, lists and dictionaries as parameters.",
        ) from exc
    write_atomic(target, text)


def load_execution_plan_from_file(path: str | os.PathLike[str]) -> ExecutionPlan:
    """Load an execution plan from a JSON file.

    The file may have been written by :func:`save_execution_plan_to_file`, or may contain only a
    plan or a list of steps.

    Args:
        path: Path of the file.

    Returns:
        The plan without the metadata of the file. The plan is not checked against a registry.

    Raises:
        PlanError: The file cannot be read, does not contain a plan, or has an unsupported
            version.
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
    if document and is_steps:  # callers may send a plan in this form, too
        document = {"steps": document}
    _check_plan_object(document, f"The plan file {str(source)!r}", needs_steps=True)
    return cast("ExecutionPlan", {"steps": document["steps"], **plan_limits(document)})


def _check_plan_object(plan: Any, label: str, *, needs_steps: bool = False) -> None:
    """Raise a PlanError if a value does not have the structure of an execution plan."""
    missing: Any = None if needs_steps else []
    fields = ExecutionPlan.__annotations__
    for name in map(str, plan if isinstance(plan, dict) else ()):
        if name not in fields and (near := correct_spelling(name, fields)) is not None:
            raise PlanError(f"{label} has the unknown field {name!r}.", fix=f"Write {near!r}.")
    if not isinstance(plan, dict) or not isinstance(plan.get("steps", missing), list):
        raise PlanError(f"{label} has no list of steps.", fix='Write {"steps": [...]}.')
    unknown = sorted(str(key) for key in set(plan) - ExecutionPlan.__annotations__.keys())
    if unknown:
        raise PlanError(
            f"{label} has unknown fields {unknown}.",
            fix="Remove them. A plan has 'steps' and optionally 'deadline' and 'budget'.",
        )


def _check_metadata(metadata: object, source: Path) -> None:
    kind = metadata.get("serialization_type") if isinstance(metadata, dict) else None
    version = metadata.get("version") if isinstance(metadata, dict) else None
    if kind != "execution_plan":
        raise PlanError(
            f"The file {str(source)!r} must have the type 'execution_plan', not {kind!r}.",
            fix="Use a file that save_execution_plan_to_file wrote.",
        )
    if not isinstance(version, str) or version.split(".")[0] != PLAN_FILE_VERSION.split(".")[0]:
        raise PlanError(
            f"The plan file {str(source)!r} has the unsupported version {version!r}. This release "
            f"reads version {PLAN_FILE_VERSION}.",
            fix="Save the plan again with this release.",
        )
