"""Recovery: recipes run, and the report says what ran."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from capgraph.base import CapabilityError, ModelError
from capgraph.governance import (
    EscalationPolicy,
    FailureScenario,
    RecoveryContext,
    RecoveryRecipe,
    RecoveryStep,
    aattempt_recovery,
    attempt_recovery,
    classify_exception,
    next_provider,
    recipe_for,
    smaller_context_budget,
)

STEP = RecoveryStep


@pytest.mark.row("T19")
def test_the_recipes_are_those_of_the_source() -> None:
    table = {s.value: recipe_for(s) for s in FailureScenario}
    assert table["llm_error"].steps == (STEP.RETRY_WITH_BACKOFF, STEP.SWITCH_PROVIDER)
    assert table["context_overflow"].steps == (
        STEP.RETRY_WITH_SMALLER_CONTEXT,
        STEP.REDUCE_TOOL_SET,
    )
    assert table["memory_corruption"].escalation_policy is EscalationPolicy.ABORT
    assert table["tool_execution_error"].escalation_policy is EscalationPolicy.LOG_AND_CONTINUE
    assert {name: recipe.max_attempts for name, recipe in table.items()} == {
        "llm_timeout": 2,
        "llm_error": 2,
        "tool_execution_error": 1,
        "context_overflow": 1,
        "dependency_timeout": 1,
        "memory_corruption": 1,
        "provider_failure": 2,
    }


@pytest.mark.row("T19")
def test_nothing_to_run_is_not_recovered() -> None:
    for scenario in FailureScenario:
        found = attempt_recovery(scenario, RecoveryContext())
        assert found.outcome == "escalation_required"
        assert (found.steps_taken, found.recovered_steps) == (0, [])
        assert found.remaining_steps == [step.value for step in recipe_for(scenario).steps]
        assert "no action" in found.reason


@pytest.mark.row("T19")
def test_the_result_lists_the_steps_that_ran() -> None:
    ran: list[str] = []
    whole = {
        STEP.RETRY_WITH_BACKOFF: lambda: ran.append("b"),
        "switch_provider": lambda: ran.append("s"),
    }
    found = attempt_recovery("llm_error", RecoveryContext(whole))
    assert (found.outcome, found.steps_taken, ran) == ("recovered", 2, ["b", "s"])
    assert found.recovered_steps == ["retry_with_backoff", "switch_provider"]
    assert found.remaining_steps == []
    only = RecoveryContext({STEP.SWITCH_PROVIDER: lambda: ran.append("s")})
    found = attempt_recovery("llm_error", only)
    assert (found.outcome, found.recovered_steps) == ("partial_recovery", ["switch_provider"])
    assert found.remaining_steps == ["retry_with_backoff"]


@pytest.mark.parametrize("fault", [lambda: 1 / 0, lambda: False])
def test_a_step_that_fails_ends_the_recipe(fault: Any) -> None:
    ran: list[str] = []
    ctx = RecoveryContext(
        {STEP.RETRY_WITH_BACKOFF: fault, STEP.SWITCH_PROVIDER: lambda: ran.append("s")}
    )
    found = attempt_recovery("llm_error", ctx)
    assert (found.outcome, found.steps_taken, ran) == ("partial_recovery", 0, [])
    assert found.remaining_steps == ["retry_with_backoff", "switch_provider"]
    ctx = RecoveryContext({STEP.SWITCH_PROVIDER: lambda: None, STEP.RETRY_WITH_BACKOFF: fault})
    found = attempt_recovery("provider_failure", ctx)
    assert (found.outcome, found.recovered_steps) == ("partial_recovery", ["switch_provider"])
    assert found.to_dict()["remaining_steps"] == ["retry_with_backoff"]


@pytest.mark.row("T20")
def test_a_success_sets_the_count_back_and_failures_are_bounded() -> None:
    good = [False]
    ctx = RecoveryContext({STEP.RETRY_WITH_BACKOFF: lambda: good[0]})
    assert attempt_recovery("llm_timeout", ctx).outcome != "recovered"
    assert ctx.attempt_count("llm_timeout") == 1
    good[0] = True
    for _ in range(5):
        assert attempt_recovery("llm_timeout", ctx).outcome == "recovered"
        assert ctx.attempt_count("llm_timeout") == 0
    good[0] = False
    for _ in range(2):
        attempt_recovery("llm_timeout", ctx)
    good[0] = True
    over = attempt_recovery("llm_timeout", ctx)
    assert (over.outcome, over.steps_taken) == ("escalation_required", 0)
    assert "exhausted" in over.reason
    kinds = [event.event_type for event in ctx.events]
    assert kinds == ["failed", *["succeeded"] * 5, "failed", "failed", "escalated"]
    assert ctx.attempt_count("llm_error") == 0, "each kind is counted by itself"


@pytest.mark.row("T20")
def test_a_step_may_have_tries_of_its_own() -> None:
    tries: list[int] = []

    def third() -> bool:
        tries.append(1)
        return len(tries) == 3

    recipe = RecoveryRecipe(
        FailureScenario.LLM_TIMEOUT,
        (STEP.RETRY_WITH_BACKOFF,),
        1,
        EscalationPolicy.ABORT,
        {STEP.RETRY_WITH_BACKOFF: 3},
    )
    ctx = RecoveryContext({STEP.RETRY_WITH_BACKOFF: third}, recipes=[recipe])
    assert attempt_recovery("llm_timeout", ctx).outcome == "recovered"
    assert len(tries) == 3
    with pytest.raises(ValueError, match="at least one attempt"):
        RecoveryRecipe(FailureScenario.LLM_TIMEOUT, (), 1, EscalationPolicy.ABORT)


async def _slow(ran: list[str]) -> None:
    await asyncio.sleep(0)
    ran.append("b")


async def test_actions_may_be_asynchronous() -> None:
    ran: list[str] = []
    ctx = RecoveryContext({STEP.RETRY_WITH_BACKOFF: lambda: _slow(ran)})
    assert (await aattempt_recovery("llm_timeout", ctx)).outcome == "recovered"
    assert ran == ["b"]


def test_asynchronous_actions_run_from_code_that_is_not() -> None:
    ran: list[str] = []
    ctx = RecoveryContext({STEP.RETRY_WITH_BACKOFF: lambda: _slow(ran)})
    assert attempt_recovery("llm_timeout", ctx).outcome == "recovered"
    assert ran == ["b"]


@pytest.mark.may_block
async def test_asynchronous_actions_run_from_such_code_inside_a_loop() -> None:
    ran: list[str] = []
    ctx = RecoveryContext({STEP.RETRY_WITH_BACKOFF: lambda: _slow(ran)})
    assert attempt_recovery("llm_timeout", ctx).outcome == "recovered"
    assert ran == ["b"]


async def test_a_cancellation_is_no_failed_step() -> None:
    def stop() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await aattempt_recovery("llm_timeout", RecoveryContext({STEP.RETRY_WITH_BACKOFF: stop}))


def _chained(outer: Exception, cause: BaseException) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.row("T22")
@pytest.mark.parametrize(
    ("error", "scenario"),
    [
        (TimeoutError(), "llm_timeout"),
        (ConnectionRefusedError("no"), "provider_failure"),
        (_chained(RuntimeError("x"), ConnectionResetError("gone")), "provider_failure"),
        (_chained(RuntimeError("tool failed"), OSError("disk")), "dependency_timeout"),
        (json.JSONDecodeError("bad", "", 0), "memory_corruption"),
        (TypeError("tool error"), "tool_execution_error"),
        (KeyError("timeout"), "tool_execution_error"),
        (ZeroDivisionError(), "tool_execution_error"),
        (ModelError("it answered nonsense"), "llm_error"),
        (RuntimeError("processed 4012 rows"), "llm_error"),
        (RuntimeError("saw 429 birds and 503 fish"), "llm_error"),
        (RuntimeError("HTTP 401 Unauthorized"), "provider_failure"),
        (RuntimeError("status code: 503"), "provider_failure"),
        (RuntimeError("Error code: 429"), "llm_error"),
        (RuntimeError("the request timed out"), "llm_timeout"),
        (ValueError("maximum context length exceeded"), "context_overflow"),
        (RuntimeError("context_length_exceeded"), "context_overflow"),
        (RuntimeError("the file is corrupted"), "memory_corruption"),
        (ValueError("the answer is not valid JSON"), "memory_corruption"),
        (CapabilityError("tool mail failed"), "tool_execution_error"),
        (RuntimeError("the upstream did not answer"), "dependency_timeout"),
        (RuntimeError("who knows"), "llm_error"),
    ],
)
def test_a_failure_is_known_by_types_along_its_chain_first(error: Exception, scenario: str) -> None:
    assert classify_exception(error).value == scenario


@pytest.mark.row("T23")
def test_other_providers_and_smaller_contexts() -> None:
    assert next_provider(["a", "b"], "b") == "a"
    assert next_provider(["a"], "a") is None
    assert next_provider([], "a") is None
    with pytest.raises(TypeError):
        next_provider("ab", "a")
    assert [smaller_context_budget(n) for n in (0, 1, 7)] == [0, 0, 5]
    for chars, part in ((-1, 0.5), (1, 1.5), (1, -0.1), (1, float("nan"))):
        with pytest.raises(ValueError):
            smaller_context_budget(chars, part)
