"""Quality gates: nothing observed is not enough, and what cannot be judged does not pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from capgraph.base import CapgraphError, ErrorSeverity
from capgraph.governance import QualityGate, QualityGateError, QualityLevel

LEVELS = list(QualityLevel)


@pytest.mark.row("T18")
@given(required=st.sampled_from(LEVELS), observed=st.none() | st.sampled_from(LEVELS))
def test_a_level_is_enough_when_it_is_at_least_the_required_one(
    required: QualityLevel, observed: QualityLevel | None
) -> None:
    gate = QualityGate(required)
    outcome = gate.evaluate(observed)
    assert outcome.satisfied is (observed is not None and observed >= required)
    assert outcome.is_satisfied() is gate.is_satisfied_by(observed) is outcome.satisfied
    assert outcome.to_dict()["required_level"] == required.name


def test_nonsense_is_refused() -> None:
    for level in (0, 5, True, "STRICT", None, 2.0):
        with pytest.raises(ValueError):
            QualityGate(level)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="retry, replan, ask, fail"):
        QualityGate(QualityLevel.STRICT, below="shrug")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        QualityGate(QualityLevel.MINIMAL).evaluate(True)


class Form(BaseModel):
    value: int


async def judge(result: Any) -> QualityLevel:
    return QualityLevel(result)


def assertive(result: Any) -> QualityLevel:
    assert result > 0, "it must be positive"
    return QualityLevel.RELEASE


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (judge, 3, 1),
        (QualityLevel, 4, 2),
        (assertive, 1, -1),
        (Form, {"value": 3}, {"value": "x"}),
        (Form, Form(value=1), {}),
        (lambda result: QualityLevel.STRICT if result else None, 1, 0),
    ],
)
async def test_a_check_gives_a_level_asserts_or_is_a_form(check: Any, good: Any, bad: Any) -> None:
    gate = QualityGate(QualityLevel.STRICT, check=check)
    seen = await gate.evaluate_result(good, "it")
    assert seen.level is not None
    assert seen.level >= QualityLevel.STRICT
    assert not seen.approval_reason
    with pytest.raises(QualityGateError, match="Strict"):
        await gate.evaluate_result(bad, "it")


@pytest.mark.parametrize(
    ("below", "severity"),
    [
        ("retry", ErrorSeverity.RETRIABLE),
        ("replan", ErrorSeverity.REPLANNING),
        ("fail", ErrorSeverity.CRITICAL),
    ],
)
async def test_below_the_level_the_severity_says_what_happens(
    below: Any, severity: ErrorSeverity
) -> None:
    gate = QualityGate(QualityLevel.STRICT, check=judge, below=below)
    with pytest.raises(CapgraphError) as caught:
        await gate.evaluate_result(2, "the result")
    assert caught.value.severity is severity
    assert "Standard" in str(caught.value)
    assert "Fix:" in str(caught.value)


@pytest.mark.row("T18")
async def test_a_check_that_fails_lets_nothing_pass() -> None:
    gate = QualityGate(QualityLevel.MINIMAL, check=lambda result: result["no"], below="ask")
    with pytest.raises(QualityGateError, match="KeyError") as caught:
        await gate.evaluate_result({}, "it")
    assert caught.value.severity is ErrorSeverity.CRITICAL
    outcome = await QualityGate(QualityLevel.MINIMAL, assertive, "ask").evaluate_result(0, "it")
    assert outcome.level is None
    assert "Minimal" in outcome.approval_reason
