"""Files of many formats and layouts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import pytest

from capgraph.base import ValidationError
from capgraph.capabilities.data.answer import answer_query, answer_question
from capgraph.capabilities.data.files import find_file, list_tables
from capgraph.capabilities.data.session import open_session
from capgraph.capabilities.query import Query


def answer(question: str, *files: Path, **settings: object) -> str:
    names = [str(file) for file in files]
    settings |= {"data_folders": names}
    return answer_question(names, question, None, [], settings).get_summary()


def computed(file: Path, **query: object) -> str:
    settings = {"data_folders": [str(file)]}
    return answer_query([str(file)], Query.model_validate(query), None, settings).get_summary()


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def test_semicolons_decimal_commas_and_dotted_dates(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "d.csv",
        "Datum;Größe (m);Temp °C\n01.02.2015;1,5;12,25\n02.02.2015;1.234,5;13,75\n",
    )

    assert "was 13 °C" in answer("mean Temp °C", file)
    assert "1234.5 m, on 2 February 2015" in answer("highest Größe", file)


def test_a_first_line_of_names_and_years_is_a_header(tmp_path: Path) -> None:
    file = write(tmp_path, "b.csv", "Office,2021,2022\nRoads,5,7\nParks,2,3\n")

    assert "was 10" in computed(file, aggregate="sum", value="2022")
    assert "Parks: 1" in computed(file, aggregate="rows", group_by=["Office"])


def test_named_items_are_shown_with_their_dates(tmp_path: Path) -> None:
    file = write(
        tmp_path, "s.csv", "name,hired,pay_k_eur,load_kW\nAda,2015-01-31,40,1\nBo,2016-02-01,50,2\n"
    )

    highest = answer("highest pay", file)

    assert "name Bo" in highest
    assert "EUR." not in highest  # for these are thousands
    assert "was 1500 W" in answer("mean load in W", file)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    file = write(tmp_path, "e.csv", "day,größe\n2015-01-01,3\n2015-01-02,5\n", encoding)

    assert "was 4" in answer("mean größe", file)


@pytest.mark.parametrize(
    ("header", "rows", "when"),
    [
        ("ts,power_kw", ["1420070400,3", "1420074000,4.5"], "1 January 2015 at 01:00"),
        ("timestamp,power_kw", ["1420070400000,3", "1420074000000,4.5"], "1 January 2015 at 01:00"),
        ("year,power_kw", ["1999,3", "2000,4.5", "2001,1"], "2000"),
        ("when,power_kw", ["Jan 1 2000,3", "Feb 1 2000,4.5"], "February 2000"),
        ("month,power_kw", ["2000-01,3", "2000-02,4.5"], "February 2000"),
        ("date,power_kw", ["01/02/2015,3", "02/02/2015,4.5", "13/02/2015,1"], "2 February 2015"),
        ("date,hour,power_kw", ["2015-01-01,0,3", "2015-01-01,1,4.5"], "1 January 2015 at 01:00"),
        ("Year,Month,Day,power_kw", ["2001,1,1,3", "2001,1,2,4.5"], "2 January 2001"),
        ("time,power_kw", ["2015-01-01T00:00:00Z,3", "2015-01-01T01:00:00Z,4.5"], "at 01:00"),
        (
            "time,power_kw",
            ["2015-01-01T00:00:00+02:00,3", "2015-01-01T01:00:00+02:00,4.5"],
            "23:00",
        ),
        ("quarter,power_kw", ["2015-Q1,3", "2015-Q2,4.5"], "Q2 2015"),
        ("date,power_kw", ["20150101,3", "20150102,4.5"], "2 January 2015"),
    ],
)
def test_time_formats(tmp_path: Path, header: str, rows: list[str], when: str) -> None:
    file = write(tmp_path, "t.csv", "\n".join([header, *rows]) + "\n")

    text = answer("highest power", file)

    assert "4.5 kW" in text
    assert when in text


def test_numbers_with_signs_gaps_and_separators(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "n.csv",
        'date,revenue,rate\n2015-01-01,"$1,000",5%\n2015-01-02,"$1,200",NA\n2015-01-03,,7%\n',
    )

    assert "2200" in answer("total revenue", file)
    assert "was 6" in answer("mean rate", file)


def test_sqlite_with_several_tables_and_an_odd_column_name(tmp_path: Path) -> None:
    path = tmp_path / "plant.db"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE pumps (day TEXT, "flow ""rate"" (l/s)" REAL)')
        connection.executemany(
            "INSERT INTO pumps VALUES (?, ?)", [("2020-01-01", 2.5), ("2020-01-02", 4)]
        )
        connection.execute("CREATE TABLE people (name TEXT, age INTEGER)")
        connection.executemany("INSERT INTO people VALUES (?, ?)", [("Ada", 36), ("Bo", 40)])
    connection.close()

    assert "4.0 l/s, on 2 January 2020" in answer("highest flow rate", path)
    assert "40, name Bo" in answer("highest age", path)


def test_parquet_and_json(tmp_path: Path) -> None:
    parquet, json = tmp_path / "p.parquet", tmp_path / "j.json"
    rows = (
        "SELECT * FROM (VALUES (DATE '2020-01-01', 1.5), (DATE '2020-01-02', 2.5)) AS t(day, load)"
    )
    duckdb.sql(f"COPY ({rows}) TO '{parquet}' (FORMAT parquet)")
    json.write_text('[{"day": "2020-01-01", "load": 1.5}, {"day": "2020-01-02", "load": 2.5}]')

    assert "2.5, on 2 January 2020" in answer("peak load", parquet)
    assert "2.5, on 2 January 2020" in answer("peak load", json)


def test_a_million_rows_stay_out_of_the_result(tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    duckdb.sql(
        "COPY (SELECT TIMESTAMP '2000-01-01' + to_minutes(i) AS time, i % 977 AS load"
        f" FROM range(1000000) t(i)) TO '{path}'"
    )
    result = answer_question([str(path)], "average load", None, [], {"data_folders": [str(path)]})

    assert len(result.model_dump_json()) < 5000
    assert "487.88" in result.get_summary()


def test_names_are_quoted_and_values_bound(tmp_path: Path) -> None:
    name = 'x"; DROP TABLE d; --'
    quoted = name.replace('"', '""')
    file = write(tmp_path, "i.csv", f'"day","{quoted}",kind\n2020-01-01,1,a\n2020-01-02,3,b\n')

    assert "was 2." in computed(file, aggregate="mean", value=name)
    with pytest.raises(ValidationError, match="O'Brien"):
        computed(
            file,
            aggregate="rows",
            where=[{"column": "kind", "op": "=", "value": "O'Brien' OR 1=1"}],
        )


def test_without_a_time_column_a_time_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "c.csv", "city,size\nOslo,7\nRome,28\n")

    assert "28, city Rome" in answer("largest size", file)
    with pytest.raises(ValidationError, match=r"no column with dates.*city, size"):
        answer("largest size in 2015", file)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\x00\x01\x02\x03" * 50, "not a readable"), (None, "does not exist")],
)
def test_unusable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_bytes(content)

    with open_session() as session, pytest.raises(ValidationError, match=message):
        list_tables(session, find_file(str(path), {"data_folders": [str(tmp_path)]}))


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "l.csv", "a,b\n" + "1,2\n" * 100)

    with pytest.raises(ValidationError, match="max_file_bytes"):
        answer("mean a", file, max_file_bytes=100)


def test_packaged_files_by_name() -> None:
    assert find_file("vega:seattle-weather", {}).name == "seattle-weather.csv"
    with pytest.raises(ValidationError, match=r"seattle-weather\.csv"):
        find_file("vega:../secrets", {})
