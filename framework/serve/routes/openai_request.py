"""Requests of OpenAI's API: messages, and options that the agent supports or refuses.

An option that would change the answer of a model and cannot change that of the agent is refused,
unless it has the value that makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from capgraph.configs.suggestions import suggest_fix
from capgraph.serve.problems import BadRequestError, NotFoundError
from capgraph.serve.routes.openai_tools import FunctionTools, parse_tools

MODEL_NAME = "capgraph"
ROLES = ("assistant", "developer", "system", "tool", "user")
_TOOL_OPTIONS = ("tools", "tool_choice", "parallel_tool_calls")
_LABELS = ("user", "safety_identifier", "prompt_cache_key")
"""Options that are labels for a provider's statistics."""
_SUPPORTED = ("model", "metadata", "stream", *_TOOL_OPTIONS, *_LABELS)
"""Supported options of both APIs."""
_SETTINGS_FIX = "Remove it, and set it in the agent's settings (models)."
_TOOLS_FIX = "Send tools."
_SHARED_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "temperature": ((1,), _SETTINGS_FIX),
    "top_p": ((1,), _SETTINGS_FIX),
    "top_logprobs": ((0,), "Remove it."),
    "service_tier": (("auto", "default"), "Remove it."),
    "prompt_cache_retention": ((), "Remove it."),
    "store": ((True,), "Remove it, and delete the thread after the answer."),
}
"""Values that make no difference, and the fix for all others, by option."""
CHAT_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = _SHARED_OPTIONS | {
    "audio": ((), "Remove it."),
    "frequency_penalty": ((0,), _SETTINGS_FIX),
    "function_call": (("none", "auto"), _TOOLS_FIX),
    "functions": (([],), _TOOLS_FIX),
    "logit_bias": (({},), "Remove it."),
    "logprobs": ((False,), "Remove it."),
    "max_completion_tokens": ((), _SETTINGS_FIX),
    "max_tokens": ((), _SETTINGS_FIX),
    "modalities": ((["text"],), "Remove it."),
    "n": ((1,), "Send one request for each answer."),
    "prediction": ((), "Remove it."),
    "presence_penalty": ((0,), _SETTINGS_FIX),
    "reasoning_effort": ((), _SETTINGS_FIX),
    "seed": ((), _SETTINGS_FIX),
    "stop": (([],), "Remove it."),
    "verbosity": (("medium",), _SETTINGS_FIX),
    "web_search_options": ((), "Remove it."),
}
RESPONSES_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = _SHARED_OPTIONS | {
    "background": ((False,), "Remove it, or start a run with the JSON API."),
    "context_management": ((), "Remove it."),
    "conversation": ((), "Send previous_response_id."),
    "include": (([],), "Remove it."),
    "max_output_tokens": ((), _SETTINGS_FIX),
    "max_tool_calls": ((), _SETTINGS_FIX),
    "prompt": ((), "Send the text of the prompt as instructions."),
    "reasoning": (({},), _SETTINGS_FIX),
    "truncation": (("disabled",), "Remove it."),
}


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Request for one answer of the agent.

    Attributes:
        message: The user's message; ``None`` if the request has only results of tools.
        history: Messages of a new thread before it.
        thread_id: Thread to continue; ``None`` starts one.
        tools: Functions of the request.
        tool_results: Results of tools after the last message, by ID of the call.
        answer_schema: JSON schema of the answer; ``None`` for text.
        format_param: Name of the parameter that determines the schema.
        messages_param: Name of the parameter with the messages.
        is_streamed: True if the client reads the answer as server-sent events.
        includes_usage: True if the stream ends with the usage.
    """

    message: str | None
    history: list[dict[str, Any]] = field(default_factory=list)
    thread_id: str | None = None
    tools: FunctionTools = field(default_factory=FunctionTools)
    tool_results: dict[str, str] = field(default_factory=dict)
    answer_schema: Mapping[str, Any] | None = None
    format_param: str = "response_format"
    messages_param: str = "messages"
    is_streamed: bool = False
    includes_usage: bool = False


def check_options(
    body: Mapping[str, Any],
    supported: Iterable[str],
    options: Mapping[str, tuple[tuple[Any, ...], str]],
) -> None:
    """Reject request options that are unknown or that the agent does not support.

    Args:
        body: Body of the request.
        supported: Options that have an effect, besides those of both APIs.
        options: Other known options, with the values that have no effect.

    Raises:
        BadRequestError: An option is rejected; ``param`` contains its name.
        NotFoundError: The model does not exist.
    """
    check_model(body.get("model") or MODEL_NAME)
    supported = {*_SUPPORTED, *supported}
    for name, value in body.items():
        if value is None or name in supported:
            continue
        if name not in options:
            raise BadRequestError(
                f"The parameter {name[:100]!r} is unknown.",
                fix=suggest_fix(name, candidates=sorted({*supported, *options})),
                param=name[:100],
            )
        neutral_values, fix = options[name]
        if not any(value == neutral for neutral in neutral_values):
            raise BadRequestError(
                f"The parameter {name!r} is not supported, because the agent cannot apply it.",
                fix=fix,
                param=name,
            )


def check_model(name: Any) -> None:
    """Check that a requested model name is the name under which the agent is served.

    Raises:
        NotFoundError: The name is a different one.
    """
    if name != MODEL_NAME:
        raise NotFoundError(
            f"The model {str(name)[:100]!r} does not exist.", fix=f"Use {MODEL_NAME!r}."
        )


def parse_chat_request(body: Mapping[str, Any]) -> AnswerRequest:
    """Parse the body of an OpenAI chat completion request.

    Raises:
        BadRequestError: The request is invalid, or the agent does not support one of its options.
        NotFoundError: The model does not exist.
    """
    check_options(body, ("messages", "response_format", "stream_options"), CHAT_OPTIONS)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(
            "The request has no messages.",
            fix='Send {"messages": [{"role": …}]}.',
            param="messages",
        )
    conversation = _Conversation("messages")
    for message in messages:
        conversation.add(message)
    message, history, tool_results = conversation.split()
    thread = _metadata(body).get("thread_id")
    if thread is not None and not isinstance(thread, str):
        raise BadRequestError(
            "metadata.thread_id is not text.",
            fix="Send the ID of a thread.",
            param="metadata.thread_id",
        )
    options = body.get("stream_options")
    tools = parse_tools(body, is_nested=True)
    answer_schema = _parse_format(body.get("response_format"), "response_format", "json_schema")
    return AnswerRequest(
        message,
        # The thread has its earlier messages, which clients of this API send each time.
        [] if thread else history,
        thread,
        tools,
        tool_results,
        *_select_answer_schema(answer_schema, "response_format", tools),
        is_streamed=bool(body.get("stream")),
        includes_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
    )


def parse_responses_request(body: Mapping[str, Any]) -> AnswerRequest:
    """Parse the body of a request to the OpenAI Responses API.

    ``previous_response_id`` selects the thread that the request continues.

    Raises:
        BadRequestError: The request is invalid, or the agent does not support one of its options.
        NotFoundError: The model does not exist.
    """
    supported = ("input", "instructions", "previous_response_id", "text", "stream_options")
    check_options(body, supported, RESPONSES_OPTIONS)
    _metadata(body)
    conversation = _Conversation("input")
    if (instructions := body.get("instructions")) is not None:
        conversation.add_text("system", _text(instructions, "instructions"))
    items = body.get("input")
    for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
        conversation.add_item(item)
    message, history, tool_results = conversation.split()
    tools = parse_tools(body, is_nested=False)
    text = body.get("text")
    text_format = text.get("format") if isinstance(text, Mapping) else text
    if isinstance(text, Mapping) and text.get("verbosity") not in (None, "medium"):
        raise BadRequestError(
            "The parameter 'text.verbosity' is not supported, because the agent cannot apply it.",
            fix=_SETTINGS_FIX,
            param="text.verbosity",
        )
    answer_schema = _parse_format(text_format, "text.format", None)
    return AnswerRequest(
        message,
        history,
        None,
        tools,
        tool_results,
        *_select_answer_schema(answer_schema, "text.format", tools),
        messages_param="input",
        is_streamed=bool(body.get("stream")),
    )


def _select_answer_schema(
    schema: Mapping[str, Any] | None, param: str, tools: FunctionTools
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the JSON schema of the answer and the request parameter that determines it.

    A tool choice that requires a call conflicts with a response format.
    """
    if not tools.answer_tools:
        return schema, param
    if schema is not None:
        raise BadRequestError(
            f"The tool_choice requires a call, but {param} requires another answer.",
            fix="Send one of them.",
            param="tool_choice",
        )
    return tools.answer_schema, "tool_choice"


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise BadRequestError("metadata is not an object.", fix="Send an object.", param="metadata")
    return metadata or {}


def _parse_format(value: Any, param: str, nested_in: str | None) -> Mapping[str, Any] | None:
    """Return the JSON schema of a response format, or ``None`` for plain text.

    Args:
        value: Response format from the request.
        param: Name of the request parameter that contains the format.
        nested_in: Member of the format that contains the schema; ``None`` if the format itself
            contains it.
    """
    kind = value.get("type") if isinstance(value, Mapping) else value
    if kind is None or kind == "text":
        return None
    holder = value.get(nested_in) if nested_in is not None and isinstance(value, Mapping) else value
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise BadRequestError(
            f"The {param} is {str(kind)[:40]!r}: expected 'text' or 'json_schema' with a schema.",
            fix="Send the JSON schema of the answer.",
            param=param,
        )
    return schema


class _Conversation:
    """Messages of an OpenAI request, converted to messages of the graph.

    Tool calls and their results are converted to text, because every model role can read text.
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
            self._add_result(message.get("tool_call_id"), _text(content, f"{where}.content"))
            return
        texts = [] if content is None and calls else [_text(content, f"{where}.content")]
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
            self._add_result(item.get("call_id"), _text(item.get("output"), f"{where}.output"))
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


def _text(content: Any, where: str) -> str:
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
