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
from capgraph.base.error_classification import classify_exception
from capgraph.configs.bounded_dict import BoundedDict

P = ParamSpec("P")
Result = TypeVar("Result")
_INTERRUPT_INTERVAL_SECONDS = 0.05


class DataLimits(BaseModel):
    """How much one piece of data work may take; the aliases are settings of the capability.

    Attributes:
        max_seconds: Time.
        max_rows: Rows of one table.
        max_file_bytes: Size of one file; Parquet, which is read by columns, may have ten times that.
        max_columns: Columns of one table.
        memory_limit: Memory of DuckDB, in its own words.
        max_spill_bytes: What DuckDB may lay down on the disk meanwhile.

    >>> DataLimits.from_settings({"max_rows": 10}).max_rows
    10
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False
    )

    max_seconds: float = Field(60.0, gt=0, alias="max_seconds")
    max_rows: int = Field(50_000_000, gt=0, alias="max_rows")
    max_file_bytes: int = Field(2 * 1024**3, gt=0, alias="max_file_bytes")
    max_columns: int = Field(20_000, gt=0, alias="max_columns")
    memory_limit: str = Field("2GB", alias="memory_limit")
    max_spill_bytes: int = Field(4 * 1024**3, gt=0, alias="max_spill_bytes")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> DataLimits:
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

    def max_export_bytes(self, file_bytes: int) -> int:
        """Return how many bytes the rows of a file of this size may become.

        A view of a small database can yield rows without end.
        """
        return min(self.max_file_bytes, max(64 * 1024**2, 20 * file_bytes))


class ResultCache:
    """Results by key, the latest used of them.

    >>> ResultCache(2).get_or_compute("a", lambda: [1])
    [1]
    """

    def __init__(self, max_entries: int = 16) -> None:
        self._results: BoundedDict[Any, Any] = BoundedDict(max_entries)
        self._lock = threading.Lock()

    def get_or_compute(self, key: Any, compute: Callable[[], Result]) -> Result:
        """Return the result of a key; made now where it is not kept."""
        with self._lock:
            found = self._results.get(key)
        if found is None:
            found = compute()
        with self._lock:
            self._results[key] = found
        return cast("Result", found)


class DataOperation:
    """One piece of work: its bounds, and what must be interrupted to end it.

    Args:
        limits: What it may take.
        cache: What earlier work left for it.
    """

    def __init__(self, limits: DataLimits, cache: ResultCache | None = None) -> None:
        self.limits = limits
        self.cache: ResultCache = cache or ResultCache()
        self._stop_callbacks: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._timed_out = False

    def stop(self) -> None:
        """End the work soon, from any thread."""
        self._stopping.set()

    def raise_if_stopped(self) -> None:
        """Go on, or not.

        Raises:
            CapabilityError: The work was stopped, or its time is over.
        """
        if not self._stopping.is_set():
            return
        if self._timed_out:
            raise CapabilityError(
                f"Reading the data took longer than {self.limits.max_seconds:g} s and was stopped.",
                fix="Ask for less, check the file, or raise 'max_seconds' in the settings.",
                severity=ErrorSeverity.CRITICAL,
            )
        raise CapabilityError(
            "Reading the data was stopped.", fix="Ask again.", severity=ErrorSeverity.CRITICAL
        )

    @contextlib.contextmanager
    def on_stop(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have something interrupted, over and over, once the work is to end."""
        self.raise_if_stopped()
        self._stop_callbacks.append(callback)
        try:
            yield
        finally:
            self._stop_callbacks.remove(callback)

    def run(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call a function in this thread; sessions that it opens belong to this work."""
        watcher = threading.Thread(target=self._watch, name="capgraph-data-watch", daemon=True)
        watcher.start()
        token = _current.set(self)
        try:
            self.raise_if_stopped()
            return function(*args, **kwargs)
        finally:
            _current.reset(token)
            self._done.set()
            self._stopping.set()

    def _watch(self) -> None:
        if not self._stopping.wait(self.limits.max_seconds):
            self._timed_out = True
            self._stopping.set()
        # An interrupt that comes between two queries is lost, so it is repeated.
        while not self._done.is_set():
            for interrupt in list(self._stop_callbacks):
                interrupt()
            self._done.wait(_INTERRUPT_INTERVAL_SECONDS)


_current: contextvars.ContextVar[DataOperation | None] = contextvars.ContextVar(
    "capgraph_data_work", default=None
)


def current_operation(settings: Mapping[str, Any]) -> DataOperation:
    """Return the work that this thread does, or one without a watch for a direct call."""
    return _current.get() or DataOperation(DataLimits.from_settings(settings))


class DataThreadPool:
    """The few threads of data work, and what they keep; the capability that asks owns them.

    Args:
        threads: How many pieces of work run side by side.
    """

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="capgraph-data")
        self._cache = ResultCache()

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
        work = DataOperation(DataLimits.from_settings(settings), self._cache)
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
