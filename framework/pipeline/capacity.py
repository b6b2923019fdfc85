"""How many steps may run at once: one count for a whole process, over all its event loops."""

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
    """A slot that is taken or waited for.

    Attributes:
        capacity: Whose slot it is.
        name: The capability.
        capability_limit: How many of its steps may run at once; ``None`` for no bound of its own.
        process_limit: How many steps of the process may run at once; ``None`` for an attempt that runs
            in another one's slot.
        outer: The slot inside which this one is asked for.
        granted: Done when the slot is there; ``None`` when it was at once.
    """

    capacity: Capacity
    name: str
    capability_limit: int | None
    process_limit: int | None
    outer: Slot | None = None
    granted: asyncio.Future[None] | None = None

    def enclosing_slots(self) -> Iterator[Slot]:
        """Yield the slots that are held while this one is waited for."""
        outer = self.outer
        while outer is not None:
            yield outer
            outer = outer.outer


class Capacity:
    """Slots for steps: of the process, and of each capability.

    Both are taken together, so that nobody holds one while waiting for the other. Who came first
    goes first, unless there is no slot of its capability. An attempt inside another one waits
    while it holds the outer slot; where such waits would close a circle, the last is an error, also
    when the circle goes through the capacities of several graphs.

    >>> async def main():
    ...     capacity = Capacity()
    ...     await capacity.take("fetch", capability_limit=1, process_limit=8)
    ...     return capacity.running
    >>> asyncio.run(main())
    1
    """

    # One for all: a circle of waits may go through several of them.
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._running = 0
        self._held: dict[str, set[Slot]] = {}
        self._waiting: deque[Slot] = deque()
        # Those inside another step's slot hold one already: they must not wait behind others.
        self._inside: deque[Slot] = deque()

    @staticmethod
    @cache
    def of_process() -> Capacity:
        """Return the one that graphs of this process share when they are given none."""
        return Capacity()

    @property
    def running(self) -> int:
        """How many slots of the process are taken."""
        return self._running

    @property
    def held_by_capability(self) -> dict[str, int]:
        """How many slots each capability has."""
        with self._lock:
            return {name: len(slots) for name, slots in self._held.items()}

    async def take(
        self, name: str, own: int | None, whole: int | None, outer: Slot | None = None
    ) -> Slot:
        """Take a slot, waiting for it if need be; :meth:`give_back` it afterwards.

        Args:
            name: The capability.
            own: How many of its steps may run at once; ``None`` for no bound of its own.
            whole: How many steps of the process may run at once; ``None`` for an attempt that
                runs in another one's slot.
            outer: The slot inside which this one is asked for.

        Raises:
            CapabilityError: All that hold the slots wait for one another, this attempt included.
        """
        slot = Slot(self, name, own, whole, outer)
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
        """Give a slot back, or stop waiting for it; who waits for one gets it."""
        with self._lock:
            held = self._held.get(slot.name, set())
            if slot not in held:
                with suppress(ValueError):  # its event loop was closed
                    self._queue(slot).remove(slot)
                return
            held.remove(slot)
            if slot.process_limit is not None:
                self._running -= 1
            if not held:
                del self._held[slot.name]
            chosen = self._grant_waiting()
        for waiter in chosen:
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
        """Give free slots to those who wait, in their order; called under the lock."""
        chosen = []
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
                    chosen.append(slot)
        return chosen

    def _would_deadlock(self, requested: Slot) -> bool:
        stuck, known, more = {requested}, set[Capacity](), {self}
        while more:
            known |= more
            stuck |= {waiter for capacity in more for waiter in capacity._inside}
            more = {slot.capacity for waiter in stuck for slot in waiter.enclosing_slots()} - known
        while requested in stuck:
            # Whoever holds a slot gives it back when all that is asked for inside it was given.
            blocked = {slot for waiter in stuck for slot in waiter.enclosing_slots()}
            left = {w for w in stuck if w.capacity._held.get(w.name, set()) <= blocked}
            if left == stuck:
                return True
            stuck = left
        return False

    def _deadlock_error(self, requested: Slot) -> CapabilityError:
        alone = self._held[requested.name] <= set(requested.enclosing_slots())
        by = "the steps around it" if alone else "steps that wait for those around it"
        return CapabilityError(
            f"{requested.name!r} is asked for inside {requested.outer.name!r}, and all of its"  # type: ignore[union-attr]
            f" {requested.capability_limit} slot(s) are taken by {by}, so the wait would never end.",
            fix="Raise max_parallel of the capability, or do the inner work without asking for it.",
            severity=ErrorSeverity.FATAL if alone else ErrorSeverity.CRITICAL,
        )


def _wake(slot: Slot) -> None:
    turn = slot.granted
    assert turn is not None

    def set_result() -> None:
        if not turn.done():
            turn.set_result(None)

    turn.get_loop().call_soon_threadsafe(set_result)
