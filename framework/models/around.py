"""What can stand around a call of a chat model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """One call of a chat model, as what stands around it sees it.

    It has the names of an attempt at a step. ``dataclasses.replace`` gives one with another
    ``model`` or fewer ``messages``.

    Attributes:
        role: What the model is for.
        model: The chat model.
        messages: The prompt.
        number: Always 1: nothing here tries again.
        parameters: Always empty.
        inputs: Always empty.
        idempotency_key: Always empty: a call has no effect to repeat.

    >>> ModelAttempt("planning", None, ()).capability
    'model:planning'
    """

    role: str
    model: BaseChatModel
    messages: Sequence[BaseMessage]
    number: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str = ""

    @property
    def capability(self) -> str:
        """``model:`` and the role."""
        return f"model:{self.role}"

    @property
    def key(self) -> str:
        """The same: a call has no key of its own."""
        return self.capability

    @property
    def objective(self) -> str:
        """What the call is for."""
        return self.role


class Middleware(Protocol):
    """Anything that stands around an attempt or a model call.

    Of the stages, ``reserve``, ``bound`` and ``call`` apply to model calls.
    """

    stage: str

    async def around(self, attempt: Any, call_next: Callable[..., Awaitable[Any]]) -> Any:
        """Give what ``await call_next(attempt)`` gives, or something in its place."""
        ...


def chained(
    around: Sequence[Middleware],
    stages: Sequence[str],
    inner: Callable[[ModelAttempt], Awaitable[ResultT]],
) -> Callable[[ModelAttempt], Awaitable[ResultT]]:
    """Return ``inner`` with those of some stages around it, the first one outermost."""
    call = inner
    chosen = [item for stage in stages for item in around if item.stage == stage]
    for middleware in reversed(chosen):
        call = _wrapped(middleware, call)
    return call


def _wrapped(
    middleware: Middleware, inner: Callable[[ModelAttempt], Awaitable[ResultT]]
) -> Callable[[ModelAttempt], Awaitable[ResultT]]:
    async def call(attempt: ModelAttempt) -> ResultT:
        async def call_next(changed: ModelAttempt = attempt) -> ResultT:
            return await inner(changed)

        result: ResultT = await middleware.around(attempt, call_next)
        return result

    return call
