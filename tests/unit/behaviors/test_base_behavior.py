"""What every behaviour is, on its own."""

from __future__ import annotations

import pytest

from capgraph.behaviors import BaseBehavior, BehaviorContext


def test_a_behavior_without_overrides_changes_nothing() -> None:
    behavior, context = BaseBehavior(), BehaviorContext("read", "read the level")
    assert behavior.before_execute(context) is None
    assert behavior.after_execute(context, 3) is None
    assert behavior.on_error(context, ValueError("broken")) is None
    assert not hasattr(behavior, "stage"), "it stands around the whole step"


@pytest.mark.row("G9")
def test_contexts_are_independent() -> None:
    first, second = (BehaviorContext("read", "read the level") for _ in range(2))
    first.metadata["own"] = 1
    assert (second.metadata, second.attempt, second.last_completed_step) == ({}, 1, -1)
