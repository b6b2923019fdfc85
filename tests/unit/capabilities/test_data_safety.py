"""Malicious and malformed files are limited, refused, or reported."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from capgraph.base import CapabilityError, ErrorSeverity, ValidationError
from capgraph.capabilities.data.cell_formats import number_sql, time_sql
from capgraph.capabilities.data.files import find_file
from capgraph.capabilities.data.profile import TableProfile
from capgraph.capabilities.data.schema import read_tables
from capgraph.capabilities.data.session import open_session, quote_identifier
from capgraph.capabilities.data.thread_pool import DataThreadPool, classify_data_error

ENDLESS = "CREATE VIEW endless AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
SILENT = f"{ENDLESS} SELECT n FROM c WHERE n < 0"
FLOOD = f"{ENDLESS} SELECT n, hex(zeroblob(500)) AS filler FROM c"
SORTED = f"{ENDLESS} SELECT n, hex(zeroblob(500)) AS filler FROM c ORDER BY n DESC"


def database(folder: Path, *statements: str) -> Path:
    path = folder / "small.sqlite"
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def profiles(*files: Path | str, **settings: Any) -> list[TableProfile]:
    settings = {"data_folders": [str(file) for file in files], **settings}
    with open_session(settings) as session:
        return read_tables(session, [str(file) for file in files], settings)


def write(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def numbers(file: Path, column: str) -> list[float | None]:
    settings = {"data_folders": [str(file)]}
    with open_session(settings) as session:
        (profile,) = read_tables(session, [str(file)], settings)
        found = next(c for c in profile.columns if c.name == column)
        value = number_sql(found.number_format, quote_identifier(column))
        rows = session.query(f"SELECT {value} FROM {session.relation(profile.table)}")
        return sorted((row[0] for row in rows), key=lambda value: (value is None, value))


class TestEndlessFile:
    async def test_reading_stops_at_the_time_limit(self, tmp_path: Path) -> None:
        path = database(tmp_path, SILENT)

        with pytest.raises(CapabilityError, match=r"longer than 0\.3 s") as raised:
            await DataThreadPool().run({"max_seconds": 0.3}, profiles, path)

        assert raised.value.severity is ErrorSeverity.CRITICAL

    async def test_reading_stops_when_the_step_is_cancelled(self, tmp_path: Path) -> None:
        path = database(tmp_path, SILENT)
        began, ended = threading.Event(), threading.Event()

        def read() -> None:
            began.set()
            try:
                profiles(path)
            finally:
                ended.set()

        task = asyncio.create_task(DataThreadPool().run({}, read))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await asyncio.to_thread(ended.wait, 60)

    async def test_duckdb_queries_stop_at_the_time_limit(self) -> None:
        def endless() -> None:
            with open_session() as session:
                session.query("SELECT count(*) FROM range(1e9::BIGINT) a, range(1e9::BIGINT) b")

        with pytest.raises(CapabilityError, match="longer than"):
            await DataThreadPool().run({"max_seconds": 0.3}, endless)

    async def test_the_event_loops_default_threads_stay_free(self, tmp_path: Path) -> None:
        path = database(tmp_path, SILENT)
        tasks = [asyncio.create_task(DataThreadPool().run({}, profiles, path)) for _ in range(40)]
        await asyncio.sleep(0)

        assert await asyncio.to_thread(lambda: "free") == "free"

        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}

    def test_a_timeout_is_not_retried(self) -> None:
        found = classify_data_error(TimeoutError("too long"), {"capability": "query_data"})

        assert found.severity is ErrorSeverity.CRITICAL


class TestCachedFile:
    async def test_a_file_is_profiled_once_until_it_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from capgraph.capabilities.data import schema

        looked: list[str] = []
        profile_table = schema.profile_table

        def counted(*args: Any) -> TableProfile:
            looked.append(args[1].label)
            return profile_table(*args)

        monkeypatch.setattr(schema, "profile_table", counted)
        path, workers = write(tmp_path, "a\n1\n"), DataThreadPool()
        await workers.run({}, profiles, path)
        (again,) = await workers.run({}, profiles, path)
        write(tmp_path, "a\n1\n22\n")
        (changed,) = await workers.run({}, profiles, path)

        assert looked == ["data.csv", "data.csv"]
        assert (again.rows, changed.rows) == (1, 2)


class TestLargeFile:
    @pytest.mark.parametrize(
        ("settings", "limit"),
        [({"max_rows": 1000}, "exceeds 1,000 rows"), ({}, "67,108,864 bytes of rows")],
    )
    def test_rows_and_bytes_are_limited(
        self, tmp_path: Path, settings: dict[str, Any], limit: str
    ) -> None:
        path = database(tmp_path, FLOOD)

        with pytest.raises(CapabilityError, match=limit):
            profiles(path, **settings)

    def test_sorting_fills_neither_memory_nor_disk(self, tmp_path: Path) -> None:
        path = database(tmp_path, SORTED)

        with pytest.raises((CapabilityError, ValidationError), match="memory"):
            profiles(path)

    def test_the_column_list_of_ten_thousand_columns_stays_short(self, tmp_path: Path) -> None:
        names = [f"column_{number}" for number in range(10_000)]
        path = write(tmp_path, "\n".join(",".join(line) for line in (names, ["1"] * 10_000)))

        (profile,) = profiles(path)

        assert len(profile.columns) == 10_000
        assert len(profile.column_list()) < 1000
        assert "and 9,960 more" in profile.column_list()
        with pytest.raises(ValidationError, match="limit is 500"):
            profiles(path, max_columns=500)

    def test_only_the_first_text_columns_are_tried_as_dates(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from capgraph.capabilities.data import cell_formats

        tried: list[str] = []
        monkeypatch.setattr(cell_formats, "_parse_time", lambda fmt, value: tried.append(fmt))
        line = ",".join(["a5"] * 3000)
        head = ",".join(f"column_{number}" for number in range(3000))
        path = write(tmp_path, "\n".join([head, *[line] * 30]))

        (profile,) = profiles(path)

        assert len(profile.columns) == 3000
        assert len(tried) < 200 * 2000


class TestFileAccess:
    @pytest.mark.parametrize("name", ["a" * 5000, "a/" * 3000, "\0.csv", "\ud800.csv"])
    def test_impossible_names_do_not_reveal_the_folder(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValidationError) as caught:
            find_file(name, {"data_folders": [str(tmp_path)]})
        assert str(tmp_path) not in str(caught.value)

    def test_without_data_folders_no_file_is_readable(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a\n1\n")

        with pytest.raises(ValidationError, match="outside the folders"):
            find_file(str(path), {})

    def test_links_are_resolved_before_the_access_check(self, tmp_path: Path) -> None:
        secret = write(tmp_path, "a\n1\n", "secret.csv")
        (tmp_path / "open").mkdir()
        link = tmp_path / "open" / "data.csv"
        link.symlink_to(secret)
        settings = {"data_folders": [str(tmp_path / "open")]}

        for name in (str(link), str(tmp_path / "open" / ".." / "secret.csv")):
            with pytest.raises(ValidationError, match="outside the folders"):
                find_file(name, settings)

    def test_the_error_does_not_reveal_whether_a_file_exists(self, tmp_path: Path) -> None:
        write(tmp_path, "a\n1\n", "there.csv")
        settings = {"data_folders": [str(tmp_path / "open")]}
        messages = []
        for name in ("there.csv", "gone.csv"):
            with pytest.raises(ValidationError) as raised:
                find_file(str(tmp_path / name), settings)
            messages.append(str(raised.value).replace(name, "NAME"))

        assert messages[0] == messages[1]

    def test_an_error_does_not_list_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "a\n1\n", "payroll.csv")

        with pytest.raises(ValidationError) as raised:
            find_file(str(tmp_path / "x.csv"), {"data_folders": [str(tmp_path)]})

        assert "payroll" not in str(raised.value)


class TestParsedValues:
    def test_brackets_in_a_file_name_are_not_a_pattern(self, tmp_path: Path) -> None:
        write(tmp_path, "amount\n999\n", "sales1.csv")
        path = write(tmp_path, "amount\n1\n2\n", "sales[1].csv")

        assert numbers(path, "amount") == [1, 2]

    def test_written_numbers_are_parsed(self, tmp_path: Path) -> None:
        plain = "".join(f"{number}\n" for number in range(1, 41))
        path = write(tmp_path, f'amount\n{plain}"1,250.00"\n$990\n(900)\n')

        found = numbers(path, "amount")

        assert len(found) == 43
        assert found[0] == -900
        assert found[-2:] == [990, 1250]

    def test_written_dates_are_parsed(self, tmp_path: Path) -> None:
        days = "".join(f"2024-01-{day:02d},1\n" for day in range(1, 31))
        path = write(tmp_path, f"day,x\n{days}1 Mar 2024,5\n")

        (profile,) = profiles(path)

        assert profile.last is not None
        assert profile.last.isoformat() == "2024-03-01T00:00:00"

    def test_unreadable_values_are_counted_and_named(self, tmp_path: Path) -> None:
        rows = "".join(f"2024-01-{day:02d},{day}\n" for day in range(1, 29))
        path = write(tmp_path, f"day,x\n{rows}soon,7\n2024-02-01,broken\n")

        (profile,) = profiles(path)

        assert profile.unreadable_notes(["x"]) == [
            "1 value of day in data.csv ('soon') cannot be read as a date and is not counted",
            "1 value of x in data.csv ('broken') cannot be read as a number and is not counted",
        ]

    def test_equal_column_names_get_their_position(self, tmp_path: Path) -> None:
        path = write(tmp_path, "day,price,Price\n2024-01-01,1,2\n2024-01-02,3,4\n")

        (profile,) = profiles(path)

        assert [c.name for c in profile.columns] == ["price (column 2)", "Price (column 3)"]

    def test_the_encoding_is_detected_from_the_whole_file(self, tmp_path: Path) -> None:
        plain = b"".join(b"%d,Oslo\n" % number for number in range(300_000))
        path = write(tmp_path, b"x,city\n" + plain + "300001,Köln\n".encode("latin-1"))

        (profile,) = profiles(path)

        assert profile.columns[1].values == ("Köln", "Oslo")

    @pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
    def test_utf16_without_a_byte_order_mark(self, tmp_path: Path, encoding: str) -> None:
        path = write(tmp_path, "x,city\n1,Köln\n2,Oslo\n".encode(encoding))

        (profile,) = profiles(path)

        assert profile.columns[1].values == ("Köln", "Oslo")

    def test_windows_1252_quotes_and_euro_signs(self, tmp_path: Path) -> None:
        path = write(tmp_path, "x,note\n1,5 €\n2,“so”\n".encode("cp1252"))

        (profile,) = profiles(path)

        assert "“so”" in profile.columns[1].values


def test_sql_and_the_profile_agree_on_times(tmp_path: Path) -> None:
    path = write(tmp_path, "day,x\n2024-01-05,1\n2024-01-04,2\n")
    settings = {"data_folders": [str(path)]}
    with open_session(settings) as session:
        (profile,) = read_tables(session, [str(path)], settings)
        assert profile.time is not None
        table = session.relation(profile.table)
        rows = session.query(f"SELECT max({time_sql(profile.time)}) FROM {table}")
    assert rows[0][0] == profile.last
