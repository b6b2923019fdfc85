"""Evaluation sets built from threads, and their evaluation with another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capgraph import build_graph
from capgraph.base import ConfigurationError
from capgraph.evaluation import dataset_from_threads, evaluate, load_dataset, write_dataset
from capgraph.stores import open_saver
from tests.contract.test_replay import (
    ADD,
    RAN,
    READ,
    add,
    config,
    measure,
    registry,
    said,
    scripted,
)

pytestmark = pytest.mark.may_block


@pytest.fixture
async def written(tmp_path: Path) -> Path:
    file = tmp_path / "turns.yml"
    async with open_saver("sqlite://:memory:") as saver:
        with pytest.raises(ConfigurationError, match="no finished turn"):
            await dataset_from_threads(saver)
        model = scripted(READ, ADD, answer="Seven.")
        graph = build_graph(registry(measure, add), model=model, checkpointer=saver)
        await graph.ainvoke(said("measure and add"), config())
        await graph.ainvoke(said("and once more"), config())
        dataset, recordings = await dataset_from_threads(saver, name="two")
        assert [case.name for case in dataset.cases] == ["t turn 2", "t turn 1"]
        write_dataset(file, dataset, recordings)
    RAN.clear()
    return file


async def test_dataset_expects_the_recorded_turn_and_calls_no_model(written: Path) -> None:
    dataset = load_dataset(written)
    assert dataset.cases[0].capabilities == ["measure", "add"]
    assert dataset.cases[0].edges == [("measure", "add")]
    report = await evaluate(dataset, registry(measure, add))
    assert (report.figures["passed"], report.figures["model_calls"]) == (1.0, 0)
    assert RAN == []


async def test_another_model_is_compared_with_the_recordings(written: Path) -> None:
    model: Any = scripted({**READ, "context_key": "m"}, {**ADD, "inputs": [{"READING": "m"}]})
    same = await evaluate(load_dataset(written), registry(measure, add), model=model)
    assert [result.passed for result in same.results] == [True, True]
    assert same.figures["model_calls"]
    less = await evaluate(load_dataset(written), registry(measure, add), model=scripted(READ))
    assert "- step add" in less.results[0].problems
    assert any(
        line.startswith('- result {"capability": "add"') for line in less.results[0].problems
    )
    assert RAN == []
