"""Routing decision of the router node: a pure function from state to route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import plan_key
from capgraph.base.ports import Failure
from capgraph.configs.limits import Limits
from capgraph.engine.caller_plan import is_accepted
from capgraph.pipeline.retry_policy import has_attempts_left
from capgraph.planning import TERMINAL_STEPS, Catalog, ready_steps
from capgraph.planning.waits import WAIT_TYPE
from capgraph.state import TurnView

RUN = "capabilities"
FATAL = "fatal"
ACCEPT = "accept"
REVIEWED_KEY = "looked"
"""Key in a step's result entry; it is set if the planner has seen the result."""
_REPLANNING_NODES = {
    ErrorSeverity.REPLANNING: "orchestrator",
    ErrorSeverity.RECLASSIFICATION: "classifier",
}


class Route(NamedTuple):
    """Routing decision: the next node to run, and the reason for the choice.

    Attributes:
        target: Name of a node, ``"capabilities"`` (run ready steps), ``"accept"`` (validate the
            plan first), or ``"fatal"`` (raise an error).
        reason: Reason for the decision.
        failures: Number of failures so far, which sets the retry delay. 0 without a retry.
        steps: Context keys of the ready steps, for ``capabilities`` and ``approval``.
    """

    target: str
    reason: str
    failures: int = 0
    steps: tuple[str, ...] = ()


def route(state: Mapping[str, Any], registry: Catalog, limits: Limits) -> Route:
    """Choose the node of the agent graph that runs next, based on the graph's state.

    Args:
        state: State of the graph.
        registry: Registered capabilities and nodes.
        limits: Limits of a run.
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
        attempts = (state.get("control_budget") or {}).get("plans", 0)
        if attempts >= limits.max_planning_attempts:
            return Route("error", f"The orchestrator returned no plan in {attempts} attempts.")
        return Route("orchestrator", "There is no plan yet.")
    if not is_accepted(state):
        return Route(ACCEPT, "The plan has not been checked.")
    return _route_next_steps(state, registry)


def _route_undo(state: Mapping[str, Any], registry: Catalog, limits: Limits) -> Route:
    """Choose the next node of a failed turn that is undoing effects before it ends."""
    info = state.get("control_error_info")
    if state.get("control_has_error") and info:
        decision = _route_failure(state, Failure.from_state(info), limits)
    elif not is_accepted(state):
        return Route(ACCEPT, "The plan has not been checked.")
    else:
        decision = _route_next_steps(state, registry)
    continues = decision.target in (RUN, FATAL, "approval")
    return decision if continues else Route("error", "All effects that can be undone are undone.")


def _route_failure(state: Mapping[str, Any], failure: Failure, limits: Limits) -> Route:
    message = failure.message or "Something failed."
    attempts = state.get("control_attempts") or {}
    budget = state.get("control_budget") or {}
    may_repeat = False
    match failure.severity:
        case ErrorSeverity.FATAL:
            return Route(FATAL, message)
        case ErrorSeverity.RETRIABLE:
            failures = attempts.get(failure.key or failure.node, 1)
            # A step counts its attempts where it runs. A step that was cut short has some left.
            if has_attempts_left(failure, limits, failures) and not (failure.key and failure.final):
                steps = (failure.key,) if failure.key else ()
                return Route(failure.node or RUN, message, failures=failures, steps=steps)
        case ErrorSeverity.REPLANNING:
            # The budget of the turn counts, even if a custom node does not update the counters.
            plans_made = max(
                state.get("control_plans_created_count", 0) + attempts.get("orchestrator", 0),
                budget.get("plans", 0),
            )
            # Replanning requires selected capabilities. There are none if the selection failed or
            # the caller sent the plan. The approval node limits the number of rejections.
            possible = state.get("planning_active_capabilities") is not None
            rejected = failure.metadata.get("rejected_by_person") is not None
            may_repeat = possible and (rejected or plans_made < limits.max_planning_attempts)
        case ErrorSeverity.RECLASSIFICATION:
            selections = max(
                state.get("control_reclassification_count", 0) + attempts.get("classifier", 0),
                budget.get("classifications", 0) - 1,
            )
            may_repeat = (
                bool(state.get("task_current_task"))
                and selections < limits.max_reclassifications
                and budget.get("plans", 0) < limits.max_planning_attempts
            )
    return Route(_REPLANNING_NODES[failure.severity] if may_repeat else "error", message)


def _route_next_steps(state: Mapping[str, Any], registry: Catalog) -> Route:
    if state.get("task_custom_message"):
        return Route("respond", "The answer already exists.")
    plan = state["planning_execution_plan"]
    steps = plan.get("steps") or []
    results = state.get("execution_step_results") or {}
    done = {key for key, record in results.items() if record.get("success")}
    work = [step for step in steps if step.get("capability") not in TERMINAL_STEPS]
    if state.get("control_is_awaiting_validation"):
        return Route("approval", "A person must review the plan first.")
    ended_keys = {*done, *(key for key, record in results.items() if record.get("skipped"))}
    unregistered = _find_unregistered_steps(work, registry, ended_keys)
    if unregistered:
        # The registry changed after the plan was checked.
        names = sorted({step["capability"] for step in work if step["context_key"] in unregistered})
        return Route("approval", f"No longer registered: {', '.join(names)}.", steps=unregistered)
    if reviews := due_reviews(steps, results):
        reviewed_names = ", ".join(map(repr, reviews))
        return Route(
            "orchestrator", f"{reviewed_names} ended: the planner reviews the rest.", steps=reviews
        )
    if all(step["context_key"] in ended_keys for step in work):
        last = steps[-1]["capability"] if steps else "respond"
        return Route(last if last in TERMINAL_STEPS else "respond", "Every step is done.")
    pending = state.get("execution_pending_approvals") or {}
    waiting = TurnView(state).suspended_keys
    closing = {step["context_key"] for step in steps if step["capability"] in TERMINAL_STEPS}
    ready = [key for key in ready_steps(plan, ended_keys) if key not in closing]
    runnable = tuple(key for key in ready if key not in waiting)
    if runnable:
        return Route(RUN, f"{len(runnable)} step(s) can run.", steps=runnable)
    order = {key: index for index, key in enumerate(ready)}
    open_ones = (
        key for key in pending if plan_key(key) in order and pending[key]["kind"] != WAIT_TYPE
    )
    open_keys = tuple(sorted(open_ones, key=lambda key: order[plan_key(key)]))
    if open_keys:
        return Route("approval", f"{len(open_keys)} step(s) need a decision.", steps=open_keys)
    if waiting:
        ours = (key for key in pending if plan_key(key) in order)
        reasons = "; ".join(f"{key} waits {pending[key]['reason']}" for key in ours)
        return Route("approval", f"{reasons}.")
    return Route("error", "No step of the plan can run: no step provides a required input.")


def due_reviews(
    steps: Sequence[Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return the keys of the finished steps whose results the planner must review now.

    A step is due for review if it has ``look_again`` or an observed failure. If the final step
    of the plan has ``look_again``, all steps not yet reviewed become due once every step has
    finished.

    Args:
        steps: Steps of the plan.
        results: State entries of the finished steps, by context key.

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
    """Return True if the planner must review the step results before answering the turn."""
    return bool(
        steps and steps[-1].get("capability") in TERMINAL_STEPS and steps[-1].get("look_again")
    )


def _is_review_due(record: Mapping[str, Any]) -> bool:
    has_ended = record.get("success") or (record.get("skipped") and "not_needed" not in record)
    return bool(has_ended) and REVIEWED_KEY not in record


def _find_unregistered_steps(
    work: list[Mapping[str, Any]], registry: Catalog, ended: set[str]
) -> tuple[str, ...]:
    return tuple(
        step["context_key"]
        for step in work
        if step.get("capability") not in registry.capabilities and step["context_key"] not in ended
    )
