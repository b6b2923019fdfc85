"""From the command line's options to an agent: settings, registry, database, graph."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capgraph.configs.errors import CapgraphError, ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.store.base import BaseStore

    from capgraph.configs.settings import Settings
    from capgraph.registry import Registry

LOCAL_CONFIG = "capgraph.yml"
PACKAGED_CONFIG = "data_agent.yml"
MEMORY_DATABASE = "memory"
"""``--db memory``: threads end with the process."""

_MAX_THREAD_ID_LENGTH = 200


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    """All that a command works with.

    Attributes:
        settings: What the configuration says.
        registry: What the agent is made of.
        graph: The compiled graph.
        saver: Where its threads are.
        data: Context data that ``--data`` stands for.
    """

    settings: Settings
    registry: Registry
    graph: CompiledStateGraph[Any, Any, Any, Any]
    saver: BaseCheckpointSaver[Any]
    data: Mapping[str, Any]


def config_files(config: Path | None) -> list[Path]:
    """Return the configuration files to read.

    Args:
        config: The file of ``--config``. Without it: what ``CAPGRAPH_CONFIG`` names, else
            ``capgraph.yml`` of the current folder, else the packaged data agent.
    """
    if config is not None:
        return [config]
    if os.environ.get("CAPGRAPH_CONFIG"):
        return []  # load_settings reads that file itself
    local = Path(LOCAL_CONFIG)
    return [local if local.is_file() else packaged_config(PACKAGED_CONFIG)]


def packaged_config(name: str) -> Path:
    """Return the path of a configuration file that comes with the package."""
    from capgraph import configs

    return Path(configs.__file__).parent / name


def read_settings(config: Path | None, *, is_shared: bool = False) -> Settings:
    """Read the settings; modules beside the configuration file become importable.

    What only the command line knows is filled in where the configuration says nothing: the
    working folder may be read, and whoever is logged in asks.

    Args:
        config: The file of ``--config``, if any.
        is_shared: Whether others than the person at the command line ask: then only what the
            configuration names may be read, for threads and tokens may lie in the working folder.
    """
    from capgraph.configs.settings import load_settings

    files = config_files(config)
    named = os.environ.get("CAPGRAPH_CONFIG")
    for file in [*files, *([Path(named)] if named else [])]:
        folder = str(file.resolve().parent)
        # At the end: nothing beside a configuration file may take the place of an installed module.
        if folder not in sys.path:
            sys.path.append(folder)
    settings = load_settings(*files)
    if not is_shared:
        settings.data_folders = settings.data_folders or [str(Path.cwd())]
    settings.user = settings.user or _local_user()
    return settings


def _local_user() -> str | None:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user number without a name
        return None


def resolve_data_files(names: Sequence[str]) -> list[str]:
    """Return what ``--data`` names: whole paths, and ``scheme:name`` for a capability to find.

    Raises:
        ConfigurationError: A file is missing.
    """
    found = []
    for name in names:
        path = Path(name).expanduser()
        if path.exists():
            found.append(str(path.resolve()))  # the thread may be resumed from another folder
        elif re.match(r"[^/]+:", name):
            found.append(name)
        else:
            raise ConfigurationError(
                f"The data file {name!r} does not exist.", fix="Check the path of --data."
            )
    return found


def user_data_folder() -> Path:
    """Return the folder of the user's own data of this program."""
    import typer

    if sys.platform.startswith(("win", "darwin")):
        return Path(typer.get_app_dir("capgraph"))
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "capgraph"


def database_url(db: str | None, settings: Settings) -> str:
    """Return the address of the database: ``--db``, else the settings', else the user's own file.

    Args:
        db: A URL, ``memory``, or the path of an SQLite file.
        settings: All settings.
    """
    from urllib.parse import quote

    given = db or settings.persistence.url
    if given and (given == MEMORY_DATABASE or "://" in given):
        return given
    if given:
        return f"sqlite:///{quote(str(Path(given).expanduser().resolve()))}"
    folder = user_data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise ConfigurationError(
            f"The folder {str(folder)!r} for threads cannot be made: {exc.strerror}.",
            fix="Give another place with --db FILE, or --db memory to keep nothing.",
        ) from exc
    return f"sqlite:///{quote(str(folder / 'threads.sqlite'))}"


def database_exists(db: str | None) -> bool:
    """Tell whether the database that ``--db`` names can be there; only a file is looked for."""
    from capgraph.stores.database import parse_url

    if not db or db == MEMORY_DATABASE:
        return True
    place = parse_url(db) if "://" in db else None
    if place is not None and (place.kind != "sqlite" or place.target == MEMORY_DATABASE):
        return True
    return Path(place.target if place is not None else db).expanduser().exists()


@contextlib.asynccontextmanager
async def open_database(
    url: str, settings: Settings
) -> AsyncIterator[tuple[BaseCheckpointSaver[Any], BaseStore]]:
    """Open saver and store of an address; one that cannot be reached is an error.

    Args:
        url: What :func:`database_url` returned.
        settings: All settings; they may hold a key for encryption.
    """
    from capgraph.stores import open_saver, open_store

    key = settings.persistence.encryption_key
    secret = key.get_secret_value() if key else None
    named = None if url == MEMORY_DATABASE else url
    async with open_saver(named, encryption_key=secret) as saver, open_store(named) as store:
        if saver is None:
            from langgraph.checkpoint.memory import InMemorySaver

            saver = InMemorySaver()
        yield saver, store


@contextlib.asynccontextmanager
async def open_agent(
    settings: Settings,
    *,
    model: str | None = None,
    db: str | None = None,
    data: Sequence[str] = (),
) -> AsyncIterator[LoadedAgent]:
    """Build the agent that the settings describe, over its database.

    Args:
        settings: All settings.
        model: ``"provider:name"`` that takes the place of the settings' models.
        db: What ``--db`` says.
        data: Files of ``--data``; they take the place of the ones that the settings name.
    """
    from capgraph.adapters import open_registry
    from capgraph.configs.logger import SecretMasker, use_masker
    from capgraph.engine.strategies import resolve_models
    from capgraph.graph import build_graph
    from capgraph.graph.turn_runner import file_contexts

    with use_masker(SecretMasker.of(settings)):
        async with contextlib.AsyncExitStack() as stack:
            registry = await stack.enter_async_context(open_registry(settings))
            # Files are looked for and models made in threads; all of it reads files.
            files = await asyncio.to_thread(resolve_data_files, data)
            given = file_contexts(registry, files)
            kept = {kind: held for kind, held in settings.context.items() if kind not in given}
            folders = [*settings.data_folders, *filter(os.path.isabs, files)]
            settings = settings.model_copy(update={"context": kept, "data_folders": folders})
            url = await asyncio.to_thread(database_url, db, settings)
            saver, store = await stack.enter_async_context(open_database(url, settings))
            if (models := resolve_models(model, settings)) is not None:
                from capgraph.models.probing import probe_models

                await probe_models(models)
            graph: Any = await asyncio.to_thread(
                build_graph,
                registry,
                model=model,
                checkpointer=saver,
                store=store,
                settings=settings,
            )
            yield LoadedAgent(settings, registry, graph, saver, given)


def read_registry(settings: Settings, problems: list[CapgraphError] | None = None) -> Registry:
    """Return the registry that settings describe, to look at; MCP servers are closed again.

    Args:
        settings: All settings.
        problems: As for :func:`~capgraph.adapters.settings_registry.open_registry`.
    """
    from capgraph.adapters import open_registry

    async def read() -> Registry:
        async with open_registry(settings, problems) as registry:
            return registry

    return asyncio.run(read())


def thread_config(settings: Settings, thread_id: str) -> Any:
    """Return the configuration of a run: its thread, and the caller that the settings name.

    >>> from capgraph.configs.settings import Settings
    >>> thread_config(Settings(role="operator"), "trip-2")
    {'configurable': {'thread_id': 'trip-2', 'role': 'operator'}}
    """
    from capgraph.pipeline.run_config import configurable_for, configured_caller

    return {
        "configurable": {"thread_id": thread_id, **configurable_for(configured_caller(settings))}
    }


def check_thread_id(thread_id: str) -> str:
    """Return a thread id that can be stored and printed.

    Raises:
        ConfigurationError: It is empty, too long, or holds control characters.

    >>> check_thread_id("trip-2")
    'trip-2'
    """
    if (
        not thread_id.strip()
        or len(thread_id) > _MAX_THREAD_ID_LENGTH
        or not thread_id.isprintable()
    ):
        raise ConfigurationError(
            f"The thread id {thread_id[:80]!r} cannot be used.",
            fix=f"Use 1 to {_MAX_THREAD_ID_LENGTH} printable characters.",
        )
    return thread_id


def new_thread_id() -> str:
    """Return a fresh thread id, short enough to type."""
    import uuid

    return uuid.uuid4().hex[:12]
