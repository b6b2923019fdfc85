"""Stage ``call``: run the capability."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
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
from capgraph.pipeline.labeled_data import labeled_runtime, receive_state, runtime_scope
from capgraph.pipeline.lifecycle import Lifecycle
from capgraph.pipeline.step_execution import BodyResult, StepExecution, body_scope
from capgraph.pipeline.step_state import StepState

_PHASES = ("validate", "setup", "teardown")
"""Optional lifecycle methods of a capability; they take no arguments."""


async def call(execution: StepExecution, attempt: Attempt) -> Any:
    """Run a step's capability and return its raw result.

    Raises:
        CapabilityError: Middleware repeated the call although its effect had already happened.
    """
    if execution.attempt_state.body_result is not None and execution.spec.effect == "once":
        raise CapabilityError(
            f"Step {attempt.key!r} ({execution.spec.name}) cannot run again because its effect "
            "has already happened.",
            fix="move the middleware that repeats the call to the stage 'retry'.",
            severity=ErrorSeverity.CRITICAL,
        )
    emit_attempt_started(execution, attempt)
    context = _create_step_context(execution, attempt)
    execution.request_counts.clear()
    try:
        scope = body_scope(execution)
        with scope, use_step_position(attempt.index, attempt.total), runtime_scope(context.runtime):
            result = await _run_capability(execution.spec.cls, context, execution)
            if not isinstance(result, BodyResult):
                result = BodyResult(serialize_command(result))
            execution.attempt_state.body_result = result
            return result.value
    except asyncio.CancelledError as exc:
        running = asyncio.current_task()
        if running is None or running.cancelling():
            raise
        # The run was not cancelled, but something that the capability awaited was.
        raise CapabilityError(
            f"{execution.spec.name!r} failed: a task that it awaited was cancelled.",
            fix="catch asyncio.CancelledError around the awaited task.",
        ) from exc
    finally:
        execution.attempt_state.stored_outputs = context.stored_outputs


def _create_step_context(execution: StepExecution, attempt: Attempt) -> StepContext:
    config, spec = execution.config, execution.spec
    ledger = execution.context.ledger

    async def once(key: str, action: Any) -> Any:
        keys = execution.context.plan_keys
        return await ledger.run_once(
            spec,
            attempt,
            key,
            action,
            effect=execution.attempt_state.effect,
            plan_keys=keys,
            max_result_bytes=config.limits.max_result_bytes,
        )

    return StepContext(
        capability=spec.name,
        planned_step=attempt.step,
        step_index=attempt.index,
        total_steps=attempt.total,
        # Parallel steps have different positions in the plan.
        state=StepState(
            {**execution.view.state, "planning_current_step_index": attempt.index},
            missing_keys=execution.context.missing_state_keys,
            on_read=None if execution.flow is None else partial(receive_state, execution, attempt),
        ),
        inputs=StepInputs(attempt.inputs),
        parameters=attempt.parameters,
        task=attempt.objective,
        attempt=attempt.number,
        idempotency_key=attempt.idempotency_key or ledger.step_key(attempt),
        config=config.settings.capability_settings(spec.name, execution.view.caller.storage_key),
        model=config.chat_model,
        runtime=labeled_runtime(execution),
        notify=execution.context.notify or _create_progress_notifier(attempt),
        once=once,
    )


def _create_progress_notifier(attempt: Attempt) -> Callable[[str, float | None], None]:
    def notify(message: str, fraction: float | None) -> None:
        telemetry.emit(
            telemetry.StepProgress(message=message, progress=fraction, **attempt.event_fields())
        )

    return notify


async def _run_capability(cls: Any, context: StepContext, execution: StepExecution) -> Any:
    """Run a capability's lifecycle methods and return the result of ``execute``.

    Most capabilities define only ``execute``.
    """
    sync, static, hooks, getters = _inspect_execute(cls, cls.execute)
    if sync:
        context.notify = _make_thread_safe(context.notify)
        context.once = _raise_once_unavailable
    instance: Any = None
    if hooks or not static:
        instance = cls()
        instance._context = context
    filled = {name: get(context) for name, get in getters.items()}
    filled |= execution.context.extra_arguments
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
        execution.attempt_state.body_result = (
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
    """Inspect how a capability's ``execute`` method must be called.

    Returns:
        True if it is synchronous, True if it is static, the names of the lifecycle methods that the
        class defines, and the functions that supply injected arguments, by name.
    """
    hooks = tuple(name for name in _PHASES if callable(getattr(cls, name, None)))
    static = isinstance(inspect.getattr_static(cls, "execute"), staticmethod)
    return is_sync(execute), static, hooks, argument_getters(execute)


def check_extra_arguments(cls: Any, extra: Mapping[str, Any], supplied: Collection[str]) -> None:
    """Raise an error if ``execute`` does not accept an extra argument from a node's caller.

    Args:
        cls: Class of the capability or the infrastructure node.
        extra: Extra arguments by name.
        supplied: Names of the arguments that the framework supplies.

    Raises:
        ValidationError: ``execute`` does not accept an argument, or the framework supplies it.
    """
    accepted = accepted_arguments(cls.execute)
    for name in extra:
        is_supplied = name in ("self", "state") or name in supplied
        if is_supplied or (accepted is not None and name not in accepted):
            cause = "the framework supplies it" if is_supplied else "execute has no such parameter"
            raise ValidationError(
                f"The argument {name!r} of the node {cls.__name__} is not accepted: {cause}.",
                fix="add a parameter to execute, or remove the argument from the call.",
            )


def _make_thread_safe(notify: Callable[[str, float | None], None]) -> Callable[..., None]:
    """Wrap a progress callback so that worker threads can call it.

    The callback itself always runs on the event loop.
    """
    loop = asyncio.get_running_loop()

    def later(message: str, fraction: float | None) -> None:
        loop.call_soon_threadsafe(notify, message, fraction)

    return later


def _raise_once_unavailable(key: str, _call: Callable[[], Any]) -> Any:
    raise ValidationError(
        f"once({key!r}, ...) is not available because the capability is not a coroutine function.",
        fix="write 'async def', or declare effect=\"once\" for the whole step.",
    )


@lru_cache(maxsize=4096)
def accepted_arguments(function: Any) -> frozenset[str] | None:
    """Return a function's parameter names, or ``None`` if it accepts any keyword argument."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)
