"""Checks that reject synchronous savers and stores."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from capgraph.configs.errors import ConfigurationError


def require_async_saver(saver: Any) -> None:
    """Check that a checkpoint saver supports asynchronous calls.

    Args:
        saver: Any object. Objects other than savers are accepted.

    Raises:
        ConfigurationError: The saver is synchronous.
    """
    # SqliteSaver overrides the other methods only to raise; it inherits aput_writes.
    if (
        isinstance(saver, BaseCheckpointSaver)
        and type(saver).aput_writes is BaseCheckpointSaver.aput_writes
    ):
        raise _create_error("checkpointer", saver, "one of open_saver", "AsyncSqliteSaver")


def require_async_store(store: Any) -> None:
    """Check that a LangGraph store supports asynchronous calls.

    Args:
        store: Any object. Objects other than stores are accepted.

    Raises:
        ConfigurationError: The store is synchronous.
    """
    if not isinstance(store, BaseStore):
        return
    defining = next(cls for cls in type(store).__mro__ if "abatch" in vars(cls))
    # SqliteStore overrides abatch only to raise; PostgresStore runs batch in a thread.
    if (defining.__module__, defining.__name__) == ("langgraph.store.sqlite.base", "SqliteStore"):
        raise _create_error("store", store, "one of open_store", "AsyncSqliteStore")


def _create_error(
    role: str, value: object, own_function: str, langgraph_class: str
) -> ConfigurationError:
    return ConfigurationError(
        f"The {role} is of the synchronous class {type(value).__name__}, but it must be"
        " asynchronous.",
        fix="Use 'async with open_graph(..., \"sqlite:///file.db\") as graph' (or a postgresql://"
        f" URL), or pass an asynchronous {role}: {own_function}, or LangGraph's {langgraph_class} or"
        f" {langgraph_class.replace('Sqlite', 'Postgres')}.",
    )
