"""Runs one capability by itself, with the contract that it has inside a graph."""

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
    """What a capability left behind.

    Attributes:
        contexts: Context type to output, read back from plain JSON as a later step would get it.
        updates: State keys that it returned besides.
        progress: Messages and fractions of ``self.progress``.
    """

    contexts: dict[str, Any] = field(default_factory=dict)
    updates: dict[str, Any] = field(default_factory=dict)
    progress: list[tuple[str, float | None]] = field(default_factory=list)

    @property
    def output(self) -> Any:
        """The one output.

        Raises:
            ValidationError: There is none, or more than one.
        """
        if len(self.contexts) != 1:
            raise ValidationError(
                f"The capability gave {len(self.contexts)} outputs: {sorted(self.contexts)}.",
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
    """Run one step of a decorated capability outside a graph.

    Inputs and parameters are validated, outputs are sorted and checked, as in a graph; what the
    capability raises comes out as it is.

    Args:
        capability: The capability: a class of either form, or a decorated function.
        inputs: Context type (its name or class) or role to an object, a dictionary, or a list of
            these.
        parameters: The step's parameters.
        task: The step's objective.
        state: Further keys of the state; the capability may write them.
        config: The capability's settings section.
        attempt: Which try this is; 1 for the first.
        model: The chat model that ``self.chat_model()`` returns.
        context: What a caller would hand over as ``context=``.
        configurable: The ``configurable`` of the run, such as ``{"user_id": "ada"}``.

    Raises:
        ValidationError: ``capability`` is not decorated, or inputs, parameters or outputs do not fit.
        CapabilityError: A returned key has no place.

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
    known = {**(state or {}), "task_current_task": (state or {}).get("task_current_task") or task}
    known["capability_context_data"] = {**(known.get("capability_context_data") or {}), **data}
    run = CapabilityRun()
    registry = Registry(infrastructure=()).with_(capability, *types.values())
    types.update(registry.context_types)
    told = dict(config or {})
    settings = Settings(
        infrastructure=[],
        capabilities={spec.name: told},
        data_folders=told.pop("data_folders", []),
        approvals={"steps": "none"},
    )
    runner = StepRunner(RunnerConfig(registry, settings, chat_model=lambda _role: model))
    view = TurnView(known)
    door = AttemptContext(
        view,
        EffectLedger(Journal(), view),
        failures=attempt - 1,
        result_options=ResultOptions(
            STATE_KEYS | (state or {}).keys(), raw_errors=True, context_classes=types
        ),
        notify=lambda message, fraction: run.progress.append((message, fraction)),
    )
    asked = view.create_attempt(spec.name, step, total=0)
    in_a_run = context is not None or configurable is not None
    with use_runtime_context(context, configurable) if in_a_run else nullcontext():
        record = await runner.run(asked, door)
    assert isinstance(record, StepRecord)
    run.updates.update(record.updates)
    for kind, entries in record.contexts.items():
        run.contexts[kind] = load_context(kind, STEP_KEY, entries[STEP_KEY], types)
    return run


def _store_inputs(
    inputs: Mapping[str | type[CapabilityContext], Any],
    types: dict[str, type[CapabilityContext]],
    spec: CapabilitySpec,
) -> tuple[dict[str, dict[str, Any]], list[dict[str, str]]]:
    """Put inputs where a step reads them, and name them as a step does."""
    data: dict[str, dict[str, Any]] = {}
    links: list[dict[str, str]] = []
    roles = {need.label: need.type for need in spec.requires}
    for name, given in inputs.items():
        label = name if isinstance(name, str) else name.CONTEXT_TYPE
        kind = roles.get(label, label)
        if not isinstance(name, str):
            types[kind] = name
        values = [] if given is None else given if isinstance(given, list) else [given]
        for number, value in enumerate(values):
            if isinstance(value, CapabilityContext):
                types.setdefault(kind, type(value))
            key = f"{label.lower()}_{number}"
            data.setdefault(kind, {})[key] = dump_context(kind, key, value, types)
            links.append({label: key})
    return data, links
