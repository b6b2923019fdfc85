"""Options that several commands share, and what commands do with them."""

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
    """What a person typed of the options that several commands share; see :func:`takes`."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Configuration file (default: capgraph.yml here, else the packaged data agent).",
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
            help="Where threads are kept: SQLite file, postgresql://… or 'memory'"
            " (default: a file of yours).",
        ),
    ] = None
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Thread to go on with (default: a new one)."),
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", help="Data file that the question is about; may be repeated."),
    ] = None
    submit: Annotated[
        bool,
        typer.Option("--submit", help="Hand it to workers, and do not wait for what comes of it."),
    ] = False
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="What carries orders to workers: postgres or temporal."),
    ] = None
    temporal: Annotated[
        str | None, typer.Option("--temporal", help="Where Temporal is, as host:port.")
    ] = None
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a picture that redraws.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False

    def settings(self, *, is_shared: bool = False) -> Settings:
        """Read the configuration; see :func:`capgraph.cli.agent.read_settings`."""
        return opening.read_settings(self.config, is_shared=is_shared)

    def to_arguments(self, *names: str) -> list[str]:
        """Return what was typed of some options, to be typed again.

        >>> SharedOptions(db="a.sqlite").to_arguments("config", "db")
        ['--db', 'a.sqlite']
        """
        typed = [(name, getattr(self, name)) for name in names]
        return [word for name, value in typed if value for word in (f"--{name}", str(value))]

    def open_agent(self, settings: Settings) -> AbstractAsyncContextManager[opening.LoadedAgent]:
        """Build the agent; see :func:`capgraph.cli.agent.open_agent`."""
        return opening.open_agent(settings, model=self.model, db=self.db, data=self.data or ())

    @asynccontextmanager
    async def open_client(
        self, settings: Settings
    ) -> AsyncIterator[tuple[opening.LoadedAgent, Client]]:
        """Build the agent, and what asks workers for its turns."""
        from capgraph.scale.client import open_engine

        url = self._worker_database_url(settings)
        named = {"engine": self.engine, "temporal": self.temporal}
        async with (
            self.open_agent(settings) as agent,
            open_engine(url, graph=agent.graph, **named) as client,
        ):
            yield agent, client

    def require_database(self) -> None:
        """Make sure that ``--db`` names a database where one is read: opening it would make it.

        Raises:
            ConfigurationError: There is no such file.
        """
        if not opening.database_exists(self.db):
            raise ConfigurationError(
                f"There is no database {self.db!r}.", fix="Check the path of --db."
            )

    def run_with_database(
        self,
        work: Callable[[BaseCheckpointSaver[Any], BaseStore], Awaitable[T]],
        *,
        may_create: bool = False,
    ) -> T:
        """Open the database, without an agent, and do some work on it.

        Args:
            work: Given saver and store; what it returns is returned.
            may_create: Whether it may be made.
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
        """Open what carries orders, without an agent, and do some work with it.

        Args:
            work: Given the engine and the saver of its threads; what it returns is returned.
        """
        from capgraph.scale.client import connect

        settings = self.settings()
        url = self._worker_database_url(settings)
        named = {"engine": self.engine, "temporal": self.temporal}

        async def run(saver: Any, _: object) -> T:
            opened = await connect(url, saver, settings.scale, **named)
            try:
                return await work(opened, saver)
            finally:
                await opened.close()

        return self.run_with_database(run, may_create=True)

    def _worker_database_url(self, settings: Settings) -> str:
        from capgraph.scale.client import check_engine

        url = opening.database_url(self.db, settings)
        check_engine(url, self.engine or settings.scale.engine)
        return url


def with_shared_options(*names: str) -> Callable[[_Command], _Command]:
    """Give a command shared options, which reach it together as its argument ``shared``.

    Args:
        names: Which of the attributes of :class:`Shared`.
    """

    def dressed(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            typed = {name: given.pop(name) for name in names if name in given}
            command(**{"shared": SharedOptions(**typed), **given})

        own = inspect.signature(command, eval_str=True).parameters.values()
        known = inspect.signature(SharedOptions).parameters
        hints = get_type_hints(SharedOptions, include_extras=True)
        whole = [parameter for parameter in own if parameter.name != "shared"]
        whole += [known[n].replace(annotation=hints[n], kind=known[n].KEYWORD_ONLY) for n in names]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in whole}
        vars(run)["__signature__"] = inspect.Signature(whole)
        return run

    return dressed


def parse_value(text: str | None) -> Any:
    """Read a value that a person types: as JSON, and where it is none, as the text that it is.

    >>> parse_value("[1]"), parse_value("Oslo")
    ([1], 'Oslo')
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


_MAX_SECONDS = 1e10  # seconds; further back there is no date


def parse_duration_option(text: str) -> timedelta:
    """Read a length of time such as ``30d``, ``12h`` or ``90m``.

    Raises:
        ConfigurationError: It is none.

    >>> parse_duration_option("2w").days
    14
    """
    from capgraph.planning.waits import parse_duration

    seconds = parse_duration(text.strip().lower())
    if seconds is None or seconds > _MAX_SECONDS:
        raise ConfigurationError(
            f"{text[:40]!r} is no length of time.", fix="Write a number and s, m, h, d or w: 30d."
        )
    return timedelta(seconds=seconds)
