"""Records that hold one another: what an audit chain is made of, and how it is checked.

A record is one line of canonical JSON with its place (``seq``), the hash of the record before it
(``prev``), its own hash, and, where there is a signing key, an HMAC of that hash. Whoever changes a
byte, leaves a record out or puts one in changes a hash that a later record holds. What no chain can
show by itself is that its end was cut off: therefore the head is kept beside it, and printed by
``capgraph audit anchor`` to be kept elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from capgraph.base.ports import utc_now_text
from capgraph.helpers.plain_data import to_plain
from capgraph.telemetry.audit import canonical_json

EMPTY_HASH = "0" * 64
"""The head of a chain without records."""
SEALED = "sealed"
"""Kind of the record that says up to where the beginning was dropped."""
_FIELDS = {"at", "data", "hash", "kind", "prev", "seq"}


class InvalidRecordError(ValueError):
    """A record is not as it was written."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last record of a chain.

    Attributes:
        seq: Its place; 0 where there is none.
        hash: Its hash.
    """

    seq: int = 0
    hash: str = EMPTY_HASH

    def __str__(self) -> str:
        return f"{self.seq:020d} {self.hash}"

    @classmethod
    def parse(cls, text: str) -> ChainHead:
        """Read what ``str`` wrote; empty text is no record.

        Raises:
            Broken: It is something else.
        """
        seq, _, found = text.strip().partition(" ")
        if seq and not (seq.isdecimal() and len(found) == len(EMPTY_HASH)):
            raise InvalidRecordError("what keeps the head of the chain cannot be read")
        return cls(int(seq), found) if seq else cls()


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check of a chain found; true when it holds.

    Attributes:
        valid: Whether every record is as it was written.
        records: How many records were read.
        head: Hash of the last one.
        problem: What is wrong with the first that is not.
    """

    valid: bool
    records: int = 0
    head: str = EMPTY_HASH
    problem: str | None = None

    def __bool__(self) -> bool:
        return self.valid


def key_bytes(key: Any) -> bytes | None:
    """Return a signing key as bytes; it may be text, bytes or a secret of the settings."""
    found = key.get_secret_value() if hasattr(key, "get_secret_value") else key
    return found.encode() if isinstance(found, str) else found


def build_record(
    previous: ChainHead, kind: str, data: Mapping[str, Any], key: bytes | None
) -> tuple[ChainHead, str]:
    """Return the next record of a chain as a line, with its head.

    Args:
        previous: The record that it follows.
        kind: What it is about.
        data: Plain data.
        key: Signs it.

    Raises:
        ValidationError: Something in it has no plain form.
    """
    body = {
        "at": utc_now_text(),
        "data": to_plain(dict(data), kind),
        "kind": str(kind),
        "prev": previous.hash,
        "seq": previous.seq + 1,
    }
    found = hashlib.sha256(canonical_json(body).encode()).hexdigest()
    signed = {"sig": _signature(found, key)} if key is not None else {}
    return ChainHead(previous.seq + 1, found), canonical_json({**body, "hash": found, **signed})


def _signature(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def parse_record(line: str | bytes, key: bytes | None = None) -> dict[str, Any]:
    """Return the record of a line.

    Raises:
        Broken: It is not as it was written, or not signed with the key.
    """
    try:
        text = line.decode("ascii") if isinstance(line, bytes) else line
        record: dict[str, Any] = json.loads(text)
        same = isinstance(record, dict) and canonical_json(record) == text
    except (ValueError, RecursionError) as exc:
        raise InvalidRecordError(f"it is no record ({type(exc).__name__})") from exc
    if not same or not _FIELDS <= record.keys() <= _FIELDS | {"sig"}:
        raise InvalidRecordError("it is not in the form in which it was written")
    body = {name: value for name, value in record.items() if name not in ("hash", "sig")}
    if hashlib.sha256(canonical_json(body).encode()).hexdigest() != record["hash"]:
        raise InvalidRecordError("its hash is another")
    if key is not None and not hmac.compare_digest(
        _signature(record["hash"], key), str(record.get("sig"))
    ):
        raise InvalidRecordError("it is not signed with the key")
    return record


class ChainVerifier:
    """Checks a chain record by record, however long it is.

    Args:
        key: Every record must be signed with it.
        anchor: A head that was kept elsewhere; it must be in the chain.
        stored_head: What is kept beside the chain of its head, if anything is.

    >>> head, line = build_record(ChainHead(), "plan", {"steps": 1}, None)
    >>> checker = ChainVerifier()
    >>> checker.feed([line])
    >>> checker.result().valid
    True
    >>> checker = ChainVerifier()
    >>> checker.feed([line.replace("1", "2", 1)])
    >>> checker.result().valid
    False
    """

    def __init__(
        self,
        key: bytes | None = None,
        anchor: str | None = None,
        stored_head: str = "",
    ) -> None:
        self._key = key
        self._anchor = anchor.strip().lower() if anchor is not None else None
        self._head = ChainHead()
        self._count = 0
        self._start: ChainHead | None = None
        self._dropped = 0
        self._seen = self._anchor in (None, EMPTY_HASH)
        self._problem: str | None = None
        self._last = ChainHead()
        try:
            self._last = ChainHead.parse(stored_head)
        except InvalidRecordError as exc:
            self._problem = f"It was changed: {exc}."
        self._seen_last = self._last.seq == 0

    def feed(self, lines: Iterable[str | bytes], sequence_numbers: Iterable[int] = ()) -> None:
        """Check the next records.

        Args:
            lines: The records.
            sequence_numbers: Under which number each is kept, where there is one.
        """
        for line, place in zip_longest(lines, sequence_numbers):
            if self._problem is not None:
                return
            try:
                record = parse_record(line, self._key)
                if place not in (None, record["seq"]):
                    raise InvalidRecordError(f"it is kept in the place {place}")
                self._one(record)
            except InvalidRecordError as exc:
                self._problem = f"Record {self._count + 1} from the beginning: {exc}."

    def _one(self, record: dict[str, Any]) -> None:
        seq = record["seq"]
        if not self._count and seq != 1:
            # The beginning was dropped; a record further on has to say so.
            self._head = self._start = ChainHead(seq - 1, record["prev"])
            self._dropped = seq - 1
        if seq != self._head.seq + 1 or record["prev"] != self._head.hash:
            raise InvalidRecordError("it does not follow the record before it")
        self._head = ChainHead(seq, record["hash"])
        self._count += 1
        known = {record["hash"], record["prev"]}
        self._seen = self._seen or self._anchor in known
        self._seen_last = self._seen_last or self._head == self._last
        if record["kind"] == SEALED and self._start is not None:
            sealed = record["data"]
            if ChainHead(sealed.get("through"), sealed.get("head")) == self._start:
                self._start = None

    def result(self) -> Verification:
        """Say what was found."""
        problem = self._problem
        if problem is None and self._start is not None:
            problem = f"Records 1 to {self._start.seq} are missing, and no record seals them."
        if problem is None and not self._seen_last:
            problem = f"The end was cut off: record {self._last.seq} is gone."
        if problem is None and not self._seen:
            problem = f"The head {self._anchor} is not in the chain."
            if self._dropped:
                problem += f" Records 1 to {self._dropped} are too old and were dropped (sealed):"
                problem += " a head from then is gone with them; keep a newer one."
        return Verification(problem is None, self._count, self._head.hash, problem)
