"""Every call of a chat model in a turn is seen here: counted, bounded, its tokens reported.

LangChain tells callbacks of a call before it is sent, and hands a run's callbacks on to what is
called inside it. So one handler sees the framework's own calls, those of a capability with
``self.chat_model()``, and those of an agent or a graph nested in one. It does not see a call that
is given ``callbacks`` of its own, or one that goes past LangChain.
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

_ROLE = "role:"
_OTHER = "capability"


@dataclass(slots=True)
class _Turn:
    """A turn whose calls are counted, and the one that it runs in."""

    budget: TurnBudget
    limit: int
    write: Callable[[Any], None] | None
    outer: _Turn | None
    calls: dict[UUID, _Call] = field(default_factory=dict)  # of models and tools, under way


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is under way."""

    name: str
    provider: str = ""
    prompt: str | None = None  # its digest, where an audit is kept
    prompt_tokens: int = 0  # an estimate
    began: float = field(default_factory=time.perf_counter)

    def seconds(self) -> float:
        return time.perf_counter() - self.began


_lock = Lock()  # calls come from several threads; what it guards takes no time


def count_model_calls(budget: TurnBudget, max_model_calls: int) -> AbstractContextManager[None]:
    """Count the model calls of what runs inside, tasks and threads that it starts included.

    A turn inside another's capability counts for both. Usage is reported on the stream of the
    outermost, which is the one that people read.

    Args:
        budget: Where the calls are counted.
        max_model_calls: The most calls of the turn, those counted in ``budget`` included.

    >>> budget = TurnBudget()
    >>> with count_model_calls(budget, max_model_calls=100):
    ...     pass  # a model call with USAGE_CALLBACK among its callbacks
    """
    return override_run_context(
        model_calls=_Turn(budget, max_model_calls, stream_writer(), _turn())
    )


def current_turn_budget() -> TurnBudget | None:
    """Return where the calls of the innermost running turn are counted; ``None`` outside of one."""
    turn = _turn()
    return turn.budget if turn is not None else None


def add_remote_model_calls(calls: int) -> None:
    """Count calls that were made for the running turn in another process."""
    with _lock:
        turn = _turn()
        while turn is not None:
            turn.budget.model_calls += calls
            turn = turn.outer


def role_tag(role: str) -> str:
    """Return the tag by which a call says what it is for.

    >>> role_tag("planning")
    'role:planning'
    """
    return _ROLE + role


class UsageCallback(BaseCallbackHandler):
    """Counts a turn's model calls, refuses those past the bound, reports what the others cost.

    It holds nothing: the counters are those of :func:`counting`. Calls outside of any turn are
    reported to the stream of the run, if there is one, and not bounded.
    """

    # Not asynchronous: LangChain drops the errors of asynchronous handlers in synchronous calls.
    raise_error = True
    run_inline = True
    # Every node and step is a chain to LangChain; it is quicker for not being told of them.
    ignore_chain = True

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Count a call before it is sent.

        Raises:
            LimitError: The turn has made as many calls as it may, or a budget does not hold it.
        """
        known = metadata or {}
        name = known.get("ls_model_name") or (serialized or {}).get("name")
        provider = str(known.get("ls_provider") or "")
        prompt = None
        if current_audit() is not None:
            prompt = digest([[m.type, m.content] for asked in messages for m in asked])
        asked = estimate_call(run_id, serialized, messages, {**more, "metadata": metadata})
        _count(run_id, _Call(str(name or ""), provider, prompt, asked.prompt_tokens))
        reserve_from_thread(run_id, serialized, messages, {**more, "metadata": metadata})

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Count a call of a model without messages; see :meth:`on_chat_model_start`."""
        self.on_chat_model_start(serialized, [prompts], run_id=run_id, metadata=metadata, **more)

    def on_llm_end(
        self, response: LLMResult, *, run_id: UUID, tags: list[str] | None = None, **_: Any
    ) -> None:
        """Report the tokens of a call."""
        turn = _turn()
        # Several handlers may be told of a call: the first to come reports it.
        if turn is not None and run_id not in turn.calls:
            return
        call = _done(run_id)
        if call is not None and call.prompt is not None:
            answer = digest([g.text for row in response.generations for g in row])
            record_later(
                "model", role=_role(tags), model=call.name, prompt=call.prompt, answer=answer
            )
        model, used = reported_usage(response, call.name if call is not None else "")
        record_model_usage(run_id, model, _role(tags), used)
        if used is not None:
            usage = telemetry.Usage(
                role=_role(tags),
                model=model,
                input_tokens=used.prompt_tokens,
                output_tokens=used.output_tokens,
                cached_tokens=used.cache_read_tokens,
            )
            if call is not None:
                usage.duration, usage.provider = call.seconds(), call.provider
            _report(usage)
        elif call is not None:
            usage = telemetry.Usage(role=_role(tags), model=model, estimated=True)
            usage.input_tokens = call.prompt_tokens
            usage.output_tokens = sum(
                estimate_tokens(item.text) for row in response.generations for item in row
            )
            usage.duration, usage.provider = call.seconds(), call.provider
            _report(usage)

    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, tags: list[str] | None = None, **_: Any
    ) -> None:
        """Report a call that failed; it stays counted."""
        settle_failed_call(run_id)
        if (call := _done(run_id)) is not None:
            kind = type(error).__name__
            if call.prompt is not None:
                told = {"role": _role(tags), "model": call.name, "prompt": call.prompt}
                record_later("model", **told, error=kind)
            _report(_ended(call, tags, kind))

    def on_tool_start(
        self, serialized: dict[str, Any] | None, input_str: str, *, run_id: UUID, **_: Any
    ) -> None:
        """Remember a call of a tool."""
        if (turn := _turn()) is not None:
            turn.calls[run_id] = _Call(str((serialized or {}).get("name") or "tool"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Report a call of a tool."""
        if (call := _done(run_id)) is not None:
            _report(telemetry.ToolCalled(name=call.name, duration=call.seconds()))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Report a call of a tool that failed; one that asks somebody did not."""
        call = _done(run_id)
        if call is not None and not isinstance(error, GraphBubbleUp):
            told = {"duration": call.seconds(), "error": type(error).__name__}
            _report(telemetry.ToolCalled(name=call.name, **told))


USAGE_CALLBACK = UsageCallback()


def _turn() -> _Turn | None:
    turn: _Turn | None = run_context().model_calls
    return turn


def _count(run_id: UUID, call: _Call) -> None:
    with _lock:
        innermost = _turn()
        if innermost is None or run_id in innermost.calls:
            return
        turn: _Turn | None = innermost
        while turn is not None:
            if turn.budget.model_calls >= turn.limit:
                raise LimitError(
                    f"The turn has made {turn.budget.model_calls} model calls, as many as it may.",
                    fix="Raise limits.max_model_calls, or ask for less at once.",
                )
            turn = turn.outer
        turn = innermost
        while turn is not None:
            turn.budget.model_calls += 1
            turn = turn.outer
        innermost.calls[run_id] = call


def _done(run_id: UUID) -> _Call | None:
    turn = _turn()
    return turn.calls.pop(run_id, None) if turn is not None else None


def _ended(call: _Call, tags: list[str] | None, error: str) -> telemetry.ModelCalled:
    about = {"role": _role(tags), "model": call.name, "provider": call.provider}
    return telemetry.ModelCalled(**about, duration=call.seconds(), error=error)


def _report(event: telemetry.Usage | telemetry.ModelCalled | telemetry.ToolCalled) -> None:
    turn = _turn()
    while turn is not None and turn.outer is not None:
        turn = turn.outer
    write = turn.write if turn is not None else stream_writer()
    if write is not None:
        write(event.model_dump(exclude_none=True))


def _role(tags: list[str] | None) -> str:
    found = (tag.removeprefix(_ROLE) for tag in tags or () if tag.startswith(_ROLE))
    return next(found, _OTHER)
