"""Promises of the rows of ALS Expert's document."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.prompts import get_framework_prompts
from capgraph.testing import with_faults
from tests.support.toys import Reading, Total, add, measure

BUILDERS = (
    "orchestrator",
    "task_extraction",
    "response_generation",
    "classification",
    "error_analysis",
    "clarification",
    "memory_extraction",
    "time_range_parsing",
    "python",
)


@pytest.mark.row("B6", "B42")
@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("guide", ["orchestrator", "classifier"])
def test_builder_without_a_guide_warns(
    kind: str, guide: str, caplog: pytest.LogCaptureFixture
) -> None:
    builder = getattr(get_framework_prompts(), f"get_{kind}_prompt_builder")()
    with caplog.at_level(logging.WARNING):
        assert getattr(builder, f"get_{guide}_guide")() is None
    assert [record.name for record in caplog.records] == ["capgraph.framework.prompts"]


@pytest.mark.row("B47")
@pytest.mark.parametrize("severity", [ErrorSeverity.RECLASSIFICATION, ErrorSeverity.REPLANNING])
async def test_finished_step_stays_in_the_outcome_after_a_new_choice(
    severity: ErrorSeverity, agent: Any, step: Any
) -> None:
    wrong = CapabilityError("wrong tool", severity=severity)
    plan = [step("a", "measure"), step("b", "add", READING="a")]
    bench = agent(Reading, Total, measure, with_faults(add, forever=wrong), plans=[plan])
    outcome = (await bench.ask())["execution_outcome"]
    assert (outcome["status"], outcome["done"], outcome["missing"]) == ("failed", ["a"], ["b"])
