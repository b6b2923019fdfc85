"""Waiting: for what may be a coroutine or not, where nothing can be awaited, and to an end."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def maybe_await(value: Any) -> Any:
    """Return what a function gave that may be a coroutine function.

    >>> asyncio.run(maybe_await(3)), asyncio.run(maybe_await(asyncio.sleep(0, 4)))
    (3, 4)
    """
    return await value if inspect.isawaitable(value) else value


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine where nothing can be awaited, on a loop of its own.

    Inside a running event loop it goes on in a thread, and the caller holds that loop up, as it
    would with any synchronous call.

    >>> run_sync(maybe_await(3))
    3
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def to_sync(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the synchronous form of a coroutine function.

    >>> to_sync(maybe_await)(3)
    3
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(method(*args, **kwargs))

    return call


async def shielded(
    coroutine: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, Any]] | None = None
) -> T:
    """Wait for something that no cancellation must cut short; then be cancelled.

    Args:
        coroutine: What is waited for.
        undo: Takes the result back, for a caller that was cancelled and never hears of it.

    Raises:
        asyncio.CancelledError: Whoever waits was cancelled meanwhile, however often; the work has
            ended. What failed is in its notes.

    >>> asyncio.run(shielded(asyncio.sleep(0, 4)))
    4
    """
    task = asyncio.create_task(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancelled = exc
        except Exception:
            break  # told below
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        try:
            result = task.result()
            if undo is not None:
                await shielded(undo(result))
        except Exception as exc:
            cancelled.add_note(f"what could not be cut short failed: {exc!r}")
    raise cancelled
