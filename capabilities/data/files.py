"""Functions that find data files, check access to them, and detect their formats and tables."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from capgraph.base import ValidationError, require_extra
from capgraph.capabilities.data.session import DataSession, DataTable, quote_literal, quote_path
from capgraph.capabilities.data.sqlite_export import distinct_names
from capgraph.capabilities.data.thread_pool import DataOperation

_SUFFIXES = {
    suffix: kind
    for kind, suffixes in {
        "csv": ".csv .tsv .txt .tab .dat", "parquet": ".parquet .pq",
        "json": ".json .jsonl .ndjson", "sqlite": ".sqlite .sqlite3 .db",
    }.items()
    for suffix in suffixes.split()
}  # fmt: skip
_HEAD_BYTES = 1 << 20
_MAX_TABLES = 200
_DIGIT = re.compile(r"\d")
_C1_CONTROLS = re.compile(rb"[\x80-\x9f]")


def find_file(name: str, settings: Mapping[str, Any]) -> Path:
    """Resolve the path of a data file that the caller is allowed to read.

    For a file outside the allowed folders, the error does not reveal whether the file exists.

    Args:
        name: Path relative to the working folder or to an allowed folder, or ``vega:NAME`` for
            a file of the ``vega_datasets`` package.
        settings: Settings of the capability. ``data_folders`` lists the allowed folders and
            files; an empty list allows none. Symbolic links are resolved before the comparison.

    Raises:
        ValidationError: The file does not exist, or the caller may not read it.
    """
    if name.startswith("vega:"):
        return _find_packaged_file(name.removeprefix("vega:"))
    try:
        allowed = [Path(item).expanduser().resolve() for item in settings.get("data_folders") or ()]
        path = Path(name).expanduser().resolve()
        candidates = [path, *((item / name).resolve() for item in allowed)]
        for candidate in candidates:
            candidate.is_file()  # fails for a name that the file system does not allow
    except (OSError, RuntimeError, ValueError) as exc:
        raise ValidationError(
            f"{name[:200]!r} is not a valid file path.", fix="Pass the path of a data file."
        ) from exc
    is_packaged = (
        path.parent.parts[-2:] == ("vega_datasets", "_data")
        and path.parent == _find_package_folder()
    )
    allowed_paths = [
        one for one in candidates if any(one == item or item in one.parents for item in allowed)
    ]
    if not is_packaged and not allowed_paths:
        raise ValidationError(
            f"The data file {Path(name).name!r} is outside the folders in 'data_folders'.",
            fix="Add its folder to 'data_folders' in the settings, or move the file.",
        )
    if not is_packaged:
        path = next((one for one in allowed_paths if one.is_file()), allowed_paths[0])
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise ValidationError(
            f"The data file {name!r} {problem}.",
            fix="Pass the path of an existing CSV, Parquet, JSON, or SQLite file.",
        )
    return path


def _find_package_folder() -> Path:
    package = require_extra("vega_datasets", "demo")
    return (Path(str(package.__file__)).parent / "_data").resolve()


def _find_packaged_file(name: str) -> Path:
    files_by_name = {
        path.name: path for path in _find_package_folder().iterdir() if path.suffix in _SUFFIXES
    }
    found = next(
        (files_by_name[n] for n in (name, f"{name}.csv", f"{name}.json") if n in files_by_name),
        None,
    )
    if found is None:
        raise ValidationError(
            f"The 'vega_datasets' package has no file named {name!r}.",
            fix=f"Use one of: {', '.join(sorted(files_by_name))}.",
        )
    return found


def list_tables(session: DataSession, path: Path) -> list[DataTable]:
    """List the tables in a data file.

    Raises:
        ValidationError: The file is unreadable, empty, too large, or has an unknown format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as exc:
        raise ValidationError(
            f"The data file {path.name!r} cannot be read: {exc.strerror or exc}.",
            fix="Check that the file exists and is readable.",
        ) from exc
    if not head.strip():
        raise ValidationError(
            f"The data file {path.name!r} is empty.", fix="Pass a file with rows."
        )
    kind = _detect_kind(path, head)
    limit = session.operation.limits.max_file_bytes * (10 if kind == "parquet" else 1)
    if size > limit:
        raise ValidationError(
            f"The data file {path.name!r} is too large: {size:,} bytes exceed the limit of "
            f"{limit:,}.",
            fix="Convert it to Parquet, or raise 'max_file_bytes' in the settings.",
        )
    if kind == "sqlite":
        return [
            DataTable(path, kind, f"{path.name}:{name}", size, name)
            for name in _list_sqlite_tables(path, session.operation)
        ]
    if kind != "csv":
        return [DataTable(path, kind, path.name, size)]
    encoding = find_encoding(path, head, session.operation)
    table = DataTable(path, kind, path.name, size, encoding=encoding)
    return [_detect_dialect(session, table, head)]


def _detect_kind(path: Path, head: bytes) -> Literal["csv", "parquet", "json", "sqlite"]:
    if head.startswith(b"SQLite format 3\x00"):
        return "sqlite"
    if head.startswith(b"PAR1"):
        return "parquet"
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind in ("sqlite", "parquet") or (b"\x00" in head and _detect_utf16(head) is None):
        raise ValidationError(
            f"The data file {path.name!r} is not a readable {kind or 'data'} file: its content has"
            " another format.",
            fix="Pass a CSV, TSV, Parquet, JSON, or SQLite file; export spreadsheets as CSV.",
        )
    return "json" if kind == "json" or (not kind and head.lstrip()[:1] in b"[{") else "csv"


def _list_sqlite_tables(path: Path, operation: DataOperation) -> list[str]:
    try:
        uri = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as found:
            found.execute("PRAGMA trusted_schema = OFF")
            with operation.on_stop(found.interrupt):
                rows = found.execute(
                    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                    " AND name NOT LIKE 'sqlite_%' ORDER BY name LIMIT ?",
                    [_MAX_TABLES + 1],
                ).fetchall()
    except sqlite3.Error as exc:
        operation.raise_if_stopped()
        raise ValidationError(
            f"The SQLite file {path.name!r} cannot be read: {exc}.",
            fix="Check the file with the sqlite3 command, or export the table as CSV.",
        ) from exc
    if not 0 < len(rows) <= _MAX_TABLES:
        problem = f"more than {_MAX_TABLES}" if rows else "no"
        raise ValidationError(
            f"The SQLite file {path.name!r} contains {problem} tables.",
            fix="Pass a database with only the required tables.",
        )
    return [row[0] for row in rows]


def _detect_utf16(head: bytes) -> str | None:
    """Detect UTF-16 text from a byte order mark or zero bytes.

    Returns the name of the encoding, or ``None`` if the bytes do not look like UTF-16.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = head[:4096:2], head[1:4096:2]
    for encoding, zeros, letters in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros.count(0) > 0.7 * len(zeros) and letters.count(0) < 0.05 * len(letters):
            return encoding
    return None


def find_encoding(path: Path, head: bytes, operation: DataOperation) -> str:
    """Detect the encoding of a text file.

    The whole file is read, because a single invalid byte can rule out an encoding.
    """
    if wide := _detect_utf16(head):
        return wide
    decoder = codecs.getincrementaldecoder("utf-8")()
    found, controls = "utf-8", False
    with path.open("rb") as file:
        while chunk := file.read(_HEAD_BYTES):
            operation.raise_if_stopped()
            # Windows-1252 has quotes and the euro sign where Latin-1 has control characters.
            controls |= bool(_C1_CONTROLS.search(chunk))
            with contextlib.suppress(UnicodeDecodeError):
                if found == "utf-8":
                    decoder.decode(chunk, final=len(chunk) < _HEAD_BYTES)
                continue
            found = "latin-1"
    return "cp1252" if found == "latin-1" and controls else found


def _has_year_headers(cells: list[str]) -> bool:
    """Return True if a header row has text columns and one column for each of several years."""
    years = [int(cell) for cell in cells if re.fullmatch(r"(?:19|20)\d\d", cell.strip())]
    texts = len(cells) - len(years)
    run = [*range(min(years), min(years) + len(years))] if len(years) > 1 else []
    return 0 < texts == len({c for c in cells if not _DIGIT.search(c)}) and sorted(years) == run


def _detect_dialect(session: DataSession, table: DataTable, head: bytes) -> DataTable:
    """Detect the delimiter, quote character, and header of a CSV file.

    Returns a copy of the table with the detected options.
    """
    path = session.readable_path(table)
    ((delimiter, quote, escape, header, skip),) = session.query(
        f"SELECT Delimiter, Quote, Escape, HasHeader, SkipRows FROM sniff_csv({quote_path(path)})",  # noqa: S608
        label=table.label,
    )
    delimiter = delimiter if len(delimiter) == 1 else ","
    quote = quote if len(quote) == 1 else '"'
    escape = "\\" if escape == "\\" else quote
    text = codecs.getincrementaldecoder(table.encoding)(errors="replace").decode(head)
    lines = csv.reader(
        io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=delimiter, quotechar=quote
    )
    names: list[str] = []
    with contextlib.suppress(csv.Error):
        names = next(itertools.islice(lines, skip, None), [])
    header = header or _has_year_headers(names)
    options = (
        f"delim={quote_literal(delimiter)}, quote={quote_literal(quote)}, escape={quote_literal(escape)},"
        f" header={str(bool(header)).lower()}, skip={skip}"
    )
    if header and (distinct := distinct_names(names)) != names:
        options += f", names=[{', '.join(map(quote_literal, distinct))}]"
    return DataTable(
        table.path, "csv", table.label, table.size, None, table.encoding, options, delimiter == ";"
    )
