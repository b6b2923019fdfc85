"""Something that happens once and says how it ended: ``Event``, ``Execution``, ``EventStatus``."""

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
    """Where an event stands."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    ABORTED = "aborted"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more will happen."""
        return self not in (EventStatus.PENDING, EventStatus.PROCESSING)


class Execution(BaseModel):
    """How an event went.

    Attributes:
        status: Where it stands.
        duration: Seconds that it took.
        response: What it gave.
        error: What was raised.
        retryable: Whether trying a fresh copy makes sense, where somebody knows.

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
    told: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, BaseExceptionGroup):
        told["exceptions"] = [_error_to_dict(one) for one in error.exceptions[:_MAX_ERRORS]]
    return told


class Event(Element):
    """Something that is done at most once. A subclass says what in ``_invoke`` (or ``_stream``).

    Attributes:
        execution: How it went; a failure is read here and not raised.
        streaming: Whether its work is ``_stream()``, an async generator.

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
        raise NotImplementedError(f"{type(self).__name__} has no '_invoke'.")

    def _stream(self) -> AsyncIterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no '_stream'.")

    @property
    def status(self) -> EventStatus:
        """Where it stands; a status or its text can be set."""
        return self.execution.status

    @status.setter
    def status(self, value: EventStatus | str) -> None:
        self.execution.status = parse_enum(EventStatus, value, "status")
        if self.status.is_terminal:
            for waiting in self._completion_events:
                waiting.set()

    @property
    def response(self) -> Any:
        """What it gave."""
        return self.execution.response

    @response.setter
    def response(self, value: Any) -> None:
        self.execution.response = value

    @property
    def request(self) -> Mapping[str, Any]:
        """What a processor's ``request_permission`` is told."""
        return {}

    @property
    def completion_event(self) -> asyncio.Event:
        """Something to wait for that is set when it has ended."""
        found = asyncio.Event()
        self._completion_events.append(found)
        if self.status.is_terminal:
            found.set()
        return found

    async def invoke(self) -> None:
        """Do it, unless it was begun before. A failure is kept, cancellation passes through."""
        if self.status is EventStatus.PENDING:
            await self._record_execution(self._collect_stream if self.streaming else self._invoke)

    async def _collect_stream(self) -> list[Any]:
        return [piece async for piece in self._stream()]

    async def _record_execution(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.status = EventStatus.PROCESSING
        began = time.perf_counter()
        end = EventStatus.COMPLETED
        try:
            self.response = await work()
        except Exception as exc:
            end, self.execution.error = EventStatus.FAILED, exc
        except BaseException as exc:
            end, self.execution.error = EventStatus.CANCELLED, exc
            raise
        finally:
            self.execution.duration = time.perf_counter() - began
            self.status = end

    async def stream(self) -> AsyncIterator[Any]:
        """Give its pieces as they come, unless it was begun before.

        It ends as :meth:`invoke` does; whoever stops listening cancels it.
        """
        if self.status is not EventStatus.PENDING:
            return
        pieces: asyncio.Queue[Any] = asyncio.Queue(1)
        over = object()

        async def work() -> list[Any]:
            given = []
            async for piece in self._stream():
                given.append(piece)
                await pieces.put(piece)
            return given

        async def run() -> None:
            await self._record_execution(work)
            await pieces.put(over)

        task = asyncio.create_task(run())
        try:
            while (piece := await pieces.get()) is not over:
                yield piece
        finally:
            task.cancel()
            await asyncio.wait([task])

    def assert_completed(self) -> None:
        """Make sure that it did what it should.

        Raises:
            RuntimeError: It did not; the failure is chained.
        """
        if self.status is not EventStatus.COMPLETED:
            cause = self.execution.error
            told = f"The event {self.id} is {self.status.value}" + (f": {cause}" if cause else ".")
            raise RuntimeError(told) from (cause if isinstance(cause, BaseException) else None)

    def as_fresh_event(self) -> Event:
        """Return a copy that has not begun, with an id of its own."""
        skipped = {"id", "created_at", "execution", "metadata"}
        given = {n: getattr(self, n) for n in type(self).model_fields if n not in skipped}
        original = {"id": str(self.id), "created_at": self.created_at}
        return type(self)(**given, metadata={**self.metadata, "original": original})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoReturn:
        """Refuse: what an event does cannot be read back from data.

        Raises:
            NotImplementedError: Always.
        """
        told = f"{cls.__name__} cannot be made of plain data; use as_fresh_event() of the original."
        raise NotImplementedError(told)
