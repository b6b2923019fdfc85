"""The files that a question is about: where they are, what kind they are, what tables they hold."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capabilities.contexts import TableRef
from capabilities.data.folders import check_folder, packaged_folder
from capabilities.data.session import connect, path_literal, unreadable
from capabilities.data.sqlite_rows import distinct_names
from capabilities.data.work import Work, current_work
from framework.base import ValidationError

_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".tab": "csv", ".dat": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".json": "json", ".jsonl": "json",
    ".ndjson": "json", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite",
}  # fmt: skip
_HEAD = 1 << 20
_CHUNK = 1 << 20
_MOST_TABLES = 200


def find_file(name: str, settings: Mapping[str, Any]) -> Path:
    """Turn what the user wrote into a path that may be read.

    Raises:
        ValidationError: There is no such file, or it may not be read.
    """
    if name.startswith("vega:"):
        return _packaged(name.removeprefix("vega:"))
    path = check_folder(name, settings)
    if not path.exists():
        raise ValidationError(
            f"The data file {name!r} does not exist.", fix="Give the path of an existing file."
        )
    if not path.is_file():
        raise ValidationError(
            f"{name!r} is not a file.", fix="Name the CSV, Parquet, JSON or SQLite file itself."
        )
    return path


def _packaged(name: str) -> Path:
    folder = packaged_folder()
    for candidate in (name, f"{name}.csv", f"{name}.json"):
        # Only a file directly in the folder: a name is no path.
        if Path(candidate).name == candidate and (folder / candidate).is_file():
            return folder / candidate
    known = ", ".join(sorted(path.name for path in folder.iterdir() if path.suffix in _SUFFIXES))
    raise ValidationError(
        f"The package vega_datasets has no file {name!r}.", fix=f"Use one of: {known}."
    )


def list_tables(name: str, settings: Mapping[str, Any]) -> list[TableRef]:
    """Find the tables that a file holds.

    Args:
        name: Path of the file, or ``vega:NAME``.
        settings: Settings of the capability: ``data_folders`` and the bounds.

    Raises:
        ValidationError: The file is missing, unreadable, empty, too large or of no known kind, or
            may not be read.
    """
    work = current_work(settings)
    path = find_file(name, settings)
    try:
        status = path.stat()
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as exc:
        raise ValidationError(
            f"The data file {name!r} cannot be read: {exc.strerror or exc}.",
            fix="Check that the file is there and that you may read it.",
        ) from exc
    if not head.strip():
        raise ValidationError(f"The data file {name!r} is empty.", fix="Give a file with rows.")
    kind = _kind(path, head)
    limit = work.bounds.file_bytes * (10 if kind == "parquet" else 1)
    if status.st_size > limit:
        raise ValidationError(
            f"The data file {name!r} has {status.st_size:,} bytes; the limit is {limit:,}.",
            fix="Convert it to Parquet, or raise 'max_file_bytes' in the settings.",
        )
    base = TableRef(
        path=str(path),
        kind=kind,
        label=path.name,
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
    )
    if kind == "sqlite":
        return _sqlite_tables(base, work)
    if kind == "csv":
        return [base.model_copy(update=_dialect(path, head, work))]
    return [base]


def _kind(path: Path, head: bytes) -> Any:
    if head.startswith(b"SQLite format 3\x00"):
        return "sqlite"
    if head.startswith(b"PAR1"):
        return "parquet"
    kind = _SUFFIXES.get(path.suffix.lower())
    binary = b"\x00" in head and _utf16(head) is None
    if kind in ("sqlite", "parquet") or binary:
        raise ValidationError(
            f"{path.name!r} is not a readable {kind or 'data'} file: its content is something"
            " else.",
            fix="Give a CSV, TSV, Parquet, JSON or SQLite file; export spreadsheets as CSV.",
        )
    if kind is None:
        kind = "json" if head.lstrip()[:1] in (b"[", b"{") else "csv"
    return kind


def _sqlite_tables(base: TableRef, work: Work) -> list[TableRef]:
    uri = f"{Path(base.path).as_uri()}?mode=ro"
    try:
        with contextlib.closing(
            sqlite3.connect(uri, uri=True, check_same_thread=False)
        ) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            with work.interrupting(connection.interrupt):
                names = [
                    row[0]
                    for row in connection.execute(
                        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                        " AND name NOT LIKE 'sqlite_%' ORDER BY name LIMIT ?",
                        [_MOST_TABLES + 1],
                    )
                ]
    except sqlite3.Error as exc:
        work.check()
        raise ValidationError(
            f"The SQLite file {base.label!r} cannot be read: {exc}.",
            fix="Check the file with the sqlite3 command, or export the table as CSV.",
        ) from exc
    if not names:
        raise ValidationError(f"{base.label!r} has no tables.", fix="Give a database with data.")
    if len(names) > _MOST_TABLES:
        raise ValidationError(
            f"{base.label!r} has more than {_MOST_TABLES} tables.",
            fix="Give a database with the tables that are needed.",
        )
    return [
        base.model_copy(update={"table": name, "label": f"{base.label}:{name}"}) for name in names
    ]


def _utf16(head: bytes) -> str | None:
    """Recognise UTF-16, with its mark or by the zeros between ASCII letters."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = head[:4096:2], head[1:4096:2]
    if even and odd.count(0) > 0.7 * len(odd) and even.count(0) < 0.05 * len(even):
        return "utf-16-le"
    if odd and even.count(0) > 0.7 * len(even) and odd.count(0) < 0.05 * len(odd):
        return "utf-16-be"
    return None


def find_encoding(path: Path, head: bytes, work: Work) -> str:
    """Find the encoding of a text file; all of it is looked at, for one letter decides.

    Args:
        path: The file.
        head: How it begins.
        work: What stops it.
    """
    wide = _utf16(head)
    if wide is not None:
        return wide
    decoder = codecs.getincrementaldecoder("utf-8")()
    controls = False
    with path.open("rb") as file:
        try:
            while chunk := file.read(_CHUNK):
                work.check()
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            file.seek(0)
            while chunk := file.read(_CHUNK):
                work.check()
                # Latin-1 has control characters where Windows has quotes and the euro.
                controls |= any(0x80 <= byte <= 0x9F for byte in set(chunk))
            return "cp1252" if controls else "latin-1"
    return "utf-8"


def _dialect(path: Path, head: bytes, work: Work) -> dict[str, Any]:
    encoding = find_encoding(path, head, work)
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(head).lstrip("\ufeff")
    with tempfile.TemporaryDirectory(prefix="capgraph-") as name:
        source, folder = path, Path(name)
        if encoding != "utf-8":
            source = folder / "head.csv"
            source.write_text(text, encoding="utf-8", newline="")
        with connect(folder, work) as connection:
            try:
                row = connection.execute(
                    "SELECT Delimiter, Quote, HasHeader, SkipRows, Escape"  # noqa: S608 - a quoted path
                    f" FROM sniff_csv({path_literal(source)})"
                ).fetchone()
            except Exception as exc:
                work.check()
                raise unreadable(path.name, exc) from exc
    assert row is not None
    delimiter, quote, header, skip, escape = row
    found = {
        "delimiter": delimiter if len(delimiter) == 1 else ",",
        "quote": quote if len(quote) == 1 else '"',
        "escape": "\\" if escape == "\\" else quote if len(quote) == 1 else '"',
        "header": bool(header),
        "skip": int(skip),
        "encoding": encoding,
    }
    if header:
        found["names"] = _doubled_names(text, found)
    return found


def _doubled_names(text: str, dialect: Mapping[str, Any]) -> list[str]:
    """Return names for all columns where two of the header are equal, else nothing."""
    lines = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=dialect["delimiter"],
        quotechar=dialect["quote"],
    )
    try:
        header = next(itertools.islice(lines, dialect["skip"], None), [])
    except csv.Error:
        return []
    names = distinct_names(header)
    return names if names != header else []
