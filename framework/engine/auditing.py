"""Where the audit of a run lies: in a file, or in the database of the run's saver."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from capgraph.base.errors import ConfigurationError, PersistenceError
from capgraph.base.ports import SqlExecutor
from capgraph.langgraph_compat import lent_saver
from capgraph.pipeline.run_config import caller_of
from capgraph.stores.location import MEMORY
from capgraph.stores.rows import FileRows, rows_of
from capgraph.telemetry.audit import Audit, Trail
from capgraph.telemetry.audit_log import AuditLog, AuditTable, NoTrail

if TYPE_CHECKING:
    from capgraph.configs.settings import AuditSettings

_DAY = 86400.0


class Auditor:
    """Finds the audit of a run.

    Args:
        wanted: ``True`` for the database of the run's saver, or a log.
        settings: How records are signed, and how long they are kept.
        checkpointer: The graph's own saver; a graph of one's own lends another.

    Raises:
        ConfigurationError: ``wanted`` is something else.
    """

    def __init__(
        self,
        wanted: bool | AuditLog,
        settings: AuditSettings,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        if wanted is not True and not callable(getattr(wanted, "awrite", None)):
            raise ConfigurationError(
                f"audit={wanted!r} cannot keep records.", fix="Give True, or an AuditLog."
            )
        self._log = None if wanted is True else wanted
        self._settings, self._checkpointer = settings, checkpointer
        self._trails: WeakKeyDictionary[BaseCheckpointSaver[Any], Trail] = WeakKeyDictionary()
        self._pruned: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def of(self, config: Mapping[str, Any]) -> Audit:
        """Return the audit of a run with this configuration."""
        trail: Any = self._log or self._beside(lent_saver(config) or self._checkpointer)
        return Audit(trail, caller_of(config.get("configurable") or {}))

    async def close(self, audit: Audit) -> None:
        """Write what waits at the end of a run, and once a day drop what is too old."""
        await audit.settle()
        now = time.monotonic()
        if now - self._pruned.get(audit.trail, -_DAY) >= _DAY:
            self._pruned[audit.trail] = now
            try:
                await audit.trail.aprune(timedelta(days=self._settings.retention_days))
            except (PersistenceError, ValueError) as exc:
                # A chain that was tampered with stays as it is, for whoever checks it.
                audit.note("not_pruned", problem=str(exc))
                await audit.settle()

    def _beside(self, saver: BaseCheckpointSaver[Any] | None) -> Trail:
        if saver is None:
            return NoTrail()
        found = self._trails.get(saver)
        if found is None:
            rows: SqlExecutor | None = rows_of(saver)
            if isinstance(saver, InMemorySaver):  # both live as long as the process
                rows = FileRows(MEMORY)
            key = self._settings.signing_key
            found = NoTrail() if rows is None else AuditTable(rows, signing_key=key)
            self._trails[saver] = found
        return found
