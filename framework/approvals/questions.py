"""Questions to a person and how their answers are read. Pure: nothing is asked or written here.

Every question has one form: a list of entries, each with a key, what it is about and the
decisions that it allows. An entry is a step that needs agreement, a step of unknown outcome, a
step whose capability is gone, or the whole plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticValidationError

from framework.base.errors import ValidationError
from framework.engine.services import Services
from framework.pipeline.effects import UNKNOWN
from framework.planning import CLOSING, check_plan
from framework.planning.summaries import summary_of
from framework.state import dump_context

QUESTION_VERSION = 1
_MAX_SHOWN = 20_000
PLAN = "plan"
"""Key of the entry that shows the whole plan."""
MISSING = "missing_capability"
_DECISIONS = {
    "step": ["approve", "edit", "reject", "respond"],
    UNKNOWN: ["rerun", "skip", "done", "reject"],
    MISSING: ["rerun", "skip", "reject", "respond"],
}
_WORDS = {"yes": "approve", "y": "approve", "no": "reject", "n": "reject"}


class Remember(BaseModel):
    """How an approval becomes a standing rule.

    Attributes:
        scope: ``thread`` or ``everywhere``.
        until: When the rule ends (ISO time); ``None`` for never.
    """

    model_config = ConfigDict(extra="forbid")

    scope: Literal["thread", "everywhere"] = "thread"
    until: datetime | None = None


class Answer(BaseModel):
    """One decision.

    Attributes:
        decision: ``approve``, ``edit`` (with ``parameters``, or ``steps`` for a plan), ``reject``
            (with ``reason``), ``respond`` (with ``message``, which ends the turn); for a step of
            unknown outcome ``rerun``, ``skip``, or ``done`` (its effect happened; with
            ``outputs`` when other steps need them); for a missing capability ``rerun`` (look
            again) or ``skip``.
        parameters: New parameters, for ``edit``.
        steps: All steps of the new plan, for ``edit`` of a plan.
        outputs: Context type to data, for ``done``.
        reason: Why, for ``reject``.
        message: What to say instead, for ``respond``.
        remember: Makes a standing rule of ``approve``.
    """

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "edit", "reject", "respond", "rerun", "skip", "done"]
    parameters: dict[str, Any] | None = None
    steps: list[dict[str, Any]] | None = None
    outputs: dict[str, Any] | None = None
    reason: str = Field("", max_length=4000)
    message: str = Field("", max_length=20_000)
    remember: Remember | None = None


def question_for(
    keys: Sequence[str], state: Mapping[str, Any], services: Services
) -> dict[str, Any]:
    """Describe what a person is asked about steps, as plain data."""
    plan = state.get("planning_execution_plan") or {}
    steps = {step["context_key"]: step for step in plan.get("steps") or []}
    pending = state.get("execution_pending_approvals") or {}
    data = state.get("capability_context_data") or {}
    entries = [_entry(key, steps[key], pending.get(key) or {}, data, services) for key in keys]
    return _question(plan, entries)


def _entry(
    key: str,
    step: Mapping[str, Any],
    asked: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]],
    services: Services,
) -> dict[str, Any]:
    spec = services.registry.capabilities.get(step["capability"])
    kind, reason = asked.get("kind", "step"), asked.get("reason")
    if spec is None:
        kind, reason = MISSING, f"No capability is called {step['capability']!r} any more."
    entry = {
        "context_key": key,
        "capability": step["capability"],
        "description": spec.description if spec else "",
        "effect": spec.effect if spec else None,
        "task_objective": step.get("task_objective"),
        "parameters": step.get("parameters") or {},
        "inputs": step.get("inputs") or [],
        "input_summaries": _input_summaries(step, data, services),
        "kind": kind,
        "reason": reason,
        "decisions": _DECISIONS[kind],
    }
    if asked.get("idempotency_key"):
        entry["idempotency_key"] = asked["idempotency_key"]
    return entry


def _input_summaries(
    step: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]], services: Services
) -> dict[str, str]:
    """Say what the step is about to work on: nobody can agree to code that is not shown."""
    types = services.registry.context_types
    return {
        f"{kind}.{key}": summary_of(kind, key, data[kind][key], types)[:_MAX_SHOWN]
        for entry in step.get("inputs") or []
        for kind, key in entry.items()
        if key in data.get(kind, {})
    }


def plan_question(state: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """Describe the plan that a person is asked to agree to, as plain data."""
    plan = state["planning_execution_plan"]
    asked = [
        step["context_key"]
        for step in plan["steps"]
        if step["capability"] not in CLOSING
        and (spec := services.registry.capabilities.get(step["capability"]))
        and (spec.requires_approval or spec.effect != "none")
    ]
    entry = {
        "context_key": PLAN,
        "capability": PLAN,
        "description": f"{len(plan['steps'])} steps"
        + (f"; with effects or risks: {', '.join(asked)}" if asked else ""),
        "effect": None,
        "task_objective": state.get("task_current_task"),
        "parameters": {"steps": plan["steps"]},
        "inputs": [],
        "kind": PLAN,
        "reason": None,
        "decisions": _DECISIONS["step"],
    }
    return _question(plan, [entry])


def _question(plan: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "approval",
        "version": QUESTION_VERSION,
        "plan": (plan.get("stamp") or {}).get("id"),
        "steps": entries,
    }


def read_answers(
    given: Any,
    question: Mapping[str, Any],
    services: Services,
    state: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Answer], list[str]]:
    """Read an answer: one word for all entries, or a mapping by their keys.

    Args:
        given: The answer: plain data from wherever it came.
        question: What was asked.
        services: Shared dependencies.
        state: The graph's state, against which an edited plan is checked.

    Returns:
        The decisions, and what is wrong with them; with a problem the question stays open.
    """
    steps = {step["context_key"]: step for step in question["steps"]}
    if isinstance(given, str):
        word = given.strip().lower()
        given = {key: {"decision": _WORDS.get(word, word)} for key in steps}
    if not isinstance(given, Mapping) or not given:
        return {}, [
            f"The answer {given!r:.80} cannot be read. Fix: answer 'approve' or 'reject', or"
            ' {"<context_key>": {"decision": "..."}}.'
        ]
    problems = [
        f"No step {key!r:.80} is waiting; waiting are {sorted(steps)}."
        for key in given
        if key not in steps
    ]
    answers: dict[str, Answer] = {}
    for key, step in steps.items():
        if key not in given:
            problems.append(f"There is no decision for step {key!r}.")
            continue
        answer, found = _read_one(key, given[key], step)
        if answer is not None and not found:
            found = _problems_of(key, answer, step, services, state or {})
        problems += found
        if answer is not None:
            answers[key] = answer
    return answers, problems


def _read_one(key: str, given: Any, step: Mapping[str, Any]) -> tuple[Answer | None, list[str]]:
    if isinstance(given, str):
        given = {"decision": given}
    try:
        answer = Answer.model_validate(given)
    except PydanticValidationError as exc:
        where = "; ".join(
            f"{'.'.join(str(p) for p in e['loc']) or 'answer'}: {e['msg']}"
            for e in exc.errors(include_url=False, include_input=False)
        )
        return None, [f"The answer for step {key!r} does not fit: {where:.500}."]
    if answer.decision not in step["decisions"]:
        allowed = ", ".join(step["decisions"])
        return None, [f"{answer.decision!r} is no answer for step {key!r}; use one of {allowed}."]
    if answer.decision == "respond" and not answer.message.strip():
        return None, [f"'respond' for step {key!r} needs a message."]
    if answer.remember is not None and (answer.decision != "approve" or step["kind"] != "step"):
        return None, [f"Only 'approve' for a step can be remembered; {key!r} is not such a case."]
    return answer, []


def _problems_of(
    key: str,
    answer: Answer,
    step: Mapping[str, Any],
    services: Services,
    state: Mapping[str, Any],
) -> list[str]:
    if answer.decision == "edit" and step["kind"] == PLAN:
        return _plan_problems(answer, services, state)
    if answer.decision == "edit":
        return _parameter_problems(key, answer.parameters, step, services)
    if answer.decision == "done":
        return _output_problems(key, answer.outputs or {}, step, services, state)
    return []


def new_steps(answer: Answer) -> Any:
    """Return the steps of an edited plan, wherever the answer has them."""
    return answer.steps if answer.steps is not None else (answer.parameters or {}).get("steps")


def _plan_problems(answer: Answer, services: Services, state: Mapping[str, Any]) -> list[str]:
    steps = new_steps(answer)
    if not isinstance(steps, list):
        return ["'edit' of the plan needs 'steps': all steps of the new plan."]
    found = check_plan(
        {"steps": steps},
        services.registry,
        state.get("capability_context_data") or {},
        max_steps=services.limits.max_steps,
    )
    return [str(problem) for problem in found]


def _parameter_problems(
    key: str, parameters: Any, step: Mapping[str, Any], services: Services
) -> list[str]:
    if parameters is None:
        return [f"'edit' for step {key!r} needs parameters."]
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        return [f"The parameters of step {key!r} are not plain JSON: {exc}."]
    model = services.registry.capabilities[step["capability"]].parameters
    if model is None:
        return []
    try:
        model.model_validate(parameters)
    except PydanticValidationError as exc:
        return [
            f"parameters.{'.'.join(str(p) for p in e['loc'])} of step {key!r}: {e['msg']}."
            for e in exc.errors(include_url=False, include_input=False)
        ]
    return []


def _output_problems(
    key: str,
    outputs: Mapping[str, Any],
    step: Mapping[str, Any],
    services: Services,
    state: Mapping[str, Any],
) -> list[str]:
    spec = services.registry.capabilities[step["capability"]]
    needed = _read_types(key, state)
    problems = [
        f"Step {key!r} gives no {kind}; it gives {list(spec.provides)}."
        for kind in outputs
        if kind not in spec.provides
    ]
    problems += [
        f"Other steps need {kind} of step {key!r}; give it in 'outputs'."
        for kind in sorted(needed - outputs.keys())
    ]
    for kind, data in outputs.items():
        try:
            dump_context(kind, key, data, services.registry.context_types)
        except ValidationError as exc:
            problems.append(exc.message)
    return problems


def _read_types(key: str, state: Mapping[str, Any]) -> set[str]:
    steps = (state.get("planning_execution_plan") or {}).get("steps") or []
    links = [entry for step in steps for entry in step.get("inputs") or []]
    return {kind for entry in links for kind, name in entry.items() if name == key}
