"""One pass of the router over the plan: run what is ready and bring the results together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.engine.ready_queue import PlanRun, failure_update, merge_updates
from framework.engine.services import Services
from framework.pipeline.effects import EffectGuard
from framework.planning import CLOSING
from framework.state import REDUCED_KEYS, append, merge_by_key, merge_context


@dataclass(slots=True)
class Pass:
    """What a pass changed.

    Attributes:
        writes: Channel writes, in order.
        view: The state as it is after them.
        draining: Whether the process is to stop, so that the next pass belongs to another.
    """

    writes: list[tuple[str, Any]]
    view: dict[str, Any]
    draining: bool = False


async def run_ready_steps(state: Mapping[str, Any], services: Services) -> Pass:
    """Run every step that can run now and return the state's changes.

    Raises:
        FatalExecutionError: A step failed with severity FATAL.
    """
    journal = services.journal()
    info = state.get("runtime_info") or {}
    guard = EffectGuard(journal, int(info.get("turn") or 0))
    waiting = state.get("execution_pending_approvals") or {}
    run = PlanRun(state, services, guard)
    result = await run.run(waiting)
    writes = merge_updates(result.updates)
    view = _applied(state, writes)
    more: dict[str, Any] = {
        "planning_current_step_index": _current_index(view),
        "runtime_info": {**info, "seconds_used": run.seconds_used},
        **failure_update(result.failures),
    }
    last = _last_result(view, result.updates)
    if last:
        more["execution_last_result"] = last
    if result.unknown:
        more["execution_pending_approvals"] = {**waiting, **result.unknown}
    if not result.failures and state.get("control_has_error"):
        more |= {
            "control_has_error": False,
            "control_error_info": None,
            "control_last_error": state.get("control_error_info"),
            "control_retry_count": 0,
            "control_current_step_retry_count": 0,
        }
    return Pass([*writes, *more.items()], {**view, **more}, run.drain_requested())


def _applied(state: Mapping[str, Any], writes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Apply writes as the graph's reducers will, so that routing can go on before the superstep."""
    view = dict(state)
    for name, value in writes:
        if name == "capability_context_data":
            view[name] = merge_context(view.get(name), value)
        elif name not in REDUCED_KEYS:
            view[name] = value
        elif isinstance(value, Mapping):
            view[name] = merge_by_key(view.get(name), value)
        else:
            items = list(value) if isinstance(value, (list, tuple)) else [value]
            view[name] = append(view.get(name), items)
    return view


def _current_index(view: Mapping[str, Any]) -> int:
    results = view.get("execution_step_results") or {}
    steps = view["planning_execution_plan"].get("steps") or []
    for index, step in enumerate(steps):
        if step["capability"] in CLOSING or not (results.get(step["context_key"]) or {}).get(
            "success"
        ):
            return index
    return len(steps)


def _last_result(view: Mapping[str, Any], updates: list[dict[str, Any]]) -> dict[str, Any] | None:
    keys = [key for update in updates for key in update.get("execution_step_results") or {}]
    if not keys:
        return None
    record = view["execution_step_results"][keys[-1]]
    fields = ("capability", "success", "execution_time", "timestamp", "error")
    return {name: record[name] for name in fields if name in record}
