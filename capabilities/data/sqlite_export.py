"""Script that exports a SQLite table to CSV in a separate process.

A view can compute forever, and sorting it can fill memory or disk, but a process has limits and can
be killed. The module imports only the standard library, so that the process starts quickly.

    python -I -S sqlite_export.py DATABASE TABLE TARGET MAX_ROWS MAX_BYTES
"""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
import sys
from collections import Counter
from typing import Any

MAX_MEMORY_BYTES = 1024**3
MAX_VALUE_BYTES = 16 * 1024**2


def distinct_names(names: list[str]) -> list[str]:
    """Make column names unique by appending the column position to duplicates.

    >>> distinct_names(["day", "price", "Price"])
    ['day', 'price (column 2)', 'Price (column 3)']
    """
    counts = Counter(name.strip().casefold() for name in names)
    return [
        f"{name} (column {position})" if counts[name.strip().casefold()] > 1 else name
        for position, name in enumerate(names, 1)
    ]


class _LimitReachedError(Exception):
    """Raised if the export of a SQLite table reaches a limit, which the argument names."""


class _SizeLimitedFile:
    """Text file that raises an error when its content exceeds the maximum size."""

    def __init__(self, file: Any, max_chars: int) -> None:
        self._file = file
        self._left = max_chars

    def write(self, text: str) -> int:
        self._left -= len(text)
        if self._left < 0:
            raise _LimitReachedError("bytes")
        written: int = self._file.write(text)
        return written


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def main(database: str, table: str, target: str, max_rows: int, max_bytes: int) -> dict[str, str]:
    """Export a SQLite table to a CSV file within size and memory limits.

    Args:
        database: URI of the SQLite database.
        table: Table or view to export.
        target: Path of the CSV file.
        max_rows: Maximum number of rows.
        max_bytes: Maximum size of the CSV file in bytes.

    Returns:
        The error, or the limit that was reached. The dictionary is empty if the export
            succeeded.
    """
    _limit_memory()
    name = '"' + table.replace('"', '""') + '"'
    try:
        with (
            contextlib.closing(sqlite3.connect(database, uri=True)) as connection,
            open(target, "w", newline="", encoding="utf-8") as file,
        ):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            # Sort in memory, which is limited, instead of on disk.
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            writer = csv.writer(_SizeLimitedFile(file, max_bytes), quoting=csv.QUOTE_MINIMAL)
            rows = connection.execute(f"SELECT * FROM {name}")  # noqa: S608 - quoted above
            writer.writerow(distinct_names([column[0] for column in rows.description]))
            for number, row in enumerate(rows, 1):
                if number > max_rows:
                    raise _LimitReachedError("rows")
                writer.writerow(row)
    except _LimitReachedError as exc:
        return {"bound": str(exc)}
    except MemoryError:
        return {"bound": "memory"}
    except (sqlite3.Error, OSError) as exc:
        return {"error": str(exc)}
    return {}


if __name__ == "__main__":
    _, _database, _table, _target, _rows, _bytes = sys.argv
    sys.stdout.write(json.dumps(main(_database, _table, _target, int(_rows), int(_bytes))))
