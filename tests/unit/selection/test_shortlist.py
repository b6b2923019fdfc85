"""Tests of the shortlist for a chat model."""

from __future__ import annotations

from capgraph.selection import Candidate, LexicalSelector
from tests.unit.selection.registries import DATA_AGENT, HOME, SUPPORT

ALL = (*DATA_AGENT, *SUPPORT, *HOME)


async def names(task: str, **options: object) -> list[str]:
    shortlist = await LexicalSelector().nearest_candidates(task, ALL, **options)  # type: ignore[arg-type]
    return [candidate.name for candidate in shortlist]


async def test_the_shortlist_keeps_the_order_of_the_registry() -> None:
    shortlist = await names("Dim the lamp, play a song and pay my money back", limit=5)
    assert len(shortlist) == 5
    assert {"refund", "lights", "music"} <= set(shortlist)
    order = [candidate.name for candidate in ALL]
    assert shortlist == sorted(shortlist, key=order.index)


async def test_excluded_candidates_are_not_listed() -> None:
    shortlist = await names("Dim the lamp", limit=3, excluded={"lights": "offline", "memory": "x"})
    assert "lights" not in shortlist
    assert len(shortlist) == 3


async def test_a_small_registry_is_not_scored() -> None:
    class Untouched(LexicalSelector):
        async def score(self, task: str, candidates: object) -> dict[str, float]:
            raise AssertionError("nothing to rank")

    assert await Untouched().nearest_candidates("x", HOME, limit=3) == HOME


async def test_an_unrelated_task_still_gets_a_full_shortlist() -> None:
    assert len(await names("☃", limit=4)) == 4


async def test_the_shortlist_contains_the_right_candidate_of_hundreds() -> None:
    many = [Candidate(f"handle_{n}", f"Handles case {n}.") for n in range(300)]
    shortlist = await LexicalSelector().nearest_candidates(
        "Track my parcel please", [*many, *ALL], limit=10
    )
    assert "order_status" in {candidate.name for candidate in shortlist}
