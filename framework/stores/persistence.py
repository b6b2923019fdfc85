"""Persistence: one object that owns a saver and all data stored next to its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config

from capgraph.base.errors import ConfigurationError
from capgraph.configs.run_context import run_context
from capgraph.langgraph_compat import inherited_saver, is_same_saver
from capgraph.stores.atomic_values import AtomicValueStore, MemoryValues, TableValues
from capgraph.stores.channel_listener import ChannelListener
from capgraph.stores.database import MEMORY_URL, SqlTables, open_tables, tables_of
from capgraph.stores.history_cache import HistoryCache
from capgraph.stores.leases import Leases
from capgraph.stores.record_values import RecordValues
from capgraph.stores.records import RECORD_PREFIX
from capgraph.stores.roles import CurrentRoles
from capgraph.stores.run_log import RunLog
from capgraph.stores.step_results import StepResults
from capgraph.stores.stops import StopRequests
from capgraph.stores.stored_labels import StoredLabels
from capgraph.stores.waits import SuspendedThreads
from capgraph.telemetry.audit_log import AuditTable

if TYPE_CHECKING:
    from capgraph.configs.settings import ScaleSettings

SAVER = "saver"
"""Setting value that selects the database of the run's saver."""


class Persistence:
    """A saver and the tables beside its checkpoints.

    Each graph creates one when it is built and passes it down. A saver from ``open_saver`` has its
    own, ``saver.persistence``, which all graphs with that saver share. With any other saver, each
    graph has a separate object, but all of them use the same database rows. If the database is
    unknown, stop requests and suspended threads are stored as records in the saver, and leases
    exclude only runs of this process.

    Args:
        saver: An open saver.
        tables: Tables in the saver's database; derived from the class of the saver by default.

    Attributes:
        saver: The saver.
        tables: The tables; ``None`` if the database is unknown.
        values: Atomic values.
        leases: Leases of running threads.
        stops: Stop requests.
        waits: Suspended threads.
        roles: Current roles of users.
        answer_labels: Labels of the answers that a server sent.
        file_labels: Labels of the files that steps wrote.
        listener: Listener for notifications from other processes.
        history_cache: Cache of the delta channels of long threads.
        channels: Delta channels of the graphs that use this saver; ``None`` for a channel that two
            graphs define differently.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], tables: SqlTables | None = None) -> None:
        self.saver = saver
        self.tables: SqlTables | None = tables if tables is not None else tables_of(saver)
        self.values: AtomicValueStore = (
            RecordValues(saver) if self.tables is None else TableValues(self.tables)
        )
        self.leases: Leases = Leases(self.tables, saver)
        self.stops: StopRequests = StopRequests(self.values)
        self.waits: SuspendedThreads = SuspendedThreads(self.values)
        self.roles: CurrentRoles = CurrentRoles(self.values)
        self.answer_labels: StoredLabels = StoredLabels(self.values, "answer/")
        self.file_labels: StoredLabels = StoredLabels(self.values, "file/")
        self.listener: ChannelListener = ChannelListener(self.tables)
        self.history_cache: HistoryCache = HistoryCache()
        self.channels: dict[str, DeltaChannel[Any] | None] = {}
        self._audit_tables: dict[Any, AuditTable] = {}

    @classmethod
    def of(cls, saver: BaseCheckpointSaver[Any]) -> Persistence:
        """Return the persistence layer of a saver, creating it if the saver has none.

        >>> Persistence.of(InMemorySaver()).tables is None
        True
        """
        existing = getattr(saver, "persistence", None)
        return existing if isinstance(existing, Persistence) else cls(saver)

    @classmethod
    def for_run(
        cls, config: Mapping[str, Any], graph_persistence: Persistence | None
    ) -> Persistence | None:
        """Return the persistence layer that stores a run's thread.

        A saver inherited from an outer graph or server takes precedence over the graph's own.

        Args:
            config: Run configuration, which may contain the saver of an outer graph or server.
            graph_persistence: Persistence layer of the graph itself.
        """
        lent = inherited_saver(config)
        return (
            graph_persistence
            if lent is None
            or (graph_persistence is not None and graph_persistence.belongs_to(lent))
            else cls.of(lent)
        )

    def belongs_to(self, saver: BaseCheckpointSaver[Any]) -> bool:
        """Return True if this persistence layer uses the given saver or LangGraph's copy of it."""
        return is_same_saver(self.saver, saver)

    def register_graph(
        self, channels: Mapping[str, Any], settings: ScaleSettings | None = None
    ) -> None:
        """Register a graph's delta channels and apply its lease settings.

        Args:
            channels: Channels of the graph.
            settings: Scale settings of the graph.
        """
        for name, channel in channels.items():
            if isinstance(channel, DeltaChannel):
                is_same = self.channels.setdefault(name, channel) == channel
                # Two graphs define the channel differently, and a thread may belong to either.
                self.channels[name] = channel if is_same else None
        if settings is not None:
            self.leases.configure(settings)

    @cached_property
    def step_results(self) -> StepResults:
        """Results of the steps that run on other workers, shared through the database.

        Raises:
            ConfigurationError: Other processes cannot reach the database.
        """
        if self.tables is None:
            raise ConfigurationError(
                "Steps cannot run on other workers because the threads are not stored in a "
                "shared database.",
                fix="Store threads in PostgreSQL or SQLite (persistence.url).",
            )
        return StepResults(self.tables, self.saver.serde, self.listener)

    def open_run_log(self) -> RunLog:
        """Open a new log of runs on this saver's threads. The caller must close the log."""
        return RunLog(self.tables, self.saver.serde, self.listener, self.leases)

    def audit_table(self, signing_key: Any = None, name: str | None = None) -> AuditTable | None:
        """Return the audit log in the saver's database, or ``None`` if the database is unknown.

        Args:
            signing_key: Signing key, as for :class:`~capgraph.telemetry.AuditLog`.
            name: Name of the audit log.
        """
        tables: SqlTables | None = self.tables
        if tables is None and isinstance(self.saver, InMemorySaver):
            tables = open_tables(MEMORY_URL)  # both exist only in this process
        if tables is None:
            return None
        found = self._audit_tables.get((signing_key, name))
        if found is None:
            found = AuditTable(tables, signing_key=signing_key, name=name)
            self._audit_tables[signing_key, name] = found
        return found

    async def record_names(self, thread_id: str) -> list[str]:
        """Return the sorted names of the records stored with a thread."""
        if self.tables is not None:
            _, found = await self.tables.run(
                "SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = ?"
                " AND substr(checkpoint_ns, 1, ?) = ?",
                (thread_id, len(RECORD_PREFIX), RECORD_PREFIX),
            )
            namespaces = {str(namespace) for (namespace,) in found}
        else:
            checkpoints = self.saver.alist({"configurable": {"thread_id": thread_id}})
            namespaces = {
                checkpoint.config["configurable"].get("checkpoint_ns", "")
                async for checkpoint in checkpoints
            }
        return sorted(
            namespace.removeprefix(RECORD_PREFIX)
            for namespace in namespaces
            if namespace.startswith(RECORD_PREFIX)
        )


def open_values(store: str | SqlTables | None) -> AtomicValueStore:
    """Open the atomic value store that a setting selects.

    Args:
        store: ``None`` for a store in the memory of this process, a URL such as
            ``sqlite:///file.db``, ``postgresql://…``, or ``redis://…`` for a shared database,
            ``saver`` for the database of the run's saver, or database tables.

    Raises:
        ConfigurationError: The setting is invalid.
        MissingExtraError: The package extra for the database is not installed.

    >>> type(open_values(None)).__name__
    'MemoryValues'
    """
    if store is None:
        return MemoryValues()
    if store == SAVER:
        return TableValues(_run_tables)
    if not isinstance(store, str):
        return TableValues(store)
    if store.partition("://")[0] in {"redis", "rediss", "unix"}:
        from capgraph.stores.redis_values import RedisValues

        return RedisValues(store)
    return TableValues(open_tables(store))


def _run_tables() -> SqlTables:
    try:
        saver = inherited_saver(get_config())
    except RuntimeError:
        saver = None
    journal = run_context().journal  # set in a step that runs in another process than its turn
    lent: SqlTables | None = journal.tables if journal is not None else None
    tables = Persistence.of(saver).tables if saver is not None else lent
    if tables is None:
        raise ConfigurationError(
            "The limits have store='saver', but the run has no saver with a database.",
            fix="Use a SQLite or PostgreSQL saver, or set store to a database URL.",
        )
    return tables
