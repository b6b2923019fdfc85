"""Decorator that turns a function into middleware."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, overload

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import STAGES, Middleware, ModelCallMiddleware

WrapFunction = Callable[[Any, Any], Any]
"""Coroutine function that receives the attempt and ``call_next``."""


class FunctionMiddleware:
    """Middleware that is created from a function by :func:`middleware`.

    Attributes:
        stage: Name of the stage that the middleware wraps.
        order: Position within the stage. Lower numbers are further out.
    """

    def __init__(self, function: WrapFunction, stage: str, wraps: str, order: int) -> None:
        self.stage: str = stage
        self.order: int = order
        self._name = getattr(function, "__name__", repr(function))
        setattr(self, f"wrap_{wraps}", function)

    def __repr__(self) -> str:
        return f"middleware {self._name}"


@overload
def middleware(
    *, stage: str, wraps: Literal["step"] = "step", order: int = 1_000
) -> Callable[[WrapFunction], Middleware]: ...


@overload
def middleware(
    *, stage: str, wraps: Literal["model_call"], order: int = 1_000
) -> Callable[[WrapFunction], ModelCallMiddleware]: ...


def middleware(
    *, stage: str, wraps: Literal["step", "model_call"] = "step", order: int = 1_000
) -> Callable[[WrapFunction], Any]:
    """Return a decorator that turns a coroutine function into middleware.

    Args:
        stage: Name of the stage that the function wraps.
        wraps: Kind of call to wrap: ``step`` or ``model_call``.
        order: Position within the stage. Lower numbers are further out.

    Raises:
        ConfigurationError: The stage is unknown, or the function is not a coroutine function.

    >>> @middleware(stage="call")
    ... async def log_calls(attempt, call_next):
    ...     print(f"calling {attempt.capability}")
    ...     return await call_next(attempt)
    >>> log_calls
    middleware log_calls
    """
    if stage not in STAGES or wraps not in ("step", "model_call"):
        raise ConfigurationError(
            f"The middleware has the unknown stage={stage!r} or wraps={wraps!r}.",
            fix=f"Use a stage of {', '.join(STAGES)}, and wraps='step' or 'model_call'.",
        )

    def decorate(function: WrapFunction) -> FunctionMiddleware:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"The middleware {function!r} is not a coroutine function.",
                fix="Define it with 'async def'.",
            )
        return FunctionMiddleware(function, stage, wraps, order)

    return decorate
