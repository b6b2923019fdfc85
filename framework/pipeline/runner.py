"""The one way into a capability: every attempt passes the same stages, whoever asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capgraph.base.clock import use_clock
from capgraph.base.errors import (
    ConfigurationError,
)
from capgraph.base.ports import (
    AnyBehavior,
    Attempt,
    AvailabilityProvider,
    StepRecord,
    TurnGuardrail,
)
from capgraph.base.spec import QUEUE, CapabilitySpec
from capgraph.base.undo import Undo
from capgraph.pipeline import (
    authorize,
    observe,
    validate,
)
from capgraph.pipeline.chain import compose
from capgraph.pipeline.equipment import Equipment
from capgraph.pipeline.job import (
    Door,
    Inner,
    Job,
    Result,
    current_hearing,
    hear,
    outer_job,
)
from capgraph.pipeline.middlewares import (
    around_models,
    check_middlewares,
    check_node_behaviors,
    fitting,
    in_parts,
    kind_of,
)
from capgraph.pipeline.state_update import told_outside, with_inside

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
            check_middlewares(in_parts(self._owned(spec)), f"{spec.name}.behaviors", kind_of(spec))
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
        labels: Mapping[str, str] = {}
        if flow is not None:
            given = flow.labels_for_step(spec, authorize.step_of(attempt), door.view)
            heard |= outer.labels if outer is not None else {}
            labels = {**heard, **door.labels, **given}
        about: Any = {"flow": flow, "bounded": bounded, "labels": labels}
        job = Job(spec, self.equipment, door, outer, attempt.key, **about)
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
            chain = compose(
                spec,
                self._around(spec, self._where_bounded if bounded else ()),
                equipment=self.equipment,
                queue=self.queues.get(spec.name),
            )
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
        return fitting(in_parts(around), kind_of(spec))


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
