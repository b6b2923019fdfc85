"""Classification of exceptions, and the state updates that report and clear failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capgraph.base.error_classification import (
    ErrorClassification,
    classify_exception,
    is_self_classified,
)
from capgraph.base.errors import (
    AskAgain,
    CapgraphError,
    ErrorSeverity,
    FatalExecutionError,
    LimitError,
    PolicyError,
    StoppedError,
)
from capgraph.base.ports import Failure
from capgraph.configs.logger import MAX_MESSAGE_CHARS, get_logger, mask_data, mask_secrets
from capgraph.pipeline.retry_policy import declared_policy
from capgraph.telemetry.audit import record_refusal

REFUSED_BY_GUARDS = "CG-GUARDRAIL"
"""Error code of a failure that guardrails caused."""
TOOL_ERROR = "tool_error"
"""Category of an error that a LangChain tool reports; it has no meaning beyond the tool."""
_RANK = (
    ErrorSeverity.FATAL,
    ErrorSeverity.CRITICAL,
    ErrorSeverity.RECLASSIFICATION,
    ErrorSeverity.REPLANNING,
    ErrorSeverity.RETRIABLE,
)


def classify_failure(
    cls: type[Any],
    exc: Exception,
    context: Mapping[str, Any],
    *,
    capability: str | None = None,
    node: str | None = None,
    key: str | None = None,
    attempts: int = 1,
) -> Failure:
    """Classify an exception with the class's ``classify_error``, or with the default rules.

    Args:
        cls: Class of the capability or node that failed.
        exc: Exception to classify.
        context: Additional values for ``classify_error``.
        capability: Name of the failed capability.
        node: Name of the failed node.
        key: Context key of the step.
        attempts: Number of attempts so far.
    """
    record_refusal(exc)
    name = capability or node or cls.__name__
    origin = f"Unhandled error in {name}" if capability else f"Infrastructure error in {name}"
    answer = None
    default = classify_exception(exc, origin, effect=context.get("effect", "none"))
    # The author of a capability cannot reclassify limits, policies, or stops of an operator.
    if not isinstance(exc, (LimitError, PolicyError, StoppedError, AskAgain)):
        try:
            answer = cls.classify_error(exc, dict(context))
        except Exception as second:
            exc.add_note(f"classify_error of {name!r} failed as well: {second!r}")
            get_logger("framework", name).error(
                "classify_error of %s raised %r; the default is used", name, second
            )
    if not isinstance(answer, ErrorClassification):
        answer = default
    return Failure(
        severity=answer.severity,
        message=mask_secrets(
            answer.user_message or str(exc) or type(exc).__name__, MAX_MESSAGE_CHARS
        ),
        original_error=mask_secrets(f"{type(exc).__name__}: {exc}", MAX_MESSAGE_CHARS),
        metadata=mask_data(answer.to_dict()["metadata"]),
        capability=capability,
        node=node,
        key=key,
        retry_policy=declared_policy(cls),
        execution_time=float(context.get("execution_time") or 0.0),
        attempts=attempts,
        unclassified=answer == default and not is_self_classified(exc),
    )


def create_fatal_error(name: str, failure: Failure) -> FatalExecutionError:
    """Create the exception that ends the run after a failure with the severity FATAL.

    >>> print(create_fatal_error("read", Failure(ErrorSeverity.FATAL, "The disk is gone")))
    Fatal error in read: The disk is gone. Execution terminated due to system-level failure.
    """
    details = failure.metadata.get("technical_details")
    technical = f"Technical details: {details}. " if details else ""
    return FatalExecutionError(
        f"Fatal error in {name}: {failure.message}. {technical}"
        "Execution terminated due to system-level failure."
    )


def create_refusal_failure(node: str, error: CapgraphError) -> Failure:
    """Create the failure of a node that rejects the caller's input.

    Args:
        node: Name of the node.
        error: Error about the caller's input.
    """
    record_refusal(error)
    return Failure(
        severity=ErrorSeverity.CRITICAL,
        message=mask_secrets(str(error), MAX_MESSAGE_CHARS),
        original_error=mask_secrets(error.message, MAX_MESSAGE_CHARS),
        metadata={"code": error.code},
        node=node,
    )


def failure_update(failures: Sequence[Failure]) -> dict[str, Any]:
    """Create the state update for failures, routed by the most severe failure.

    >>> update = failure_update([Failure(ErrorSeverity.CRITICAL, "It broke.", node="router")])
    >>> update["control_has_error"], update["control_error_info"]["user_message"]
    (True, 'It broke.')
    """
    if not failures:
        return {}
    first = most_severe(failures)
    info = first.to_state()
    other_failures = [failure.to_state() for failure in failures if failure is not first]
    if other_failures:
        info["other_failures"] = other_failures
    return {
        "control_has_error": True,
        "control_error_info": info,
        "control_retry_count": first.attempts,
        "control_current_step_retry_count": first.attempts,
    }


def clear_failure_update() -> dict[str, Any]:
    """Create the state update that clears the current failure."""
    return {
        "control_has_error": False,
        "control_error_info": None,
        "control_retry_count": 0,
        "control_current_step_retry_count": 0,
    }


def stop_update(exc: Exception) -> dict[str, Any]:
    """Create the state update for a turn that a user stopped.

    The update is empty for any other exception.
    """
    if not isinstance(exc, StoppedError):
        return {}
    return {"control_is_killed": True, "control_kill_reason": mask_secrets(str(exc))}


def most_severe(failures: Sequence[Failure]) -> Failure:
    """Return the most severe failure, or the first failure with the highest severity.

    A failure without remaining attempts takes precedence over a failure whose retries it
    prevented.
    """
    return min(failures, key=lambda item: (_RANK.index(item.severity), not item.final))


def mark_failure_permanent(failure: Failure) -> Failure:
    """Mark a failure as permanent because the step's effect happened and must not be repeated."""
    if failure.metadata.get("effect_done"):
        return failure
    return replace(
        failure,
        severity=ErrorSeverity.CRITICAL,
        message=f"The effect of this step is done, but its result is not usable: {failure.message}",
        metadata={**failure.metadata, "effect_done": True},
    )
