"""Limits of a session: past is more than, unknown is past, each session counts for itself."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph.compat.session_limits import (
    GovernanceBreachError,
    GovernancePlane,
    MaxBudgetLimit,
    MaxConsecutiveFailuresLimit,
    MaxIterationsLimit,
    MaxToolCallsLimit,
)
from capgraph.compat.session_usage import UsageLimitExceededError, UsageLimits, UsageTracker
from capgraph.telemetry import ModelPricing, PriceTable, UsageSnapshot


def _tracker(**used: int) -> UsageTracker:
    tracker = UsageTracker(prices=PriceTable({"m": ModelPricing(1, 1)}, use_genai_prices=False))
    tracker.record_turn("m", UsageSnapshot(**used))
    return tracker


@pytest.mark.row("T25")
@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("request_tokens_max", {"input_tokens": 11}),
        ("response_tokens_max", {"output_tokens": 11}),
        ("total_tokens_max", {"input_tokens": 6, "output_tokens": 5}),
        ("tool_calls_max", {"tool_calls": 11}),
    ],
)
def test_usage_above_a_limit_raises(limit: str, used: dict[str, int]) -> None:
    limits = UsageLimits(**{limit: 10})  # type: ignore[arg-type]
    with pytest.raises(
        UsageLimitExceededError, match=f"11, which exceeds the limit {limit}=10"
    ) as told:
        _tracker(**used).check_limits(limits)
    assert told.value.limit_name == limit
    UsageLimits(**{limit: 11}).check(_tracker(**used))  # type: ignore[arg-type]


@pytest.mark.row("T25")
def test_an_unknown_cost_exceeds_every_limit() -> None:
    tracker = _tracker()
    UsageLimits(cost_usd_max=1.0).check(tracker)
    tracker.record_turn("nobody-knows", UsageSnapshot(input_tokens=1))
    with pytest.raises(UsageLimitExceededError, match="cost_usd_max"):
        UsageLimits(cost_usd_max=1000.0).check(tracker)
    UsageLimits(total_tokens_max=100).check(tracker)


@pytest.mark.row("T28")
@pytest.mark.parametrize(
    ("limit", "note"),
    [
        (MaxIterationsLimit, "record_turn_start"),
        (MaxToolCallsLimit, "record_tool_call"),
        (MaxConsecutiveFailuresLimit, "record_failure"),
    ],
)
def test_a_session_ends_when_a_limit_is_passed(limit: Any, note: str) -> None:
    plane = GovernancePlane([limit(2)]).for_session()
    for _ in range(2):
        getattr(plane.state, note)()
        assert not plane.enforce()[0].breached
    getattr(plane.state, note)()
    with pytest.raises(GovernanceBreachError) as told:
        plane.enforce()
    assert (told.value.limit_name, told.value.observed, told.value.ceiling) == (
        limit.default_name,
        3,
        2,
    )
    assert not plane.for_session().enforce()[0].breached  # the next session begins anew


@pytest.mark.row("T28")
def test_an_alert_only_tells() -> None:
    plane = GovernancePlane([MaxBudgetLimit(0.5, on_breach="alert")])
    plane.state.record_cost(0.6)
    assert plane.enforce()[0].breached
    plane.state.record_cost(None)
    assert plane.evaluate()[0].breached


def test_a_success_begins_to_count_failures_anew() -> None:
    plane = GovernancePlane([MaxConsecutiveFailuresLimit(1)])
    for _ in range(5):
        plane.state.record_failure()
        plane.state.record_success()
    assert not plane.enforce()[0].breached


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_a_limit_is_a_number_from_zero(wrong: float) -> None:
    with pytest.raises(ValueError, match="max_tool_calls"):
        MaxToolCallsLimit(wrong)
    with pytest.raises(ValueError, match="cost_usd_max"):
        UsageLimits(cost_usd_max=wrong)
    with pytest.raises(ValueError, match="on_breach"):
        MaxToolCallsLimit(1, on_breach="shout")  # type: ignore[arg-type]
