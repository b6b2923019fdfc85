"""A person in the loop: asked before a step, or shown its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from capgraph.base.errors import ErrorSeverity, PolicyError
from capgraph.base.plan import PlannedStep
from capgraph.base.ports import TurnSnapshot, Verdict
from capgraph.behaviors.base import BaseBehavior, BehaviorContext
from capgraph.helpers.async_calls import maybe_await


class HumanApprovalRequired(PolicyError):
    """A person did not agree to a result."""

    code = "CG-NOT-APPROVED"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class PendingApproval(PolicyError):
    """A result waits for a person elsewhere, and is not used before.

    Args:
        approval_id: What the submitting callback gave: where the person is asked.
        task: What the step was for.
        result: What waits.
    """

    code = "CG-PENDING-APPROVAL"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL

    def __init__(self, approval_id: str, task: str, result: Any) -> None:
        self.approval_id = approval_id
        self.task = task
        self.result = result
        super().__init__(
            f"The result for {task!r} waits for a person's agreement ({approval_id}).",
            fix="Ask again when the person has agreed.",
        )


class HumanInLoopBehavior(BaseBehavior):
    """Has a person agree.

    Without a callback the person is asked before the step runs, by the graph's own interrupt: the
    run waits as long as it takes, in another process too, and goes on when it is answered. With a
    callback the *result* is shown, after all tries; what is not agreed to fails the step. It is
    never tried again for that, and no other behaviour puts something in its place.

    Args:
        review_callback: ``(context, result) -> bool``, sync or async, which waits for the person.
        submit_callback: ``(context, result) -> approval_id``, sync or async, which hands the
            question to somebody else; the step fails with ``PendingApproval``.

    Raises:
        ValueError: Both callbacks are given, or one that cannot be called.

    >>> HumanInLoopBehavior(review_callback=lambda context, result: result < 5)
    HumanInLoopBehavior(review)
    """

    applies_to: ClassVar[tuple[str, ...]] = ("step", "effect")

    def __init__(
        self,
        review_callback: Callable[[BehaviorContext, Any], Any] | None = None,
        submit_callback: Callable[[BehaviorContext, Any], Any] | None = None,
    ) -> None:
        if review_callback is not None and submit_callback is not None:
            raise ValueError(
                "HumanInLoopBehavior got review_callback and submit_callback. Fix: give one of"
                " them, or none to have the graph ask before the step."
            )
        callback = review_callback or submit_callback
        if callback is not None and not callable(callback):
            raise ValueError(
                f"{callback!r} is no callback. Fix: give a function (context, result)."
            )
        self._review = review_callback
        self._submit = submit_callback

    def __repr__(self) -> str:
        kind = "review" if self._review else "submit" if self._submit else "interrupt"
        return f"HumanInLoopBehavior({kind})"

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Have a person asked before the step, when there is no callback that shows its result."""
        if self._review is not None or self._submit is not None:
            return Verdict("allow")
        return Verdict("ask", problems=["A person has to agree to this step."])

    async def after_execute(self, context: BehaviorContext, result: Any) -> None:
        """Show the result.

        Raises:
            HumanApprovalRequired: The person did not agree.
            PendingApproval: The person will be asked elsewhere.
        """
        callback = self._review or self._submit
        if callback is None:
            return
        answer = await maybe_await(callback(context, result))
        if self._submit is not None:
            raise PendingApproval(str(answer), context.task, result)
        if answer is not True:
            raise HumanApprovalRequired(
                f"A person did not agree to the result for {context.task!r}.",
                fix="Ask for something else.",
            )
