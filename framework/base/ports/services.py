"""Protocols of services that lower layers use and higher layers implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class KeyValueStore(Protocol):
    """Store of values by key, such as a state store."""

    async def set(self, key: str, value: Any, /) -> Any:
        """Store a value under a key, replacing any previous value."""


class StepDispatcher(Protocol):
    """Dispatcher that sends steps to worker processes.

    ``capgraph.scale`` implements this protocol.
    """

    def serves(self, queue: str) -> bool:
        """Return True if this process runs jobs of the queue."""

    async def is_dispatched(self, name: str) -> bool:
        """Return True if any process has already dispatched the step.

        Args:
            name: ID of the step, which is the same in every process that runs the turn.
        """

    async def dispatch(
        self,
        name: str,
        queue: str,
        request: Mapping[str, Any],
        *,
        on_event: Callable[[Any], None],
        timeout_seconds: float | None,
        on_start: Callable[[], None],
        should_detach: Callable[[], bool],
        should_cancel: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """Run a step on another worker and wait for its result.

        If the step was dispatched before, use its result or wait for it.

        Args:
            name: ID of the step. It does not depend on the process that runs the turn.
            queue: Name of the queue.
            request: Data that the worker needs, as plain JSON.
            on_event: Function that receives the events of the step.
            timeout_seconds: Time limit of the step. None means no limit.
            on_start: Function to call when a worker starts the step.
            should_detach: Function that returns True if this process must stop waiting because another process
                continues the turn.
            should_cancel: Function that returns True if the step must not start anymore.

        Returns:
            The result of the step. None if this process detached, or if the step was canceled
            before it started.

        Raises:
            TimeoutError: The time limit passed before the step started.
            PersistenceError: Another process holds the lease of the thread.
        """
        ...

    def slot(self, name: str, limit: int) -> AbstractAsyncContextManager[None]:
        """Return a context manager that holds a concurrency slot.

        The slots are shared by all processes.

        Args:
            name: Name of the capability.
            limit: Maximum number of concurrent steps of the capability.
        """


class Sink(Protocol):
    """Receiver of run events."""

    def emit(self, event: Any) -> Any:
        """Process a single event. Implementations may be coroutine functions."""


class SqlExecutor(Protocol):
    """Access to capgraph's own tables in the database that stores the threads.

    SQL statements contain ``?`` for each value, ``{now}`` for the database clock in seconds,
    and ``{name}`` for text columns that sort by code point.
    """

    async def run(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> tuple[int, list[tuple[Any, ...]]]:
        """Run a single SQL statement in its own transaction.

        Args:
            statement: SQL statement with placeholders.
            values: Values for the ``?`` placeholders.

        Returns:
            Number of affected rows, and the rows that the statement returned.

        Raises:
            PersistenceError: The statement failed, or the database is unavailable.
        """
        ...

    def run_blocking(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> tuple[int, list[tuple[Any, ...]]] | None:
        """Run a single SQL statement on a separate connection, from a thread without an event loop.

        Args:
            statement: SQL statement with placeholders.
            values: Values for the ``?`` placeholders.

        Returns:
            Number of affected rows, and the rows that the statement returned. None for an in-memory
            database, which a second connection cannot access.

        Raises:
            PersistenceError: The statement failed, or the database is unavailable.
        """
        ...
