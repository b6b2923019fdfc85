"""Lifecycle of a capability: validate, set up, execute, and tear down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from capgraph.helpers.async_calls import shielded

Phase = Literal["validate", "setup", "execute", "teardown"]
PhaseFunction = Callable[[], Awaitable[Any]]
PhaseListener = Callable[[Phase, Literal["pre", "post"], Any], Awaitable[None]]
"""Called before and after each phase; after it, with the phase's result."""


@dataclass(slots=True)
class Lifecycle:
    """One run of up to four phases.

    ``teardown`` always runs after a successful ``validate``, and cancellation does not interrupt
    it. The first error is raised. An error of ``teardown`` is added to it as a note.

    Attributes:
        execute: Main work; its result is the result of the run.
        validate: Raises an exception if the work must not start.
        setup: Prepares the work.
        teardown: Cleans up, also after an incomplete ``setup``.
        on_phase: Called before and after each phase.
        has_executed: True if ``execute`` finished, whether or not a later phase failed.
        result: Result of ``execute``.

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
        """Run the phases and return the result of ``execute``."""
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

    async def _phase(self, name: Phase, function: PhaseFunction | None) -> Any:
        if self.on_phase is not None:
            await self.on_phase(name, "pre", None)
        result = await function() if function is not None else None
        if self.on_phase is not None:
            await self.on_phase(name, "post", result)
        return result
