"""Protocols of middleware and behaviors, which wrap steps and model calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from capgraph.base.ports.steps import Attempt, Failure

CallNext = Callable[..., Awaitable[Any]]


@runtime_checkable
class Middleware(Protocol):
    """Middleware that wraps each step attempt at one of the :data:`~capgraph.base.ports.STAGES`.

    In the stages ``observe`` to ``finalize``, ``call_next`` returns a ``StepRecord`` or an
    ``ApprovalRequest``. In the stages ``acquire`` to ``call``, it returns the raw result and
    raises the capability's exceptions. LangGraph's control-flow exceptions and cancellation
    must propagate.
    """

    @property
    def stage(self) -> str:
        """Name of the stage."""

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Wrap one attempt at a step.

        Call ``await call_next(attempt)`` to continue, and return its result.
        """


@runtime_checkable
class ModelCallMiddleware(Protocol):
    """Middleware that wraps each model call at one of the :data:`~capgraph.base.ports.STAGES`.

    The same object may also be a :class:`Middleware`. In the stages ``observe`` to
    ``finalize``, ``call_next`` returns the parsed answer. In all other stages, it returns the
    raw answer.
    """

    @property
    def stage(self) -> str:
        """Name of the stage."""

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Wrap one call to a chat model.

        Call ``await call_next(attempt)`` to continue, and return its result.
        """


@runtime_checkable
class RetryRule(Protocol):
    """Retry policy that overrides the capability's ``get_retry_policy`` in the ``retry`` stage.

    ``capgraph.behaviors.RetryBehavior`` implements this protocol.
    """

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, including the first attempt."""

    def applies(self, error: BaseException | None, failure: Failure) -> bool:
        """Return True if a failed attempt at a step should be retried.

        Args:
            error: Exception that the attempt raised, or None if it is unknown.
            failure: Classification of the exception.
        """

    def delay(self, failures: int) -> float:
        """Return the delay before the next retry, in seconds.

        Args:
            failures: Number of failed attempts so far.
        """

    def policy(self) -> dict[str, Any]:
        """Return the retry rule as a dictionary in the format of ``get_retry_policy``."""


@runtime_checkable
class TimeLimit(Protocol):
    """Time limit that overrides the capability's ``timeout_seconds`` in the ``timeout`` stage.

    ``capgraph.behaviors.TimeoutBehavior`` implements this protocol.
    """

    @property
    def time_limit(self) -> float:
        """Maximum duration of one attempt in seconds."""


@dataclass(slots=True)
class BehaviorContext:
    """Description of a step that is passed to behavior hooks. All hooks of a step share it.

    Attributes:
        agent_id: Name of the capability. For a model call, the role of the model.
        task: Objective of the step.
        attempt: Number of attempts started so far, or 1 before the first attempt.
        execution_id: ID of the step within its run, which is the same for all attempts.
        last_completed_step: Index of the last completed step, or -1 if no step has completed.
        metadata: Dictionary in which behaviors can store their own data. It is empty when the
            step starts.
    """

    agent_id: str
    task: str
    attempt: int = 1
    execution_id: str = ""
    last_completed_step: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Behavior(Protocol):
    """Protocol of behaviors, whose hooks run before a step, after a step, and when a step fails.

    Each hook may be a coroutine function. The return values are documented in
    ``capgraph.behaviors.BaseBehavior``.
    """

    def before_execute(self, context: BehaviorContext) -> Any:
        """Run before the step starts."""

    def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Run after the step, and optionally return a replacement for its result.

        Args:
            context: Description of the step.
            result: Result of the step.
        """

    def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Run when the step fails, and optionally return a fallback result.

        Args:
            context: Description of the failed step.
            error: Exception that the step raised.
        """


@runtime_checkable
class AvailabilityProvider(Protocol):
    """Behavior that reports which capabilities are unavailable so that plans can avoid them."""

    async def unavailable_capabilities(self, capabilities: Collection[str]) -> Mapping[str, str]:
        """Return the capabilities that are currently unavailable.

        Args:
            capabilities: Names of the capabilities to check.

        Returns:
            The reason for each unavailability and its expected end, by capability name.
        """
        ...


@runtime_checkable
class TurnGuardrail(Protocol):
    """Guardrails that check the user input and the final answer of an agent's turn."""

    async def check_message(self, text: str) -> tuple[str, Sequence[str]]:
        """Check a message that the user sends to the agent.

        Returns:
            The message, possibly rewritten, and the reasons why it requires approval.

        Raises:
            GuardrailViolatedError: The message is blocked.
        """
        ...

    async def check_context(
        self, contexts: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Check the context data that a caller sends with a request.

        Returns:
            The data, possibly rewritten, and the reasons why it requires approval.

        Raises:
            GuardrailViolatedError: The data is blocked.
        """
        ...

    async def check_answer(self, text: str, *, node: str) -> str:
        """Check the final message of a turn, and return the message, possibly rewritten."""

    def merged_with(self, others: Sequence[Any]) -> TurnGuardrail:
        """Return a guardrail that combines this guardrail with others.

        Args:
            others: Additional guardrails, which run after this guardrail.
        """


AnyBehavior = Middleware | ModelCallMiddleware | Behavior | RetryRule | TimeLimit
"""Types of the entries in a list of behaviors."""
