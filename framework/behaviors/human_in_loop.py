"""Behavior that requests a person's approval before a step or of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from capgraph.base.errors import ErrorSeverity, PolicyError
from capgraph.base.plan import PlannedStep
from capgraph.base.ports import TurnSnapshot, Verdict
from capgraph.behaviors.base import BaseBehavior, BehaviorContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.async_calls import maybe_await


class HumanApprovalRequired(PolicyError):
    """Raised if a person rejects a result."""

    code = "CG-NOT-APPROVED"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class PendingApproval(PolicyError):
    """Raised if a step's result is waiting for an approval outside the graph.

    Args:
        approval_id: ID of the approval, as returned by the submit callback.
        task: Task of the step.
        result: Result that is waiting for approval.
    """

    code = "CG-PENDING-APPROVAL"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL

    def __init__(self, approval_id: str, task: str, result: Any) -> None:
        self.approval_id = approval_id
        self.task = task
        self.result = result
        super().__init__(
            f"The result for {task!r} waits for approval ({approval_id}).",
            fix=(
                "Deliver error.result once it is approved. Or resume the run with a submit_callback"
                " that returns True after the approval."
            ),
        )


class HumanInLoopBehavior(BaseBehavior):
    """Behavior that requests a person's approval.

    Without a callback, the graph interrupts before the step and resumes with the person's decision,
    also in another process. With a callback, the person reviews the *result* after the last
    attempt. If the result is rejected, the step fails without a retry or a fallback.

    Args:
        review_callback: Function ``(context, result) -> bool``, sync or async, that waits for the
            person.
        submit_callback: Function ``(context, result) -> approval_id``, sync or async, that submits
            the result for approval elsewhere. The step fails with ``PendingApproval``, and its
            caller may deliver ``error.result`` after the approval. If the run is resumed or
            repeated instead, the callback must return the decision: True accepts the result, False
            rejects it.

    Raises:
        ValueError: Both callbacks are passed, or a callback is not callable.

    >>> HumanInLoopBehavior(review_callback=lambda context, result: result < 5)
    HumanInLoopBehavior(review)
    """

    applies_to: ClassVar[tuple[str, ...]] = ("step", "effect")

    @validate_arguments
    def __init__(
        self,
        review_callback: Callable[[BehaviorContext, Any], Any] | None = None,
        submit_callback: Callable[[BehaviorContext, Any], Any] | None = None,
    ) -> None:
        if review_callback is not None and submit_callback is not None:
            raise ValueError(
                "HumanInLoopBehavior has both review_callback and submit_callback. Fix: pass at"
                " most one of them; without a callback, the graph interrupts before the step."
            )
        self._review = review_callback
        self._submit = submit_callback

    def __repr__(self) -> str:
        kind = "review" if self._review else "submit" if self._submit else "interrupt"
        return f"HumanInLoopBehavior({kind})"

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Require approval for the step before it runs.

        If a callback reviews the step's result instead, the step is allowed.
        """
        if self._review is not None or self._submit is not None:
            return Verdict("allow")
        return Verdict("ask", problems=["This step needs approval."])

    async def after_execute(self, context: BehaviorContext, result: Any) -> None:
        """Pass the step's result to the review or submit callback.

        Raises:
            HumanApprovalRequired: The reviewer rejected the result.
            PendingApproval: The result was submitted for approval outside the graph.
        """
        callback = self._review or self._submit
        if callback is None:
            return
        answer = await maybe_await(callback(context, result))
        if self._submit is not None and not isinstance(answer, bool):
            raise PendingApproval(str(answer), context.task, result)
        if answer is not True:
            raise HumanApprovalRequired(
                f"The result for {context.task!r} was rejected by a person.",
                fix="Change the request.",
            )
