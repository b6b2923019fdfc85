"""Measure how many questions about data files are answered without a model.

    python -m tests.benchmarks.data_questions --data DIR [--part tuning|test|fresh|all] [-v]

``data_questions.txt`` lists a table, a question in natural words, and SQL that computes the
expected values, or ``refuse`` if the table does not contain the answer. An answer is right if its
text contains every expected value (one of them for a list) to the precision that it shows.

The tables come from the package ``vega-datasets`` and from ``DIR/questions/data.tar.xz``; by default,
``DIR`` is ``$CAPGRAPH_DATA``, or else ``../shared/data``. Questions of absent tables are skipped.

The digest of a question decides whether it belongs to the tuning part or to the test part.
The rules were tuned on the tuning part. Four wrong answers of the test part were then corrected.
Nothing was tuned on the part ``fresh``, except that one wrong answer was corrected after the
measurement that the documentation states.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from capgraph.base import CapgraphError
from capgraph.capabilities.data.answer import answer_question
from capgraph.capabilities.formatting import date_text

_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
_GERMAN = "read_csv('{file}', delim=';', header=false, skip=1, all_varchar=true)"
_PLAIN = "read_csv('{file}', header=false, skip=1, nullstr=['', 'NA', 'n/a', '-'])"
_SQL = {
    "stocks.csv": "SELECT symbol, strptime(date, '%b %-d %Y')::DATE AS date, price"
    " FROM read_csv('{file}', types={{'date': 'VARCHAR'}})",
    "P-101_log.csv": "SELECT column0 AS ts, column1 AS flow, column2 AS pressure, column3 AS temp"
    f" FROM {_PLAIN}",
    "buoy.csv": f"SELECT column0::TIMESTAMP AS ts, column1 AS temp FROM {_PLAIN}",
    "umsatz.csv": "SELECT column0 AS m, split_part(column0, ' ', 2)::INT AS year, list_position("
    f"string_split('{_MONTHS}', ' '), split_part(column0, ' ', 1)) AS month, column1 AS Filiale,"
    " replace(replace(column2, '.', ''), ',', '.')::DOUBLE AS Umsatz, column3::INT AS Kunden"
    f" FROM {_GERMAN}",
    "heizung.csv": "SELECT strptime(column0, '%d.%m.%Y')::DATE AS d,"
    " replace(column1, ',', '.')::DOUBLE AS verbrauch, replace(column2, ',', '.')::DOUBLE AS temp"
    f" FROM {_GERMAN}",
}  # fmt: skip
"""SQL that reads a table whose format DuckDB does not detect."""
_NUMBER = re.compile(
    r"[-\u2212]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-\u2212]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
)


def questions() -> Iterator[tuple[str, str, str, str]]:
    """Yield the part, the table, the question, and the SQL of each question."""
    is_fresh = False
    for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            is_fresh = "fresh" in line
        elif line.strip():
            table, question, sql = line.split(" | ", 2)
            is_test = hashlib.sha1(question.encode(), usedforsecurity=False).digest()[0] % 2
            part = "fresh" if is_fresh else "test" if is_test else "tuning"
            yield part, table, question, sql


def expected_values(file: Path, sql: str) -> tuple[Any, ...]:
    """Return the row that the SQL of a question computes."""
    import duckdb

    source = _SQL.get(file.name, "FROM '{file}'").format(file=file)
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW t AS {source}")
        return connection.execute(sql).fetchone() or ()


def contains(text: str, expected: Any) -> bool:
    """Return True if an answer contains an expected value, or one of a list."""
    if isinstance(expected, list):
        return any(contains(text, one) for one in expected if one is not None)
    if isinstance(expected, date | datetime):
        return date_text(datetime(expected.year, expected.month, expected.day)) in text
    if isinstance(expected, str):
        return re.search(rf"(?<!\w){re.escape(expected.lower())}(?!\w)", text.lower()) is not None
    return any(_is_near(match[0], float(expected)) for match in _NUMBER.finditer(text))


def _is_near(shown: str, expected: float) -> bool:
    plain = shown.replace(",", "").replace("\u2212", "-")
    rounding = 0.5 * 10 ** -len(plain.partition(".")[2]) if "." in plain else 0.5
    tolerance = max(0.003 * abs(expected), min(rounding, 0.02 * abs(expected)))
    # "3 lower" states a negative change without its sign.
    return abs(abs(float(plain)) - abs(expected)) <= tolerance + 1e-12


def verdict(file: Path, question: str, sql: str) -> tuple[str, str]:
    """Return ``right``, ``refused`` or ``wrong``, and the answer."""
    try:
        result = answer_question([str(file)], question, None, (), {"data_folders": [str(file)]})
    except CapgraphError as error:
        return ("right" if sql == "refuse" else "refused"), str(error)
    text = " ".join(answer.text for answer in result.answers)
    if text.startswith("There are no rows"):
        return ("right" if sql == "refuse" else "refused"), text
    if sql == "refuse":
        return "wrong", text
    values = expected_values(file, sql)
    return ("right" if all(contains(text, value) for value in values) else "wrong"), text


def main() -> None:
    """Print the share of right, refused, and wrong answers."""
    parser = argparse.ArgumentParser(description="Measure answers to questions about data.")
    default = os.environ.get("CAPGRAPH_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder of the data sets")
    parser.add_argument("--part", choices=("tuning", "test", "fresh", "all"), default="all")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what is not right")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        archive = options.data / "questions" / "data.tar.xz"
        if archive.is_file():
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        vega = Path(str(files("vega_datasets"))) / "_data"
        for part, table, question, sql in questions():
            found = [p for p in (vega / table, Path(folder, "data", table)) if p.is_file()]
            if options.part not in (part, "all") or not found:
                continue
            kind, text = verdict(found[-1], question, sql)
            counts.setdefault(part, Counter())[kind] += 1
            if options.verbose and kind != "right":
                print(f"{kind} {table}: {question}\n    {text[:200]}")
    for part, counter in counts.items():
        total = counter.total()
        shares = ", ".join(f"{kind} {100 * n / total:.1f} %" for kind, n in counter.most_common())
        print(f"{part}: {total} questions, {shares}")
    sys.exit(not counts)


if __name__ == "__main__":
    main()
