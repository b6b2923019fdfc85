"""How a turn ended, in a form that a program can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from capgraph.planning import TERMINAL_STEPS
from capgraph.state import TurnView

Status = Literal["completed", "partial", "failed", "stopped", "cancelled", "waiting"]


def describe_outcome(state: Mapping[str, Any], status: Status | None = None) -> dict[str, Any]:
    """Describe the end of a turn.

    Args:
        state: The state at its end.
        status: The status, when the caller knows better than the records.

    Returns:
        ``status``, ``done`` and ``missing`` (context keys), where there are any ``not_needed``,
        and after a failure ``reason``,
        ``severity``, ``origin`` and ``tried`` (key or node name to number of tries); where effects
        could be taken back, ``undone``. ``notes`` has sentences about the plan: additions to a
        caller's plan, defaults that nobody chose, and a look that a limit or a refused plan left
        without effect; ``missing`` then names the steps that the planner wanted besides.
    ``question`` names the questions that the turn's message dropped, by their ids and steps.

    >>> describe_outcome({})["status"]
    'completed'
    """
    results = state.get("execution_step_results") or {}
    planned = TurnView(state).steps_by_key
    wanted = [key for key, step in planned.items() if step.get("capability") not in TERMINAL_STEPS]
    undo = state.get("control_undo") or {}
    wanted = undo.get("wanted", wanted)
    done = [key for key in wanted if (results.get(key) or {}).get("success")]
    idle = [key for key in wanted if (results.get(key) or {}).get("not_needed")]
    missing = [key for key in wanted if key not in done and key not in idle]
    missing += [key for key in state.get("planning_missing") or () if key not in missing]
    missing += [copy for key in done for copy in results[key].get("missing") or ()]
    info = state.get("control_error_info") if state.get("control_has_error") else None
    if status is None:
        if info or state.get("control_is_killed"):
            status = "failed"
        else:
            status = "partial" if missing else "completed"
            if not wanted and state.get("control_reclassification_count"):
                # What was to be done was refused, and nothing else could do it.
                status = "failed"
    outcome: dict[str, Any] = {"status": status, "done": done, "missing": missing}
    if idle:
        outcome["not_needed"] = idle
    if undo:
        made = undo.get("steps") or {}
        outcome["undone"] = [
            key for key, step in made.items() if (results.get(step) or {}).get("success")
        ]
    if notes := list(dict.fromkeys(state.get("planning_notes") or ())):
        outcome["notes"] = notes
    if question := (state.get("control_turn") or {}).get("question"):
        outcome["question"] = question
    if status == "failed" and not info and state.get("control_reclassification_reason"):
        outcome["reason"] = state["control_reclassification_reason"]
    if info:
        metadata = (info.get("classification") or {}).get("metadata") or {}
        if metadata.get("code") in {"CG-LIMIT", "CG-STOPPED"}:
            outcome["status"] = "stopped"
        outcome |= {
            "reason": info.get("user_message"),
            "severity": (info.get("classification") or {}).get("severity"),
            "origin": info.get("context_key") or info.get("node_name"),
            "code": metadata.get("code") or metadata.get("category"),
            "tried": dict(state.get("control_attempts") or {}),
            "plans": state.get("control_plans_created_count", 0),
        }
    elif state.get("control_is_killed"):
        outcome |= {"status": "stopped", "reason": state.get("control_kill_reason")}
    return outcome


def waiting_outcome(state: Mapping[str, Any], waits: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a turn that waits, with what for and until when by context key.

    >>> waiting_outcome({}, {"mail": {"for": "paid"}})["waiting"]
    {'mail': {'for': 'paid'}}
    """
    return {**describe_outcome(state, "waiting"), "waiting": dict(waits)}
