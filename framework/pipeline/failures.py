"""Failures: read from an exception in one place, raised in the state and taken back in one each."""

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
"""Code of the failure of which guards are the reason."""
TOOL_ERROR = "tool_error"
"""Category of the failure that a LangChain tool reports, which means nothing beyond the tool."""
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
    """Say what an exception means: the class that failed is asked, else the default holds.

    Args:
        cls: The capability or the node.
        exc: What was raised.
        context: What ``classify_error`` is told besides.
        capability: Name of the capability that failed.
        node: Name of the node that failed.
        key: The step's context key.
        attempts: Tries so far.
    """
    record_refusal(exc)
    name = capability or node or cls.__name__
    origin = f"Unhandled error in {name}" if capability else f"Infrastructure error in {name}"
    answer = None
    default = classify_exception(exc, origin, effect=context.get("effect", "none"))
    # What an operator decides is not the author's to interpret; what asks for other parameters
    # has been.
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


def fatal_error(name: str, failure: Failure) -> FatalExecutionError:
    """Return what ends the run, for a failure of severity FATAL.

    >>> print(fatal_error("read", Failure(ErrorSeverity.FATAL, "The disk is gone")))
    Fatal error in read: The disk is gone. Execution terminated due to system-level failure.
    """
    details = failure.metadata.get("technical_details")
    technical = f"Technical details: {details}. " if details else ""
    return FatalExecutionError(
        f"Fatal error in {name}: {failure.message}. {technical}"
        "Execution terminated due to system-level failure."
    )


def refusal_failure(node: str, error: CapgraphError) -> Failure:
    """Return the failure with which a node ends a turn for a reason of the caller's."""
    record_refusal(error)
    return Failure(
        severity=ErrorSeverity.CRITICAL,
        message=mask_secrets(str(error), MAX_MESSAGE_CHARS),
        original_error=mask_secrets(error.message, MAX_MESSAGE_CHARS),
        metadata={"code": error.code},
        node=node,
    )


def failure_update(failures: Sequence[Failure]) -> dict[str, Any]:
    """Return the state update that reports failures; the gravest one decides.

    >>> update = failure_update([Failure(ErrorSeverity.CRITICAL, "It broke.", node="router")])
    >>> update["control_has_error"], update["control_error_info"]["user_message"]
    (True, 'It broke.')
    """
    if not failures:
        return {}
    first = most_severe(failures)
    info = first.to_state()
    others = [failure.to_state() for failure in failures if failure is not first]
    if others:
        info["other_failures"] = others
    return {
        "control_has_error": True,
        "control_error_info": info,
        "control_retry_count": first.attempts,
        "control_current_step_retry_count": first.attempts,
    }


def clear_failure_update() -> dict[str, Any]:
    """Return the state update that takes an error back."""
    return {
        "control_has_error": False,
        "control_error_info": None,
        "control_retry_count": 0,
        "control_current_step_retry_count": 0,
    }


def stop_update(exc: Exception) -> dict[str, Any]:
    """Return the state update that ends a stopped turn; empty for any other failure."""
    if not isinstance(exc, StoppedError):
        return {}
    return {"control_is_killed": True, "control_kill_reason": mask_secrets(str(exc))}


def most_severe(failures: Sequence[Failure]) -> Failure:
    """Return the failure that decides when several steps failed: the gravest, then the first.

    Among equals one that has no tries left comes before one that was cut short by it.
    """
    return min(failures, key=lambda item: (_RANK.index(item.severity), not item.final))


def with_effect_done(failure: Failure) -> Failure:
    """Return the failure of a step whose effect happened: nothing may repeat it."""
    if failure.metadata.get("effect_done"):
        return failure
    return replace(
        failure,
        severity=ErrorSeverity.CRITICAL,
        message=f"The effect of this step is done, but its result cannot be used: {failure.message}",
        metadata={**failure.metadata, "effect_done": True},
    )
