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
    """Runner of up to four phases: validate, set up, execute, and tear down.

    ``teardown`` always runs after a successful ``validate``, and cancellation does not interrupt it. The
    first error is raised. A later error of ``teardown`` is added to it as a note.

    Attributes:
        execute: Function that performs the work and returns the result.
        validate: Function that raises an exception if the work must not start.
        setup: Function that prepares the work.
        teardown: Function that cleans up, even after an incomplete ``setup``.
        on_phase: Callback before and after each phase.
        has_executed: True if ``execute`` finished, even if a later phase failed.
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
        """Run a capability's lifecycle phases and return the result of ``execute``."""
        await self._run_phase("validate", self.validate)
        try:
            await self._run_phase("setup", self.setup)
            self.result = await self._run_phase("execute", self.execute)
            self.has_executed = True
        except BaseException as exc:
            try:
                await shielded(self._run_phase("teardown", self.teardown))
            except Exception as second:
                exc.add_note(f"teardown failed as well: {second!r}")
            raise
        await shielded(self._run_phase("teardown", self.teardown))
        return self.result

    async def _run_phase(self, name: Phase, function: PhaseFunction | None) -> Any:
        if self.on_phase is not None:
            await self.on_phase(name, "pre", None)
        result = await function() if function is not None else None
        if self.on_phase is not None:
            await self.on_phase(name, "post", result)
        return result
