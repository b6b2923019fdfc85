"""Storage of audit records in a file or a database table. All writers share one chain."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from capgraph.base.errors import PersistenceError
from capgraph.base.ports import SqlExecutor
from capgraph.helpers.files import create_private
from capgraph.telemetry.audit import RETENTION, AuditEntry
from capgraph.telemetry.audit_chain import (
    SEALED,
    ChainHead,
    ChainVerifier,
    InvalidRecordError,
    Verification,
    build_record,
    key_bytes,
    parse_record,
)
from capgraph.telemetry.builtin_sinks import FileThread

_BLOCK_BYTES = 1 << 16
_PAGE = 500
_TRIES = 10_000


class AuditLog:
    """Hash chain of records in a file, safe for several threads and processes.

    On an event loop, the methods return awaitables; otherwise, they return when done. ``PATH.head``
    stores the hash of the last record and serves as the lock file.

    Args:
        path: Path of the file, which contains one record per line.
        signing_key: Key to sign records with. Valid records cannot be written without the key.
        name: Name of the audit. Records contain it, so records of another audit are detected, even
            with the same key. Defaults to the absolute path. Pass it to verify a copy.

    >>> import tempfile
    >>> log = AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl", signing_key="k")
    >>> log.append("effect", {"status": "begun"})
    >>> log.verify().valid
    True
    >>> log.path.write_text(log.path.read_text().replace("begun", "ended")) > 0
    True
    >>> log.verify().problem
    "Record 1 from the beginning: the record's hash does not match its content."
    """

    def __init__(
        self, path: str | Path, *, signing_key: Any = None, name: str | None = None
    ) -> None:
        self.path: Path = Path(path)
        self._key, self._name = key_bytes(signing_key), name
        self._file_thread, self._lock = FileThread(), threading.Lock()

    def append(self, kind: str, data: Mapping[str, Any]) -> Any:
        """Append a record to the audit log. The record is on disk when the call completes.

        Args:
            kind: Kind of record.
            data: Plain data of the record.

        Raises:
            ValidationError: ``data`` contains a value that is not plain data.
            PersistenceError: The record cannot be stored.
        """
        return self._file_thread.run(partial(self._write, [(kind, dict(data))]))

    def verify(self, anchor: str | None = None) -> Any:
        """Verify all records in the audit log and return a :class:`Verification`.

        Args:
            anchor: Hash of an earlier chain head that the operator saved. The chain must contain
                this hash.
        """
        return self._file_thread.run(partial(self._verify, anchor))

    def anchor(self) -> Any:
        """Return the hash of the last record, as an anchor for later verification.

        The operator should keep a copy of the hash outside the audit log.
        """
        return self._file_thread.run(lambda: self._verify(None).head)

    def records(self) -> Any:
        """Return all audit records as dictionaries.

        Raises:
            ValueError: A record was changed after it was written, or is malformed.
        """
        return self._file_thread.run(lambda: [parse_record(line) for line in self._read_lines()])

    def prune(self, older_than: timedelta = RETENTION) -> Any:
        """Delete audit records older than a period.

        The chain is sealed so that the remaining records can still be verified.

        Returns:
            The number of deleted records.
        """
        return self._file_thread.run(partial(self._prune, older_than))

    async def awrite(self, entries: Sequence[AuditEntry]) -> None:
        """Append audit records. See :class:`~capgraph.telemetry.audit.AuditWriter`."""
        await asyncio.to_thread(self._write, entries)

    async def aprune(self, older_than: timedelta = RETENTION) -> int:
        """Delete the oldest audit records and seal the chain. See :meth:`prune`."""
        return await asyncio.to_thread(self._prune, older_than)

    # --- the file -------------------------------------------------------------------------

    @contextmanager
    def _hold_file_lock(self, *, exclusive: bool = True) -> Iterator[int]:
        """Lock the audit log, and yield the file descriptor of its head file."""
        import fcntl

        try:
            head_file = os.open(f"{self.path}.head", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise _create_write_error(exc) from exc
        try:
            with self._lock:
                fcntl.flock(head_file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
                yield head_file
        finally:
            os.close(head_file)  # also releases the lock

    def _write(self, entries: Sequence[AuditEntry]) -> None:
        with self._hold_file_lock() as head_file:
            self._write_locked(head_file, entries)

    def _write_locked(self, head_file: int, entries: Sequence[AuditEntry]) -> None:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                head, lines = self._read_head(file, head_file), []
                for kind, data in entries:
                    head, line = build_record(head, kind, data, self._key, self._get_name())
                    lines.append(f"{line}\n")
                _write_all(file, "".join(lines).encode("ascii"))
                os.fsync(file)
            finally:
                os.close(file)
            os.pwrite(head_file, str(head).encode(), 0)
        except (OSError, InvalidRecordError) as exc:
            raise _create_write_error(exc) from exc

    def _get_name(self) -> str:
        return self._name or os.path.abspath(self.path)

    def _read_head(self, file: int, head_file: int) -> ChainHead:
        """Read the head of the audit chain, removing a partial record left behind by a crash."""
        size = os.fstat(file).st_size
        tail, start = b"", size
        while start > 0 and tail.count(b"\n") < 2:
            start = max(0, start - _BLOCK_BYTES)
            tail = os.pread(file, size - start, start)
        complete, _, partial = tail.rpartition(b"\n")
        stored_head = ChainHead.parse(os.pread(head_file, 256, 0).decode("ascii", "replace"))
        last = complete.rpartition(b"\n")[2]
        head = _parse_head(last) if last else ChainHead()
        if head.seq < stored_head.seq:
            raise InvalidRecordError(
                f"record {stored_head.seq} is missing at the end of the audit file"
            )
        if partial:
            os.ftruncate(file, size - len(partial))
        return head

    def _read_lines(self) -> list[bytes]:
        data = self.path.read_bytes() if self.path.exists() else b""
        return data.removesuffix(b"\n").split(b"\n") if data else []

    def _verify(self, anchor: str | None) -> Verification:
        with self._hold_file_lock(exclusive=False) as head_file:
            stored_head = os.pread(head_file, 256, 0).decode("ascii", "replace")
            checker = ChainVerifier(self._key, anchor, stored_head, self._get_name())
            lines = self._read_lines()
            if lines and self.path.stat().st_size and not self._is_complete():
                lines[-1] += b" "  # without its newline, the last record is incomplete
            checker.feed(lines)
        return checker.result()

    def _is_complete(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    def _prune(self, older_than: timedelta) -> int:
        with self._hold_file_lock() as head_file:
            lines = self._read_lines()
            count, head = _count_expired(lines, older_than)
            if head is None:
                return 0
            self._write_locked(head_file, [_create_seal(head)])
            rest = b"".join(line + b"\n" for line in self._read_lines()[count:])
            new_file = self.path.with_name(f"{self.path.name}.new")
            create_private(new_file)
            new_file.write_bytes(rest)
            new_file.replace(self.path)
        return count


_NAME_CELL = "capgraph/audit/name"
_ADD_NAME = (
    "INSERT INTO capgraph_cells (name, value, stamp, expires) VALUES (?, ?, '', NULL)"
    " ON CONFLICT DO NOTHING"
)
_SELECT_NAME = "SELECT value FROM capgraph_cells WHERE name = ?"
_ADD = "INSERT INTO capgraph_audit (seq, line) VALUES (?, ?) ON CONFLICT DO NOTHING"


class AuditTable:
    """Audit log in a database table, shared by all processes that use the database.

    The records form a hash chain, and row 0 stores the head of the chain. Each writer inserts a
    record under the next sequence number, and retries with a higher number if another writer
    inserted first. No lock is held while a writer waits.

    Args:
        tables: Tables of the database.
        signing_key: Signing key, as for :class:`AuditLog`.
        name: Name of the audit log, as for :class:`AuditLog`. Defaults to an ID that is stored
            in the database.
    """

    def __init__(
        self, tables: SqlExecutor, *, signing_key: Any = None, name: str | None = None
    ) -> None:
        self._tables, self._key, self._name = tables, key_bytes(signing_key), name
        self._head: ChainHead | None = None
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def awrite(self, entries: Sequence[AuditEntry]) -> None:
        """Append audit records. See :class:`~capgraph.telemetry.audit.AuditWriter`."""
        # Tasks of one loop would only race for the same number.
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            await self._ensure_head()
            head = ChainHead()
            for kind, data in entries:
                head = await self._add(kind, data)
            await self._tables.run(
                "UPDATE capgraph_audit SET line = ? WHERE seq = 0 AND line < ?",
                (str(head), str(head)),
            )

    async def _ensure_head(self) -> None:
        if self._head is None:
            await self._tables.run(_ADD, (0, str(ChainHead())))
            self._head = await self._read_last()

    async def _get_name(self) -> str:
        if self._name is None:
            new_id = uuid.uuid4().hex
            await self._tables.run(_ADD_NAME, (_NAME_CELL, new_id))
            _, found = await self._tables.run(_SELECT_NAME, (_NAME_CELL,))
            self._name = str(found[0][0])
        return self._name

    async def _add(self, kind: str, data: Mapping[str, Any]) -> ChainHead:
        for _ in range(_TRIES):
            assert self._head is not None
            name = await self._get_name()
            head, line = build_record(self._head, kind, data, self._key, name)
            added, _rows = await self._tables.run(_ADD, (head.seq, line))
            if added:
                self._head = head
                return head
            self._head = await self._read_last()
        raise _create_write_error(
            RuntimeError(f"other processes appended a record first in {_TRIES} attempts")
        )

    async def _read_last(self) -> ChainHead:
        _, found = await self._tables.run(
            "SELECT line FROM capgraph_audit WHERE seq > 0 ORDER BY seq DESC LIMIT 1"
        )
        if not found:
            return ChainHead()
        try:
            return _parse_head(found[0][0])
        except InvalidRecordError as exc:
            raise _create_write_error(exc) from exc

    async def aread_lines(self, after: int = 0) -> list[str]:
        """Return one page of audit record lines after a sequence number."""
        _, found = await self._tables.run(
            "SELECT line FROM capgraph_audit WHERE seq > ? ORDER BY seq LIMIT ?", (after, _PAGE)
        )
        return [line for (line,) in found]

    async def averify(self, anchor: str | None = None) -> Verification:
        """Verify all audit records. See :meth:`AuditLog.verify`."""
        _, head_rows = await self._tables.run("SELECT line FROM capgraph_audit WHERE seq = 0")
        stored_head = head_rows[0][0] if head_rows else ""
        checker = ChainVerifier(self._key, anchor, stored_head, await self._get_name())
        last = 0
        while True:
            _, page = await self._tables.run(
                "SELECT seq, line FROM capgraph_audit WHERE seq > ? ORDER BY seq LIMIT ?",
                (last, _PAGE),
            )
            if not page:
                return checker.result()
            checker.feed([line for _, line in page], [seq for seq, _ in page])
            last = page[-1][0]

    async def aprune(self, older_than: timedelta = RETENTION) -> int:
        """Delete the oldest audit records and seal the chain. See :meth:`AuditLog.prune`."""
        deleted, head = 0, None
        while True:
            lines = await self.aread_lines(head.seq if head is not None else 0)
            count, last = _count_expired(lines, older_than)
            deleted, head = deleted + count, last or head
            if count < _PAGE:
                break
        if head is None:
            return 0
        await self.awrite([_create_seal(head)])
        await self._tables.run("DELETE FROM capgraph_audit WHERE seq > 0 AND seq <= ?", (head.seq,))
        return deleted


class UnavailableAuditWriter:
    """Audit writer for graphs without storage.

    Every write raises an error, so that no side effect can start without an audit record.
    """

    async def awrite(self, entries: Sequence[AuditEntry]) -> None:
        """Raise an error, because the graph has no storage for audit records.

        Raises:
            PersistenceError: Always.
        """
        raise PersistenceError(
            "audit=True requires a saver with a SQLite or PostgreSQL database, but the graph"
            " has none.",
            fix="Use a SQLite or PostgreSQL saver, or pass audit=AuditLog(path).",
        )

    async def aprune(self, older_than: timedelta = RETENTION) -> int:
        """Do nothing, because no audit records are stored."""
        return 0


def _count_expired(
    lines: Sequence[str | bytes], older_than: timedelta
) -> tuple[int, ChainHead | None]:
    """Count the expired audit records, and return the count and the last expired record."""
    before = datetime.now(UTC) - older_than
    count, head = 0, None
    for line in lines:
        record = parse_record(line)
        if datetime.fromisoformat(record["at"]) >= before:
            break
        count, head = count + 1, ChainHead(record["seq"], record["hash"])
    return count, head


def _parse_head(line: str | bytes) -> ChainHead:
    record = parse_record(line)
    return ChainHead(record["seq"], record["hash"])


def _create_seal(head: ChainHead) -> AuditEntry:
    return SEALED, {"through": head.seq, "head": head.hash}


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _create_write_error(exc: Exception) -> PersistenceError:
    return PersistenceError(
        f"The audit log cannot be written: {exc}.",
        fix="Check the log with 'capgraph audit verify', then resume the thread.",
    )
