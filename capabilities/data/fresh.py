"""Inputs left over from an earlier turn, told from those of the plan at hand.

Context outlives a turn. A data set that was selected for the last question must not answer the
next one, only because it is still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capabilities.contexts import Dataset
from capabilities.data.retrieve import retrieve
from capabilities.data.words import MAX_TEXT
from framework.base import ValidationError


def made_in_this_plan(state: Mapping[str, Any], step: Mapping[str, Any], context_type: str) -> bool:
    """Say whether an input of a step comes from another step of the same plan.

    Without a plan (a step run by itself) every input counts as meant.
    """
    plan = state.get("planning_execution_plan") or {}
    keys = {planned.get("context_key") for planned in plan.get("steps") or []}
    links = [link[context_type] for link in step.get("inputs") or [] if context_type in link]
    return not keys or not links or any(link in keys for link in links)


def dataset_for(
    dataset: Dataset,
    text: str,
    state: Mapping[str, Any],
    step: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Dataset:
    """Return the data set to use: the given one, or one selected anew for another question.

    A question that names no column ("and the median?") keeps the data set of the last one.
    """
    if not dataset.read_from or made_in_this_plan(state, step, "DATASET"):
        return dataset
    if text[:MAX_TEXT].strip() == dataset.read_from.strip():
        return dataset
    try:
        return retrieve(dataset.files, text, settings=settings)
    except ValidationError:
        return dataset
