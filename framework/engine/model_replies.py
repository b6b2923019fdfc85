"""Replies of a planning model, parsed and completed before the plan is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
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
from capgraph.selection import LexicalSelector, Selection
from capgraph.telemetry import ReplyRepaired, emit

PLANNING = "planning"
_WORDS = re.compile(r"[^\W\d_]{3,}")
CLEAR_SCORE = 0.6
"""Score from which the offline selector's choice counts as clear; candidates match from 0.5."""
_REFUSAL = re.compile(
    r"(?:i'?m |i am )?(?:sorry|unfortunately|apologies)?[,.]?\s*(?:but )?"
    r"(?:as an ai[^,]*, )?i(?: can ?not| can't| am unable| am not able|'m unable|'m not able)\b"
)


def is_model_written(author: str, services: Services) -> bool:
    """Return True if a plan was written by a model that also chose its parameters."""
    traits = planner_traits(services.planner)
    return author == "orchestrator" and traits.chooses_parameters and traits.writes_with_model


def report_repairs(repairs: Mapping[str, int]) -> None:
    """Emit an event for the repairs made to a model-written plan, if there are any."""
    if repairs:
        emit(ReplyRepaired(role=PLANNING, repairs=dict(repairs)))


def read_reply(reply: Any, request: PlanRequest, services: Services) -> Any:
    """Parse and repair the plan in the planner's reply.

    Replies of planners that do not write plans with a model are returned unchanged.
    """
    if not is_model_written("orchestrator", services):
        return reply
    repaired = parse_model_plan(reply, request.catalog, request.available)
    report_repairs(repaired.repairs)
    if not repaired.repairs:
        return repaired.plan
    # The objective of a step defaults to the whole request.
    steps = [
        {"task_objective": request.task, **step} if isinstance(step, dict) else step
        for step in repaired.plan["steps"]
    ]
    return {**repaired.plan, "steps": steps}


async def insert_suppliers(plan: Any, request: PlanRequest, services: Services) -> Any:
    """Insert a step for each missing input that only one capability can supply.

    The parameters of a new step are extracted from the request without a model if possible.
    Otherwise, the planner supplies them in one small model call. A plan that remains incomplete
    is returned unchanged, so that the planner receives all its problems.

    Args:
        plan: Plan in the planner's reply.
        request: Input of the planner.
        services: Services of the graph.

    Raises:
        ModelError: The model call failed.
    """
    ask = getattr(services.planner, "fill_parameters", None)
    if ask is None or not is_model_written("orchestrator", services):
        return plan
    repaired = repair_plan(
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
        for step in repaired.plan["steps"]
        if step["context_key"] in repaired.inserted
        and required_parameters(specs[step["capability"]].parameters)
    }
    if not inserted:
        return plan
    parameters = {
        key: read
        for key, spec in inserted.items()
        if (read := _extract_parameters(spec, request.task))
    }
    if unresolved := {key: spec for key, spec in inserted.items() if key not in parameters}:
        parameters |= await ask(request.task, unresolved)
    if parameters.keys() != inserted.keys():
        return plan
    steps = [
        {**step, "parameters": parameters[step["context_key"]]}
        if step["context_key"] in inserted
        else step
        for step in repaired.plan["steps"]
    ]
    filled = parse_model_plan({**repaired.plan, "steps": steps}, request.catalog, request.available)
    report_repairs({**filled.repairs, "missing_supplier": len(inserted)})
    return filled.plan


def _extract_parameters(spec: CapabilitySpec, task: str) -> dict[str, Any]:
    """Extract a step's parameters from the task text without a model.

    Return ``{}`` if a parameter is missing or ambiguous.
    """
    try:
        return read_parameters(spec, task)
    except PlanError:
        return {}


async def find_doubt(plan: Any, request: PlanRequest, services: Services) -> Problem | None:
    """Return a reason to ask the planner for a different plan, before the plan is validated.

    - The plan has no steps, although the selector without a model clearly selects a capability.
    - A small model invented a required value, because no capability matches the request.

    Only the first plan of a turn is checked, and only once. Effects with invented values
    require a person's approval anyway.

    Args:
        plan: Plan in the planner's reply.
        request: Input of the planner.
        services: Services of the graph.
    """
    is_first = not (request.failure or request.previous or request.finished or request.problems)
    steps = plan.get("steps") if isinstance(plan, dict) else None
    traits = planner_traits(services.planner)
    if not (is_first and isinstance(steps, list) and traits.can_correct):
        return None
    if steps:
        if (
            not traits.needs_confirmation
            or (invented := _find_invented_value(steps, request)) is None
        ):
            return None
        number, value = invented
        selection = await _select_offline(request, services)
        alternatives = (
            [n for n in selection.names if n != steps[number]["capability"]] if selection else []
        )
        instead = (
            f"plan {alternatives[0]!r} if it fits"
            if alternatives
            else "plan no steps if nothing fits"
        )
        return make_problem(
            PARAMETER,
            number,
            None,
            value.value,
            "is not in the request",
            f"leave this step out, and {instead}",
            ("parameters", value.path),
        )
    if traits.reads_conversation:
        return None  # the reply may be based on the conversation
    selection = await _select_offline(request, services)
    if selection is None or not selection.names or selection.best < CLEAR_SCORE:
        return None
    name = selection.names[0]
    return make_problem(
        EMPTY,
        None,
        None,
        None,
        f"has no steps, and {name!r} fits the request",
        f"plan a step of {name!r}, or no steps if it does not do what is asked",
    )


async def drop_unrequested_effects(plan: Any, request: PlanRequest, services: Services) -> Any:
    """Remove all steps of a plan that contains an unrequested effect planned by a small model.

    If the selector without a model does not select the capability with the effect, one small
    model call checks whether the effect was requested. An unrequested effect indicates that the
    model misunderstood the whole request.

    Args:
        plan: Plan in the planner's reply.
        request: Input of the planner.
        services: Services of the graph.

    Raises:
        ModelError: The model call failed.
    """
    ask = getattr(services.planner, "is_asked_for", None)
    steps = plan.get("steps") if isinstance(plan, dict) else None
    if (
        ask is None
        or not isinstance(steps, list)
        or not planner_traits(services.planner).needs_confirmation
    ):
        return plan
    specs = [spec for step in steps if (spec := _find_step_spec(step, request)) is not None]
    effects = {spec.name: spec for spec in specs if spec.effect != "none"}
    selection = await _select_offline(request, services) if effects else None
    for name, spec in effects.items():
        if (
            selection is not None
            and name not in selection.names
            and not await ask(request.task, spec)
        ):
            report_repairs({"unasked_effect": 1})
            return {**plan, "steps": []}
    return plan


async def matches_no_capability(
    refused_plan: Any, request: PlanRequest, services: Services
) -> bool:
    """Return True if all plans of a small model were rejected and no capability fits the request.

    In this case, the answer describes what the agent can do instead of reporting a planning
    failure.
    """
    if not planner_traits(services.planner).needs_confirmation or request.failure:
        return False
    if not isinstance(refused_plan, dict):
        return False  # the reply is not a plan
    selection = await _select_offline(request, services)
    return selection is not None and not selection.names


def _find_step_spec(step: Any, request: PlanRequest) -> CapabilitySpec | None:
    name = step.get("capability") if isinstance(step, dict) else None
    return request.catalog.capabilities.get(name) if isinstance(name, str) else None


def offline_selector(selector: Any) -> LexicalSelector | None:
    """Find the ``LexicalSelector`` that a selector is or wraps, or return ``None``."""
    while selector is not None and not isinstance(selector, LexicalSelector):
        selector = getattr(selector, "offline", None) or getattr(selector, "fallback", None)
    return selector


async def _select_offline(request: PlanRequest, services: Services) -> Selection | None:
    """Select capabilities for a request without a model.

    Return ``None`` if the configured selector has no offline mode, or if numpy is not installed.
    """
    offline, catalog = offline_selector(services.selector), request.catalog
    if offline is None or not isinstance(catalog, Registry) or find_spec("numpy") is None:
        return None
    return await offline.select(request.task, catalog.candidates(), excluded=request.excluded)


def _find_invented_value(
    steps: list[Any], request: PlanRequest
) -> tuple[int, UngroundedValue] | None:
    """Find the first required parameter value that the model invented.

    An invented value occurs neither in the request nor in the results of earlier steps.

    Returns:
        The index of the step and the value, or ``None`` if every value has a source.
    """
    texts = [request.task, *(str(message.text) for message in request.messages)]
    today = possible_today(current_clock().now())
    grounds = GroundingSources(texts, [dict(request.available)], today)
    request_words = set(_WORDS.findall(" ".join(texts).casefold()))
    for number, step in enumerate(steps):
        spec = _find_step_spec(step, request)
        parameters = step.get("parameters") if spec is not None else None
        if spec is None or spec.parameters is None or not isinstance(parameters, dict):
            continue
        needed = required_parameters(spec.parameters)
        values = {name: value for name, value in parameters.items() if name in needed}
        for ungrounded in find_ungrounded_values(spec, values, parameters, grounds):
            # A text may rephrase the request. Without any of its words, the text is invented.
            if not request_words & set(_WORDS.findall(str(ungrounded.value).casefold())):
                return number, ungrounded
    return None


def is_refusal(answer: str) -> bool:
    """Return True if an answer begins with a refusal, such as "Sorry, I cannot help".

    Small models copy refusals from the examples in prompts.

    >>> is_refusal("Sorry, I can't book flights."), is_refusal("Sorry to hear that.")
    (True, False)
    """
    plain = " ".join(answer.casefold().replace("’", "'").split())
    return _REFUSAL.match(plain) is not None
