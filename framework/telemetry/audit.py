"""Audit records of a run: requests, decisions, and effects.

The record of an effect is written before the effect starts. If the write fails, the effect does not
start. All other records are buffered until the next effect or the end of the run, and a failure to
write them never breaks a run. Records contain names, numbers, and digests, but no content. They are
stored by :mod:`capgraph.telemetry.audit_log`.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Protocol
from weakref import WeakSet

from capgraph.base.errors import LimitError, PolicyError, StoppedError
from capgraph.base.ports import Caller
from capgraph.configs.logger import MAX_MESSAGE_CHARS, get_logger, mask_secrets
from capgraph.configs.run_context import run_context
from capgraph.configs.safe_text import mask_data
from capgraph.telemetry.event_dispatcher import current_event_ids

AuditEntry = tuple[str, Mapping[str, Any]]
RETENTION = timedelta(days=183)
"""Default period after which audit records are deleted."""
_OMITTED_IDS = ("parent_id", "turn_trace")
_MAX_BUFFERED = 10_000
_REFUSAL_ERRORS = (LimitError, PolicyError, StoppedError)
_RECORDED_FACTS = frozenset({"limit", "value", "used", "asked", "name", "key", "retry_after"})
"""Names of error attributes that a record includes in addition to the error code."""


class AuditWriter(Protocol):
    """Protocol for writers that append audit records to a hash chain."""

    async def awrite(self, entries: Sequence[AuditEntry]) -> None:
        """Append records durably. The records are on disk when this method returns.

        Raises:
            PersistenceError: The records cannot be stored.
        """

    async def aprune(self, older_than: timedelta = RETENTION) -> int:
        """Delete the oldest records and seal the chain. Returns the number of deleted records."""
        ...


class Audit:
    """Audit trail of one run, with a buffer for records that have not been written yet.

    Args:
        writer: Writer that stores the records.
        caller: Caller of the run.

    Attributes:
        recorded_refusals: Errors for which a refusal is already recorded.
    """

    def __init__(self, writer: AuditWriter, caller: Caller | None = None) -> None:
        self.writer = writer
        self._caller_fields = {} if caller is None else _caller_fields(caller)
        self._buffer: deque[AuditEntry] = deque()
        self._dropped = 0
        self.recorded_refusals: WeakSet[BaseException] = WeakSet()

    def record_later(self, kind: str, **data: Any) -> None:
        """Buffer an audit record until the next side effect or the end of the run."""
        if len(self._buffer) >= _MAX_BUFFERED:
            self._dropped += 1
            return
        fields = {name: value for name, value in data.items() if value is not None}
        ids = {n: value for n, value in current_event_ids().items() if n not in _OMITTED_IDS}
        caller_fields = {"by": self._caller_fields} if self._caller_fields else {}
        context = run_context()
        if context.sender is not None:  # another person resumed the turn
            caller_fields["for"] = _caller_fields(context.caller)
        self._buffer.append((kind, mask_data({**ids, **caller_fields, **fields})))

    async def record_now(self, kind: str, **data: Any) -> None:
        """Write all buffered records and a new record before returning.

        Raises:
            PersistenceError: The records cannot be stored.
        """
        self.record_later(kind, **data)
        await self._flush()

    async def record_soon(self, kind: str, **data: Any) -> None:
        """Write all buffered records and a new record. On failure, they stay in the buffer."""
        self.record_later(kind, **data)
        await self.flush()

    async def flush(self) -> None:
        """Write all buffered records. On failure, log the error and keep them in the buffer."""
        try:
            await self._flush()
        except Exception as exc:
            message = mask_secrets(str(exc), MAX_MESSAGE_CHARS)
            get_logger("framework", "audit").error(
                "Audit records could not be written yet: %s", message
            )

    async def _flush(self) -> None:
        entries: list[AuditEntry] = []
        while self._buffer:
            entries.append(self._buffer.popleft())
        if self._dropped:
            entries.append(("lost", {**current_event_ids(), "count": self._dropped}))
        if not entries:
            return
        try:
            await self.writer.awrite(entries)
        except BaseException:
            self._buffer.extendleft(reversed([e for e in entries if e[0] != "lost"]))
            raise
        self._dropped = 0


def current_audit() -> Audit | None:
    """Return the audit trail of the current run, or ``None`` if the run has none."""
    audit: Audit | None = run_context().audit
    return audit


def record_later(kind: str, **data: Any) -> None:
    """Buffer a record in the audit trail of the current run.

    Without an audit trail, this has no effect. See :meth:`Audit.record_later`.

    >>> record_later("policy", decision="allow")  # without a run, this has no effect
    """
    audit = current_audit()
    if audit is not None:
        audit.record_later(kind, **data)


def record_decision(
    key: str, question: str, decision: str, decided_by: Caller, **details: Any
) -> None:
    """Record a person's approval decision in the audit trail of the current run.

    Args:
        key: Context key of the step that the decision is about.
        question: Kind of approval request.
        decision: Decision of the person.
        decided_by: Person who decided.
        **details: Additional fields for the record.
    """
    record_later(
        "approval",
        step=key,
        question=question,
        decision=decision,
        by=_caller_fields(decided_by),
        **details,
    )


def _caller_fields(caller: Caller) -> dict[str, Any]:
    return {name: value for name, value in asdict(caller).items() if value}


def record_refusal(error: BaseException) -> None:
    """Record a refusal by a limit, policy, guardrail, or person in the current audit trail.

    Each error is recorded only once.

    Args:
        error: Error that reports the refusal. Errors of other types are ignored.
    """
    audit = current_audit()
    if audit is None or not isinstance(error, _REFUSAL_ERRORS) or error in audit.recorded_refusals:
        return
    audit.recorded_refusals.add(error)
    facts = {name: value for name, value in vars(error).items() if name in _RECORDED_FACTS}
    audit.record_later("refused", code=error.code, reason=digest(error.message), **facts)


async def record_now(kind: str, **data: Any) -> None:
    """Write a record to the audit trail of the current run before returning.

    Without an audit trail, this has no effect.

    Raises:
        PersistenceError: The record cannot be stored, so the recorded action must not start.
    """
    audit = current_audit()
    if audit is not None:
        await audit.record_now(kind, **data)


async def record_soon(kind: str, **data: Any) -> None:
    """Write a record to the audit trail of the current run, retrying later on failure.

    Without an audit trail, this has no effect.
    """
    audit = current_audit()
    if audit is not None:
        await audit.record_soon(kind, **data)


def canonical_json(data: Any) -> str:
    """Serialize plain data to canonical JSON, the form used to compute record hashes.

    >>> canonical_json({"b": 1, "a": 2})
    '{"a":2,"b":1}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: Any) -> str:
    """Return a short SHA-256 hash that identifies content without revealing it.

    >>> digest({"a": 1}) == digest({"a": 2})
    False
    """
    try:
        text = canonical_json(content)
    except (TypeError, ValueError):
        text = repr(content)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
