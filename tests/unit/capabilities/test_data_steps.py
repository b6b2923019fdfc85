"""The data capabilities as steps: parameters, plots, contexts that survive JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capabilities.contexts import Dataset, DataSource, Statistics
from capabilities.data_retrieval import DataRetrieval
from capabilities.plotting import Plotting
from capabilities.statistics import StatisticsCapability
from framework.base import ValidationError
from framework.testing import run_capability

WEATHER = DataSource(files=["vega:seattle-weather.csv"])


async def dataset(task: str, **parameters: object) -> Dataset:
    run = await run_capability(
        DataRetrieval, inputs={DataSource: WEATHER}, task=task, parameters=parameters
    )
    assert run.progress
    return run.output


async def statistics(task: str, data: Dataset, **parameters: object) -> Statistics:
    run = await run_capability(
        StatisticsCapability, inputs={Dataset: data}, task=task, parameters=parameters
    )
    return run.output


async def test_contexts_are_small_plain_json() -> None:
    data = await dataset("daily highs in 2014")
    result = await statistics("monthly mean of daily highs", data)

    for context in (data, result):
        text = json.dumps(context.model_dump(mode="json"))
        assert len(text) < 10_000
        assert type(context).model_validate(json.loads(text)) == context


async def test_parameters_win_over_the_words_of_the_task() -> None:
    data = await dataset("highest temperature in 2014", columns="wind")
    result = await statistics("highest value", data, statistics="mean, median")

    assert [finding.kind for finding in result.findings] == ["mean", "median"]
    assert "wind" in result.get_summary()


async def test_parameters_for_limits_and_groups() -> None:
    data = await dataset("daily highs in 2015")

    above = await statistics("count them", data, above=30)
    grouped = await statistics("values", data, statistics=["max"], group_by="month")

    assert "days" in above.get_summary()
    assert "July 2015" in grouped.get_summary()
    with pytest.raises(ValidationError, match="below"):
        await statistics("count", data, above=3, below=2)


async def test_an_unknown_column_lists_the_columns() -> None:
    with pytest.raises(ValidationError, match=r"sunshine.*precipitation, temp_max"):
        await dataset("mean", columns=["sunshine"])


@pytest.mark.parametrize(("words", "head"), [("", b"\x89PNG"), (" as svg", b"<?xml")])
async def test_plots_are_new_files(tmp_path: Path, words: str, head: bytes) -> None:
    task = "Plot the daily highs in the summer of 2015 with the hottest day" + words
    data = await dataset(task)
    result = await statistics(task, data)
    paths = []
    for _ in range(2):
        run = await run_capability(
            Plotting,
            inputs={Dataset: data, Statistics: result},
            task=task,
            config={"output_dir": str(tmp_path / "out")},
        )
        paths.append(Path(run.output.path))

    assert len(set(paths)) == 2
    assert all(path.read_bytes().startswith(head) for path in paths)
    assert str(paths[-1]) in run.output.get_summary()


@pytest.mark.parametrize(
    "task",
    [
        "compare highs in June 2014 with June 2015",
        "rainfall by month in 2012",
        "all values in July 2013",
        "most common weather",
        "bar chart of wind by weekday",
    ],
)
async def test_every_kind_of_plot_is_drawn(tmp_path: Path, task: str) -> None:
    data = await dataset(task)
    result = await statistics(task, data)

    run = await run_capability(
        Plotting, inputs={Dataset: data, Statistics: result}, task=task,
        config={"output_dir": str(tmp_path)},
    )  # fmt: skip

    assert Path(run.output.path).stat().st_size > 5000


async def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("city,size\nOslo,7\nRome,7\n")
    source = DataSource(files=[str(file)])
    folders = {"data_folders": [str(tmp_path)]}
    run = await run_capability(
        DataRetrieval, inputs={DataSource: source}, task="size", config=folders
    )

    with pytest.raises(ValidationError, match="nothing to plot"):
        await run_capability(
            Plotting,
            inputs={Dataset: run.output},
            task="plot",
            config={"output_dir": str(tmp_path), **folders},
        )


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    data = await dataset("wind in 2015")

    with pytest.raises(Exception, match="output_dir"):
        await run_capability(
            Plotting, inputs={Dataset: data}, task="plot",
            config={"output_dir": str(tmp_path / "file")},
        )  # fmt: skip
