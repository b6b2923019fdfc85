"""``capgraph record`` and ``capgraph replay``: save a turn to a file and replay it offline."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows, print_text, write_file
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.evaluation import Recording, ReplayResult, TurnCost

app: typer.Typer = typer.Typer()
_TurnOption = Annotated[
    int | None,
    typer.Option("--turn", min=1, help="Number of the turn, from 1 (default: the last)."),
]


@app.command("record")
@with_shared_options("config", "db")
def record(
    shared: SharedOptions,
    thread: Annotated[
        str | None, typer.Argument(help="Thread ID (default: the most recently saved thread).")
    ] = None,
    turn: _TurnOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file (default: standard output).")
    ] = None,
) -> None:
    """Export a turn of a thread as JSON for 'capgraph replay'. Secrets are masked."""
    from capgraph.configs.logger import SecretMasker, use_masker

    with use_masker(SecretMasker.of(shared.settings())):
        recording = _read_recording(shared, thread, turn).as_data()
    text = json.dumps(recording, indent=1, ensure_ascii=False)
    if out is None:
        typer.echo(text)
    else:
        write_file(out, text + "\n")


@app.command("replay")
@with_shared_options("config", "db", "as_json")
def replay(
    shared: SharedOptions,
    thread: Annotated[str, typer.Argument(help="Thread ID, or a file written by 'record'.")],
    turn: _TurnOption = None,
    with_model: Annotated[
        str | None,
        typer.Option(
            "--with-model", help="Select capabilities, plan, and answer with provider:model."
        ),
    ] = None,
    from_step: Annotated[
        str | None,
        typer.Option("--from", help="Execute steps from this one on; they must have no effects."),
    ] = None,
) -> None:
    """Replay a recorded turn and compare the results.

    Nothing is written to external systems. The exit code is 0 if the new results equal the
    recorded results, and 1 otherwise.
    """
    from capgraph.adapters import open_registry
    from capgraph.configs.logger import SecretMasker, use_masker
    from capgraph.evaluation import load_recording
    from capgraph.evaluation import replay as run

    file = Path(thread)
    # A file without an extension in the current folder may have the name of a thread by chance.
    is_file = file.is_file() and (file.suffix or len(file.parts) > 1)
    recording = load_recording(file) if is_file else _read_recording(shared, thread, turn)
    settings = shared.settings()
    options: dict[str, Any] = {"settings": settings, "model": with_model, "from_step": from_step}

    async def run_replay() -> ReplayResult:
        async with open_registry(settings) as registry:
            return await run(recording, registry, **options)

    with use_masker(SecretMasker.of(settings)):
        result = asyncio.run(run_replay())
        if shared.as_json:
            typer.echo(json.dumps(result.as_data(), indent=2))
        else:
            _print(result)
    raise typer.Exit(ExitCode.ANSWERED if result.is_same else ExitCode.FAILED)


def _read_recording(shared: SharedOptions, thread: str | None, turn: int | None) -> Recording:
    from capgraph.evaluation import record as read
    from capgraph.stores.threads import iter_thread_ids

    async def work(saver: Any, _: object) -> Recording:
        thread_id = thread or await anext(iter_thread_ids(saver, limit=1), None)
        if thread_id is None:
            raise ConfigurationError("The database has no threads.", fix="Check --db.")
        return await read(saver, thread_id, turn)

    return shared.run_with_database(work)


def _print(result: ReplayResult) -> None:
    data = result.as_data()
    rows = [
        (one["part"], one["name"], _format_value(one["recorded"]), _format_value(one["replayed"]))
        for one in data["differences"]
    ]
    if rows:
        print_rows(("part", "of", "recorded", "replayed"), rows)
    for call in data["unrecorded"]:
        print_text(f"no record: {call}")
    if result.ran:
        print_text(f"ran anew: {', '.join(result.ran)}")
    print_text(
        f"cost recorded: {_format_cost(result.recorded.cost)}; replayed: {_format_cost(result.replayed.cost)}"
    )
    print_text("No difference." if result.is_same else f"{len(rows)} difference(s).")


def _format_value(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or "-"
    return json.dumps(value, ensure_ascii=False)


def _format_cost(cost: TurnCost) -> str:
    from capgraph.telemetry import format_cost

    price = "unknown price" if cost.cost_usd is None else format_cost(cost.cost_usd)
    tokens = cost.input_tokens + cost.output_tokens
    return f"{cost.model_calls} call(s), {tokens:,} tokens, {price}"
