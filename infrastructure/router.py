"""Does what the routing decision says: runs what is ready, or sends the turn elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from langgraph.types import Command

from framework.base import BaseInfrastructureNode, FatalExecutionError, infrastructure_node
from framework.engine import Services
from framework.engine.pass_over_plan import run_ready_steps
from framework.engine.routing import FATAL, RUN, Route, route
from framework.pipeline.retry_policy import RetryPolicy, wait_seconds
from framework.state import AgentState
from framework.telemetry import Reclassify, Replan, Retry, emit


@infrastructure_node(quiet=True)
class RouterNode(BaseInfrastructureNode):
    """The only node that branches. Decides with ``route`` and writes what it decided."""

    name = "router"
    description = "Routing"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> Command[Any]:
        """Run steps until another node has to act.

        Raises:
            FatalExecutionError: A failure was classified FATAL.
        """
        view: dict[str, Any] = dict(state)
        updates: list[tuple[str, Any]] = []
        routed = int(state.get("control_routing_count") or 0)
        while True:
            routed += 1
            decision = route(view, services.registry, services.limits)
            if decision.target == FATAL:
                raise FatalExecutionError(
                    f"{decision.reason}. Execution terminated due to system-level failure."
                )
            if decision.target != RUN:
                break
            if decision.failures:
                await _wait(view, decision, services)
            changed = await run_ready_steps(view, services)
            updates += changed.writes
            view = changed.view
            if changed.draining:
                # LangGraph stops between supersteps; whoever resumes comes back here.
                decision = Route("router", "The process is to stop.")
                break
        if decision.failures:
            await _wait(view, decision, services)
        _announce(decision, view)
        updates += [("control_routing_count", routed), ("control_next_node", decision.target)]
        return Command(update=_last_wins(updates), goto=decision.target)


def _last_wins(updates: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Keep every write of a key with a reducer, and the last of any other key."""
    from framework.state import REDUCED_KEYS

    single = {name: value for name, value in updates if name not in REDUCED_KEYS}
    return [(n, v) for n, v in updates if n in REDUCED_KEYS] + list(single.items())


async def _wait(state: dict[str, Any], decision: Route, services: Services) -> None:
    info = state["control_error_info"]
    policy = RetryPolicy.from_dict(info.get("retry_policy"), services.limits)
    asked = (info["classification"].get("metadata") or {}).get("retry_after_seconds")
    delay = wait_seconds(policy, decision.failures, services.limits, retry_after=asked)
    delay = min(delay, max(0.0, delay - _seconds_since(info.get("timestamp"), services)))
    emit(
        Retry(
            name=info.get("node_name") or info.get("capability_name") or "",
            context_key=info.get("context_key"),
            attempt=decision.failures + 1,
            max_attempts=policy.max_attempts,
            delay=delay,
            message=decision.reason,
        )
    )
    await services.clock.sleep(delay)


def _seconds_since(moment: str | None, services: Services) -> float:
    """Return how long ago a failure was; a run that was killed while it waited resumes the wait."""
    try:
        failed = datetime.fromisoformat(moment or "").timestamp()
    except ValueError:
        return 0.0
    return max(0.0, services.clock.now() - failed)


def _announce(decision: Route, state: dict[str, Any]) -> None:
    if not state.get("control_has_error"):
        return
    severity = (state.get("control_error_info") or {}).get("classification", {}).get("severity")
    if decision.target == "orchestrator" and severity == "replanning":
        made = state.get("control_plans_created_count", 0)
        emit(Replan(reason=decision.reason, plans_made=made))
    elif decision.target == "classifier" and severity == "reclassification":
        emit(Reclassify(reason=decision.reason))
