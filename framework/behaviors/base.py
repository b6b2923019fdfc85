"""Base class of behaviors: hooks before and after a step, and on its failure."""

from __future__ import annotations

from typing import Any

from capgraph.base.ports import BehaviorContext

__all__ = ["BaseBehavior", "BehaviorContext"]


class BaseBehavior:
    """Base class for middleware with hooks around a step.

    A subclass overrides the hooks that it needs. Each hook may be a coroutine function. Without a
    ``stage``, the hooks run just inside the stage ``observe``, once per step: before its first
    attempt and after its last one, also on resume and for a cached result. Do not store a step's
    data on the behavior, because steps run in parallel. Use ``context.metadata``, which all hooks
    of one step share.

    >>> class Shout(BaseBehavior):
    ...     def after_execute(self, context, result):
    ...         return str(result).upper()
    >>> Shout().after_execute(BehaviorContext("greet", "say hello"), "hello")
    'HELLO'
    """

    """Constructor arguments of other frameworks, each with the fix that its error names."""

    def before_execute(self, context: BehaviorContext) -> Any:
        """Hook that is called before a step. An exception in this hook fails the step.

        Returns:
            ``None`` or ``context``. The step fails if the hook returns a different context or
            changes the task.
        """

    def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Hook that is called after a step, with the result of the capability.

        Returns:
            A replacement result in any form that a capability may return, or ``None`` to keep the
            result. A replacement is validated like the capability's own result.
        """

    def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Hook that is called after a step has failed and no retries are left.

        Returns:
            A fallback result, or ``None``. The first fallback result from any hook is used, and the
            step's record has the source ``fallback``.
        """
