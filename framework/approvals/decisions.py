"""How an answer is read: it fits, or it is said what does not, and the question stays open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticValidationError

from capgraph.approvals.requests import PLAN, STEP, restricts_approvers
from capgraph.base.errors import ValidationError
from capgraph.base.plan import plan_key
from capgraph.configs.settings_model import Limits
from capgraph.planning import repair_plan
from capgraph.planning.catalog import MANY_SUFFIX
from capgraph.planning.parameters import repair_parameters, validated_parameters
from capgraph.planning.plan_view import PlanView
from capgraph.planning.problems import render_path
from capgraph.registry import Registry
from capgraph.state import TurnView, dump_context

_Found = tuple[list[str], str]
_SHOWN, _TOLD = 300, 2000  # characters of what may be anybody's
_GOES_WITH = {"parameters": "edit", "steps": "edit", "outputs": "done", "message": "respond"}
"""What would be passed over in silence with any other decision; what was shown may be repeated."""
_WORDS = {"yes": "approve", "y": "approve", "no": "reject", "n": "reject"}


class DecisionProblem(NamedTuple):
    """What does not fit in an answer.

    Attributes:
        path: Where: the step's key, and what is inside, with dots between.
        message: What, in words.
    """

    path: str
    message: str


class RememberDecision(BaseModel):
    """How an approval becomes a standing rule.

    Attributes:
        scope: ``thread`` or ``everywhere``.
        until: When the rule ends (ISO time); ``None`` for never.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    scope: Literal["thread", "everywhere"] = "thread"
    until: datetime | None = None


class ApprovalDecision(BaseModel):
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

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    decision: Literal["approve", "edit", "reject", "respond", "rerun", "skip", "done"]
    parameters: dict[str, Any] | None = None
    steps: list[dict[str, Any]] | None = None
    outputs: dict[str, Any] | None = None
    reason: str = Field("", max_length=4000)
    message: str = Field("", max_length=20_000)
    remember: RememberDecision | None = None

    @property
    def new_steps(self) -> Any:
        """The steps of an edited plan, wherever the answer has them."""
        return self.steps if self.steps is not None else (self.parameters or {}).get("steps")


def parse_decisions(
    reply: Any,
    request: Mapping[str, Any],
    registry: Registry,
    limits: Limits,
    view: TurnView | None = None,
) -> tuple[dict[str, ApprovalDecision], list[DecisionProblem]]:
    """Read an answer: one word for all entries, or a mapping by their keys.

    A word is a decision; ``yes`` and ``y`` mean ``approve``, ``no`` and ``n`` mean ``reject``.

    Args:
        reply: The answer: plain data from wherever it came.
        request: What was asked.
        registry: What is registered.
        limits: Bounds of a run.
        view: The turn, against which an edited plan is checked.

    Returns:
        The decisions, and what is wrong with them; with a problem the question stays open.
    """
    steps = {step["context_key"]: step for step in request["steps"]}
    if isinstance(reply, str):
        reply = dict.fromkeys(steps, reply)
    if not isinstance(reply, Mapping) or not reply:
        told = (
            f"The answer {reply!r:.80} cannot be read. Fix: answer 'approve' or 'reject', or"
            ' {"<context_key>": {"decision": "..."}}.'
        )
        return {}, [DecisionProblem("", told)]
    problems = [
        DecisionProblem(
            str(key)[:_SHOWN], f"No step {key!r:.80} is waiting; waiting are {sorted(steps)}."
        )
        for key in reply
        if key not in steps
    ]
    answers: dict[str, ApprovalDecision] = {}
    for key, step in steps.items():
        if key not in reply:
            problems.append(DecisionProblem(key, f"There is no decision for step {key!r}."))
            continue
        answer, found = _read_one(key, reply[key], step)
        if answer is not None and not found:
            found = _problems_of(key, answer, step, registry, limits, view or TurnView({}))
        problems += [
            DecisionProblem(".".join([key, *path])[:_SHOWN], message[:_TOLD])
            for path, message in found
        ]
        if answer is not None:
            answers[key] = answer
    return answers, problems


def _read_one(
    key: str, given: Any, step: Mapping[str, Any]
) -> tuple[ApprovalDecision | None, list[_Found]]:
    if isinstance(given, str):
        word = given.strip().lower()
        given = {"decision": _WORDS.get(word, word)}
    try:
        answer = ApprovalDecision.model_validate(given)
    except PydanticValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
        return None, [
            (
                [str(part) for part in error["loc"]],
                f"The answer for step {key!r} does not fit:"
                f" {'.'.join(str(part) for part in error['loc']) or 'answer'}: {error['msg']}.",
            )
            for error in errors
        ]
    if answer.decision not in step["decisions"]:
        allowed = ", ".join(step["decisions"])
        told = f"{answer.decision!r} is no answer for step {key!r}; use one of {allowed}."
        return None, [(["decision"], told)]
    for name, word in _GOES_WITH.items():
        found = getattr(answer, name)
        if answer.decision != word and found and found != step.get(name):
            told = f"{answer.decision!r} for step {key!r} takes no {name}: {word!r} does."
            return None, [([name], told)]
    if answer.decision == "respond" and not answer.message.strip():
        return None, [(["message"], f"'respond' for step {key!r} needs a message.")]
    if answer.remember is not None and (answer.decision != "approve" or step["kind"] != STEP):
        told = f"Only 'approve' for a step can be remembered; {key!r} is not such a case."
        return None, [(["remember"], told)]
    if answer.remember is not None and restricts_approvers(step):
        told = f"It matters who agrees to step {key!r}: nothing can be remembered of it."
        return None, [(["remember"], told)]
    return answer, []


def _problems_of(
    key: str,
    answer: ApprovalDecision,
    step: Mapping[str, Any],
    registry: Registry,
    limits: Limits,
    view: TurnView,
) -> list[_Found]:
    if answer.decision == "edit" and step["kind"] == PLAN:
        return _plan_problems(answer, registry, limits, view)
    if answer.decision == "edit":
        return _parameter_problems(key, answer.parameters, step, registry)
    if answer.decision == "done":
        return _output_problems(key, answer.outputs or {}, step, registry, view)
    return []


def _plan_problems(
    answer: ApprovalDecision, registry: Registry, limits: Limits, view: TurnView
) -> list[_Found]:
    steps = answer.new_steps
    if not isinstance(steps, list):
        return [(["steps"], "'edit' of the plan needs 'steps': all steps of the new plan.")]
    # What a person wrote is completed, never replaced.
    plan = {"steps": steps}
    mended = repair_plan(
        plan, registry, view.contexts, max_steps=limits.max_steps, additions_only=True
    )
    return [(["steps", *map(str, one.path)], str(one)) for one in mended.problems]


def _parameter_problems(
    key: str, parameters: Any, step: Mapping[str, Any], registry: Registry
) -> list[_Found]:
    place = ["parameters"]
    if parameters is None:
        return [(place, f"'edit' for step {key!r} needs parameters.")]
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        return [(place, f"The parameters of step {key!r} are not plain JSON: {exc}.")]
    spec = registry.capabilities[step["capability"]]
    _, faults = repair_parameters(spec, parameters)
    if faults:
        return [
            (
                [str(part) for part in fault.path],
                f"Step {key!r}: {render_path(fault.path[1:]) or 'parameters'}"
                f" {fault.value!r:.200}: {fault.cause} ({fault.remedy}).",
            )
            for fault in faults
        ]
    try:
        validated_parameters(spec, parameters)
    except ValidationError as exc:
        return [(place, f"Step {key!r}: {exc.message}")]
    return []


def _output_problems(
    key: str,
    outputs: Mapping[str, Any],
    step: Mapping[str, Any],
    registry: Registry,
    view: TurnView,
) -> list[_Found]:
    spec = registry.capabilities[step["capability"]]
    plan = PlanView(view.steps, registry, {}, None)
    wants = {
        plan.need_of(index, read.label).removesuffix(MANY_SUFFIX)
        for index, reads in enumerate(plan.reads)
        for read in reads
        if read.key == plan_key(key)
    }
    needed = wants & set(spec.provides)
    problems: list[_Found] = [
        (["outputs", kind], f"Step {key!r} gives no {kind}; it gives {list(spec.provides)}.")
        for kind in outputs
        if kind not in spec.provides
    ]
    problems += [
        (["outputs", kind], f"Other steps need {kind} of step {key!r}; give it in 'outputs'.")
        for kind in sorted(needed - outputs.keys())
    ]
    for kind, data in outputs.items():
        try:
            dump_context(kind, key, data, registry.context_types)
        except ValidationError as exc:
            problems.append((["outputs", kind], exc.message))
    return problems
