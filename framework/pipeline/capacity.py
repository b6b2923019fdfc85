"""Concurrency slots of a process, shared by all its event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from capgraph.base.errors import CapabilityError, ErrorSeverity


@dataclass(slots=True, eq=False)
class Slot:
    """Concurrency slot that a step has requested or acquired.

    Attributes:
        capacity: ``Capacity`` object to which the slot belongs.
        name: Name of the capability.
        capability_limit: Maximum number of concurrent steps of the capability, or ``None`` for
            no limit.
        process_limit: Maximum number of concurrent steps of the process, or ``None`` for a
            nested execution, which shares the outer slot.
        outer: Slot of the outer execution.
        granted: Future that is done when the slot is granted, or ``None`` if it was granted
            immediately.
    """

    capacity: Capacity
    name: str
    capability_limit: int | None
    process_limit: int | None
    outer: Slot | None = None
    granted: asyncio.Future[None] | None = None

    def enclosing_slots(self) -> Iterator[Slot]:
        """Yield the enclosing executions' slots, which are held while this slot is requested."""
        outer = self.outer
        while outer is not None:
            yield outer
            outer = outer.outer


class Capacity:
    """Limiter of the concurrent steps of a process and of each capability.

    A step acquires a process slot and a capability slot at once, so that no step holds one slot while
    it waits for the other. Requests are granted in order, but a request whose capability has no free
    slot does not block later requests. A nested execution holds its outer slot while it waits. A request
    that would cause a deadlock raises an error, even if the cycle involves several ``Capacity`` objects.

    >>> async def main():
    ...     capacity = Capacity()
    ...     await capacity.acquire("fetch", capability_limit=1, process_limit=8)
    ...     return capacity.running
    >>> asyncio.run(main())
    1
    """

    # All instances share the lock, because a deadlock may span several of them.
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._running = 0
        self._held: dict[str, set[Slot]] = {}
        self._waiting: deque[Slot] = deque()
        # A nested execution already holds a slot, so it must not wait behind other requests.
        self._inside: deque[Slot] = deque()

    @staticmethod
    @cache
    def of_process() -> Capacity:
        """Return the capacity that all graphs in this process share by default."""
        return Capacity()

    @property
    def running(self) -> int:
        """Number of acquired process slots."""
        return self._running

    @property
    def held_by_capability(self) -> dict[str, int]:
        """Number of acquired slots by capability."""
        with self._lock:
            return {name: len(slots) for name, slots in self._held.items()}

    async def acquire(
        self,
        name: str,
        capability_limit: int | None,
        process_limit: int | None,
        outer: Slot | None = None,
    ) -> Slot:
        """Acquire a concurrency slot, waiting if necessary. Call :meth:`release` afterwards.

        Args:
            name: Name of the capability.
            capability_limit: Maximum number of concurrent steps of the capability, or ``None`` for
                no limit.
            process_limit: Maximum number of concurrent steps of the process, or ``None`` for a
                nested execution, which shares the outer slot.
            outer: Slot of the outer execution.

        Raises:
            CapabilityError: Waiting would cause a deadlock.
        """
        slot = Slot(self, name, capability_limit, process_limit, outer)
        with self._lock:
            if self._is_free(slot):
                self._grant(slot)
                return slot
            if outer is not None and self._would_deadlock(slot):
                raise self._deadlock_error(slot)
            slot.granted = asyncio.get_running_loop().create_future()
            self._queue(slot).append(slot)
        try:
            await slot.granted
        except BaseException:
            self.release(slot)
            raise
        return slot

    def release(self, slot: Slot) -> None:
        """Release a slot or cancel its request, and grant the free slots to waiting requests."""
        with self._lock:
            slots = self._held.get(slot.name, set())
            if slot not in slots:
                with suppress(ValueError):  # its event loop was closed
                    self._queue(slot).remove(slot)
                return
            slots.remove(slot)
            if slot.process_limit is not None:
                self._running -= 1
            if not slots:
                del self._held[slot.name]
            granted = self._grant_waiting()
        for waiter in granted:
            _wake(waiter)

    def _queue(self, slot: Slot) -> deque[Slot]:
        return self._inside if slot.process_limit is None else self._waiting

    def _is_free(self, slot: Slot) -> bool:
        return (
            slot.capability_limit is None
            or len(self._held.get(slot.name, ())) < slot.capability_limit
        ) and (slot.process_limit is None or self._running < slot.process_limit)

    def _grant(self, slot: Slot) -> None:
        self._held.setdefault(slot.name, set()).add(slot)
        if slot.process_limit is not None:
            self._running += 1

    def _grant_waiting(self) -> list[Slot]:
        """Grant free slots to waiting requests in queue order. The caller must hold the lock."""
        granted = []
        for queue in (self._inside, self._waiting):
            for slot in list(queue):
                if slot.process_limit is not None and self._running >= slot.process_limit:
                    break
                assert slot.granted is not None
                if slot.granted.get_loop().is_closed():
                    queue.remove(slot)
                elif self._is_free(slot):
                    queue.remove(slot)
                    self._grant(slot)
                    granted.append(slot)
        return granted

    def _would_deadlock(self, requested: Slot) -> bool:
        stuck, visited, unvisited = {requested}, set[Capacity](), {self}
        while unvisited:
            visited |= unvisited
            stuck |= {waiter for capacity in unvisited for waiter in capacity._inside}
            unvisited = {
                slot.capacity for waiter in stuck for slot in waiter.enclosing_slots()
            } - visited
        while requested in stuck:
            # A holder releases its slot once all requests nested in it were granted.
            blocked = {slot for waiter in stuck for slot in waiter.enclosing_slots()}
            remaining = {w for w in stuck if w.capacity._held.get(w.name, set()) <= blocked}
            if remaining == stuck:
                return True
            stuck = remaining
        return False

    def _deadlock_error(self, requested: Slot) -> CapabilityError:
        alone = self._held[requested.name] <= set(requested.enclosing_slots())
        holders = "its outer steps" if alone else "steps that wait for its outer steps"
        return CapabilityError(
            f"{requested.name!r} cannot run inside {requested.outer.name!r}: all"  # type: ignore[union-attr]
            f" {requested.capability_limit} slot(s) are held by {holders}, which is a deadlock.",
            fix="raise max_parallel of the capability, or do not nest it.",
            severity=ErrorSeverity.FATAL if alone else ErrorSeverity.CRITICAL,
        )


def _wake(slot: Slot) -> None:
    turn = slot.granted
    assert turn is not None

    def set_result() -> None:
        if not turn.done():
            turn.set_result(None)

    turn.get_loop().call_soon_threadsafe(set_result)
