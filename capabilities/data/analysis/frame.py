"""The rows of a data set, ready for statistics, and how its lines are called."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from capabilities.contexts import Dataset, Finding, Mark, Measure, TableResult
from capabilities.data.analysis.request import Request
from capabilities.data.relation import load
from capabilities.data.session import Session, literal
from capabilities.data.wording import date_text, signed, value_text

MAX_LINES = 12


@dataclass(frozen=True)
class Line:
    """One measure of one series.

    Attributes:
        measure: Number of the measure.
        series: Name of the series; ``None`` for all rows.
    """

    measure: int
    series: str | None = None

    @property
    def where(self) -> str:
        """SQL that keeps the rows of the line."""
        test = f"m = {self.measure}"
        return test if self.series is None else f"{test} AND s = {literal(self.series)}"


class Frame:
    """Rows, names and findings of one run of the statistics.

    Args:
        session: Where to compute.
        dataset: What to compute over.
        request: What is asked.
    """

    def __init__(self, session: Session, dataset: Dataset, request: Request) -> None:
        self.session = session
        self.dataset = dataset
        self.request = request
        self.findings: list[Finding] = []
        self.tables: list[TableResult] = []
        self.marks: list[Mark] = []
        self.notes: list[str] = []
        load(session, dataset)
        self.summed = self._should_sum()
        source = (
            "SELECT t, NULL AS s, m, sum(v) AS v, NULL AS l, 0 AS r, p FROM d GROUP BY t, m, p"
            if self.summed
            else "SELECT * FROM d"
        )
        session.query(f"CREATE OR REPLACE TEMP VIEW e AS {source}")
        self.stacked = self._is_stacked()

    def _should_sum(self) -> bool:
        """Amounts of several series add up, unless the question tells them apart."""
        data = self.dataset
        return (
            data.series_name not in (None, "file")
            and data.first is not None
            and not data.group_columns
            and not data.focus
            and all(measure.additive and measure.column for measure in data.measures)
            and not any(len(item.values) > 1 for item in data.parts[0].filters)
        )

    def _is_stacked(self) -> bool:
        """Whether one time has several rows of one line: orders of a day, deaths of a day."""
        if self.dataset.first is None:
            return False
        rows, times = self.query("SELECT count(*), count(DISTINCT (t, s)) FROM e WHERE m = 0")[0]
        return bool(rows > times)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL over the relations ``d`` (rows) and ``e`` (rows, series summed if they add up)."""
        return self.session.query(sql, label=self.dataset.parts[0].table.label)

    @property
    def series(self) -> list[str]:
        """The series to tell apart."""
        data = self.dataset
        if self.summed or data.series_name is None:
            return []
        asked = data.group_columns or any(len(item.values) > 1 for item in data.parts[0].filters)
        return [] if len(data.series) > MAX_LINES and not asked else data.series

    @property
    def lines(self) -> list[Line]:
        """Every measure of every series."""
        numbers = range(len(self.dataset.measures))
        if not self.series:
            return [Line(number) for number in numbers]
        return [Line(number, name) for number in numbers for name in self.series]

    def measure(self, line: Line) -> Measure:
        """The measure of a line."""
        return self.dataset.measures[line.measure]

    def name(self, line: Line) -> str:
        """How a line is called in a sentence."""
        measure = self.measure(line)
        series = line.series
        filters = self.dataset.parts[0].filters
        named = listed_filters(self.dataset)
        if not measure.column:
            unique = self.dataset.frequency and not (
                self.stacked or self.dataset.parts[0].label_column
            )
            noun = f"{self.dataset.frequency}s" if unique else "rows"
            return f"{noun} with {series}" if series else noun
        if series is not None:
            joint = "in" if self.dataset.series_name == "file" else "of"
            return f"{measure.label} {joint} {series}" + (f" ({named})" if named else "")
        if len(filters) == 1 and len(filters[0].values) == 1:
            value = filters[0].values[0]
            day = self.dataset.frequency in ("day", "hour") and filters[0].column not in (
                self.dataset.series_name or ""
            )
            plain = not day or not value.islower()
            return f"{measure.label} of {value}" if plain else f"{measure.label} ({named})"
        if self.summed:
            return f"{measure.label} (all {self.dataset.series_name} together)"
        return measure.label + (f" ({named})" if named else "")

    def value(self, line: Line, value: float, more: int = 0) -> str:
        """Write a value of a line; ``more`` decimals than the data for averages."""
        measure = self.measure(line)
        return value_text(value, min(measure.decimals + more, 4), measure.unit)

    def average(self, line: Line, value: float) -> str:
        """Write an average, one or two decimals finer than the data."""
        return self.value(line, value, self.finer(line, value))

    def finer(self, line: Line, value: float) -> int:
        """How many decimals more than the data an average deserves."""
        decimals = self.measure(line).decimals
        return 2 if decimals == 0 and abs(value) < 10 else max(0, min(1, 2 - decimals))

    def difference(self, line: Line, value: float, more: int = 0) -> str:
        """Write a difference with its sign."""
        measure = self.measure(line)
        return signed(value, min(measure.decimals + more, 4), measure.unit)

    def when(self, moment: datetime | None) -> str:
        """Write a moment with its preposition."""
        if moment is None:
            return ""
        text = date_text(moment, self.dataset.frequency)
        return f"{'on' if text[0].isdigit() and ' ' in text else 'in'} {text}"

    @property
    def period(self) -> str:
        """Which time the answers are about, in words; empty for the whole data."""
        time_range = self.dataset.time_range
        if time_range.whole:
            return ""
        label = time_range.label
        first = label.split()[0].lower()
        if first in ("in", "on", "at", "between", "from", "since", "before", "after", "until",
                     "during", "yesterday", "today", "by", "overnight", "nights"):  # fmt: skip
            return f" {label}"
        if time_range.endpoints and len(time_range.periods) == 1:
            return f" from {label}"
        if label[0].isdigit() and " to " in label:
            return f" from {label}"
        if label[0].isdigit() and " " in label and label.split()[1].isalpha():
            return f" on {label}"
        return f" in {label}"

    @property
    def percent_makes_sense(self) -> bool:
        """Whether ratios of the values mean anything; they do not for °C and °F."""
        return all(
            measure.unit not in ("°C", "°F") and measure.quantity != "temperature"
            for measure in self.dataset.measures
        )

    def add(self, kind: str, text: str, **values: Any) -> None:
        """Add an answer."""
        clean = {
            key: value.isoformat() if isinstance(value, datetime) else value
            for key, value in values.items()
        }
        self.findings.append(Finding(kind=kind, text=text, values=clean))

    def mark(self, line: Line, moment: datetime | None, value: float, text: str) -> None:
        """Point out a moment for the plot."""
        if moment is not None:
            name = line.series or self.measure(line).label
            self.marks.append(Mark(time=moment, value=value, text=text, line=name))


def listed_filters(dataset: Dataset) -> str:
    """Write the row filters of a data set.

    Returns:
        Such as ``weather = rain``; empty without filters.
    """
    part = dataset.parts[0]
    return ", ".join(
        f"{item.column} = {' or '.join(item.values)}"
        for item in part.filters
        if item.column not in part.series
    )


def capital(text: str) -> str:
    """Begin a sentence: upper first letter, but leave names of columns alone.

    >>> capital("the highest"), capital("temp_max rose")
    ('The highest', 'temp_max rose')
    """
    first = text.split(" ", 1)[0]
    return (
        text
        if "_" in first or any(char.isdigit() for char in first)
        else text[:1].upper() + text[1:]
    )
