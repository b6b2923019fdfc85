"""Threads for synchronous work, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MAX_THREADS = 32
"""How many synchronous steps of the process work at once; further ones wait for a thread."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="capgraph-sync")


def is_sync(function: Any) -> bool:
    """Tell whether a function has to run in a thread: it is no coroutine function."""
    return not inspect.iscoroutinefunction(inspect.unwrap(function))


async def run_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a synchronous function in a thread of the pool, in the caller's context.

    A thread cannot be stopped: when the caller is cancelled or runs into a time limit, the
    function works on to its end and its result is dropped.

    >>> asyncio.run(run_in_thread(sorted, [2, 1]))
    [1, 2]
    """
    context = contextvars.copy_context()

    def work() -> Any:
        try:
            return context.run(function, *args, **kwargs)
        except StopIteration as exc:  # no future can hold one; its awaiter would wait for ever
            raise RuntimeError("The function raised StopIteration.") from exc

    return await asyncio.get_running_loop().run_in_executor(_pool(), work)
