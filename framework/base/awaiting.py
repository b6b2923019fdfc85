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


async def awaited(found: Any) -> Any:
    """Return what a function gave that may be a coroutine function.

    >>> asyncio.run(awaited(3)), asyncio.run(awaited(asyncio.sleep(0, 4)))
    (3, 4)
    """
    return await found if inspect.isawaitable(found) else found


def waited(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine where nothing can be awaited, on a loop of its own.

    Inside a running event loop it goes on in a thread, and the caller holds that loop up, as it
    would with any synchronous call.

    >>> waited(awaited(3))
    3
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the synchronous form of a coroutine function.

    >>> blocking(awaited)(3)
    3
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return waited(method(*args, **kwargs))

    return call


async def to_its_end(
    work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, Any]] | None = None
) -> T:
    """Wait for something that no cancellation must cut short; then be cancelled.

    Args:
        work: What is waited for.
        undo: Takes the result back, for a caller that was cancelled and never hears of it.

    Raises:
        asyncio.CancelledError: Whoever waits was cancelled meanwhile, however often; the work has
            ended. What failed is in its notes.

    >>> asyncio.run(to_its_end(asyncio.sleep(0, 4)))
    4
    """
    task = asyncio.create_task(work)
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
                await to_its_end(undo(result))
        except Exception as exc:
            cancelled.add_note(f"what could not be cut short failed: {exc!r}")
    raise cancelled
