"""Questions to a person and what their answers do. Pure but for reading the clock of nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticValidationError

from framework.execution.services import Services

QUESTION_VERSION = 1


class Answer(BaseModel):
    """One decision.

    Attributes:
        decision: ``approve``, ``edit`` (with ``parameters``), ``reject`` (with ``reason``),
            ``respond`` (with ``message``, which ends the turn), or for a step of unknown outcome
            ``rerun`` or ``skip``.
        parameters: New parameters, for ``edit``.
        reason: Why, for ``reject``.
        message: What to say instead, for ``respond``.
    """

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "edit", "reject", "respond", "rerun", "skip"]
    parameters: dict[str, Any] | None = None
    reason: str = Field("", max_length=4000)
    message: str = Field("", max_length=20_000)


def question_for(
    keys: Sequence[str], state: Mapping[str, Any], services: Services
) -> dict[str, Any]:
    """Describe what a person is asked, as plain data."""
    plan = state.get("planning_execution_plan") or {}
    steps = {step["context_key"]: step for step in plan.get("steps") or []}
    pending = state.get("execution_pending_approvals") or {}
    entries = []
    for key in keys:
        step, asked = steps[key], pending.get(key) or {}
        spec = services.registry.capabilities[step["capability"]]
        unknown = asked.get("kind") == "unknown_outcome"
        entries.append(
            {
                "context_key": key,
                "capability": spec.name,
                "description": spec.description,
                "effect": spec.effect,
                "task_objective": step.get("task_objective"),
                "parameters": step.get("parameters") or {},
                "inputs": step.get("inputs") or [],
                "kind": asked.get("kind", "step"),
                "reason": asked.get("reason"),
                "decisions": ["rerun", "skip", "reject"]
                if unknown
                else ["approve", "edit", "reject", "respond"],
            }
        )
    return {
        "type": "approval",
        "version": QUESTION_VERSION,
        "plan": (plan.get("stamp") or {}).get("id"),
        "steps": entries,
    }


def read_answers(
    given: Any, question: Mapping[str, Any], services: Services
) -> tuple[dict[str, Answer], list[str]]:
    """Read an answer: one word for all steps, or a mapping by context key.

    Returns:
        The decisions, and what is wrong with them; with a problem the question stays open.
    """
    steps = {step["context_key"]: step for step in question["steps"]}
    if isinstance(given, str):
        word = given.strip().lower()
        word = {"yes": "approve", "y": "approve", "no": "reject", "n": "reject"}.get(word, word)
        given = {key: {"decision": word} for key in steps}
    if not isinstance(given, Mapping) or not given:
        return {}, [
            f"The answer {given!r:.80} cannot be read. Fix: answer 'approve' or 'reject', or"
            ' {"<context_key>": {"decision": "..."}}.'
        ]
    problems: list[str] = []
    answers: dict[str, Answer] = {}
    for key in given:
        if key not in steps:
            problems.append(f"No step {key!r:.80} is waiting; waiting are {sorted(steps)}.")
    for key, step in steps.items():
        if key not in given:
            problems.append(f"There is no decision for step {key!r}.")
            continue
        answer, found = _read_one(key, given[key], step, services)
        problems += found
        if answer is not None:
            answers[key] = answer
    return answers, problems


def _read_one(
    key: str, given: Any, step: Mapping[str, Any], services: Services
) -> tuple[Answer | None, list[str]]:
    if isinstance(given, str):
        given = {"decision": given}
    try:
        answer = Answer.model_validate(given)
    except PydanticValidationError as exc:
        where = "; ".join(
            f"{'.'.join(str(p) for p in e['loc']) or 'answer'}: {e['msg']}"
            for e in exc.errors(include_url=False, include_input=False)
        )
        return None, [f"The answer for step {key!r} does not fit: {where}."]
    if answer.decision not in step["decisions"]:
        allowed = ", ".join(step["decisions"])
        return None, [f"{answer.decision!r} is no answer for step {key!r}; use one of {allowed}."]
    if answer.decision == "respond" and not answer.message:
        return None, [f"'respond' for step {key!r} needs a message."]
    if answer.decision != "edit":
        return answer, []
    model = services.registry.capabilities[step["capability"]].parameters
    if answer.parameters is None:
        return None, [f"'edit' for step {key!r} needs parameters."]
    if model is not None:
        try:
            model.model_validate(answer.parameters)
        except PydanticValidationError as exc:
            return None, [
                f"parameters.{'.'.join(str(p) for p in e['loc'])} of step {key!r}: {e['msg']}."
                for e in exc.errors(include_url=False, include_input=False)
            ]
    return answer, []


def apply_answers(
    answers: Mapping[str, Answer],
    question: Mapping[str, Any],
    state: Mapping[str, Any],
    services: Services,
) -> dict[str, Any]:
    """Return the state update of a person's decisions."""
    pending = dict(state.get("execution_pending_approvals") or {})
    plan = state["planning_execution_plan"]
    steps = [dict(step) for step in plan["steps"]]
    by_key = {step["context_key"]: step for step in steps}
    decisions: dict[str, dict[str, Any]] = {}
    update: dict[str, Any] = {}
    for key, answer in answers.items():
        entry: dict[str, Any] = {"decision": answer.decision}
        if answer.decision in {"approve", "edit"}:
            pending.pop(key, None)
        if answer.decision == "edit":
            entry["before"] = by_key[key].get("parameters") or {}
            by_key[key]["parameters"] = answer.parameters
        if answer.decision in {"rerun", "skip"}:
            pending.pop(key, None)
            entry["unknown_outcome"] = answer.decision
        decisions[key] = entry
    rejected = {k: a for k, a in answers.items() if a.decision == "reject"}
    responses = [a.message for a in answers.values() if a.decision == "respond"]
    if rejected:
        update |= _rejection(rejected, by_key, state, services)
    if responses:
        update["task_custom_message"] = "\n\n".join(responses)
    return {
        **update,
        "execution_pending_approvals": pending,
        "approval_decisions": decisions,
        "approval_approved": not rejected and not responses,
        "approved_payload": {key: answer.model_dump() for key, answer in answers.items()},
        "planning_execution_plan": {**plan, "steps": steps},
    }


def _rejection(
    rejected: Mapping[str, Answer],
    steps: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any],
    services: Services,
) -> dict[str, Any]:
    key, answer = next(iter(rejected.items()))
    capability = steps[key]["capability"]
    earlier = (state.get("control_attempts") or {}).get("approval", 0)
    bound = services.settings.approvals.max_rejections
    severity = "replanning" if earlier + len(rejected) < bound else "critical"
    reason = answer.reason or "no reason was given"
    message = f"A person rejected step {key!r} ({capability}): {reason}."
    return {
        "control_has_error": True,
        "control_attempts": {"approval": earlier + len(rejected)},
        "control_error_info": {
            "capability_name": capability,
            "context_key": key,
            "rejected": sorted(rejected),
            "classification": {
                "severity": severity,
                "user_message": message,
                "metadata": {"rejected_by_person": reason},
            },
            "user_message": message,
            "original_error": message,
        },
    }
