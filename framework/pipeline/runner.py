"""Entry point for running a capability. Every attempt passes the same stages."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capgraph.base.errors import ConfigurationError
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
from capgraph.pipeline import authorize, observe, validate
from capgraph.pipeline.chain import compose_stages
from capgraph.pipeline.labeled_data import record_file_labels
from capgraph.pipeline.middleware import (
    check_middleware,
    check_node_behaviors,
    flatten_behaviors,
    model_middleware,
    select_applicable,
    target_kind,
)
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.pipeline.state_update import add_nested_effects, export_effects
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
    """Step runner that passes attempts through the configured stages and middleware.

    Args:
        config: Configuration of the runner.
        behaviors: Behaviors that wrap every attempt, in addition to those of the capability.
        own_behaviors: Additional behaviors for individual capabilities, by capability name.
        budget_behaviors: Behaviors that enforce budgets. They wrap all attempts if
            ``has_budgets`` is True, otherwise only attempts whose plan or outer step has a
            budget.
        has_budgets: True if the operator configured budgets.

    Attributes:
        behaviors: Behaviors that wrap every attempt.
        queues: Worker queue by capability name.
        model_middleware: Behaviors that wrap model calls.
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
        self.behaviors: tuple[Any, ...] = tuple(behaviors)
        self.model_middleware: tuple[AnyBehavior, ...] = model_middleware(self.behaviors)
        check_middleware(flatten_behaviors(self.behaviors), "behaviors")
        self._own_behaviors = own_behaviors or {}
        self._budget_behaviors, self._has_budgets = tuple(budget_behaviors), has_budgets
        for spec in registry.capabilities.values():
            check_middleware(
                flatten_behaviors(self.own_behaviors(spec)),
                f"{spec.name}.behaviors",
                target_kind(spec),
            )
        for node in registry.infrastructure.values():
            check_node_behaviors(node)
        capabilities = registry.capabilities
        self._availability_providers = [
            *(
                (item, [*capabilities])
                for item in self.behaviors
                if isinstance(item, AvailabilityProvider)
            ),
            *(
                (i, [name])
                for name in capabilities
                for i in self.own_behaviors(capabilities[name])
                if isinstance(i, AvailabilityProvider)
            ),
        ]
        self._chains: dict[tuple[str, bool], tuple[NextStage, NextStage]] = {}
        self.queues: dict[str, str] = {
            name: queue
            for name, spec in capabilities.items()
            if (queue := capability_queue(spec, config.settings)) is not None
        }

    async def run(self, attempt: Attempt, context: AttemptContext) -> StepResult:
        """Run a step through all stages.

        Args:
            attempt: Attempt to run.
            context: Data and services that the entry point supplies.

        Returns:
            The record of the step, a request for a person's decision, or ``None`` if the process is
            shutting down and another process continues the step.

        Raises:
            FatalExecutionError: A failure was classified as FATAL. The cause is chained.
            GraphBubbleUp: The capability called ``interrupt``, or LangGraph raised another signal.
        """
        spec = self.config.registry.capabilities[attempt.capability]
        outer = enclosing_execution()
        is_inside_budget = outer is not None and outer.has_budget
        has_budget = self._has_budgets or is_inside_budget or bool(context.view.plan.get("budget"))
        hearing = current_label_scope()
        inherited = hearing.labels if hearing is not None else {}
        flow = self.config.flow or (outer.flow if outer else None)
        flow = hearing.make_flow() if flow is None and hearing is not None and inherited else flow
        labels: Mapping[str, str] = {}
        if flow is not None:
            input_labels = flow.labels_for_step(spec, authorize.planned_step(attempt), context.view)
            inherited |= outer.labels if outer is not None else {}
            labels = {**inherited, **context.labels, **input_labels}
        fields: Any = {"flow": flow, "has_budget": has_budget, "labels": labels}
        execution = StepExecution(spec, self.config, context, outer, attempt.key, **fields)
        started_at = time.time()  # as in the modification times of files
        result: StepResult = await self._compose_stages(spec, has_budget=has_budget)[0](
            execution, attempt
        )
        if not isinstance(result, StepRecord):
            return result
        record = add_nested_effects(result, execution.nested_effects)
        if execution.flow is not None:
            record = execution.flow.label_record(record, spec, execution.labels, context.view)
            await record_file_labels(execution, record, started_at)
        if outer is not None:
            outer.nested_effects |= export_effects(
                record, outer.key, Undo.from_declaration(spec.undo)
            )
        for labels in record.labels.values():
            propagate_labels(labels)
        return record

    def attempt_stages(self, spec: CapabilitySpec, *, has_budget: bool) -> NextStage:
        """Return a function that runs the stages of a single attempt, which are those inside ``retry``.

        Args:
            spec: Declarations of the capability.
            has_budget: True if a budget applies.
        """
        return self._compose_stages(spec, has_budget=has_budget)[1]

    def _compose_stages(
        self, spec: CapabilitySpec, *, has_budget: bool
    ) -> tuple[NextStage, NextStage]:
        chain = self._chains.get((spec.name, has_budget))
        if chain is None:
            chain = compose_stages(
                spec,
                self._collect_behaviors(spec, self._budget_behaviors if has_budget else ()),
                config=self.config,
                queue=self.queues.get(spec.name),
            )
            self._chains[spec.name, has_budget] = chain
        return chain

    async def list_elements(
        self, attempt: Attempt, context: AttemptContext
    ) -> list[Any] | StepRecord:
        """Return a ``for_each`` step's list elements, or its record if the step cannot run.

        Args:
            attempt: Attempt of the whole step. Each list element later becomes a separate attempt.
            context: Data and services that the entry point supplies.
        """
        spec = self.config.registry.capabilities[attempt.capability]
        execution = StepExecution(spec, self.config, context, enclosing_execution(), attempt.key)
        elements: list[Any] | StepRecord = await observe.observe(
            execution, attempt, validate.list_elements
        )
        return elements

    async def unavailable_capabilities(self) -> dict[str, str]:
        """Return the unavailable capabilities by name, each with the reason."""
        reasons: dict[str, str] = {}
        with use_clock(self.config.clock):
            for item, names in self._availability_providers:
                reasons |= await item.unavailable_capabilities(names)
        return reasons

    def behaviors_for(self, spec: CapabilitySpec) -> list[Any]:
        """Return the behaviors that wrap a capability's steps, outermost first."""
        return self._collect_behaviors(spec, ())

    def own_behaviors(self, spec: CapabilitySpec) -> list[Any]:
        """Return the behaviors that only a capability's own steps have, as declared."""
        return [*spec.behaviors, *self._own_behaviors.get(spec.name, ())]

    def _collect_behaviors(
        self, spec: CapabilitySpec, budget_behaviors: Sequence[Any]
    ) -> list[Any]:
        behaviors = [*self.behaviors, *budget_behaviors, *self.own_behaviors(spec)]
        guards = [item for item in behaviors if isinstance(item, TurnGuardrail)]
        if len(guards) > 1:  # merged, so that every guard runs and is named in errors
            other_behaviors = [item for item in behaviors if not isinstance(item, TurnGuardrail)]
            behaviors = [guards[0].merged_with(guards[1:]), *other_behaviors]
        return select_applicable(flatten_behaviors(behaviors), target_kind(spec))


def capability_queue(spec: CapabilitySpec, settings: Settings) -> str | None:
    """Return a capability's worker queue, as configured in the settings or its declaration.

    Raises:
        ConfigurationError: The configured queue name is invalid.
    """
    queue = settings.capabilities.get(spec.name, {}).get("queue", spec.queue)
    if queue is None or (isinstance(queue, str) and re.match(QUEUE_PATTERN, queue)):
        return queue
    raise ConfigurationError(
        f"Invalid capabilities.{spec.name}.queue {queue!r}: expected a queue name.",
        fix="use letters, digits, '_', '.', and '-'.",
    )
