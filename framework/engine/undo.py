"""After a failure: the effects that were done, and the plan that would take them back.

The plan is checked like any other and shown to a person, once in a turn. What it holds runs one
after the other, the last effect first, through the same door; then the turn ends with its failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from framework.base.errors import CapgraphError, PlanError, PolicyError
from framework.base.plan import ExecutionPlan, PlannedStep
from framework.base.ports import Verdict
from framework.base.spec import CapabilitySpec, parameter_names
from framework.base.undo import DoneStep, Undo
from framework.engine.accept_plan import accept, check
from framework.engine.services import Services
from framework.planning import CLOSING
from framework.state import TurnView


@dataclass(frozen=True, slots=True)
class _Done:
    step: DoneStep
    keys: Mapping[str, str]
    undo: Undo


async def offered(view: TurnView, services: Services) -> dict[str, Any]:
    """Return the update that offers a person to undo what was done; empty for nothing to offer.

    Args:
        view: The turn, which is about to end with a failure.
        services: Shared dependencies.
    """
    if view.state.get("control_undo") or view.failure is None:
        return {}
    done = _done(view, services)
    if not done or not services.journal().durable:
        return {}
    told = ", ".join(f"{one.step.key} ({one.step.capability})" for one in done)
    works = [s["context_key"] for s in view.steps if s["capability"] not in CLOSING]
    entry = {
        "open": True,
        "failure": dict(view.failure),
        "wanted": works,
        "steps": {},
        "effects": [one.step.key for one in done],
    }
    try:
        steps = {one.step.key: _step(one, view, services) for one in reversed(done)}
        plan = ExecutionPlan(steps=list(steps.values()))
        checked = await check(plan, view, services, active=None)
        reason = f"The turn failed: {view.failure.get('user_message')}"
        problems = [reason, f"Done were the effects of {told}. This plan takes them back."]
        checked = replace(checked, verdict=Verdict("ask", problems))
        update = await accept(
            checked, view, services, author="undo", previous=view.plan, one_by_one=True
        )
    except (PlanError, PolicyError) as exc:
        return {"control_undo": {**entry, "open": False, "problem": str(exc)}}
    # A person agrees to it; the time of the turn that failed is not its.
    times = {**(view.state.get("runtime_info") or {}), "seconds_used": 0.0}
    entry["steps"] = {key: step["context_key"] for key, step in steps.items()}
    return {**update, "control_undo": entry, "runtime_info": times}


def closed(view: TurnView) -> dict[str, Any]:
    """Return the update that ends the undoing: the failure for which it was offered is back."""
    undo = view.state["control_undo"]
    info = dict(undo["failure"])
    if view.failure is not None:
        info["other_failures"] = [*info.get("other_failures", ()), dict(view.failure)]
    return {
        "control_has_error": True,
        "control_error_info": info,
        "control_undo": {**undo, "open": False},
    }


def _done(view: TurnView, services: Services) -> list[_Done]:
    found = []
    for entry in view.effects.values():
        spec = services.registry.capabilities.get(entry.get("capability") or "")
        undo = Undo.of(spec.undo) if spec is not None else None
        if spec is None or undo is None:
            continue
        keys = {
            kind: key
            for kind, key in (entry.get("outputs") or {}).items()
            if key in view.contexts.get(kind, {})
        }
        outputs = {kind: view.contexts[kind][key] for kind, key in keys.items()}
        step = DoneStep(str(entry["step"]), spec.name, entry.get("parameters") or {}, outputs)
        found.append(_Done(step, keys, undo))
    return found


def _step(done: _Done, view: TurnView, services: Services) -> PlannedStep:
    """Plan the step that takes an effect back.

    Raises:
        PlanError: Its parameters cannot be made.
    """
    spec = services.registry.capabilities.get(done.undo.name)
    if spec is None:
        raise PlanError(f"{done.step.capability!r} is undone by {done.undo.name!r}, which is gone.")
    name = "undo_" + done.step.key.replace("[", "_").rstrip("]")
    key, number = name, 1
    taken = {*view.results, *(name for entries in view.contexts.values() for name in entries)}
    while key in taken:
        number += 1
        key = f"{name}_{number}"
    try:
        values = dict(_values(done, spec))
    except CapgraphError:
        raise
    except Exception as exc:
        raise PlanError(
            f"The parameters of {spec.name!r}, which undoes {done.step.key!r}, cannot be made:"
            f" {type(exc).__name__}: {exc}."
        ) from exc
    return PlannedStep(
        context_key=key,
        capability=spec.name,
        task_objective=f"Undo {done.step.key} ({done.step.capability})",
        parameters=values,
        inputs=[
            {need.label: done.keys[need.type]} for need in spec.requires if need.type in done.keys
        ],
    )


def _values(done: _Done, spec: CapabilitySpec) -> Mapping[str, Any]:
    if done.undo.parameters is not None:
        return done.undo.parameters(done.step)
    known = dict(done.step.parameters)
    for data in done.step.outputs.values():
        known |= data
    return {name: known[name] for name in parameter_names(spec.parameters) if name in known}
