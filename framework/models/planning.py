"""Writing plans with a model."""

from __future__ import annotations

import json
from typing import Any, cast

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from framework.base import CapabilitySpec, ExecutionPlan
from framework.base.value_context import value_fields
from framework.models.calls import Malformed, structured
from framework.models.roles import RoleModel
from framework.planning.strategies import PlanRequest
from framework.prompts import PromptBuilder

_TEXT = {"type": "string"}
PLAN_SCHEMA: dict[str, Any] = {
    "title": "ExecutionPlan",
    "description": "A plan: the steps that answer the request, in order.",
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "context_key": {**_TEXT, "description": "Unique name of the step's result."},
                    "capability": {**_TEXT, "description": "Exact name of a listed capability."},
                    "task_objective": {**_TEXT, "description": "What the step is for."},
                    "success_criteria": {**_TEXT, "description": "How to tell that it worked."},
                    "expected_output": {
                        "type": ["string", "null"],
                        "description": "Context type of the result.",
                    },
                    "parameters": {
                        "type": "object",
                        "description": "Parameters of the capability; instead of a value,"
                        ' {"$from": "context_key.field"} takes it from an earlier result.',
                        "additionalProperties": True,
                    },
                    "inputs": {
                        "type": "array",
                        "description": "One {TYPE: context_key} for each input.",
                        "items": {"type": "object", "additionalProperties": _TEXT},
                    },
                },
                "required": ["context_key", "capability", "task_objective"],
            },
        }
    },
    "required": ["steps"],
}
"""``ExecutionPlan`` as the model is shown it. It is the same for every request, since providers
put it before the prompt; whether names and types are right is checked afterwards."""


class ModelPlanner:
    """Asks a model for a plan; told what is wrong with one, it writes another."""

    can_correct = True

    def __init__(self, role: RoleModel, prompt: PromptBuilder) -> None:
        self._role = role
        self._prompt = prompt

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Return what the model proposes, right or wrong.

        An answer that is no plan comes back as it is: the check that follows says so, and the
        attempt counts.

        Raises:
            ModelError: The call failed or the model refused.
        """
        try:
            # Parameters are an open object, which only function calling leaves open everywhere.
            found = await structured(
                self._role, PLAN_SCHEMA, self._messages(request), method="function_calling"
            )
        except Malformed as exc:
            return cast("ExecutionPlan", exc.text)
        if isinstance(found, dict) and "steps" not in found:
            return cast("ExecutionPlan", json.dumps(found, default=str))
        return cast("ExecutionPlan", found)

    def _messages(self, request: PlanRequest) -> list[BaseMessage]:
        specs = request.catalog.capabilities
        active = sorted(name for name in request.active if name in specs)
        context = {
            "capabilities": "\n".join(describe_capability(specs[name]) for name in active),
            "guides": request.guides,
            "notes": request.notes,
            "task": request.task,
            "available": request.available,
            "finished": request.finished,
            "previous": request.previous,
            "failure": request.failure,
            "failed_capability": request.failed_capability,
            "problems": request.problems,
            "refused": request.refused,
        }
        return [
            SystemMessage(self._prompt.get_prefix(**context)),
            HumanMessage(self._prompt.get_dynamic_context(**context)),
        ]


def describe_capability(spec: CapabilitySpec) -> str:
    """Write down what a planner must know about a capability.

    >>> print(describe_capability(CapabilitySpec("fetch", "Fetches it.", provides=("DATA",))))
    - fetch: Fetches it.
      needs: nothing; gives: DATA
    """
    needs = ", ".join(
        need.type + ("" if need.cardinality == "one" else f" ({need.cardinality})")
        for need in spec.requires
    )
    lines = [
        f"- {spec.name}: {' '.join(spec.description.split())}",
        f"  needs: {needs or 'nothing'}; gives: {', '.join(_gives(spec)) or 'nothing'}",
    ]
    if spec.effect == "once":
        lines.append("  acts on the world, and cannot be undone")
    if spec.parameters is not None and spec.parameters.model_fields:
        schema = _bare(spec.parameters.model_json_schema())
        schema.pop("description", None)  # the docstring says again what the fields say
        lines.append(f"  parameters: {json.dumps(schema, ensure_ascii=False, default=str)}")
    return "\n".join(lines)


def _gives(spec: CapabilitySpec) -> list[str]:
    """Name the outputs, and of a plain value its fields, which parameters may refer to."""
    fields = {kind.CONTEXT_TYPE: value_fields(kind) for kind in spec.context_types}
    return [
        f"{kind} ({', '.join(fields[kind])})" if fields.get(kind) else kind
        for kind in spec.provides
    ]


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a JSON schema what a reader does not need."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {"properties", "$defs"} and isinstance(value, dict):
            kept[key] = {name: _bare(part) for name, part in value.items()}
        elif key == "anyOf" and isinstance(value, list):
            # Leaving a parameter out is simpler than writing null.
            forms = [_bare(form) for form in value if form != {"type": "null"}]
            kept |= forms[0] if len(forms) == 1 else {key: forms}
        elif key in {"items", "additionalProperties"} and isinstance(value, dict):
            kept[key] = _bare(value)
        elif key not in {"title", "additionalProperties"} and (key, value) != ("default", None):
            kept[key] = value
    return kept
