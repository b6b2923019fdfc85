"""Context types that the data capabilities exchange.

All types are small, plain data. The state contains answers but never the rows of a file.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from capgraph.base import CapabilityContext
from capgraph.capabilities.periods.expressions import DataWindow, Period
from capgraph.capabilities.query import Query


class _StrictModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class DataSource(CapabilityContext):
    """Data files that a question refers to, supplied by the caller.

    ``vega:NAME`` refers to a file of the ``vega_datasets`` package.

    >>> DataSource(files=["measurements.csv"]).get_summary()
    'Data: measurements.csv.'
    """

    CONTEXT_TYPE: ClassVar[str] = "DATA_SOURCE"
    CONTEXT_CATEGORY: ClassVar[str] = "METADATA"

    files: list[str] = Field(min_length=1)

    def get_summary(self) -> str:
        """Return the file names as a sentence."""
        return f"Data: {', '.join(Path(file).name for file in self.files)}."


class TimeRange(CapabilityContext):
    """Time range of a question: periods, and recurring times such as months or weekdays.

    Attributes:
        label: Description of the whole range in words.
        periods: Periods in the order of the question. An empty list means all data.
        endpoints: For one range "from A to B", A and B as separate periods.
        months: Months of any year to include (1 to 12).
        days: Days of any year to include, as ``MM-DD``.
        weekdays: Days of the week to include; 0 is Monday.
        hours: Hours of the day to include.
        window: First or last part of the time that the data covers.
        timezone: Time zone in which relative expressions were resolved.
        read_from: Text that contains the time expressions; empty if the caller supplied the range.

    >>> TimeRange().get_summary()
    'Time range: the whole data.'
    """

    CONTEXT_TYPE: ClassVar[str] = "TIME_RANGE"
    CONTEXT_CATEGORY: ClassVar[str] = "METADATA"

    label: str = "the whole data"
    periods: list[Period] = Field(default_factory=list)
    endpoints: list[Period] = Field(default_factory=list)
    months: list[int] = Field(default_factory=list)
    days: list[str] = Field(default_factory=list)
    weekdays: list[int] = Field(default_factory=list)
    hours: list[int] = Field(default_factory=list)
    window: DataWindow | None = None
    timezone: str = "UTC"
    read_from: str = ""

    @property
    def is_unrestricted(self) -> bool:
        """True if the time range places no limit on the data, so that all rows match."""
        limits = (self.periods, self.months, self.days, self.weekdays, self.hours, self.window)
        return not any(limits)

    @property
    def start(self) -> datetime | None:
        """Earliest start of all periods, or ``None`` if any period has an open start."""
        starts = [period.start for period in self.periods]
        return min((s for s in starts if s), default=None) if None not in starts else None

    @property
    def end(self) -> datetime | None:
        """Latest exclusive end of all periods, or ``None`` if any period has an open end."""
        ends = [period.end for period in self.periods]
        return max((e for e in ends if e), default=None) if None not in ends else None

    def get_summary(self) -> str:
        """Return the label as a sentence."""
        return f"Time range: {self.label}."


class ResultRow(_StrictModel):
    """Result row of a query answer.

    Attributes:
        value: Computed value.
        group: Group of the row, one name for each column in ``group_by``.
        period: Label of the row's period, if the query compares periods.
        time: Time of the value, or start of a streak or of a group of times.
        until: End of a streak.
        shown: Columns that identify the row.
        change: Difference from the first period.
        percent: Share of the total, or change in percent.
    """

    value: float | int | bool | str | None = None
    group: list[str] = Field(default_factory=list)
    period: str | None = None
    time: datetime | None = None
    until: datetime | None = None
    shown: dict[str, str] = Field(default_factory=dict)
    change: float | None = None
    percent: float | None = None


class QueryAnswer(_StrictModel):
    """Answer to one query, as result rows and as a sentence.

    Attributes:
        query: Query that was computed.
        table: Table that the query read.
        unit: Unit of the values.
        frequency: Usual interval between two rows of the table.
        rows: Result rows, at most 100 for each period.
        text: Answer in words.
    """

    query: Query
    table: str
    unit: str | None = None
    frequency: str | None = None
    rows: list[ResultRow] = Field(default_factory=list)
    text: str


def _excluded_columns(row: ResultRow) -> set[str]:
    """Return the field names to exclude when a result row is converted to a table row.

    The values of these fields already appear in other columns of the table.
    """
    return {"group", "shown", *(["time"] if row.group else [])}


class QueryResult(CapabilityContext):
    """Answers to a question about data files.

    Attributes:
        answers: One answer for each part of the question.
        notes: Remarks for the reader, such as values that could not be read.
        files: Files that were read.
        question: Question that the queries were built from; empty if the query was supplied.
    """

    CONTEXT_TYPE: ClassVar[str] = "QUERY_RESULT"
    CONTEXT_CATEGORY: ClassVar[str] = "ANSWER"

    answers: list[QueryAnswer]
    notes: list[str] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    question: str = ""

    def get_summary(self) -> str:
        """Return the answers and notes as text."""
        notes = [f"{note}." for note in self.notes]
        return " ".join([*(answer.text for answer in self.answers), *notes])

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return a table of the result rows for each answer that has more than one row."""
        return {
            f"answer {number}": [
                dict(zip(answer.query.group_by, row.group, strict=False))
                | row.shown
                | row.model_dump(mode="json", exclude=_excluded_columns(row), exclude_none=True)
                for row in answer.rows
            ]
            for number, answer in enumerate(self.answers, 1)
            if len(answer.rows) > 1
        }


class Plot(CapabilityContext):
    """Image file of a chart.

    Attributes:
        path: Path of the file.
        title: Title of the chart.
        media_type: Media type of the file.
        width: Width in pixels.
        height: Height in pixels.
    """

    CONTEXT_TYPE: ClassVar[str] = "PLOT"
    CONTEXT_CATEGORY: ClassVar[str] = "ARTIFACT"

    path: str
    title: str
    media_type: str = "image/png"
    width: int
    height: int

    def get_summary(self) -> str:
        """Return a summary with the file name of the plot.

        The full path is omitted because it is valid only on the machine that wrote the file.
        """
        return f"Plot: {Path(self.path).name}"
