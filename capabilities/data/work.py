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
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticError

from capgraph.base import (
    CapabilityError,
    ErrorClassification,
    ErrorSeverity,
    ValidationError,
)
from capgraph.base.classify import classify_exception
from capgraph.configs.latest import Latest

P = ParamSpec("P")
Result = TypeVar("Result")
_PAUSE = 0.05


class Bounds(BaseModel):
    """How much one piece of data work may take; the aliases are settings of the capability.

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

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False
    )

    seconds: float = Field(60.0, gt=0, alias="max_seconds")
    rows: int = Field(50_000_000, gt=0, alias="max_rows")
    file_bytes: int = Field(2 * 1024**3, gt=0, alias="max_file_bytes")
    columns: int = Field(20_000, gt=0, alias="max_columns")
    memory: str = Field("2GB", alias="memory_limit")
    spill_bytes: int = Field(4 * 1024**3, gt=0, alias="max_spill_bytes")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Bounds:
        """Read the bounds from the settings of a capability.

        Raises:
            ValidationError: One of them is no number above 0.
        """
        try:
            return cls.model_validate({k: v for k, v in settings.items() if v is not None})
        except PydanticError as exc:
            problem = exc.errors()[0]
            raise ValidationError(
                f"The setting {problem['loc'][0]!r} is {problem['input']!r}.",
                fix="Give a number above 0.",
            ) from exc

    def spooled(self, size: int) -> int:
        """Return how many bytes the rows of a file of this size may become.

        A view of a small database can yield rows without end.
        """
        return min(self.file_bytes, max(64 * 1024**2, 20 * size))


class Kept:
    """Results by key, the latest used of them.

    >>> Kept(2).get("a", lambda: [1])
    [1]
    """

    def __init__(self, most: int = 16) -> None:
        self._results: Latest[Any, Any] = Latest(most)
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], Result]) -> Result:
        """Return the result of a key; made now where it is not kept."""
        with self._lock:
            found = self._results.get(key)
        if found is None:
            found = make()
        with self._lock:
            self._results[key] = found
        return cast("Result", found)


class Work:
    """One piece of work: its bounds, and what must be interrupted to end it.

    Args:
        bounds: What it may take.
        kept: What earlier work left for it.
    """

    def __init__(self, bounds: Bounds, kept: Kept | None = None) -> None:
        self.bounds = bounds
        self.kept: Kept = kept or Kept()
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


class Workers:
    """The few threads of data work, and what they keep; the capability that asks owns them.

    Args:
        threads: How many pieces of work run side by side.
    """

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="capgraph-data")
        self._kept = Kept()

    async def run(
        self,
        settings: Mapping[str, Any],
        function: Callable[P, Result],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run a function in these threads; it ends when the caller is cancelled.

        Args:
            settings: Settings of the capability, with the bounds.
            function: What to run.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Raises:
            CapabilityError: Its time is over.
        """
        work = Work(Bounds.of(settings), self._kept)
        # What tells of progress finds its way by context variables.
        context = contextvars.copy_context()
        call = functools.partial(work.run, function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, call)
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
