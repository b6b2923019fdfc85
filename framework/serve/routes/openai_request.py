"""Requests of OpenAI's API, and the options that the agent supports or refuses.

An option that would change the answer of a model and cannot change that of the agent is refused,
unless it has the value that makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from capgraph.configs.suggestions import suggest_fix
from capgraph.serve.problems import BadRequestError, NotFoundError
from capgraph.serve.routes.openai_messages import Conversation, text_of
from capgraph.serve.routes.openai_tools import FunctionTools, parse_tools

MODEL_NAME = "capgraph"
_TOOL_OPTIONS = ("tools", "tool_choice", "parallel_tool_calls")
_LABELS = ("user", "safety_identifier", "prompt_cache_key")
"""Options that are labels for a provider's statistics."""
_SUPPORTED = ("model", "metadata", "stream", *_TOOL_OPTIONS, *_LABELS)
"""Supported options of both APIs."""
_REPEATED = (*_TOOL_OPTIONS, "instructions", "metadata", "previous_response_id", "text")
"""Options of the Responses API that a response repeats."""
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
        instructions: Instructions of the client for this turn; empty without instructions.
        history: Messages of a new thread before it.
        thread_id: Thread to continue; ``None`` starts one.
        tools: Functions of the request.
        tool_results: Results of tools after the last message, by ID of the call.
        answer_schema: JSON schema of the answer; ``None`` for text.
        format_param: Name of the parameter that determines the schema.
        instructions_param: Name of the parameter with the instructions.
        messages_param: Name of the parameter with the messages.
        is_streamed: True if the client reads the answer as server-sent events.
        includes_usage: True if the stream ends with the usage.
        response_options: Options that the response repeats.
    """

    message: str | None
    instructions: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    thread_id: str | None = None
    tools: FunctionTools = field(default_factory=FunctionTools)
    tool_results: dict[str, str] = field(default_factory=dict)
    answer_schema: Mapping[str, Any] | None = None
    format_param: str = "response_format"
    instructions_param: str = "messages"
    messages_param: str = "messages"
    is_streamed: bool = False
    includes_usage: bool = False
    response_options: Mapping[str, Any] = field(default_factory=dict)


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
    if body.get("stream") not in (None, True, False):
        raise BadRequestError("stream is not a boolean.", fix="Send true or false.", param="stream")
    _check_values(body, (*_SUPPORTED, *supported), options)


def _check_values(
    body: Mapping[str, Any],
    supported: Collection[str],
    options: Mapping[str, tuple[tuple[Any, ...], str]],
    prefix: str = "",
) -> None:
    """Reject members of an object that are unknown or that the agent does not support.

    Args:
        body: Object to check.
        supported: Members that have an effect.
        options: Other known members, with the values that have no effect.
        prefix: Path of the object in the request.
    """
    for name, value in body.items():
        if value is None or name in supported:
            continue
        param = f"{prefix}{name[:100]}"
        if name not in options:
            raise BadRequestError(
                f"The parameter {param!r} is unknown.",
                fix=suggest_fix(name, candidates=sorted({*supported, *options})),
                param=param,
            )
        neutral_values, fix = options[name]
        if not any(value == neutral for neutral in neutral_values):
            raise BadRequestError(
                f"The parameter {param!r} is not supported, because the agent cannot apply it.",
                fix=fix,
                param=param,
            )


def _stream_options(body: Mapping[str, Any], *supported: str) -> Mapping[str, Any]:
    """Return the options of a stream, after a check of their names."""
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise BadRequestError(
            "stream_options is not an object.", fix="Send an object.", param="stream_options"
        )
    known = {"include_obfuscation": ((False, True), "Remove it.")}
    _check_values(options, supported, known, "stream_options.")
    return options


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
    conversation = Conversation("messages")
    for message in messages:
        conversation.add(message)
    instructions = conversation.take_instructions()
    message, history, tool_results = conversation.split()
    thread = _metadata(body).get("thread_id")
    if thread is not None and not isinstance(thread, str):
        raise BadRequestError(
            "metadata.thread_id is not text.",
            fix="Send the ID of a thread.",
            param="metadata.thread_id",
        )
    options = _stream_options(body, "include_usage")
    tools = parse_tools(body, is_nested=True)
    answer_schema = _parse_format(body.get("response_format"), "response_format", "json_schema")
    return AnswerRequest(
        message,
        instructions,
        # The thread has its earlier messages, which clients of this API send each time.
        [] if thread else history,
        thread,
        tools,
        tool_results,
        *_select_answer_schema(answer_schema, "response_format", tools),
        is_streamed=body.get("stream") is True,
        includes_usage=bool(options.get("include_usage")),
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
    _stream_options(body)
    conversation = Conversation("input")
    items = body.get("input")
    for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
        conversation.add_item(item)
    message, history, tool_results = conversation.split()
    tools = parse_tools(body, is_nested=False)
    text = body.get("text")
    text_format = text.get("format") if isinstance(text, Mapping) else text
    if isinstance(text, Mapping):
        _check_values(text, ("format",), {"verbosity": CHAT_OPTIONS["verbosity"]}, "text.")
    answer_schema = _parse_format(text_format, "text.format", None)
    return AnswerRequest(
        message,
        text_of(body.get("instructions") or "", "instructions"),
        history,
        None,
        tools,
        tool_results,
        *_select_answer_schema(answer_schema, "text.format", tools),
        instructions_param="instructions",
        messages_param="input",
        is_streamed=body.get("stream") is True,
        response_options={name: body[name] for name in _REPEATED if body.get(name) is not None},
    )


def parse_retrieval(query: Mapping[str, str]) -> bool:
    """Check the query of a request for an existing response and return True if it is streamed.

    Raises:
        BadRequestError: The server does not support a parameter.
    """
    options = {"include_obfuscation": (("true", "false"), "Remove it.")}
    _check_values(query, ("stream",), options)
    return query.get("stream") == "true"


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
