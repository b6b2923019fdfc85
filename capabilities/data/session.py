"""In-memory DuckDB session that reads the user's files."""

from __future__ import annotations

import codecs
import contextlib
import glob
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from capgraph.base import CapabilityError, ErrorSeverity, ValidationError, require_extra
from capgraph.capabilities.data import sqlite_export
from capgraph.capabilities.data.thread_pool import DataOperation, current_operation

if TYPE_CHECKING:
    import duckdb

_CHUNK_BYTES = 1 << 20
_MAX_IN_MEMORY_BYTES = 100 * 1024**2
_DEFAULT_CSV_OPTIONS = "delim=',', quote='\"', header=true"


@dataclass(frozen=True)
class DataTable:
    """Table in a data file, with the options needed to read it.

    Attributes:
        path: Path of the file.
        kind: File format.
        label: Name of the table in answers.
        size: File size in bytes.
        name: Name of the table in a SQLite database.
        encoding: Encoding of a text file.
        options: DuckDB options for the delimiter, quotes, header, and names of a text file.
        has_semicolons: True if semicolons separate the columns, which suggests decimal commas.
    """

    path: Path
    kind: Literal["csv", "parquet", "json", "sqlite"]
    label: str
    size: int
    name: str | None = None
    encoding: str = "utf-8"
    options: str = _DEFAULT_CSV_OPTIONS
    has_semicolons: bool = False


def quote_identifier(name: str) -> str:
    """Quote a name as a SQL identifier.

    >>> print(quote_identifier('wind "gust" speed'))
    "wind ""gust"" speed"
    """
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote a string as a SQL literal.

    >>> quote_literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def quote_path(path: str | Path) -> str:
    """Quote a file path as a SQL literal, with glob characters escaped.

    >>> quote_path("sales[1].csv")
    "'sales[[]1].csv'"
    """
    return quote_literal(glob.escape(str(path)))


def unreadable_file_error(file_name: str, exc: object) -> ValidationError:
    """Create an error for a data file that does not contain a readable table."""
    first_line = (str(exc).strip().splitlines() or ["unknown reason"])[0]
    return ValidationError(
        f"The data file {file_name!r} cannot be read: {first_line[:300]}",
        fix="Check that it is a table with one header line and the same columns in every row.",
    )


class DataSession:
    """DuckDB session that reads data files as tables.

    Args:
        connection: Open DuckDB connection.
        folder: Folder for temporary copies of SQLite tables and of text that is not UTF-8.
            SQLite tables are copied because DuckDB would have to download an extension.
        operation: Data operation that interrupts running queries when it ends.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, folder: Path, operation: DataOperation
    ) -> None:
        self.connection = connection
        self.operation = operation
        self.folder = folder
        self._relations: dict[DataTable, str] = {}

    def relation(self, table: DataTable) -> str:
        """Return a SQL table expression for the ``FROM`` clause of a query.

        Raises:
            ValidationError: The file cannot be read.
        """
        if table not in self._relations:
            path = quote_path(self.readable_path(table))
            name = f"table{len(self._relations)}"
            source = {
                "parquet": f"read_parquet({path}, hive_partitioning=false)",
                "json": f"read_json({path})",
            }.get(
                table.kind,
                f"read_csv({path}, all_varchar=true, null_padding=true, strict_mode=false,"
                f" {table.options})",
            )
            if table.kind == "parquet" or table.size > _MAX_IN_MEMORY_BYTES:
                name = source
            else:  # parse text only once; later queries take milliseconds
                self.query(f"CREATE TEMP TABLE {name} AS FROM {source}", label=table.label)
            self._relations[table] = name
        return self._relations[table]

    def readable_path(self, table: DataTable) -> Path:
        """Return the path of the table's file.

        If DuckDB cannot read the file, the path of a converted copy is returned.
        """
        target = self.folder / f"copy{len(self._relations)}.csv"
        if table.kind == "sqlite":
            self._export_sqlite(table, target)
            return target
        if table.encoding == "utf-8":
            return table.path
        decoder = codecs.getincrementaldecoder(table.encoding)(errors="replace")
        with table.path.open("rb") as file, target.open("w", encoding="utf-8", newline="") as out:
            while chunk := file.read(_CHUNK_BYTES):
                self.operation.raise_if_stopped()
                out.write(decoder.decode(chunk))
            out.write(decoder.decode(b"", final=True))
        return target

    def _export_sqlite(self, table: DataTable, target: Path) -> None:
        bounds = self.operation.limits
        limit = bounds.max_export_bytes(table.size)
        command = [
            sys.executable, "-I", "-S", sqlite_export.__file__, f"{table.path.as_uri()}?mode=ro",
            str(table.name), str(target), str(bounds.max_rows), str(limit),
        ]  # fmt: skip
        with subprocess.Popen(  # noqa: S603 - a file of this package, without a shell
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            try:
                with self.operation.on_stop(child.kill):
                    output, _ = child.communicate()
            finally:
                child.kill()
        self.operation.raise_if_stopped()
        # A process that was killed without a message ran out of memory.
        result = json.loads(output or '{"bound": "memory"}')
        if "error" in result:
            raise unreadable_file_error(table.label, result["error"])
        if "bound" in result:
            reached = {
                "rows": f"{bounds.max_rows:,} rows",
                "bytes": f"{limit:,} bytes of rows",
                "memory": f"{sqlite_export.MAX_MEMORY_BYTES:,} bytes of memory",
            }[result["bound"]]
            raise CapabilityError(
                f"The table {table.label!r} exceeds {reached}, the limit for a file of"
                f" {table.size:,} bytes.",
                fix="Check the definition of the view, or export the required rows as Parquet.",
                severity=ErrorSeverity.CRITICAL,
            )

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, label: str = "the data"
    ) -> list[tuple[Any, ...]]:
        """Run a SQL query and return all result rows.

        Raises:
            ValidationError: The file cannot be read.
            CapabilityError: The query failed for another reason or was stopped.
        """
        import duckdb

        self.operation.raise_if_stopped()
        try:
            return self.connection.execute(sql, dict(parameters or {})).fetchall()
        except duckdb.InterruptException as exc:
            self.operation.raise_if_stopped()
            raise CapabilityError(
                f"The query over {label} was interrupted.", fix="Send the request again."
            ) from exc
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.ConversionException) as e:
            raise unreadable_file_error(label, e) from e
        except duckdb.Error as exc:
            first_line = str(exc).strip().splitlines()[0]
            raise CapabilityError(
                f"The query over {label} failed in DuckDB: {first_line[:300]}",
                fix="Ask for fewer rows or columns, or raise 'memory_limit' in the settings.",
            ) from exc


@contextlib.contextmanager
def open_session(settings: Mapping[str, Any] | None = None) -> Iterator[DataSession]:
    """Open an in-memory DuckDB session with resource limits and without extension downloads.

    On exit, the session is closed and its temporary files are deleted.
    """
    duckdb_module = require_extra("duckdb", "data")
    work = current_operation(settings or {})
    with tempfile.TemporaryDirectory(prefix="capgraph-") as folder:
        options: dict[str, Any] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "preserve_insertion_order": "false",
            "memory_limit": work.limits.memory_limit,
            "temp_directory": folder,
            "max_temp_directory_size": f"{work.limits.max_spill_bytes}B",
        }
        with (
            contextlib.closing(duckdb_module.connect(":memory:", config=options)) as connection,
            work.on_stop(connection.interrupt),
        ):
            # A progress bar would corrupt protocols that use standard output.
            connection.execute("SET enable_progress_bar = false")
            yield DataSession(connection, Path(folder), work)
