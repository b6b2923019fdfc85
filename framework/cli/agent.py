"""Creation of an agent from command line options: settings, registry, database, and graph."""

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
"""Value of ``--db`` for threads that end with the process."""

_MAX_THREAD_ID_LENGTH = 200


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    """An opened agent and the resources that CLI commands use with it.

    Attributes:
        settings: Settings of the agent.
        registry: Registry of the agent.
        graph: Compiled LangGraph graph.
        saver: Checkpoint saver that stores the threads.
        data: Context data loaded from the files of ``--data``.
    """

    settings: Settings
    registry: Registry
    graph: CompiledStateGraph[Any, Any, Any, Any]
    saver: BaseCheckpointSaver[Any]
    data: Mapping[str, Any]


def config_files(config: Path | None) -> list[Path]:
    """Return the paths of the configuration files that a CLI command reads.

    Args:
        config: The file of ``--config``. Without it, the file is the one in
            ``CAPGRAPH_CONFIG``, else ``capgraph.yml`` in the current folder, else the packaged
            data agent.
    """
    if config is not None:
        return [config]
    if os.environ.get("CAPGRAPH_CONFIG"):
        return []  # load_settings reads that file itself
    local = Path(LOCAL_CONFIG)
    return [local if local.is_file() else packaged_config(PACKAGED_CONFIG)]


def packaged_config(name: str) -> Path:
    """Return the path of a configuration file that is included in the package."""
    from capgraph import configs

    return Path(configs.__file__).parent / name


def read_settings(config: Path | None, *, is_shared: bool = False) -> Settings:
    """Read the settings and make modules next to the configuration file importable.

    Missing settings get command-line defaults: data files may be read from the working folder,
    and the user is the one who is logged in.

    Args:
        config: The file of ``--config``, if any.
        is_shared: True if the agent serves several users. Data files are then read only from
            configured folders, because the working folder may contain threads and tokens.
    """
    from capgraph.configs.settings import load_settings

    files = config_files(config)
    environment_file = os.environ.get("CAPGRAPH_CONFIG")
    for file in [*files, *([Path(environment_file)] if environment_file else [])]:
        folder = str(file.resolve().parent)
        # At the end: modules next to a configuration file must not shadow installed ones.
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
    """Convert the file names passed to ``--data`` to absolute paths.

    Values of the form ``scheme:name`` are returned unchanged.

    Raises:
        ConfigurationError: A file does not exist.
    """
    paths = []
    for name in names:
        path = Path(name).expanduser()
        if path.exists():
            paths.append(str(path.resolve()))  # the thread may be resumed from another folder
        elif re.match(r"[^/]+:", name):
            paths.append(name)
        else:
            raise ConfigurationError(
                f"Data file {name!r} does not exist.", fix="Check the path of --data."
            )
    return paths


def user_data_folder() -> Path:
    """Return the folder in which capgraph stores data of the current user."""
    import typer

    if sys.platform.startswith(("win", "darwin")):
        return Path(typer.get_app_dir("capgraph"))
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "capgraph"


def database_url(db: str | None, settings: Settings) -> str:
    """Return the URL of the database that a CLI command uses.

    The ``--db`` option takes precedence over the settings, which take precedence over the
    user's default SQLite file.

    Args:
        db: A URL, ``memory``, or the path of an SQLite file.
        settings: The settings.
    """
    from urllib.parse import quote

    address = db or settings.persistence.url
    if address and (address == MEMORY_DATABASE or "://" in address):
        return address
    if address:
        return f"sqlite:///{quote(str(Path(address).expanduser().resolve()))}"
    folder = user_data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise ConfigurationError(
            f"The folder {str(folder)!r} for threads cannot be created: {exc.strerror}.",
            fix="Choose another database with --db FILE, or use --db memory.",
        ) from exc
    return f"sqlite:///{quote(str(folder / 'threads.sqlite'))}"


def database_exists(db: str | None) -> bool:
    """Return False if ``--db`` refers to an SQLite file that does not exist, else True."""
    from capgraph.stores.database import parse_url

    if not db or db == MEMORY_DATABASE:
        return True
    location = parse_url(db) if "://" in db else None
    if location is not None and (location.kind != "sqlite" or location.target == MEMORY_DATABASE):
        return True
    return Path(location.target if location is not None else db).expanduser().exists()


@contextlib.asynccontextmanager
async def open_database(
    url: str, settings: Settings
) -> AsyncIterator[tuple[BaseCheckpointSaver[Any], BaseStore]]:
    """Open the checkpoint saver and the store of a database as an async context manager.

    Args:
        url: URL from :func:`database_url`.
        settings: The settings, with the encryption key.
    """
    from capgraph.stores import open_saver, open_store

    key = settings.persistence.encryption_key
    secret = key.get_secret_value() if key else None
    location = None if url == MEMORY_DATABASE else url
    async with open_saver(location, encryption_key=secret) as saver, open_store(location) as store:
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
    """Open the agent described by the settings as an async context manager.

    Args:
        settings: The settings.
        model: Model as ``"provider:name"``, which overrides the models in the settings.
        db: Value of ``--db``.
        data: Files of ``--data``, which override the files in the settings.
    """
    from capgraph.adapters import open_registry
    from capgraph.configs.logger import SecretMasker, use_masker
    from capgraph.engine.strategies import resolve_models
    from capgraph.graph import build_graph
    from capgraph.graph.turn_runner import file_contexts

    with use_masker(SecretMasker.of(settings)):
        async with contextlib.AsyncExitStack() as stack:
            registry = await stack.enter_async_context(open_registry(settings))
            # Resolving files and creating models reads files, so it runs in threads.
            files = await asyncio.to_thread(resolve_data_files, data)
            data_context = file_contexts(registry, files)
            settings_context = {
                kind: entries
                for kind, entries in settings.context.items()
                if kind not in data_context
            }
            folders = [*settings.data_folders, *filter(os.path.isabs, files)]
            settings = settings.model_copy(
                update={"context": settings_context, "data_folders": folders}
            )
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
            yield LoadedAgent(settings, registry, graph, saver, data_context)


def read_registry(settings: Settings, problems: list[CapgraphError] | None = None) -> Registry:
    """Load the capability registry that the settings describe.

    Connections to MCP servers are opened to list their tools and closed afterward.

    Args:
        settings: The settings.
        problems: As for :func:`~capgraph.adapters.configured.open_registry`.
    """
    from capgraph.adapters import open_registry

    async def read() -> Registry:
        async with open_registry(settings, problems) as registry:
            return registry

    return asyncio.run(read())


def thread_config(settings: Settings, thread_id: str) -> Any:
    """Return the LangGraph run config for a thread and the caller named in the settings.

    >>> from capgraph.configs.settings import Settings
    >>> thread_config(Settings(role="operator"), "trip-2")
    {'configurable': {'thread_id': 'trip-2', 'role': 'operator'}}
    """
    from capgraph.pipeline.run_config import configurable_for, configured_caller

    return {
        "configurable": {"thread_id": thread_id, **configurable_for(configured_caller(settings))}
    }


def check_thread_id(thread_id: str) -> str:
    """Validate a thread ID and return it unchanged.

    Raises:
        ConfigurationError: The thread ID is empty, too long, or contains control characters.

    >>> check_thread_id("trip-2")
    'trip-2'
    """
    if (
        not thread_id.strip()
        or len(thread_id) > _MAX_THREAD_ID_LENGTH
        or not thread_id.isprintable()
    ):
        raise ConfigurationError(
            f"Invalid thread id {thread_id[:80]!r}: it is empty, too long, or not printable.",
            fix=f"Use 1 to {_MAX_THREAD_ID_LENGTH} printable characters.",
        )
    return thread_id


def new_thread_id() -> str:
    """Generate a random thread ID that is short enough to type."""
    import uuid

    return uuid.uuid4().hex[:12]
