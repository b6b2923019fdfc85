"""Options shared by several commands."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from capgraph.cli import agent as opening
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from capgraph.configs.settings import Settings
    from capgraph.scale import Client
    from capgraph.scale.engine import Engine

T = TypeVar("T")
_Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Values of the shared options; see :func:`with_shared_options`."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Configuration file (default: ./capgraph.yml, else the packaged data agent).",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Chat model as provider:name (default: as configured)."),
    ] = None
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            help="Database of the threads: an SQLite file, postgresql://… or 'memory'"
            " (default: a file in your data folder).",
        ),
    ] = None
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Thread to continue (default: a new one)."),
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", help="Data file for the question; can be repeated."),
    ] = None
    submit: Annotated[
        bool,
        typer.Option("--submit", help="Submit to workers and do not wait for the result."),
    ] = False
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="Engine that hands jobs to workers: postgres or temporal."),
    ] = None
    temporal: Annotated[
        str | None, typer.Option("--temporal", help="Address of the Temporal server, as host:port.")
    ] = None
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live view.")] = (
        False
    )
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False

    def settings(self, *, is_shared: bool = False) -> Settings:
        """Read the settings for the given options; see :func:`capgraph.cli.agent.read_settings`."""
        return opening.read_settings(self.config, is_shared=is_shared)

    def to_arguments(self, *names: str) -> list[str]:
        """Convert the named options back to command-line arguments. Unset options are omitted.

        >>> SharedOptions(db="a.sqlite").to_arguments("config", "db")
        ['--db', 'a.sqlite']
        """
        values = [(name, getattr(self, name)) for name in names]
        return [word for name, value in values if value for word in (f"--{name}", str(value))]

    def open_agent(self, settings: Settings) -> AbstractAsyncContextManager[opening.LoadedAgent]:
        """Open the agent that the options select; see :func:`capgraph.cli.agent.open_agent`."""
        return opening.open_agent(settings, model=self.model, db=self.db, data=self.data or ())

    @asynccontextmanager
    async def open_client(
        self, settings: Settings
    ) -> AsyncIterator[tuple[opening.LoadedAgent, Client]]:
        """Open the agent and a client that submits turns to worker processes."""
        from capgraph.scale.client import open_engine

        url = self._worker_database_url(settings)
        engine_options = {"engine": self.engine, "temporal": self.temporal}
        async with (
            self.open_agent(settings) as agent,
            open_engine(url, graph=agent.graph, **engine_options) as client,
        ):
            yield agent, client

    def require_database(self) -> None:
        """Raise an error if the database of ``--db`` does not exist.

        Without this check, opening the database would create an empty file.

        Raises:
            ConfigurationError: The file does not exist.
        """
        if not opening.database_exists(self.db):
            raise ConfigurationError(
                f"The database {self.db!r} does not exist.", fix="Check the path of --db."
            )

    def run_with_database(
        self,
        work: Callable[[BaseCheckpointSaver[Any], BaseStore], Awaitable[T]],
        *,
        may_create: bool = False,
    ) -> T:
        """Call a function with the opened database, without creating the agent.

        Args:
            work: Function that receives the saver and the store. Its result is returned.
            may_create: True if the database may be created.
        """
        if not may_create:
            self.require_database()
        settings = self.settings()
        url = opening.database_url(self.db, settings)

        async def run() -> T:
            async with opening.open_database(url, settings) as (saver, store):
                return await work(saver, store)

        return asyncio.run(run())

    def run_with_engine(self, work: Callable[[Engine, Any], Awaitable[T]]) -> T:
        """Call a function with the connected job engine, without creating the agent.

        Args:
            work: Function that receives the engine and the saver. Its result is returned.
        """
        from capgraph.scale.client import connect

        settings = self.settings()
        url = self._worker_database_url(settings)
        engine_options = {"engine": self.engine, "temporal": self.temporal}

        async def run(saver: Any, _: object) -> T:
            engine = await connect(url, saver, settings.scale, **engine_options)
            try:
                return await work(engine, saver)
            finally:
                await engine.close()

        return self.run_with_database(run, may_create=True)

    def _worker_database_url(self, settings: Settings) -> str:
        from capgraph.scale.client import check_engine

        url = opening.database_url(self.db, settings)
        check_engine(url, self.engine or settings.scale.engine)
        return url


def with_shared_options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds shared command-line options to a command.

    The command receives the option values as its ``shared`` argument.

    Args:
        names: Names of attributes of :class:`SharedOptions`.
    """

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            shared_values = {name: arguments.pop(name) for name in names if name in arguments}
            command(**{"shared": SharedOptions(**shared_values), **arguments})

        parameters = inspect.signature(command, eval_str=True).parameters.values()
        shared_parameters = inspect.signature(SharedOptions).parameters
        hints = get_type_hints(SharedOptions, include_extras=True)
        all_parameters = [parameter for parameter in parameters if parameter.name != "shared"]
        all_parameters += [
            shared_parameters[n].replace(
                annotation=hints[n], kind=shared_parameters[n].KEYWORD_ONLY
            )
            for n in names
        ]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in all_parameters}
        vars(run)["__signature__"] = inspect.Signature(all_parameters)
        return run

    return decorate


def parse_value(text: str | None) -> Any:
    """Parse a string as JSON; a string that is not valid JSON is returned unchanged.

    >>> parse_value("[1]"), parse_value("Oslo")
    ([1], 'Oslo')
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


_MAX_SECONDS = 1e10  # larger values exceed the range of datetime


def parse_duration_option(text: str) -> timedelta:
    """Parse a duration given on the command line, such as ``30d``, ``12h``, or ``90m``.

    Raises:
        ConfigurationError: The text is not a duration.

    >>> parse_duration_option("2w").days
    14
    """
    from capgraph.planning.waits import parse_duration

    seconds = parse_duration(text.strip().lower())
    if seconds is None or seconds > _MAX_SECONDS:
        raise ConfigurationError(
            f"Invalid duration {text[:40]!r}: expected a number and a unit.",
            fix="Use s, m, h, d, or w as the unit: 30d.",
        )
    return timedelta(seconds=seconds)
