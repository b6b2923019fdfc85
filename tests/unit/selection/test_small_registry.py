"""Tests of the default selector with small registries."""

from __future__ import annotations

import pytest

from capgraph.selection import Candidate, LexicalSelector
from tests.unit.selection.registries import (
    FRESH_REQUESTS,
    FRESH_UNRELATED,
    REGISTRIES,
    REQUESTS,
    UNRELATED_REQUESTS,
)

# What planning adds by itself: who computes or draws needs the data.
PRODUCERS = {"statistics": {"data_retrieval"}, "plotting": {"data_retrieval"}}


@pytest.fixture(scope="module")
def selector() -> LexicalSelector:
    return LexicalSelector()


async def chosen(selector: LexicalSelector, registry: str, request: str) -> set[str]:
    selection = await selector.select(request, REGISTRIES[registry])
    names = set(selection.names)
    return names.union(*(PRODUCERS.get(name, set()) for name in names))


@pytest.mark.parametrize(
    ("requests", "precision", "recall", "served"),
    [(REQUESTS, 0.95, 0.82, 0.85), (FRESH_REQUESTS, 0.92, 0.75, 0.80)],
    ids=["known", "fresh"],
)
async def test_requests_find_their_capabilities(
    selector: LexicalSelector,
    requests: tuple[tuple[str, str, frozenset[str]], ...],
    precision: float,
    recall: float,
    served: float,
) -> None:
    correct = returned = needed = answered = 0
    for registry, request, wanted in requests:
        found = await chosen(selector, registry, request)
        correct += len(found & wanted)
        returned += len(found)
        needed += len(wanted)
        answered += bool(found)
    assert correct / returned >= precision
    assert correct / needed >= recall
    assert answered / len(requests) >= served


@pytest.mark.parametrize("registry", REGISTRIES)
async def test_unrelated_requests_select_nothing(selector: LexicalSelector, registry: str) -> None:
    requests = UNRELATED_REQUESTS + FRESH_UNRELATED
    taken = [r for r in requests if (await selector.select(r, REGISTRIES[registry])).names]
    assert len(taken) <= 0.1 * len(requests), taken


@pytest.mark.parametrize(
    "request_", ["What is the capital of France?", "write me a poem", "hello", "Hi!"]
)
@pytest.mark.parametrize("registry", REGISTRIES)
async def test_common_unrelated_requests_are_refused_with_a_reason(
    selector: LexicalSelector, registry: str, request_: str
) -> None:
    selection = await selector.select(request_, REGISTRIES[registry])
    assert selection.names == ()
    assert selection.best < 0.5
    assert "No capability fits" in selection.reason


async def test_requests_for_another_registry_are_mostly_refused(
    selector: LexicalSelector,
) -> None:
    asked = taken = 0
    for own, request, _ in REQUESTS:
        for other in REGISTRIES.keys() - {own}:
            asked += 1
            taken += bool((await selector.select(request, REGISTRIES[other])).names)
    assert taken / asked <= 0.15


async def test_a_compound_request_finds_all_its_capabilities(selector: LexicalSelector) -> None:
    selection = await selector.select(
        "Turn the heating off, switch off the lamps and stop the radio", REGISTRIES["home"]
    )
    assert set(selection.names) == {"lights", "thermostat", "music"}


async def test_general_texts_do_not_block_capabilities_that_serve_them(
    selector: LexicalSelector,
) -> None:
    """A capital's name is unrelated to weather, but not to a geography capability."""
    geography = Candidate(
        "geography",
        "Answers questions about countries, capitals, rivers and mountains.",
        positives=("What is the capital of Spain?", "How long is the Danube?"),
    )
    poems = Candidate("poems", "Writes poems.", positives=("Write me a poem about rain",))
    registry = [geography, poems]
    assert (await selector.select("What is the capital of France?", registry)).names == (
        "geography",
    )
    assert (await selector.select("write a poem about the sea", registry)).names == ("poems",)
