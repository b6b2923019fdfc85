"""Messages of OpenAI's API, converted to messages of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capgraph.serve.problems import BadRequestError

ROLES = ("assistant", "developer", "system", "tool", "user")


class Conversation:
    """Messages of an OpenAI request, converted to messages of the graph.

    Tool calls and their results are converted to text, because every model role can read text.

    Args:
        param: Name of the request parameter that contains the messages.
    """

    def __init__(self, param: str) -> None:
        self._param = param
        self._messages: list[dict[str, Any]] = []
        self._tool_names: dict[str, str] = {}
        self._results: dict[int, tuple[str, str]] = {}
        self._unmatched: list[str] = []

    def add_text(self, role: str, content: str) -> None:
        """Add a text message. The role ``developer`` is treated as ``system``."""
        role = "system" if role == "developer" else role
        self._messages.append({"role": role, "content": content})

    def add(self, message: Any) -> None:
        """Add a message of an OpenAI chat completion request."""
        where = f"{self._param}[{len(self._messages)}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            raise BadRequestError(
                f"Invalid {where}.role {str(role)[:40]!r}.",
                fix=f"Use one of {', '.join(ROLES)}.",
                param=f"{where}.role",
            )
        content, calls = message.get("content"), message.get("tool_calls") or []
        if role == "tool":
            self._add_result(message.get("tool_call_id"), text_of(content, f"{where}.content"))
            return
        texts = [] if content is None and calls else [text_of(content, f"{where}.content")]
        for call in calls:
            function = call.get("function") if isinstance(call, Mapping) else None
            texts.append(self._describe_call(function, call, "id", f"{where}.tool_calls"))
        self.add_text(role, "\n".join(filter(None, texts)))

    def add_item(self, item: Any) -> None:
        """Add an input item of an OpenAI Responses request, such as a function call."""
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        where = f"{self._param}[{len(self._messages)}]"
        if kind == "message":
            self.add(item)
        elif kind == "function_call":
            self.add_text("assistant", self._describe_call(item, item, "call_id", where))
        elif kind == "function_call_output":
            self._add_result(item.get("call_id"), text_of(item.get("output"), f"{where}.output"))
        else:
            raise BadRequestError(
                f"Invalid {where}.type {str(kind)[:40]!r}.",
                fix="Send messages, function calls, and their outputs.",
                param=f"{where}.type",
            )

    def _describe_call(self, function: Any, call: Any, id_key: str, where: str) -> str:
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            raise BadRequestError(
                f"{where} contains a tool call without a function name.",
                fix="Send the name and the arguments of each call.",
                param=where,
            )
        self._tool_names[str(call.get(id_key))] = name
        arguments = function.get("arguments")
        return f"Called the tool {name} with {arguments if arguments else {}}."

    def _add_result(self, call_id: Any, text: str) -> None:
        name = self._tool_names.get(str(call_id))
        if name is None:
            self._unmatched.append(str(call_id))
        self._results[len(self._messages)] = str(call_id), text
        self.add_text("assistant", f"The tool {name} returned: {text}")

    def take_instructions(self) -> str:
        """Remove the system messages at the start of the conversation and return their text."""
        count = 0
        while count < len(self._messages) and self._messages[count]["role"] == "system":
            count += 1
        taken, self._messages = self._messages[:count], self._messages[count:]
        self._results = {index - count: result for index, result in self._results.items()}
        return "\n".join(one["content"] for one in taken)

    def split(self) -> tuple[str | None, list[dict[str, Any]], dict[str, str]]:
        """Split the conversation into its last user message, earlier messages, and tool results.

        If tool results follow the user message, the history also contains them as text, for an
        agent that did not make the calls.
        """
        results: dict[str, str] = {}
        count = len(self._messages)
        while count - 1 in self._results:
            count -= 1
            call_id, text = self._results[count]
            results[call_id] = text
        if self._unmatched:
            if {*self._unmatched} <= results.keys():
                return None, [], results
            raise unmatched_result_error(self._unmatched[0], self._param)
        texts = [one["content"] for one in self._messages if one["role"] == "user"]
        is_last = bool(results) or (bool(texts) and self._messages[-1]["role"] == "user")
        if not texts or not is_last or not texts[-1].strip():
            raise BadRequestError(
                "The last message is empty, or neither a user message nor the result of a tool.",
                fix="End with a user message.",
                param=self._param,
            )
        return texts[-1], self._messages if results else self._messages[:-1], results


def unmatched_result_error(call_id: str, param: str) -> BadRequestError:
    """Create the error for a tool result that does not match any tool call."""
    return BadRequestError(
        f"The tool result {call_id!r:.80} has no matching tool call before it.",
        fix="Send the assistant's message with the tool call before its result.",
        param=param,
    )


def text_of(content: Any, where: str) -> str:
    """Return message content as text, joining the texts of its content parts."""
    if isinstance(content, list):
        parts = [
            part.get("text")
            if isinstance(part, Mapping)
            and part.get("type") in ("text", "input_text", "output_text")
            else None
            for part in content
        ]
        content = None if None in parts else "\n".join(map(str, parts))
    if not isinstance(content, str):
        raise BadRequestError(f"{where} is not text.", fix="Send text.", param=where)
    return content
