"""Entry point of the ``capgraph`` command.

Every module of ``capgraph.cli.commands`` contains a Typer ``app``. An app with a name becomes a
command group; the commands of the others are added at the top level. To add a command, add a
module.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from capgraph.cli import commands
from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.terminal import OutputClosedError, print_error
from capgraph.configs.errors import CapgraphError

_GC_THRESHOLD = 50_000  # objects
_SUMMARY_CHARACTERS = 62
_NOT_FINALIZED = frozenset({"temporalio", "_duckdb"})
"""Modules with which the interpreter is not finalized at exit.

Threads of the Temporal SDK that acquire the GIL during finalization abort the process. DuckDB reports
objects that daemon threads still hold as leaks.
"""
COMMAND_GROUPS = {
    "Run": ("ask", "chat", "run", "serve", "dev", "worker", "schedule", "signal", "stop"),
    "Build": ("new", "capabilities", "graph", "check", "settings", "recipe", "eval"),
    "Inspect": ("threads", "record", "replay", "usage", "audit", "workers"),
    "Operate": ("approvals", "db", "token"),
}
"""Commands by task, in the order of ``capgraph --help``."""


class _GroupedCommands(TyperGroup):
    """Lists commands by task."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the command list of the help text, with one section per command group.

        Commands that belong to no group are listed last.
        """
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        grouped = {name for group in COMMAND_GROUPS.values() for name in group}
        width = max(map(len, names))
        others = tuple(name for name in names if name not in grouped)
        for title, group in {**COMMAND_GROUPS, "Other": others}.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(_SUMMARY_CHARACTERS))
                for name in group
                if name in names
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


app: typer.Typer = typer.Typer(
    name="capgraph",
    cls=_GroupedCommands,
    help="Ask an agent, run its workers and its server, and inspect what it did.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _found in pkgutil.iter_modules(commands.__path__):
    app.add_typer(importlib.import_module(f"{commands.__name__}.{_found.name}").app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"capgraph {version('capgraph')}")
        except PackageNotFoundError:
            typer.echo("capgraph (from source, not installed)")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Log everything and show tracebacks.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Ask an agent, run its server and workers, and inspect past runs."""
    from capgraph.configs.logger import configure_logging

    # The views already show failures.
    configure_logging(logging.DEBUG if debug else logging.CRITICAL)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the capgraph command line and exit with the exit code of the command.

    Args:
        arguments: Command-line arguments; by default those of the process.
    """
    # Objects made at startup live forever; collecting them would cost a fifth of the startup time.
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
    code: str | int | None = ExitCode.ANSWERED
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="capgraph")
    except (OutputClosedError, BrokenPipeError):
        # Discard buffered output; otherwise the interpreter reports an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.FAILED
    except SystemExit as ended:
        code = ended.code
    except CapgraphError as exc:
        if logging.getLogger("capgraph").isEnabledFor(logging.DEBUG):
            raise
        print_error(exc)
        # An unavailable service is a failure, not a usage error.
        code = ExitCode.FAILED if getattr(exc, "is_unavailable", False) else ExitCode.USAGE
    if arguments is None and isinstance(code, int) and not _NOT_FINALIZED.isdisjoint(sys.modules):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
