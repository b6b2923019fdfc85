"""Log lines of what begins, ends and fails."""

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
    """Writes a log line when something begins, ends and fails.

    Of the task nothing is written, and of a result its beginning, with secrets masked. It is for
    reading along; what proves later on what happened is ``build_graph(…, audit=…)``.

    Args:
        logger: Where to; ``capgraph.behavior.audit`` when not given.
        metrics: Takes figures too: an object with ``increment(name, **labels)`` and
            ``histogram(name, value, **labels)``.
        preview: How many characters of a result are written.
        clock: Gives seconds, for durations.

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
        """Write that something begins."""
        context.metadata[_STARTED_AT] = self._clock()
        self._logger.info("%s began", self._describe(context))
        if self._metrics is not None:
            self._metrics.increment("behavior.audit.invocations", agent_id=context.agent_id)

    def after_execute(self, context: BehaviorContext, result: Any) -> None:
        """Write that it ended, and how its result begins."""
        spent = self._elapsed_ms(context)
        shown = (
            escape_control_characters(mask_secrets(str(result), self._preview))
            if self._preview
            else ""
        )
        self._logger.info("%s ended after %d ms: %s", self._describe(context), spent, shown)
        if self._metrics is not None:
            name = "behavior.audit.duration_ms"
            self._metrics.histogram(name, spent, agent_id=context.agent_id)

    def on_error(self, context: BehaviorContext, error: Exception) -> None:
        """Write that it failed, and why."""
        told = escape_control_characters(
            mask_secrets(f"{type(error).__name__}: {error}", MAX_MESSAGE_CHARS)
        )
        self._logger.error(
            "%s failed after %d ms: %s", self._describe(context), self._elapsed_ms(context), told
        )
        if self._metrics is not None:
            self._metrics.increment("behavior.audit.errors", agent_id=context.agent_id)

    def _elapsed_ms(self, context: BehaviorContext) -> int:
        began = context.metadata.get(_STARTED_AT)
        return 0 if began is None else round((self._clock() - began) * 1000)

    def _describe(self, context: BehaviorContext) -> str:
        step = f" ({context.execution_id})" if context.execution_id else ""
        return f"{context.agent_id}{step}, try {context.attempt}"
