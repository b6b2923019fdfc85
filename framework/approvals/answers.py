"""How an answer is read: it fits, or it is said what does not, and the question stays open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticValidationError

from configs.limits import Limits
from framework.approvals.questions import PLAN, STEP, is_personal
from framework.base.errors import ValidationError
from framework.base.plan import plan_key
from framework.planning import check_plan
from framework.planning.catalog import MANY
from framework.planning.parameters import validated_parameters
from framework.planning.view import PlanView
from framework.registry import Registry
from framework.state import TurnView, dump_context

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

    @property
    def new_steps(self) -> Any:
        """The steps of an edited plan, wherever the answer has them."""
        return self.steps if self.steps is not None else (self.parameters or {}).get("steps")


def read_answers(
    given: Any,
    question: Mapping[str, Any],
    registry: Registry,
    limits: Limits,
    view: TurnView | None = None,
) -> tuple[dict[str, Answer], list[str]]:
    """Read an answer: one word for all entries, or a mapping by their keys.

    Args:
        given: The answer: plain data from wherever it came.
        question: What was asked.
        registry: What is registered.
        limits: Bounds of a run.
        view: The turn, against which an edited plan is checked.

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
            found = _problems_of(key, answer, step, registry, limits, view or TurnView({}))
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
    if answer.remember is not None and (answer.decision != "approve" or step["kind"] != STEP):
        return None, [f"Only 'approve' for a step can be remembered; {key!r} is not such a case."]
    if answer.remember is not None and is_personal(step):
        return None, [f"It matters who agrees to step {key!r}: nothing can be remembered of it."]
    return answer, []


def _problems_of(
    key: str,
    answer: Answer,
    step: Mapping[str, Any],
    registry: Registry,
    limits: Limits,
    view: TurnView,
) -> list[str]:
    if answer.decision == "edit" and step["kind"] == PLAN:
        return _plan_problems(answer, registry, limits, view)
    if answer.decision == "edit":
        return _parameter_problems(key, answer.parameters, step, registry)
    if answer.decision == "done":
        return _output_problems(key, answer.outputs or {}, step, registry, view)
    return []


def _plan_problems(answer: Answer, registry: Registry, limits: Limits, view: TurnView) -> list[str]:
    steps = answer.new_steps
    if not isinstance(steps, list):
        return ["'edit' of the plan needs 'steps': all steps of the new plan."]
    found = check_plan({"steps": steps}, registry, view.contexts, max_steps=limits.max_steps)
    return [str(problem) for problem in found]


def _parameter_problems(
    key: str, parameters: Any, step: Mapping[str, Any], registry: Registry
) -> list[str]:
    if parameters is None:
        return [f"'edit' for step {key!r} needs parameters."]
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        return [f"The parameters of step {key!r} are not plain JSON: {exc}."]
    try:
        validated_parameters(registry.capabilities[step["capability"]], parameters)
    except ValidationError as exc:
        return [f"Step {key!r}: {exc.message}"]
    return []


def _output_problems(
    key: str,
    outputs: Mapping[str, Any],
    step: Mapping[str, Any],
    registry: Registry,
    view: TurnView,
) -> list[str]:
    spec = registry.capabilities[step["capability"]]
    plan = PlanView(view.steps, registry, {}, None)
    wants = {
        plan.wants(index, read.label).removesuffix(MANY)
        for index, reads in enumerate(plan.reads)
        for read in reads
        if read.key == plan_key(key)
    }
    needed = wants & set(spec.provides)
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
            dump_context(kind, key, data, registry.context_types)
        except ValidationError as exc:
            problems.append(exc.message)
    return problems
