"""What runs behind ``langgraph_node``: one capability step, or one infrastructure node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from configs.logger import get_logger, mask_secrets
from configs.streaming import get_streamer
from framework.base.classify import classify_exception
from framework.base.errors import (
    ErrorClassification,
    ErrorSeverity,
    FatalExecutionError,
    InfrastructureError,
    PersistenceError,
)
from framework.base.plan import PlannedStep
from framework.base.spec import CapabilitySpec, InfrastructureSpec
from framework.engine.services import Services
from framework.pipeline.retry import declared_policy
from framework.pipeline.step import (
    Attempt,
    accepted_arguments,
    attempt_step,
    current_runtime,
    raw_errors_wanted,
    step_key,
)
from framework.state import STATE_KEYS


async def run_capability_node(
    spec: CapabilitySpec, state: Mapping[str, Any], services: Services | None = None, **_: Any
) -> dict[str, Any]:
    """Run the plan's current step with one capability, without a router around it.

    This is the node that ``Command(goto=...)``, a test or a graph of one's own enters. Inside
    ``build_graph`` the router runs steps itself, through the same attempt.

    Returns:
        State updates: the capability's own, and the bookkeeping of the step.
    """
    index = state.get("planning_current_step_index") or 0
    steps = (state.get("planning_execution_plan") or {}).get("steps") or []
    step: PlannedStep = steps[index] if index < len(steps) else PlannedStep()
    if step.get("capability", spec.name) != spec.name:
        step = PlannedStep()
    attempt = Attempt(
        spec,
        step,
        index,
        len(steps),
        step_key(step, index, spec.name),
        number=(state.get("control_current_step_retry_count") or 0) + 1,
        turn_task=state.get("task_current_task") or "",
    )
    outcome = await attempt_step(attempt, state, services)
    last = {
        "capability": spec.name,
        "success": outcome.error is None,
        "execution_time": outcome.record["execution_time"],
        "timestamp": outcome.record["timestamp"],
    }
    if outcome.error is None:
        return {
            **outcome.update,
            "planning_current_step_index": index + 1,
            "control_has_error": False,
            "control_error_info": None,
            "control_retry_count": 0,
            "control_current_step_retry_count": 0,
            "execution_last_result": last,
        }
    failures = (state.get("control_retry_count") or 0) + 1
    return {
        **outcome.update,
        "control_retry_count": failures,
        "control_current_step_retry_count": failures,
        "control_attempts": {attempt.key: failures},
        "execution_last_result": {
            **last,
            "error": outcome.error["user_message"],
            "classification": outcome.error["classification"],
        },
    }


async def run_infrastructure_node(
    spec: InfrastructureSpec,
    state: Mapping[str, Any],
    services: Services | None = None,
    **extra: Any,
) -> Any:
    """Run one infrastructure node: timing, streaming, classification, bookkeeping.

    Returns:
        The node's state updates or ``Command``; after a failure, the error entry of the state.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
    """
    logger = get_logger("framework", spec.name)
    started = time.perf_counter()
    if not spec.quiet:
        logger.info("Starting %s", spec.description)
    try:
        result = await spec.cls.execute(state, **_arguments(spec, state, services, logger, extra))
        update = _checked(spec, result)
    except (GraphBubbleUp, FatalExecutionError, PersistenceError):
        # What cannot be saved must not be reported as done: the run stops, the thread stays.
        raise
    except Exception as exc:
        if raw_errors_wanted():
            raise
        return _failure(spec, exc, time.perf_counter() - started, state)
    if not spec.quiet:
        logger.info("Completed %s in %.2fs", spec.description, time.perf_counter() - started)
    return update if isinstance(update, Command) else {**_cleared(spec, state), **update}


def _arguments(
    spec: InfrastructureSpec,
    state: Mapping[str, Any],
    services: Services | None,
    logger: Any,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    offered = {
        **extra,
        "logger": logger,
        "streamer": get_streamer("framework", spec.name, state),
        "runtime": current_runtime(),
        "services": services,
    }
    names = accepted_arguments(spec.cls.execute)
    return offered if names is None else {n: v for n, v in offered.items() if n in names}


def _checked(spec: InfrastructureSpec, result: Any) -> Any:
    if result is None:
        return {}
    if not isinstance(result, (Mapping, Command)):
        raise InfrastructureError(
            f"{spec.name!r} returned {type(result).__name__}.",
            fix="Return a dictionary of state updates, a Command or None.",
        )
    unknown = sorted(set(_written(result)) - STATE_KEYS)
    if unknown:
        raise InfrastructureError(
            f"{spec.name!r} returned {unknown}, which are no keys of the state and would be lost.",
            fix="Use keys of AgentState.",
        )
    return result if isinstance(result, Command) else dict(result)


def _written(result: Any) -> list[str]:
    update = result.update if isinstance(result, Command) else result
    if isinstance(update, (list, tuple)):  # LangGraph takes pairs as well
        return [name for name, _ in update]
    return list(update or ())


def _cleared(spec: InfrastructureSpec, state: Mapping[str, Any]) -> dict[str, Any]:
    # A node that succeeds after its own failure takes the error back.
    info = state.get("control_error_info") or {}
    if not state.get("control_has_error") or info.get("node_name") != spec.name:
        return {}
    return {
        "control_has_error": False,
        "control_error_info": None,
        "control_last_error": info,
        "control_retry_count": 0,
        "control_attempts": {spec.name: 0},
    }


def _failure(
    spec: InfrastructureSpec, exc: Exception, duration: float, state: Mapping[str, Any]
) -> Any:
    classification = _classify(spec, exc, duration, state)
    message = mask_secrets(classification.user_message or str(exc) or type(exc).__name__)
    if classification.severity is ErrorSeverity.FATAL:
        details = (classification.metadata or {}).get("technical_details")
        technical = f"Technical details: {mask_secrets(str(details))}. " if details else ""
        raise FatalExecutionError(
            f"Fatal error in {spec.name}: {message}. {technical}"
            "Execution terminated due to system-level failure."
        ) from exc
    get_logger("framework", spec.name).warning(
        "%s failed (%s): %s", spec.name, classification.severity.value, message
    )
    failures = (state.get("control_attempts") or {}).get(spec.name, 0) + 1
    update = {
        "control_has_error": True,
        "control_error_info": {
            "node_name": spec.name,
            "classification": classification.to_dict(),
            "retry_policy": declared_policy(spec.cls),
            "original_error": mask_secrets(f"{type(exc).__name__}: {exc}"),
            "user_message": message,
            "execution_time": duration,
            "timestamp": datetime.now(UTC).isoformat(),
        },
        "control_attempts": {spec.name: failures},
        "control_retry_count": failures,
    }
    # The router has no node behind it that would look at its failure.
    return Command(update=update, goto="error") if spec.name == "router" else update


def _classify(
    spec: InfrastructureSpec, exc: Exception, duration: float, state: Mapping[str, Any]
) -> ErrorClassification:
    context = {
        "infrastructure_node": spec.name,
        "execution_time": duration,
        "current_state": state,
    }
    try:
        answer = spec.cls.classify_error(exc, context)
    except Exception as second:
        exc.add_note(f"classify_error of {spec.name!r} failed as well: {second!r}")
        answer = None
    if isinstance(answer, ErrorClassification):
        return answer
    return classify_exception(exc, f"Infrastructure error in {spec.name}")
