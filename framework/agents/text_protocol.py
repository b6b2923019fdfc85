"""Text protocol for tool calls of models without tool calling: Thought, Action, Action Input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from capgraph.agents.result import FINAL_ANSWER

_INSTRUCTIONS = """\
Work on the task step by step. Answer with one step at a time, in exactly this form:

Thought: what you think
Action: the name of one tool, or Final Answer
Action Input: the tool's arguments as a JSON object; for Final Answer {"answer": "..."}

You are then told the observation. These are the tools:
"""
_STEP = re.compile(
    r"(?:Thought:(?P<thought>(?:(?!Thought:).)*?))?^[ \t]*Action:[ \t]*(?P<action>[^\n]++)\n"
    r"(?:[ \t]*\n)*[ \t]*Action Input:(?P<input>.*?)"
    r"(?=^[ \t]*(?:Observation|Thought|Action|Final Answer)[ \t]*:|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_FINAL = re.compile(
    r"^[ \t]*Final Answer:(?P<answer>.+?)(?=^[ \t]*(?:Observation|Thought|Action)[ \t]*:|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
STOP_SEQUENCES = ("\nObservation:",)
"""Stop sequences of the protocol.

``Final Answer:`` is not one of them, because it begins the answer after a thought. After an action,
the parser cuts it off.
"""
_FENCED = re.compile(
    r"```\w*+(?P<fence>.*?)```|<tool_call>(?P<tag>(?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL
)
_ARGUMENT_KEYS = ("arguments", "parameters", "args")


def build_instructions(tools: Sequence[Any]) -> str:
    """Return the system instructions for text-based tool calls, with the tool descriptions."""
    return _INSTRUCTIONS + "\n".join(_describe_tool(tool) for tool in tools)


def _describe_tool(tool: Any) -> str:
    function = convert_to_openai_tool(tool)["function"]
    arguments = json.dumps(function.get("parameters", {}).get("properties", {}))
    return f"- {function['name']}: {function.get('description', '')} Arguments: {arguments}"


def to_text_messages(
    messages: Sequence[BaseMessage], system_prompt: str, text_instructions: str
) -> Iterator[BaseMessage]:
    """Yield the messages of a model prompt, starting with the system message.

    If ``text_instructions`` are passed, tool calls and tool results are converted to text.
    """
    if system := "\n\n".join(part for part in (system_prompt, text_instructions) if part):
        yield SystemMessage(system)
    for message in messages:
        if text_instructions and isinstance(message, ToolMessage):
            yield HumanMessage(f"Observation: {message.text}")
        elif text_instructions and isinstance(message, AIMessage):
            yield AIMessage(str(message.additional_kwargs.get("written") or message.text))
        else:
            yield message


def parse_step(message: AIMessage, tools: Sequence[Any]) -> AIMessage:
    r"""Parse the tool call or final answer that a model wrote as text.

    >>> found = parse_step(AIMessage('Thought: hm\nAction: add\nAction Input: {"a": 1}'), [])
    >>> found.text, found.tool_calls[0]["name"], found.tool_calls[0]["args"]
    ('hm', 'add', {'a': 1})
    >>> parse_step(AIMessage("Action: Final Answer\nAction Input: 4"), []).text
    '4'
    >>> parse_step(AIMessage("I would add them."), []).additional_kwargs["unreadable"]
    'It has neither an action nor a final answer.'
    """
    text = str(message.text)
    step, answer = _STEP.search(text), _FINAL.search(text)
    if step is None or (answer is not None and answer.start() < step.start()):
        if answer is not None:
            return _parsed_message(
                message, _parse_answer(answer["answer"].strip()), text[: answer.end()].strip()
            )
        calls = parse_calls(text, tools)
        if calls:
            return _parsed_message(message, "", text, calls)
        return mark_unreadable(message, "It has neither an action nor a final answer.")
    if step["action"].strip().lower() == FINAL_ANSWER.lower():
        return _parsed_message(message, _parse_answer(step["input"].strip()), text)
    name = _match_tool_name(step["action"].strip(), tools)
    args = _parse_arguments(name, step["input"].strip(), tools)
    if tools and any(character in name for character in '{}"\n'):
        names = ", ".join(_tool_names(tools))
        return mark_unreadable(message, f"Action must be the name of one tool: {names}.")
    if args is None:
        return mark_unreadable(message, f"The Action Input of {name} must be a JSON object.")
    # An observation that the model invented is not part of the conversation.
    source_text = text[: step.end()].strip()
    return _parsed_message(
        message, (step["thought"] or "").strip(), source_text, [_tool_call(name, args)]
    )


def parse_calls(text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
    r"""Parse tool calls that a model wrote as JSON text instead of structured calls.

    The JSON may be in a code fence or a tag. The list is empty if the text contains anything
    else.

    >>> from types import SimpleNamespace
    >>> add = SimpleNamespace(name="add")
    >>> [call] = parse_calls('```json\n{"name": "add", "arguments": {"a": 1}}\n```', [add])
    >>> call["name"], call["args"]
    ('add', {'a': 1})
    >>> parse_calls('{"name": "Ada", "arguments": {}}', [add])
    []
    """
    parts = [match["fence"] or match["tag"] or "" for match in _FENCED.finditer(text)]
    if _FENCED.sub("", text).strip():
        parts = [text]
    calls = [_parse_call(part, tools) for part in parts]
    return [call for call in calls if call is not None] if None not in calls else []


def contains_call(text: str, tools: Sequence[Any]) -> bool:
    """Return True if a text contains a tool call written as JSON, even among other text."""
    parts = (match["fence"] or match["tag"] or "" for match in _FENCED.finditer(text))
    return any(_parse_call(part, tools) is not None for part in (text, *parts))


def _parse_call(text: str, tools: Sequence[Any]) -> dict[str, Any] | None:
    value = parse_json(text)
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    if isinstance(function, dict):
        value = function
    name = value.get("name")
    argument_keys = [key for key in _ARGUMENT_KEYS if key in value]
    if (
        not isinstance(name, str)
        or not argument_keys
        or _match_tool_name(name, tools) not in _tool_names(tools)
    ):
        return None
    args = value[argument_keys[0]]
    args = parse_json(args) if isinstance(args, str) else args
    return _tool_call(_match_tool_name(name, tools), args) if isinstance(args, dict) else None


def _tool_call(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "args": args, "id": uuid4().hex, "type": "tool_call"}


def _tool_names(tools: Sequence[Any]) -> list[str]:
    return [
        convert_to_openai_tool(tool)["function"]["name"]
        if isinstance(tool, type)
        else str(tool.name)
        for tool in tools
    ]


def _match_tool_name(written_name: str, tools: Sequence[Any]) -> str:
    """Find the registered tool name that matches a name written by a model.

    Quotes, parentheses, spaces, and case are ignored, because models often change them.
    """
    name = written_name.strip().strip("`'\"*").removesuffix("()")
    normalized = name.casefold().replace(" ", "_")
    return next((known for known in _tool_names(tools) if known.casefold() == normalized), name)


def _parsed_message(
    message: AIMessage, text: str, source_text: str, calls: Sequence[Any] = ()
) -> AIMessage:
    additional = {**message.additional_kwargs, "written": source_text}
    update = {"content": text, "tool_calls": list(calls), "additional_kwargs": additional}
    return message.model_copy(update=update)


def mark_unreadable(message: AIMessage, reason: str) -> AIMessage:
    """Return a copy of a model message that is marked as unreadable for the given reason."""
    additional = {**message.additional_kwargs, "unreadable": reason}
    return message.model_copy(update={"additional_kwargs": additional})


def parse_json(text: str) -> Any:
    """Parse JSON text with or without a code fence. Return other text unchanged."""
    try:
        return json.loads(re.sub(r"^```\w*", "", text.strip()).removesuffix("```"))
    except ValueError:
        return text


def _parse_arguments(name: str, text: str, tools: Sequence[Any]) -> dict[str, Any] | None:
    """Parse the arguments of a tool call from text. Return None if they are invalid.

    A value that is not an object becomes the argument of a tool with a single parameter. Text
    that is not JSON is such a value only if it is a single line and does not look like an
    object.
    """
    value = parse_json(text)
    if isinstance(value, str) and text.strip()[:1] in ("{", "[", "`"):
        value = _parse_leading_object(text)
    if isinstance(value, dict) or value is None:
        return value
    if isinstance(value, str) and value == text.strip() and ("\n" in value or "{" in value):
        return None
    for tool in tools:
        properties = list(getattr(tool, "args", None) or ())
        if getattr(tool, "name", None) == name and len(properties) == 1:
            return {properties[0]: value}
    return None


def _parse_leading_object(text: str) -> dict[str, Any] | None:
    """Parse the JSON object at the start of a text, ignoring any text after the object.

    Return None if the text does not begin with a JSON object.
    """
    json_text = re.sub(r"^```\w*\s*", "", text.strip())
    try:
        value, _ = json.JSONDecoder().raw_decode(json_text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _parse_answer(text: str) -> str:
    """Extract the final answer from plain text or from JSON text such as ``{"answer": …}``."""
    value = parse_json(text.strip())
    if isinstance(value, dict) and set(value) == {"answer"}:
        value = value["answer"]
    return value if isinstance(value, str) else json.dumps(value)
