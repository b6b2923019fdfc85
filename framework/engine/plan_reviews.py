"""Replies of a planner that reviews results during a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.engine.model_replies import is_model_written
from capgraph.engine.plan_acceptance import CheckedPlan
from capgraph.engine.services import Services
from capgraph.models.prompt_echo import remove_echo
from capgraph.planning import RESPOND, TERMINAL_STEPS, Catalog
from capgraph.planning.references import step_reads
from capgraph.state import TurnView


def split_reply(reply: Any, services: Services) -> tuple[Any, str, bool]:
    """Split a planner's reply into the plan, the answer text, and a review flag.

    The flag is True if the planner must review the step results before the turn is answered. It
    is always set for model-written plans if ``planning.mode`` is ``look``, and otherwise comes
    from the ``look`` field of the reply.
    """
    mode, limit = services.settings.planning.mode, services.limits.max_looks
    always = mode == "look" and is_model_written("orchestrator", services)
    if not isinstance(reply, dict):
        return reply, "", always and limit > 0
    plan, answer, look = {**reply}, reply.get("answer"), reply.get("look")
    plan.pop("answer", None)
    if look is None or isinstance(look, bool):
        plan.pop("look", None)
    text = remove_echo(answer).strip() if isinstance(answer, str) else ""
    return plan, text, (always or look is True) and limit > 0


def require_final_review(checked_plan: CheckedPlan) -> CheckedPlan:
    """Require the planner to review all step results before the turn is answered.

    The returned plan sets ``look_again`` on its final ``respond`` step. A plan without other
    steps is returned unchanged.
    """
    *work, last = checked_plan.plan["steps"]
    if not work or last["capability"] != RESPOND:
        return checked_plan
    steps = [*work, PlannedStep(**{**last, "look_again": True})]
    return replace(checked_plan, plan=ExecutionPlan(**{**checked_plan.plan, "steps": steps}))


def finished_steps(view: TurnView) -> list[PlannedStep]:
    """Return the finished steps of the current plan and the steps whose results they used."""
    kept_keys = {
        step["context_key"] for step in view.steps if step["context_key"] in view.succeeded_keys
    }
    for step in reversed(view.steps):
        if step["context_key"] in kept_keys:
            kept_keys |= {
                read.key
                for read in step_reads(step, view.steps_by_key)
                if read.key in view.steps_by_key
            }
    return [step for step in view.steps if step["context_key"] in kept_keys]


def new_steps(reply_steps: Sequence[Any], view: TurnView, catalog: Catalog) -> list[Any]:
    """Return the unfinished steps of a planner's reply, or an empty list if no work is left.

    Finished steps remain in the plan even if the reply omits them. A reply step without a key
    that makes the same call as a finished step is treated as that step, unless a later step had
    an effect, in which case the data must be read again.
    """
    done = [step for step in view.steps if step["context_key"] in view.succeeded_keys]
    effects = [
        index
        for index, step in enumerate(done)
        if (spec := catalog.capabilities.get(step["capability"])) and spec.effect != "none"
    ]
    new = []
    for step in reply_steps:
        if isinstance(step, dict):
            key = step.get("context_key")
            same = [index for index, old in enumerate(done) if _is_repeated_step(step, old)]
            if any(done[index]["context_key"] == key for index in same):
                continue
            if not key and any(p in effects or not any(e > p for e in effects) for p in same):
                continue
        new.append(step)
    has_work = any(not isinstance(s, dict) or s.get("capability") != RESPOND for s in new)
    return new if has_work else []


def _is_repeated_step(step: Mapping[str, Any], finished_step: Mapping[str, Any]) -> bool:
    """Return True if a step in a planner's reply repeats a finished step.

    A step is a repetition if both steps make the same call, or if the new step has the same key
    and no parameters.
    """
    if (
        step.get("capability") != finished_step["capability"]
        or finished_step["capability"] in TERMINAL_STEPS
    ):
        return False
    if step.get("context_key") == finished_step["context_key"] and not step.get("parameters"):
        return True
    return _to_comparable_text(step.get("parameters")) == _to_comparable_text(
        finished_step.get("parameters")
    )


def _to_comparable_text(parameters: Any) -> str:
    """Serialize step parameters for comparison, so that ``42`` and ``"42"`` are equal."""
    return json.dumps(parameters or {}, sort_keys=True, default=str).replace('"', "")
