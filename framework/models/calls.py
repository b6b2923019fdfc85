"""Chat model calls: middleware stages, structured output, streaming, and error translation."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.runnables import RunnableSequence
from langchain_core.utils.json import parse_partial_json
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel
from pydantic import ValidationError as PydanticValidationError

from capgraph.base import CapgraphError, ErrorSeverity, FatalExecutionError, ModelError
from capgraph.base.error_classification import classify_exception, diagnose, is_self_classified
from capgraph.base.errors import MalformedAnswerError
from capgraph.base.ports import (
    STAGES,
    Attempt,
    Behavior,
    BehaviorContext,
    Failure,
    ModelCallMiddleware,
    RetryRule,
    TimeLimit,
)
from capgraph.configs.limits import Limits
from capgraph.configs.logger import escape_control_characters, mask_secrets
from capgraph.configs.run_context import run_context
from capgraph.configs.settings import StructuredMethod
from capgraph.helpers.clock import use_clock
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.helpers.plain_data import json_values, validation_messages
from capgraph.langgraph_compat import write_message
from capgraph.models.prompt_echo import EchoFilter, remove_echo
from capgraph.models.recovery import (
    ModelRefusedError,
    TruncatedAnswerError,
    call_with_fallbacks,
    call_with_shorter_prompt,
    emit_progress,
)
from capgraph.models.roles import RoleModel, structured_method
from capgraph.pipeline import hooks
from capgraph.pipeline.middleware import find_last_of_type, is_rule, sort_middleware
from capgraph.pipeline.retry import retry_call
from capgraph.telemetry import AnswerToken, ReplyRepaired, emit
from capgraph.telemetry.audit import record_refusal
from capgraph.telemetry.usage_callback import role_tag

ResultT = TypeVar("ResultT")

_TRUNCATION_REASONS = frozenset(
    {"length", "max_tokens", "model_length", "model_context_window_exceeded"}
)
_REFUSAL_REASONS = frozenset(
    ["content_filter", "refusal", "safety", "prohibited_content", "blocklist", "recitation", "spii"]
)
REWORD_HINT = "Please rephrase your request."
_PARSED_SHARE = 50
"""A streamed reply is parsed again when its text has grown by this fraction."""
_PROVIDERS_WITH_STOP_REASON = frozenset({"anthropic", "google_genai"})
_FIX_BY_CATEGORY = {
    "rate_limit": "Wait, or ask the provider for a higher rate limit.",
    "overloaded": "Try again later, or use another model.",
    "timeout": "Try again, or raise the model's timeout_seconds.",
    "network": "Check the network and the model's base_url.",
    "authentication": "Check the API key and its permissions.",
    "context_too_long": "Shorten the request, or use a longer context (llama-server: -c;"
    " Ollama: OLLAMA_CONTEXT_LENGTH).",
    "bad_input": "Check the model's name and options.",
}


async def call_model(
    role: RoleModel,
    messages: Sequence[BaseMessage],
    send: Callable[[Attempt], Awaitable[Any]],
    parse: Callable[[Any], ResultT],
) -> ResultT:
    """Call a chat model through its role's middleware and hooks.

    The call passes the same stages as a step. Middleware from ``observe`` to ``finalize``
    receives the parsed answer, and middleware below ``finalize`` receives the model's raw
    result. Without a ``RetryBehavior``, the call is attempted only once. The caller classifies
    the error, and the router decides whether to retry.

    Args:
        role: Model to call, with its middleware.
        messages: Prompt messages.
        send: Function that sends an attempt whose inputs are ``model`` and ``messages``.
        parse: Function that validates the raw result and returns the answer.

    Raises:
        ModelError: The call failed. The cause is chained.
        LimitError: The turn has reached its maximum number of model calls.
    """
    limit: TimeLimit | None = find_last_of_type(role.behaviors, TimeLimit)
    seconds = limit.time_limit if limit is not None else role.timeout_seconds

    async def send_attempt(attempt: Attempt) -> Any:
        attempt_role = replace(role, model=attempt.inputs["model"], timeout_seconds=seconds)
        async with _translate_errors(attempt_role):
            with emit_progress(attempt_role):
                result = await send(attempt)
                raw = result["raw"] if isinstance(result, Mapping) else result
                if exceeds_bytes(raw, _get_max_reply_bytes()):
                    raise _create_large_reply_error(attempt_role)
                return result

    async def call_once(attempt: Attempt) -> Any:
        async with _translate_errors(replace(role, timeout_seconds=None)):  # of middleware
            return await call_with_shorter_prompt(
                role, _wrap_stages(role, _CALL_STAGE, send_attempt), attempt
            )

    async def call_and_parse(attempt: Attempt) -> ResultT:
        try:
            return parse(await _wrap_stages(role, _INNER_STAGES, call_once)(attempt))
        except CapgraphError as exc:
            record_refusal(exc)  # before middleware replaces the error by a fallback
            raise

    once = _wrap_stages(role, _FINALIZE_STAGE, call_and_parse)
    rule: RetryRule | None = find_last_of_type(role.behaviors, RetryRule)
    retried = once if rule is None else partial(_call_with_retries, role, rule, once)
    if role.fallbacks:
        retried = partial(call_with_fallbacks, role, retried)
    inner = _wrap_stages(role, _OUTER_STAGES, retried)
    if hooks_only := [
        item for item in role.behaviors if isinstance(item, Behavior) and not _get_stage(item)
    ]:
        inner = partial(_call_with_hooks, hooks_only, inner)

    inputs = {"model": role.model, "messages": list(messages)}
    attempt = Attempt(role.role, key=role.role, objective=role.role, inputs=inputs, kind="model")
    with use_clock(role.clock):
        answer: ResultT = await _wrap_stages(role, _OBSERVE_STAGE, inner)(attempt)
        return answer


_OBSERVE_STAGE, _OUTER_STAGES, _FINALIZE_STAGE, _INNER_STAGES, _CALL_STAGE = (
    STAGES[:1],
    STAGES[1 : STAGES.index("finalize")],
    ("finalize",),
    STAGES[STAGES.index("finalize") + 1 : -1],
    STAGES[-1:],
)
_CallFunction = Callable[[Attempt], Awaitable[Any]]


def _get_stage(item: Any) -> str | None:
    return getattr(item, "stage", None)


def _wrap_stages(role: RoleModel, stages: Sequence[str], call: _CallFunction) -> _CallFunction:
    """Wrap a model call in the role's middleware for the given stages, outermost first."""
    for stage in reversed(stages):
        middlewares = [
            item for item in role.behaviors if _get_stage(item) == stage and not is_rule(item)
        ]
        for middleware in reversed(sort_middleware(middlewares)):
            call = partial(_call_middleware, middleware, call)
    return call


async def _call_middleware(
    middleware: ModelCallMiddleware, call: _CallFunction, attempt: Attempt
) -> Any:
    async def call_next(changed: Attempt = attempt) -> Any:
        return await call(changed)

    return await middleware.wrap_model_call(attempt, call_next)


async def _call_with_hooks(
    behaviors: Sequence[Behavior], call: _CallFunction, attempt: Attempt
) -> Any:
    name = f"{attempt.capability}/{uuid4().hex[:12]}"
    context = BehaviorContext(attempt.capability, attempt.objective, execution_id=name)
    return await hooks.call_with_hooks(behaviors, context, partial(call, attempt))


async def _call_with_retries(
    role: RoleModel, rule: RetryRule, call: _CallFunction, attempt: Attempt
) -> Any:
    """Call a model and retry failed calls according to a retry rule.

    The last error is marked as critical so that callers do not retry the call again.
    """

    def classify(exc: Exception) -> Failure:
        classification = classify_exception(exc, role.role)
        details = classification.metadata or {}
        is_unclassified = details.get("category") == "unknown" and not is_self_classified(exc)
        message = str(classification.user_message)
        return Failure(
            classification.severity, message, metadata=details, unclassified=is_unclassified
        )

    try:
        numbered = lambda number: call(replace(attempt, number=number))  # noqa: E731
        return await retry_call(role.role, rule, numbered, classify)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        failure = classify(exc)
        if failure.severity is not ErrorSeverity.RETRIABLE:
            raise
        if not isinstance(exc, CapgraphError):
            message = f"failed: {failure.message}"
            raise role.error(message, severity=ErrorSeverity.CRITICAL) from exc
        exc.severity = ErrorSeverity.CRITICAL
        raise


async def generate_structured(
    role: RoleModel,
    schema: type[BaseModel] | dict[str, Any],
    messages: Sequence[BaseMessage],
    *,
    strict: bool = False,
    on_partial: Callable[[dict[str, Any]], None] | None = None,
) -> Any:
    """Call a model and return an answer that matches a schema.

    Args:
        role: Model to call, with its middleware.
        schema: Pydantic class, or a JSON schema with a title.
        messages: Prompt messages.
        strict: True if a JSON schema follows the rules of the provider's strict mode. The schema of
            a pydantic class always does.
        on_partial: Function that receives each partial answer while the model streams it.

    Returns:
        An instance of the class. For a JSON schema, the parsed JSON without validation.

    Raises:
        MalformedAnswerError: The answer does not match the schema.
        ModelError: The call failed, or the model refused. The cause is chained.
    """
    json_schema = schema if isinstance(schema, dict) else schema.model_json_schema()
    # Partial JSON is not readable, so it is kept out of the ``messages`` stream.
    config: Any = {"tags": [TAG_NOSTREAM, role_tag(role.role)], "run_name": role.role}

    async def send(attempt: Attempt) -> Any:
        model = attempt.inputs["model"]
        prompt = attempt.inputs["messages"]
        method = structured_method(model, role.structured)
        if method in ("text", "json_mode"):
            instruction = f"Answer with one JSON object of this schema and nothing else:\n{_to_json(json_schema)}"
            prompt = [*prompt, HumanMessage(instruction)]
        if method == "text":
            return {"raw": await model.ainvoke(prompt, config)}
        # Providers may reject an application's own schema in strict mode.
        is_strict = strict if isinstance(schema, dict) else on_partial is None
        # For a class, the client's default works best. A plan may have open parameter objects.
        has_explicit_method = role.structured != "auto" or isinstance(schema, dict)
        options = _build_structured_options(
            model, method, is_strict, has_explicit_method=has_explicit_method
        )
        if on_partial is not None:
            runnable = model.with_structured_output(json_schema, **options)
            if isinstance(runnable, RunnableSequence):
                # The first element is the bound model, and the rest is the parser.
                chunks = _limit_reply_size(role, runnable.first.astream(prompt, config))
                return {"raw": await _join_partial_chunks(chunks, on_partial)}
        if isinstance(schema, dict) and options.get("method") == "json_schema":
            schema_sent, options = _build_response_format(model, json_schema, is_strict, options)
        else:
            schema_sent = json_schema
        runnable = model.with_structured_output(schema_sent, include_raw=True, **options)
        return await runnable.ainvoke(prompt, config)

    return await call_model(role, messages, send, partial(_parse_structured, role, schema))


def _build_structured_options(
    model: Any, method: StructuredMethod, strict: bool, *, has_explicit_method: bool
) -> dict[str, Any]:
    """Build the ``with_structured_output`` arguments that the model's client supports."""
    accepted = inspect.signature(model.with_structured_output).parameters
    options: dict[str, Any] = {}
    if has_explicit_method or method != "function_calling":
        options["method"] = method
    if strict and method != "json_mode":
        options["strict"] = True
    return {name: value for name, value in options.items() if name in accepted}


def _build_response_format(
    model: Any, schema_dict: dict[str, Any], strict: bool, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Wrap a JSON schema in OpenAI's response format, which OpenAI clients send as it is.

    Other clients get the schema unchanged. ``strict`` is not passed as an option, because
    LangChain would then mark every property as required.
    """
    if not hasattr(model, "openai_api_base"):
        return schema_dict, options
    schema = {
        name: value for name, value in schema_dict.items() if name not in ("title", "description")
    }
    response_format = {
        "name": schema_dict["title"],
        "description": schema_dict.get("description", ""),
        "strict": strict,
        "schema": schema,
    }
    return response_format, {name: value for name, value in options.items() if name != "strict"}


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parse_structured(
    role: RoleModel, schema: type[BaseModel] | dict[str, Any], result: Any
) -> Any:
    """Parse a structured reply, validating it if ``schema`` is a pydantic class.

    Raises:
        MalformedAnswerError: The reply does not match the schema.
        ModelError: The model refused or was cut off.
    """
    if not isinstance(result, Mapping):  # replaced by middleware
        result = {"raw": result}
    raw = result["raw"]
    raise_if_incomplete(role, raw)
    parsed = result.get("parsed")
    if isinstance(schema, dict) and (text := str(raw.text).strip()):
        # LangChain completes truncated JSON, which would turn half a plan into a valid plan.
        with suppress(ValueError):
            parsed = None
            parsed = json.loads(text)
    if parsed is None:
        # Streamed replies, and servers that ignore the schema, return the JSON as plain text.
        # Several values are rejected, because using the first would drop the others.
        values = json_values(_get_content_text(raw))
        parsed = values[0] if len(values) == 1 else None
    if parsed is None or _is_truncated_json(raw):
        raise _create_malformed_error(role, _get_content_text(raw), result.get("parsing_error"))
    text = "" if getattr(raw, "tool_calls", None) else str(getattr(raw, "text", "")).strip()
    if text and not text.startswith(("{", "[")):
        emit(ReplyRepaired(role=role.role, repairs={"fenced_json": 1}))
    if isinstance(schema, dict):
        return parsed
    try:
        return schema.model_validate(parsed)
    except PydanticValidationError as exc:
        raise _create_malformed_error(role, _get_content_text(raw), exc) from exc


def _is_truncated_json(message: Any) -> bool:
    """Return True if a model's reply is truncated JSON.

    LangChain's parser would silently complete such a reply.
    """
    text = str(message.text).strip()
    if not text.startswith("{") or message.tool_calls:
        return False
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return True
    return False


async def _limit_reply_size(role: RoleModel, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the chunks of a model's reply, up to the maximum reply size.

    Raises:
        ModelError: The reply is larger than ``limits.max_reply_bytes``.
    """
    remaining = _get_max_reply_bytes()
    async with aclosing(chunks):  # type: ignore[type-var]
        async for chunk in chunks:
            remaining -= len(_get_content_text(chunk))
            if remaining < 0:
                raise _create_large_reply_error(role)
            yield chunk


async def _join_partial_chunks(
    chunks: AsyncIterator[Any], on_partial: Callable[[dict[str, Any]], None]
) -> AIMessageChunk:
    """Join the chunks of a model's reply, passing each partial object to ``on_partial``."""
    message = AIMessageChunk(content="")
    pending: list[AIMessageChunk] = []
    emitted: Any = None
    length = parsed_length = 0
    async for chunk in chunks:
        pending.append(chunk)
        length += len(_get_content_text(chunk))
        # Joining and parsing a long text for each of its chunks would take quadratic time.
        if length < parsed_length + parsed_length // _PARSED_SHARE:
            continue
        message = add_ai_message_chunks(message, *pending)
        pending, parsed_length = [], length
        text = _get_content_text(message)
        with suppress(ValueError):
            partial_data = parse_partial_json(text) if text else None
            if isinstance(partial_data, dict) and partial_data and partial_data != emitted:
                on_partial(partial_data)
                emitted = partial_data
    return add_ai_message_chunks(message, *pending)


async def stream_text(
    role: RoleModel, messages: Sequence[BaseMessage], *, keep_prompt_tags: bool = False
) -> AIMessage:
    """Call a model for a text answer and emit each chunk as an ``AnswerToken`` event.

    Args:
        role: Model to call, with its middleware.
        messages: Prompt messages.
        keep_prompt_tags: True if the answer may contain prompt tags. Otherwise they are removed
            from the stream and from the message.

    Raises:
        ModelError: The call failed or returned no text. The cause is chained.
    """
    # Chunks are written to the ``messages`` stream below, after prompt tags are removed.
    config: Any = {"tags": [TAG_NOSTREAM, role_tag(role.role)], "run_name": role.role}

    async def send(attempt: Attempt) -> AIMessageChunk | None:
        message: AIMessageChunk | None = None
        echo = None if keep_prompt_tags else EchoFilter()
        try:
            stream = attempt.inputs["model"].astream(attempt.inputs["messages"], config)
            async for chunk in _limit_reply_size(role, stream):
                message = chunk if message is None else message + chunk
                text = str(chunk.text)
                _emit_token(chunk, text if echo is None else echo.feed(text))
            if message is not None and _is_interrupted(message):
                raise ConnectionError("The stream ended before the answer was complete.")
            if echo is not None and message is not None and (remainder := echo.close()):
                _emit_token(AIMessageChunk(content="", id=message.id), remainder)
        except BaseException:
            if message is not None and message.text:
                emit(AnswerToken(text="", resets=True))
            raise
        return message

    return await call_model(role, messages, send, partial(_parse_text, role, keep_prompt_tags))


def _emit_token(chunk: AIMessageChunk, text: str) -> None:
    """Emit an answer chunk as an ``AnswerToken`` event and on LangGraph's ``messages`` stream."""
    if text:
        emit(AnswerToken(text=text))
    write_message(chunk if text == str(chunk.text) else chunk.model_copy(update={"content": text}))


def _is_interrupted(message: BaseMessage) -> bool:
    """Return True if a message has text but lacks the stop reason that its provider sends."""
    provider = message.response_metadata.get("model_provider")
    return (
        provider in _PROVIDERS_WITH_STOP_REASON
        and bool(str(message.text).strip())
        and not _get_stop_reason(message)
    )


def _parse_text(role: RoleModel, keep_prompt_tags: bool, message: AIMessage | None) -> AIMessage:
    """Convert a streamed message to the answer, appending a note if it was cut off."""
    if message is None:
        raise _create_malformed_error(role, "", None)
    raw_text = str(message.text)
    text = raw_text if keep_prompt_tags else remove_echo(raw_text)
    if not text.strip():
        raise_if_incomplete(role, message)
        raise _create_malformed_error(role, raw_text, None)
    if _get_stop_reason(message) in _TRUNCATION_REASONS:
        note = "\n\n(The answer was cut off at the model's length limit.)"
        emit(AnswerToken(text=note))
        text += note
    return AIMessage(content=text, id=message.id, usage_metadata=message.usage_metadata)


@asynccontextmanager
async def _translate_errors(role: RoleModel) -> AsyncIterator[None]:
    """Apply the model call's timeout, and convert exceptions to ``ModelError``."""
    timer = asyncio.timeout(role.timeout_seconds)
    try:
        async with timer:
            yield
    except (CapgraphError, GraphBubbleUp):
        raise
    except (PydanticValidationError, OutputParserException, json.JSONDecodeError) as exc:
        # Some clients validate the schema themselves and raise instead of returning the answer.
        raise _create_malformed_error(role, _shorten(str(exc)), exc) from exc
    except Exception as exc:
        if isinstance(exc, TimeoutError) and timer.expired():
            raise role.error(
                f"did not answer within {role.timeout_seconds:g} s.",
                "Raise limits.step_timeout_seconds (or its TimeoutBehavior), or use a faster model.",
                person_message="The model did not answer in time. Please try again later.",
            ) from exc
        # OpenAI's client raises these errors instead of returning the answer.
        if type(exc).__name__ == "LengthFinishReasonError":
            raise _create_truncation_error(role) from exc
        if type(exc).__name__ == "ContentFilterFinishReasonError":
            raise _create_refusal_error(role, "content_filter") from exc
        problem = f"failed: {_shorten(str(exc) or type(exc).__name__)}"
        raise role.error(problem, _FIX_BY_CATEGORY.get(diagnose(exc).category)) from exc


def _create_malformed_error(
    role: RoleModel, text: str, cause: BaseException | None
) -> MalformedAnswerError:
    """Create the error for a model reply that does not match the expected format."""
    answer = repr(_shorten(text, 200)) if text.strip() else "nothing"
    problem = (
        f"The model {role.name!r} ({role.role}) answered {answer}, which does not match the"
        " expected format"
    )
    if isinstance(cause, PydanticValidationError):
        problem += f": {_shorten('; '.join(validation_messages(cause)))}"
    error = MalformedAnswerError(
        f"{problem}.",
        fix=malformed_reply_fix(text),
        text=text,
        person_message=f"The model's reply did not have the expected format. {REWORD_HINT}",
    )
    error.__cause__ = cause
    return error


def malformed_reply_fix(text: str) -> str:
    """Return the ``Fix:`` sentence for a model reply that cannot be parsed.

    >>> malformed_reply_fix("<!DOCTYPE html><title>Proxy</title>")
    "Check the model's base_url, because it returns a web page."
    """
    start = text.strip().lower()
    if not start:
        return (
            "Raise max_tokens in the model's options, or check the server's chat template,"
            " because the reply is empty."
        )
    if start.startswith(("<!doctype", "<html", "<head", "<?xml")):
        return "Check the model's base_url, because it returns a web page."
    if start.removeprefix("```json").strip().startswith("{") and not start.endswith(("}", "```")):
        return "Raise max_tokens in the model's options, because the reply is incomplete."
    return "Use a model that supports structured output."


def raise_if_incomplete(role: RoleModel, message: Any) -> None:
    """Raise an error if the model refused to answer or reached its length limit.

    Raises:
        ModelRefusedError: The model or its provider refused.
        TruncatedAnswerError: The answer reached the model's length limit.
    """
    refusal = message.additional_kwargs.get("refusal")
    reason = _get_stop_reason(message)
    feedback = (message.response_metadata or {}).get("prompt_feedback") or {}
    if blocked := feedback.get("block_reason"):
        refusal = f"the prompt was blocked ({getattr(blocked, 'value', blocked)})"
    if refusal or reason in _REFUSAL_REASONS:
        raise _create_refusal_error(role, str(refusal or reason))
    if reason in _TRUNCATION_REASONS:
        raise _create_truncation_error(role)


def _create_refusal_error(role: RoleModel, reason: str) -> ModelError:
    return role.error(
        f"refused to answer: {_shorten(reason).rstrip('.')}.",
        "Rephrase the request, or use another model.",
        ErrorSeverity.CRITICAL,
        ModelRefusedError,
        person_message=f"The model refused to answer. {REWORD_HINT}",
    )


def _create_truncation_error(role: RoleModel) -> ModelError:
    return role.error(
        "reached its length limit before the answer was complete.",
        "Raise max_tokens in the model's options, or shorten the request.",
        ErrorSeverity.CRITICAL,
        TruncatedAnswerError,
        person_message="The model's reply was too long and was cut off. Please ask for less.",
    )


def _get_max_reply_bytes() -> int:
    services = run_context().services
    limits: Limits = services[-1].limits if services else Limits()
    return limits.max_reply_bytes


def _create_large_reply_error(role: RoleModel) -> ModelError:
    return role.error(
        "sent a reply that is larger than the limit.",
        "Set max_tokens in the model's options, or raise limits.max_reply_bytes.",
        ErrorSeverity.CRITICAL,
        TruncatedAnswerError,
        person_message="The model's reply was too long. Please ask for less.",
    )


def _get_stop_reason(message: Any) -> str:
    metadata = message.response_metadata or {}
    return str(metadata.get("finish_reason") or metadata.get("stop_reason") or "").lower()


def _get_content_text(message: Any) -> str:
    """Return a message's text, or the arguments of its tool calls if it has no text."""
    pieces = getattr(message, "tool_call_chunks", None)
    calls = pieces or [*message.tool_calls, *message.invalid_tool_calls]
    return str(message.text) or "\n".join(str(call["args"]) for call in calls)


def _shorten(text: str, max_characters: int = 500) -> str:
    """Shorten text to a single line of limited length, with secrets masked."""
    cleaned = escape_control_characters(" ".join(mask_secrets(text, 4 * max_characters).split()))
    return cleaned if len(cleaned) <= max_characters else f"{cleaned[: max_characters - 1]}…"
