"""Rules: conditions, priority, and one that fails among others."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph.governance import (
    AgentFailed,
    AllAgentsComplete,
    And,
    CostExceeded,
    GateBelow,
    Or,
    PhaseCompleted,
    PhaseContext,
    PolicyAction,
    PolicyActionData,
    PolicyCondition,
    PolicyEngine,
    PolicyRule,
    QualityAt,
    QualityLevel,
    RetryExhausted,
    TimedOut,
)

NOTIFY = PolicyActionData(PolicyAction.NOTIFY)


class Says(PolicyCondition):
    def __init__(self, said: Any) -> None:
        self.said = said

    def matches(self, ctx: PhaseContext) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Later(Says):
    async def matches(self, ctx: PhaseContext) -> Any:  # type: ignore[override]
        return super().matches(ctx)


YES, NO = Says(True), Says(False)


@pytest.mark.row("T17")
@pytest.mark.parametrize(
    ("condition", "ctx", "expected"),
    [
        (And([]), {}, True),
        (And([YES, NO]), {}, False),
        (Or([]), {}, False),
        (Or([NO, YES]), {}, True),
        (QualityAt(QualityLevel.STRICT), {}, False),
        (QualityAt(QualityLevel.STRICT), {"quality_level": 3}, True),
        (QualityAt(QualityLevel.STRICT), {"quality_level": 2}, False),
        (PhaseCompleted(), {"phase_completed": True}, True),
        (AgentFailed(), {"failed_roles": {"a"}}, True),
        (AgentFailed("b"), {"failed_roles": {"a"}}, False),
        (AgentFailed(), {}, False),
        (GateBelow(2), {"gate_score": 1.9}, True),
        (GateBelow(2), {"gate_score": 2}, False),
        (RetryExhausted(), {"retry_exhausted_scenarios": {"llm_error"}}, True),
        (RetryExhausted("llm_timeout"), {"retry_exhausted_scenarios": {"llm_error"}}, False),
        (TimedOut(5), {"elapsed_seconds": 5}, False),
        (TimedOut(5), {"elapsed_seconds": 5.1}, True),
        (AllAgentsComplete(), {}, False),
        (AllAgentsComplete(), {"all_roles": {"a", "b"}, "completed_roles": {"a"}}, False),
        (
            AllAgentsComplete(),
            {"all_roles": {"a", "b"}, "completed_roles": {"a"}, "failed_roles": {"b"}},
            True,
        ),
        (CostExceeded(1), {"total_cost_usd": 1}, False),
        (CostExceeded(1), {"total_cost_usd": 1.01}, True),
        (CostExceeded(1), {"total_cost_usd": None}, True),
    ],
)
def test_conditions(condition: Any, ctx: dict[str, Any], expected: bool) -> None:
    assert condition.matches(PhaseContext(**ctx)) is expected


@pytest.mark.row("T17")
def test_one_condition_that_fails_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = PolicyEngine(
        [
            PolicyRule("broken", Says(RuntimeError("boom")), [PolicyActionData("abort_phase")]),
            PolicyRule("inside", And([YES, Says(ValueError("x"))]), [PolicyActionData("escalate")]),
            PolicyRule("good", YES, [NOTIFY]),
        ]
    )
    with caplog.at_level("ERROR", logger="capgraph"):
        found = engine.evaluate(PhaseContext())
    assert [item.action for item in found] == [PolicyAction.NOTIFY]
    assert "'broken'" in caplog.text
    assert "'inside'" in caplog.text
    assert "boom" in caplog.text


async def test_asynchronous_conditions_also_inside_others(caplog: Any) -> None:
    rules = [
        PolicyRule("a", And([YES, Later(True), YES]), [PolicyActionData("notify", {"n": 1})]),
        PolicyRule(
            "b", Or([NO, Later(False), Later(True)]), [PolicyActionData("notify", {"n": 2})]
        ),
        PolicyRule("c", Later(RuntimeError("boom")), [PolicyActionData("notify", {"n": 3})]),
        PolicyRule("d", And([Later(False), Says(RuntimeError("never"))]), [NOTIFY]),
        PolicyRule("e", YES, [PolicyActionData("notify", {"n": 4})], priority=1),
    ]
    engine = PolicyEngine(rules)
    found = engine.evaluate(PhaseContext())
    assert inspect.isawaitable(found)
    assert [item.params["n"] for item in await found] == [4, 1, 2]
    assert [i.params["n"] for i in await engine.evaluate_async(PhaseContext())] == [4, 1, 2]
    assert "'c'" in caplog.text
    assert "'d'" not in caplog.text


@pytest.mark.row("T17")
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(1, 3)), max_size=12),
)
def test_matching_rules_apply_by_priority(
    given_rules: list[tuple[int, bool, int]],
) -> None:
    rules = [
        PolicyRule(
            f"r{place}",
            Says(matches),
            [PolicyActionData("notify", {"at": (place, n)}) for n in range(count)],
            priority,
        )
        for place, (priority, matches, count) in enumerate(given_rules)
    ]
    found = [item.params["at"] for item in PolicyEngine(rules).evaluate(PhaseContext())]
    expected = [
        (place, n)
        for _, place, count in sorted(
            (priority, place, count)
            for place, (priority, matches, count) in enumerate(given_rules)
            if matches
        )
        for n in range(count)
    ]
    assert found == expected


def test_a_rule_copies_its_parameters() -> None:
    params = {"list": [1]}
    rule = PolicyRule("a", YES, [PolicyActionData("notify", params)])
    engine = PolicyEngine([rule])
    params["list"].append(2)
    engine.evaluate(PhaseContext())[0].params["list"].append(3)
    assert engine.evaluate(PhaseContext())[0].to_dict() == {
        "action": "notify",
        "params": {"list": [1]},
    }
    assert engine.rules == [rule]


def test_there_are_nine_actions_and_invalid_rules_are_rejected() -> None:
    assert len(PolicyAction) == 9
    with pytest.raises(ValueError):
        PolicyActionData("dance")  # type: ignore[arg-type]
    for name, condition, actions in ((" ", YES, [NOTIFY]), ("a", YES, []), ("a", 3, [NOTIFY])):
        with pytest.raises(ValueError, match="Fix"):
            PolicyRule(name, condition, actions)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rule names .* are not unique"):
        PolicyEngine([PolicyRule("a", YES, [NOTIFY]), PolicyRule("a", NO, [NOTIFY])])
    for wrong in ({"elapsed_seconds": -1}, {"total_cost_usd": float("nan")}, {"gate_score": True}):
        with pytest.raises(ValueError, match="number of at least 0"):
            PhaseContext(**wrong)  # type: ignore[arg-type]
    for make in (TimedOut, CostExceeded):
        with pytest.raises(ValueError, match="number of at least 0"):
            make(-1)
