"""LangChain callback that counts, limits, and reports the model calls of a turn.

LangChain notifies callbacks before each call, and passes a run's callbacks to nested runs. One
handler therefore covers the framework's calls, calls through ``self.chat_model()``, and calls of
nested agents and graphs. It does not cover calls with their own ``callbacks`` or calls that bypass
LangChain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langgraph.errors import GraphBubbleUp

import capgraph.telemetry as telemetry
from capgraph.base import LimitError
from capgraph.base.turn_budget import TurnBudget
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.configs.streaming import stream_writer
from capgraph.telemetry.audit import current_audit, digest, record_later
from capgraph.telemetry.budget_callback import (
    estimate_call,
    estimate_tokens,
    record_model_usage,
    reported_usage,
    reserve_from_thread,
    settle_failed_call,
)

_ROLE_PREFIX = "role:"
_OWN_IDS = ("lc_run-", "run-")
"""Prefixes of message IDs that LangChain created instead of the provider."""
_DEFAULT_ROLE = "capability"


@dataclass(slots=True)
class _Turn:
    """Turn in progress with its call counter and, if nested, the turn that contains it."""

    budget: TurnBudget
    limit: int
    write: Callable[[Any], None] | None
    outer: _Turn | None
    calls: dict[UUID, _Call] = field(default_factory=dict)  # calls of models and tools in progress


@dataclass(frozen=True, slots=True)
class _Call:
    """Model or tool call in progress."""

    name: str
    provider: str = ""
    prompt: str | None = None  # digest, if the run has an audit
    prompt_tokens: int = 0  # an estimate
    began: float = field(default_factory=time.perf_counter)

    def seconds(self) -> float:
        return time.perf_counter() - self.began


_lock = Lock()  # calls come from several threads; the guarded code does not block


def count_model_calls(budget: TurnBudget, max_model_calls: int) -> AbstractContextManager[None]:
    """Context manager that counts model calls made inside the block.

    Calls made by tasks and threads that start inside the block are included. If a capability
    runs a nested turn, its calls count for both turns. Usage is reported on the stream of the
    outermost turn, because users receive only that stream.

    Args:
        budget: Counters for the turn.
        max_model_calls: Maximum number of calls in the turn, including those already counted.

    >>> budget = TurnBudget()
    >>> with count_model_calls(budget, max_model_calls=100):
    ...     pass  # a model call with USAGE_CALLBACK among its callbacks
    """
    return override_run_context(
        model_calls=_Turn(budget, max_model_calls, stream_writer(), _get_turn())
    )


def current_turn_budget() -> TurnBudget | None:
    """Return the counters of the innermost running turn, or ``None`` outside a turn."""
    turn = _get_turn()
    return turn.budget if turn is not None else None


def add_remote_model_calls(calls: int) -> None:
    """Add model calls made by a different process to the counters of the current turn.

    The calls also count for all turns that contain the current turn.
    """
    with _lock:
        turn = _get_turn()
        while turn is not None:
            turn.budget.model_calls += calls
            turn = turn.outer


def role_tag(role: str) -> str:
    """Return the LangChain tag that identifies the role of a model call.

    >>> role_tag("planning")
    'role:planning'
    """
    return _ROLE_PREFIX + role


class UsageCallback(BaseCallbackHandler):
    """LangChain callback that counts model calls, enforces the limit, and reports usage.

    The callback is stateless, because :func:`count_model_calls` provides the counters. Calls
    outside a turn are not limited, and are reported on the stream of the current run, if any.
    """

    # Synchronous, because LangChain drops errors of asynchronous handlers in synchronous calls.
    raise_error = True
    run_inline = True
    # LangChain treats every node and step as a chain; ignoring them is faster.
    ignore_chain = True

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **callback_kwargs: Any,
    ) -> None:
        """Count a chat model call before it is sent, and refuse the call if a limit is reached.

        Raises:
            LimitError: The turn has reached its maximum number of calls, or a budget is exceeded.
        """
        ls_metadata = metadata or {}
        name = ls_metadata.get("ls_model_name") or (serialized or {}).get("name")
        provider = str(ls_metadata.get("ls_provider") or "")
        prompt = None
        if current_audit() is not None:
            prompt = digest([[m.type, m.content] for estimate in messages for m in estimate])
        estimate = estimate_call(
            run_id, serialized, messages, {**callback_kwargs, "metadata": metadata}
        )
        _count(run_id, _Call(str(name or ""), provider, prompt, estimate.prompt_tokens))
        reserve_from_thread(run_id, serialized, messages, {**callback_kwargs, "metadata": metadata})

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **callback_kwargs: Any,
    ) -> None:
        """Count a call to a text-completion model. See :meth:`on_chat_model_start`."""
        self.on_chat_model_start(
            serialized, [prompts], run_id=run_id, metadata=metadata, **callback_kwargs
        )

    def on_llm_end(
        self, response: LLMResult, *, run_id: UUID, tags: list[str] | None = None, **_: Any
    ) -> None:
        """Report the token usage of a finished model call."""
        turn = _get_turn()
        # Several handlers may be notified of a call; the first one reports it.
        if turn is not None and run_id not in turn.calls:
            return
        call = _pop_call(run_id)
        if call is not None and call.prompt is not None:
            answer = digest([g.text for row in response.generations for g in row])
            record_later(
                "model", role=_find_role(tags), model=call.name, prompt=call.prompt, answer=answer
            )
        model, used = reported_usage(response, call.name if call is not None else "")
        record_model_usage(run_id, model, _find_role(tags), used)
        if used is not None:
            usage = telemetry.Usage(
                role=_find_role(tags),
                model=model,
                input_tokens=used.prompt_tokens,
                output_tokens=used.output_tokens,
                cached_tokens=used.cache_read_tokens,
            )
            _report_usage(usage, call, response)
        elif call is not None:
            usage = telemetry.Usage(role=_find_role(tags), model=model, estimated=True)
            usage.input_tokens = call.prompt_tokens
            usage.output_tokens = sum(
                estimate_tokens(item.text) for row in response.generations for item in row
            )
            _report_usage(usage, call, response)

    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, tags: list[str] | None = None, **_: Any
    ) -> None:
        """Report a failed model call, which still counts toward the limit."""
        settle_failed_call(run_id)
        if (call := _pop_call(run_id)) is not None:
            kind = type(error).__name__
            if call.prompt is not None:
                fields = {"role": _find_role(tags), "model": call.name, "prompt": call.prompt}
                record_later("model", **fields, error=kind)
            _report(_create_failure_event(call, tags, kind))

    def on_tool_start(
        self, serialized: dict[str, Any] | None, input_str: str, *, run_id: UUID, **_: Any
    ) -> None:
        """Record the start of a tool call in order to measure its duration."""
        if (turn := _get_turn()) is not None:
            turn.calls[run_id] = _Call(str((serialized or {}).get("name") or "tool"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Report a finished tool call and its duration."""
        if (call := _pop_call(run_id)) is not None:
            _report(telemetry.ToolCalled(name=call.name, duration=call.seconds()))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Report a failed tool call. Interrupts are not reported as failures."""
        call = _pop_call(run_id)
        if call is not None and not isinstance(error, GraphBubbleUp):
            fields = {"duration": call.seconds(), "error": type(error).__name__}
            _report(telemetry.ToolCalled(name=call.name, **fields))


USAGE_CALLBACK = UsageCallback()


def _get_turn() -> _Turn | None:
    turn: _Turn | None = run_context().model_calls
    return turn


def _count(run_id: UUID, call: _Call) -> None:
    with _lock:
        innermost = _get_turn()
        if innermost is None or run_id in innermost.calls:
            return
        turn: _Turn | None = innermost
        while turn is not None:
            if turn.budget.model_calls >= turn.limit:
                raise LimitError(
                    f"The turn has reached its limit of {turn.budget.model_calls} model calls.",
                    fix="Raise limits.max_model_calls, or split the request.",
                )
            turn = turn.outer
        turn = innermost
        while turn is not None:
            turn.budget.model_calls += 1
            turn = turn.outer
        innermost.calls[run_id] = call


def _pop_call(run_id: UUID) -> _Call | None:
    turn = _get_turn()
    return turn.calls.pop(run_id, None) if turn is not None else None


def _create_failure_event(call: _Call, tags: list[str] | None, error: str) -> telemetry.ModelCalled:
    fields = {"role": _find_role(tags), "model": call.name, "provider": call.provider}
    return telemetry.ModelCalled(**fields, duration=call.seconds(), error=error)


def _report_usage(usage: telemetry.Usage, call: _Call | None, response: LLMResult) -> None:
    """Report the usage of a model call, with details from the call and its response."""
    if call is not None:
        usage.duration, usage.provider = call.seconds(), call.provider
        usage.request_model = call.name if call.name != usage.model else None
    for generation in (item for row in response.generations for item in row):
        message = getattr(generation, "message", None)
        metadata = {
            **(generation.generation_info or {}),
            **(message.response_metadata if message is not None else {}),
        }
        name = metadata.get("id") or getattr(message, "id", None)
        if usage.response_id is None and name and not str(name).startswith(_OWN_IDS):
            usage.response_id = str(name)
        reason = metadata.get("finish_reason") or metadata.get("stop_reason")
        if reason is not None:
            usage.finish_reasons = [*(usage.finish_reasons or ()), str(reason)]
    _report(usage)


def _report(event: telemetry.Usage | telemetry.ModelCalled | telemetry.ToolCalled) -> None:
    turn = _get_turn()
    while turn is not None and turn.outer is not None:
        turn = turn.outer
    write = turn.write if turn is not None else stream_writer()
    if write is not None:
        write(event.model_dump(exclude_none=True))


def _find_role(tags: list[str] | None) -> str:
    found = (tag.removeprefix(_ROLE_PREFIX) for tag in tags or () if tag.startswith(_ROLE_PREFIX))
    return next(found, _DEFAULT_ROLE)
