"""The one way into a capability: every attempt passes the same stages, whoever asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langgraph.errors import GraphBubbleUp

from capgraph.base.clock import use_clock
from capgraph.base.errors import (
    CapabilityError,
    ConfigurationError,
    ErrorSeverity,
    FatalExecutionError,
)
from capgraph.base.ports import (
    STAGES,
    AnyBehavior,
    Attempt,
    AvailabilityProvider,
    Behavior,
    Middleware,
    Question,
    RetryRule,
    StepRecord,
    TimeLimit,
    TurnGuardrail,
)
from capgraph.base.spec import QUEUE, CapabilitySpec, InfrastructureSpec
from capgraph.base.undo import Undo
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
from capgraph.pipeline.job import (
    Door,
    Gate,
    Inner,
    Job,
    Result,
    current_hearing,
    hear,
    outer_job,
    standing_in,
)
from capgraph.pipeline.state_update import told_outside, with_inside

_SHIPPED: dict[str, Any] = {
    "observe": observe.observe,
    "acquire": acquire.acquire,
    "idempotency": idempotency.idempotency,
    "timeout": timeout.timeout,
}
_GATES: dict[str, Any] = {"validate": validate.validate, "authorize": authorize.authorize}
_INSIDE: dict[str, Any] = {"retry": retry.retry, "finalize": finalize.finalize}
"""Stages whose middlewares stand around them: around all tries, and around the record of one."""

Kind = Literal["step", "effect", "model", "node"]
"""What a behaviour may stand around: a step without or with an effect, a model call, a node."""

STANDS_AROUND: dict[Kind, str] = {
    "step": "steps without an effect",
    "effect": "steps with an effect",
    "model": "model calls",
    "node": "infrastructure nodes",
}
"""What may stand in the attribute ``applies_to`` of a behaviour; all of it where it has none."""

_MAY_CHANGE = ("observe", "validate")
_SHOWN = ("capability", "key", "inputs", "parameters", "values")
_T = TypeVar("_T")

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


class StepRunner:
    """Runs attempts through the stages that an operator's decisions make.

    Args:
        equipment: What an operator gave.
        behaviors: What stands around each attempt, besides what a capability brings itself.
        own_behaviors: Name of a capability to what stands around it besides.
        where_bounded: What stands around each attempt besides where something is bounded: always,
            if ``bounded``; else where the plan brings a budget, or the step around is so.
        bounded: Whether the operator has budgets.

    Attributes:
        queues: Name of a capability to the queue of the workers that run its steps.
        around_models: What of it stands around every model call.
        counts_people: Whether anything of it counts for each person or tenant.
    """

    def __init__(
        self,
        equipment: Equipment,
        *,
        behaviors: Sequence[AnyBehavior] = (),
        own_behaviors: Mapping[str, Sequence[Any]] | None = None,
        where_bounded: Sequence[AnyBehavior] = (),
        bounded: bool = False,
    ) -> None:
        self.equipment = equipment
        registry = equipment.registry
        self._behaviors = tuple(behaviors)
        self.around_models: tuple[AnyBehavior, ...] = around_models(self._behaviors)
        check_middlewares(in_parts(self._behaviors), "behaviors")
        self._own = own_behaviors or {}
        self._where_bounded, self._bounded = tuple(where_bounded), bounded
        for spec in registry.capabilities.values():
            check_middlewares(in_parts(self._owned(spec)), f"{spec.name}.behaviors", _kind(spec))
        for node in registry.infrastructure.values():
            check_node_behaviors(node)
        known = registry.capabilities
        self._reach = [
            *(
                (item, [*known])
                for item in self._behaviors
                if isinstance(item, AvailabilityProvider)
            ),
            *(
                (i, [name])
                for name in known
                for i in self._owned(known[name])
                if isinstance(i, AvailabilityProvider)
            ),
        ]
        owned = [item for spec in known.values() for item in self._owned(spec)]
        self.counts_people: bool = any(
            {"user", "tenant"}.intersection(getattr(item, "per", ()))
            for item in (*self._behaviors, *owned)
        )
        self._chains: dict[tuple[str, bool], tuple[Inner, Inner]] = {}
        self.queues: dict[str, str] = {
            name: queue
            for name, spec in known.items()
            if (queue := queue_of(spec, equipment.settings)) is not None
        }

    async def run(self, attempt: Attempt, door: Door) -> Result:
        """Run one step through all stages.

        Args:
            attempt: What is asked for.
            door: What the asker brings.

        Returns:
            What the step left behind; a question that a person has to answer first; or ``None``
            when the process is to stop and another one goes on with the step.

        Raises:
            FatalExecutionError: A failure was classified FATAL; the cause is chained.
            GraphBubbleUp: An interrupt of the capability's own, or another signal of LangGraph.
        """
        spec = self.equipment.registry.capabilities[attempt.capability]
        outer = outer_job()
        around = outer is not None and outer.bounded
        bounded = self._bounded or around or bool(door.view.plan.get("budget"))
        hearing = current_hearing()
        heard = hearing.labels if hearing is not None else {}
        flow = self.equipment.flow or (outer.flow if outer else None)
        flow = hearing.flow() if flow is None and hearing is not None and heard else flow
        job = Job(spec, self.equipment, door, outer, attempt.key, flow=flow, bounded=bounded)
        if job.flow is not None:
            given = job.flow.labels_for_step(spec, authorize.step_of(attempt), door.view)
            heard |= outer.labels if outer is not None else {}
            job.labels = {**heard, **door.labels, **given}
        result: Result = await self._stages(spec, bounded=bounded)[0](job, attempt)
        if not isinstance(result, StepRecord):
            return result
        record = with_inside(result, job.inside)
        if job.flow is not None:
            record = job.flow.labelled(record, spec, job.labels, door.view)
        if outer is not None:
            outer.inside |= told_outside(record, outer.key, Undo.of(spec.undo))
        for labels in record.labels.values():
            hear(labels)
        return record

    def inside(self, spec: CapabilitySpec, *, bounded: bool) -> Inner:
        """Return one try of a capability: the stages inside of ``retry``.

        Args:
            spec: The capability.
            bounded: Whether a budget is asked.
        """
        return self._stages(spec, bounded=bounded)[1]

    def _stages(self, spec: CapabilitySpec, *, bounded: bool) -> tuple[Inner, Inner]:
        chain = self._chains.get((spec.name, bounded))
        if chain is None:
            chain = self._chain(spec, self._where_bounded if bounded else ())
            self._chains[spec.name, bounded] = chain
        return chain

    async def elements(self, attempt: Attempt, door: Door) -> list[Any] | StepRecord:
        """Return for what a step with ``for_each`` runs; or its record, where it cannot run.

        Args:
            attempt: The step; for each element an attempt of its own goes through all stages.
            door: What the asker brings.
        """
        spec = self.equipment.registry.capabilities[attempt.capability]
        job = Job(spec, self.equipment, door, outer_job(), attempt.key)
        found: list[Any] | StepRecord = await observe.observe(job, attempt, validate.elements)
        return found

    async def unavailable_capabilities(self) -> dict[str, str]:
        """Return the capabilities that cannot be called now, each with why and until when."""
        found: dict[str, str] = {}
        with use_clock(self.equipment.clock):
            for item, names in self._reach:
                found |= await item.unavailable_capabilities(names)
        return found

    def behaviors_of(self, spec: CapabilitySpec) -> list[Any]:
        """Return the behaviors that wrap a step of a capability, outermost first."""
        return self._around(spec, ())

    def _owned(self, spec: CapabilitySpec) -> list[Any]:
        return [*spec.behaviors, *self._own.get(spec.name, ())]

    def _around(self, spec: CapabilitySpec, more: Sequence[Any]) -> list[Any]:
        around = [*self._behaviors, *more, *self._owned(spec)]
        guards = [item for item in around if isinstance(item, TurnGuardrail)]
        if len(guards) > 1:  # as one, so that all of them are asked and named
            others = [item for item in around if not isinstance(item, TurnGuardrail)]
            around = [guards[0].merged_with(guards[1:]), *others]
        return fitting(in_parts(around), _kind(spec))

    def _chain(self, spec: CapabilitySpec, more: Sequence[Any]) -> tuple[Inner, Inner]:
        around = self._around(spec, more)
        asked = [item for item in around if callable(getattr(item, "decide", None))]
        told: dict[str, dict[str, Any]] = {
            "authorize": {"policies": (*self.equipment.step_policies, *asked)},
            "retry": {"rule": innermost(around, RetryRule)},
            "timeout": {"instead": innermost(around, TimeLimit)},
        }
        inner: Inner = call.call
        again = inner
        for stage in reversed(STAGES):
            if stage == "observe" and (own := [item for item in around if not _stage(item)]):
                inner = partial(hooks.hooks, inner=inner, behaviors=tuple(own), again=again)
            inner = _within(stage, spec, around, inner, told.get(stage, {}))
            if stage == "finalize":
                again = inner
                if spec.name in self.queues:
                    inner = partial(away.away, inner=inner, queue=self.queues[spec.name])
        return inner, again


def queue_of(spec: CapabilitySpec, settings: Settings) -> str | None:
    """Return the queue of a capability: what the settings say, else what it declares itself.

    Raises:
        ConfigurationError: The settings name none that there could be.
    """
    found = settings.capabilities.get(spec.name, {}).get("queue", spec.queue)
    if found is None or (isinstance(found, str) and re.match(QUEUE, found)):
        return found
    raise ConfigurationError(
        f"capabilities.{spec.name}.queue is {found!r}, which names no queue.",
        fix="Use letters, digits, '_', '.' and '-'.",
    )


def _kind(spec: CapabilitySpec) -> Kind:
    return "step" if spec.effect == "none" else "effect"


def fitting(given: Iterable[_T], kind: Kind) -> list[_T]:
    """Return those of a graph's behaviours that can stand around something of a kind."""
    return [item for item in given if kind in getattr(item, "applies_to", (kind,))]


def around_models(given: Iterable[_T]) -> tuple[_T, ...]:
    """Return those of a graph's behaviours that stand around model calls: they name a stage.

    Hooks without one are about steps; a model's role brings its own.
    """
    return tuple(item for item in fitting(given, "model") if _stage(item))


def innermost(around: Sequence[Any], rule: Any) -> Any:
    """Return the innermost of the rules of a type; the others have no say."""
    return next((item for item in reversed(around) if isinstance(item, rule)), None)


def _within(
    stage: str, spec: CapabilitySpec, around: Sequence[Any], inner: Inner, told: Mapping[str, Any]
) -> Inner:
    """Return a stage, with whatever stands at it, around ``inner``."""
    own = in_order(item for item in around if _stage(item) == stage and not is_rule(item))
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
    if stage in _GATES:
        gate = partial(_GATES[stage], **told) if told else _GATES[stage]
        inner = _gated(gate, inner, settles=stage == "authorize")
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


def _stage(item: Any) -> str | None:
    return getattr(item, "stage", None)


def is_rule(item: Any) -> bool:
    """Tell whether something takes the place of what a stage goes by, and stands around nothing."""
    return isinstance(item, (RetryRule, TimeLimit))


def in_order(around: Iterable[Any]) -> list[Any]:
    """Return what stands at one stage from the outside in.

    Those with a number (``order``) have one place however they are listed; the others, as they are
    listed, stand inside of those below 1,000 and outside of those above. What is listed twice, for
    the graph and for a capability, stands once.
    """
    return sorted(
        {id(item): item for item in around}.values(), key=lambda item: getattr(item, "order", 1_000)
    )


def in_parts(given: Iterable[Any]) -> tuple[Any, ...]:
    """Return behaviours with those that stand at several stages (``parts``) taken apart."""
    return tuple(part for item in given for part in getattr(item, "parts", (item,)))


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


def check_node_behaviors(spec: InfrastructureSpec) -> None:
    """Make sure that what an infrastructure node declares can stand around it.

    Raises:
        ConfigurationError: It cannot.
    """
    where = f"{spec.name}.behaviors"
    check_middlewares(spec.behaviors, where, "node")
    for item in spec.behaviors:
        if _stage(item) is not None and not is_rule(item):
            raise ConfigurationError(
                f"{item!r} in {where} names the stage {_stage(item)!r}, which a node does not pass.",
                fix="Give a node hooks (without a stage), RetryBehavior or TimeoutBehavior.",
            )


def check_middlewares(given: Sequence[Any], where: str, kind: Kind | None = None) -> None:
    """Make sure that everything in a list can stand around an attempt.

    Args:
        given: The list.
        where: Names it.
        kind: What it is declared for; ``None`` for whatever fits.

    Raises:
        ConfigurationError: It names no stage, or an unknown one, or has no ``wrap_step``; and it has
            no hooks of a behaviour either. Or it cannot stand around this.
    """
    for item in given:
        fits = getattr(item, "applies_to", STANDS_AROUND)
        if kind is not None and kind not in fits and not isinstance(item, type):
            raise ConfigurationError(
                f"{item!r} in {where} cannot stand around {STANDS_AROUND[kind]}.",
                fix=f"It is for {' and '.join(STANDS_AROUND[other] for other in fits)}.",
            )
        stage = _stage(item)
        if stage is None and isinstance(item, Behavior) and not isinstance(item, type):
            continue
        if isinstance(item, type) or stage not in STAGES:
            raise ConfigurationError(
                f"{item!r} in {where} names the stage {stage!r}.",
                fix=f"Give an object (not a class) whose 'stage' is one of {', '.join(STAGES)}, or one"
                " with the hooks of BaseBehavior.",
            )
        if not (callable(getattr(item, "wrap_step", None)) or is_rule(item)):
            raise ConfigurationError(
                f"{item!r} in {where} has no method 'wrap_step'.",
                fix="Write 'async def wrap_step(self, attempt, call_next)'.",
            )
