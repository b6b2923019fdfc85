"""``capgraph eval``: evaluate an agent on a dataset."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capgraph.cli.agent import read_settings
from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import one_line, print_rows, print_text, write_file
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.evaluation import CaseResult, Dataset, Report, Thresholds

app: typer.Typer = typer.Typer()
_MISSING_VALUES = {"cost_usd": "unknown price"}


@app.command("eval", epilog=EXIT_CODES_HELP)
@with_shared_options("config", "db")
def evaluate(
    shared: SharedOptions,
    dataset: Annotated[Path, typer.Argument(help="Evaluation dataset (YAML).")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="Chat model as provider:name; repeat to compare models."
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", help="Second configuration to compare with the first."),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Run only this case; can be repeated.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Number of cases to run concurrently.")
    ] = 1,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="Also write all metrics to this file; '-' prints them."),
    ] = None,
    runs_folder: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Folder for the results of each run (default: serve.evaluations; with several"
            " models, 'NAME_runs' next to the dataset).",
        ),
    ] = None,
    from_threads: Annotated[
        bool,
        typer.Option("--from-threads", help="Write the dataset from the turns in --db and exit."),
    ] = False,
    thread: Annotated[
        list[str] | None,
        typer.Option("--thread", "-t", help="Use only this thread; can be repeated."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of turns.")
    ] = None,
) -> None:
    """Run an evaluation dataset and report its metrics.

    The exit code is 0 if every threshold of the dataset is reached, 1 if not, and 2 if the dataset
    or the configuration is invalid. A dataset without thresholds requires every case to pass. Only
    --config and the first --model determine the exit code.
    """
    from capgraph.evaluation import load_dataset

    if from_threads:
        _write_dataset(dataset, shared, thread, limit)
        return
    loaded = _select_cases(load_dataset(dataset), case or [])
    config = shared.config
    if config is None and loaded.config is not None:
        config = Path(loaded.config)
    configs = [config, *([compare] if compare else [])]
    reports, folder = asyncio.run(_run_reports(loaded, configs, model or [None], jobs))
    if runs_folder is None and len(model or []) > 1 and folder is None:
        folder = dataset.with_name(f"{dataset.stem}_runs")
    shortfalls = reports[0].check_thresholds(loaded.thresholds)
    now = datetime.now(UTC)
    data = {
        "dataset": loaded.name,
        "created_at": now.isoformat(timespec="seconds"),
        "ok": not shortfalls,
        "below": [str(item) for item in shortfalls],
        "thresholds": loaded.thresholds.model_dump(exclude_none=True),
        "reports": [report.as_data() for report in reports],
    }
    text = json.dumps(data, indent=2, ensure_ascii=False)
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(data, indent=2))
    else:
        if json_path is not None:
            write_file(json_path, text + "\n")
        _print_reports(reports, loaded.thresholds)
    if (stored_folder := runs_folder or folder) is not None:
        name = re.sub(r"[^\w.-]+", "_", loaded.name)
        file = stored_folder.expanduser() / f"{now:%Y%m%dT%H%M%S%f}_{name}.json"
        write_file(file, text + "\n")
        typer.echo(f"Run stored in {file}", err=True)
    raise typer.Exit(ExitCode.FAILED if shortfalls else ExitCode.ANSWERED)


def _write_dataset(
    file: Path, shared: SharedOptions, threads: list[str] | None, limit: int | None
) -> None:
    from capgraph.configs.logger import SecretMasker, use_masker
    from capgraph.evaluation import dataset_from_threads, write_dataset

    with use_masker(SecretMasker.of(shared.settings())):
        new_dataset, recordings = shared.run_with_database(
            lambda saver, _: dataset_from_threads(saver, threads, name=file.stem, limit=limit)
        )
        folder = file.resolve().parent
        if shared.config is not None and shared.config.resolve().is_relative_to(folder):
            config = str(shared.config.resolve().relative_to(folder))
            new_dataset = new_dataset.model_copy(update={"config": config})
        write_dataset(file, new_dataset, recordings)
    typer.echo(f"{len(recordings)} turn(s) written to {file}")


def _select_cases(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return a copy of an evaluation dataset that contains only the named cases.

    If no names are given, all cases are kept.
    """
    unknown = sorted(set(names) - {case.name for case in dataset.cases})
    if unknown:
        raise ConfigurationError(
            f"The dataset {dataset.name!r} has no case {', '.join(map(repr, unknown))}.",
            fix=f"Use one of: {', '.join(case.name for case in dataset.cases)}.",
        )
    cases = [case for case in dataset.cases if not names or case.name in names]
    return dataset.model_copy(update={"cases": cases})


async def _run_reports(
    dataset: Dataset, configs: Sequence[Path | None], models: Sequence[str | None], jobs: int
) -> tuple[list[Report], Path | None]:
    """Run an evaluation dataset with each configuration and model.

    Return one report per combination, and the folder in which the runs are stored, if any.
    """
    from capgraph.adapters import open_registry
    from capgraph.evaluation import evaluate, validate_dataset

    # Validate everything before the first request, which may cost money.
    agents = []
    async with AsyncExitStack() as stack:
        for config in configs:
            settings = await asyncio.to_thread(read_settings, config)
            registry = await stack.enter_async_context(open_registry(settings))
            validate_dataset(dataset, registry)
            agents.append((settings, registry))
        reports = [
            await evaluate(
                dataset,
                registry,
                settings=settings,
                model=model,
                jobs=jobs,
                label=_label(config.stem if config else settings.name, model, configs, models),
                on_case=_report_case if sys.stderr.isatty() else None,
            )
            for config, (settings, registry) in zip(configs, agents, strict=True)
            for model in models
        ]
    folder = agents[0][0].serve.evaluations
    return reports, Path(folder) if folder else None


def _label(
    name: str, model: str | None, configs: Sequence[Path | None], models: Sequence[str | None]
) -> str:
    if model is None or len(models) == 1:
        return name
    return model if len(configs) == 1 else f"{name} {model}"


def _report_case(result: CaseResult) -> None:
    sign = "ok" if result.passed else "failed"
    typer.echo(f"{sign:7} {one_line(result.case.name, 60)} ({result.seconds:.2f} s)", err=True)


def _print_reports(reports: Sequence[Report], thresholds: Thresholds) -> None:
    for report in reports:
        for result in report.failures:
            for line in _failure_lines(result, f"{report.label}: " if len(reports) > 1 else ""):
                print_text(line)
    heading, *rows = _iter_report_rows(reports, thresholds)
    # In a pipe, the heading distinguishes the reports.
    print_rows(heading, rows if sys.stdout.isatty() else [heading, *rows])
    for shortfall in reports[0].check_thresholds(thresholds):
        print_text(f"Below threshold: {shortfall}")


def _failure_lines(result: CaseResult, heading: str) -> Iterator[str]:
    yield f"FAILED {heading}{one_line(result.case.name)}: {one_line(result.case.request)}"
    for problem in result.problems:
        yield f"  {one_line(problem, 500)}"
    for name in ("reason", "answer"):
        if text := getattr(result, name):
            yield f"  {name}: {one_line(text, 500)}"
    yield ""


def _iter_report_rows(
    reports: Sequence[Report], thresholds: Thresholds
) -> Iterator[tuple[str, ...]]:
    """Yield the heading row and one row per metric of an evaluation comparison table."""
    from capgraph.evaluation import METRICS

    yield ("figure", *(report.label for report in reports), "at least")
    figures = [report.figures for report in reports]
    for name, metric in METRICS.items():
        threshold = getattr(thresholds, name, None)
        cells = [
            _MISSING_VALUES.get(name, "not judged")
            if (value := values[name]) is None
            else f"{value:{metric.format_spec}}"
            for values in figures
        ]
        if name == "passed":
            cells = [f"{len(r.results) - len(r.failures)} of {len(r.results)}" for r in reports]
        yield (metric.label, *cells, "" if threshold is None else f"{threshold:g}")
