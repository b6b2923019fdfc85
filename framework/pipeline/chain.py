"""Composition of the stages and middleware of a capability.

Each stage wraps the next one. A stage without work after the inner stages is a pre-stage; one
function runs consecutive pre-stages. A stage without work for a capability is omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import CapabilityError, ErrorSeverity, FatalExecutionError
from capgraph.base.ports import (
    STAGES,
    ApprovalRequest,
    Attempt,
    Middleware,
    RetryRule,
    StepRecord,
    TimeLimit,
)
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.clock import use_clock
from capgraph.pipeline import (
    acquire,
    authorize,
    call,
    finalize,
    hooks,
    idempotency,
    observe,
    remote_dispatch,
    retry,
    timeout,
    validate,
)
from capgraph.pipeline.labeled_data import receive_files
from capgraph.pipeline.middleware import find_last_of_type, is_rule, sort_middleware, stage_of
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.pipeline.step_execution import (
    NextStage,
    PreStage,
    StepExecution,
    StepResult,
    execution_scope,
)

_STAGE_FUNCTIONS: dict[str, Any] = {
    "observe": observe.observe,
    "acquire": acquire.acquire,
    "idempotency": idempotency.idempotency,
    "timeout": timeout.timeout,
}
_WRAPPED_STAGES: dict[str, Any] = {"retry": retry.retry, "finalize": finalize.finalize}
"""Stages that their middleware wraps as a whole."""

_MUTABLE_STAGES = ("observe", "validate")
_APPROVED_FIELDS = ("capability", "key", "inputs", "parameters", "values")


def compose_stages(
    spec: CapabilitySpec,
    middleware: Sequence[Any],
    *,
    config: RunnerConfig,
    queue: str | None = None,
) -> tuple[NextStage, NextStage]:
    """Compose the middleware stages that run each step of a capability.

    Args:
        spec: Declarations of the capability.
        middleware: Middleware, rules, and hooks of the capability's steps, outermost first.
        config: Configuration of the runner.
        queue: Worker queue that runs the capability. ``None`` runs it in the turn's process.

    Returns:
        A function that runs all stages, and a function that runs only the stages inside ``retry``.
    """
    deciding = [item for item in middleware if callable(getattr(item, "decide", None))]
    by_name: list[Any] = []
    policies: list[Any] = []
    for item in (*config.step_policies, *deciding):
        (by_name if getattr(item, "decides_by_name", False) else policies).append(item)
    arguments: dict[str, dict[str, Any]] = {
        "retry": {"rule": find_last_of_type(middleware, RetryRule)},
        "timeout": {"limit_override": find_last_of_type(middleware, TimeLimit)},
    }
    authorize_step: Any = partial(authorize.authorize, policies=policies)
    if not authorize.may_need_authorization(spec, config.settings, policies):
        authorize_step = authorize.authorize_if_flagged
    gates: dict[str, list[Any]] = {
        "validate": [validate.validate],
        "authorize": [authorize_step, receive_files],
    }
    if by_name:
        gates["validate"].append(partial(authorize.authorize_caller, policies=by_name))
    call_next: NextStage = call.call
    refinalize = call_next
    for stage in reversed(STAGES):
        if stage == "observe" and (
            hook_behaviors := [item for item in middleware if not stage_of(item)]
        ):
            call_next = partial(
                hooks.run_hooks,
                call_next=call_next,
                behaviors=tuple(hook_behaviors),
                refinalize=refinalize,
            )
        call_next = _wrap_stage(stage, spec, middleware, call_next, arguments.get(stage, {}))
        for gate in gates.get(stage, ()):  # the last one runs first
            call_next = _prepend_pre_stage(gate, call_next, marks_approval=stage == "authorize")
        if stage == "finalize":
            refinalize = call_next
            if queue is not None:
                call_next = partial(
                    remote_dispatch.dispatch_remote, call_next=call_next, queue=queue
                )
    return call_next, refinalize


def _wrap_stage(
    stage: str,
    spec: CapabilitySpec,
    candidates: Sequence[Any],
    call_next: NextStage,
    arguments: Mapping[str, Any],
) -> NextStage:
    """Wrap the next stage in one pipeline stage and the middleware of that stage."""
    stage_middleware = sort_middleware(
        item for item in candidates if stage_of(item) == stage and not is_rule(item)
    )
    is_checked = stage == "finalize" and bool(
        stage_middleware or spec.gate is not None or spec.large_result == "file"
    )
    if stage in _WRAPPED_STAGES:
        arguments = {"is_final": False} if is_checked else arguments
        call_next = partial(_WRAPPED_STAGES[stage], call_next=call_next, **arguments)
    # A rate limit must not hold a slot while it waits.
    outer_middleware = [
        i for i in stage_middleware if stage == "acquire" and getattr(i, "order", 1_000) < 1_000
    ]
    if stage == "validate" and stage_middleware:
        # The attempt that leaves the stage is shown, approved, and run.
        call_next = _prepend_pre_stage(validate.sync_parameters, call_next)
    for middleware in reversed(stage_middleware[len(outer_middleware) :]):
        call_next = partial(_MIDDLEWARE_CALLERS[stage], middleware=middleware, call_next=call_next)
    if is_checked:
        call_next = partial(finalize.finish_record, call_next=call_next)
    if stage == "idempotency" and spec.effect == "none":
        call_next = partial(idempotency.run_without_effect, call_next=call_next)
    elif stage in _STAGE_FUNCTIONS:
        call_next = partial(_STAGE_FUNCTIONS[stage], call_next=call_next, **arguments)
    for middleware in reversed(outer_middleware):
        call_next = partial(_MIDDLEWARE_CALLERS[stage], middleware=middleware, call_next=call_next)
    return call_next


def _prepend_pre_stage(
    gate: PreStage, call_next: NextStage, *, marks_approval: bool = False
) -> NextStage:
    """Prepend a pre-stage, which runs before ``call_next``.

    Consecutive pre-stages share one function for speed.
    """
    if isinstance(call_next, partial) and call_next.func is _run_pre_stages:
        arguments = dict(call_next.keywords)
        return partial(_run_pre_stages, **{**arguments, "gates": (gate, *arguments["gates"])})
    return partial(
        _run_pre_stages, gates=(gate,), call_next=call_next, marks_approval=marks_approval
    )


async def _run_pre_stages(
    execution: StepExecution,
    attempt: Attempt,
    *,
    gates: Sequence[PreStage],
    call_next: NextStage,
    marks_approval: bool,
) -> StepResult:
    for gate in gates:
        outcome = await gate(execution, attempt)
        if not isinstance(outcome, Attempt):
            return outcome
        attempt = outcome
    result: StepResult = await call_next(execution, attempt)
    if marks_approval and execution.approval is not None and isinstance(result, StepRecord):
        await authorize.mark_approval_used(execution, result)
    return result


async def _call_middleware(
    execution: StepExecution, attempt: Attempt, *, middleware: Middleware, call_next: NextStage
) -> Any:
    async def run_next(changed: Attempt | None = None) -> Any:
        if changed is not None and changed is not attempt:
            _check_protected_fields(middleware, attempt, changed)
        return await call_next(execution, changed if changed is not None else attempt)

    with execution_scope(execution), use_clock(execution.config.clock):
        return await middleware.wrap_step(attempt, run_next)


def _check_protected_fields(middleware: Middleware, attempt: Attempt, changed: Attempt) -> None:
    """Raise an error if middleware changed fields that an approval request may already show.

    Raises:
        CapabilityError: A protected field of the attempt has changed.
    """
    protected = (
        ("capability", "key")
        if middleware.stage in _MUTABLE_STAGES
        else (*_APPROVED_FIELDS, "step")
    )
    pairs = ((name, getattr(changed, name), getattr(attempt, name)) for name in protected)
    if changed_fields := [name for name, new, old in pairs if new is not old and new != old]:
        raise CapabilityError(
            f"{middleware!r} (stage {middleware.stage}) changed {', '.join(changed_fields)} of"
            f" {attempt.key!r}.",
            fix="change the step at 'observe', or its inputs and parameters at 'validate'. The attempt"
            " that leaves 'validate' is shown, approved, and run.",
            severity=ErrorSeverity.CRITICAL,
        )


async def _call_record_middleware(
    execution: StepExecution, attempt: Attempt, *, middleware: Middleware, call_next: NextStage
) -> StepResult:
    """Call middleware that returns step records, and convert its exceptions to step failures."""
    is_suspended, emits = False, middleware.stage != "finalize"

    async def watched(execution: StepExecution, attempt: Attempt) -> StepResult:
        nonlocal is_suspended
        outcome: StepResult = await call_next(execution, attempt)
        is_suspended = outcome is None
        return outcome

    try:
        result = await _call_middleware(
            execution, attempt, middleware=middleware, call_next=watched
        )
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        return await finalize.failed_record(execution, attempt, exc, emits=emits)
    if isinstance(result, (StepRecord, ApprovalRequest)) or (result is None and is_suspended):
        return result
    error = CapabilityError(
        f"Invalid result {result!r:.80} of {middleware!r} (stage {middleware.stage}) for step"
        f" {attempt.key!r}.",
        fix="return the result of 'await call_next(attempt)', or a StepRecord.",
    )
    return await finalize.failed_record(execution, attempt, error, emits=emits)


_MIDDLEWARE_CALLERS: dict[str, Any] = {
    stage: _call_record_middleware if place <= STAGES.index("finalize") else _call_middleware
    for place, stage in enumerate(STAGES)
}
