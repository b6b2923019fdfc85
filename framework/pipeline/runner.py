"""The one way into a capability: every attempt passes the same stages, whoever asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from capgraph.base.spec import QUEUE_PATTERN, CapabilitySpec
from capgraph.base.undo import Undo
from capgraph.helpers.clock import use_clock
from capgraph.pipeline import (
    authorize,
    observe,
    validate,
)
from capgraph.pipeline.chain import compose_stages
from capgraph.pipeline.middleware import (
    applicable,
    check_middleware,
    check_node_behaviors,
    flatten_behaviors,
    model_middleware,
    target_kind,
)
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.pipeline.state_update import effects_for_parent, with_nested_effects
from capgraph.pipeline.step_execution import (
    AttemptContext,
    NextStage,
    StepExecution,
    StepResult,
    current_label_scope,
    enclosing_execution,
    propagate_labels,
)

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


class StepRunner:
    """Runs attempts through the stages that an operator's decisions make.

    Args:
        config: What an operator gave.
        behaviors: What stands around each attempt, besides what a capability brings itself.
        own_behaviors: Name of a capability to what stands around it besides.
        budget_behaviors: What stands around each attempt besides where something is bounded: always,
            if ``has_budgets``; else where the plan brings a budget, or the step around is so.
        has_budgets: Whether the operator has budgets.

    Attributes:
        queues: Name of a capability to the queue of the workers that run its steps.
        model_middleware: What of it stands around every model call.
        has_per_user_limits: Whether anything of it counts for each person or tenant.
    """

    def __init__(
        self,
        config: RunnerConfig,
        *,
        behaviors: Sequence[AnyBehavior] = (),
        own_behaviors: Mapping[str, Sequence[Any]] | None = None,
        budget_behaviors: Sequence[AnyBehavior] = (),
        has_budgets: bool = False,
    ) -> None:
        self.config = config
        registry = config.registry
        self._behaviors = tuple(behaviors)
        self.model_middleware: tuple[AnyBehavior, ...] = model_middleware(self._behaviors)
        check_middleware(flatten_behaviors(self._behaviors), "behaviors")
        self._own_behaviors = own_behaviors or {}
        self._budget_behaviors, self._has_budgets = tuple(budget_behaviors), has_budgets
        for spec in registry.capabilities.values():
            check_middleware(
                flatten_behaviors(self._own_behaviors_of(spec)),
                f"{spec.name}.behaviors",
                target_kind(spec),
            )
        for node in registry.infrastructure.values():
            check_node_behaviors(node)
        known = registry.capabilities
        self._availability_providers = [
            *(
                (item, [*known])
                for item in self._behaviors
                if isinstance(item, AvailabilityProvider)
            ),
            *(
                (i, [name])
                for name in known
                for i in self._own_behaviors_of(known[name])
                if isinstance(i, AvailabilityProvider)
            ),
        ]
        owned = [item for spec in known.values() for item in self._own_behaviors_of(spec)]
        self.has_per_user_limits: bool = any(
            {"user", "tenant"}.intersection(getattr(item, "per", ()))
            for item in (*self._behaviors, *owned)
        )
        self._chains: dict[tuple[str, bool], tuple[NextStage, NextStage]] = {}
        self.queues: dict[str, str] = {
            name: queue
            for name, spec in known.items()
            if (queue := capability_queue(spec, config.settings)) is not None
        }

    async def run(self, attempt: Attempt, context: AttemptContext) -> StepResult:
        """Run one step through all stages.

        Args:
            attempt: What is asked for.
            context: What the asker brings.

        Returns:
            What the step left behind; a question that a person has to answer first; or ``None``
            when the process is to stop and another one goes on with the step.

        Raises:
            FatalExecutionError: A failure was classified FATAL; the cause is chained.
            GraphBubbleUp: An interrupt of the capability's own, or another signal of LangGraph.
        """
        spec = self.config.registry.capabilities[attempt.capability]
        outer = enclosing_execution()
        around = outer is not None and outer.bounded
        bounded = self._has_budgets or around or bool(context.view.plan.get("budget"))
        hearing = current_label_scope()
        heard = hearing.labels if hearing is not None else {}
        flow = self.config.flow or (outer.flow if outer else None)
        flow = hearing.make_flow() if flow is None and hearing is not None and heard else flow
        labels: Mapping[str, str] = {}
        if flow is not None:
            given = flow.labels_for_step(spec, authorize.planned_step(attempt), context.view)
            heard |= outer.labels if outer is not None else {}
            labels = {**heard, **context.labels, **given}
        about: Any = {"flow": flow, "bounded": bounded, "labels": labels}
        job = StepExecution(spec, self.config, context, outer, attempt.key, **about)
        result: StepResult = await self._stages(spec, has_budget=bounded)[0](job, attempt)
        if not isinstance(result, StepRecord):
            return result
        record = with_nested_effects(result, job.nested_effects)
        if job.flow is not None:
            record = job.flow.label_record(record, spec, job.labels, context.view)
        if outer is not None:
            outer.nested_effects |= effects_for_parent(record, outer.key, Undo.of(spec.undo))
        for labels in record.labels.values():
            propagate_labels(labels)
        return record

    def attempt_stages(self, spec: CapabilitySpec, *, has_budget: bool) -> NextStage:
        """Return one try of a capability: the stages inside of ``retry``.

        Args:
            spec: The capability.
            has_budget: Whether a budget is asked.
        """
        return self._stages(spec, has_budget=has_budget)[1]

    def _stages(self, spec: CapabilitySpec, *, has_budget: bool) -> tuple[NextStage, NextStage]:
        chain = self._chains.get((spec.name, has_budget))
        if chain is None:
            chain = compose_stages(
                spec,
                self._behaviors_for(spec, self._budget_behaviors if has_budget else ()),
                equipment=self.config,
                queue=self.queues.get(spec.name),
            )
            self._chains[spec.name, has_budget] = chain
        return chain

    async def list_elements(
        self, attempt: Attempt, context: AttemptContext
    ) -> list[Any] | StepRecord:
        """Return for what a step with ``for_each`` runs; or its record, where it cannot run.

        Args:
            attempt: The step; for each element an attempt of its own goes through all stages.
            context: What the asker brings.
        """
        spec = self.config.registry.capabilities[attempt.capability]
        job = StepExecution(spec, self.config, context, enclosing_execution(), attempt.key)
        found: list[Any] | StepRecord = await observe.observe(job, attempt, validate.list_elements)
        return found

    async def unavailable_capabilities(self) -> dict[str, str]:
        """Return the capabilities that cannot be called now, each with why and until when."""
        found: dict[str, str] = {}
        with use_clock(self.config.clock):
            for item, names in self._availability_providers:
                found |= await item.unavailable_capabilities(names)
        return found

    def behaviors_for(self, spec: CapabilitySpec) -> list[Any]:
        """Return the behaviors that wrap a step of a capability, outermost first."""
        return self._behaviors_for(spec, ())

    def _own_behaviors_of(self, spec: CapabilitySpec) -> list[Any]:
        return [*spec.behaviors, *self._own_behaviors.get(spec.name, ())]

    def _behaviors_for(self, spec: CapabilitySpec, budget_behaviors: Sequence[Any]) -> list[Any]:
        around = [*self._behaviors, *budget_behaviors, *self._own_behaviors_of(spec)]
        guards = [item for item in around if isinstance(item, TurnGuardrail)]
        if len(guards) > 1:  # as one, so that all of them are asked and named
            others = [item for item in around if not isinstance(item, TurnGuardrail)]
            around = [guards[0].merged_with(guards[1:]), *others]
        return applicable(flatten_behaviors(around), target_kind(spec))


def capability_queue(spec: CapabilitySpec, settings: Settings) -> str | None:
    """Return the queue of a capability: what the settings say, else what it declares itself.

    Raises:
        ConfigurationError: The settings name none that there could be.
    """
    found = settings.capabilities.get(spec.name, {}).get("queue", spec.queue)
    if found is None or (isinstance(found, str) and re.match(QUEUE_PATTERN, found)):
        return found
    raise ConfigurationError(
        f"capabilities.{spec.name}.queue is {found!r}, which names no queue.",
        fix="Use letters, digits, '_', '.' and '-'.",
    )
