"""The bounds that keep every run finite."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Bounds that keep every run finite.

    Attributes:
        max_parallel: Steps that run at once in one run.
        max_steps: Steps of one plan.
        max_planning_attempts: Plans made for one turn, the first included.
        max_reclassifications: Times the capabilities are chosen *again*.
        max_attempts: Upper bound of tries of one step or node, whatever its policy says.
        max_retry_delay_seconds: Upper bound of one wait between tries.
        step_timeout_seconds: Time limit of one attempt; ``None`` for none.
        run_timeout_seconds: Time limit of the steps of one turn; ``None`` for none.
        max_message_chars: Longest message that is accepted.
    """

    model_config = ConfigDict(extra="forbid")

    max_parallel: int = Field(8, ge=1)
    max_steps: int = Field(1000, ge=1)
    max_planning_attempts: int = Field(2, ge=1)
    max_reclassifications: int = Field(1, ge=0)
    max_attempts: int = Field(10, ge=1)
    max_retry_delay_seconds: float = Field(60.0, ge=0)
    step_timeout_seconds: float | None = Field(300.0, gt=0)
    run_timeout_seconds: float | None = Field(3600.0, gt=0)
    max_message_chars: int = Field(200_000, ge=1)
