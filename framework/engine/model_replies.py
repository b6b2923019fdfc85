"""Replies of a planning model: read, counted, and completed before the plan is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capgraph.engine.services import Services
from capgraph.planning.model_repairs import read_model_plan
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.strategies import PlanRequest
from capgraph.telemetry import ReplyRepaired, emit

PLANNING = "planning"


def is_model_written(author: str, services: Services) -> bool:
    """Return True if a plan of this author comes from a planner that writes what it chose."""
    return author == "orchestrator" and planner_traits(services.planner).chooses_parameters


def report_repairs(repairs: Mapping[str, int]) -> None:
    """Emit the repairs of a plan that a model wrote, if there are any."""
    if repairs:
        emit(ReplyRepaired(role=PLANNING, repairs=dict(repairs)))


def read_reply(reply: Any, request: PlanRequest, services: Services) -> Any:
    """Return the plan that a planner replied with, in the form that the check expects."""
    if not is_model_written("orchestrator", services):
        return reply
    found = read_model_plan(reply, request.catalog)
    report_repairs(found.repairs)
    if not found.repairs:
        return found.plan
    # A step that says nothing of its own is for the whole request.
    steps = [
        {"task_objective": request.task, **step} if isinstance(step, dict) else step
        for step in found.plan["steps"]
    ]
    return {**found.plan, "steps": steps}
