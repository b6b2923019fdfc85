"""Helpers for coroutines: optional awaiting, synchronous calls, and protection from cancellation."""

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
    """Return a value, awaiting it first if it is awaitable.

    >>> asyncio.run(maybe_await(3)), asyncio.run(maybe_await(asyncio.sleep(0, 4)))
    (3, 4)
    """
    return await value if inspect.isawaitable(value) else value


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code and return its result.

    If an event loop is already running in the current thread, the coroutine runs on a new loop
    in another thread, and the call blocks the current loop.

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
    """Wrap a coroutine function so that it can be called from synchronous code.

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
    """Run a coroutine to completion even if the current task is canceled in the meantime.

    Args:
        coroutine: Coroutine to run.
        undo: Function that reverts the result if the task was canceled, because the caller never
            receives the result.

    Raises:
        asyncio.CancelledError: The current task was canceled. The error is raised after the
            coroutine ends. An exception of the coroutine is attached as a note.

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
            break  # task.result() raises it below
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        try:
            result = task.result()
            if undo is not None:
                await shielded(undo(result))
        except Exception as exc:
            cancelled.add_note(f"The shielded coroutine failed: {exc!r}")
    raise cancelled
