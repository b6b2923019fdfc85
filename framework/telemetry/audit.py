"""The audit: who did what, and what was decided, in a chain of records that shows any change.

An effect is written down before it begins, and what cannot be written stops it. All other records
wait for the next effect or the end of the run, in their order, and never break a run. Records hold
names, numbers and digests, not content. Where they lie is :mod:`capgraph.telemetry.audit_log`.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Protocol
from weakref import WeakSet

from capgraph.base.errors import LimitError, PolicyError, StoppedError
from capgraph.base.ports import Caller
from capgraph.configs.logger import MAX_MESSAGE_CHARS, get_logger, mask_secrets
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.configs.safe_text import mask_data
from capgraph.telemetry.event_dispatcher import current_event_ids

AuditEntry = tuple[str, Mapping[str, Any]]
RETENTION = timedelta(days=183)
"""How long records are kept when nobody says otherwise."""
_NOT_KEPT = ("parent_id", "turn_trace")
_WAITING = 10_000
_REFUSALS = (LimitError, PolicyError, StoppedError)
_FACTS = frozenset({"limit", "value", "used", "asked", "name", "key", "retry_after"})
"""What a refusal may say about itself, besides its code: names and numbers."""


class AuditWriter(Protocol):
    """A chain of records, wherever it lies."""

    async def awrite(self, entries: Sequence[AuditEntry]) -> None:
        """Put records at the end; they are durable when this returns.

        Raises:
            PersistenceError: They cannot be kept.
        """

    async def aprune(self, older_than: timedelta = RETENTION) -> int:
        """Drop the beginning, and seal it; return how many records went."""
        ...


class Audit:
    """The audit of one run: whose it is, and what waits to be written.

    Args:
        writer: Where records go.
        caller: Who asks.

    Attributes:
        recorded_refusals: The errors that are on record.
    """

    def __init__(self, writer: AuditWriter, caller: Caller | None = None) -> None:
        self.writer = writer
        self._who = {} if caller is None else _named(caller)
        self._waiting: deque[AuditEntry] = deque()
        self._lost = 0
        self.recorded_refusals: WeakSet[BaseException] = WeakSet()

    def record_later(self, kind: str, **data: Any) -> None:
        """Have a record written before the next effect begins, at the latest when the run ends."""
        if len(self._waiting) >= _WAITING:
            self._lost += 1
            return
        known = {name: value for name, value in data.items() if value is not None}
        about = {n: value for n, value in current_event_ids().items() if n not in _NOT_KEPT}
        who = {"by": self._who} if self._who else {}
        self._waiting.append((kind, mask_data({**about, **who, **known})))

    async def record_now(self, kind: str, **data: Any) -> None:
        """Write a record and all that wait, now.

        Raises:
            PersistenceError: They cannot be kept.
        """
        self.record_later(kind, **data)
        await self._flush()

    async def record_soon(self, kind: str, **data: Any) -> None:
        """Write a record and all that wait; what cannot be written is logged, and waits."""
        self.record_later(kind, **data)
        await self.flush()

    async def flush(self) -> None:
        """Write what waits; what cannot be written is logged, and waits on."""
        try:
            await self._flush()
        except Exception as exc:
            told = mask_secrets(str(exc), MAX_MESSAGE_CHARS)
            get_logger("framework", "audit").error("Records of the audit wait: %s", told)

    async def _flush(self) -> None:
        entries: list[AuditEntry] = []
        while self._waiting:
            entries.append(self._waiting.popleft())
        if self._lost:
            entries.append(("lost", {**current_event_ids(), "count": self._lost}))
        if not entries:
            return
        try:
            await self.writer.awrite(entries)
        except BaseException:
            self._waiting.extendleft(reversed([e for e in entries if e[0] != "lost"]))
            raise
        self._lost = 0


def use_audit(audit: Audit | None) -> AbstractContextManager[None]:
    """Keep an audit of what runs inside, tasks that it starts included."""
    return override_run_context(audit=audit)


def current_audit() -> Audit | None:
    """Return the audit of the run that calls this; ``None`` where none is kept."""
    audit: Audit | None = run_context().audit
    return audit


def record_later(kind: str, **data: Any) -> None:
    """Have the run's audit hold a record, if one is kept; see :meth:`Audit.note`.

    >>> record_later("policy", decision="allow")  # no run: nothing happens
    """
    audit = current_audit()
    if audit is not None:
        audit.record_later(kind, **data)


def record_decision(
    key: str, question: str, decision: str, decided_by: Caller, **details: Any
) -> None:
    """Have the run's audit hold what a person answered.

    Args:
        key: What was asked about.
        question: The kind of the question.
        decision: What was answered.
        decided_by: Who did.
        **details: What else is to be said of it.
    """
    record_later(
        "approval", step=key, question=question, decision=decision, by=_named(decided_by), **details
    )


def _named(caller: Caller) -> dict[str, Any]:
    return {name: value for name, value in asdict(caller).items() if value}


def record_refusal(error: BaseException) -> None:
    """Have the run's audit hold, once, that a limit, a policy, a guard or a person refused something.

    Args:
        error: The refusal; of any other error nothing is kept.
    """
    audit = current_audit()
    if audit is None or not isinstance(error, _REFUSALS) or error in audit.recorded_refusals:
        return
    audit.recorded_refusals.add(error)
    facts = {name: value for name, value in vars(error).items() if name in _FACTS}
    audit.record_later("refused", code=error.code, reason=digest(error.message), **facts)


async def record_now(kind: str, **data: Any) -> None:
    """Have the run's audit hold a record before this returns, if one is kept.

    Raises:
        PersistenceError: It cannot be written; what it is about must not begin.
    """
    audit = current_audit()
    if audit is not None:
        await audit.record_now(kind, **data)


async def record_soon(kind: str, **data: Any) -> None:
    """Have the run's audit hold a record, if one is kept, as soon as it can be written."""
    audit = current_audit()
    if audit is not None:
        await audit.record_soon(kind, **data)


def canonical_json(data: Any) -> str:
    """Return plain data in the one form that is hashed.

    >>> canonical_json({"b": 1, "a": 2})
    '{"a":2,"b":1}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: Any) -> str:
    """Return a short name for content, which does not show it.

    >>> digest({"a": 1}) == digest({"a": 2})
    False
    """
    try:
        text = canonical_json(content)
    except (TypeError, ValueError):
        text = repr(content)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
