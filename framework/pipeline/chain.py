"""Composes the stages of a capability: each around the next, with the middlewares that wrap it.

A stage that has nothing to do after those inside it is a gate; one function passes all gates in a row.
A stage that has no work for a capability is left out.
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
from capgraph.pipeline.middleware import is_rule, last_of_type, sort_middleware, stage_of
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
"""Stages whose middlewares stand around them: around all tries, and around the record of one."""

_MUTABLE_STAGES = ("observe", "validate")
_APPROVED_FIELDS = ("capability", "key", "inputs", "parameters", "values")


def compose_stages(
    spec: CapabilitySpec,
    middleware: Sequence[Any],
    *,
    equipment: RunnerConfig,
    queue: str | None = None,
) -> tuple[NextStage, NextStage]:
    """Return all stages of a capability, and those inside of ``retry``.

    Args:
        spec: The capability.
        middleware: Middlewares, rules, and hooks of its steps, outermost first.
        equipment: What the operator decided.
        queue: Queue of the workers that run it; ``None`` if it runs with its turn.
    """
    asked = [item for item in middleware if callable(getattr(item, "decide", None))]
    policies = (*equipment.step_policies, *asked)
    told: dict[str, dict[str, Any]] = {
        "authorize": {"policies": policies},
        "retry": {"rule": last_of_type(middleware, RetryRule)},
        "timeout": {"instead": last_of_type(middleware, TimeLimit)},
    }
    gates: dict[str, Any] = {"validate": validate.validate, "authorize": authorize.authorize}
    if not authorize.may_need_authorization(spec, equipment.settings, policies):
        gates["authorize"], told["authorize"] = authorize.authorize_if_flagged, {}
    inner: NextStage = call.call
    again = inner
    for stage in reversed(STAGES):
        if stage == "observe" and (own := [item for item in middleware if not stage_of(item)]):
            inner = partial(hooks.run_hooks, inner=inner, behaviors=tuple(own), again=again)
        inner = _wrap_stage(stage, spec, middleware, inner, told.get(stage, {}))
        if stage in gates:
            gate = partial(gates[stage], **told[stage]) if told.get(stage) else gates[stage]
            inner = _prepend_gate(gate, inner, settles=stage == "authorize")
        if stage == "finalize":
            again = inner
            if queue is not None:
                inner = partial(remote_dispatch.dispatch_remote, inner=inner, queue=queue)
    return inner, again


def _wrap_stage(
    stage: str,
    spec: CapabilitySpec,
    candidates: Sequence[Any],
    inner: NextStage,
    arguments: Mapping[str, Any],
) -> NextStage:
    """Return a stage, with whatever stands at it, around ``inner``."""
    own = sort_middleware(
        item for item in candidates if stage_of(item) == stage and not is_rule(item)
    )
    is_examined = stage == "finalize" and bool(own or spec.gate is not None)
    if stage in _WRAPPED_STAGES:
        arguments = {"leaves": False} if is_examined else arguments
        inner = partial(_WRAPPED_STAGES[stage], inner=inner, **arguments)
    # Whoever has to wait for a limit waits without a slot.
    outer = [i for i in own if stage == "acquire" and getattr(i, "order", 1_000) < 1_000]
    if stage == "validate" and own:
        # What leaves the stage is what is shown, agreed to, keyed and run.
        inner = _prepend_gate(validate.sync_parameters, inner)
    for middleware in reversed(own[len(outer) :]):
        inner = partial(_MIDDLEWARE_CALLERS[stage], middleware=middleware, inner=inner)
    if is_examined:
        inner = partial(finalize.finish_record, inner=inner)
    if stage == "idempotency" and spec.effect == "none":
        inner = partial(idempotency.run_without_effect, inner=inner)
    elif stage in _STAGE_FUNCTIONS:
        inner = partial(_STAGE_FUNCTIONS[stage], inner=inner, **arguments)
    for middleware in reversed(outer):
        inner = partial(_MIDDLEWARE_CALLERS[stage], middleware=middleware, inner=inner)
    return inner


def _prepend_gate(gate: PreStage, inner: NextStage, *, settles: bool = False) -> NextStage:
    """Return a gate in front of ``inner``; several in a row are passed in one function."""
    if isinstance(inner, partial) and inner.func is _run_gates:
        more = dict(inner.keywords)
        return partial(_run_gates, **{**more, "gates": (gate, *more["gates"])})
    return partial(_run_gates, gates=(gate,), inner=inner, settles=settles)


async def _run_gates(
    job: StepExecution,
    attempt: Attempt,
    *,
    gates: Sequence[PreStage],
    inner: NextStage,
    settles: bool,
) -> StepResult:
    for gate in gates:
        found = await gate(job, attempt)
        if not isinstance(found, Attempt):
            return found
        attempt = found
    result: StepResult = await inner(job, attempt)
    if settles and job.approval is not None and isinstance(result, StepRecord):
        await authorize.mark_approval_used(job, result)
    return result


async def _call_middleware(
    job: StepExecution, attempt: Attempt, *, middleware: Middleware, inner: NextStage
) -> Any:
    async def call_next(changed: Attempt | None = None) -> Any:
        if changed is not None and changed is not attempt:
            _check_change(middleware, attempt, changed)
        return await inner(job, changed if changed is not None else attempt)

    with execution_scope(job), use_clock(job.config.clock):
        return await middleware.wrap_step(attempt, call_next)


def _check_change(middleware: Middleware, attempt: Attempt, changed: Attempt) -> None:
    """Make sure that what a person was shown is what runs.

    Raises:
        CapabilityError: It would be something else.
    """
    fixed = (
        ("capability", "key")
        if middleware.stage in _MUTABLE_STAGES
        else (*_APPROVED_FIELDS, "step")
    )
    pairs = ((name, getattr(changed, name), getattr(attempt, name)) for name in fixed)
    if told := [name for name, new, old in pairs if new is not old and new != old]:
        raise CapabilityError(
            f"{middleware!r} (stage {middleware.stage}) changed {', '.join(told)} of"
            f" {attempt.key!r}.",
            fix="Change the step at 'observe' or what it works with at 'validate': what leaves that"
            " stage is what is shown, agreed to and run. Another capability is another step.",
            severity=ErrorSeverity.CRITICAL,
        )


async def _call_record_middleware(
    job: StepExecution, attempt: Attempt, *, middleware: Middleware, inner: NextStage
) -> StepResult:
    """Run a middleware above the call: what it raises is a failure of the step."""
    put_off, tell = False, middleware.stage != "finalize"

    async def watched(job: StepExecution, attempt: Attempt) -> StepResult:
        nonlocal put_off
        found: StepResult = await inner(job, attempt)
        put_off = found is None
        return found

    try:
        result = await _call_middleware(job, attempt, middleware=middleware, inner=watched)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        return await finalize.failed_record(job, attempt, exc, emits=tell)
    if isinstance(result, (StepRecord, ApprovalRequest)) or (result is None and put_off):
        return result
    told = CapabilityError(
        f"{middleware!r} (stage {middleware.stage}) gave {result!r:.80} for {attempt.key!r}.",
        fix="Return what 'await call_next(attempt)' gave, or a StepRecord of one's own.",
    )
    return await finalize.failed_record(job, attempt, told, emits=tell)


_MIDDLEWARE_CALLERS: dict[str, Any] = {
    stage: _call_record_middleware if place <= STAGES.index("finalize") else _call_middleware
    for place, stage in enumerate(STAGES)
}
