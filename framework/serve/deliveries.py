"""Background deliveries of servers. All processes poll for them, and one makes each delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from capgraph.base.errors import CapgraphError
from capgraph.configs.logger import get_logger
from capgraph.helpers.clock import Clock
from capgraph.stores.atomic_values import AtomicValueStore, MemoryValues
from capgraph.stores.persistence import Persistence

_MAX_MEMORY_VALUES = 10_000


class DeliveryStore:
    """Store for background deliveries, with claims that prevent duplicates across processes.

    Args:
        persistence: Persistence of the graph. Without database tables, values are kept in this
            process.
        clock: Clock that determines when claims expire.
    """

    def __init__(self, persistence: Persistence | None, clock: Clock) -> None:
        self.clock = clock
        self.values: AtomicValueStore = (
            persistence.values
            if persistence is not None and persistence.tables is not None
            else MemoryValues(_MAX_MEMORY_VALUES)
        )

    async def claim(self, name: str, seconds: float, *, renew: bool = False) -> bool:
        """Claim a delivery for a limited time. Return False if another process holds the claim.

        Args:
            name: Name of the claim.
            seconds: Lifetime of the claim, in seconds.
            renew: True to extend a claim that this process holds.
        """

        def change(value: Any, now: float) -> tuple[Any, float, bool]:
            if value is not None and value > now and not renew:
                return value, value - now, False
            return now + seconds, seconds, True

        return await self.values.achange(name, change, self.clock)


async def repeat(
    poll: Callable[[], Awaitable[None]], seconds: float, logger_name: str, warning: str
) -> None:
    """Call an asynchronous function periodically until canceled, and log its errors.

    Args:
        poll: Asynchronous function to call.
        seconds: Pause between calls, in seconds.
        logger_name: Name of the server's logger.
        warning: Log message for an error, with ``%s`` for the error.
    """
    while True:
        try:
            await poll()
        except CapgraphError as exc:
            get_logger("serve", logger_name).warning(warning, exc)
        await asyncio.sleep(seconds)


@asynccontextmanager
async def deliver_in_background(
    polling: Awaitable[None], deliveries: Mapping[str, asyncio.Task[None]]
) -> AsyncIterator[None]:
    """Poll for deliveries in the background while the context is open.

    On exit, the polling and all deliveries in progress are canceled.

    Args:
        polling: Awaitable from a call of :func:`repeat`.
        deliveries: Tasks of the deliveries in progress.
    """
    poll_task = asyncio.ensure_future(polling)
    try:
        yield
    finally:
        tasks = [poll_task, *deliveries.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
