"""Strategies with an enforced lifecycle, under the names of PyRIT; the lifecycle is the pipeline's.

A capability with ``validate``, ``setup`` and ``teardown`` is the way of this project.
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
    """A strategy that could not do its work; the first error is its cause."""

    code = "CG-CAPABILITY"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class StrategyContext(ABC):  # noqa: B024  a name to derive from
    """What a strategy works on; usually a dataclass."""

    def duplicate(self: SelfT) -> SelfT:
        """Return a deep copy; ``field(metadata={"duplicate": False})`` marks what both share."""
        shared: dict[int, Any] = {}
        declared: Any = getattr(self, "__dataclass_fields__", {})
        for entry in declared.values():
            if entry.metadata.get("duplicate") is False:
                value = getattr(self, entry.name)
                shared[id(value)] = value
        return copy.deepcopy(self, shared)


@dataclass
class StrategyConverterConfig:
    """What prompts and answers are passed through, in order.

    Attributes:
        request_converters: For what is sent.
        response_converters: For what comes back.
    """

    request_converters: list[Any] = field(default_factory=list)
    response_converters: list[Any] = field(default_factory=list)


class StrategyEvent(Enum):
    """A moment of a strategy's run."""

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
    """What handlers are told.

    Attributes:
        event: The moment.
        strategy_name: Name of the class.
        strategy_id: Id of the strategy.
        context: What it works on.
        result: What it gave, after ``execute``.
        error: What was raised.
        timestamp: When.
        duration: Seconds of the phase, after it; of the run, at its end.
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
    """Is told of the moments of runs."""

    @abstractmethod
    async def on_event(self, event_data: StrategyEventData[ContextT, ResultT]) -> None:
        """Take up one moment."""


class StrategyLogAdapter(logging.LoggerAdapter[logging.Logger]):
    """Puts the strategy's name and the start of its id before each message.

    >>> adapter = StrategyLogAdapter(_logger, {"strategy_name": "Ask", "strategy_id": "0123456789"})
    >>> adapter.process("ready", {})[0]
    '[Ask (ID: 01234567)] ready'
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the prefix before a message."""
        known: Mapping[str, Any] = self.extra or {}
        name, short = known.get("strategy_name"), str(known.get("strategy_id", ""))[:8]
        return f"[{name} (ID: {short})] {msg}", kwargs


class Strategy(ABC, Generic[ContextT, ResultT]):
    """Work with a lifecycle: validate, set up, perform, tear down (always).

    Two runs on one context share it: give each ``context.duplicate()``.

    Args:
        context_type: What :meth:`execute_async` makes of its keywords.
        event_handler: Told of each moment; :meth:`add_event_handler` adds more.
        logger: Where failures of handlers and labels go.
        handler_timeout: Seconds that handlers may take for one moment.

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
        self._handlers = [] if event_handler is None else [event_handler]
        self._handler_timeout = handler_timeout
        names = {"strategy_name": type(self).__name__, "strategy_id": str(self._id)}
        self._logger = StrategyLogAdapter(logger, names)
        self.memory_labels: dict[str, str] = self._load_labels()

    def _load_labels(self) -> dict[str, str]:
        text = os.environ.get(_LABELS_VARIABLE, "").strip()
        try:
            found = ast.literal_eval(text) if text else {}
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        self._logger.warning("%s is no dictionary and is not used: %.80r", _LABELS_VARIABLE, text)
        return {}

    def add_event_handler(self, handler: StrategyEventHandler[ContextT, ResultT]) -> None:
        """Tell a handler of each moment from now on; one that is told already is told once."""
        if not any(known is handler for known in self._handlers):
            self._handlers.append(handler)

    def remove_event_handler(self, handler: StrategyEventHandler[ContextT, ResultT]) -> None:
        """Tell a handler nothing more.

        Raises:
            ValueError: It was told nothing.
        """
        if not any(known is handler for known in self._handlers):
            raise ValidationError(f"{handler!r} is no handler of {self!r}.")
        self._handlers = [known for known in self._handlers if known is not handler]

    def get_identifier(self) -> dict[str, str]:
        """Return the class, its module and the id."""
        cls = type(self)
        return {"__type__": cls.__name__, "__module__": cls.__module__, "id": str(self._id)}

    @abstractmethod
    def _validate_context(self, *, context: ContextT) -> Any:
        """Raise when the context is not fit; may be a coroutine function."""

    @abstractmethod
    async def _setup_async(self, *, context: ContextT) -> None:
        """Prepare the work."""

    @abstractmethod
    async def _perform_async(self, *, context: ContextT) -> ResultT:
        """Do the work."""

    @abstractmethod
    async def _teardown_async(self, *, context: ContextT) -> None:
        """Clean up; it runs also when the preparation failed half-way."""

    async def execute_async(self, **kwargs: Any) -> ResultT:
        """Make a context of the keywords and run with it.

        Raises:
            ValueError: The keywords or the context are not fit.
            RuntimeError: The work failed.
        """
        try:
            context = self._context_type(**kwargs)
        except (TypeError, ValueError) as exc:
            name = self._context_type.__name__
            raise ValidationError(
                f"{type(self).__name__} cannot make a {name} of {sorted(kwargs)}: {exc}.",
                fix=f"Give what {name} takes.",
            ) from exc
        return await self.execute_with_context_async(context=context)

    async def execute_with_context_async(self, *, context: ContextT) -> ResultT:
        """Run with a context.

        Raises:
            ValueError: The context is not fit; the cause is chained.
            RuntimeError: The work failed; the first error is chained, later ones are its notes.
        """
        name, began = type(self).__name__, time.perf_counter()
        phase: Phase = "validate"
        phase_began = began

        async def tell(now: Phase, moment: str, result: Any) -> None:
            nonlocal phase, phase_began
            phase, duration = now, None
            if moment == "pre":
                phase_began = time.perf_counter()
            else:
                duration = time.perf_counter() - phase_began
            event = StrategyEvent(f"on_{moment}_{now}")
            await self._notify_handlers(event, context, result=result, duration=duration)

        async def validate() -> None:
            await maybe_await(self._validate_context(context=context))

        life = Lifecycle(
            validate=validate,
            setup=partial(self._setup_async, context=context),
            execute=partial(self._perform_async, context=context),
            teardown=partial(self._teardown_async, context=context),
            on_phase=tell,
        )
        try:
            result: ResultT = await life.run()
        except asyncio.CancelledError as exc:
            told = {"error": exc, "duration": time.perf_counter() - began}
            await shielded(self._notify_handlers(StrategyEvent.ON_CANCELLED, context, **told))
            raise
        except Exception as exc:
            told = {"error": exc, "duration": time.perf_counter() - began}
            await self._notify_handlers(StrategyEvent.ON_ERROR, context, **told)
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
        tasks = {asyncio.create_task(handler.on_event(data)): handler for handler in self._handlers}
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=self._handler_timeout)
        finally:
            late = [task for task in tasks if task.cancel()]
            await asyncio.gather(*tasks, return_exceptions=True)
        for task, handler in tasks.items():
            if task in late:
                told_why = f"took longer than {self._handler_timeout:g} s"
            elif not task.cancelled() and (error := task.exception()) is not None:
                told_why = f"raised {error!r}"
            else:
                continue
            self._logger.error("the handler %r %s at %s", handler, told_why, event.value)


def _format_root_cause(exc: BaseException) -> str:
    root = exc
    while (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
    return "" if root is exc else f" (root cause: {type(root).__name__}: {root})"
