"""Composes the stages of a capability: each around the next, with the middlewares that wrap it.

A stage that has nothing to do after those inside it is a gate; one function passes all gates in a row.
A stage that has no work for a capability is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.clock import use_clock
from capgraph.base.errors import CapabilityError, ErrorSeverity, FatalExecutionError
from capgraph.base.ports import (
    STAGES,
    Attempt,
    Middleware,
    Question,
    RetryRule,
    StepRecord,
    TimeLimit,
)
from capgraph.base.spec import CapabilitySpec
from capgraph.pipeline import (
    acquire,
    authorize,
    away,
    call,
    finalize,
    hooks,
    idempotency,
    observe,
    retry,
    timeout,
    validate,
)
from capgraph.pipeline.equipment import Equipment
from capgraph.pipeline.job import Gate, Inner, Job, Result, standing_in
from capgraph.pipeline.middlewares import in_order, innermost, is_rule, stage_of

_SHIPPED: dict[str, Any] = {
    "observe": observe.observe,
    "acquire": acquire.acquire,
    "idempotency": idempotency.idempotency,
    "timeout": timeout.timeout,
}
_INSIDE: dict[str, Any] = {"retry": retry.retry, "finalize": finalize.finalize}
"""Stages whose middlewares stand around them: around all tries, and around the record of one."""

_MAY_CHANGE = ("observe", "validate")
_SHOWN = ("capability", "key", "inputs", "parameters", "values")


def compose(
    spec: CapabilitySpec,
    around: Sequence[Any],
    *,
    equipment: Equipment,
    queue: str | None = None,
) -> tuple[Inner, Inner]:
    """Return all stages of a capability, and those inside of ``retry``.

    Args:
        spec: The capability.
        around: Middlewares, rules, and hooks of its steps, outermost first.
        equipment: What the operator decided.
        queue: Queue of the workers that run it; ``None`` if it runs with its turn.
    """
    asked = [item for item in around if callable(getattr(item, "decide", None))]
    policies = (*equipment.step_policies, *asked)
    told: dict[str, dict[str, Any]] = {
        "authorize": {"policies": policies},
        "retry": {"rule": innermost(around, RetryRule)},
        "timeout": {"instead": innermost(around, TimeLimit)},
    }
    gates: dict[str, Any] = {"validate": validate.validate, "authorize": authorize.authorize}
    if not authorize.can_ask(spec, equipment.settings, policies):
        gates["authorize"], told["authorize"] = authorize.authorize_marked, {}
    inner: Inner = call.call
    again = inner
    for stage in reversed(STAGES):
        if stage == "observe" and (own := [item for item in around if not stage_of(item)]):
            inner = partial(hooks.hooks, inner=inner, behaviors=tuple(own), again=again)
        inner = _within(stage, spec, around, inner, told.get(stage, {}))
        if stage in gates:
            gate = partial(gates[stage], **told[stage]) if told.get(stage) else gates[stage]
            inner = _gated(gate, inner, settles=stage == "authorize")
        if stage == "finalize":
            again = inner
            if queue is not None:
                inner = partial(away.away, inner=inner, queue=queue)
    return inner, again


def _within(
    stage: str, spec: CapabilitySpec, around: Sequence[Any], inner: Inner, told: Mapping[str, Any]
) -> Inner:
    """Return a stage, with whatever stands at it, around ``inner``."""
    own = in_order(item for item in around if stage_of(item) == stage and not is_rule(item))
    is_examined = stage == "finalize" and bool(own or spec.gate is not None)
    if stage in _INSIDE:
        told = {"leaves": False} if is_examined else told
        inner = partial(_INSIDE[stage], inner=inner, **told)
    # Whoever has to wait for a limit waits without a slot.
    outer = [i for i in own if stage == "acquire" and getattr(i, "order", 1_000) < 1_000]
    if stage == "validate" and own:
        # What leaves the stage is what is shown, agreed to, keyed and run.
        inner = _gated(validate.leave, inner)
    for middleware in reversed(own[len(outer) :]):
        inner = partial(_WRAPS[stage], middleware=middleware, inner=inner)
    if is_examined:
        inner = partial(finalize.finished, inner=inner)
    if stage == "idempotency" and spec.effect == "none":
        inner = partial(idempotency.without_effect, inner=inner)
    elif stage in _SHIPPED:
        inner = partial(_SHIPPED[stage], inner=inner, **told)
    for middleware in reversed(outer):
        inner = partial(_WRAPS[stage], middleware=middleware, inner=inner)
    return inner


def _gated(gate: Gate, inner: Inner, *, settles: bool = False) -> Inner:
    """Return a gate in front of ``inner``; several in a row are passed in one function."""
    if isinstance(inner, partial) and inner.func is _pass_gates:
        more = dict(inner.keywords)
        return partial(_pass_gates, **{**more, "gates": (gate, *more["gates"])})
    return partial(_pass_gates, gates=(gate,), inner=inner, settles=settles)


async def _pass_gates(
    job: Job, attempt: Attempt, *, gates: Sequence[Gate], inner: Inner, settles: bool
) -> Result:
    for gate in gates:
        found = await gate(job, attempt)
        if not isinstance(found, Attempt):
            return found
        attempt = found
    result: Result = await inner(job, attempt)
    if settles and job.agreement is not None and isinstance(result, StepRecord):
        await authorize.use_agreement(job, result)
    return result


async def _around(job: Job, attempt: Attempt, *, middleware: Middleware, inner: Inner) -> Any:
    async def call_next(changed: Attempt | None = None) -> Any:
        if changed is not None and changed is not attempt:
            _check_change(middleware, attempt, changed)
        return await inner(job, changed if changed is not None else attempt)

    with standing_in(job), use_clock(job.equipment.clock):
        return await middleware.wrap_step(attempt, call_next)


def _check_change(middleware: Middleware, attempt: Attempt, changed: Attempt) -> None:
    """Make sure that what a person was shown is what runs.

    Raises:
        CapabilityError: It would be something else.
    """
    fixed = ("capability", "key") if middleware.stage in _MAY_CHANGE else (*_SHOWN, "step")
    pairs = ((name, getattr(changed, name), getattr(attempt, name)) for name in fixed)
    if told := [name for name, new, old in pairs if new is not old and new != old]:
        raise CapabilityError(
            f"{middleware!r} (stage {middleware.stage}) changed {', '.join(told)} of"
            f" {attempt.key!r}.",
            fix="Change the step at 'observe' or what it works with at 'validate': what leaves that"
            " stage is what is shown, agreed to and run. Another capability is another step.",
            severity=ErrorSeverity.CRITICAL,
        )


async def _around_record(
    job: Job, attempt: Attempt, *, middleware: Middleware, inner: Inner
) -> Result:
    """Run a middleware above the call: what it raises is a failure of the step."""
    put_off, tell = False, middleware.stage != "finalize"

    async def watched(job: Job, attempt: Attempt) -> Result:
        nonlocal put_off
        found: Result = await inner(job, attempt)
        put_off = found is None
        return found

    try:
        result = await _around(job, attempt, middleware=middleware, inner=watched)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        return await finalize.failed_record(job, attempt, exc, tell=tell)
    if isinstance(result, (StepRecord, Question)) or (result is None and put_off):
        return result
    told = CapabilityError(
        f"{middleware!r} (stage {middleware.stage}) gave {result!r:.80} for {attempt.key!r}.",
        fix="Return what 'await call_next(attempt)' gave, or a StepRecord of one's own.",
    )
    return await finalize.failed_record(job, attempt, told, tell=tell)


_WRAPS: dict[str, Any] = {
    stage: _around_record if place <= STAGES.index("finalize") else _around
    for place, stage in enumerate(STAGES)
}
