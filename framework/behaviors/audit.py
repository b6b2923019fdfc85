"""Behavior that logs the start, end and failure of steps."""

from __future__ import annotations

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

_STARTED_AT = "audit_began"


class AuditBehavior(BaseBehavior):
    """Behavior that writes a log line when a step starts, ends or fails.

    Tasks are not logged. Of a result, the beginning is logged with secrets masked. Use
    ``build_graph(…, audit=…)`` for a tamper-evident audit log.

    Args:
        logger: The logger. Defaults to ``capgraph.behavior.audit``.
        metrics: Receiver of metrics: an object with ``increment(name, **labels)`` and
            ``histogram(name, value, **labels)``.
        preview: Maximum number of logged characters of a result.
        clock: Function that returns seconds, for durations.

    >>> AuditBehavior(preview=0).before_execute(BehaviorContext("read", "read the level"))
    """

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
        self._logger.info("%s started", self._describe(context))
        if self._metrics is not None:
            self._metrics.increment("behavior.audit.invocations", agent_id=context.agent_id)

    def after_execute(self, context: BehaviorContext, result: Any) -> None:
        """Log the end of a step and the beginning of its result."""
        elapsed = self._elapsed_ms(context)
        preview = (
            escape_control_characters(mask_secrets(str(result), self._preview))
            if self._preview
            else ""
        )
        self._logger.info("%s ended after %d ms: %s", self._describe(context), elapsed, preview)
        if self._metrics is not None:
            name = "behavior.audit.duration_ms"
            self._metrics.histogram(name, elapsed, agent_id=context.agent_id)

    def on_error(self, context: BehaviorContext, error: Exception) -> None:
        """Log the failure of a step."""
        message = escape_control_characters(
            mask_secrets(f"{type(error).__name__}: {error}", MAX_MESSAGE_CHARS)
        )
        self._logger.error(
            "%s failed after %d ms: %s", self._describe(context), self._elapsed_ms(context), message
        )
        if self._metrics is not None:
            self._metrics.increment("behavior.audit.errors", agent_id=context.agent_id)

    def _elapsed_ms(self, context: BehaviorContext) -> int:
        started_at = context.metadata.get(_STARTED_AT)
        return 0 if started_at is None else round((self._clock() - started_at) * 1000)

    def _describe(self, context: BehaviorContext) -> str:
        step = f" ({context.execution_id})" if context.execution_id else ""
        return f"{context.agent_id}{step}, attempt {context.attempt}"
