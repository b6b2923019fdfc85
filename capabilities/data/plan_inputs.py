"""Inputs left over from an earlier turn, told from those of the plan at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_from_current_plan(
    state: Mapping[str, Any], step: Mapping[str, Any], context_type: str
) -> bool:
    """Say whether an input of a step comes from another step of the same plan.

    Context outlives a turn: a time that the last question spoke of is not the time of this one.
    Without a plan (a step run by itself) every input counts as meant.
    """
    plan = state.get("planning_execution_plan") or {}
    keys = {planned.get("context_key") for planned in plan.get("steps") or []}
    links = [link[context_type] for link in step.get("inputs") or [] if context_type in link]
    return not keys or not links or any(link in keys for link in links)
