"""Recovery of model calls: progress events, shorter prompts, and fallback models.

Planners and other strategies observe only one call. Every recovery is limited and emits events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from langchain_core.messages import BaseMessage, SystemMessage

from capgraph.base.error_classification import diagnose
from capgraph.base.errors import MalformedAnswerError, ModelError
from capgraph.base.ports import Attempt
from capgraph.models.roles import RoleModel, model_name
from capgraph.telemetry import ModelFallback, PromptShortened, Status, emit

T = TypeVar("T")
ItemT = TypeVar("ItemT")

PROGRESS_SECONDS = 10.0
"""Seconds between two status events while a model generates its answer."""
_HISTORY_SHARES = (0.5, 0.25, 0.0)  # of the earlier messages, for each further attempt
_OUTAGE_CATEGORIES = frozenset(
    {"network", "timeout", "rate_limit", "overloaded", "context_too_long"}
)


class ModelRefusedError(ModelError):
    """Raised if a model refuses to answer."""


class TruncatedAnswerError(ModelError):
    """Raised when a model's answer is cut off at the length limit."""


@contextmanager
def emit_progress(role: RoleModel) -> Iterator[None]:
    """Emit a status event every few seconds while a model call is running.

    A small local model may process a long prompt for a minute before it generates its first
    token.
    """
    began = time.monotonic()
    loop = asyncio.get_running_loop()

    timer: asyncio.TimerHandle

    def report() -> None:
        nonlocal timer
        seconds = time.monotonic() - began
        text = f"The model {role.name!r} has been working for {seconds:.0f} s ({role.role})"
        emit(Status(message=text, component=role.role))
        timer = loop.call_later(PROGRESS_SECONDS, report)

    timer = loop.call_later(PROGRESS_SECONDS, report)
    try:
        yield
    finally:
        timer.cancel()


async def call_with_shorter_prompt(
    role: RoleModel, call: Callable[[Attempt], Awaitable[T]], attempt: Attempt
) -> T:
    """Call a model, dropping older messages while the prompt is too long.

    System messages and the last message are always kept.
    """
    messages: list[BaseMessage] = attempt.inputs["messages"]
    system = [message for message in messages if isinstance(message, SystemMessage)]
    conversation = [message for message in messages if not isinstance(message, SystemMessage)]
    earlier, last = conversation[:-1], conversation[-1:]

    async def call_with(history: Sequence[BaseMessage]) -> T:
        if len(history) == len(earlier):
            return await call(attempt)
        inputs = {**attempt.inputs, "messages": [*system, *history, *last]}
        return await call(replace(attempt, inputs=inputs))

    return await call_with_fewer_messages(
        replace(role, model=attempt.inputs["model"]), earlier, call_with
    )


async def call_with_fewer_messages(
    role: RoleModel, history: Sequence[ItemT], call: Callable[[Sequence[ItemT]], Awaitable[T]]
) -> T:
    """Call a model with the full message history, then with less if the prompt is too long.

    Args:
        role: Role whose model the function calls.
        history: Messages, the oldest of which may be dropped.
        call: Function that calls the model with part of the history.

    Raises:
        ModelError: The call failed for a different reason, or even the shortest prompt is too
            long.
    """
    sizes = dict.fromkeys([len(history), *(int(len(history) * share) for share in _HISTORY_SHARES)])
    for number, size in enumerate(sizes, 1):
        try:
            return await call(history[len(history) - size :])
        except ModelError as exc:
            if number == len(sizes) or diagnose(exc).category != "context_too_long":
                raise
        remaining = list(sizes)[number]
        emit(
            PromptShortened(
                role=role.role,
                model=role.name,
                messages_kept=remaining,
                messages_dropped=len(history) - remaining,
            )
        )
    raise AssertionError("unreachable: the last attempt returns or raises")


async def call_with_fallbacks(
    role: RoleModel, call: Callable[[Attempt], Awaitable[T]], attempt: Attempt
) -> T:
    """Call a role's model, then its fallback models in order until a call succeeds."""
    models = [attempt.inputs["model"], *role.fallbacks]
    last_error: ModelError | None = None
    for model, following in zip(models, [*models[1:], None], strict=True):
        try:
            return await call(replace(attempt, inputs={**attempt.inputs, "model": model}))
        except ModelError as exc:
            if last_error is not None:
                exc.add_note(f"The model before it failed: {last_error}")
            reason = fallback_reason(exc)
            if following is None or reason is None:
                raise
            last_error = exc
        names = {"model": model_name(model), "fallback": model_name(following)}
        emit(ModelFallback(role=role.role, **names, reason=reason, message=str(last_error)))
    raise AssertionError("unreachable: the last model returns or raises")


def fallback_reason(error: ModelError) -> str | None:
    """Return the reason to try a fallback model after an error, or None to raise the error.

    A missing API key or an invalid option is a configuration error that a fallback would hide.

    >>> fallback_reason(MalformedAnswerError("no JSON"))
    'malformed'
    """
    if isinstance(error, ModelRefusedError):
        return "refused"
    if isinstance(error, (MalformedAnswerError, TruncatedAnswerError)):
        return "malformed"
    category = diagnose(error.__cause__ or error).category
    return category if category in _OUTAGE_CATEGORIES else None
