"""Files that are written whole or not at all, SQLite files with several writers, and tables as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import time
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3


def write_atomic(path: str | os.PathLike[str], text: str, *, mode: int = 0o666) -> None:
    """Write a text file so that whoever reads it sees the old text or the new one, never half.

    Args:
        path: The file; its folder is made.
        text: What it is to hold.
        mode: Who may read and write it, less what the process's umask takes away.

    Raises:
        OSError: The disk or the permissions do not allow it; an old file is left as it was.
    """
    target = Path(path)
    content = text.encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def use_wal(connection: sqlite3.Connection, timeout_seconds: float) -> None:
    """Switch a SQLite file to write-ahead logging.

    SQLite's own timeout does not hold for this: while another connection writes or switches, the
    switch fails at once.

    Args:
        connection: Connection outside of a transaction.
        timeout_seconds: Maximum time to try.

    Raises:
        sqlite3.Error: The file is locked for longer, or is not a writable database.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except Exception as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write a table as CSV.

    Text that a spreadsheet would take for a formula has an apostrophe before it.

    >>> to_csv([{"a": 1, "b": "=2+3"}, {"b": "x"}])
    "a,b\r\n1,'=2+3\r\n,x\r\n"
    """
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = csv.writer(text)
    out.writerow(map(_cell, names))
    out.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def _is_formula(text: str) -> bool:
    """Tell whether a spreadsheet may take a text for a formula, also behind what it leaves out."""
    if text.startswith(("\t", "\r", "\n")):
        return True
    first = next((char for char in text if unicodedata.category(char)[0] not in "CZ"), "")
    return unicodedata.normalize("NFKC", first)[:1] in ("=", "+", "-", "@", "\u2212")
