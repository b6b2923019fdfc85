"""Hash chain of audit records, and its verification.

A record is one line of canonical JSON. It contains its number (``seq``), the hash of the previous
record (``prev``), its own hash, and, with a signing key, an HMAC of that hash. Changing, removing,
or inserting a record changes a hash that a later record contains. A chain cannot reveal that its
end was cut off. The head is therefore also stored separately, and ``capgraph audit anchor`` prints
it so that an operator can keep a copy elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from capgraph.helpers.clock import utc_now_text
from capgraph.helpers.plain_data import to_plain
from capgraph.telemetry.audit import canonical_json

EMPTY_HASH = "0" * 64
"""Hash of an empty chain's head."""
SEALED = "sealed"
"""Kind of the record that replaces deleted records."""
_FIELDS = {"at", "data", "hash", "kind", "prev", "seq"}


class InvalidRecordError(ValueError):
    """Raised when an audit record was changed after it was written, or is malformed."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Last record of an audit hash chain.

    Attributes:
        seq: Sequence number of the record, or 0 for an empty chain.
        hash: Hash of the record.
    """

    seq: int = 0
    hash: str = EMPTY_HASH

    def __str__(self) -> str:
        return f"{self.seq:020d} {self.hash}"

    @classmethod
    def parse(cls, text: str) -> ChainHead:
        """Parse a chain head from its string form.

        An empty string is the head of an empty chain.

        Raises:
            InvalidRecordError: The string has an invalid format.
        """
        seq, _, hash_text = text.strip().partition(" ")
        if seq and not (seq.isdecimal() and len(hash_text) == len(EMPTY_HASH)):
            raise InvalidRecordError("the stored head is malformed")
        return cls(int(seq), hash_text) if seq else cls()


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of verifying an audit chain. The result is truthy if the chain is valid.

    Attributes:
        valid: True if every record is unchanged.
        records: Number of records read.
        head: Hash of the last record.
        problem: Description of the first problem, or ``None`` if the chain is valid.
    """

    valid: bool
    records: int = 0
    head: str = EMPTY_HASH
    problem: str | None = None

    def __bool__(self) -> bool:
        return self.valid


def key_bytes(key: Any) -> bytes | None:
    """Convert a signing key to bytes.

    Args:
        key: Signing key as a string, bytes, or a secret from the settings.
    """
    found = key.get_secret_value() if hasattr(key, "get_secret_value") else key
    return found.encode() if isinstance(found, str) else found


def build_record(
    previous: ChainHead, kind: str, data: Mapping[str, Any], key: bytes | None, audit: str = ""
) -> tuple[ChainHead, str]:
    """Build the next record of an audit chain.

    Returns the new head of the chain, and the record as a line of text.

    Args:
        previous: Head of the chain before the record.
        kind: Kind of record.
        data: Plain data of the record.
        key: Signing key, or None for an unsigned record.
        audit: Name of the audit log, which is stored in the record.

    Raises:
        ValidationError: ``data`` contains a value that is not plain data.
    """
    body = {
        **({"audit": audit} if audit else {}),
        "at": utc_now_text(),
        "data": to_plain(dict(data), kind),
        "kind": str(kind),
        "prev": previous.hash,
        "seq": previous.seq + 1,
    }
    hash_text = hashlib.sha256(canonical_json(body).encode()).hexdigest()
    signature = {"sig": _sign(hash_text, key)} if key is not None else {}
    return ChainHead(previous.seq + 1, hash_text), canonical_json(
        {**body, "hash": hash_text, **signature}
    )


def _sign(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def parse_record(line: str | bytes, key: bytes | None = None) -> dict[str, Any]:
    """Parse and verify an audit record from a line of text.

    Raises:
        InvalidRecordError: The record was changed, or is not signed with ``key``.
    """
    try:
        text = line.decode("ascii") if isinstance(line, bytes) else line
        record: dict[str, Any] = json.loads(text)
        is_canonical = isinstance(record, dict) and canonical_json(record) == text
    except (ValueError, RecursionError) as exc:
        raise InvalidRecordError(f"the record is malformed ({type(exc).__name__})") from exc
    if not is_canonical or not _FIELDS <= record.keys() <= _FIELDS | {"audit", "sig"}:
        raise InvalidRecordError(
            "the line is not a record in canonical JSON with the expected fields"
        )
    body = {name: value for name, value in record.items() if name not in ("hash", "sig")}
    if hashlib.sha256(canonical_json(body).encode()).hexdigest() != record["hash"]:
        raise InvalidRecordError("the record's hash does not match its content")
    if key is not None and not hmac.compare_digest(
        _sign(record["hash"], key), str(record.get("sig"))
    ):
        raise InvalidRecordError("the record's signature does not match the key")
    return record


class ChainVerifier:
    """Verifier that reads a chain of any length in batches.

    Args:
        key: Signing key that all records must be signed with.
        anchor: Hash of an earlier head, copied by the operator. The chain must contain it.
        stored_head: Head that is stored next to the chain, as text.
        audit: Name of the audit. With a key, each record must contain it. Records before the first
            named one are exempt, because earlier releases wrote no name.

    >>> head, line = build_record(ChainHead(), "plan", {"steps": 1}, None)
    >>> verifier = ChainVerifier()
    >>> verifier.feed([line])
    >>> verifier.result().valid
    True
    >>> verifier = ChainVerifier()
    >>> verifier.feed([line.replace("1", "2", 1)])
    >>> verifier.result().valid
    False
    """

    def __init__(
        self,
        key: bytes | None = None,
        anchor: str | None = None,
        stored_head: str = "",
        audit: str = "",
    ) -> None:
        self._key = key
        # Without a key, anyone could change the name.
        self._audit = audit if key is not None else ""
        self._is_named = False
        self._anchor = anchor.strip().lower() if anchor is not None else None
        self._head = ChainHead()
        self._count = 0
        self._start: ChainHead | None = None
        self._dropped = 0
        self._found_anchor = self._anchor in (None, EMPTY_HASH)
        self._problem: str | None = None
        self._stored_head = ChainHead()
        try:
            self._stored_head = ChainHead.parse(stored_head)
        except InvalidRecordError as exc:
            self._problem = f"The log was changed: {exc}."
        self._found_stored_head = self._stored_head.seq == 0

    def feed(self, lines: Iterable[str | bytes], sequence_numbers: Iterable[int] = ()) -> None:
        """Verify the next records of an audit chain.

        Args:
            lines: Lines that contain the records.
            sequence_numbers: Sequence numbers under which the records are stored, if
                available.
        """
        for line, number in zip_longest(lines, sequence_numbers):
            if self._problem is not None:
                return
            try:
                record = parse_record(line, self._key)
                if number not in (None, record["seq"]):
                    raise InvalidRecordError(f"the record is stored under number {number}")
                self._verify(record)
            except InvalidRecordError as exc:
                self._problem = f"Record {self._count + 1} from the beginning: {exc}."

    def _verify(self, record: dict[str, Any]) -> None:
        name = record.get("audit")
        if self._audit and name != self._audit and (name is not None or self._is_named):
            raise InvalidRecordError(
                f"the record belongs to the audit {name!r}, not {self._audit!r}"
            )
        self._is_named = name is not None
        seq = record["seq"]
        if not self._count and seq != 1:
            # The beginning was deleted; a later record must seal it.
            self._head = self._start = ChainHead(seq - 1, record["prev"])
            self._dropped = seq - 1
        if seq != self._head.seq + 1 or record["prev"] != self._head.hash:
            raise InvalidRecordError(
                "the record's previous hash or number does not match the previous record"
            )
        self._head = ChainHead(seq, record["hash"])
        self._count += 1
        known = {record["hash"], record["prev"]}
        self._found_anchor = self._found_anchor or self._anchor in known
        self._found_stored_head = self._found_stored_head or self._head == self._stored_head
        if record["kind"] == SEALED and self._start is not None:
            sealed = record["data"]
            if ChainHead(sealed.get("through"), sealed.get("head")) == self._start:
                self._start = None

    def result(self) -> Verification:
        """Return the result of the verification."""
        problem = self._problem
        if problem is None and self._start is not None:
            problem = f"Records 1 to {self._start.seq} are missing, and no record seals them."
        if problem is None and self._count and self._audit and not self._is_named:
            problem = "The records name no audit: they may be a copy of another audit's records."
        if problem is None and not self._found_stored_head:
            problem = f"The end was cut off: record {self._stored_head.seq} is missing."
        if problem is None and not self._found_anchor:
            problem = f"The head {self._anchor} is not in the chain."
            if self._dropped:
                problem += f" Records 1 to {self._dropped} were sealed and deleted because of their"
                problem += " age, and their anchors with them. Keep a newer anchor."
        return Verification(problem is None, self._count, self._head.hash, problem)
