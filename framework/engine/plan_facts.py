"""Facts about a checked plan: default parameters and unavailable capabilities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from capgraph.base.capability import BaseCapability
from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.base.spec import CapabilitySpec, parameter_names
from capgraph.engine.services import Services
from capgraph.planning.planner_traits import planner_traits
from capgraph.state import TurnView

if TYPE_CHECKING:
    from capgraph.planning.strategies import StepSummary


def describe_default_parameters(
    plan: ExecutionPlan, view: TurnView, services: Services
) -> list[str]:
    """Describe the default parameters that each new step used, one sentence per step.

    Steps with a ``once`` effect are omitted, because a person approves their parameters.
    """
    notes = []
    for step in plan["steps"]:
        spec = services.registry.capabilities.get(step["capability"])
        if spec is None or step["context_key"] in view.succeeded_keys:
            continue
        defaults = _unset_defaults(spec, step)
        if defaults and spec.effect != "once":
            notes.append(f"{spec.name!r} used default parameters: {', '.join(defaults)}.")
    return notes


def describe_ignored_values(view: TurnView, services: Services) -> tuple[str, ...]:
    """Describe each step that ran with default parameters and ignored a value in the request.

    Planning without a model recognizes only values in certain formats, so the answer must
    mention the values that it ignored. Capabilities that override ``parameters_from`` are
    omitted.
    """
    if planner_traits(services.planner).chooses_parameters:
        return ()
    from capgraph.selection.texts import unexplained_values  # not needed with a planning model

    candidates = {candidate.name: candidate for candidate in services.registry.candidates()}
    lines = []
    for key, step in view.steps_by_key.items():
        spec = services.registry.capabilities.get(step["capability"])
        defaults = spec and key in view.succeeded_keys and _unset_defaults(spec, step)
        if not defaults or spec is None or spec.name not in candidates:
            continue
        if spec.cls.parameters_from is not BaseCapability.parameters_from:
            continue
        used = map(str, (step.get("parameters") or {}).values())
        ignored = unexplained_values(candidates[spec.name], view.request_text)
        ignored = [value for value in ignored if value not in used]
        if ignored:
            lines.append(
                f"The request names {' and '.join(ignored)}, but {spec.name.replace('_', ' ')!r}"
                f" recognized no such value and used its default {' and '.join(defaults)}."
            )
    return tuple(lines)


def describe_missing_names(
    view: TurnView, results: Sequence[StepSummary], services: Services
) -> tuple[str, ...]:
    """Name the places, people, and codes of the request that the results do not mention.

    Small models otherwise report the results as if they concerned these names. A name that
    occurs in a parameter or in the description of a capability that ran is omitted.
    """
    if not getattr(services.answerer, "keeps_answers", False):
        return ()
    from capgraph.selection.texts import candidate_text, find_missing_names  # only small models

    candidates = {candidate.name: candidate for candidate in services.registry.candidates()}
    texts = [f"{result.summary} {result.context_key}" for result in results]
    for step in view.steps_by_key.values():
        candidate = candidates.get(step["capability"])
        texts.append(json.dumps(step.get("parameters") or {}, ensure_ascii=False, default=str))
        if candidate is not None:
            texts += [candidate_text(candidate), *candidate.positives]
    names = find_missing_names(view.request_text, " ".join(texts))
    if not names:
        return ()
    return (f"The results say nothing about {' and '.join(names)}.",)


def _unset_defaults(spec: CapabilitySpec, step: PlannedStep) -> list[str]:
    """List the default parameter values that a step uses, such as ``place='here'``.

    Only strings and numbers are included.
    """
    if spec.parameters is None:
        return []
    fields = spec.parameters.model_fields.values()
    return [
        f"{name}={default!r:.80}"
        for name, info in zip(parameter_names(spec.parameters), fields, strict=True)
        if name not in (step.get("parameters") or {})
        and isinstance(default := _to_plain(info.default), (str, int, float))
        and not isinstance(default, bool)
    ]


def _to_plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


async def describe_unavailable_steps(
    plan: ExecutionPlan, view: TurnView, services: Services
) -> list[str]:
    """Describe each unfinished step whose capability is currently unavailable.

    Optional steps and steps whose capability has a fallback are omitted.
    """
    unavailable = await services.runner.unavailable_capabilities()
    capabilities = services.registry.capabilities
    return [
        f"step {step['context_key']!r} needs {name!r}, which is {unavailable[name]}"
        for step in plan["steps"]
        if (name := step["capability"]) in unavailable
        and step["context_key"] not in view.succeeded_keys
        and not step.get("optional")
        and not _has_fallback(capabilities[name], services)
    ]


def _has_fallback(spec: CapabilitySpec, services: Services) -> bool:
    from capgraph.behaviors.fallback import (
        FallbackBehavior,
    )  # only needed if a capability is unavailable

    return any(
        isinstance(behavior, FallbackBehavior) for behavior in services.runner.behaviors_for(spec)
    )
