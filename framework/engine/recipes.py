"""Requests that a recipe answers: chosen, planned and answered with as few model calls as can be."""

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
    """Name the one recipe that has an example worded as the request is."""
    found = [
        name
        for name, spec in registry.capabilities.items()
        if name not in excluded
        and (recipe := recipe_of(spec)) is not None
        and recipe.match_request(request) is not None
    ]
    return found[0] if len(found) == 1 else None


def can_skip_extraction(view: TurnView, registry: Registry) -> bool:
    """Tell whether the last message needs no understanding: a recipe knows its wording."""
    try:
        return match_example(last_request(view.messages), registry) is not None
    except ValidationError:
        return False  # whoever extracts the task says what is wrong with it


def matched_recipe(view: TurnView, services: Services) -> Recipe | None:
    """Return the recipe that alone was chosen for the turn, while its first plan is in force."""
    chosen: list[str] = (view.state.get("planning_selection") or {}).get("chosen") or []
    if len(chosen) != 1 or view.state.get("control_plans_created_count", 0) > 1:
        return None
    return recipe_of(services.registry.capabilities.get(chosen[0]))


async def plan_from_recipe(
    request: PlanRequest, view: TurnView, services: Services
) -> ExecutionPlan | None:
    """Return the plan of a request whose recipe and parameters are known without a model."""
    recipe = matched_recipe(view, services)
    if recipe is None or request.failure or request.previous:
        return None
    read = services.registry.capabilities[recipe.name].cls.parameters_from(request.task)
    if recipe.match_request(request.task) is None and read.keys() != recipe.parameters.keys():
        return None  # a value may be said in other words, so no default may take its place
    # A model plans what is always active only where it is wanted.
    if planner_traits(services.planner).can_correct:
        request = replace(request, active=(recipe.name,))
    try:
        return await ChainPlanner().plan(request)
    except PlanError:
        return None
