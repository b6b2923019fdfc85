"""lionagi's events: ``Event``, ``Execution``, and ``EventStatus``."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager
from enum import StrEnum
from typing import Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_serializer
from pydantic_core import PydanticSerializationError, to_jsonable_python

from capgraph.compat.element import Element
from capgraph.helpers.plain_data import parse_enum

_MAX_ERRORS = 100
_UNSERIALIZABLE = "<unserializable>"
_RECORDED = "_is_recorded"
"""Attribute of the methods whose outcome is recorded."""


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
    """Record of an event's execution. Setting a final status fires the event's ``completion_event``.

    Attributes:
        status: Status of the event.
        duration: Duration in seconds.
        response: Return value of the work.
        error: Exception that the work raised, or an exception group.
        retryable: True if a retry with a fresh copy may succeed. None if unknown.

    >>> Execution(error=ValueError("no")).model_dump(mode="json")["error"]
    {'error': 'ValueError', 'message': 'no'}
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    status: EventStatus = EventStatus.PENDING
    duration: float | None = None
    response: Any = None
    error: Any = None
    retryable: bool | None = None
    _completion_events: list[asyncio.Event] = PrivateAttr(default_factory=list)

    def __setattr__(self, name: str, value: Any) -> None:
        is_status = name == "status"
        super().__setattr__(name, parse_enum(EventStatus, value, "status") if is_status else value)
        if is_status:
            self._notify()

    def _notify(self) -> None:
        if self.status.is_terminal:
            for completion in self._completion_events:
                completion.set()

    def add_error(self, error: BaseException) -> None:
        """Add an exception to the execution record.

        Multiple exceptions are stored as an exception group of at most 100 exceptions.
        """
        if not isinstance(self.error, BaseException):
            self.error = error
            return
        group = self.error
        errors = group.exceptions if isinstance(group, BaseExceptionGroup) else (group,)
        if len(errors) < _MAX_ERRORS:
            self.error = BaseExceptionGroup("several errors", [*errors, error])

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


def _recorded(
    method: Callable[..., Awaitable[Any]],
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap an ``invoke`` method so that it runs at most once and its outcome is recorded."""

    @functools.wraps(method)
    async def invoke(self: Event, *args: Any, **kwargs: Any) -> Any:
        result = None
        if self._may_start():
            with self._record_execution():
                result = await method(self, *args, **kwargs)
        return result

    setattr(invoke, _RECORDED, True)
    return invoke


def _recorded_stream(method: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
    """Wrap a ``stream`` method so that it runs at most once and its outcome is recorded."""

    @functools.wraps(method)
    async def stream(self: Event, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if not self._may_start():
            return
        received: list[Any] = []
        with self._record_execution():
            async with aclosing(method(self, *args, **kwargs)) as pieces:
                async for piece in pieces:
                    received.append(piece)
                    yield piece
            self.response = received if self.response is None else self.response

    setattr(stream, _RECORDED, True)
    return stream


class Event(Element):
    """Unit of work that runs at most once. Subclasses implement ``_invoke`` or ``_stream``.

    A subclass may instead override ``invoke`` or ``stream`` and set the status itself. The
    status, duration, and exception of an overridden method are also recorded.

    Attributes:
        execution: Execution record. Exceptions are stored here and not raised.
        streaming: True if the work is implemented by the async generator ``_stream()``.

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
    _runner: asyncio.Task[Any] | None = PrivateAttr(default=None)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, record in (("invoke", _recorded), ("stream", _recorded_stream)):
            method: Any = getattr(cls, name)
            if not hasattr(method, _RECORDED):
                setattr(cls, name, record(method))

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "execution":
            super().__setattr__(name, value)
            return
        completion_events = self.execution._completion_events
        super().__setattr__(name, value)
        self.execution._completion_events += completion_events
        self.execution._notify()

    async def _invoke(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must implement '_invoke'.")

    def _stream(self) -> AsyncIterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement '_stream'.")

    @property
    def status(self) -> EventStatus:
        """Status of the event, which can be set to an ``EventStatus`` or its string value."""
        return self.execution.status

    @status.setter
    def status(self, value: EventStatus | str) -> None:
        self.execution.status = value  # type: ignore[assignment]  # it converts text

    @property
    def response(self) -> Any:
        """Return value of the event's work."""
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
        """``asyncio.Event`` that is set when the status of this event becomes final."""
        completion = asyncio.Event()
        self.execution._completion_events.append(completion)
        self.execution._notify()
        return completion

    @_recorded
    async def invoke(self) -> None:
        """Run the event's work, unless the work was started before.

        Exceptions are stored in the execution record. Cancellation is raised.
        """
        if self.streaming:
            async for _ in self.stream():
                pass
        else:
            self.response = await self._invoke()

    @_recorded_stream
    async def stream(self) -> AsyncIterator[Any]:
        """Yield the parts of the event's result as they arrive, unless the work was started before.

        The outcome is recorded as in :meth:`invoke`. Closing the generator cancels the work.
        """
        pieces: Any = self._stream()
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    def _may_start(self) -> bool:
        """Return True if the event is pending or is calling itself from an overridden method."""
        is_nested = self._runner is not None and self._runner is asyncio.current_task()
        return is_nested or self.status is EventStatus.PENDING

    @contextmanager
    def _record_execution(self) -> Iterator[None]:
        """Context manager that records the status, duration, and exception of its block."""
        outer_runner, self._runner = self._runner, asyncio.current_task()
        self.status = EventStatus.PROCESSING
        started_at = time.perf_counter()

        def end(status: EventStatus, error: BaseException | None = None) -> None:
            self._runner = outer_runner
            self.execution.duration = time.perf_counter() - started_at
            if error is not None and error is not self.execution.error:
                self.execution.add_error(error)
            self.status = status

        try:
            yield
        except Exception as exc:
            end(EventStatus.FAILED, exc)
        except BaseException as exc:
            end(EventStatus.CANCELLED, exc)
            raise
        else:  # the work may have set its final status itself
            end(self.status if self.status.is_terminal else EventStatus.COMPLETED)

    def assert_completed(self) -> None:
        """Raise an error unless the event completed successfully.

        Raises:
            RuntimeError: The event did not complete. The exception of the event is chained.
        """
        if self.status is not EventStatus.COMPLETED:
            cause = self.execution.error
            message = f"The event {self.id} is {self.status.value}" + (
                f": {cause}" if cause else "."
            )
            raise RuntimeError(message) from (cause if isinstance(cause, BaseException) else None)

    def as_fresh_event(self) -> Event:
        """Return a pending copy of the event with a new ID, for example for a retry."""
        skipped = {"id", "created_at", "execution", "metadata"}
        values = {n: getattr(self, n) for n in type(self).model_fields if n not in skipped}
        original = {"id": str(self.id), "created_at": self.created_at}
        return type(self)(**values, metadata={**self.metadata, "original": original})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoReturn:
        """Reject the conversion, because an event's work cannot be restored from data.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"{cls.__name__} events cannot be restored from data. Fix: call as_fresh_event() on "
            "the original."
        )
