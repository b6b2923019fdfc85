"""A private DuckDB over the user's files: what is open, what may be read, how it is stopped."""

from __future__ import annotations

import codecs
import contextlib
import glob
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capabilities.contexts import TableRef
from capabilities.data import sqlite_rows
from capabilities.data.folders import check_folder
from capabilities.data.work import Work, current_work
from framework.base import CapabilityError, ErrorSeverity, ValidationError, require_extra

if TYPE_CHECKING:
    import duckdb

_CHUNK = 1 << 20
_INTO_MEMORY = 100 * 1024**2


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


def path_literal(path: str | Path) -> str:
    """Quote a path for DuckDB, which takes brackets and stars for a pattern.

    >>> path_literal("sales[1].csv")
    "'sales[[]1].csv'"
    """
    return literal(glob.escape(str(path)))


def unreadable(name: str, exc: object) -> ValidationError:
    """Return the error of a file that is no readable table."""
    first_line = (str(exc).strip().splitlines() or ["unknown reason"])[0]
    return ValidationError(
        f"The data file {name!r} cannot be read: {first_line[:300]}",
        fix="Check that it is a table with one header line and the same columns in every row.",
    )


@contextlib.contextmanager
def connect(folder: Path, work: Work) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an in-memory DuckDB that never downloads anything and stays within its bounds."""
    duckdb_module = require_extra("duckdb", "data")
    options: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "preserve_insertion_order": "false",
        "memory_limit": work.bounds.memory,
        "temp_directory": str(folder),
        "max_temp_directory_size": f"{work.bounds.spill_bytes}B",
    }
    connection = duckdb_module.connect(":memory:", config=options)
    try:
        with work.interrupting(connection.interrupt):
            yield connection
    finally:
        connection.close()


class Session:
    """A DuckDB connection and the tables that were opened in it.

    Args:
        connection: The connection.
        folder: For copies that DuckDB can read: of databases (its reader for them is an extension
            that would have to be downloaded) and of text in other encodings.
        work: What stops it.
        settings: Settings of the capability; ``data_folders`` says what may be read.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        folder: Path,
        work: Work,
        settings: Mapping[str, Any],
    ) -> None:
        self.connection = connection
        self.work = work
        self.settings = settings
        self.folder = folder
        self._relations: dict[tuple[str, str | None], str] = {}

    def relation(self, table: TableRef) -> str:
        """Return SQL that stands for the table after FROM.

        Raises:
            ValidationError: The file may not be read, or cannot be.
        """
        key = (table.path, table.table)
        if key not in self._relations:
            # The description of a table comes out of the state, which a caller can write.
            check_folder(table.path, self.settings)
            self._relations[key] = self._open(table)
        return self._relations[key]

    def _open(self, table: TableRef) -> str:
        if table.kind == "parquet":
            return f"read_parquet({path_literal(table.path)}, hive_partitioning=false)"
        number = len(self._relations)
        source = self._source(table, number)
        if table.size > _INTO_MEMORY:
            return source
        # Text is parsed once; every later query is then a matter of milliseconds.
        name = f"table{number}"
        self.query(f"CREATE TEMP TABLE {name} AS SELECT * FROM {source}", label=table.label)  # noqa: S608
        return name

    def _source(self, table: TableRef, number: int) -> str:
        path = Path(table.path)
        if table.kind == "json":
            return f"read_json({path_literal(path)})"
        if table.kind == "sqlite":
            target = self._spool(table, self.folder / f"copy{number}.csv")
            return (
                f"read_csv({path_literal(target)}, delim=',', quote='\"', header=true,"
                " all_varchar=true, null_padding=true)"
            )
        if table.encoding != "utf-8":
            path = transcode(path, table.encoding, self.folder / f"copy{number}.csv", self.work)
        named = ""
        if table.names:
            named = f", names=[{', '.join(literal(name) for name in table.names)}]"
        return (
            f"read_csv({path_literal(path)}, delim={literal(table.delimiter)},"
            f" quote={literal(table.quote)}, escape={literal(table.escape)}, header={str(table.header).lower()},"
            f" skip={table.skip}, all_varchar=true, null_padding=true, strict_mode=false{named})"
        )

    def _spool(self, table: TableRef, target: Path) -> Path:
        bounds = self.work.bounds
        limit = bounds.spooled(table.size)
        command = [
            sys.executable, "-I", "-S", sqlite_rows.__file__,
            f"{Path(table.path).as_uri()}?mode=ro", table.table or "", str(target),
            str(bounds.rows), str(limit),
        ]  # fmt: skip
        with subprocess.Popen(  # noqa: S603 - our own file, its arguments as a list
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            try:
                with self.work.interrupting(child.kill):
                    said, _ = child.communicate()
            finally:
                child.kill()
        self.work.check()
        try:
            result = json.loads(said)
        except ValueError:
            result = {"bound": "memory"}  # the process did not live to say anything
        if "bound" in result:
            reached = {
                "rows": f"more than {bounds.rows:,} rows",
                "bytes": f"more than {limit:,} bytes of rows",
                "memory": f"more than {sqlite_rows.MEMORY:,} bytes of memory",
            }[result["bound"]]
            raise CapabilityError(
                f"{table.label!r} needs {reached}; that is the limit for a file of"
                f" {table.size:,} bytes.",
                fix="Check the view, or export what is needed as Parquet.",
                severity=ErrorSeverity.CRITICAL,
            )
        if "error" in result:
            raise unreadable(table.label, result["error"])
        return target

    def columns(self, table: TableRef) -> list[tuple[str, str]]:
        """Return names and DuckDB types of the columns.

        Raises:
            ValidationError: The file cannot be read as a table, or has too many columns.
        """
        rows = self.query(f"DESCRIBE SELECT * FROM {self.relation(table)}", label=table.label)  # noqa: S608
        if len(rows) > self.work.bounds.columns:
            raise ValidationError(
                f"{table.label} has {len(rows):,} columns; the limit is"
                f" {self.work.bounds.columns:,}.",
                fix="Give a file with the columns that are needed, or raise 'max_columns'.",
            )
        return [(row[0], row[1]) for row in rows]

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, label: str = "the data"
    ) -> list[tuple[Any, ...]]:
        """Run a query.

        Raises:
            ValidationError: The file under it cannot be read.
            CapabilityError: The query fails for another reason, or was stopped.
        """
        import duckdb

        self.work.check()
        try:
            return self.connection.execute(sql, dict(parameters or {})).fetchall()
        except duckdb.InterruptException as exc:
            self.work.check()
            raise CapabilityError(
                f"The query over {label} was interrupted.", fix="Ask again."
            ) from exc
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.ConversionException) as e:
            raise unreadable(label, e) from e
        except duckdb.Error as exc:
            first_line = str(exc).strip().splitlines()[0]
            raise CapabilityError(
                f"DuckDB could not compute over {label}: {first_line[:300]}",
                fix="Ask for fewer rows or columns, or raise 'memory_limit' in the settings.",
            ) from exc


def transcode(source: Path, encoding: str, target: Path, work: Work) -> Path:
    """Write a text file again as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    with source.open("rb") as file, target.open("w", encoding="utf-8", newline="") as out:
        while chunk := file.read(_CHUNK):
            work.check()
            out.write(decoder.decode(chunk))
        out.write(decoder.decode(b"", final=True))
    return target


@contextlib.contextmanager
def open_session(settings: Mapping[str, Any] | None = None) -> Iterator[Session]:
    """Open a session; closes it and removes its temporary files at the end."""
    settings = settings or {}
    work = current_work(settings)
    with tempfile.TemporaryDirectory(prefix="capgraph-") as name:
        folder = Path(name)
        with connect(folder, work) as connection:
            yield Session(connection, folder, work, settings)
