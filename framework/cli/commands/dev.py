"""``capgraph dev``: run the server and restart it when a file changes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_text

app: typer.Typer = typer.Typer()
WATCHED_SUFFIXES = (".py", ".yml", ".yaml", ".json", ".env")
"""Suffixes of the files whose changes restart the server."""
_STOP_SECONDS = 10.0


@app.command("dev")
@with_shared_options("config", "model", "db")
def dev(
    shared: SharedOptions,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="Port; 0 for a free one (default: 8123 if free)."
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", help="Folder whose files are watched.", file_okay=False)
    ] = Path(),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the console in a browser.")
    ] = False,
) -> None:
    """Run a development server that restarts when a file changes."""
    from capgraph.base.errors import require_extra
    from capgraph.serve.server import open_listening_socket

    require_extra("watchfiles", "serve")
    # The server must keep its port, so that the open console reconnects after a restart.
    with open_listening_socket("127.0.0.1", port) as listening:
        chosen = listening.getsockname()[1]
    arguments = [*shared.to_arguments("config", "model", "db"), "--port", str(chosen)]
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_run(folder, arguments, no_open=no_open))


async def _run(folder: Path, arguments: list[str], *, no_open: bool) -> None:
    from watchfiles import DefaultFilter, awatch

    class Sources(DefaultFilter):
        def __call__(self, change: object, path: str) -> bool:
            return path.endswith(WATCHED_SUFFIXES) and super().__call__(change, path)  # type: ignore[arg-type]

    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # Windows ends the process instead
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    server = await _start([*arguments, *(["--no-open"] if no_open else [])])
    try:
        async for changes in awatch(folder, watch_filter=Sources()):
            names = sorted({Path(path).name for _, path in changes})
            print_text(f"Changed: {', '.join(names)}. The server restarts.")
            await _stop(server)
            server = await _start([*arguments, "--no-open"])
    finally:
        await _stop(server)


async def _start(arguments: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "capgraph", "serve", *arguments
    )


async def _stop(server: asyncio.subprocess.Process) -> None:
    """Stop the server process gracefully, or kill it if it is still running after ten seconds."""
    if server.returncode is not None:
        return  # it exited by itself, for example because of an error in a changed file
    server.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(server.wait(), _STOP_SECONDS)
    except TimeoutError:
        server.kill()
        await server.wait()
