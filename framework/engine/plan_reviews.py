"""Replies of a planner that looks at results: what is new in them, and what stays."""

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
from capgraph.selection import LexicalSelector
from capgraph.state import TurnView


def split_reply(reply: Any, services: Services) -> tuple[Any, str, bool]:
    """Return the plan of a reply, its answer, and whether the planner looks before the answer.

    ``planning.mode: look`` decides that for every plan of a model; else the reply's ``look`` does.
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


def with_final_review(checked: CheckedPlan) -> CheckedPlan:
    """Return a plan after whose work the planner looks at all results before the answer."""
    *work, last = checked.plan["steps"]
    if not work or last["capability"] != RESPOND:
        return checked
    steps = [*work, PlannedStep(**{**last, "look_again": True})]
    return replace(checked, plan=ExecutionPlan(**{**checked.plan, "steps": steps}))


def finished_steps(view: TurnView) -> list[PlannedStep]:
    """Return the finished steps of the plan in force, and the steps that they read."""
    wanted = {
        step["context_key"] for step in view.steps if step["context_key"] in view.succeeded_keys
    }
    for step in reversed(view.steps):
        if step["context_key"] in wanted:
            wanted |= {
                read.key
                for read in step_reads(step, view.steps_by_key)
                if read.key in view.steps_by_key
            }
    return [step for step in view.steps if step["context_key"] in wanted]


def new_steps(reply_steps: Sequence[Any], view: TurnView, catalog: Catalog) -> list[Any]:
    """Return the steps of a reply that are not finished yet; empty if nothing is left to do.

    Finished steps stay as they were, whether the planner writes them again or not. A step without
    a key that repeats a finished one is that step, unless an effect came after it: then it reads
    the world again.
    """
    done = [step for step in view.steps if step["context_key"] in view.succeeded_keys]
    effects = [
        place
        for place, step in enumerate(done)
        if (spec := catalog.capabilities.get(step["capability"])) and spec.effect != "none"
    ]
    new = []
    for step in reply_steps:
        if isinstance(step, dict):
            key = step.get("context_key")
            same = [place for place, old in enumerate(done) if _repeats(step, old)]
            if any(done[place]["context_key"] == key for place in same):
                continue
            if not key and any(p in effects or not any(e > p for e in effects) for p in same):
                continue
        new.append(step)
    works = any(not isinstance(s, dict) or s.get("capability") != RESPOND for s in new)
    return new if works else []


def _repeats(step: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return True if a written step is a finished one: the same call, or its key without a call."""
    if step.get("capability") != old["capability"] or old["capability"] in TERMINAL_STEPS:
        return False
    if step.get("context_key") == old["context_key"] and not step.get("parameters"):
        return True
    return _plain(step.get("parameters")) == _plain(old.get("parameters"))


def _plain(parameters: Any) -> str:
    """Return parameters in a form in which 42 and "42" are the same."""
    return json.dumps(parameters or {}, sort_keys=True, default=str).replace('"', "")


def offline_selector(selector: Any) -> LexicalSelector | None:
    """Return the selector without a model that a selector uses, or that it is."""
    while selector is not None and not isinstance(selector, LexicalSelector):
        selector = getattr(selector, "offline", None) or getattr(selector, "fallback", None)
    return selector
