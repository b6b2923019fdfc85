"""What an execution leaves behind, and the answer of one yes/no classification."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from capgraph.base.errors import ErrorSeverity, ValidationError
from capgraph.base.plan import PlannedStep


@dataclass
class ExecutionError:
    """Record of a failed execution, for results and histories.

    Attributes:
        severity: Decides the recovery.
        message: Clear description of the failure.
        capability_name: The capability or node that failed.
        metadata: Technical details.
        suggestions: What a person could do about it.
    """

    severity: ErrorSeverity
    message: str
    capability_name: str | None = None
    metadata: dict[str, Any] | None = None
    suggestions: list[str] | None = None


@dataclass
class ExecutionResult:
    """Outcome of one execution.

    Attributes:
        success: Whether the execution finished without an error.
        data: What it produced; ``None`` for a failure.
        error: What went wrong; ``None`` for a success.
        execution_time: Duration in seconds.
        start_time: When it began (timezone-aware UTC).
        end_time: When it ended (timezone-aware UTC).

    Raises:
        ValidationError: Both ``data`` and ``error`` are set, or a success carries an error.

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
                f"An ExecutionResult holds data or an error, not both (success={self.success}).",
                fix="Set success=False and leave data out when you report an error.",
            )


@dataclass(frozen=True)
class ExecutionRecord:
    """History entry of one executed step; immutable.

    Attributes:
        step: The step as it was planned.
        start_time: When it began (timezone-aware UTC).
        result: Its outcome.
        end_time: When it ended; taken from ``result.end_time`` when not given.
    """

    step: PlannedStep
    start_time: datetime
    result: ExecutionResult
    end_time: datetime | None = None

    def __post_init__(self) -> None:
        if self.end_time is None and self.result.end_time is not None:
            object.__setattr__(self, "end_time", self.result.end_time)


class CapabilityMatch(BaseModel):
    """Answer of the question "does this request need this capability?".

    >>> CapabilityMatch(is_match=True).is_match
    True
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    is_match: bool
