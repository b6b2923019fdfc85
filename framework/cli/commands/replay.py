"""``capgraph record`` and ``capgraph replay``: a turn in a file, and run again without the outside."""

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
    int | None, typer.Option("--turn", min=1, help="Which turn, from 1 (default: the last).")
]


@app.command("record")
@with_shared_options("config", "db")
def record(
    shared: SharedOptions,
    thread: Annotated[
        str | None, typer.Argument(help="Thread id (default: the one that was saved last).")
    ] = None,
    turn: _TurnOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write (default: standard output).")
    ] = None,
) -> None:
    """Write a turn of a thread as JSON, which 'replay' takes elsewhere; secrets are masked."""
    from capgraph.configs.logger import SecretMasker, use_masker

    with use_masker(SecretMasker.of(shared.settings())):
        found = _read_recording(shared, thread, turn).as_data()
    text = json.dumps(found, indent=1, ensure_ascii=False)
    if out is None:
        typer.echo(text)
    else:
        write_file(out, text + "\n")


@app.command("replay")
@with_shared_options("config", "db", "as_json")
def replay(
    shared: SharedOptions,
    thread: Annotated[str, typer.Argument(help="Thread id, or a file that 'record' wrote.")],
    turn: _TurnOption = None,
    with_model: Annotated[
        str | None,
        typer.Option("--with-model", help="Choose, plan and answer anew with provider:model."),
    ] = None,
    from_step: Annotated[
        str | None,
        typer.Option("--from", help="Run steps anew from this one on; they may have no effect."),
    ] = None,
) -> None:
    """Run a turn again from its own records, and show what differs; nothing outside is touched.

    The exit code is 0 when all is as it was, and 1 when not.
    """
    from capgraph.adapters import open_registry
    from capgraph.configs.logger import SecretMasker, use_masker
    from capgraph.evaluation import load_recording
    from capgraph.evaluation import replay as run

    file = Path(thread)
    # A file without an ending, here, may bear the name of a thread by chance.
    named = file.is_file() and (file.suffix or len(file.parts) > 1)
    found = load_recording(file) if named else _read_recording(shared, thread, turn)
    settings = shared.settings()
    more: dict[str, Any] = {"settings": settings, "model": with_model, "from_step": from_step}

    async def again() -> ReplayResult:
        async with open_registry(settings) as registry:
            return await run(found, registry, **more)

    with use_masker(SecretMasker.of(settings)):
        result = asyncio.run(again())
        if shared.as_json:
            typer.echo(json.dumps(result.as_data(), indent=2))
        else:
            _print(result)
    raise typer.Exit(ExitCode.ANSWERED if result.is_same else ExitCode.FAILED)


def _read_recording(shared: SharedOptions, thread: str | None, turn: int | None) -> Recording:
    from capgraph.evaluation import record as read
    from capgraph.stores.threads import iter_thread_ids

    async def work(saver: Any, _: object) -> Recording:
        last = thread or await anext(iter_thread_ids(saver, limit=1), None)
        if last is None:
            raise ConfigurationError("There are no threads.", fix="Check --db.")
        return await read(saver, last, turn)

    return shared.run_with_database(work)


def _print(result: ReplayResult) -> None:
    data = result.as_data()
    rows = [
        (one["part"], one["name"], _format_value(one["recorded"]), _format_value(one["replayed"]))
        for one in data["differences"]
    ]
    if rows:
        print_rows(("part", "of", "recorded", "replayed"), rows)
    for what in data["unrecorded"]:
        print_text(f"no record: {what}")
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
