"""Undo of completed effects after a failure.

The undo plan is checked like any other plan and shown to a person, once per turn. Its steps run one
at a time, the last effect first. Then the turn ends with its original failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capgraph.approvals import PLAN, plan_request
from capgraph.base.errors import CapgraphError, LimitError, PlanError, PolicyError
from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.base.ports import Attempt, StepRecord, Verdict
from capgraph.base.spec import CapabilitySpec, parameter_names
from capgraph.base.undo import DoneStep, Undo
from capgraph.configs.logger import get_logger
from capgraph.engine.approval_requests import ask_in_task, create_answer_reader
from capgraph.engine.caller_plan import plan_digest
from capgraph.engine.plan_acceptance import accept_plan, prepare_plan
from capgraph.engine.services import Services
from capgraph.pipeline.run_config import current_runtime
from capgraph.pipeline.state_update import merge_writes, to_state
from capgraph.planning import TERMINAL_STEPS
from capgraph.state import TurnView
from capgraph.telemetry.audit import record_decision


@dataclass(frozen=True, slots=True)
class _DoneEffect:
    done_step: DoneStep
    output_keys: Mapping[str, str]
    undo: Undo


async def offer_undo(view: TurnView, services: Services) -> dict[str, Any]:
    """Create the state update that offers to undo a failed turn's completed effects.

    Return an empty dictionary if no effect can be undone.

    Args:
        view: State of the turn, which is about to end with a failure.
        services: Services of the graph.
    """
    if view.state.get("control_undo") or view.failure is None:
        return {}
    done = _find_undoable_effects(view, services)
    if not done or not services.journal().is_durable:
        return {}
    names = ", ".join(f"{effect.done_step.key} ({effect.done_step.capability})" for effect in done)
    work_keys = [s["context_key"] for s in view.steps if s["capability"] not in TERMINAL_STEPS]
    entry = {
        "open": True,
        "failure": dict(view.failure),
        "wanted": work_keys,
        "steps": {},
        "effects": [effect.done_step.key for effect in done],
    }
    try:
        steps = {
            effect.done_step.key: _create_undo_step(effect, view, services)
            for effect in reversed(done)
        }
        plan = ExecutionPlan(steps=list(steps.values()))
        checked = await prepare_plan(plan, view, services, active=None, author="undo")
        reason = f"The turn failed: {view.failure.get('user_message')}"
        problems = [reason, f"The effects of {names} are done. This plan undoes them."]
        checked = replace(checked, verdict=Verdict("ask", problems))
        update = await accept_plan(
            checked, view, services, author="undo", previous=view.plan, one_by_one=True
        )
    except (PlanError, PolicyError, LimitError) as exc:
        return {"control_undo": {**entry, "open": False, "problem": str(exc)}}
    # The undo plan starts with a full time limit.
    times = {**(view.state.get("runtime_info") or {}), "seconds_used": 0.0}
    entry["steps"] = {key: step["context_key"] for key, step in steps.items()}
    return {**update, "control_undo": entry, "runtime_info": times}


async def offer_undo_in_node(
    failure_update: Mapping[str, Any],
    view: TurnView,
    services: Services,
    run: Callable[[Attempt], Awaitable[StepRecord]],
) -> dict[str, Any]:
    """Offer to undo effects after a node of a custom graph failed.

    The returned state update includes the update of the failed node.

    Args:
        failure_update: State update of the failed node.
        view: State of the graph.
        services: Services of the graph.
        run: Function that runs a step.
    """
    journal, turn = services.journal(), services.ledger(view).turn_key
    once = (view.state.get("control_undo") or {}).get("turn") == turn
    done = [] if once or not view.turn_id else _find_undoable_effects(view, services, f"{turn}/")
    if not done or not journal.is_durable:
        return dict(failure_update)
    names = ", ".join(
        f"{done_effect.done_step.key} ({done_effect.done_step.capability})" for done_effect in done
    )
    info = failure_update["control_error_info"]
    entry = {
        "open": False,
        "turn": turn,
        "failure": info,
        "effects": [o.done_step.key for o in done],
    }
    try:
        steps = {
            done_effect.done_step.key: _create_undo_step(done_effect, view, services)
            for done_effect in reversed(done)
        }
        plan = ExecutionPlan(steps=list(steps.values()))
        plan = (await prepare_plan(plan, view, services, active=None, author="undo")).plan
    except (PlanError, PolicyError, LimitError) as exc:
        return {**failure_update, "control_undo": {**entry, "problem": str(exc)}}
    # The failed step must not run again when the answer arrives.
    await journal.write(_create_visit_key(), dict(failure_update))
    problems = [f"{info['user_message']}", f"The effects of {names} are done. This undoes them."]
    state_update = {
        "control_undo": {"open": True},
        "control_validation_context": {"problems": problems},
    }
    plan_view = services.view({**view.state, **state_update, "planning_execution_plan": plan})
    question = plan_request(plan_view, services.registry)
    answers, by = await ask_in_task(
        question, create_answer_reader(question, plan_view, services, None)
    )
    decision = answers[PLAN].decision
    record_decision(PLAN, PLAN, decision, by, digest=plan_digest(plan))
    writes, undone = [*failure_update.items()], []
    for effect, step in steps.items() if decision == "approve" else ():
        record = await run(plan_view.create_attempt(step["capability"], step, total=len(steps)))
        writes += to_state(record).items()
        if record.error is not None:
            break
        undone.append(effect)
    writes.append(("control_undo", {**entry, "undone": undone}))
    return dict(merge_writes(writes))


async def load_failed_visit_update(services: Services) -> dict[str, Any]:
    """Load the saved state update of a failed node that was waiting for an undo decision."""
    if not any(spec.undo is not None for spec in services.registry.capabilities.values()):
        return {}
    return await services.journal().read(_create_visit_key())


def _create_visit_key() -> str:
    return f"undo/{current_runtime().execution_info.task_id}"


def finish_undo(view: TurnView) -> dict[str, Any]:
    """Create the state update that ends an undo and restores the original failure of the turn."""
    undo = view.state["control_undo"]
    info = dict(undo["failure"])
    if view.failure is not None:
        info["other_failures"] = [*info.get("other_failures", ()), dict(view.failure)]
    return {
        "control_has_error": True,
        "control_error_info": info,
        "control_undo": {**undo, "open": False},
    }


def _find_undoable_effects(view: TurnView, services: Services, turn: str = "") -> list[_DoneEffect]:
    effects = []
    for entry in [entry for name, entry in view.effects.items() if name.startswith(turn)]:
        spec = services.registry.capabilities.get(entry.get("capability") or "")
        # The effect of a nested agent's capability names its undo in the entry.
        undo = Undo.from_declaration(spec.undo if spec is not None else entry.get("undo"))
        if undo is None:
            continue
        if undo.name not in services.registry.capabilities:
            get_logger("framework", "undo").warning(
                "The effect of %s (%s) cannot be undone: %r is not registered. Fix: register it with"
                " the graph.",
                entry["step"],
                entry["capability"],
                undo.name,
            )
            continue
        keys = {
            kind: key
            for kind, key in (entry.get("outputs") or {}).items()
            if key in view.contexts.get(kind, {})
        }
        outputs = {kind: view.contexts[kind][key] for kind, key in keys.items()}
        outputs |= entry.get("data") or {}  # for an effect of a nested step
        step = DoneStep(
            str(entry["step"]), entry["capability"], entry.get("parameters") or {}, outputs
        )
        effects.append(_DoneEffect(step, keys, undo))
    return effects


def _create_undo_step(effect: _DoneEffect, view: TurnView, services: Services) -> PlannedStep:
    """Create the plan step that undoes a completed effect.

    Raises:
        PlanError: The parameters of the step cannot be determined.
    """
    spec = services.registry.capabilities[effect.undo.name]
    name = "undo_" + effect.done_step.key.replace("[", "_").rstrip("]")
    key, number = name, 1
    used_keys = {*view.results, *(name for entries in view.contexts.values() for name in entries)}
    while key in used_keys:
        number += 1
        key = f"{name}_{number}"
    try:
        values = dict(_create_undo_parameters(effect, spec))
    except CapgraphError:
        raise
    except Exception as exc:
        raise PlanError(
            f"Cannot determine the parameters of {spec.name!r} to undo step "
            f"{effect.done_step.key!r}: {type(exc).__name__}: {exc}.",
            fix=f"correct the function Undo.parameters of {effect.done_step.capability!r}.",
        ) from exc
    return PlannedStep(
        context_key=key,
        capability=spec.name,
        task_objective=f"Undo {effect.done_step.key} ({effect.done_step.capability})",
        parameters=values,
        inputs=[
            {requirement.label: effect.output_keys[requirement.type]}
            for requirement in spec.requires
            if requirement.type in effect.output_keys
        ],
    )


def _create_undo_parameters(effect: _DoneEffect, spec: CapabilitySpec) -> Mapping[str, Any]:
    if effect.undo.parameters is not None:
        return effect.undo.parameters(effect.done_step)
    values = dict(effect.done_step.parameters)
    for data in effect.done_step.outputs.values():
        values |= data
    return {name: values[name] for name in parameter_names(spec.parameters) if name in values}
