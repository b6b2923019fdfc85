"""PyRIT's strategies, whose enforced lifecycle is that of the step pipeline.

New code uses a capability with ``validate``, ``setup``, and ``teardown``.
"""

from __future__ import annotations

import ast
import asyncio
import copy
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from capgraph.base.errors import CapgraphError, ErrorSeverity, ValidationError
from capgraph.helpers.async_calls import maybe_await, shielded
from capgraph.pipeline.lifecycle import Lifecycle, Phase

ContextT = TypeVar("ContextT", bound="StrategyContext")
ResultT = TypeVar("ResultT")
SelfT = TypeVar("SelfT", bound="StrategyContext")

_LABELS_VARIABLE = "GLOBAL_MEMORY_LABELS"
_logger = logging.getLogger(__name__)


class StrategyError(CapgraphError, RuntimeError):
    """Raised if a strategy run fails. The original exception is available as ``__cause__``."""

    code = "CG-CAPABILITY"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class StrategyContext(ABC):  # noqa: B024  subclasses define the fields
    """Base class for the context of a strategy run. Subclasses are usually dataclasses."""

    def duplicate(self: SelfT) -> SelfT:
        """Return a deep copy of the context.

        Fields declared with ``field(metadata={"duplicate": False})`` are shared and not copied.

        Raises:
            ValidationError: A field cannot be copied.
        """
        shared: dict[int, Any] = {}
        declared: Any = getattr(self, "__dataclass_fields__", {})
        for entry in declared.values():
            if entry.metadata.get("duplicate") is False:
                value = getattr(self, entry.name)
                shared[id(value)] = value
        try:
            return copy.deepcopy(self, dict(shared))
        except TypeError as exc:
            raise self._copy_error(shared, exc) from exc

    def _copy_error(self, shared: Mapping[int, Any], cause: TypeError) -> ValidationError:
        """Create the error for a context that cannot be copied, naming the first such field."""
        name = ""
        for field_name, value in vars(self).items():
            try:
                copy.deepcopy(value, dict(shared))
            except TypeError:
                name = field_name
                break
        return ValidationError(
            f"The field {name!r} of {type(self).__name__} cannot be copied: {cause}.",
            fix='Declare the field with field(metadata={"duplicate": False}) to share it.',
            facts={"field": name},
        )


@dataclass
class StrategyConverterConfig:
    """Ordered lists of converters that a strategy applies to prompts and responses.

    Attributes:
        request_converters: Converters for outgoing prompts.
        response_converters: Converters for incoming responses.
    """

    request_converters: list[Any] = field(default_factory=list)
    response_converters: list[Any] = field(default_factory=list)


class StrategyEvent(Enum):
    """Lifecycle event of a strategy."""

    ON_PRE_VALIDATE = "on_pre_validate"
    ON_POST_VALIDATE = "on_post_validate"
    ON_PRE_SETUP = "on_pre_setup"
    ON_POST_SETUP = "on_post_setup"
    ON_PRE_EXECUTE = "on_pre_execute"
    ON_POST_EXECUTE = "on_post_execute"
    ON_PRE_TEARDOWN = "on_pre_teardown"
    ON_POST_TEARDOWN = "on_post_teardown"
    ON_ERROR = "on_error"
    ON_CANCELLED = "on_cancelled"


@dataclass
class StrategyEventData(Generic[ContextT, ResultT]):
    """Data passed to the handlers of a strategy's lifecycle events.

    Attributes:
        event: Lifecycle event.
        strategy_name: Class name of the strategy.
        strategy_id: ID of the strategy.
        context: Context of the run.
        result: Result of the run, available after ``execute``.
        error: Exception that was raised.
        timestamp: Time of the event.
        duration: Duration in seconds of the finished phase, or of the whole run at its end.
    """

    event: StrategyEvent
    strategy_name: str
    strategy_id: str
    context: ContextT
    result: ResultT | None = None
    error: BaseException | None = None
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    duration: float | None = None


class StrategyEventHandler(ABC, Generic[ContextT, ResultT]):
    """Base class for handlers of a strategy's lifecycle events.

    A subclass implements ``on_event``, which may also be named ``on_event_async``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = vars(cls)
        if "on_event_async" in methods and "on_event" not in methods:
            cls.on_event = methods["on_event_async"]  # type: ignore[method-assign]

    @abstractmethod
    async def on_event(self, event_data: StrategyEventData[ContextT, ResultT]) -> None:
        """Handle a lifecycle event of a strategy."""


class StrategyLogAdapter(logging.LoggerAdapter[logging.Logger]):
    """Log adapter that prefixes messages with the strategy's name and short ID.

    >>> adapter = StrategyLogAdapter(_logger, {"strategy_name": "Ask", "strategy_id": "0123456789"})
    >>> adapter.process("ready", {})[0]
    '[Ask (ID: 01234567)] ready'
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Prefix a log message with the strategy's name and short ID."""
        known: Mapping[str, Any] = self.extra or {}
        name, short = known.get("strategy_name"), str(known.get("strategy_id", ""))[:8]
        return f"[{name} (ID: {short})] {msg}", kwargs


class Strategy(ABC, Generic[ContextT, ResultT]):
    """Strategy with a lifecycle: validate, set up, perform, and always tear down.

    Two runs with one context share it. Pass ``context.duplicate()`` to each.

    Args:
        context_type: Class of the context that :meth:`execute_async` creates.
        event_handler: Handler of lifecycle events; :meth:`add_event_handler` adds more. Its method
            ``on_event`` or ``on_event_async`` may be a function or a coroutine function.
        logger: Logger for failures of handlers and invalid labels.
        handler_timeout: Time limit of the handlers of one event, in seconds. Later ones are
            cancelled, and the run does not wait for them.

    Raises:
        ValidationError: The event handler has none of these methods.

    >>> @dataclass
    ... class Text(StrategyContext):
    ...     text: str = ""
    >>> class Shout(Strategy[Text, str]):
    ...     def _validate_context(self, *, context): assert context.text, "no text"
    ...     async def _setup_async(self, *, context): pass
    ...     async def _perform_async(self, *, context): return context.text.upper()
    ...     async def _teardown_async(self, *, context): pass
    >>> asyncio.run(Shout(context_type=Text).execute_async(text="hello"))
    'HELLO'
    """

    def __init__(
        self,
        *,
        context_type: type[ContextT],
        event_handler: StrategyEventHandler[ContextT, ResultT] | None = None,
        logger: logging.Logger = _logger,
        handler_timeout: float = 10.0,
    ) -> None:
        self._id = uuid.uuid4()
        self._context_type = context_type
        self._handlers: list[StrategyEventHandler[ContextT, ResultT]] = []
        if event_handler is not None:
            self.add_event_handler(event_handler)
        self._late_tasks: set[asyncio.Task[Exception | None]] = set()
        self._handler_timeout = handler_timeout
        names = {"strategy_name": type(self).__name__, "strategy_id": str(self._id)}
        self._logger = StrategyLogAdapter(logger, names)
        self._memory_labels: dict[str, str] = self._load_labels()

    def _load_labels(self) -> dict[str, str]:
        text = os.environ.get(_LABELS_VARIABLE, "").strip()
        try:
            labels = ast.literal_eval(text) if text else {}
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            labels = None
        if isinstance(labels, dict):
            return labels
        self._logger.warning("%s is ignored: %.80r is not a dictionary", _LABELS_VARIABLE, text)
        return {}

    def add_event_handler(self, handler: StrategyEventHandler[ContextT, ResultT]) -> None:
        """Register a handler for the strategy's lifecycle events.

        A handler that is already registered is ignored.

        Raises:
            ValidationError: The handler has neither ``on_event`` nor ``on_event_async``.
        """
        if not callable(_event_method(handler)):
            raise ValidationError(
                f"Invalid event handler {handler!r}: it has no method 'on_event'.",
                fix="Pass an object with the method on_event or on_event_async.",
            )
        if not any(registered is handler for registered in self._handlers):
            self._handlers.append(handler)

    def remove_event_handler(self, handler: StrategyEventHandler[ContextT, ResultT]) -> None:
        """Unregister a handler of the strategy's lifecycle events.

        Raises:
            ValueError: The handler is not registered.
        """
        if not any(registered is handler for registered in self._handlers):
            raise ValidationError(
                f"Event handler {handler!r} is not registered with {self!r}.",
                fix="Pass a registered handler.",
            )
        self._handlers = [registered for registered in self._handlers if registered is not handler]

    def get_identifier(self) -> dict[str, str]:
        """Return the strategy's class, module, and ID."""
        cls = type(self)
        return {"__type__": cls.__name__, "__module__": cls.__module__, "id": str(self._id)}

    @abstractmethod
    def _validate_context(self, *, context: ContextT) -> Any:
        """Raise an error if the context of a run is invalid.

        Subclasses implement this method, optionally as a coroutine function.
        """

    @abstractmethod
    async def _setup_async(self, *, context: ContextT) -> None:
        """Set up a strategy run before :meth:`_perform_async` is called."""

    @abstractmethod
    async def _perform_async(self, *, context: ContextT) -> ResultT:
        """Perform the strategy run and return its result."""

    @abstractmethod
    async def _teardown_async(self, *, context: ContextT) -> None:
        """Clean up after a strategy run, even if the setup or the run failed."""

    async def execute_async(self, **kwargs: Any) -> ResultT:
        """Create a context from keyword arguments, run the strategy with it, and return the result.

        Raises:
            ValueError: The arguments or the context are invalid.
            RuntimeError: The run failed.
        """
        try:
            context = self._context_type(**kwargs)
        except (TypeError, ValueError) as exc:
            name = self._context_type.__name__
            raise ValidationError(
                f"Invalid arguments {sorted(kwargs)} for {type(self).__name__}: {exc}.",
                fix=f"Pass the arguments of {name}.",
            ) from exc
        return await self.execute_with_context_async(context=context)

    async def execute_with_context_async(self, *, context: ContextT) -> ResultT:
        """Run the strategy with an existing context.

        Raises:
            ValueError: The context is invalid. The original exception is chained.
            RuntimeError: The run failed. The first exception is chained; later exceptions are added
                as notes.
        """
        name, started_at = type(self).__name__, time.perf_counter()
        phase: Phase = "validate"
        phase_started_at = started_at

        async def notify(new_phase: Phase, moment: str, result: Any) -> None:
            nonlocal phase, phase_started_at
            phase, duration = new_phase, None
            if moment == "pre":
                phase_started_at = time.perf_counter()
            else:
                duration = time.perf_counter() - phase_started_at
            event = StrategyEvent(f"on_{moment}_{new_phase}")
            await self._notify_handlers(event, context, result=result, duration=duration)

        async def validate() -> None:
            await maybe_await(self._validate_context(context=context))

        lifecycle = Lifecycle(
            validate=validate,
            setup=partial(self._setup_async, context=context),
            execute=partial(self._perform_async, context=context),
            teardown=partial(self._teardown_async, context=context),
            on_phase=notify,
        )
        try:
            result: ResultT = await lifecycle.run()
        except asyncio.CancelledError as exc:
            details = {"error": exc, "duration": time.perf_counter() - started_at}
            await shielded(self._notify_handlers(StrategyEvent.ON_CANCELLED, context, **details))
            raise
        except Exception as exc:
            details = {"error": exc, "duration": time.perf_counter() - started_at}
            await self._notify_handlers(StrategyEvent.ON_ERROR, context, **details)
            if phase == "validate":
                raise ValidationError(
                    f"Strategy context validation failed for {name}: {exc}"
                ) from exc
            raise StrategyError(
                f"Strategy execution failed for {name}: {exc}{_format_root_cause(exc)}"
            ) from exc
        return result

    async def _notify_handlers(
        self, event: StrategyEvent, context: ContextT, **details: Any
    ) -> None:
        data: StrategyEventData[ContextT, ResultT] = StrategyEventData(
            event, type(self).__name__, str(self._id), context, **details
        )
        handlers = self._handlers
        tasks = [asyncio.create_task(_call_handler(handler, data)) for handler in handlers]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=self._handler_timeout)
        finally:
            late = [task for task in tasks if task.cancel()]
            self._late_tasks.update(late)  # a handler may ignore its cancellation
            for task in late:
                task.add_done_callback(self._late_tasks.discard)
        for task, handler in zip(tasks, handlers, strict=True):
            if task in late:
                problem = f"took longer than {self._handler_timeout:g} s"
            elif task.cancelled():
                problem = "was cancelled"
            elif (error := task.result()) is not None:
                problem = f"raised {error!r}"
            else:
                continue
            self._logger.error("The handler %r %s at %s", handler, problem, event.value)


def _event_method(handler: Any) -> Any:
    return getattr(handler, "on_event", None) or getattr(handler, "on_event_async", None)


async def _call_handler(handler: Any, data: StrategyEventData[Any, Any]) -> Exception | None:
    """Call an event handler, and return the exception that it raised, or ``None``."""
    try:
        await maybe_await(_event_method(handler)(data))
    except Exception as exc:
        return exc
    return None


def _format_root_cause(exc: BaseException) -> str:
    root = exc
    while (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
    return "" if root is exc else f" (root cause: {type(root).__name__}: {root})"
