"""Replies of a planning model: read, counted, and completed before the plan is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from capgraph.base import CapabilitySpec, PlanError
from capgraph.engine.services import Services
from capgraph.helpers.clock import current_clock
from capgraph.planning import repair_plan
from capgraph.planning.grounding import (
    GroundingSources,
    UngroundedValue,
    find_ungrounded_values,
    possible_today,
)
from capgraph.planning.model_repairs import parse_model_plan
from capgraph.planning.parameters import required_parameters
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.problems import EMPTY, PARAMETER, Problem, make_problem
from capgraph.planning.request_values import read_parameters
from capgraph.planning.strategies import PlanRequest
from capgraph.registry import Registry
from capgraph.selection import Selection
from capgraph.telemetry import ReplyRepaired, emit

PLANNING = "planning"
_WORDS = re.compile(r"[^\W\d_]{3,}")
CLEAR_SCORE = 0.6
"""Score from which the offline selector names a capability clearly; 0.5 is where one starts to fit."""
_REFUSAL = re.compile(
    r"(?:i'?m |i am )?(?:sorry|unfortunately|apologies)?[,.]?\s*(?:but )?"
    r"(?:as an ai[^,]*, )?i(?: can ?not| can't| am unable| am not able|'m unable|'m not able)\b"
)


def is_model_written(author: str, services: Services) -> bool:
    """Return True if a plan of this author comes from a model that chooses parameters."""
    traits = planner_traits(services.planner)
    return author == "orchestrator" and traits.chooses_parameters and traits.writes_with_model


def report_repairs(repairs: Mapping[str, int]) -> None:
    """Emit the repairs of a plan that a model wrote, if there are any."""
    if repairs:
        emit(ReplyRepaired(role=PLANNING, repairs=dict(repairs)))


def read_reply(reply: Any, request: PlanRequest, services: Services) -> Any:
    """Return the plan that a planner replied with, in the form that the check expects."""
    if not is_model_written("orchestrator", services):
        return reply
    found = parse_model_plan(reply, request.catalog)
    report_repairs(found.repairs)
    if not found.repairs:
        return found.plan
    # A step that says nothing of its own is for the whole request.
    steps = [
        {"task_objective": request.task, **step} if isinstance(step, dict) else step
        for step in found.plan["steps"]
    ]
    return {**found.plan, "steps": steps}


async def insert_suppliers(plan: Any, request: PlanRequest, services: Services) -> Any:
    """Insert the only supplier of a missing input, and ask for nothing but its parameters.

    The author's ``parameters_from`` and the offline reader come first; what they do not find is
    asked of the planner in one small call. A plan that stays incomplete comes back as it was, so
    that the planner gets the whole list of problems.

    Raises:
        ModelError: The call failed.
    """
    ask = getattr(services.planner, "fill_parameters", None)
    if ask is None or not is_model_written("orchestrator", services):
        return plan
    found = repair_plan(
        plan,
        request.catalog,
        request.available,
        active=request.active,
        max_steps=services.limits.max_steps,
        open_suppliers=True,
    )
    specs = request.catalog.capabilities
    inserted = {
        step["context_key"]: specs[step["capability"]]
        for step in found.plan["steps"]
        if step["context_key"] in found.inserted
        and required_parameters(specs[step["capability"]].parameters)
    }
    if not inserted:
        return plan
    known = {
        key: read
        for key, spec in inserted.items()
        if (read := _offline_parameters(spec, request.task))
    }
    if left := {key: spec for key, spec in inserted.items() if key not in known}:
        known |= await ask(request.task, left)
    if known.keys() != inserted.keys():
        return plan
    steps = [
        {**step, "parameters": known[step["context_key"]]}
        if step["context_key"] in inserted
        else step
        for step in found.plan["steps"]
    ]
    filled = parse_model_plan({**found.plan, "steps": steps}, request.catalog)
    report_repairs({**filled.repairs, "missing_supplier": len(inserted)})
    return filled.plan


def _offline_parameters(spec: CapabilitySpec, task: str) -> dict[str, Any]:
    """Return the parameters that need no model; empty if one is missing or not certain."""
    try:
        return read_parameters(spec, task)
    except PlanError:
        return {}


async def find_doubt(plan: Any, request: PlanRequest, services: Services) -> Problem | None:
    """Return the reason to ask a planner once more before its plan is checked.

    - The plan has no steps, and the offline selector names a capability clearly: the planner is
      asked with that capability named.
    - A step needs a value that a small model invented: it plans something, with made-up names and
      numbers, for what no capability does.

    Only the first plan of a turn is looked at. A planner that insists gets its way: what was tried
    in vain is no oversight, and a person is asked before an effect with invented values.
    """
    is_first = not (request.failure or request.previous or request.finished or request.problems)
    steps = plan.get("steps") if isinstance(plan, dict) else None
    traits = planner_traits(services.planner)
    if not (is_first and isinstance(steps, list) and traits.can_correct):
        return None
    if steps:
        if (
            not traits.needs_confirmation
            or (made_up := _first_invented_value(steps, request)) is None
        ):
            return None
        number, one = made_up
        found = await _offline_choice(request, services)
        others = [n for n in found.names if n != steps[number]["capability"]] if found else []
        instead = f"plan {others[0]!r} if it fits" if others else "plan no steps if nothing fits"
        return make_problem(
            PARAMETER,
            number,
            None,
            one.value,
            "is not in the request",
            f"leave this step out, and {instead}",
            ("parameters", one.path),
        )
    if traits.reads_conversation:
        return None  # its reply may come from the conversation
    found = await _offline_choice(request, services)
    if found is None or not found.names or found.best < CLEAR_SCORE:
        return None
    name = found.names[0]
    return make_problem(
        EMPTY,
        None,
        None,
        None,
        f"has no steps, and {name!r} fits the request",
        f"plan a step of {name!r}, or no steps if it does not do what is asked",
    )


async def drop_unrequested_effects(plan: Any, request: PlanRequest, services: Services) -> Any:
    """Return a plan, without its steps if a small model plans an effect that nobody asked for.

    An effect that the offline selector does not name is confirmed by one small call. A model that
    plans what was not asked for is wrong about the whole request.

    Raises:
        ModelError: The call failed.
    """
    ask = getattr(services.planner, "is_asked_for", None)
    steps = plan.get("steps") if isinstance(plan, dict) else None
    if (
        ask is None
        or not isinstance(steps, list)
        or not planner_traits(services.planner).needs_confirmation
    ):
        return plan
    specs = [spec for step in steps if (spec := _step_spec(step, request)) is not None]
    effects = {spec.name: spec for spec in specs if spec.effect != "none"}
    found = await _offline_choice(request, services) if effects else None
    for name, spec in effects.items():
        if found is not None and name not in found.names and not await ask(request.task, spec):
            report_repairs({"unasked_effect": 1})
            return {**plan, "steps": []}
    return plan


async def matches_no_capability(
    refused_plan: Any, request: PlanRequest, services: Services
) -> bool:
    """Return True if a small model's plans were all refused, and no capability fits the request.

    The person is then told what the agent can do, in place of a plan's failure.
    """
    if not planner_traits(services.planner).needs_confirmation or request.failure:
        return False
    if not isinstance(refused_plan, dict):
        return False  # no plan: the reply is what is wrong
    found = await _offline_choice(request, services)
    return found is not None and not found.names


def _step_spec(step: Any, request: PlanRequest) -> CapabilitySpec | None:
    name = step.get("capability") if isinstance(step, dict) else None
    return request.catalog.capabilities.get(name) if isinstance(name, str) else None


async def _offline_choice(request: PlanRequest, services: Services) -> Selection | None:
    """Return what the offline selector chooses for a request; ``None`` without one."""
    offline = getattr(services.selector, "offline", None)
    catalog = request.catalog
    if offline is None or not isinstance(catalog, Registry):
        return None
    found: Selection = await offline.select(
        request.task, catalog.candidates(), excluded=request.excluded
    )
    return found


def _first_invented_value(
    steps: list[Any], request: PlanRequest
) -> tuple[int, UngroundedValue] | None:
    """Return the first required value that neither request nor results hold, with its step."""
    texts = [request.task, *(str(message.text) for message in request.messages)]
    today = possible_today(current_clock().now())
    grounds = GroundingSources(texts, [dict(request.available)], today)
    said = set(_WORDS.findall(" ".join(texts).casefold()))
    for number, step in enumerate(steps):
        spec = _step_spec(step, request)
        parameters = step.get("parameters") if spec is not None else None
        if spec is None or spec.parameters is None or not isinstance(parameters, dict):
            continue
        needed = required_parameters(spec.parameters)
        values = {name: value for name, value in parameters.items() if name in needed}
        for one in find_ungrounded_values(spec, values, parameters, grounds):
            # Text may say in other words what was asked for; with none of its words, it is made up.
            if not said & set(_WORDS.findall(str(one.value).casefold())):
                return number, one
    return None


def is_refusal(answer: str) -> bool:
    """Return True if an answer begins by saying that the agent cannot do something.

    A small model copies its refusals from the examples of its prompt, with what they can do.

    >>> is_refusal("Sorry, I can't book flights."), is_refusal("Sorry to hear that.")
    (True, False)
    """
    plain = " ".join(answer.casefold().replace("’", "'").split())
    return _REFUSAL.match(plain) is not None
