"""The router's decision: one pure function from state to route, tested as a table.

It reads the state and writes nothing; the router node does what the route says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import plan_key
from capgraph.base.ports import Failure
from capgraph.configs.settings_model import Limits
from capgraph.engine.caller_plan import is_accepted
from capgraph.pipeline.retry_policy import has_attempts_left
from capgraph.planning import TERMINAL_STEPS, Catalog, ready_steps
from capgraph.planning.waits import WAIT_TYPE
from capgraph.state import TurnView

RUN = "capabilities"
FATAL = "fatal"
ACCEPT = "accept"
REVIEWED_KEY = "looked"
"""In the record of a step: the planner has seen its result."""
_REPLANNING_NODES = {
    ErrorSeverity.REPLANNING: "orchestrator",
    ErrorSeverity.RECLASSIFICATION: "classifier",
}


class Route(NamedTuple):
    """Where the run goes next.

    Attributes:
        target: A node's name, ``"capabilities"`` (run what is ready), ``"accept"`` (check the
            plan first) or ``"fatal"`` (raise).
        reason: Why, in words.
        failures: Failures so far of what is tried again; sets the wait. 0 for no retry.
        steps: Context keys that are ready, for ``capabilities`` and ``approval``.
    """

    target: str
    reason: str
    failures: int = 0
    steps: tuple[str, ...] = ()


def route(state: Mapping[str, Any], registry: Catalog, limits: Limits) -> Route:
    """Decide what happens next.

    Args:
        state: The graph's state.
        registry: What is registered.
        limits: The bounds of a run.
    """
    if state.get("control_is_killed"):
        return Route("error", state.get("control_kill_reason") or "The run was stopped.")
    if (state.get("control_undo") or {}).get("open"):
        return _route_undo(state, registry, limits)
    info = state.get("control_error_info")
    if state.get("control_has_error") and info:
        return _route_failure(state, Failure.from_state(info), limits)
    if state.get("planning_execution_plan") is None:
        if not state.get("task_current_task"):
            return Route("task_extraction", "There is no task yet.")
        if state.get("planning_active_capabilities") is None:
            return Route("classifier", "No capabilities are chosen yet.")
        return Route("orchestrator", "There is no plan yet.")
    if not is_accepted(state):
        return Route(ACCEPT, "The plan has not been checked.")
    return _next_steps(state, registry)


def _route_undo(state: Mapping[str, Any], registry: Catalog, limits: Limits) -> Route:
    """Decide while a plan takes effects back: it ends with the failure, and nothing is planned."""
    info = state.get("control_error_info")
    if state.get("control_has_error") and info:
        found = _route_failure(state, Failure.from_state(info), limits)
    elif not is_accepted(state):
        return Route(ACCEPT, "The plan has not been checked.")
    else:
        found = _next_steps(state, registry)
    on = found.target in (RUN, FATAL, "approval")
    return found if on else Route("error", "What could be undone is undone.")


def _route_failure(state: Mapping[str, Any], failure: Failure, limits: Limits) -> Route:
    message = failure.message or "Something failed."
    attempts = state.get("control_attempts") or {}
    budget = state.get("control_budget") or {}
    again = False
    match failure.severity:
        case ErrorSeverity.FATAL:
            return Route(FATAL, message)
        case ErrorSeverity.RETRIABLE:
            failures = attempts.get(failure.key or failure.node, 1)
            # A step's tries are counted where it runs; one that was cut short has some left.
            if has_attempts_left(failure, limits, failures) and not (failure.key and failure.final):
                steps = (failure.key,) if failure.key else ()
                return Route(failure.node or RUN, message, failures=failures, steps=steps)
        case ErrorSeverity.REPLANNING:
            # What the turn has used up counts, whatever a node of one's own writes or leaves out.
            made = max(
                state.get("control_plans_created_count", 0) + attempts.get("orchestrator", 0),
                budget.get("plans", 0),
            )
            # Without a choice of capabilities (it failed, or the caller brought the plan) there
            # is nothing to plan from. Rejections have a bound of their own, which the approval
            # node keeps.
            possible = state.get("planning_active_capabilities") is not None
            rejected = failure.metadata.get("rejected_by_person") is not None
            again = possible and (rejected or made < limits.max_planning_attempts)
        case ErrorSeverity.RECLASSIFICATION:
            chosen = max(
                state.get("control_reclassification_count", 0) + attempts.get("classifier", 0),
                budget.get("classifications", 0) - 1,
            )
            again = (
                bool(state.get("task_current_task"))
                and chosen < limits.max_reclassifications
                and budget.get("plans", 0) < limits.max_planning_attempts
            )
    return Route(_REPLANNING_NODES[failure.severity] if again else "error", message)


def _next_steps(state: Mapping[str, Any], registry: Catalog) -> Route:
    if state.get("task_custom_message"):
        return Route("respond", "The answer is there already.")
    plan = state["planning_execution_plan"]
    steps = plan.get("steps") or []
    results = state.get("execution_step_results") or {}
    done = {key for key, record in results.items() if record.get("success")}
    todo = [step for step in steps if step.get("capability") not in TERMINAL_STEPS]
    if state.get("control_is_awaiting_validation"):
        return Route("approval", "A person looks at the plan first.")
    settled = {*done, *(key for key, record in results.items() if record.get("skipped"))}
    gone = _unregistered_steps(todo, registry, settled)
    if gone:
        # The thread is older than the registry; a checked plan names nothing unknown.
        names = sorted({step["capability"] for step in todo if step["context_key"] in gone})
        return Route("approval", f"No longer registered: {', '.join(names)}.", steps=gone)
    if looks := due_reviews(steps, results):
        ended = ", ".join(map(repr, looks))
        return Route("orchestrator", f"{ended} ended: the rest is looked at again.", steps=looks)
    if all(step["context_key"] in settled for step in todo):
        last = steps[-1]["capability"] if steps else "respond"
        return Route(last if last in TERMINAL_STEPS else "respond", "Every step is done.")
    pending = state.get("execution_pending_approvals") or {}
    waiting = TurnView(state).suspended_keys
    closing = {step["context_key"] for step in steps if step["capability"] in TERMINAL_STEPS}
    ready = [key for key in ready_steps(plan, settled) if key not in closing]
    free = tuple(key for key in ready if key not in waiting)
    if free:
        return Route(RUN, f"{len(free)} step(s) can run.", steps=free)
    order = {key: place for place, key in enumerate(ready)}
    open_ones = (
        key for key in pending if plan_key(key) in order and pending[key]["kind"] != WAIT_TYPE
    )
    asked = tuple(sorted(open_ones, key=lambda key: order[plan_key(key)]))
    if asked:
        return Route("approval", f"{len(asked)} step(s) need a decision.", steps=asked)
    if waiting:
        ours = (key for key in pending if plan_key(key) in order)
        told = "; ".join(f"{key} waits {pending[key]['reason']}" for key in ours)
        return Route("approval", f"{told}.")
    return Route("error", "No step of the plan can run: an input has no supplier.")


def due_reviews(
    steps: Sequence[Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return the keys of the ended steps whose results the planner has to look at now.

    They are those with ``look_again``, and those whose failure is observed. If the closing step has
    it, they are all that the planner has not seen, once every step has ended.

    >>> steps = [{"context_key": "a"}, {"context_key": "z", "capability": "respond", "look_again": True}]
    >>> due_reviews(steps, {}), due_reviews(steps, {"a": {"success": True}})
    ((), ('a',))
    """
    work = [step for step in steps if step.get("capability") not in TERMINAL_STEPS]
    records = {key: results.get(key) or {} for step in work if (key := step["context_key"])}
    at_end = ends_with_review(steps)
    due = tuple(
        key
        for step in work
        if _is_review_due(record := records[key := step["context_key"]])
        and (step.get("look_again") or (record.get("observed") and not at_end))
    )
    if due or not at_end:
        return due
    if not all(record.get("success") or record.get("skipped") for record in records.values()):
        return ()
    return tuple(key for key, record in records.items() if REVIEWED_KEY not in record)


def ends_with_review(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the planner looks at the results before the plan's answer."""
    return bool(
        steps and steps[-1].get("capability") in TERMINAL_STEPS and steps[-1].get("look_again")
    )


def _is_review_due(record: Mapping[str, Any]) -> bool:
    ended = record.get("success") or (record.get("skipped") and "not_needed" not in record)
    return bool(ended) and REVIEWED_KEY not in record


def _unregistered_steps(
    todo: list[Mapping[str, Any]], registry: Catalog, ended: set[str]
) -> tuple[str, ...]:
    return tuple(
        step["context_key"]
        for step in todo
        if step.get("capability") not in registry.capabilities and step["context_key"] not in ended
    )
