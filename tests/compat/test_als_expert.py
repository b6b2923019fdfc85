"""Promises of the rows of ALS Expert's document."""

from __future__ import annotations

import logging

import pytest

from capgraph.prompts import get_framework_prompts

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
