"""Selection by rules."""

from __future__ import annotations

import asyncio

import pytest

from framework.base import CapabilityError, ValidationError
from framework.selection import Candidate, LexicalSelector, Rule, RuleSelector, Selector
from tests.unit.selection.registries import HOME

AVAILABLE = [Candidate(name, name) for name in ("a", "b", "c")]


async def later(task: str) -> bool:
    await asyncio.sleep(0)
    return "async" in task


async def test_the_first_rule_that_matches_decides() -> None:
    selector = RuleSelector(
        [
            Rule(lambda task: "x" in task, ("a", "b"), label="has x"),
            Rule(lambda task: True, ("c",)),
        ]
    )
    assert isinstance(selector, Selector)
    selection = await selector.select("x", AVAILABLE)
    assert selection.names == ("a", "b")
    assert selection.best == 1.0
    assert "has x" in selection.reason
    assert (await selector.select("x", AVAILABLE, limit=1)).names == ("a",)
    assert (await selector.select("y", AVAILABLE)).names == ("c",)


async def test_conditions_may_be_asynchronous() -> None:
    selector = RuleSelector([Rule(later, ("a",))], fallback=("b",))
    assert (await selector.select("async", AVAILABLE)).names == ("a",)
    assert (await selector.select("other", AVAILABLE)).names == ("b",)


async def test_a_rule_without_available_capability_does_not_match() -> None:
    asked = []
    selector = RuleSelector(
        [
            Rule(lambda task: asked.append(task) or True, ("gone",)),
            Rule(lambda task: True, ("also_gone", "b")),
        ]
    )
    assert (await selector.select("x", AVAILABLE)).names == ("b",)
    assert asked == []


async def test_excluded_capabilities_are_passed_over() -> None:
    selector = RuleSelector([Rule(lambda task: True, ("a",))], fallback=("a", "b"))
    selection = await selector.select("x", AVAILABLE, excluded={"a": "it failed"})
    assert selection.names == ("b",)
    assert "fallback" in selection.reason


async def test_a_fallback_that_is_not_available_is_not_chosen() -> None:
    selector = RuleSelector([], fallback=("gone",))
    selection = await selector.select("x", AVAILABLE)
    assert selection.names == ()
    assert selection.best == 0.0
    assert "gone is not available" in selection.reason


async def test_no_rule_and_no_fallback() -> None:
    selection = await RuleSelector().select("x", AVAILABLE)
    assert selection.names == ()
    assert selection.reason == "No rule matches."


async def test_another_selector_may_be_the_fallback() -> None:
    selector = RuleSelector(
        [Rule(lambda task: task.startswith("/mute"), ("music",))], fallback=LexicalSelector()
    )
    assert (await selector.select("/mute", HOME)).names == ("music",)
    assert (await selector.select("Dim the lamp", HOME)).names == ("lights",)
    assert not (await selector.select("Dim the lamp", HOME, excluded={"lights": "off"})).names


async def test_a_condition_that_fails_names_its_rule() -> None:
    def broken(task: str) -> bool:
        return task[100] == "x"

    selector = RuleSelector([Rule(broken, ("a",), label="long tasks")])
    with pytest.raises(
        CapabilityError, match=r"rule 1 \(long tasks\) failed: IndexError"
    ) as caught:
        await selector.select("x", AVAILABLE)
    assert isinstance(caught.value.__cause__, IndexError)


def test_rules_are_checked_when_they_are_given() -> None:
    with pytest.raises(ValidationError, match="Rule 1"):
        RuleSelector([Rule(lambda task: True, ())])
    with pytest.raises(ValidationError, match="Rule 1"):
        RuleSelector([Rule(lambda task: True, "name")])
    with pytest.raises(ValidationError, match="fallback"):
        RuleSelector([], fallback="name")
