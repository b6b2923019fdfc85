"""Smooth weighted round-robin."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.base import ValidationError
from framework.selection import LoadBalancer


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 7), min_size=1).filter(
        lambda weights: any(weights.values())
    )
)
def test_shares_follow_the_weights_exactly_over_a_cycle(weights: dict[str, int]) -> None:
    balancer = LoadBalancer(weights)
    for _ in range(2):
        counts = Counter(balancer.choose() for _ in range(sum(weights.values())))
        assert counts == Counter({name: weight for name, weight in weights.items() if weight})


def test_a_heavy_name_does_not_take_its_turns_in_a_row() -> None:
    balancer = LoadBalancer({"big": 5, "one": 1, "two": 1})
    assert [balancer.choose() for _ in range(7)] == [
        "big",
        "big",
        "one",
        "big",
        "two",
        "big",
        "big",
    ]


def test_only_available_names_are_chosen() -> None:
    balancer = LoadBalancer({"a": 1, "b": 1, "c": 0})
    assert {balancer.choose(["b"]) for _ in range(3)} == {"b"}
    with pytest.raises(ValidationError, match="'c'"):
        balancer.choose(["c"])
    with pytest.raises(ValidationError):
        balancer.choose([])


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": 0, "b": 0.0}])
def test_without_a_weight_nothing_can_be_chosen(weights: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="No weight"):
        LoadBalancer(weights)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_weights_are_checked(weight: float) -> None:
    with pytest.raises(ValidationError, match="'b'"):
        LoadBalancer({"a": 1, "b": weight})


def test_choices_from_many_threads_keep_the_shares() -> None:
    balancer = LoadBalancer({"a": 3, "b": 1})
    with ThreadPoolExecutor(8) as pool:
        counts = Counter(pool.map(lambda _: balancer.choose(), range(4000)))
    assert counts == {"a": 3000, "b": 1000}


def test_instances_share_no_state() -> None:
    first, second = LoadBalancer({"a": 1, "b": 1}), LoadBalancer({"a": 1, "b": 1})
    assert first.choose() == second.choose() == "a"
