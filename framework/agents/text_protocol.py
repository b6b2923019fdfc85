"""Calling tools by text, for models that know no other way: Thought, Action, Action Input."""

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

from capgraph.agents.result import FINAL

_FORM = """\
Work on the task step by step. Answer with one step at a time, in exactly this form:

Thought: what you think
Action: the name of one tool, or Final Answer
Action Input: the tool's arguments as a JSON object; for Final Answer {"answer": "..."}

You are then told the observation. These are the tools:
"""
_STEP = re.compile(
    r"(?:Thought:\s*(?P<thought>.*?)\s*)?^\s*Action:\s*(?P<action>[^\n]+?)\s*"
    r"^\s*Action Input:\s*(?P<input>.*?)\s*(?=^\s*(?:Observation|Thought|Action):|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_FINAL = re.compile(
    r"^\s*Final Answer:\s*(?P<answer>.+)\Z", re.DOTALL | re.MULTILINE | re.IGNORECASE
)


def instructions(tools: Sequence[Any]) -> str:
    """Return what a model is told about the form and the tools."""
    return _FORM + "\n".join(_described(tool) for tool in tools)


def _described(tool: Any) -> str:
    function = convert_to_openai_tool(tool)["function"]
    arguments = json.dumps(function.get("parameters", {}).get("properties", {}))
    return f"- {function['name']}: {function.get('description', '')} Arguments: {arguments}"


def written(messages: Sequence[BaseMessage], system: str, form: str) -> Iterator[BaseMessage]:
    """Yield a prompt; with a form, calls and observations are text."""
    if told := "\n\n".join(part for part in (system, form) if part):
        yield SystemMessage(told)
    for message in messages:
        if form and isinstance(message, ToolMessage):
            yield HumanMessage(f"Observation: {message.text}")
        elif form and isinstance(message, AIMessage):
            yield AIMessage(str(message.additional_kwargs.get("written") or message.text))
        else:
            yield message


def read_text(message: AIMessage, tools: Sequence[Any]) -> AIMessage:
    r"""Read the next step out of a text.

    >>> found = read_text(AIMessage('Thought: hm\nAction: add\nAction Input: {"a": 1}'), [])
    >>> found.text, found.tool_calls[0]["name"], found.tool_calls[0]["args"]
    ('hm', 'add', {'a': 1})
    >>> read_text(AIMessage("Action: Final Answer\nAction Input: 4"), []).text
    '4'
    >>> read_text(AIMessage("I would add them."), []).additional_kwargs["unreadable"]
    'It has neither an action nor a final answer.'
    """
    text = str(message.text)
    found = _STEP.search(text)
    if found is None:
        answer = _FINAL.search(text)
        if answer is None:
            why = "It has neither an action nor a final answer."
            return unreadable(message, why)
        return _made(message, _answer(answer["answer"]), text)
    if found["action"].strip().lower() == FINAL.lower():
        return _made(message, _answer(found["input"]), text)
    call = {
        "name": found["action"].strip(),
        "args": _arguments(found["action"].strip(), found["input"], tools),
        "id": uuid4().hex,
        "type": "tool_call",
    }
    # What it made up as an observation is not shown to it as its own words.
    return _made(message, found["thought"] or "", text[: found.end()].strip(), [call])


def _made(message: AIMessage, text: str, told: str, calls: Sequence[Any] = ()) -> AIMessage:
    known = {**message.additional_kwargs, "written": told}
    update = {"content": text, "tool_calls": list(calls), "additional_kwargs": known}
    return message.model_copy(update=update)


def unreadable(message: AIMessage, why: str) -> AIMessage:
    """Return a message that says why it cannot be used."""
    known = {**message.additional_kwargs, "unreadable": why}
    return message.model_copy(update={"additional_kwargs": known})


def as_json(text: str) -> Any:
    """Return what a text says in JSON, fenced or not; the text itself where it is none."""
    try:
        return json.loads(re.sub(r"^```\w*\s*|\s*```$", "", text.strip()))
    except ValueError:
        return text


def _arguments(name: str, text: str, tools: Sequence[Any]) -> dict[str, Any]:
    """Return a call's arguments; what is no object is the one argument of a tool that has one."""
    given = as_json(text)
    if isinstance(given, dict):
        return given
    for tool in tools:
        properties = list(getattr(tool, "args", None) or ())
        if getattr(tool, "name", None) == name and len(properties) == 1:
            return {properties[0]: given}
    return {"raw": given}


def _answer(text: str) -> str:
    """Return the answer, whether it stands there as text or as ``{"answer": …}``."""
    found = as_json(text.strip())
    if isinstance(found, dict) and set(found) == {"answer"}:
        found = found["answer"]
    return found if isinstance(found, str) else json.dumps(found)
