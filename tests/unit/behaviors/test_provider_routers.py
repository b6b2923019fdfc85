"""Routers of providers: the next one that is left, or none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from capgraph.behaviors import (
    RoundRobinProviderRouter,
    StaticProviderRouter,
    WeightedProviderRouter,
)


def ask(router: Any, current: str | None = None, exclude: Any = ()) -> str | None:
    found: str | None = router.select(
        scenario="provider_failure", attempt=1, current=current, exclude=exclude
    )
    return found


@pytest.mark.row("T33")
def test_the_static_router_keeps_its_order() -> None:
    router = StaticProviderRouter(("a", "b", "c"))
    assert [ask(router), ask(router, "a"), ask(router, "a", ["b"])] == ["a", "b", "c"]
    assert ask(router, "a", ("b", "c")) is None


@pytest.mark.row("T33")
def test_the_round_robin_router_continues() -> None:
    router = RoundRobinProviderRouter(("a", "b", "c"))
    assert [ask(router) for _ in range(4)] == ["a", "b", "c", "a"]
    assert ask(router, "b") == "c"
    assert ask(router, "a", ("b", "c")) is None
    assert ask(RoundRobinProviderRouter(())) is None


@pytest.mark.row("T33")
def test_the_weighted_router_uses_weights() -> None:
    router = WeightedProviderRouter((("a", 1.0), ("b", 9.0), ("off", 0.0)))
    assert [ask(router), ask(router, "b"), ask(router, "b", ("a",))] == ["b", "a", None]
    drawn = [
        [ask(WeightedProviderRouter((("a", 1), ("b", 9)), rng=rng)) for _ in range(30)]
        for rng in (random.Random(7), random.Random(7))
    ]
    assert drawn[0] == drawn[1]
    rng = random.Random(7)
    router = WeightedProviderRouter((("a", 1), ("b", 9)), rng=rng)
    share = sum(ask(router) == "b" for _ in range(1000)) / 1000
    assert 0.85 < share < 0.95


@pytest.mark.parametrize("names", [("a", "a"), ("",), "ab"])
def test_names_are_checked(names: Any) -> None:
    for kind in (StaticProviderRouter, RoundRobinProviderRouter):
        with pytest.raises(ValueError):
            kind(names)


@pytest.mark.row("T33")
@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_weights_are_checked(weight: float) -> None:
    with pytest.raises(ValueError):
        WeightedProviderRouter((("a", weight),))
