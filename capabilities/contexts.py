"""Context types of the data capabilities: what they hand to each other.

All of them are plain data. A ``Dataset`` holds no rows but a description from which any later
step builds the same query again, so the state stays small however large the file is.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from framework.base import CapabilityContext


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DataSource(CapabilityContext):
    """The files that a question is about; given by the caller.

    ``vega:NAME`` means a file of the pip package ``vega_datasets``.

    >>> DataSource(files=["measurements.csv"]).get_summary()
    'Data: measurements.csv.'
    """

    CONTEXT_TYPE: ClassVar[str] = "DATA_SOURCE"
    CONTEXT_CATEGORY: ClassVar[str] = "METADATA"

    files: list[str] = Field(min_length=1)

    def get_summary(self) -> str:
        """Name the files."""
        return f"Data: {', '.join(Path(file).name for file in self.files)}."


class Period(_Part):
    """Local time from ``start`` up to, but without, ``end``; ``None`` leaves a side open."""

    start: datetime | None = None
    end: datetime | None = None
    label: str


class DataWindow(_Part):
    """The first or last part of whatever the data covers, such as its last five years."""

    edge: Literal["first", "last"]
    amount: int = Field(ge=1)
    unit: Literal["hour", "day", "week", "month", "quarter", "year", "decade"]


class TimeRange(CapabilityContext):
    """The times that a question is about.

    Attributes:
        label: All of it in words.
        periods: The periods in the order of the question; empty means the whole data.
        endpoints: For one range "from A to B": A and B as periods of their own.
        months: Only these months of any year (1 to 12).
        days: Only these days of any year, as ``MM-DD``.
        weekdays: Only these days of the week; 0 is Monday.
        hours: Only these hours of the day.
        window: A part of the data's own coverage.
        timezone: The zone that relative words were read in.
        read_from: The text that it was read from; empty when the caller gave it.

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
    def whole(self) -> bool:
        """Whether the question leaves the time open."""
        return not (
            self.periods
            or self.months
            or self.days
            or self.weekdays
            or self.hours
            or self.window is not None
        )

    @property
    def start(self) -> datetime | None:
        """Beginning of the earliest period; ``None`` when open."""
        starts = [period.start for period in self.periods]
        return min((s for s in starts if s), default=None) if None not in starts else None

    @property
    def end(self) -> datetime | None:
        """End (exclusive) of the latest period; ``None`` when open."""
        ends = [period.end for period in self.periods]
        return max((e for e in ends if e), default=None) if None not in ends else None

    def get_summary(self) -> str:
        """Say which time is meant."""
        return f"Time range: {self.label}."


class TableRef(_Part):
    """One table of one file, and how to read it."""

    path: str
    kind: Literal["csv", "parquet", "json", "sqlite"]
    label: str
    table: str | None = None
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    skip: int = 0
    encoding: str = "utf-8"
    names: list[str] = Field(default_factory=list)
    size: int = 0
    modified_ns: int = 0


class ColumnRef(_Part):
    """A column and how its text becomes a value."""

    name: str
    reading: str = "plain"


class TimeRef(_Part):
    """The column or columns that hold the time."""

    columns: list[str]
    reading: str = "iso"
    zone: str | None = None


class Filter(_Part):
    """Keep the rows whose column holds one of the values."""

    column: str
    values: list[str]


class Measure(_Part):
    """A measured quantity of a data set."""

    label: str
    column: str
    quantity: str | None = None
    unit: str | None = None
    unit_inferred: bool = False
    aspect: Literal["high", "low", "mean"] | None = None
    additive: bool = False
    decimals: int = 2


class DataPart(_Part):
    """What is taken from one table; parts of a data set lie one below the other."""

    table: TableRef
    time: TimeRef | None = None
    columns: list[ColumnRef]
    series: list[str] = Field(default_factory=list)
    filters: list[Filter] = Field(default_factory=list)
    label_column: str | None = None


class Dataset(CapabilityContext):
    """Selected columns, rows and times of the user's files.

    Attributes:
        parts: Tables and columns; measure ``n`` is column ``n`` of every part.
        measures: What the columns measure.
        series_name: What tells the series apart (a column, or the file); ``None`` for one series.
        series: Names of the series, at most a hundred of them.
        group_columns: Columns that the question groups by.
        focus: Series whose share is asked for.
        time_range: Which times.
        frequency: Usual distance of two rows.
        first: Earliest time of the selection.
        last: Latest time of the selection.
        covered: Earliest and latest time of the whole table.
        rows: How many rows were selected.
        preview: The first rows, for people and prompts.
        notes: What the reader should know, such as a guessed unit.
        files: All files of the source, chosen or not.
        read_from: The text that it was selected by.
    """

    CONTEXT_TYPE: ClassVar[str] = "DATASET"

    parts: list[DataPart]
    measures: list[Measure]
    series_name: str | None = None
    series: list[str] = Field(default_factory=list)
    group_columns: list[str] = Field(default_factory=list)
    focus: list[str] = Field(default_factory=list)
    time_range: TimeRange = Field(default_factory=TimeRange)
    frequency: Literal["minute", "hour", "day", "week", "month", "quarter", "year"] | None = None
    first: datetime | None = None
    last: datetime | None = None
    covered: list[datetime] = Field(default_factory=list)
    rows: int = 0
    preview: list[dict[str, Any]] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    read_from: str = ""

    def get_summary(self) -> str:
        """Say what was selected from which file."""
        from capabilities.data.wording import count_of, date_range

        files = ", ".join(dict.fromkeys(part.table.label for part in self.parts))
        names = ", ".join(
            measure.label + (f" ({measure.unit})" if measure.unit else "")
            for measure in self.measures
        )
        filters = [
            f"{item.column} = {' or '.join(item.values)}"
            for part in self.parts[:1]
            for item in part.filters
        ]
        text = f"{files}: {names or 'rows'}"
        if filters:
            text += f" where {', '.join(filters)}"
        text += f", {count_of(self.rows, 'row')}"
        if self.first and self.last:
            text += f" from {date_range(self.first, self.last, self.frequency)}"
        return ". ".join([text, *self.notes]).rstrip(".") + "."


class Finding(_Part):
    """One answer.

    Attributes:
        kind: Which statistic, such as ``max`` or ``trend``.
        text: The answer in a sentence.
        values: Its numbers, by name.
    """

    kind: str
    text: str
    values: dict[str, Any] = Field(default_factory=dict)


class TableResult(_Part):
    """A small result table, such as monthly means; the plot of a breakdown is drawn from it."""

    title: str
    group: str
    unit: str | None = None
    rows: list[dict[str, Any]] = Field(default_factory=list)


class Mark(_Part):
    """A moment worth pointing out in a plot."""

    time: datetime
    value: float
    text: str
    line: str


class Statistics(CapabilityContext):
    """What was computed, as numbers and as sentences."""

    CONTEXT_TYPE: ClassVar[str] = "STATISTICS"
    CONTEXT_CATEGORY: ClassVar[str] = "ANSWER"

    findings: list[Finding]
    tables: list[TableResult] = Field(default_factory=list)
    marks: list[Mark] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    def get_summary(self) -> str:
        """Answer the question."""
        return " ".join([*(finding.text for finding in self.findings), *self.notes])


class Plot(CapabilityContext):
    """A picture that was written.

    Attributes:
        path: Where it lies.
        title: Its title.
    """

    CONTEXT_TYPE: ClassVar[str] = "PLOT"
    CONTEXT_CATEGORY: ClassVar[str] = "ARTIFACT"

    path: str
    title: str
    media_type: str = "image/png"
    width: int
    height: int

    def get_summary(self) -> str:
        """Say what the picture shows and where it lies."""
        return f"Plot: {self.path}"
