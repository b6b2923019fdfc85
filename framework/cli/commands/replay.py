"""``capgraph record`` and ``capgraph replay``: a turn in a file, and run again without the outside."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import Shared, takes
from capgraph.cli.terminal import say, show_rows, write_file
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.evaluation import Cost, Recording, Replay

app: typer.Typer = typer.Typer()
_Turn = Annotated[
    int | None, typer.Option("--turn", min=1, help="Which turn, from 1 (default: the last).")
]


@app.command("record")
@takes("config", "db")
def record(
    shared: Shared,
    thread: Annotated[
        str | None, typer.Argument(help="Thread id (default: the one that was saved last).")
    ] = None,
    turn: _Turn = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write (default: standard output).")
    ] = None,
) -> None:
    """Write a turn of a thread as JSON, which 'replay' takes elsewhere; secrets are masked."""
    from capgraph.configs.logger import SecretMasker, use_masker

    with use_masker(SecretMasker.of(shared.settings())):
        found = _recorded(shared, thread, turn).as_data()
    text = json.dumps(found, indent=1, ensure_ascii=False)
    if out is None:
        typer.echo(text)
    else:
        write_file(out, text + "\n")


@app.command("replay")
@takes("config", "db", "as_json")
def replay(
    shared: Shared,
    thread: Annotated[str, typer.Argument(help="Thread id, or a file that 'record' wrote.")],
    turn: _Turn = None,
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
    found = load_recording(file) if named else _recorded(shared, thread, turn)
    settings = shared.settings()
    more: dict[str, Any] = {"settings": settings, "model": with_model, "from_step": from_step}

    async def again() -> Replay:
        async with open_registry(settings) as registry:
            return await run(found, registry, **more)

    with use_masker(SecretMasker.of(settings)):
        result = asyncio.run(again())
        if shared.as_json:
            typer.echo(json.dumps(result.as_data(), indent=2))
        else:
            _print(result)
    raise typer.Exit(ExitCode.ANSWERED if result.same else ExitCode.FAILED)


def _recorded(shared: Shared, thread: str | None, turn: int | None) -> Recording:
    from capgraph.evaluation import record as read
    from capgraph.stores.threads import iter_thread_ids

    async def work(saver: Any, _: object) -> Recording:
        last = thread or await anext(iter_thread_ids(saver, limit=1), None)
        if last is None:
            raise ConfigurationError("There are no threads.", fix="Check --db.")
        return await read(saver, last, turn)

    return shared.on_database(work)


def _print(result: Replay) -> None:
    data = result.as_data()
    rows = [
        (one["part"], one["name"], _text(one["recorded"]), _text(one["replayed"]))
        for one in data["differences"]
    ]
    if rows:
        show_rows(("part", "of", "recorded", "replayed"), rows)
    for what in data["unrecorded"]:
        say(f"no record: {what}")
    if result.ran:
        say(f"ran anew: {', '.join(result.ran)}")
    say(f"cost recorded: {_cost(result.recorded.cost)}; replayed: {_cost(result.replayed.cost)}")
    say("No difference." if result.same else f"{len(rows)} difference(s).")


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or "-"
    return json.dumps(value, ensure_ascii=False)


def _cost(cost: Cost) -> str:
    from capgraph.telemetry import format_cost

    price = "unknown price" if cost.cost_usd is None else format_cost(cost.cost_usd)
    tokens = cost.input_tokens + cost.output_tokens
    return f"{cost.model_calls} call(s), {tokens:,} tokens, {price}"
