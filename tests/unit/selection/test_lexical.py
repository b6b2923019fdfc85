"""Tests of the default selector's behavior beyond accuracy."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from capgraph.base import MissingExtraError, ValidationError
from capgraph.selection import Candidate, LexicalSelector, Selector
from tests.unit.selection.registries import DATA_AGENT, HOME, SUPPORT

WEATHER = Candidate(
    "weather",
    "Tells the weather of a place.",
    positives=("Will it rain in Oslo?", "How warm is it in Rome?", "Is there snow in Bern?"),
)
NEWS = Candidate("news", "Finds recent news.", positives=("Any news on elections?",))


def test_it_follows_the_protocol() -> None:
    assert isinstance(LexicalSelector(), Selector)


async def test_descriptions_alone_suffice() -> None:
    candidates = [
        Candidate("translate_text", "Translates text between languages."),
        Candidate("currency", "Converts amounts of money between currencies."),
        Candidate("route_planner", "Plans a route by car, bicycle or train."),
    ]
    selector = LexicalSelector()
    assert (
        await selector.select("Convert 20 euros to dollars, which currencies?", candidates)
    ).names[0] == "currency"
    assert (await selector.select("plan a route to Bonn by bicycle", candidates)).names == (
        "route_planner",
    )


async def test_a_negative_example_excludes_a_capability() -> None:
    request = "Is it raining meteors tonight?"
    positives = (*WEATHER.positives, "Is it raining?", "Is it raining tonight?")
    tempted = Candidate("weather", WEATHER.description, positives=positives)
    taught = Candidate(
        "weather",
        WEATHER.description,
        positives=positives,
        negatives=("Is it raining meteors?", "When are there meteors?"),
    )
    selector = LexicalSelector()
    assert (await selector.select(request, [tempted, NEWS])).names == ("weather",)
    assert (await selector.select(request, [taught, NEWS])).names == ()


async def test_instructions_count() -> None:
    bare = Candidate("tool_a", "Does its work.")
    with_instructions = Candidate(
        "tool_a", "Does its work.", "Choose it for questions about volcanoes."
    )
    selector = LexicalSelector()
    request = "Which volcanoes erupted?"
    assert not (await selector.select(request, [bare, NEWS])).names
    assert (await selector.select(request, [with_instructions, NEWS])).names == ("tool_a",)


async def test_an_excluded_capability_is_never_chosen() -> None:
    selector = LexicalSelector()
    request = "Dim the lights and play some songs"
    every = await selector.select(request, HOME)
    assert set(every.names) == {"lights", "music"}
    fewer = await selector.select(request, HOME, excluded={"lights": "the bridge is offline"})
    assert fewer.names == ("music",)
    assert fewer.best == fewer.scores["music"]
    none = await selector.select(
        "Dim the lights", HOME, excluded={"lights": "the bridge is offline"}
    )
    assert none.names == ()
    assert "lights" in none.reason
    nothing_left = await selector.select(request, HOME, excluded={c.name: "x" for c in HOME})
    assert nothing_left.names == ()
    assert "excluded" in nothing_left.reason


async def test_scores_cover_every_candidate_best_first() -> None:
    selection = await LexicalSelector().select("Will it snow?", [NEWS, WEATHER])
    assert list(selection.scores) == ["weather", "news"]
    assert all(0.0 <= score <= 1.0 for score in selection.scores.values())
    assert selection.best == selection.scores["weather"]
    assert "weather" in selection.reason


@pytest.mark.parametrize("task", ["", "  \n"])
async def test_an_empty_task_selects_nothing(task: str) -> None:
    selection = await LexicalSelector().select(task, HOME)
    assert selection.names == ()
    assert "empty" in selection.reason


async def test_no_candidates() -> None:
    selection = await LexicalSelector().select("anything", [])
    assert selection.names == ()
    assert "no capabilities" in selection.reason


async def test_duplicate_candidate_names_are_refused() -> None:
    with pytest.raises(ValidationError, match="'news'"):
        await LexicalSelector().select("anything", [NEWS, NEWS])


@pytest.mark.parametrize("task", ["☃ ☃ ☃", "?!", "明日の天気は", "a"])
async def test_texts_without_known_words_select_nothing(task: str) -> None:
    assert (await LexicalSelector().select(task, SUPPORT)).names == ()


async def test_a_huge_task_is_answered_quickly() -> None:
    selector = LexicalSelector()
    await selector.prepare(SUPPORT)
    task = "Where is my order? " + "x" * 1_000_000
    start = time.process_time()
    selection = await selector.select(task, SUPPORT)
    assert time.process_time() - start < 3.0
    assert "order_status" in selection.scores


@pytest.mark.parametrize("options", [{"margin": 0.0}, {"margin": 1.5}, {"threshold": 1.0}])
def test_settings_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        LexicalSelector(**options)


async def test_threshold_and_margin_are_settings() -> None:
    request = "Dim the lights and play some songs"
    strict = await LexicalSelector(threshold=0.95).select(request, HOME)
    assert strict.names == ()
    generous = await LexicalSelector(threshold=0.02, margin=0.02).select(request, HOME)
    plain = await LexicalSelector().select(request, HOME)
    assert set(plain.names) <= set(generous.names)


class Counting(LexicalSelector):
    def __init__(self) -> None:
        super().__init__()
        self.fits = 0

    async def _fit_classifier(self, candidates: tuple[Candidate, ...]):  # type: ignore[no-untyped-def]
        self.fits += 1
        return await super()._fit_classifier(candidates)


async def test_concurrent_requests_fit_the_candidates_once() -> None:
    selector = Counting()
    requests = ["Dim the lamp", "Play jazz", "Make it warmer", "hello"]
    await asyncio.gather(*(selector.select(request, HOME) for request in requests))
    await selector.select("Dim the lamp", list(HOME))
    assert selector.fits == 1
    await selector.select("Where is my order?", SUPPORT)
    assert selector.fits == 2


async def test_instances_share_nothing() -> None:
    first, second = Counting(), Counting()
    await first.select("Dim the lamp", HOME)
    await second.select("Dim the lamp", HOME)
    assert (first.fits, second.fits) == (1, 1)


def test_one_instance_serves_several_event_loops() -> None:
    selector = LexicalSelector()
    names = [asyncio.run(selector.select("Dim the lamp", HOME)).names for _ in range(2)]
    assert names == [("lights",), ("lights",)]


async def test_selection_is_deterministic_across_requests_and_fits() -> None:
    request = "Find the windiest day of 2013 and plot the wind for that year"
    one, other = LexicalSelector(), LexicalSelector()
    first = await one.select(request, DATA_AGENT)
    assert await one.select(request, DATA_AGENT) == first
    assert (await other.select(request, DATA_AGENT)).names == first.names


async def test_fitting_does_not_block_the_event_loop() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticker = asyncio.create_task(tick())
    await LexicalSelector().prepare(_synthetic(300, 2))
    ticker.cancel()
    assert ticks >= 3


def _synthetic(count: int, each: int) -> list[Candidate]:
    """Build candidates with a thing of their own and a verb that many share."""
    verbs = ("order", "paint", "repair", "weigh", "photograph", "rent", "clean", "sell")
    frames = (
        "please {verb} my {thing}",
        "could someone {verb} the {thing} today",
        "I want to {verb} a {thing}",
        "{verb} this {thing} for me",
        "who can {verb} {thing} number 4",
        "is it possible to {verb} {thing}",
    )
    rng = random.Random(1)
    candidates = []
    for number in range(count):
        verb = verbs[number % len(verbs)]
        thing = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(4))
        texts = tuple(frame.format(verb=verb, thing=thing) for frame in frames[:each])
        candidates.append(Candidate(f"{verb}_{thing}", f"To {verb} {thing}s.", positives=texts))
    return candidates


@pytest.mark.parametrize(("count", "each"), [(24, 6), (24, 2), (300, 1)])
async def test_many_candidates_are_distinguished(count: int, each: int) -> None:
    """Both kinds of head, with and without logistic regression."""
    candidates = _synthetic(count, each)
    selector = LexicalSelector()
    right = 0
    for candidate in candidates[::3]:
        verb, thing = candidate.name.split("_")
        selection = await selector.select(f"we need to {verb} our old {thing} soon", candidates)
        right += selection.names[:1] == (candidate.name,)
    assert right >= 0.9 * len(candidates[::3])
    assert not (await selector.select("hello, who are you?", candidates)).names


async def test_a_negative_example_counts_among_many_candidates() -> None:
    candidates = _synthetic(24, 6)
    name = candidates[0].name
    verb, thing = name.split("_")
    request = f"{verb} the {thing} on the moon"
    taught = [
        Candidate(
            name, candidates[0].description, positives=candidates[0].positives, negatives=(request,)
        ),
        *candidates[1:],
    ]
    selector = LexicalSelector()
    before = await selector.select(request, candidates)
    after = await selector.select(request, taught)
    assert before.names[0] == name
    assert after.scores[name] < before.scores[name] - 0.1


async def test_a_thousand_candidates_are_compared_quickly() -> None:
    candidates = _synthetic(1000, 3)
    selector = LexicalSelector()
    await selector.prepare(candidates)
    spent = []
    for candidate in candidates[:100:5]:
        start = time.process_time()
        await selector.select(f"please {candidate.description}", candidates)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.060


async def test_a_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match=r"capgraph\[offline\]"):
        await LexicalSelector().select("Dim the lamp", HOME)


@pytest.mark.may_block
def test_importing_selection_imports_no_heavy_library() -> None:
    heavy: Sequence[str] = ("sklearn", "scipy", "numpy")
    code = (
        "import sys; before = set(sys.modules); import capgraph.selection; "
        f"print(sorted({set(heavy)!r} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
