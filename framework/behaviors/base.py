"""What every behaviour is: hooks before and after a step, and when it fails."""

from __future__ import annotations

from typing import Any

from capgraph.base.ports import BehaviorContext

__all__ = ["BaseBehavior", "BehaviorContext"]


class BaseBehavior:
    """Something that is declared once and holds around every step.

    A subclass overrides what it needs; each method may be a coroutine function. Without ``stage`` it
    stands just inside ``observe``, once a step: before all tries and after them, at the first run, on
    resume and for a result that was there already. Keep nothing of a run on it: what is about one
    step goes into ``context.metadata``, which its hooks share.

    >>> class Shout(BaseBehavior):
    ...     def after_execute(self, context, result):
    ...         return str(result).upper()
    >>> Shout().after_execute(BehaviorContext("greet", "say hello"), "hello")
    'HELLO'
    """

    def before_execute(self, context: BehaviorContext) -> Any:
        """Look at a step before it begins; what is raised here is a failure of the step."""

    def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Look at what the capability returned.

        Returns:
            What stands in its place, in any form that the capability could have returned; ``None``
            to keep it. It is checked like the capability's own.
        """

    def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Look at why a step failed, once nothing is left to try.

        Returns:
            A result that stands in; the first one that is not ``None`` does. The record says
            ``fallback``.
        """
