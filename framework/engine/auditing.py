"""Selection of the audit log of a run: a file, or the database of the run's saver."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from capgraph.base.errors import ConfigurationError, PersistenceError
from capgraph.pipeline.run_config import caller_from_configurable
from capgraph.stores.persistence import Persistence
from capgraph.telemetry.audit import Audit
from capgraph.telemetry.audit_log import AuditLog, UnavailableAuditWriter

if TYPE_CHECKING:
    from capgraph.configs.settings import AuditSettings

_DAY = 86400.0


class Auditor:
    """Factory that creates the audit of each run.

    Args:
        target: ``True`` to store audit records in the database of the run's saver, or an
            ``AuditLog``.
        settings: Signing key and retention period of the records.
        persistence: Storage of the graph's threads. A run may use a different saver.

    Raises:
        ConfigurationError: ``target`` is neither a boolean nor an ``AuditLog``.
    """

    def __init__(
        self,
        target: bool | AuditLog,
        settings: AuditSettings,
        persistence: Persistence | None = None,
    ) -> None:
        if target is not True and not callable(getattr(target, "awrite", None)):
            raise ConfigurationError(
                f"Invalid audit {target!r}: expected a boolean or an AuditLog.",
                fix="pass True or an AuditLog.",
            )
        self._log = None if target is True else target
        self._settings, self._persistence = settings, persistence
        self._pruned: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def for_run(self, config: Mapping[str, Any]) -> Audit:
        """Create the audit for a run with the given LangGraph run config.

        The audit writes to the configured log or, by default, to the database of the run.
        """
        persistence = Persistence.for_run(config, self._persistence)
        settings, table = self._settings, None
        if persistence is not None:
            table = persistence.audit_table(settings.signing_key, settings.name)
        return Audit(
            self._log or table or UnavailableAuditWriter(),
            caller_from_configurable(config.get("configurable") or {}),
        )

    async def close(self, audit: Audit) -> None:
        """Write the pending audit records of a run, and delete expired records once a day."""
        await audit.flush()
        now = time.monotonic()
        if now - self._pruned.get(audit.writer, -_DAY) >= _DAY:
            self._pruned[audit.writer] = now
            try:
                await audit.writer.aprune(timedelta(days=self._settings.retention_days))
            except (PersistenceError, ValueError) as exc:
                # Keep a modified chain unchanged as evidence.
                audit.record_later("not_pruned", problem=str(exc))
                await audit.flush()
