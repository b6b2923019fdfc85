"""Machine-readable description of a turn's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from capgraph.planning import TERMINAL_STEPS
from capgraph.state import TurnView

Status = Literal["completed", "partial", "failed", "stopped", "cancelled", "waiting"]


def describe_outcome(state: Mapping[str, Any], status: Status | None = None) -> dict[str, Any]:
    """Describe the outcome of a turn as plain data.

    The keys ``status``, ``done``, and ``missing`` (context keys) are always present. Optional keys
    are:

    - ``not_needed``: steps that were skipped because their condition was false;
    - ``reason``, ``severity``, ``origin``, and ``tried`` (number of attempts by key or node), after
      a failure;
    - ``undone``: effects that were undone;
    - ``notes``: sentences about the plan, such as additions to a caller's plan and defaults. If a
      plan review had no effect, ``missing`` includes the steps that the planner wanted to add;
    - ``dialogue``: capability that receives the next message of the thread;
    - ``question``: IDs and steps of the questions that the turn's message dropped.

    Args:
        state: State at the end of the turn.
        status: Status of the turn. By default, it is derived from the step records.

    >>> describe_outcome({})["status"]
    'completed'
    """
    results = state.get("execution_step_results") or {}
    work_keys = _list_work_keys(TurnView(state).steps_by_key)
    is_plan_refused = not work_keys and bool(state.get("control_reclassification_count"))
    if is_plan_refused and (history := state.get("planning_history")):
        # The selection of other capabilities dropped the plan, whose finished steps still count.
        work_keys = _list_work_keys({s["context_key"]: s for s in history[-1]["plan"]["steps"]})
    undo = state.get("control_undo") or {}
    work_keys = undo.get("wanted", work_keys)
    done = [key for key in work_keys if (results.get(key) or {}).get("success")]
    not_needed = [key for key in work_keys if (results.get(key) or {}).get("not_needed")]
    missing = [key for key in work_keys if key not in done and key not in not_needed]
    missing += [key for key in state.get("planning_missing") or () if key not in missing]
    missing += [copy for key in done for copy in results[key].get("missing") or ()]
    info = state.get("control_error_info") if state.get("control_has_error") else None
    if status is None:
        if info or state.get("control_is_killed"):
            status = "failed"
        else:
            status = "partial" if missing else "completed"
            if is_plan_refused:  # and no other capability could do the work
                status = "failed"
    outcome: dict[str, Any] = {"status": status, "done": done, "missing": missing}
    if not_needed:
        outcome["not_needed"] = not_needed
    if undo:
        undo_steps = undo.get("steps") or {}
        outcome["undone"] = [
            key for key, step in undo_steps.items() if (results.get(step) or {}).get("success")
        ]
    if notes := list(dict.fromkeys(state.get("planning_notes") or ())):
        outcome["notes"] = notes
    outcome |= _describe_thread(state, status)
    if status == "failed" and not info and state.get("control_reclassification_reason"):
        outcome["reason"] = state["control_reclassification_reason"]
    if info:
        outcome |= _describe_failure(state, info)
    elif state.get("control_is_killed"):
        outcome |= {"status": "stopped", "reason": state.get("control_kill_reason")}
    return outcome


def _describe_thread(state: Mapping[str, Any], status: Status) -> dict[str, Any]:
    """Return the dropped question and the open dialogue of a turn, if any.

    A turn that failed or was canceled has no open dialogue.
    """
    question = (state.get("control_turn") or {}).get("question")
    dialogue = state.get("control_dialogue") if status not in ("failed", "cancelled") else None
    return {
        **({"question": question} if question else {}),
        **({"dialogue": dialogue["capability"]} if dialogue else {}),
    }


def _describe_failure(state: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """Describe why a turn failed. A turn that hit a limit or was stopped has its own status."""
    classification = info.get("classification") or {}
    metadata = classification.get("metadata") or {}
    is_stopped = metadata.get("code") in {"CG-LIMIT", "CG-STOPPED"}
    return {
        **({"status": "stopped"} if is_stopped else {}),
        "reason": info.get("user_message"),
        "severity": classification.get("severity"),
        "origin": info.get("context_key") or info.get("node_name"),
        "code": metadata.get("code") or metadata.get("category"),
        "tried": dict(state.get("control_attempts") or {}),
        "plans": state.get("control_plans_created_count", 0),
    }


def _list_work_keys(steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [key for key, step in steps.items() if step.get("capability") not in TERMINAL_STEPS]


def waiting_outcome(state: Mapping[str, Any], pending_waits: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the outcome of a waiting turn, including the details of each wait.

    >>> waiting_outcome({}, {"mail": {"for": "paid"}})["waiting"]
    {'mail': {'for': 'paid'}}
    """
    return {**describe_outcome(state, "waiting"), "waiting": dict(pending_waits)}
