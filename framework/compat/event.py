"""lionagi's events: ``Event``, ``Execution`` and ``EventStatus``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_serializer
from pydantic_core import PydanticSerializationError, to_jsonable_python

from capgraph.compat.element import Element
from capgraph.helpers.plain_data import parse_enum

_MAX_ERRORS = 100
_UNSERIALIZABLE = "<unserializable>"


class EventStatus(StrEnum):
    """Status of an event."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    ABORTED = "aborted"

    @property
    def is_terminal(self) -> bool:
        """True if the status is final."""
        return self not in (EventStatus.PENDING, EventStatus.PROCESSING)


class Execution(BaseModel):
    """Execution record of an event.

    Attributes:
        status: Status of the event.
        duration: Duration in seconds.
        response: Return value of the work.
        error: Exception that the work raised.
        retryable: True if a retry with a fresh copy makes sense; None if unknown.

    >>> Execution(error=ValueError("no")).model_dump(mode="json")["error"]
    {'error': 'ValueError', 'message': 'no'}
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    status: EventStatus = EventStatus.PENDING
    duration: float | None = None
    response: Any = None
    error: Any = None
    retryable: bool | None = None

    @field_serializer("response")
    def _serialize_response(self, value: Any) -> Any:
        try:
            return to_jsonable_python(value)
        except PydanticSerializationError:
            return _UNSERIALIZABLE

    @field_serializer("error")
    def _serialize_error(self, value: Any) -> Any:
        return (
            _error_to_dict(value)
            if isinstance(value, BaseException)
            else self._serialize_response(value)
        )


def _error_to_dict(error: BaseException) -> dict[str, Any]:
    data: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, BaseExceptionGroup):
        data["exceptions"] = [_error_to_dict(inner) for inner in error.exceptions[:_MAX_ERRORS]]
    return data


class Event(Element):
    """Unit of work that runs at most once. A subclass implements ``_invoke`` or ``_stream``.

    Attributes:
        execution: Execution record. Failures are stored here, not raised.
        streaming: True if the work is the async generator ``_stream()``.

    >>> class Hello(Event):
    ...     name: str
    ...     async def _invoke(self):
    ...         return f"Hello {self.name}"
    >>> event = Hello(name="you")
    >>> asyncio.run(event.invoke())
    >>> event.response, event.status.value
    ('Hello you', 'completed')
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    execution: Execution = Field(default_factory=Execution)
    streaming: bool = False
    _completion_events: list[asyncio.Event] = PrivateAttr(default_factory=list)

    async def _invoke(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must implement '_invoke'.")

    def _stream(self) -> AsyncIterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement '_stream'.")

    @property
    def status(self) -> EventStatus:
        """Status of the event. It can be set to a status or its text."""
        return self.execution.status

    @status.setter
    def status(self, value: EventStatus | str) -> None:
        self.execution.status = parse_enum(EventStatus, value, "status")
        if self.status.is_terminal:
            for waiting in self._completion_events:
                waiting.set()

    @property
    def response(self) -> Any:
        """Return value of the work."""
        return self.execution.response

    @response.setter
    def response(self, value: Any) -> None:
        self.execution.response = value

    @property
    def request(self) -> Mapping[str, Any]:
        """Keyword arguments for a processor's ``request_permission``."""
        return {}

    @property
    def completion_event(self) -> asyncio.Event:
        """An ``asyncio.Event`` that is set when the status is final."""
        completion = asyncio.Event()
        self._completion_events.append(completion)
        if self.status.is_terminal:
            completion.set()
        return completion

    async def invoke(self) -> None:
        """Run the work unless it was started before.

        A failure is stored. Cancellation is raised.
        """
        if self.status is EventStatus.PENDING:
            await self._record_execution(self._collect_stream if self.streaming else self._invoke)

    async def _collect_stream(self) -> list[Any]:
        return [piece async for piece in self._stream()]

    async def _record_execution(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.status = EventStatus.PROCESSING
        started_at = time.perf_counter()
        final_status = EventStatus.COMPLETED
        try:
            self.response = await work()
        except Exception as exc:
            final_status, self.execution.error = EventStatus.FAILED, exc
        except BaseException as exc:
            final_status, self.execution.error = EventStatus.CANCELLED, exc
            raise
        finally:
            self.execution.duration = time.perf_counter() - started_at
            self.status = final_status

    async def stream(self) -> AsyncIterator[Any]:
        """Yield the pieces of the work as they arrive, unless it was started before.

        The outcome is recorded as by :meth:`invoke`. Closing the generator cancels the work.
        """
        if self.status is not EventStatus.PENDING:
            return
        pieces: asyncio.Queue[Any] = asyncio.Queue(1)
        end_marker = object()

        async def work() -> list[Any]:
            received = []
            async for piece in self._stream():
                received.append(piece)
                await pieces.put(piece)
            return received

        async def run() -> None:
            await self._record_execution(work)
            await pieces.put(end_marker)

        task = asyncio.create_task(run())
        try:
            while (piece := await pieces.get()) is not end_marker:
                yield piece
        finally:
            task.cancel()
            await asyncio.wait([task])

    def assert_completed(self) -> None:
        """Check that the event was completed.

        Raises:
            RuntimeError: The event was not completed. Its failure is chained.
        """
        if self.status is not EventStatus.COMPLETED:
            cause = self.execution.error
            message = f"The event {self.id} is {self.status.value}" + (
                f": {cause}" if cause else "."
            )
            raise RuntimeError(message) from (cause if isinstance(cause, BaseException) else None)

    def as_fresh_event(self) -> Event:
        """Return a pending copy with a new ID."""
        skipped = {"id", "created_at", "execution", "metadata"}
        values = {n: getattr(self, n) for n in type(self).model_fields if n not in skipped}
        original = {"id": str(self.id), "created_at": self.created_at}
        return type(self)(**values, metadata={**self.metadata, "original": original})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoReturn:
        """Raise an error: the work of an event cannot be restored from data.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"{cls.__name__} cannot be restored from data."
            " Fix: call as_fresh_event() on the original."
        )
