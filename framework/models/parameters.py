"""Parameter extraction: short model calls that read a step's parameters from a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage

from capgraph.base import CapabilitySpec
from capgraph.base.errors import MalformedAnswerError
from capgraph.models.calls import generate_structured
from capgraph.models.roles import RoleModel
from capgraph.models.signatures import format_call
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
    """Ask a model for the missing parameters of planned steps.

    Args:
        role: Chat model for the planning role.
        task: The user's request.
        steps: Capability of each step, by step key.

    Returns:
        Unvalidated parameters by step key. The mapping is empty if the reply cannot be parsed.

    Raises:
        ModelError: The call failed, or the model refused.
    """
    signatures = "\n".join(
        f"{key}: {format_call(spec)}  {' '.join(spec.description.split())}"
        for key, spec in steps.items()
    )
    messages = [SystemMessage(f"{_RULE}\n{signatures}"), HumanMessage(as_request(task))]
    try:
        reply = await generate_structured(role, _build_reply_schema(steps), messages)
    except MalformedAnswerError:
        return {}
    if not isinstance(reply, dict):
        return {}
    if len(steps) == 1 and not reply.keys() & steps.keys():
        # For a single entry, models tend to omit the key.
        [(key, spec)] = steps.items()
        return {key: reply.get(spec.name, reply)}
    return {key: reply[key] for key in steps if key in reply}


async def is_asked_for(role: RoleModel, task: str, spec: CapabilitySpec) -> bool:
    """Return True if a model confirms that a request asks for a capability's action.

    A reply that cannot be parsed counts as confirmation.

    Raises:
        ModelError: The call failed, or the model refused.
    """
    action = " ".join(spec.description.split())
    question = (
        f"{as_request(task)}\nAction: {action}\nDoes the request ask for exactly this action?"
        ' Answer with JSON: {"asked": "yes"} or {"asked": "no"}.'
    )
    try:
        reply = await generate_structured(role, _ASKED, [HumanMessage(question)])
    except MalformedAnswerError:
        return True
    return not (isinstance(reply, dict) and reply.get("asked") == "no")


def _build_reply_schema(steps: Mapping[str, CapabilitySpec]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for key, spec in steps.items():
        schema = {} if spec.parameters is None else spec.parameters.model_json_schema()
        definitions |= schema.pop("$defs", {})
        schema.pop("description", None)
        properties[key] = {**schema, "additionalProperties": False}
    reply_schema = {
        "title": "Parameters",
        "description": "The arguments.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return reply_schema | ({"$defs": definitions} if definitions else {})
