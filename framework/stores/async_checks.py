"""Refusals of savers and stores that work only synchronously."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from capgraph.configs.errors import ConfigurationError


def require_async_saver(saver: Any) -> None:
    """Refuse a saver that a turn cannot use.

    Args:
        saver: Anything; what is no saver passes.

    Raises:
        ConfigurationError: The saver is synchronous.
    """
    # SqliteSaver overrides the other methods only to raise; it inherits aput_writes.
    if (
        isinstance(saver, BaseCheckpointSaver)
        and type(saver).aput_writes is BaseCheckpointSaver.aput_writes
    ):
        raise _refusal("checkpointer", saver, "one of open_saver", "AsyncSqliteSaver")


def require_async_store(store: Any) -> None:
    """Refuse a store that a turn cannot use.

    Args:
        store: Anything; what is no store passes.

    Raises:
        ConfigurationError: The store is synchronous.
    """
    if not isinstance(store, BaseStore):
        return
    defining = next(cls for cls in type(store).__mro__ if "abatch" in vars(cls))
    # SqliteStore overrides abatch only to raise; PostgresStore runs batch in a thread.
    if (defining.__module__, defining.__name__) == ("langgraph.store.sqlite.base", "SqliteStore"):
        raise _refusal("store", store, "one of open_store", "AsyncSqliteStore")


def _refusal(role: str, given: object, ours: str, theirs: str) -> ConfigurationError:
    return ConfigurationError(
        f"The {role} is a {type(given).__name__}, which is synchronous, but turns run"
        " asynchronously.",
        fix="Use 'async with open_graph(..., \"sqlite:///file.db\") as graph' (or a postgresql://"
        f" URL), or pass an asynchronous {role}: {ours}, or LangGraph's {theirs} or"
        f" {theirs.replace('Sqlite', 'Postgres')}.",
    )
