"""Function tools of OpenAI's API: client tools of a turn, or calls that must be its answer.

With ``tool_choice: auto``, each function becomes a capability that the agent may plan. A choice that
requires a call sets the type of the answer: a call of one of the functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from capgraph.approvals.requests import embed_schema
from capgraph.serve.problems import BadRequestError

_CHOICES = "'none', 'auto', 'required', or the name of a function"


class ToolCall(NamedTuple):
    """Function call that the client must execute.

    Attributes:
        call_id: ID of the call.
        name: Name of the function.
        arguments: Arguments as a JSON string.
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionTools:
    """Functions that an OpenAI request declares as tools.

    Attributes:
        client_tools: Functions that the agent may call, as arguments of
            :func:`~capgraph.scale.client_tools.client_tool`.
        answer_tools: Functions of which the answer must call exactly one, in the same form.
        is_parallel: False if an answer may contain only one call.
    """

    client_tools: Sequence[Mapping[str, Any]] = field(default_factory=list)
    answer_tools: Sequence[Mapping[str, Any]] = field(default_factory=list)
    is_parallel: bool = True

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """JSON schema of an answer that calls an answer tool, or ``None`` without answer tools.

        >>> FunctionTools(answer_tools=[{"name": "f", "parameters": {}}]).answer_schema["required"]
        ['call']
        """
        if not self.answer_tools:
            return None
        definitions: dict[str, Any] = {}
        calls = [
            {
                "type": "object",
                "description": tool.get("description") or tool["name"],
                "properties": {
                    "name": {"type": "string", "const": tool["name"]},
                    "arguments": embed_schema(
                        tool.get("parameters") or {"type": "object"}, number, definitions
                    ),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, tool in enumerate(self.answer_tools)
        ]
        schema: dict[str, Any] = {
            "type": "object",
            "description": "A call of a function.",
            "properties": {"call": {"anyOf": calls}},
            "required": ["call"],
            "additionalProperties": False,
        }
        return {**schema, "$defs": definitions} if definitions else schema

    def read_answer(self, text: str, run_id: str) -> ToolCall | None:
        """Parse the tool call that an answer contains.

        Return ``None`` if the answer is a question to the user.

        Args:
            text: Text of the answer.
            run_id: ID of the run, from which the ID of the tool call is derived.
        """
        try:
            call = json.loads(text)["call"]
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            return ToolCall(f"call_{run_id}", call["name"], arguments)
        except (ValueError, KeyError, TypeError):
            return None


def parse_tools(body: Mapping[str, Any], *, is_nested: bool) -> FunctionTools:
    """Parse the functions and the tool choice of an OpenAI request.

    Args:
        body: Body of the request.
        is_nested: True if ``function`` contains the fields of a function, as in chat completions.

    Raises:
        BadRequestError: A tool is not a function, or the tool choice names an unknown function.
    """
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise BadRequestError("tools is not a list.", fix="Send a list.", param="tools")
    functions = [_parse_function(tool, index, is_nested) for index, tool in enumerate(tools)]
    choice = body.get("tool_choice")
    choice = "auto" if choice is None else choice
    is_parallel = body.get("parallel_tool_calls") is not False
    if choice in ("none", "auto"):
        return FunctionTools(functions if choice == "auto" else [], is_parallel=is_parallel)
    if choice != "required":
        name = _chosen_name(choice, is_nested)
        functions = [function for function in functions if function["name"] == name]
    if not functions:
        raise BadRequestError(
            f"Invalid tool_choice {choice!r:.80}: the request has no such function.",
            fix=f"Send {_CHOICES}.",
            param="tool_choice",
        )
    return FunctionTools(answer_tools=functions, is_parallel=is_parallel)


def _chosen_name(choice: Any, is_nested: bool) -> Any:
    """Return the function name that a tool choice requires, or ``None`` if it requires none."""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    function = choice.get("function") if is_nested else choice
    return function.get("name") if isinstance(function, Mapping) else None


def _parse_function(tool: Any, index: int, is_nested: bool) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    function = tool.get("function") if kind == "function" and is_nested else tool
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if (
        kind != "function"
        or not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
        or not isinstance(parameters, Mapping | None)
    ):
        raise BadRequestError(
            f"Invalid tools[{index}] of type {kind!r:.40}: the agent can call functions only.",
            fix="Send a function with a name and the JSON schema of its parameters.",
            param="tools",
        )
    description = str(function.get("description") or "")
    return {"name": function["name"], "description": description, "parameters": parameters}
