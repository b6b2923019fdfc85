"""Tests of selection with embeddings, using small readable vectors."""

from __future__ import annotations

import asyncio
import math

import pytest
from langchain_core.embeddings import Embeddings

from capgraph.base import ModelError
from capgraph.selection import Candidate, EmbeddingSelector, LexicalSelector

# Words of one meaning share a dimension; a lexical comparison cannot know that.
MEANINGS = (
    {"weather", "rain", "umbrella", "drizzle", "wet", "storm"},
    {"music", "song", "tune", "melody", "singer", "album"},
    {"money", "refund", "cash", "dollars", "pay", "reimburse"},
)
WEATHER = Candidate(
    "weather", "Tells the weather.", positives=("Will there be rain?", "Is a storm near?")
)
MUSIC = Candidate("music", "Plays music.", positives=("Put a song on", "Start an album"))


class Meanings(Embeddings):
    """One dimension for each meaning, some for all other words, and a constant offset."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset
        self.document_calls = 0
        self.queries: list[str] = []

    def vector(self, text: str) -> list[float]:
        out = [self.offset] + [0.0] * (len(MEANINGS) + 8)
        for word in text.lower().strip("?!. ").split():
            for index, words in enumerate(MEANINGS):
                if word.strip("?.,") in words:
                    out[1 + index] += 2.0
            out[1 + len(MEANINGS) + sum(map(ord, word)) % 8] += 0.2
        return out

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("the asynchronous method is to be used")

    def embed_query(self, text: str) -> list[float]:
        raise AssertionError("the asynchronous method is to be used")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.document_calls += 1
        await asyncio.sleep(0)
        return [self.vector(text) for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        return self.vector(text)


@pytest.mark.parametrize("offset", [0.0, 20.0], ids=["centred", "all in one corner"])
async def test_embeddings_match_texts_without_common_words(offset: float) -> None:
    selector = EmbeddingSelector(Meanings(offset))
    candidates = [WEATHER, MUSIC]
    assert (await selector.select("an umbrella, maybe", candidates)).names == ("weather",)
    assert (await selector.select("some melody", candidates)).names == ("music",)
    assert (await selector.select("who invented chess", candidates)).names == ()
    lexical = await LexicalSelector().select("an umbrella, maybe", candidates)
    assert lexical.names == ()


async def test_documents_are_embedded_once_for_each_set_of_candidates() -> None:
    embeddings = Meanings()
    selector = EmbeddingSelector(embeddings)
    requests = ("an umbrella", "a tune", "hello")
    await asyncio.gather(*(selector.select(r, [WEATHER, MUSIC]) for r in requests))
    assert embeddings.document_calls == 1
    assert sorted(embeddings.queries) == sorted(requests)
    await selector.select("an umbrella", [WEATHER])
    assert embeddings.document_calls == 2


async def test_a_failed_fit_is_retried() -> None:
    class Flaky(Meanings):
        async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
            vectors = await super().aembed_documents(texts)
            if self.document_calls == 1:
                raise ConnectionError("the service is down")
            return vectors

    selector = EmbeddingSelector(Flaky())
    with pytest.raises(ConnectionError):
        await selector.select("an umbrella", [WEATHER, MUSIC])
    assert (await selector.select("an umbrella", [WEATHER, MUSIC])).names == ("weather",)


class Broken(Meanings):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors = await super().aembed_documents(texts)
        if self.fault == "fewer":
            return vectors[:-1]
        if self.fault == "nan":
            vectors[0][0] = math.nan
        if self.fault == "flat":
            return vectors[0]  # type: ignore[return-value]
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        vector = await super().aembed_query(text)
        return vector[:-1] if self.fault == "other dimensions" else vector


@pytest.mark.parametrize("fault", ["fewer", "nan", "flat", "other dimensions"])
async def test_invalid_embeddings_are_refused(fault: str) -> None:
    selector = EmbeddingSelector(Broken(fault))
    with pytest.raises(ModelError, match=r"embeddings .* Fix: "):
        await selector.select("an umbrella", [WEATHER, MUSIC])
