"""Where files are read and computed over: threads of their own, that can be stopped.

The event loop's default threads serve the whole process (savers, leases, name look-ups). A file
that takes for ever must not occupy them, so data work has its own few threads, and each piece of
work ends when its step is cancelled or its time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from framework.base import (
    CapabilityError,
    ErrorClassification,
    ErrorSeverity,
    ValidationError,
)
from framework.base.classify import classify_exception

P = ParamSpec("P")
Result = TypeVar("Result")
_THREADS = 4
_PAUSE = 0.05


@dataclass(frozen=True)
class Bounds:
    """How much one piece of data work may take.

    Attributes:
        seconds: Time.
        rows: Rows of one table.
        file_bytes: Size of one file; Parquet, which is read by columns, may have ten times that.
        columns: Columns of one table.
        memory: Memory of DuckDB, in its own words.
        spill_bytes: What DuckDB may lay down on the disk meanwhile.

    >>> Bounds.of({"max_rows": 10}).rows
    10
    """

    seconds: float = 60.0
    rows: int = 50_000_000
    file_bytes: int = 2 * 1024**3
    columns: int = 20_000
    memory: str = "2GB"
    spill_bytes: int = 4 * 1024**3

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Bounds:
        """Read the bounds from the settings of a capability.

        Raises:
            ValidationError: One of them is no number above 0.
        """
        values: dict[str, Any] = {}
        for field, key, kind in (
            ("seconds", "max_seconds", float),
            ("rows", "max_rows", int),
            ("file_bytes", "max_file_bytes", int),
            ("columns", "max_columns", int),
            ("spill_bytes", "max_spill_bytes", int),
            ("memory", "memory_limit", str),
        ):
            given = settings.get(key)
            if given is None:
                continue
            try:
                values[field] = kind(given)
                fits = kind is str or 0 < values[field] < float("inf")
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise ValidationError(
                    f"The setting {key!r} is {given!r}.", fix="Give a number above 0."
                )
        return cls(**values)

    def spooled(self, size: int) -> int:
        """Return how many bytes the rows of a file of this size may become.

        A view of a small database can yield rows without end.
        """
        return min(self.file_bytes, max(64 * 1024**2, 20 * size))


class Work:
    """One piece of work: its bounds, and what must be interrupted to end it.

    Args:
        bounds: What it may take.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._interrupts: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._late = False

    def stop(self) -> None:
        """End the work soon, from any thread."""
        self._stopping.set()

    def check(self) -> None:
        """Go on, or not.

        Raises:
            CapabilityError: The work was stopped, or its time is over.
        """
        if not self._stopping.is_set():
            return
        if self._late:
            raise CapabilityError(
                f"Reading the data took longer than {self.bounds.seconds:g} s and was stopped.",
                fix="Ask for less, check the file, or raise 'max_seconds' in the settings.",
                severity=ErrorSeverity.CRITICAL,
            )
        raise CapabilityError(
            "Reading the data was stopped.", fix="Ask again.", severity=ErrorSeverity.CRITICAL
        )

    @contextlib.contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have something interrupted, over and over, once the work is to end."""
        self.check()
        self._interrupts.append(interrupt)
        try:
            yield
        finally:
            self._interrupts.remove(interrupt)

    def run(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call a function in this thread; sessions that it opens belong to this work."""
        watcher = threading.Thread(target=self._watch, name="capgraph-data-watch", daemon=True)
        watcher.start()
        token = _current.set(self)
        try:
            self.check()
            return function(*args, **kwargs)
        finally:
            _current.reset(token)
            self._done.set()
            self._stopping.set()

    def _watch(self) -> None:
        if not self._stopping.wait(self.bounds.seconds):
            self._late = True
            self._stopping.set()
        # An interrupt that comes between two queries is lost, so it is repeated.
        while not self._done.is_set():
            for interrupt in list(self._interrupts):
                interrupt()
            self._done.wait(_PAUSE)


_current: contextvars.ContextVar[Work | None] = contextvars.ContextVar(
    "capgraph_data_work", default=None
)


def current_work(settings: Mapping[str, Any]) -> Work:
    """Return the work that this thread does, or one without a watch for a direct call."""
    return _current.get() or Work(Bounds.of(settings))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="capgraph-data")


async def run_work(
    settings: Mapping[str, Any],
    function: Callable[P, Result],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Result:
    """Run a function in the threads of data work; it ends when the caller is cancelled.

    Args:
        settings: Settings of the capability, with the bounds.
        function: What to run.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Raises:
        CapabilityError: Its time is over.
    """
    work = Work(Bounds.of(settings))
    # What tells of progress finds its way by context variables.
    context = contextvars.copy_context()
    call = functools.partial(work.run, function, *args, **kwargs)
    try:
        return await asyncio.get_running_loop().run_in_executor(_pool(), context.run, call)
    finally:
        work.stop()


def classify_data_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
    """Classify a failure of data work: what took too long once is not tried again."""
    found = classify_exception(
        exc,
        f"Unhandled error in {context.get('capability', 'unknown_capability')}",
        effect=context.get("effect", "none"),
    )
    if found.severity is ErrorSeverity.RETRIABLE:
        found.severity = ErrorSeverity.CRITICAL
    return found
