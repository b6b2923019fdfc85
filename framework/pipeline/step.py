"""One attempt at one step: validate, call, sort the output, classify what went wrong."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from langgraph.errors import GraphBubbleUp

from configs.logger import get_logger, mask_secrets
from configs.streaming import get_streamer
from framework.base.capability import BaseCapability
from framework.base.classify import classify_exception
from framework.base.errors import (
    ErrorClassification,
    ErrorSeverity,
    FatalExecutionError,
    LimitError,
)
from framework.base.plan import PlannedStep
from framework.base.spec import CapabilitySpec
from framework.base.step_context import StepContext
from framework.engine.services import Services
from framework.pipeline.inputs import resolve_inputs, resolve_parameters
from framework.pipeline.retry import declared_policy
from framework.pipeline.sort_result import sort_output
from framework.pipeline.step_state import StepState
from framework.telemetry import Status, StepFailed, StepFinished, StepProgress, StepStarted, emit


@dataclass(slots=True)
class StepOutcome:
    """What one attempt left behind.

    Attributes:
        update: State update: step record, context data, further keys.
        error: The error entry of the state, or ``None`` after a success.
        record: The step's entry in ``execution_step_results``.
    """

    update: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Attempt:
    """Which step is tried, where it stands and for the how-manieth time."""

    spec: CapabilitySpec
    step: PlannedStep
    index: int
    total: int
    key: str
    number: int = 1
    idempotency_key: str = ""
    turn_task: str = ""
    run_seconds_left: float | None = None

    def event(self) -> dict[str, Any]:
        """Fields that every event of this attempt carries."""
        return {
            "context_key": self.key,
            "capability": self.spec.name,
            "step": self.index + 1,
            "total_steps": self.total,
            "attempt": self.number,
        }

    @property
    def objective(self) -> str:
        """What the step is for."""
        return self.step.get("task_objective") or self.turn_task or f"Execute {self.spec.name}"


async def attempt_step(
    attempt: Attempt, state: Mapping[str, Any], services: Services | None
) -> StepOutcome:
    """Try a step once. Failures come back as data; only FATAL and interrupts are raised.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
        GraphBubbleUp: An interrupt or another signal of LangGraph.
    """
    spec = attempt.spec
    loop_time = asyncio.get_running_loop().time
    started = loop_time()
    emit(Status(message=f"Executing {spec.name}...", component=spec.name, progress=0.1))
    emit(StepStarted(task_objective=attempt.objective, **attempt.event()))
    try:
        result, stored = await _call(attempt, state, services)
        types = services.registry.context_types if services else {}
        if services is None:
            updates, contexts = _plain_result(result, stored, attempt, types)
        else:
            updates, contexts = sort_output(result, stored, spec, attempt.step, attempt.key, types)
    except GraphBubbleUp:
        raise
    except Exception as exc:
        if raw_errors_wanted():
            raise
        return failed_outcome(attempt, exc, loop_time() - started, state)
    duration = loop_time() - started
    record = {
        **_record(attempt, duration, success=True),
        "outputs": {kind: next(iter(entries)) for kind, entries in contexts.items()},
    }
    emit(StepFinished(duration=duration, outputs=record["outputs"], **attempt.event()))
    update = dict(updates)
    if contexts:
        merged = dict(updates.get("capability_context_data") or {})
        for kind, entries in contexts.items():
            merged[kind] = {**merged.get(kind, {}), **entries}
        update["capability_context_data"] = merged
    update["execution_step_results"] = {attempt.key: record}
    return StepOutcome(update, None, record)


async def _call(
    attempt: Attempt, state: Mapping[str, Any], services: Services | None
) -> tuple[Any, list[Any]]:
    spec, step = attempt.spec, attempt.step
    context_data = state.get("capability_context_data") or {}
    types = services.registry.context_types if services else {}
    context = StepContext(
        capability=spec.name,
        step=copy.deepcopy(step),
        step_index=attempt.index,
        total_steps=attempt.total,
        state=StepState(state),
        inputs=resolve_inputs(spec, step, context_data, types),
        parameters=resolve_parameters(spec, step),
        task=attempt.objective,
        attempt=attempt.number,
        idempotency_key=attempt.idempotency_key,
        runtime=current_runtime(),
        notify=lambda message, fraction: emit(
            StepProgress(message=message, progress=fraction, **attempt.event())
        ),
    )
    limit = spec.timeout_seconds
    if services is not None:
        context.config = services.settings.section(spec.name)
        context.model = services.chat_model
        limit = limit or services.limits.step_timeout_seconds
    left = attempt.run_seconds_left
    by_run = left is not None and (limit is None or left < limit)
    timer = asyncio.timeout(left if by_run else limit)
    try:
        async with timer:
            return await invoke_capability(spec.cls, context), context.stored
    except TimeoutError as exc:
        if timer.expired() and by_run:
            raise run_limit_reached(attempt) from exc
        if timer.expired():
            raise TimeoutError(
                f"{spec.name!r} took longer than {limit:g} s in step {attempt.key!r}."
                f" Fix: raise timeout_seconds of {spec.name!r}, or give it less to do."
            ) from exc
        raise


def run_limit_reached(attempt: Attempt) -> LimitError:
    """Return the error of a step for which the run has no time left."""
    return LimitError(
        f"The run's time limit was reached at step {attempt.key!r} ({attempt.spec.name}).",
        fix="Raise limits.run_timeout_seconds, or ask for less at once.",
    )


async def invoke_capability(cls: type[Any], context: StepContext) -> Any:
    """Call a capability in whichever form it is written."""
    if not isinstance(inspect.getattr_static(cls, "execute"), staticmethod):
        instance = cls()
        instance._context = context
        return await instance.execute()
    offered = {
        "step": context.step,
        "context": context.inputs,
        "runtime": context.runtime,
        "logger": context.logger,
        "streamer": get_streamer("capability", context.capability, _position(context)),
    }
    names = accepted_arguments(cls.execute)
    kwargs = offered if names is None else {n: v for n, v in offered.items() if n in names}
    return await cls.execute(context.state, **kwargs)


def _position(context: StepContext) -> dict[str, Any]:
    # The streamer counts the plan's steps; the whole plan need not be copied for that.
    return {
        "planning_current_step_index": context.step_index,
        "planning_execution_plan": {"steps": range(context.total_steps)},
    }


@lru_cache(maxsize=4096)
def accepted_arguments(function: Any) -> frozenset[str] | None:
    """Return the names of a function's parameters; ``None`` when it takes any."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)


def _plain_result(
    result: Any, stored: list[Any], attempt: Attempt, types: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    # Called outside a graph there is no schema that could drop a key: dictionaries stay as
    # they are, which is what a unit test of a capability wants to look at.
    if isinstance(result, Mapping) and not stored:
        return dict(result), {}
    return sort_output(result, stored, attempt.spec, attempt.step, attempt.key, types)


def failed_outcome(
    attempt: Attempt, exc: Exception, duration: float, state: Mapping[str, Any]
) -> StepOutcome:
    """Turn an exception into the outcome of an attempt.

    Raises:
        FatalExecutionError: It was classified FATAL.
    """
    spec = attempt.spec
    classification = classify_step_error(spec, exc, attempt.index, duration, state)
    message = mask_secrets(classification.user_message or str(exc) or type(exc).__name__)
    if classification.severity is ErrorSeverity.FATAL:
        raise FatalExecutionError(
            f"Fatal error in {spec.name}: {message}."
            " Execution terminated due to system-level failure.",
        ) from exc
    severity = classification.severity.value
    emit(StepFailed(duration=duration, severity=severity, message=message, **attempt.event()))
    get_logger("capability", spec.name).warning(
        "step %s failed (%s): %s", attempt.key, severity, message
    )
    now = _now()
    info = {
        "capability_name": spec.name,
        "context_key": attempt.key,
        "classification": classification.to_dict(),
        "retry_policy": declared_policy(spec.cls),
        "original_error": mask_secrets(f"{type(exc).__name__}: {exc}"),
        "user_message": message,
        "execution_time": duration,
        "timestamp": now,
    }
    record = {**_record(attempt, duration, success=False), "error": message, "severity": severity}
    update = {
        "execution_step_results": {attempt.key: record},
        "control_has_error": True,
        "control_error_info": info,
    }
    return StepOutcome(update, info, record)


def classify_step_error(
    spec: CapabilitySpec,
    exc: Exception,
    index: int,
    duration: float,
    state: Mapping[str, Any],
) -> ErrorClassification:
    """Ask the capability what an error means; a missing or broken answer gets the default."""
    context = {
        "capability": spec.name,
        "current_step_index": index,
        "execution_time": duration,
        "current_state": state,
        "effect": spec.effect,
    }
    default = f"Unhandled error in {spec.name}"
    if isinstance(exc, LimitError):  # a bound of the run is not the capability's to interpret
        return classify_exception(exc, default)
    try:
        answer = spec.cls.classify_error(exc, context)
    except Exception as second:
        exc.add_note(f"classify_error of {spec.name!r} failed as well: {second!r}")
        get_logger("capability", spec.name).error(
            "classify_error of %s raised %r; the default is used", spec.name, second
        )
        answer = None
    if isinstance(answer, ErrorClassification):
        return answer
    return classify_exception(exc, default, effect=spec.effect)


def _record(attempt: Attempt, duration: float, *, success: bool) -> dict[str, Any]:
    return {
        "step_index": attempt.index,
        "capability": attempt.spec.name,
        "task_objective": attempt.objective,
        "success": success,
        "execution_time": duration,
        "timestamp": _now(),
        "attempts": attempt.number,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()


def current_runtime() -> Any:
    """Return LangGraph's ``Runtime`` of the run that calls this, or ``None`` outside of one."""
    from langgraph.runtime import get_runtime

    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None


def raw_errors_wanted() -> bool:
    """Return whether the run asks for the original exceptions, for debugging."""
    from langgraph.config import get_config

    try:
        config = get_config()
    except RuntimeError:
        return False
    development = (config.get("configurable") or {}).get("development") or {}
    return bool(development.get("raise_raw_errors"))


def step_key(step: PlannedStep, index: int, capability: str) -> str:
    """Return the key of a step's record: its ``context_key``, else ``<index>_<capability>``."""
    return step.get("context_key") or f"{index}_{capability}"


def is_capability_instance(cls: type[Any]) -> bool:
    """Whether a class uses the instance form."""
    return issubclass(cls, BaseCapability) and not isinstance(
        inspect.getattr_static(cls, "execute"), staticmethod
    )
