"""Thread pool for data processing that can be stopped.

Data processing does not use the event loop's default threads, because the whole process (savers,
leases, DNS) needs them. Each operation ends when its step is canceled or reaches its time limit.
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

from capgraph.base import CapabilityError, ErrorClassification, ErrorSeverity, ValidationError
from capgraph.base.error_classification import classify_exception
from capgraph.configs.bounded_dict import BoundedDict

P = ParamSpec("P")
Result = TypeVar("Result")
_INTERRUPT_INTERVAL_SECONDS = 0.05


class DataLimits(BaseModel):
    """Resource limits of one operation. The fields are settings of the capability.

    Attributes:
        max_seconds: Time limit in seconds.
        max_rows: Maximum number of rows in a table.
        max_file_bytes: Maximum size of a file. Parquet files may be ten times larger.
        max_columns: Maximum number of columns in a table.
        memory_limit: Memory limit of DuckDB, in DuckDB's notation.
        max_spill_bytes: Maximum disk space that DuckDB may use temporarily.

    >>> DataLimits.from_settings({"max_rows": 10}).max_rows
    10
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False
    )

    max_seconds: float = Field(60.0, gt=0)
    max_rows: int = Field(50_000_000, gt=0)
    max_file_bytes: int = Field(2 * 1024**3, gt=0)
    max_columns: int = Field(20_000, gt=0)
    memory_limit: str = "2GB"
    max_spill_bytes: int = Field(4 * 1024**3, gt=0)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> DataLimits:
        """Read the resource limits from the settings of a capability.

        Raises:
            ValidationError: A limit is not a positive number.
        """
        try:
            return cls.model_validate({k: v for k, v in settings.items() if v is not None})
        except PydanticError as exc:
            problem = exc.errors()[0]
            raise ValidationError(
                f"The setting {problem['loc'][0]!r} is {problem['input']!r}: expected a positive number.",
                fix="Set it to a number above 0.",
            ) from exc

    def max_export_bytes(self, file_bytes: int) -> int:
        """Return the maximum size of a CSV export from a SQLite file of the given size.

        The size is limited because a view in a small database can produce an unlimited number of
        rows.
        """
        return min(self.max_file_bytes, max(64 * 1024**2, 20 * file_bytes))


class ResultCache:
    """Thread-safe cache for the results of recent data operations.

    >>> ResultCache(2).get_or_compute("a", lambda: [1])
    [1]
    """

    def __init__(self, max_entries: int = 16) -> None:
        self._results: BoundedDict[Any, Any] = BoundedDict(max_entries)
        self._lock = threading.Lock()

    def get_or_compute(self, key: Any, compute: Callable[[], Result]) -> Result:
        """Return the cached result for a key, or compute and cache the result."""
        with self._lock:
            result = self._results.get(key)
        if result is None:
            result = compute()
        with self._lock:
            self._results[key] = result
        return cast("Result", result)


class DataOperation:
    """Cancelable data operation with resource limits.

    Args:
        limits: Resource limits of the operation.
        cache: Result cache that is shared with other operations.
    """

    def __init__(self, limits: DataLimits, cache: ResultCache | None = None) -> None:
        self.limits = limits
        self.cache: ResultCache = cache or ResultCache()
        self._stop_callbacks: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._timed_out = False

    def stop(self) -> None:
        """Request that the data operation stop soon. This method is thread-safe."""
        self._stopping.set()

    def raise_if_stopped(self) -> None:
        """Raise an error if the data operation was stopped or timed out.

        Raises:
            CapabilityError: The operation was stopped or reached its time limit.
        """
        if not self._stopping.is_set():
            return
        if self._timed_out:
            raise CapabilityError(
                f"Reading the data took longer than {self.limits.max_seconds:g} s and was stopped.",
                fix="Request less data, check the file, or raise 'max_seconds' in the settings.",
                severity=ErrorSeverity.CRITICAL,
            )
        raise CapabilityError(
            "Reading the data was stopped, because its step was canceled.",
            fix="Send the request again.",
            severity=ErrorSeverity.CRITICAL,
        )

    @contextlib.contextmanager
    def on_stop(self, callback: Callable[[], None]) -> Iterator[None]:
        """Context manager that calls ``callback`` repeatedly after the operation is stopped.

        The call is repeated because an interrupt between two queries has no effect.
        """
        self.raise_if_stopped()
        self._stop_callbacks.append(callback)
        try:
            yield
        finally:
            self._stop_callbacks.remove(callback)

    def run(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run a function in the current thread as part of this data operation.

        Data sessions that the function opens are interrupted when the operation is stopped.
        """
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
        # An interrupt between two queries has no effect, so it is repeated.
        while not self._done.is_set():
            for interrupt in list(self._stop_callbacks):
                interrupt()
            self._done.wait(_INTERRUPT_INTERVAL_SECONDS)


_current: contextvars.ContextVar[DataOperation | None] = contextvars.ContextVar(
    "capgraph_data_work", default=None
)


def current_operation(settings: Mapping[str, Any]) -> DataOperation:
    """Return the data operation of the current thread.

    Outside a thread pool, a new operation without a time limit is returned.
    """
    return _current.get() or DataOperation(DataLimits.from_settings(settings))


class DataThreadPool:
    """Thread pool that runs the data operations of a capability and caches their results.

    Args:
        threads: Maximum number of concurrent operations.
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
        """Run a function in the thread pool, and stop the function if the caller is canceled.

        Args:
            settings: Settings of the capability, including the resource limits.
            function: Function to run.
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Raises:
            CapabilityError: The operation reached its time limit.
        """
        work = DataOperation(DataLimits.from_settings(settings), self._cache)
        # Progress events need the context variables of the caller.
        context = contextvars.copy_context()
        call = functools.partial(work.run, function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, call)
        finally:
            work.stop()


def classify_data_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
    """Classify an error from a data operation, without allowing retries.

    Errors that would be retried, such as timeouts, are classified as critical instead.
    """
    classification = classify_exception(
        exc,
        f"Unhandled error in {context.get('capability', 'unknown_capability')}",
        effect=context.get("effect", "none"),
    )
    if classification.severity is ErrorSeverity.RETRIABLE:
        classification.severity = ErrorSeverity.CRITICAL
    return classification
