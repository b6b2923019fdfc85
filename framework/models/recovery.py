"""Recovery of a model call: progress while it waits, shorter prompts, and fallback models.

A strategy that asks a model sees one call. Everything here is bounded, and emitted as events.
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
"""Seconds between two status events while a model answers."""
_HISTORY_SHARES = (0.5, 0.25, 0.0)  # of the earlier messages, one for each further try
_OUTAGE_CATEGORIES = frozenset(
    {"network", "timeout", "rate_limit", "overloaded", "context_too_long"}
)


class ModelRefusedError(ModelError):
    """A model that refused to answer."""


class TruncatedAnswerError(ModelError):
    """An answer that ended at the model's length limit."""


@contextmanager
def emit_progress(role: RoleModel) -> Iterator[None]:
    """Emit a status every few seconds until the block ends.

    A small local model reads a long prompt for a minute before it writes its first token.
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
    """Make a call; if its prompt exceeds the model's context, repeat it with fewer messages.

    System messages and the last message are always sent.
    """
    messages: list[BaseMessage] = attempt.inputs["messages"]
    system = [message for message in messages if isinstance(message, SystemMessage)]
    others = [message for message in messages if not isinstance(message, SystemMessage)]
    earlier, last = others[:-1], others[-1:]

    async def ask(kept: Sequence[BaseMessage]) -> T:
        if len(kept) == len(earlier):
            return await call(attempt)
        inputs = {**attempt.inputs, "messages": [*system, *kept, *last]}
        return await call(replace(attempt, inputs=inputs))

    return await call_with_fewer_messages(
        replace(role, model=attempt.inputs["model"]), earlier, ask
    )


async def call_with_fewer_messages(
    role: RoleModel, history: Sequence[ItemT], call: Callable[[Sequence[ItemT]], Awaitable[T]]
) -> T:
    """Ask with all earlier messages, then with fewer while the prompt exceeds the context.

    Args:
        role: The model.
        history: Messages of which the oldest may be left out.
        call: Asks with some of them.

    Raises:
        ModelError: The call failed for another reason, or the shortest prompt is too long.
    """
    sizes = dict.fromkeys([len(history), *(int(len(history) * share) for share in _HISTORY_SHARES)])
    for number, size in enumerate(sizes, 1):
        try:
            return await call(history[len(history) - size :])
        except ModelError as exc:
            if number == len(sizes) or diagnose(exc).category != "context_too_long":
                raise
        kept = list(sizes)[number]
        emit(
            PromptShortened(
                role=role.role,
                model=role.name,
                messages_kept=kept,
                messages_dropped=len(history) - kept,
            )
        )
    raise AssertionError("one try returns or raises")


async def call_with_fallbacks(
    role: RoleModel, call: Callable[[Attempt], Awaitable[T]], attempt: Attempt
) -> T:
    """Make a call with the role's model, then with its fallbacks, one after the other."""
    models = [attempt.inputs["model"], *role.fallbacks]
    failed: ModelError | None = None
    for model, following in zip(models, [*models[1:], None], strict=True):
        try:
            return await call(replace(attempt, inputs={**attempt.inputs, "model": model}))
        except ModelError as exc:
            if failed is not None:
                exc.add_note(f"Before it failed: {failed}")
            reason = fallback_reason(exc)
            if following is None or reason is None:
                raise
            failed = exc
        names = {"model": model_name(model), "fallback": model_name(following)}
        emit(ModelFallback(role=role.role, **names, reason=reason, message=str(failed)))
    raise AssertionError("one model returns or raises")


def fallback_reason(error: ModelError) -> str | None:
    """Return the kind of failure for which another model is asked; ``None`` for any other.

    A missing key or a wrong option is a mistake of the configuration, which another model would hide.

    >>> fallback_reason(MalformedAnswerError("no JSON"))
    'malformed'
    """
    if isinstance(error, ModelRefusedError):
        return "refused"
    if isinstance(error, (MalformedAnswerError, TruncatedAnswerError)):
        return "malformed"
    category = diagnose(error.__cause__ or error).category
    return category if category in _OUTAGE_CATEGORIES else None
