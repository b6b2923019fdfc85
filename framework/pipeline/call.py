"""Stage ``call``: the capability's own work, in whichever form it is written."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import capgraph.telemetry as telemetry
from capgraph.base.argument_injection import Getter, argument_getters
from capgraph.base.errors import CapabilityError, ErrorSeverity, ValidationError
from capgraph.base.ports import Attempt
from capgraph.base.step_context import EXECUTE_ARGUMENTS, StepContext, StepInputs
from capgraph.configs.streaming import use_step_position
from capgraph.helpers.threads import is_sync, run_in_thread
from capgraph.pipeline.commands import serialize_command
from capgraph.pipeline.finalize import emit_attempt_started
from capgraph.pipeline.lifecycle import Lifecycle
from capgraph.pipeline.run_config import current_runtime
from capgraph.pipeline.step_execution import BodyResult, StepExecution, body_scope
from capgraph.pipeline.step_state import StepState

_PHASES = ("validate", "setup", "teardown")
"""Methods that a capability may define beside ``execute``; they take no arguments."""


async def call(job: StepExecution, attempt: Attempt) -> Any:
    """Run the capability and return what it returned, unsorted.

    Raises:
        CapabilityError: What stands around the call called again after an effect was done.
    """
    if job.attempt_state.body_result is not None and job.spec.effect == "once":
        raise CapabilityError(
            f"The effect of {attempt.key!r} ({job.spec.name}) is done, and it was called again.",
            fix="Put a behaviour that calls again at the stage 'retry', outside of the ledger.",
            severity=ErrorSeverity.CRITICAL,
        )
    emit_attempt_started(job, attempt)
    context = _step_context(job, attempt)
    job.request_counts.clear()
    try:
        with body_scope(job), use_step_position(attempt.index, attempt.total):
            result = await _run_capability(job.spec.cls, context, job)
            if not isinstance(result, BodyResult):
                result = BodyResult(serialize_command(result))
            job.attempt_state.body_result = result
            return result.value
    except asyncio.CancelledError as exc:
        running = asyncio.current_task()
        if running is None or running.cancelling():
            raise
        # Nobody stopped the run: what the author awaited was cancelled.
        raise CapabilityError(
            f"{job.spec.name!r} awaited work that was cancelled.",
            fix="Catch asyncio.CancelledError where the work is cancelled.",
        ) from exc
    finally:
        job.attempt_state.stored_outputs = context.stored_outputs


def _step_context(job: StepExecution, attempt: Attempt) -> StepContext:
    equipment, spec = job.config, job.spec
    ledger = job.context.ledger

    async def once(key: str, action: Any) -> Any:
        keys = job.context.plan_keys
        return await ledger.run_once(
            spec, attempt, key, action, effect=job.attempt_state.effect, plan_keys=keys
        )

    return StepContext(
        capability=spec.name,
        planned_step=attempt.step,
        step_index=attempt.index,
        total_steps=attempt.total,
        # Steps beside this one have their own place in the plan.
        state=StepState(
            {**job.view.state, "planning_current_step_index": attempt.index},
            missing_keys=job.context.missing_state_keys,
        ),
        inputs=StepInputs(attempt.inputs),
        parameters=attempt.parameters,
        task=attempt.objective,
        attempt=attempt.number,
        idempotency_key=attempt.idempotency_key or ledger.step_key(attempt),
        config=equipment.settings.capability_settings(spec.name, job.view.caller.storage_key),
        model=equipment.chat_model,
        runtime=current_runtime(),
        notify=job.context.notify or _progress_notifier(attempt),
        once=once,
    )


def _progress_notifier(attempt: Attempt) -> Callable[[str, float | None], None]:
    def notify(message: str, fraction: float | None) -> None:
        telemetry.emit(
            telemetry.StepProgress(message=message, progress=fraction, **attempt.event_fields())
        )

    return notify


async def _run_capability(cls: Any, context: StepContext, job: StepExecution) -> Any:
    """Go through the phases that a capability defines; most only execute."""
    sync, static, hooks, getters = _inspect_execute(cls, cls.execute)
    if sync:
        context.notify = _thread_safe_notifier(context.notify)
        context.once = _refuse_once
    instance: Any = None
    if hooks or not static:
        instance = cls()
        instance._context = context
    filled = {name: get(context) for name, get in getters.items()}
    execute = (
        partial(instance.execute, **filled)
        if not static
        else partial(_call_static_execute, cls, context, filled)
    )
    work = partial(run_in_thread, execute) if sync else execute
    if not hooks:
        return await work()
    phases: dict[str, Any] = {n: partial(_run_phase, getattr(instance, n)) for n in hooks}
    life = Lifecycle(work, **phases)
    try:
        return await life.run()
    finally:
        job.attempt_state.body_result = (
            BodyResult(serialize_command(life.result)) if life.has_executed else None
        )


async def _run_phase(method: Callable[[], Any]) -> None:
    if is_sync(method):
        await run_in_thread(method)
    else:
        await method()


def _call_static_execute(cls: Any, context: StepContext, injected: dict[str, Any]) -> Any:
    names = accepted_arguments(cls.execute)
    kwargs = {n: of(context) for n, of in EXECUTE_ARGUMENTS.items() if names is None or n in names}
    return cls.execute(context.state, **kwargs | injected)


@lru_cache(maxsize=4096)
def _inspect_execute(
    cls: type[Any], execute: Any
) -> tuple[bool, bool, tuple[str, ...], dict[str, Getter]]:
    """Tell whether it is synchronous and static, its other phases, and what fills its arguments."""
    hooks = tuple(name for name in _PHASES if callable(getattr(cls, name, None)))
    static = isinstance(inspect.getattr_static(cls, "execute"), staticmethod)
    return is_sync(execute), static, hooks, argument_getters(execute)


def _thread_safe_notifier(notify: Callable[[str, float | None], None]) -> Callable[..., None]:
    """Hand progress over to the event loop, where everything that listens to it lives."""
    loop = asyncio.get_running_loop()

    def later(message: str, fraction: float | None) -> None:
        loop.call_soon_threadsafe(notify, message, fraction)

    return later


def _refuse_once(key: str, _call: Callable[[], Any]) -> Any:
    raise ValidationError(
        f"once({key!r}, ...) is awaited, and this capability is not a coroutine.",
        fix="Write it with 'async def', or declare effect=\"once\" for the whole step.",
    )


@lru_cache(maxsize=4096)
def accepted_arguments(function: Any) -> frozenset[str] | None:
    """Return the names of a function's parameters; ``None`` when it takes any."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)
