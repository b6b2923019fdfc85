"""Helpers for files: atomic writes, SQLite's write-ahead logging, and CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capgraph.configs.safe_text import strip_control_characters

if TYPE_CHECKING:
    import sqlite3


_SEPARATOR = re.compile(r"([;\t\r\n])([^;\t\r\n]*)")


def create_private(path: str | os.PathLike[str]) -> None:
    """Create an empty file that only its owner can access, unless the file already exists.

    Database files are created with this function because SQLite gives its companion files the
    same permissions.

    Args:
        path: Path of the file. ``:memory:`` is ignored.
    """
    if os.fspath(path) not in ("", ":memory:"):
        temporary = f"{os.fspath(path)}.{uuid.uuid4().hex[:8]}"
        # The file itself must not be opened here: closing it would release the locks that SQLite holds
        # on it in this process. The caller opens the file and reports problems.
        with suppress(OSError):
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            try:
                os.link(temporary, path)
            finally:
                os.unlink(temporary)


def write_atomic(path: str | os.PathLike[str], text: str, *, mode: int = 0o666) -> None:
    """Write a text file atomically, so that readers see either the old or the new content.

    Args:
        path: Path of the file. Missing directories are created.
        text: Content to write.
        mode: Permissions of the file, before the process's umask applies.

    Raises:
        OSError: The file cannot be written. An existing file is left unchanged.
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
    """Enable write-ahead logging (WAL) for a SQLite database, retrying while it is locked.

    SQLite's own timeout does not apply, because the statement fails immediately while another
    connection is writing or changing the journal mode.

    Args:
        connection: Connection without an open transaction.
        timeout_seconds: Maximum time for which to retry.

    Raises:
        sqlite3.Error: The file is still locked after the timeout, or is not a writable database.
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
    r"""Format rows as CSV text.

    Strings that a spreadsheet would evaluate as a formula are prefixed with an apostrophe.

    >>> to_csv([{"a": 1, "b": "=2+3"}, {"b": "x"}])
    "a,b\r\n1,'=2+3\r\n,x\r\n"
    """
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = csv.writer(text)
    out.writerow(map(_format_cell, names))
    out.writerows([_format_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _format_cell(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        return value
    # With other regional settings, a spreadsheet begins a cell at each semicolon, tab, or line.
    value = _SEPARATOR.sub(lambda match: _quote_formula(match[1], match[2]), value)
    return f"'{value}" if _is_formula(value) else value


def _quote_formula(separator: str, text: str) -> str:
    return f"{separator}'{text}" if _is_formula(text) else separator + text


def _is_formula(text: str) -> bool:
    """Return True if a spreadsheet might evaluate a cell's text as a formula.

    Leading characters that spreadsheets ignore are skipped.
    """
    if text.startswith(("\t", "\r", "\n")):
        return True
    if text[:1].isascii() and text[:1].isalnum():
        return False  # most cells
    shown = strip_control_characters(text.replace("\n", ""))
    first = next((char for char in shown if unicodedata.category(char)[0] not in "CZM"), "")
    return unicodedata.normalize("NFKC", first)[:1] in ("=", "+", "-", "@", "\u2212")
