"""Parameters of single steps, read out of a request by one small model call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage

from capgraph.base import CapabilitySpec
from capgraph.base.errors import MalformedAnswerError
from capgraph.models.calls import generate_structured
from capgraph.models.roles import RoleModel
from capgraph.prompts.data import as_request

_RULE = (
    "Take the arguments of functions out of a request. Answer with JSON: for each function one entry"
    " with its arguments."
)

_ASKED = {
    "title": "Asked",
    "description": "True to the request.",
    "type": "object",
    "properties": {"asked": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["asked"],
    "additionalProperties": False,
}


async def ask_for_parameters(
    role: RoleModel, task: str, steps: Mapping[str, CapabilitySpec]
) -> dict[str, Any]:
    """Ask a model for the parameters of steps that a plan needs and does not have.

    Args:
        role: The planning model.
        task: The request.
        steps: The capability of each step, by the step's key.

    Returns:
        The parameters by key, unchecked; empty when the reply cannot be read.

    Raises:
        ModelError: The call failed or the model refused.
    """
    listed = "\n".join(f"{key}: {_signature(spec)}" for key, spec in steps.items())
    messages = [SystemMessage(f"{_RULE}\n{listed}"), HumanMessage(as_request(task))]
    try:
        found = await generate_structured(role, _reply_schema(steps), messages)
    except MalformedAnswerError:
        return {}
    if not isinstance(found, dict):
        return {}
    if len(steps) == 1 and not found.keys() & steps.keys():
        # A model that is asked for one entry writes its arguments without the key.
        [(key, spec)] = steps.items()
        return {key: found.get(spec.name, found)}
    return {key: found[key] for key in steps if key in found}


async def is_asked_for(role: RoleModel, task: str, spec: CapabilitySpec) -> bool:
    """Ask a model whether a request asks for what a capability does; True if the reply cannot be read.

    Raises:
        ModelError: The call failed or the model refused.
    """
    action = " ".join(spec.description.split())
    question = (
        f"{as_request(task)}\nAction: {action}\nDoes the request ask for exactly this action?"
        ' Answer with JSON: {"asked": "yes"} or {"asked": "no"}.'
    )
    try:
        found = await generate_structured(role, _ASKED, [HumanMessage(question)])
    except MalformedAnswerError:
        return True
    return not (isinstance(found, dict) and found.get("asked") == "no")


def _signature(spec: CapabilitySpec) -> str:
    parameters = []
    for name, schema in _parameters_schema(spec).get("properties", {}).items():
        kind = " | ".join(map(json.dumps, schema.get("enum", ()))) or schema.get("type", "any")
        default = f" = {json.dumps(schema['default'])}" if "default" in schema else ""
        parameters.append(f"{name}: {kind}{default}")
    return f"{spec.name}({', '.join(parameters)})  {' '.join(spec.description.split())}"


def _parameters_schema(spec: CapabilitySpec) -> dict[str, Any]:
    return {} if spec.parameters is None else spec.parameters.model_json_schema()


def _reply_schema(steps: Mapping[str, CapabilitySpec]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for key, spec in steps.items():
        form = _parameters_schema(spec)
        definitions |= form.pop("$defs", {})
        form.pop("description", None)
        properties[key] = {**form, "additionalProperties": False}
    found = {
        "title": "Parameters",
        "description": "The arguments.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return found | ({"$defs": definitions} if definitions else {})
