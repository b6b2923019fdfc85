"""Protocols of middleware and behaviors, which wrap steps and model calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from capgraph.base.ports.steps import Attempt, Failure

CallNext = Callable[..., Awaitable[Any]]


@runtime_checkable
class Middleware(Protocol):
    """Wrapper of an attempt in one of the :data:`~capgraph.base.ports.STAGES`.

    In the stages ``observe`` to ``finalize``, ``call_next`` returns a ``StepRecord`` or an
    ``ApprovalRequest``. In the stages ``acquire`` to ``call`` it returns the raw result and raises
    the capability's exceptions. LangGraph's control-flow exceptions and cancellation must propagate.
    """

    @property
    def stage(self) -> str:
        """Name of the stage."""

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Wrap an attempt: ``await call_next(attempt)`` and return its result."""


@runtime_checkable
class ModelCallMiddleware(Protocol):
    """Wrapper of a model call in one of the :data:`~capgraph.base.ports.STAGES`.

    One object may be a :class:`Middleware` too. In the stages ``observe`` to ``finalize``,
    ``call_next`` returns the parsed answer, otherwise the raw one.
    """

    @property
    def stage(self) -> str:
        """Name of the stage."""

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Wrap a model call: ``await call_next(attempt)`` and return its result."""


@runtime_checkable
class RetryRule(Protocol):
    """Retry policy that replaces the capability's ``get_retry_policy`` in the stage ``retry``.

    ``capgraph.behaviors.RetryBehavior`` implements it.
    """

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, the first one included."""

    def applies(self, error: BaseException | None, failure: Failure) -> bool:
        """Return True if the failure should be retried.

        Args:
            error: Exception of the attempt, or None if it is unknown.
            failure: Classification of the exception.
        """

    def delay(self, failures: int) -> float:
        """Return the delay before the next attempt, in seconds.

        Args:
            failures: Number of failed attempts so far.
        """

    def policy(self) -> dict[str, Any]:
        """Return the rule in the form of ``get_retry_policy``."""


@runtime_checkable
class TimeLimit(Protocol):
    """Time limit that replaces the capability's ``timeout_seconds`` in the stage ``timeout``.

    ``capgraph.behaviors.TimeoutBehavior`` implements it.
    """

    @property
    def time_limit(self) -> float:
        """Maximum duration of one attempt in seconds."""


@dataclass(slots=True)
class BehaviorContext:
    """Description of a step for the hooks of behaviors. All hooks of a step share one instance.

    Attributes:
        agent_id: Name of the capability. For a model call, the role of the model.
        task: Objective of the step.
        attempt: Number of attempts started. It is 1 before the first one.
        execution_id: ID of the step within its run, the same for all attempts.
        last_completed_step: Index of the last completed step, or -1 if no step has completed.
        metadata: Dictionary for the behaviors' own data. It is empty when the step starts.
    """

    agent_id: str
    task: str
    attempt: int = 1
    execution_id: str = ""
    last_completed_step: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Behavior(Protocol):
    """Hooks that run before a step, after it, and when it fails.

    Each hook may be a coroutine function. ``capgraph.behaviors.BaseBehavior`` documents the return
    values.
    """

    def before_execute(self, context: BehaviorContext) -> Any:
        """Run before the step starts."""

    def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Run after the step and optionally replace its result.

        Args:
            context: Description of the step.
            result: Result of the step.
        """

    def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Run when the step fails and optionally return a result instead.

        Args:
            context: Description of the step.
            error: Exception that the step raised.
        """


@runtime_checkable
class AvailabilityProvider(Protocol):
    """Behavior that reports unavailable capabilities, so that plans avoid them."""

    async def unavailable_capabilities(self, capabilities: Collection[str]) -> Mapping[str, str]:
        """Return the unavailable capabilities.

        Args:
            capabilities: Names of the capabilities to check.

        Returns:
            The reason and the expected end of each unavailability, by capability name.
        """
        ...


@runtime_checkable
class TurnGuardrail(Protocol):
    """Guardrails of a graph that check the input and the answer of a turn."""

    async def check_message(self, text: str) -> tuple[str, Sequence[str]]:
        """Check a user message.

        Returns:
            The message, possibly rewritten, and the reasons why it needs approval.

        Raises:
            GuardrailViolatedError: The message is blocked.
        """
        ...

    async def check_context(
        self, contexts: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Check context data that a caller sends.

        Returns:
            The data, possibly rewritten, and the reasons why it needs approval.

        Raises:
            GuardrailViolatedError: The data is blocked.
        """
        ...

    async def check_answer(self, text: str, *, node: str) -> str:
        """Return the final message of a turn, possibly rewritten."""

    def merged_with(self, others: Sequence[Any]) -> TurnGuardrail:
        """Combine this guardrail with others.

        Args:
            others: Further guardrails, which run after this one.
        """


AnyBehavior = Middleware | ModelCallMiddleware | Behavior | RetryRule | TimeLimit
"""Types of the entries in a list of behaviors."""
