"""Validate, set up, execute, tear down: in this order, and the last one always."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from capgraph.helpers.async_calls import shielded

Phase = Literal["validate", "setup", "execute", "teardown"]
PhaseFunction = Callable[[], Awaitable[Any]]
PhaseListener = Callable[[Phase, Literal["pre", "post"], Any], Awaitable[None]]
"""Told before and after each phase; after it with what the phase gave."""


@dataclass(slots=True)
class Lifecycle:
    """One run of four phases; those that are left out do nothing.

    Whatever is raised after ``validate`` comes out when ``teardown`` is over, which no cancellation
    cuts short. The first error stands; one of ``teardown`` is attached to it as a note.

    Attributes:
        execute: The work; its result is that of the run.
        validate: Raises when the work should not begin.
        setup: Prepares the work.
        teardown: Cleans up, also after half a ``setup``.
        on_phase: Told before and after each phase.
        has_executed: Whether the work was done, whatever came afterwards.
        result: What it gave.

    >>> import asyncio
    >>> async def work(): return 42
    >>> asyncio.run(Lifecycle(work).run())
    42
    """

    execute: PhaseFunction
    validate: PhaseFunction | None = None
    setup: PhaseFunction | None = None
    teardown: PhaseFunction | None = None
    on_phase: PhaseListener | None = None
    has_executed: bool = False
    result: Any = None

    async def run(self) -> Any:
        """Go through the phases and return the result."""
        await self._phase("validate", self.validate)
        try:
            await self._phase("setup", self.setup)
            self.result = await self._phase("execute", self.execute)
            self.has_executed = True
        except BaseException as exc:
            try:
                await shielded(self._phase("teardown", self.teardown))
            except Exception as second:
                exc.add_note(f"teardown failed as well: {second!r}")
            raise
        await shielded(self._phase("teardown", self.teardown))
        return self.result

    async def _phase(self, name: Phase, work: PhaseFunction | None) -> Any:
        if self.on_phase is not None:
            await self.on_phase(name, "pre", None)
        result = await work() if work is not None else None
        if self.on_phase is not None:
            await self.on_phase(name, "post", result)
        return result
