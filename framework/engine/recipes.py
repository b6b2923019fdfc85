"""Requests that match a recipe and need few or no model calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from capgraph.base.errors import PlanError, ValidationError
from capgraph.base.plan import ExecutionPlan
from capgraph.engine.default_strategies import ChainPlanner
from capgraph.engine.services import Services
from capgraph.planning import Recipe, recipe_of
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.strategies import PlanRequest, last_request
from capgraph.registry import Registry
from capgraph.state import TurnView


def match_example(request: str, registry: Registry, excluded: Collection[str] = ()) -> str | None:
    """Return the only recipe (stored plan) with an example worded like the request.

    Return ``None`` if no recipe or more than one recipe matches.
    """
    names = [
        name
        for name, spec in registry.capabilities.items()
        if name not in excluded
        and (recipe := recipe_of(spec)) is not None
        and recipe.match_request(request) is not None
    ]
    return names[0] if len(names) == 1 else None


def can_skip_extraction(view: TurnView, registry: Registry) -> bool:
    """Return True if task extraction can be skipped for the last message of the turn.

    This is the case if the wording of the message matches a recipe (stored plan).
    """
    try:
        return match_example(last_request(view.messages), registry) is not None
    except ValidationError:
        return False  # the task extraction reports the error


def matched_recipe(view: TurnView, services: Services) -> Recipe | None:
    """Return the recipe (stored plan) that was selected for the turn's first plan.

    Return ``None`` if other capabilities were also selected, or if the turn has been replanned.
    """
    chosen: list[str] = (view.state.get("planning_selection") or {}).get("chosen") or []
    if len(chosen) != 1 or view.state.get("control_plans_created_count", 0) > 1:
        return None
    return recipe_of(services.registry.capabilities.get(chosen[0]))


async def plan_from_recipe(
    request: PlanRequest, view: TurnView, services: Services
) -> ExecutionPlan | None:
    """Create a plan from the selected recipe (stored plan) without calling a model.

    Return ``None`` if the recipe's parameters cannot be extracted from the request.
    """
    recipe = matched_recipe(view, services)
    if recipe is None or request.failure or request.previous:
        return None
    read = services.registry.capabilities[recipe.name].cls.parameters_from(request.task)
    if recipe.match_request(request.task) is None and read.keys() != recipe.parameters.keys():
        return None  # the request may contain a value in other words, so defaults must not apply
    # Always-active capabilities are only planned by a model that needs them.
    if planner_traits(services.planner).can_correct:
        request = replace(request, active=(recipe.name,))
    try:
        return await ChainPlanner().plan(request)
    except PlanError:
        return None
