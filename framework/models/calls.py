"""One call of a chat model: what may stand around it, its answer, its errors with a severity."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
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
    Middleware,
    RetryRule,
    TimeLimit,
)
from capgraph.configs.logger import escape_control_characters, mask_secrets
from capgraph.configs.settings import StructuredMethod
from capgraph.helpers.clock import use_clock
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
from capgraph.pipeline.middleware import is_rule, last_of_type, sort_middleware
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
REWORD_HINT = "Please ask in other words."
_PROVIDERS_WITH_STOP_REASON = frozenset({"anthropic", "google_genai"})
_FIX_BY_CATEGORY = {
    "rate_limit": "Wait, or ask the provider for a higher rate.",
    "overloaded": "Try again later, or use another model.",
    "timeout": "Try again, or raise timeout_seconds of the model.",
    "network": "Check the network and the model's base_url.",
    "authentication": "Check the API key and its permissions.",
    "context_too_long": "Ask for less at once, or use a longer context (llama-server: -c;"
    " Ollama: OLLAMA_CONTEXT_LENGTH).",
    "bad_input": "Check the model's name and options.",
}


async def call_model(
    role: RoleModel,
    messages: Sequence[BaseMessage],
    send: Callable[[Attempt], Awaitable[Any]],
    parse: Callable[[Any], ResultT],
) -> ResultT:
    """Make one call, through what stands around the role's calls.

    The stages are those of a step: from ``observe`` to ``finalize`` what is inside gives the answer
    as it was read, below what the model returned. Without a ``RetryBehavior`` nothing here tries
    again: who called classifies the error, and the router decides.

    Args:
        role: The model.
        messages: The prompt.
        send: Sends the attempt, whose inputs are ``model`` and ``messages``.
        parse: Checks what the model returned and gives the answer.

    Raises:
        ModelError: The call failed; the cause is chained.
        LimitError: The turn has made as many model calls as it may.
    """
    limit: TimeLimit | None = last_of_type(role.behaviors, TimeLimit)
    seconds = limit.time_limit if limit is not None else role.timeout_seconds

    async def sent(attempt: Attempt) -> Any:
        used = replace(role, model=attempt.inputs["model"], timeout_seconds=seconds)
        async with _translate_errors(used):
            with emit_progress(used):
                return await send(attempt)

    async def called(attempt: Attempt) -> Any:
        async with _translate_errors(replace(role, timeout_seconds=None)):  # of what stands around
            return await call_with_shorter_prompt(role, _wrap_stages(role, _CALL, sent), attempt)

    async def settled(attempt: Attempt) -> ResultT:
        try:
            return parse(await _wrap_stages(role, _BELOW, called)(attempt))
        except CapgraphError as exc:
            record_refusal(exc)  # something may stand in for it
            raise

    once = _wrap_stages(role, _SETTLE, settled)
    rule: RetryRule | None = last_of_type(role.behaviors, RetryRule)
    tried = once if rule is None else partial(_call_with_retries, role, rule, once)
    if role.fallbacks:
        tried = partial(call_with_fallbacks, role, tried)
    inner = _wrap_stages(role, _ABOVE, tried)
    if hooked := [
        item for item in role.behaviors if isinstance(item, Behavior) and not _stage_of(item)
    ]:
        inner = partial(_call_with_hooks, hooked, inner)

    given = {"model": role.model, "messages": list(messages)}
    attempt = Attempt(role.role, key=role.role, objective=role.role, inputs=given, kind="model")
    with use_clock(role.clock):
        answer: ResultT = await _wrap_stages(role, _OBSERVE, inner)(attempt)
        return answer


_OBSERVE, _ABOVE, _SETTLE, _BELOW, _CALL = (
    STAGES[:1],
    STAGES[1 : STAGES.index("finalize")],
    ("finalize",),
    STAGES[STAGES.index("finalize") + 1 : -1],
    STAGES[-1:],
)
_CallFunction = Callable[[Attempt], Awaitable[Any]]


def _stage_of(item: Any) -> str | None:
    return getattr(item, "stage", None)


def _wrap_stages(role: RoleModel, stages: Sequence[str], call: _CallFunction) -> _CallFunction:
    """Return ``call`` with what stands around it at some stages, the first one outermost."""
    for stage in reversed(stages):
        own = [item for item in role.behaviors if _stage_of(item) == stage and not is_rule(item)]
        for middleware in reversed(sort_middleware(own)):
            call = partial(_call_middleware, middleware, call)
    return call


async def _call_middleware(middleware: Middleware, call: _CallFunction, attempt: Attempt) -> Any:
    async def call_next(changed: Attempt = attempt) -> Any:
        return await call(changed)

    return await middleware.wrap_step(attempt, call_next)


async def _call_with_hooks(
    behaviors: Sequence[Behavior], call: _CallFunction, attempt: Attempt
) -> Any:
    name = f"{attempt.capability}/{uuid4().hex[:12]}"
    context = BehaviorContext(attempt.capability, attempt.objective, execution_id=name)
    return await hooks.call_with_hooks(behaviors, context, partial(call, attempt))


async def _call_with_retries(
    role: RoleModel, rule: RetryRule, call: _CallFunction, attempt: Attempt
) -> Any:
    """Try a call as often as a rule says; who called is told not to try again."""

    def read(exc: Exception) -> Failure:
        found = classify_exception(exc, role.role)
        details = found.metadata or {}
        nobody_knows = details.get("category") == "unknown" and not is_self_classified(exc)
        told = str(found.user_message)
        return Failure(found.severity, told, metadata=details, unclassified=nobody_knows)

    try:
        numbered = lambda number: call(replace(attempt, number=number))  # noqa: E731
        return await retry_call(role.role, rule, numbered, read)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        failure = read(exc)
        if failure.severity is not ErrorSeverity.RETRIABLE:
            raise
        if not isinstance(exc, CapgraphError):
            told = f"failed: {failure.message}"
            raise role.error(told, severity=ErrorSeverity.CRITICAL) from exc
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
    """Ask for an answer of a given form.

    Args:
        role: The model.
        schema: A pydantic class, or a JSON schema with a title.
        messages: The prompt.
        strict: True if a JSON schema follows the rules of the provider's strict mode. A pydantic
            class always does.
        on_partial: Takes up what there is of the answer so far, when the model streams it.

    Returns:
        An instance of the class; for a JSON schema plain data that nobody has checked.

    Raises:
        MalformedAnswerError: The answer is not of that form.
        ModelError: The call failed or the model refused; the cause is chained.
    """
    form = schema if isinstance(schema, dict) else schema.model_json_schema()
    # Half an answer in JSON is nothing to show, so it stays out of the ``messages`` stream.
    config: Any = {"tags": [TAG_NOSTREAM, role_tag(role.role)], "run_name": role.role}

    async def send(attempt: Attempt) -> Any:
        model = attempt.inputs["model"]
        asked = attempt.inputs["messages"]
        method = structured_method(model, role.structured)
        if method in ("text", "json_mode"):
            told = f"Answer with one JSON object of this schema and nothing else:\n{_json(form)}"
            asked = [*asked, HumanMessage(told)]
        if method == "text":
            return {"raw": await model.ainvoke(asked, config)}
        # A form of the application's may be one that a provider does not hold a model to.
        is_strict = strict if isinstance(schema, dict) else on_partial is None
        # The client's own default is best for a class; parameters of a plan may be an open object.
        chosen = role.structured != "auto" or isinstance(schema, dict)
        options = _structured_options(model, method, is_strict, has_explicit_method=chosen)
        if on_partial is not None:
            runnable = model.with_structured_output(form, **options)
            if isinstance(runnable, RunnableSequence):
                # What comes before the parser is the model, made to keep the form.
                return {"raw": await _stream_partials(runnable.first, asked, config, on_partial)}
        if isinstance(schema, dict) and options.get("method") == "json_schema":
            form_sent, options = _response_format(model, form, is_strict, options)
        else:
            form_sent = form
        runnable = model.with_structured_output(form_sent, include_raw=True, **options)
        return await runnable.ainvoke(asked, config)

    return await call_model(role, messages, send, partial(_parse_structured, role, schema))


def _structured_options(
    model: Any, method: StructuredMethod, strict: bool, *, has_explicit_method: bool
) -> dict[str, Any]:
    """Return the arguments of ``with_structured_output``, as far as the client knows them."""
    known = inspect.signature(model.with_structured_output).parameters
    wished: dict[str, Any] = {}
    if has_explicit_method or method != "function_calling":
        wished["method"] = method
    if strict and method != "json_mode":
        wished["strict"] = True
    return {name: value for name, value in wished.items() if name in known}


def _response_format(
    model: Any, schema_dict: dict[str, Any], strict: bool, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a JSON schema as OpenAI's clients send it unchanged, with ``strict`` written out.

    Given ``strict``, LangChain requires all properties of a schema that it converts itself.
    """
    if not hasattr(model, "openai_api_base"):
        return schema_dict, options
    schema = {
        name: value for name, value in schema_dict.items() if name not in ("title", "description")
    }
    sent = {
        "name": schema_dict["title"],
        "description": schema_dict.get("description", ""),
        "strict": strict,
        "schema": schema,
    }
    return sent, {name: value for name, value in options.items() if name != "strict"}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parse_structured(
    role: RoleModel, schema: type[BaseModel] | dict[str, Any], result: Any
) -> Any:
    if not isinstance(result, Mapping):  # put in its place by what stands around the call
        result = {"raw": result}
    raw = result["raw"]
    raise_if_incomplete(role, raw)
    parsed = result.get("parsed")
    if isinstance(schema, dict) and (text := str(raw.text).strip()):
        # LangChain completes JSON that breaks off: half a plan would come out as a plan.
        with suppress(ValueError):
            parsed = None
            parsed = json.loads(text)
    if parsed is None:
        # In parts, and from servers that ignore the form, the JSON comes as it was written.
        # One value only: the first of several would be half of what the model wrote.
        values = json_values(_content_text(raw))
        parsed = values[0] if len(values) == 1 else None
    if parsed is None or _is_truncated_json(raw):
        raise _malformed_error(role, _content_text(raw), result.get("parsing_error"))
    text = "" if getattr(raw, "tool_calls", None) else str(getattr(raw, "text", "")).strip()
    if text and not text.startswith(("{", "[")):
        emit(ReplyRepaired(role=role.role, repairs={"fenced_json": 1}))
    if isinstance(schema, dict):
        return parsed
    try:
        return schema.model_validate(parsed)
    except PydanticValidationError as exc:
        raise _malformed_error(role, _content_text(raw), exc) from exc


def _is_truncated_json(message: Any) -> bool:
    """Return True if a reply is JSON without an end, which LangChain's parser would complete."""
    text = str(message.text).strip()
    if not text.startswith("{") or message.tool_calls:
        return False
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return True
    return False


async def _stream_partials(
    model: Any, messages: Any, config: Any, on_partial: Callable[[dict[str, Any]], None]
) -> AIMessageChunk:
    whole = AIMessageChunk(content="")
    shown: Any = None
    async for chunk in model.astream(messages, config):
        whole += chunk
        with suppress(ValueError):
            found = parse_partial_json(_content_text(whole)) if _content_text(whole) else None
            if isinstance(found, dict) and found and found != shown:
                on_partial(found)
                shown = found
    return whole


async def stream_text(
    role: RoleModel, messages: Sequence[BaseMessage], *, keep_prompt_tags: bool = False
) -> AIMessage:
    """Ask for text; each piece is emitted as ``AnswerToken`` when it comes.

    Args:
        role: The model.
        messages: The prompt.
        keep_prompt_tags: True if the marks of a prompt may belong to the answer. Else they are
            removed, from the stream as from the message.

    Raises:
        ModelError: The call failed, or brought no text; the cause is chained.
    """
    # The pieces go to the ``messages`` stream from here, after the marks are removed.
    config: Any = {"tags": [TAG_NOSTREAM, role_tag(role.role)], "run_name": role.role}

    async def send(attempt: Attempt) -> AIMessageChunk | None:
        whole: AIMessageChunk | None = None
        echo = None if keep_prompt_tags else EchoFilter()
        try:
            async for chunk in attempt.inputs["model"].astream(attempt.inputs["messages"], config):
                whole = chunk if whole is None else whole + chunk
                text = str(chunk.text)
                _emit_token(chunk, text if echo is None else echo.feed(text))
            if whole is not None and _is_interrupted(whole):
                raise ConnectionError("The stream ended before the answer did.")
            if echo is not None and whole is not None and (rest := echo.close()):
                _emit_token(AIMessageChunk(content="", id=whole.id), rest)
        except BaseException:
            if whole is not None and whole.text:
                emit(AnswerToken(text="", resets=True))
            raise
        return whole

    return await call_model(role, messages, send, partial(_parse_text, role, keep_prompt_tags))


def _emit_token(chunk: AIMessageChunk, text: str) -> None:
    """Emit a piece of the answer, and write it to the ``messages`` stream."""
    if text:
        emit(AnswerToken(text=text))
    write_message(chunk if text == str(chunk.text) else chunk.model_copy(update={"content": text}))


def _is_interrupted(message: BaseMessage) -> bool:
    """Tell whether text has no end, where the provider is one that always says why it stopped."""
    provider = message.response_metadata.get("model_provider")
    return (
        provider in _PROVIDERS_WITH_STOP_REASON
        and bool(str(message.text).strip())
        and not _stop_reason(message)
    )


def _parse_text(role: RoleModel, keep_prompt_tags: bool, message: AIMessage | None) -> AIMessage:
    if message is None:
        raise _malformed_error(role, "", None)
    written = str(message.text)
    text = written if keep_prompt_tags else remove_echo(written)
    if not text.strip():
        raise_if_incomplete(role, message)
        raise _malformed_error(role, written, None)
    if _stop_reason(message) in _TRUNCATION_REASONS:
        note = "\n\n(The answer was cut off at the model's length limit.)"
        emit(AnswerToken(text=note))
        text += note
    return AIMessage(content=text, id=message.id, usage_metadata=message.usage_metadata)


@asynccontextmanager
async def _translate_errors(role: RoleModel) -> AsyncIterator[None]:
    timer = asyncio.timeout(role.timeout_seconds)
    try:
        async with timer:
            yield
    except (CapgraphError, GraphBubbleUp):
        raise
    except (PydanticValidationError, OutputParserException, json.JSONDecodeError) as exc:
        # Some clients check the form themselves and raise instead of returning the answer.
        raise _malformed_error(role, _shorten(str(exc)), exc) from exc
    except Exception as exc:
        if isinstance(exc, TimeoutError) and timer.expired():
            raise role.error(
                f"gave no answer within {role.timeout_seconds:g} s.",
                "Raise limits.step_timeout_seconds (or its TimeoutBehavior), or use a faster model.",
                person_message="The model did not answer in time. Please try again later.",
            ) from exc
        # OpenAI's client raises these instead of returning an answer of the form.
        if type(exc).__name__ == "LengthFinishReasonError":
            raise _truncation_error(role) from exc
        if type(exc).__name__ == "ContentFilterFinishReasonError":
            raise _refusal_error(role, "content_filter") from exc
        told = f"failed: {_shorten(str(exc) or type(exc).__name__)}"
        raise role.error(told, _FIX_BY_CATEGORY.get(diagnose(exc).category)) from exc


def _malformed_error(
    role: RoleModel, text: str, cause: BaseException | None
) -> MalformedAnswerError:
    told = f"{_shorten(text, 200)!r}" if text.strip() else "nothing"
    told = f"The model {role.name!r} ({role.role}) answered {told}, which is not the form asked for"
    if isinstance(cause, PydanticValidationError):
        told += f": {_shorten('; '.join(validation_messages(cause)))}"
    error = MalformedAnswerError(
        f"{told}.",
        fix=malformed_reply_fix(text),
        text=text,
        person_message=f"The model's reply did not have the expected form. {REWORD_HINT}",
    )
    error.__cause__ = cause
    return error


def malformed_reply_fix(text: str) -> str:
    """Return what an operator can do about a reply that cannot be read.

    >>> malformed_reply_fix("<!DOCTYPE html><title>Proxy</title>")
    "Check the model's base_url: it answers with a web page."
    """
    start = text.strip().lower()
    if not start:
        return (
            "Raise max_tokens in the model's options, or check the server's chat template: the reply"
            " was empty."
        )
    if start.startswith(("<!doctype", "<html", "<head", "<?xml")):
        return "Check the model's base_url: it answers with a web page."
    if start.removeprefix("```json").strip().startswith("{") and not start.endswith(("}", "```")):
        return "Raise max_tokens in the model's options: the reply breaks off."
    return "Use a model that supports structured output."


def raise_if_incomplete(role: RoleModel, message: Any) -> None:
    """Raise for an answer that the model refused or could not finish."""
    refusal = message.additional_kwargs.get("refusal")
    reason = _stop_reason(message)
    feedback = (message.response_metadata or {}).get("prompt_feedback") or {}
    if blocked := feedback.get("block_reason"):
        refusal = f"the prompt was blocked, {getattr(blocked, 'value', blocked)}"
    if refusal or reason in _REFUSAL_REASONS:
        raise _refusal_error(role, str(refusal or reason))
    if reason in _TRUNCATION_REASONS:
        raise _truncation_error(role)


def _refusal_error(role: RoleModel, reason: str) -> ModelError:
    return role.error(
        f"refused: {_shorten(reason)}.",
        "Ask in other words, or use another model.",
        ErrorSeverity.CRITICAL,
        ModelRefusedError,
        person_message=f"The model refused to do this. {REWORD_HINT}",
    )


def _truncation_error(role: RoleModel) -> ModelError:
    return role.error(
        "was cut off at its length limit.",
        "Raise max_tokens in the model's options, or ask for less at once.",
        ErrorSeverity.CRITICAL,
        TruncatedAnswerError,
        person_message="The model's reply was too long and was cut off. Please ask for less at once.",
    )


def _stop_reason(message: Any) -> str:
    metadata = message.response_metadata or {}
    return str(metadata.get("finish_reason") or metadata.get("stop_reason") or "").lower()


def _content_text(message: Any) -> str:
    """Return what a message says, be it as text or as the arguments of a call."""
    pieces = getattr(message, "tool_call_chunks", None)
    calls = pieces or [*message.tool_calls, *message.invalid_tool_calls]
    return str(message.text) or "\n".join(str(call["args"]) for call in calls)


def _shorten(text: str, max_characters: int = 500) -> str:
    shown = escape_control_characters(" ".join(mask_secrets(text, 4 * max_characters).split()))
    return shown if len(shown) <= max_characters else f"{shown[: max_characters - 1]}…"
