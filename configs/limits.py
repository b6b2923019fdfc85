"""Limits of a run."""

from __future__ import annotations

from pydantic import Field

from capgraph.configs.settings_model import SettingsModel


class Limits(SettingsModel):
    """Limits of a run. A run that reaches one of them fails with an error that names the limit.

    Attributes:
        max_parallel: Maximum number of concurrent steps in one run.
        max_steps: Maximum number of steps in a plan.
        max_elements: Maximum number of list elements over which one step runs.
        max_planning_attempts: Maximum number of plans in one turn, including the first.
        max_looks: Maximum number of times that the planner reviews results in one turn. After that
            the plan continues unchanged.
        max_reclassifications: Maximum number of times that the capabilities are selected again.
        max_attempts: Maximum number of attempts at a step or node. It limits every retry policy.
        max_retry_delay_seconds: Maximum delay between two attempts.
        step_timeout_seconds: Time limit of one attempt. None means no limit.
        run_timeout_seconds: Time limit of all steps of one turn. None means no limit.
        max_wait_seconds: Maximum time that a step waits for a time or an event.
        max_message_chars: Maximum length of a message.
        max_result_bytes: Maximum size of one step's result, approximately. A step with a larger
            result fails.
        max_reply_bytes: Maximum size of a chat model's reply, approximately. A larger reply is
            discarded, and the call fails.
        max_model_calls: Maximum number of chat model calls in one turn.
        max_turn_attempts: Maximum number of step attempts in one turn. None means the number that
            the plan may need.
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
    max_result_bytes: int = Field(16 * 1024 * 1024, ge=1)
    max_reply_bytes: int = Field(4 * 1024 * 1024, ge=1)
    max_model_calls: int = Field(100, ge=1)
    max_turn_attempts: int | None = Field(None, ge=1)
