"""Thread pool for synchronous functions, which would otherwise block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MAX_THREADS = 32
"""Maximum number of synchronous functions that run concurrently in this process."""


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process. A forked process does not have its parent's threads."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="capgraph-sync")


def is_sync(function: Any) -> bool:
    """Return True if a function is synchronous, looking through decorators that wrap it."""
    return not inspect.iscoroutinefunction(inspect.unwrap(function))


async def run_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a synchronous function in the thread pool, with the current context variables.

    A running thread cannot be stopped. If the caller is canceled or times out, the function
    continues to run and its result is discarded.

    >>> asyncio.run(run_in_thread(sorted, [2, 1]))
    [1, 2]
    """
    context = contextvars.copy_context()

    def work() -> Any:
        try:
            return context.run(function, *args, **kwargs)
        except StopIteration as exc:  # a future cannot hold one; its awaiter would wait forever
            raise RuntimeError(
                "The function raised StopIteration, which cannot propagate out of a coroutine."
            ) from exc

    return await asyncio.get_running_loop().run_in_executor(_pool(os.getpid()), work)
