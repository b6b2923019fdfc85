"""Lock and store base class that work from several event loops.

Synchronous calls run in event loops of their own, which LangGraph's savers and stores do not
support.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from langgraph.store.base import BaseStore, Op, Result


class CrossLoopLock:
    """Asynchronous lock that tasks on different event loops can share.

    Tasks on the same event loop acquire the lock in FIFO order.
    """

    def __init__(self) -> None:
        self._loop_locks: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
        self._thread_lock = threading.Lock()

    async def __aenter__(self) -> None:
        loop_lock = self._loop_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        await loop_lock.acquire()
        try:
            while not self._thread_lock.acquire(blocking=False):  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # no other loop can wake this task
        except BaseException:
            loop_lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._thread_lock.release()
        self._loop_locks[asyncio.get_running_loop()].release()


class CrossLoopStore(BaseStore):
    """Base class that makes LangGraph's stores usable from any event loop.

    LangGraph's stores batch calls on the event loop that opened them. This class runs each call
    separately, on the caller's event loop.
    """

    get, search, put = BaseStore.get, BaseStore.search, BaseStore.put
    delete, list_namespaces = BaseStore.delete, BaseStore.list_namespaces
    aget, asearch, aput = BaseStore.aget, BaseStore.asearch, BaseStore.aput
    adelete, alist_namespaces = BaseStore.adelete, BaseStore.alist_namespaces

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lock: Any = CrossLoopLock()
        self._other_loops_lock = CrossLoopLock()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run store operations from a thread that has no running event loop."""
        return asyncio.run(self.abatch(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run store operations on the current event loop."""
        store: Any = self
        langgraph_store: Any = super()
        is_other_loop = asyncio.get_running_loop() is not store.loop
        async with self._other_loops_lock if is_other_loop else nullcontext():
            found: list[Result] = await langgraph_store.abatch(ops)
        return found
