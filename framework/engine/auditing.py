"""Where the audit of a run lies: in a file, or in the database of the run's saver."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from capgraph.base.errors import ConfigurationError, PersistenceError
from capgraph.pipeline.run_config import caller_of
from capgraph.stores.persistence import Persistence
from capgraph.telemetry.audit import Audit
from capgraph.telemetry.audit_log import AuditLog, NoTrail

if TYPE_CHECKING:
    from capgraph.configs.settings import AuditSettings

_DAY = 86400.0


class Auditor:
    """Finds the audit of a run.

    Args:
        wanted: ``True`` for the database of the run's saver, or a log.
        settings: How records are signed, and how long they are kept.
        persistence: Where the graph stores its threads; a run may bring another saver.

    Raises:
        ConfigurationError: ``wanted`` is something else.
    """

    def __init__(
        self,
        wanted: bool | AuditLog,
        settings: AuditSettings,
        persistence: Persistence | None = None,
    ) -> None:
        if wanted is not True and not callable(getattr(wanted, "awrite", None)):
            raise ConfigurationError(
                f"audit={wanted!r} cannot keep records.", fix="Give True, or an AuditLog."
            )
        self._log = None if wanted is True else wanted
        self._settings, self._persistence = settings, persistence
        self._pruned: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def of(self, config: Mapping[str, Any]) -> Audit:
        """Return the audit of a run with this configuration."""
        persistence = Persistence.of_run(config, self._persistence)
        table = persistence.audit(self._settings.signing_key) if persistence is not None else None
        return Audit(self._log or table or NoTrail(), caller_of(config.get("configurable") or {}))

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
