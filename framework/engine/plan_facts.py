"""Facts about a checked plan: default parameters and unavailable capabilities."""

from __future__ import annotations

from enum import Enum
from typing import Any

from capgraph.base.plan import ExecutionPlan
from capgraph.base.spec import CapabilitySpec, parameter_names
from capgraph.engine.services import Services
from capgraph.state import TurnView


def default_parameter_notes(plan: ExecutionPlan, view: TurnView, services: Services) -> list[str]:
    """Return a sentence for each new step that uses default parameters.

    Once-only effects are omitted, because a person is asked about them.
    """
    notes = []
    for step in plan["steps"]:
        spec = services.registry.capabilities.get(step["capability"])
        if spec is None or spec.parameters is None or step["context_key"] in view.succeeded_keys:
            continue
        parameters = step.get("parameters") or {}
        fields = spec.parameters.model_fields.values()
        defaults = [
            f"{name}={default!r:.80}"
            for name, info in zip(parameter_names(spec.parameters), fields, strict=True)
            if name not in parameters
            and isinstance(default := _plain(info.default), (str, int, float))
            and not isinstance(default, bool)
        ]
        if defaults and spec.effect != "once":
            notes.append(f"{spec.name!r} used default parameters: {', '.join(defaults)}.")
    return notes


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


async def unavailable_steps(plan: ExecutionPlan, view: TurnView, services: Services) -> list[str]:
    """Return a clause for each unfinished step whose capability is known to be unavailable.

    Optional steps and capabilities with a fallback are omitted.
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
