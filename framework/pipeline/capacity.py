"""How many steps may run at once: one count for a whole process, over all its event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache


@dataclass(slots=True, eq=False)
class _Waiter:
    name: str
    own: int | None
    whole: int | None
    loop: asyncio.AbstractEventLoop
    turn: asyncio.Future[None]
    granted: bool = False


class Capacity:
    """Slots for steps: of the process, and of each capability.

    Both are taken together, so that nobody holds one while waiting for the other. Who came first
    goes first, unless there is no slot of its capability.

    >>> async def main():
    ...     capacity = Capacity()
    ...     await capacity.take("fetch", own=1, whole=8)
    ...     return capacity.running
    >>> asyncio.run(main())
    1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._by_name: Counter[str] = Counter()
        self._waiting: deque[_Waiter] = deque()
        # Those inside another step's slot hold one already: they must not wait behind others.
        self._inside: deque[_Waiter] = deque()

    @staticmethod
    @cache
    def of_process() -> Capacity:
        """Return the one that graphs of this process share when they are given none."""
        return Capacity()

    @property
    def running(self) -> int:
        """How many slots of the process are taken."""
        return self._running

    async def take(self, name: str, own: int | None, whole: int | None) -> None:
        """Take a slot, waiting for it if need be; :meth:`give_back` it afterwards.

        Args:
            name: The capability.
            own: How many of its steps may run at once; ``None`` for no bound of its own.
            whole: How many steps of the process may run at once; ``None`` for an attempt that
                runs in another one's slot.
        """
        waiter = self._take(name, own, whole)
        if waiter is not None:
            try:
                await waiter.turn
            except BaseException:
                self._give_up(waiter)
                raise

    def _take(self, name: str, own: int | None, whole: int | None) -> _Waiter | None:
        with self._lock:
            if self._free(name, own, whole):
                self._count(name, whole, 1)
                return None
            loop = asyncio.get_running_loop()
            waiter = _Waiter(name, own, whole, loop, loop.create_future())
            self._queue(waiter).append(waiter)
            return waiter

    def _queue(self, waiter: _Waiter) -> deque[_Waiter]:
        return self._inside if waiter.whole is None else self._waiting

    def _free(self, name: str, own: int | None, whole: int | None) -> bool:
        return (own is None or self._by_name[name] < own) and (
            whole is None or self._running < whole
        )

    def _count(self, name: str, whole: int | None, by: int) -> None:
        if whole is not None:
            self._running += by
        self._by_name[name] += by
        if not self._by_name[name]:
            del self._by_name[name]

    def give_back(self, name: str, whole: int | None) -> None:
        """Give a slot back; who waits for one gets it."""
        with self._lock:
            self._count(name, whole, -1)
            chosen = self._next()
        for waiter in chosen:
            _wake(waiter)

    def _next(self) -> list[_Waiter]:
        """Give free slots to those who wait, in their order; called under the lock."""
        chosen = []
        for queue in (self._inside, self._waiting):
            for waiter in list(queue):
                if waiter.whole is not None and self._running >= waiter.whole:
                    break
                if waiter.loop.is_closed():
                    queue.remove(waiter)
                elif self._free(waiter.name, waiter.own, waiter.whole):
                    queue.remove(waiter)
                    self._count(waiter.name, waiter.whole, 1)
                    waiter.granted = True
                    chosen.append(waiter)
        return chosen

    def _give_up(self, waiter: _Waiter) -> None:
        with self._lock:
            if not waiter.granted:
                with suppress(ValueError):
                    self._queue(waiter).remove(waiter)
                return
        # It was cancelled in the moment in which its turn came.
        self.give_back(waiter.name, waiter.whole)


def _wake(waiter: _Waiter) -> None:
    def set_result() -> None:
        if not waiter.turn.done():
            waiter.turn.set_result(None)

    waiter.loop.call_soon_threadsafe(set_result)
