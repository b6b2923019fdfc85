"""What the answers of a person do to the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.approvals.questions import PLAN, Answer
from framework.engine.services import Services
from framework.pipeline.effects import UNKNOWN
from framework.planning import fingerprints
from framework.state import dump_context


def apply_answers(
    answers: Mapping[str, Answer],
    state: Mapping[str, Any],
    services: Services,
    rules: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the state update of decisions about steps.

    Args:
        answers: The decisions, by context key.
        state: The graph's state.
        services: Shared dependencies.
        rules: Steps that a standing rule approved, with its id.
    """
    pending = dict(state.get("execution_pending_approvals") or {})
    plan = state["planning_execution_plan"]
    steps = {step["context_key"]: dict(step) for step in plan["steps"]}
    decisions: dict[str, dict[str, Any]] = {
        key: {"decision": "approve", "rule": rule} for key, rule in (rules or {}).items()
    }
    results: dict[str, Any] = {}
    contexts: dict[str, dict[str, Any]] = {}
    for key, answer in answers.items():
        asked = pending.get(key) or {}
        decisions[key] = _decision(answer, asked, steps[key], plan)
        if answer.decision == "edit":
            steps[key]["parameters"] = answer.parameters
        if answer.decision == "done":
            results[key] = _record(key, steps, success=True, outputs=answer.outputs or {})
            for kind, data in (answer.outputs or {}).items():
                plain = dump_context(kind, key, data, services.registry.context_types)
                contexts.setdefault(kind, {})[key] = plain
        # A skip of an unknown outcome is recorded when the step comes up again.
        if answer.decision == "skip" and asked.get("kind") != UNKNOWN:
            results[key] = _record(key, steps, success=False, outputs={})
    for key in decisions:
        if decisions[key]["decision"] not in {"reject", "respond"}:
            pending.pop(key, None)
    edited = {key for key, answer in answers.items() if answer.decision == "edit"}
    update: dict[str, Any] = {
        "planning_execution_plan": _restamped({**plan, "steps": list(steps.values())}, edited),
        "execution_pending_approvals": pending,
        "approval_decisions": decisions,
        "approved_payload": {
            key: answer.model_dump(mode="json") for key, answer in answers.items()
        },
    }
    if results:
        update["execution_step_results"] = results
    if contexts:
        update["capability_context_data"] = contexts
    rejected = {key: a.reason for key, a in answers.items() if a.decision == "reject"}
    names = {key: steps[key]["capability"] for key in rejected}
    return {**update, **ending(answers, rejected, names, state, services)}


def ending(
    answers: Mapping[str, Answer],
    rejected: Mapping[str, str],
    names: Mapping[str, str],
    state: Mapping[str, Any],
    services: Services,
) -> dict[str, Any]:
    """Return what rejections and answers in words change about the turn."""
    update: dict[str, Any] = {}
    if rejected:
        update |= _rejection(rejected, names, state, services)
    responses = [a.message for a in answers.values() if a.decision == "respond"]
    if responses:
        update["task_custom_message"] = "\n\n".join(responses)
    update["approval_approved"] = not rejected and not responses
    return update


def plan_rejected(answer: Answer, state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Remember which plan a person rejected, so that it is not shown again."""
    prints = fingerprints(state["planning_execution_plan"])
    entry = {
        "decision": "reject",
        "reason": answer.reason,
        "fingerprints": sorted(prints.values()),
    }
    return {PLAN: entry}


def _decision(
    answer: Answer, asked: Mapping[str, Any], step: Mapping[str, Any], plan: Any
) -> dict[str, Any]:
    entry: dict[str, Any] = {"decision": answer.decision}
    if answer.decision == "edit":
        entry["before"] = step.get("parameters") or {}
    if asked.get("kind") == UNKNOWN:
        entry |= {UNKNOWN: answer.decision, "run": asked.get("run")}
    if answer.decision in {"approve", "reject"}:
        # A later plan of this turn is held against what was agreed to and what was not.
        entry["fingerprints"] = [fingerprints(plan).get(step["context_key"])]
    if answer.decision == "reject":
        entry["reason"] = answer.reason
    return entry


def _record(
    key: str, steps: Mapping[str, Any], *, success: bool, outputs: Mapping[str, Any]
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step_index": list(steps).index(key),
        "capability": steps[key]["capability"],
        "task_objective": steps[key].get("task_objective"),
        "success": success,
        "decided_by_person": True,
        "outputs": dict.fromkeys(outputs, key),
    }
    if not success:
        record |= {"skipped": True, "error": "Skipped by a person."}
    return record


def _restamped(plan: dict[str, Any], edited: set[str]) -> dict[str, Any]:
    """Drop the remembered fingerprints of edited steps and of all that reads what they make."""
    stamp = plan.get("stamp") or {}
    if not edited or "fingerprints" not in stamp:
        return plan
    changed = set(edited)
    for step in plan["steps"]:
        links = {name for entry in step.get("inputs") or [] for name in entry.values()}
        if links & changed:
            changed.add(step["context_key"])
    kept = {key: value for key, value in stamp["fingerprints"].items() if key not in changed}
    return {**plan, "stamp": {**stamp, "fingerprints": kept}}


def _rejection(
    rejected: Mapping[str, str],
    names: Mapping[str, str],
    state: Mapping[str, Any],
    services: Services,
) -> dict[str, Any]:
    key, reason = next(iter(rejected.items()))
    # One question is one rejection, however many steps it has.
    count = (state.get("control_attempts") or {}).get("approval", 0) + 1
    bound = services.settings.approvals.max_rejections
    severity = "replanning" if count < bound else "critical"
    message = f"A person rejected step {key!r} ({names[key]}): {reason or 'no reason was given'}."
    if key == PLAN:
        message = f"A person rejected the plan: {reason or 'no reason was given'}."
    return {
        "control_has_error": True,
        "control_attempts": {"approval": count},
        "control_error_info": {
            "capability_name": names[key],
            "context_key": key,
            "rejected": sorted(rejected),
            "classification": {
                "severity": severity,
                "user_message": message,
                "metadata": {"rejected_by_person": dict(rejected), "category": "rejected"},
            },
            "user_message": message,
            "original_error": message,
        },
    }
