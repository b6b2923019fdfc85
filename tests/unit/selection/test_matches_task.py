"""Tests of ``matches_task``, with which a capability decides about a task itself."""

from __future__ import annotations

import pytest

from capgraph.selection import Candidate, LexicalSelector


def _candidates(verdict: bool | None) -> list[Candidate]:
    return [
        Candidate(
            "figures",
            "Computes figures about measurements.",
            positives=("what is the mean temperature?", "highest pressure in May"),
        ),
        Candidate("picture", "Paints.", matches_task=lambda task: verdict),
    ]


@pytest.mark.parametrize(("verdict", "chosen"), [(True, True), (None, False), (False, False)])
async def test_matches_task_decides_if_another_capability_fits(
    verdict: bool | None, chosen: bool
) -> None:
    found = await LexicalSelector().select("the mean temperature in May", _candidates(verdict))
    assert "figures" in found.names
    assert ("picture" in found.names) is chosen


async def test_matches_task_does_not_make_an_unrelated_task_fit() -> None:
    found = await LexicalSelector().select("sing me a song", _candidates(True))
    assert found.names == ()


async def test_matches_task_can_exclude_its_capability() -> None:
    candidates = [
        Candidate(
            "figures",
            "Computes figures.",
            positives=("what is the mean temperature?",),
            matches_task=lambda task: False,
        )
    ]
    found = await LexicalSelector().select("what is the mean temperature?", candidates)
    assert found.names == ()
    assert found.reason
