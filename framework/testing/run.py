"""Function that runs a single capability outside of a graph, with the validation of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from capgraph.base import CapabilityContext, CapabilitySpec, PlannedStep
from capgraph.base.errors import ValidationError
from capgraph.base.ports import StepRecord
from capgraph.configs.settings import Settings
from capgraph.langgraph_compat import use_runtime_context
from capgraph.pipeline import StepRunner
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.pipeline.step_execution import AttemptContext, ResultOptions
from capgraph.planning import validated_parameters
from capgraph.registry import Registry
from capgraph.state import STATE_KEYS, TurnView, dump_context, load_context

STEP_KEY = "result"


@dataclass(frozen=True, slots=True)
class CapabilityRun:
    """Result of :func:`run_capability`: the outputs, state updates, and progress of one step.

    Attributes:
        contexts: Outputs by context type, deserialized from JSON as for a later step.
        updates: Other state keys that the capability returned.
        progress: Messages and fractions that the capability passed to ``self.progress``.
    """

    contexts: dict[str, Any] = field(default_factory=dict)
    updates: dict[str, Any] = field(default_factory=dict)
    progress: list[tuple[str, float | None]] = field(default_factory=list)

    @property
    def output(self) -> Any:
        """The capability's only output.

        Raises:
            ValidationError: The capability returned no output, or more than one.
        """
        if len(self.contexts) != 1:
            raise ValidationError(
                f"The capability returned {len(self.contexts)} outputs instead of one:"
                f" {sorted(self.contexts)}.",
                fix="Read 'contexts' or 'updates'.",
            )
        return next(iter(self.contexts.values()))


async def run_capability(
    capability: type[Any],
    *,
    inputs: Mapping[str | type[CapabilityContext], Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    task: str = "",
    state: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    attempt: int = 1,
    model: Any = None,
    context: Any = None,
    configurable: Mapping[str, Any] | None = None,
) -> CapabilityRun:
    """Run one step of a decorated capability outside of a graph.

    Inputs, parameters, and outputs are validated as in a graph. Exceptions of the capability are
    not wrapped.

    Args:
        capability: Decorated class or function.
        inputs: Inputs by context type (name or class) or role: an object, a dictionary, or a list
            of these.
        parameters: Parameters of the step.
        task: Objective of the step.
        state: Additional state keys, which the capability may write.
        config: Settings section of the capability.
        attempt: Number of the attempt, starting at 1.
        model: Chat model that ``self.chat_model()`` returns.
        context: LangGraph run context, as passed to a graph as ``context=``.
        configurable: ``configurable`` of the run, such as ``{"user_id": "ada"}``.

    Returns:
        The outputs, state updates, and progress of the step.

    Raises:
        ValidationError: The capability is not decorated, or inputs, parameters, or outputs are
            invalid.
        CapabilityError: The capability returned an unknown state key.

    >>> import asyncio
    >>> from capgraph.base import capability_node
    >>> class Place(CapabilityContext):
    ...     name: str
    >>> class Forecast(CapabilityContext):
    ...     text: str
    >>> @capability_node
    ... async def forecast(place: Place, days: int = 1) -> Forecast:
    ...     '''Forecast the weather of a place.'''
    ...     return Forecast(text=f"{place.name}: sun for {days} days")
    >>> run = asyncio.run(
    ...     run_capability(forecast, inputs={Place: Place(name="Rome")}, parameters={"days": 3})
    ... )
    >>> run.output.text
    'Rome: sun for 3 days'
    """
    spec = getattr(capability, "capability_spec", None)
    if not isinstance(spec, CapabilitySpec) or spec.cls is not capability:
        raise ValidationError(
            f"{capability!r} is not a decorated capability.",
            fix="Decorate it with @capability_node.",
        )
    types: dict[str, type[CapabilityContext]] = {}
    data, links = _store_inputs(inputs or {}, types, spec)
    _, plain = validated_parameters(spec, dict(parameters or {}))
    step = PlannedStep(
        context_key=STEP_KEY,
        capability=spec.name,
        task_objective=task,
        parameters=plain,
        inputs=links,
    )
    values = {**(state or {}), "task_current_task": (state or {}).get("task_current_task") or task}
    values["capability_context_data"] = {**(values.get("capability_context_data") or {}), **data}
    run = CapabilityRun()
    registry = Registry(infrastructure=()).with_(capability, *types.values())
    types.update(registry.context_types)
    section = dict(config or {})
    settings = Settings(
        infrastructure=[],
        capabilities={spec.name: section},
        data_folders=section.pop("data_folders", []),
        approvals={"steps": "none"},
    )
    runner = StepRunner(RunnerConfig(registry, settings, chat_model=lambda _role: model))
    view = TurnView(values)
    door = AttemptContext(
        view,
        EffectLedger(Journal(), view),
        failures=attempt - 1,
        result_options=ResultOptions(
            STATE_KEYS | (state or {}).keys(), raw_errors=True, context_classes=types
        ),
        notify=lambda message, fraction: run.progress.append((message, fraction)),
    )
    planned_attempt = view.create_attempt(spec.name, step, total=0)
    in_a_run = context is not None or configurable is not None
    with use_runtime_context(context, configurable) if in_a_run else nullcontext():
        record = await runner.run(planned_attempt, door)
    assert isinstance(record, StepRecord)
    run.updates.update(record.updates)
    for context_type, entries in record.contexts.items():
        run.contexts[context_type] = load_context(context_type, STEP_KEY, entries[STEP_KEY], types)
    return run


def _store_inputs(
    inputs: Mapping[str | type[CapabilityContext], Any],
    types: dict[str, type[CapabilityContext]],
    spec: CapabilitySpec,
) -> tuple[dict[str, dict[str, Any]], list[dict[str, str]]]:
    """Store inputs as context data, and return the data and the step's references to it."""
    data: dict[str, dict[str, Any]] = {}
    links: list[dict[str, str]] = []
    roles = {need.label: need.type for need in spec.requires}
    for name, value_or_values in inputs.items():
        label = name if isinstance(name, str) else name.CONTEXT_TYPE
        context_type = roles.get(label, label)
        if not isinstance(name, str):
            types[context_type] = name
        values = (
            []
            if value_or_values is None
            else value_or_values
            if isinstance(value_or_values, list)
            else [value_or_values]
        )
        for number, value in enumerate(values):
            if isinstance(value, CapabilityContext):
                types.setdefault(context_type, type(value))
            key = f"{label.lower()}_{number}"
            data.setdefault(context_type, {})[key] = dump_context(context_type, key, value, types)
            links.append({label: key})
    return data, links
