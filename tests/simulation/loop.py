"""An event loop without real time, whose processes can be frozen and killed between any two steps."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Mapping
from typing import Any


class Process:
    """What a task belongs to; it is inherited by the tasks that the task makes.

    Attributes:
        name: Its name.
        machine: Where it runs.
        alive: Whether it was not killed.
        stopped: Whether nothing of it goes on.
        blocked: Whether nothing goes on but its heart.
        over: Whether its tasks are only cleared away: nothing that they do counts.
    """

    def __init__(self, name: str, machine: str) -> None:
        self.name, self.machine = name, machine
        self.alive = True
        self.stopped = self.blocked = self.over = False
        self.held: list[_Gate] = []

    def goes_on(self, heart: bool) -> bool:
        """Tell whether a task of it may take its next step."""
        return self.over or not (self.stopped or (self.blocked and not heart))


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
HEART: contextvars.ContextVar[bool] = contextvars.ContextVar("heart", default=False)


class Stuck(AssertionError):
    """Everybody waits, and nothing will happen."""


class _Gate:
    """One callback of a process; held back while the process is."""

    __slots__ = ("_args", "_callback", "_heart", "_loop", "_process", "context", "handle")

    def __init__(
        self,
        loop: VirtualLoop,
        process: Process,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._loop, self._process = loop, process
        self._callback, self._args = callback, args
        self._heart = context.get(HEART, False)
        self.context = context
        self.handle: Any = None

    def __call__(self) -> None:
        if self.handle.cancelled():
            return
        if self._process.goes_on(self._heart):
            self._callback(*self._args)
        else:
            self._process.held.append(self)


class _NoFiles(selectors.BaseSelector):
    """Waits for nothing but time."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[Any]:
        assert self.loop is not None
        if timeout is None:
            raise Stuck("Nobody waits for a moment, and nobody goes on.")
        self.loop.moment += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes when nobody has anything to do. Threads are stood in for: what a pool would do is
    done at once."""

    def __init__(self) -> None:
        self.moment = 0.0
        files = _NoFiles()
        files.loop = self
        super().__init__(files)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Return the moment."""
        return self.moment

    def call_soon(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """Call what goes on, or hold it back."""
        place = context if context is not None else contextvars.copy_context()
        process = place.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=place)
        gate = _Gate(self, process, callback, args, place)
        gate.handle = super().call_soon(gate, context=place)
        return gate.handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """Call at a moment what goes on then."""
        place = context if context is not None else contextvars.copy_context()
        process = place.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=place)
        gate = _Gate(self, process, callback, args, place)
        gate.handle = super().call_at(when, gate, context=place)
        return gate.handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Do it now."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def release(self, process: Process) -> None:
        """Let a process take the steps that were held back, as far as it goes on."""
        held, process.held = process.held, []
        for gate in held:
            super().call_soon(gate, context=gate.context)

    def _write_to_self(self) -> None:
        """There is nobody to wake."""
