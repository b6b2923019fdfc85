"""Results and history entries of executions, and the reply of a yes/no classification."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from capgraph.base.errors import ErrorSeverity, ValidationError
from capgraph.base.plan import PlannedStep


@dataclass
class ExecutionError:
    """Description of why an execution failed.

    Attributes:
        severity: Severity of the failure.
        message: Description of the failure.
        capability_name: Name of the failed capability or node.
        metadata: Technical details of the failure.
        suggestions: Suggested actions for the user.
    """

    severity: ErrorSeverity
    message: str
    capability_name: str | None = None
    metadata: dict[str, Any] | None = None
    suggestions: list[str] | None = None


@dataclass
class ExecutionResult:
    """Result of an execution, with either data or an error.

    Attributes:
        success: True if the execution succeeded.
        data: Data of the result, or None for a failure.
        error: Description of the failure, or None for a success.
        execution_time: Duration in seconds.
        start_time: Start time (timezone-aware UTC).
        end_time: End time (timezone-aware UTC).

    Raises:
        ValidationError: Both ``data`` and ``error`` are set, or a success has an error.

    >>> ExecutionResult(success=True, data={"rows": 3}, execution_time=0.1).data
    {'rows': 3}
    """

    success: bool
    data: Any | None = None
    error: ExecutionError | None = None
    execution_time: float | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None

    def __post_init__(self) -> None:
        if self.error is not None and (self.success or self.data is not None):
            raise ValidationError(
                f"An ExecutionResult with an error must have success=False and no data, but has"
                f" success={self.success} and data={self.data!r:.80}.",
                fix="Pass either data or an error.",
            )


@dataclass(frozen=True)
class ExecutionRecord:
    """Immutable history entry for an executed step.

    Attributes:
        step: Planned step that was executed.
        start_time: Start time of the step (timezone-aware UTC).
        result: Result of the step.
        end_time: End time of the step. Defaults to ``result.end_time``.
    """

    step: PlannedStep
    start_time: datetime
    result: ExecutionResult
    end_time: datetime | None = None

    def __post_init__(self) -> None:
        if self.end_time is None and self.result.end_time is not None:
            object.__setattr__(self, "end_time", self.result.end_time)


class CapabilityMatch(BaseModel):
    """Structured reply of a model that decides whether a request needs a capability.

    >>> CapabilityMatch(is_match=True).is_match
    True
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    is_match: bool
