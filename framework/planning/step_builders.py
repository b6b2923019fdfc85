"""Builders for the steps that the framework adds to plans."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from capgraph.base import PlannedStep
from capgraph.base.value_context import LIST_SUFFIX
from capgraph.planning.catalog import RESPOND
from capgraph.planning.plan_access import make_context_key
from capgraph.planning.plan_view import PlanView


def build_step(
    key: str,
    capability: str,
    output_type: str | None,
    objective: str,
    inputs: list[dict[str, str]],
    parameters: dict[str, Any] | None = None,
) -> PlannedStep:
    """Create a plan step with all required fields.

    Args:
        key: Context key of the step.
        capability: Name of the capability.
        output_type: Context type of the expected output, or ``None``.
        objective: Objective of the step.
        inputs: List of mappings from context type to context key.
        parameters: Parameter values for the capability.
    """
    return PlannedStep(
        context_key=key,
        capability=capability,
        task_objective=objective,
        success_criteria=f"{output_type or capability} is available as {key!r}.",
        expected_output=output_type,
        parameters=parameters,
        inputs=inputs,
    )


def build_respond_step(view: PlanView, used_keys: Collection[str], task: str = "") -> PlannedStep:
    """Create the final ``respond`` step of a plan, which answers the request.

    Its inputs are the results that no other step reads.

    Args:
        view: Index of the plan's other steps.
        used_keys: Context keys that are already in use.
        task: Text of the request, if known.
    """
    read = {read.key for reads in view.reads for read in reads}
    inputs = []
    for index, key in enumerate(view.keys):
        contract = view.contracts[index]
        if contract is None or key is None or key in read:
            continue
        provides = contract.spec.provides
        expected = view.steps[index].get("expected_output")
        if expected is None and len(provides) == 1:
            expected = provides[0]
        if isinstance(expected, str) and expected in provides:
            listed = LIST_SUFFIX if view.steps[index].get("for_each") else ""
            inputs.append({expected + listed: key})
    objective = task or "Answer the request from the results of the steps before."
    step = build_step(
        make_context_key("user_response", used_keys), RESPOND, None, objective, inputs
    )
    step["success_criteria"] = (
        "The request is answered from the results, or it is said what is missing."
    )
    return step
