"""Behavior that logs the start, end, and failure of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from capgraph.behaviors.base import BaseBehavior, BehaviorContext
from capgraph.configs.logger import (
    MAX_MESSAGE_CHARS,
    escape_control_characters,
    get_logger,
    mask_secrets,
)
from capgraph.helpers.argument_validation import validate_arguments

_STARTED_AT = "audit_began"


class AuditBehavior(BaseBehavior):
    """Behavior that writes a log line when a step starts, ends, or fails.

    The line contains the beginning of the result, with secrets masked, but not the task. Use
    ``build_graph(…, audit=…)`` for a tamper-evident audit log.

    Args:
        logger: The logger. Defaults to ``capgraph.behavior.audit``. A logger that is not from
            ``logging``, such as that of structlog, receives the values as keyword arguments.
        metrics: Receiver of metrics: an object with ``increment(name, **labels)`` and
            ``histogram(name, value, **labels)``.
        preview: Maximum number of characters of a result in the log.
        clock: Function that returns seconds, to measure durations.

    >>> AuditBehavior(preview=0).before_execute(BehaviorContext("read", "read the level"))
    """

    @validate_arguments
    def __init__(
        self,
        logger: Any = None,
        metrics: Any = None,
        *,
        preview: int = 200,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._logger: Any = logger or get_logger("behavior", "audit")
        self._metrics = metrics
        self._preview = preview
        self._clock = clock

    def before_execute(self, context: BehaviorContext) -> None:
        """Log the start of a step."""
        context.metadata[_STARTED_AT] = self._clock()
        self._log("info", "started", context)
        if self._metrics is not None:
            self._metrics.increment("behavior.audit.invocations", agent_id=context.agent_id)

    def after_execute(self, context: BehaviorContext, result: Any) -> None:
        """Log the end of a step, its duration, and the beginning of its result."""
        elapsed = self._measure_ms(context)
        preview = (
            escape_control_characters(mask_secrets(str(result), self._preview))
            if self._preview
            else ""
        )
        self._log("info", "ended", context, elapsed, output_preview=preview)
        if self._metrics is not None:
            name = "behavior.audit.duration_ms"
            self._metrics.histogram(name, elapsed, agent_id=context.agent_id)

    def on_error(self, context: BehaviorContext, error: Exception) -> None:
        """Log the failure of a step."""
        message = escape_control_characters(
            mask_secrets(f"{type(error).__name__}: {error}", MAX_MESSAGE_CHARS)
        )
        self._log("error", "failed", context, self._measure_ms(context), error=message)
        if self._metrics is not None:
            self._metrics.increment("behavior.audit.errors", agent_id=context.agent_id)

    def _measure_ms(self, context: BehaviorContext) -> int:
        started_at = context.metadata.get(_STARTED_AT)
        return 0 if started_at is None else round((self._clock() - started_at) * 1000)

    def _log(
        self,
        level: str,
        event: str,
        context: BehaviorContext,
        duration_ms: int | None = None,
        **details: str,
    ) -> None:
        """Log an audit event for a step.

        Standard loggers receive the event as text, and other loggers receive keyword arguments.
        """
        log = getattr(self._logger, level)
        if not isinstance(self._logger, (logging.Logger, logging.LoggerAdapter)):
            values: dict[str, Any] = {"agent_id": context.agent_id, "attempt": context.attempt}
            values |= {"execution_id": context.execution_id} if context.execution_id else {}
            values |= {} if duration_ms is None else {"duration_ms": duration_ms}
            log(f"Agent task {event}", **values, **details)
            return
        step = f" ({context.execution_id})" if context.execution_id else ""
        text = f"{context.agent_id}{step}, attempt {context.attempt} {event}"
        if duration_ms is None:
            log("%s", text)
        else:
            log("%s after %d ms: %s", text, duration_ms, *details.values())
