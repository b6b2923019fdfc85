"""The bounds that keep every run finite."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class SettingsModel(BaseModel):
    """A part of the settings: unknown keys and numbers that are none are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {annotation, *get_args(annotation)} & {int, float}:
            raise ValueError(f"a number is needed, not {str(value).lower()}")
        return value


class Limits(SettingsModel):
    """Bounds that keep every run finite.

    Attributes:
        max_parallel: Steps that run at once in one run.
        max_steps: Steps of one plan.
        max_elements: Elements of a list over which one step of a plan runs.
        max_planning_attempts: Plans made for one turn, the first included.
        max_looks: Times the planner looks at results in one turn and may change the rest of the
            plan; after that the plan goes on as it is.
        max_reclassifications: Times the capabilities are chosen *again*.
        max_attempts: Upper bound of tries of one step or node, whatever its policy says.
        max_retry_delay_seconds: Upper bound of one wait between tries.
        step_timeout_seconds: Time limit of one attempt; ``None`` for none.
        run_timeout_seconds: Time limit of the steps of one turn; ``None`` for none.
        max_wait_seconds: How long a step may wait for a moment or for an event.
        max_message_chars: Longest message that is accepted.
        max_model_calls: Calls of chat models in one turn.
        max_turn_attempts: Tries of all steps of one turn together; ``None`` for what the checked
            plan can need.
    """

    max_parallel: int = Field(8, ge=1)
    max_steps: int = Field(1000, ge=1)
    max_elements: int = Field(10_000, ge=1)
    max_planning_attempts: int = Field(2, ge=1)
    max_looks: int = Field(10, ge=0)
    max_reclassifications: int = Field(1, ge=0)
    max_attempts: int = Field(10, ge=1)
    max_retry_delay_seconds: float = Field(60.0, ge=0)
    step_timeout_seconds: float | None = Field(300.0, gt=0)
    run_timeout_seconds: float | None = Field(3600.0, gt=0)
    max_wait_seconds: float = Field(30 * 86_400.0, gt=0)
    max_message_chars: int = Field(200_000, ge=1)
    max_model_calls: int = Field(100, ge=1)
    max_turn_attempts: int | None = Field(None, ge=1)
