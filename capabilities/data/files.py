"""The user's files as DuckDB relations, whatever their format."""

from __future__ import annotations

import contextlib
import csv
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capabilities.contexts import TableRef
from framework.base import CapabilityError, ValidationError, require_extra

if TYPE_CHECKING:
    import duckdb

_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".tab": "csv", ".dat": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".json": "json", ".jsonl": "json",
    ".ndjson": "json", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite",
}  # fmt: skip
DEFAULT_MAX_BYTES = 2 * 1024**3


def identifier(name: str) -> str:
    """Quote a name for SQL.

    >>> print(identifier('wind "gust" speed'))
    "wind ""gust"" speed"
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a text for SQL.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def find_file(name: str) -> Path:
    """Turn what the user wrote into a path.

    Raises:
        ValidationError: There is no such file, or it cannot be read.
    """
    if name.startswith("vega:"):
        return _packaged(name.removeprefix("vega:"))
    path = Path(name).expanduser()
    if not path.exists():
        folder = path.parent if path.parent.is_dir() else Path.cwd()
        near = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES)[:8]
        raise ValidationError(
            f"The data file {name!r} does not exist.",
            fix="Give the path of an existing file"
            + (f"; data files in that folder: {', '.join(near)}." if near else "."),
        )
    if not path.is_file():
        raise ValidationError(
            f"{name!r} is not a file.", fix="Name the CSV, Parquet, JSON or SQLite file itself."
        )
    return path.resolve()


def _packaged(name: str) -> Path:
    package = require_extra("vega_datasets", "demo")
    folder = Path(str(package.__file__)).parent / "_data"
    for candidate in (name, f"{name}.csv", f"{name}.json"):
        # Only a file directly in the folder: a name is no path.
        if Path(candidate).name == candidate and (folder / candidate).is_file():
            return folder / candidate
    known = ", ".join(sorted(path.name for path in folder.iterdir() if path.suffix in _SUFFIXES))
    raise ValidationError(
        f"The package vega_datasets has no file {name!r}.", fix=f"Use one of: {known}."
    )


def list_tables(name: str, max_bytes: int = DEFAULT_MAX_BYTES) -> list[TableRef]:
    """Find the tables that a file holds.

    Args:
        name: Path of the file, or ``vega:NAME``.
        max_bytes: Refuse larger files (Parquet, which is read by columns, may be ten times that).

    Raises:
        ValidationError: The file is missing, unreadable, empty, too large or of no known kind.
    """
    path = find_file(name)
    try:
        status = path.stat()
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as exc:
        raise ValidationError(
            f"The data file {name!r} cannot be read: {exc.strerror or exc}.",
            fix="Check that the file is there and that you may read it.",
        ) from exc
    if not head.strip():
        raise ValidationError(f"The data file {name!r} is empty.", fix="Give a file with rows.")
    kind = _kind(path, head)
    limit = max_bytes * (10 if kind == "parquet" else 1)
    if status.st_size > limit:
        raise ValidationError(
            f"The data file {name!r} has {status.st_size:,} bytes; the limit is {limit:,}.",
            fix="Convert it to Parquet, or raise 'max_file_bytes' in the settings of "
            "data_retrieval.",
        )
    base = TableRef(
        path=str(path),
        kind=kind,
        label=path.name,
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
    )
    if kind == "sqlite":
        return _sqlite_tables(base)
    if kind == "csv":
        return [base.model_copy(update=_dialect(path, head))]
    return [base]


def _kind(path: Path, head: bytes) -> Any:
    if head.startswith(b"SQLite format 3\x00"):
        return "sqlite"
    if head.startswith(b"PAR1"):
        return "parquet"
    kind = _SUFFIXES.get(path.suffix.lower())
    binary = b"\x00" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if kind in ("sqlite", "parquet") or binary:
        raise ValidationError(
            f"{path.name!r} is not a readable {kind or 'data'} file: its content is something"
            " else.",
            fix="Give a CSV, TSV, Parquet, JSON or SQLite file; export spreadsheets as CSV.",
        )
    if kind is None:
        kind = "json" if head.lstrip()[:1] in (b"[", b"{") else "csv"
    return kind


def _sqlite_tables(base: TableRef) -> list[TableRef]:
    uri = f"{Path(base.path).as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            names = [
                row[0]
                for row in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                    " AND name NOT LIKE 'sqlite_%' ORDER BY name"
                )
            ]
    except sqlite3.Error as exc:
        raise ValidationError(
            f"The SQLite file {base.label!r} cannot be read: {exc}.",
            fix="Check the file with the sqlite3 command, or export the table as CSV.",
        ) from exc
    if not names:
        raise ValidationError(f"{base.label!r} has no tables.", fix="Give a database with data.")
    return [
        base.model_copy(update={"table": name, "label": f"{base.label}:{name}"}) for name in names
    ]


def _encoding(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        # The head may end inside a character.
        head[: head.rfind(b"\n") + 1 or len(head)].decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _dialect(path: Path, head: bytes) -> dict[str, Any]:
    encoding = _encoding(head)
    with connect() as connection:
        try:
            row = connection.execute(
                "SELECT Delimiter, Quote, HasHeader, SkipRows FROM sniff_csv(?, encoding=?)",
                [str(path), encoding],
            ).fetchone()
        except Exception as exc:
            raise _unreadable(path.name, exc) from exc
    assert row is not None
    delimiter, quote, header, skip = row
    return {
        "delimiter": delimiter if len(delimiter) == 1 else ",",
        "quote": quote if len(quote) == 1 else '"',
        "header": bool(header),
        "skip": int(skip),
        "encoding": encoding,
    }


def _unreadable(name: str, exc: Exception) -> ValidationError:
    first_line = str(exc).strip().splitlines()[0]
    return ValidationError(
        f"The data file {name!r} cannot be read: {first_line}",
        fix="Check that it is a table with one header line and the same columns in every row.",
    )


@contextlib.contextmanager
def connect(settings: Mapping[str, Any] | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a private in-memory DuckDB that never installs or downloads anything."""
    duckdb_module = require_extra("duckdb", "data")
    options: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "preserve_insertion_order": "false",
    }
    for key in ("threads", "memory_limit"):
        if settings and settings.get(key):
            options[key] = settings[key]
    connection = duckdb_module.connect(":memory:", config=options)
    try:
        yield connection
    finally:
        connection.close()


class Session:
    """A DuckDB connection and the tables that were opened in it.

    Args:
        connection: The connection.
        folder: Where tables of SQLite files are laid down as CSV for DuckDB to read; its own
            reader for them is an extension that would have to be downloaded.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self.connection = connection
        self._folder = folder
        self._relations: dict[tuple[str, str | None], str] = {}

    def relation(self, table: TableRef) -> str:
        """Return SQL that stands for the table after FROM."""
        key = (table.path, table.table)
        if key not in self._relations:
            self._relations[key] = self._open(table)
        return self._relations[key]

    def _open(self, table: TableRef) -> str:
        path = literal(table.path)
        if table.kind == "parquet":
            return f"read_parquet({path})"
        if table.kind == "json":
            return f"read_json({path})"
        if table.kind == "sqlite":
            return self._spool(table)
        return (
            f"read_csv({path}, delim={literal(table.delimiter)}, quote={literal(table.quote)},"
            f" header={str(table.header).lower()}, skip={table.skip},"
            f" encoding={literal(table.encoding)}, all_varchar=true, null_padding=true,"
            " strict_mode=false)"
        )

    def _spool(self, table: TableRef) -> str:
        target = self._folder / f"table{len(self._relations)}.csv"
        uri = f"{Path(table.path).as_uri()}?mode=ro"
        try:
            with (
                contextlib.closing(sqlite3.connect(uri, uri=True)) as connection,
                target.open("w", newline="", encoding="utf-8") as file,
            ):
                rows = connection.execute(f"SELECT * FROM {identifier(table.table or '')}")  # noqa: S608
                writer = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
                writer.writerow([column[0] for column in rows.description])
                writer.writerows(rows)
        except sqlite3.Error as exc:
            raise _unreadable(table.label, exc) from exc
        return (
            f"read_csv({literal(str(target))}, delim=',', quote='\"', header=true,"
            " all_varchar=true, null_padding=true)"
        )

    def columns(self, table: TableRef) -> list[tuple[str, str]]:
        """Return names and DuckDB types of the columns.

        Raises:
            ValidationError: The file cannot be read as a table.
        """
        rows = self.query(f"DESCRIBE SELECT * FROM {self.relation(table)}", label=table.label)  # noqa: S608
        return [(row[0], row[1]) for row in rows]

    def query(
        self, sql: str, parameters: list[Any] | None = None, label: str = "the data"
    ) -> list[tuple[Any, ...]]:
        """Run a query.

        Raises:
            ValidationError: The file under it cannot be read.
            CapabilityError: The query fails for another reason.
        """
        import duckdb

        try:
            return self.connection.execute(sql, parameters or []).fetchall()
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.ConversionException) as e:
            raise _unreadable(label, e) from e
        except duckdb.Error as exc:
            first_line = str(exc).strip().splitlines()[0]
            raise CapabilityError(
                f"DuckDB could not compute over {label}: {first_line}",
                fix="Ask for fewer rows or columns, or raise 'memory_limit' in the settings.",
            ) from exc


@contextlib.contextmanager
def open_session(settings: Mapping[str, Any] | None = None) -> Iterator[Session]:
    """Open a session; closes it and removes its temporary files at the end."""
    with tempfile.TemporaryDirectory(prefix="capgraph-") as folder, connect(settings) as connection:
        yield Session(connection, Path(folder))


def check_unchanged(table: TableRef) -> None:
    """Raise when a file is no longer the one that the data set was described from."""
    try:
        status = Path(table.path).stat()
    except OSError as exc:
        raise ValidationError(
            f"The data file {table.label!r} is gone.", fix="Restore the file and ask again."
        ) from exc
    if (status.st_size, status.st_mtime_ns) != (table.size, table.modified_ns):
        raise ValidationError(
            f"The data file {table.label!r} was changed after its columns were read.",
            fix="Ask again, so that the file is read anew.",
        )
