"""Check whether an input comes from the current plan or from an earlier turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_from_current_plan(
    state: Mapping[str, Any], step: Mapping[str, Any], context_type: str
) -> bool:
    """Return True if a step's input comes from another step of the same plan.

    Contexts outlive a turn, but the time range of an earlier question does not apply to this one.
    Without a plan, as when a step runs by itself, every input counts.
    """
    plan = state.get("planning_execution_plan") or {}
    keys = {planned.get("context_key") for planned in plan.get("steps") or []}
    links = [link[context_type] for link in step.get("inputs") or [] if context_type in link]
    return not keys or not links or any(link in keys for link in links)
