"""Parser and validator of approval decisions. After an invalid decision, the request stays open."""

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
from capgraph.configs.limits import Limits
from capgraph.planning import repair_plan
from capgraph.planning.catalog import MANY_SUFFIX
from capgraph.planning.parameters import repair_parameters, validated_parameters
from capgraph.planning.plan_view import PlanView
from capgraph.planning.problems import render_path
from capgraph.registry import Registry
from capgraph.state import TurnView, dump_context

_Problem = tuple[list[str], str]
_MAX_PATH_CHARS, _MAX_MESSAGE_CHARS = 300, 2000  # limits for untrusted text
_DECISION_OF_FIELD = {
    "parameters": "edit",
    "steps": "edit",
    "outputs": "done",
    "message": "respond",
}
"""Decision that each field belongs to. With another decision, a changed field is refused."""
_INBOX_DECISIONS = {"accept": "approve", "ignore": "reject", "response": "respond"}
_WORDS = {"yes": "approve", "y": "approve", "no": "reject", "n": "reject"}


class DecisionProblem(NamedTuple):
    """Validation problem in an approval decision.

    Attributes:
        path: Dotted path to the invalid value, beginning with the step's key.
        message: Description of the problem.
    """

    path: str
    message: str


class RememberDecision(BaseModel):
    """Request to turn an approval into a standing rule.

    Attributes:
        scope: ``thread`` or ``everywhere``.
        until: Expiry time in ISO format. None means that the rule does not expire.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    scope: Literal["thread", "everywhere"] = "thread"
    until: datetime | None = None


class ApprovalDecision(BaseModel):
    """A person's decision about one entry of an approval request.

    Attributes:
        decision: ``approve``; ``edit`` (with ``parameters``, or ``steps`` for a plan); ``reject``
            (with ``reason``); ``respond`` (with ``message``, which ends the turn). For a step of
            unknown outcome: ``rerun``, ``skip``, or ``done`` (the effect happened; with ``outputs``
            if other steps need them). For a missing capability: ``rerun`` (look it up again) or
            ``skip``.
        parameters: New parameters, for ``edit``.
        steps: All steps of the new plan, for ``edit`` of a plan.
        outputs: Output data by context type, for ``done``.
        reason: Reason, for ``reject``.
        message: Answer to the user, for ``respond``.
        remember: Standing rule to create, for ``approve``.
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
        """Edited plan steps in an approval decision, from ``steps`` or from ``parameters``."""
        return self.steps if self.steps is not None else (self.parameters or {}).get("steps")


def parse_decisions(
    reply: Any,
    request: Mapping[str, Any],
    registry: Registry,
    limits: Limits,
    view: TurnView | None = None,
) -> tuple[dict[str, ApprovalDecision], list[DecisionProblem]]:
    """Parse and validate the reply to an approval request.

    The reply is one decision for all entries, or a mapping by context key. ``yes`` and ``y`` mean
    ``approve``; ``no`` and ``n`` mean ``reject``. LangChain's ``{"decisions": [{"type": …}]}`` and
    Agent Inbox's ``[{"type": …}]`` have one decision for each entry, in order.

    Args:
        reply: Reply as plain data from any source.
        request: Approval request that the reply answers.
        registry: Registry of the agent.
        limits: Limits of a run.
        view: View of the turn, against which an edited plan is checked.

    Returns:
        The decisions by context key, and the problems. If there is a problem, the request stays
            open.
    """
    steps = {step["context_key"]: step for step in request["steps"]}
    if isinstance(reply, str):
        reply = dict.fromkeys(steps, reply)
    listed = _read_decision_list(reply, steps)
    if listed is not None:
        if len(listed) != len(steps):
            message = f"The answer has {len(listed)} decisions; {len(steps)} are required."
            return {}, [DecisionProblem("decisions", message)]
        reply = {
            key: _convert_langchain(decision, steps[key])
            for key, decision in zip(steps, listed, strict=True)
        }
    if not isinstance(reply, Mapping) or not reply:
        message = (
            f"The answer {reply!r:.80} is not a decision. Fix: answer 'approve' or 'reject', or"
            ' {"<context_key>": {"decision": "..."}}.'
        )
        return {}, [DecisionProblem("", message)]
    problems = [
        DecisionProblem(
            str(key)[:_MAX_PATH_CHARS],
            f"The step {key!r:.80} does not wait for a decision. Waiting steps: {sorted(steps)}.",
        )
        for key in reply
        if key not in steps
    ]
    answers: dict[str, ApprovalDecision] = {}
    for key, step in steps.items():
        if key not in reply:
            problems.append(DecisionProblem(key, f"The decision for step {key!r} is missing."))
            continue
        answer, found = _parse_decision(key, reply[key], step)
        if answer is not None and not found:
            found = _check_decision(key, answer, step, registry, limits, view or TurnView({}))
        problems += [
            DecisionProblem(".".join([key, *path])[:_MAX_PATH_CHARS], message[:_MAX_MESSAGE_CHARS])
            for path, message in found
        ]
        if answer is not None:
            answers[key] = answer
    return answers, problems


def _read_decision_list(reply: Any, steps: Mapping[str, Any]) -> list[Any] | None:
    """Return the list of decisions in a reply from LangChain or Agent Inbox.

    Return ``None`` for replies in any other format.
    """
    if isinstance(reply, Mapping) and [*reply] == ["decisions"] and "decisions" not in steps:
        reply = reply["decisions"]
    is_list = isinstance(reply, list) and bool(reply)
    has_types = is_list and all(isinstance(one, Mapping) and "type" in one for one in reply)
    return reply if has_types else None


def _convert_langchain(decision: Mapping[str, Any], step: Mapping[str, Any]) -> Any:
    """Convert an approval decision from the format of LangChain or Agent Inbox."""
    fields = dict(decision)
    word = _INBOX_DECISIONS.get(fields["type"], fields["type"])
    converted: dict[str, Any] = {"decision": word}
    del fields["type"]
    if word == "edit":
        # LangChain has {"edited_action": {"name": …}}, Agent Inbox {"args": {"action": …}}.
        action = fields.pop("edited_action", None) or fields.pop("args", None)
        if isinstance(action, Mapping):
            action = dict(action)
            name = action.pop("name", action.pop("action", None))
            converted["parameters"] = action.pop("args", None)
            fields |= action
            if name != step["capability"]:
                fields["name"] = name  # an edit cannot choose another capability
    elif word == "respond" and "args" in fields:
        converted["message"] = fields.pop("args")
    elif word == "reject" and isinstance(fields.get("message"), str):
        converted["reason"] = fields.pop("message")
    if fields.get("args", ...) is None:
        del fields["args"]
    return {**fields, **converted}


def _parse_decision(
    key: str, reply: Any, step: Mapping[str, Any]
) -> tuple[ApprovalDecision | None, list[_Problem]]:
    if isinstance(reply, str):
        word = reply.strip().lower()
        reply = {"decision": _WORDS.get(word, word)}
    try:
        answer = ApprovalDecision.model_validate(reply)
    except PydanticValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
        return None, [
            (
                [str(part) for part in error["loc"]],
                f"The decision for step {key!r} is invalid:"
                f" {'.'.join(str(part) for part in error['loc']) or 'answer'}: {error['msg']}.",
            )
            for error in errors
        ]
    if answer.decision not in step["decisions"]:
        allowed = ", ".join(step["decisions"])
        message = f"{answer.decision!r} is not allowed for step {key!r}; use one of {allowed}."
        return None, [(["decision"], message)]
    for name, word in _DECISION_OF_FIELD.items():
        value = getattr(answer, name)
        if answer.decision != word and value and value != step.get(name):
            message = f"{answer.decision!r} for step {key!r} has no field {name}; {word!r} has."
            return None, [([name], message)]
    if answer.decision == "respond" and not answer.message.strip():
        return None, [(["message"], f"'respond' for step {key!r} requires a message.")]
    if answer.remember is not None and (answer.decision != "approve" or step["kind"] != STEP):
        message = f"Only 'approve' for a step can be remembered, not this decision for {key!r}."
        return None, [(["remember"], message)]
    if answer.remember is not None and restricts_approvers(step):
        message = f"Approvals of step {key!r} cannot be remembered: its approvers are restricted."
        return None, [(["remember"], message)]
    return answer, []


def _check_decision(
    key: str,
    answer: ApprovalDecision,
    step: Mapping[str, Any],
    registry: Registry,
    limits: Limits,
    view: TurnView,
) -> list[_Problem]:
    if answer.decision == "edit" and step["kind"] == PLAN:
        return _check_edited_plan(answer, registry, limits, view)
    if answer.decision == "edit":
        return _check_parameters(key, answer.parameters, step, registry)
    if answer.decision == "done":
        return _check_outputs(key, answer.outputs or {}, step, registry, view)
    return []


def _check_edited_plan(
    answer: ApprovalDecision, registry: Registry, limits: Limits, view: TurnView
) -> list[_Problem]:
    steps = answer.new_steps
    if not isinstance(steps, list):
        return [(["steps"], "'edit' of the plan requires 'steps': all steps of the new plan.")]
    # Complete what the approver wrote, but never replace it.
    plan = {"steps": steps}
    repaired = repair_plan(
        plan, registry, view.contexts, max_steps=limits.max_steps, additions_only=True
    )
    return [(["steps", *map(str, one.path)], str(one)) for one in repaired.problems]


def _check_parameters(
    key: str, parameters: Any, step: Mapping[str, Any], registry: Registry
) -> list[_Problem]:
    path = ["parameters"]
    if parameters is None:
        return [(path, f"'edit' for step {key!r} requires parameters.")]
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        return [(path, f"The parameters of step {key!r} are not plain JSON: {exc}.")]
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
        return [(path, f"Step {key!r}: {exc.message}")]
    return []


def _check_outputs(
    key: str,
    outputs: Mapping[str, Any],
    step: Mapping[str, Any],
    registry: Registry,
    view: TurnView,
) -> list[_Problem]:
    spec = registry.capabilities[step["capability"]]
    plan = PlanView(view.steps, registry, {}, None)
    required = {
        plan.type_of_input(index, read.label).removesuffix(MANY_SUFFIX)
        for index, reads in enumerate(plan.reads)
        for read in reads
        if read.key == plan_key(key)
    }
    needed = required & set(spec.provides)
    problems: list[_Problem] = [
        (["outputs", kind], f"Step {key!r} provides {list(spec.provides)}, not {kind}.")
        for kind in outputs
        if kind not in spec.provides
    ]
    problems += [
        (["outputs", kind], f"Other steps require {kind} of step {key!r}; add it to 'outputs'.")
        for kind in sorted(needed - outputs.keys())
    ]
    for kind, data in outputs.items():
        try:
            dump_context(kind, key, data, registry.context_types)
        except ValidationError as exc:
            problems.append((["outputs", kind], exc.message))
    return problems
