"""Context types of the data capabilities: what they hand to each other.

All of them are plain data, and small: rows of a file never enter the state, only answers do.
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
    def is_unrestricted(self) -> bool:
        """Whether the question leaves the time open."""
        limits = (self.periods, self.months, self.days, self.weekdays, self.hours, self.window)
        return not any(limits)

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


class ResultRow(_StrictModel):
    """One row of an answer.

    Attributes:
        value: The value.
        group: Its group, one name for each column of ``group_by``.
        period: Its period, when the query has some.
        time: When it was; beginning of a run or of a group of times.
        until: End of a run.
        shown: Columns that say which row it is.
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
    """What one query gave.

    Attributes:
        query: The query.
        table: The table that was asked.
        unit: Unit of the values.
        frequency: Usual distance of two rows of the table.
        rows: The rows, at most a hundred for each period.
        text: The answer in words.
    """

    query: Query
    table: str
    unit: str | None = None
    frequency: str | None = None
    rows: list[ResultRow] = Field(default_factory=list)
    text: str


def _excluded_columns(row: ResultRow) -> set[str]:
    """Return what a table shows in other columns: the time of a group is its name."""
    return {"group", "shown", *(["time"] if row.group else [])}


class QueryResult(CapabilityContext):
    """Answers to a question about data, and what they were computed from.

    Attributes:
        answers: One for each part of the question.
        notes: What the reader should know, such as values that could not be read.
        files: The files that were asked.
        question: The words that the query was made from; empty where it was given.
    """

    CONTEXT_TYPE: ClassVar[str] = "QUERY_RESULT"
    CONTEXT_CATEGORY: ClassVar[str] = "ANSWER"

    answers: list[QueryAnswer]
    notes: list[str] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    question: str = ""

    def get_summary(self) -> str:
        """Answer the question."""
        notes = [f"{note}." for note in self.notes]
        return " ".join([*(answer.text for answer in self.answers), *notes])

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of each answer that has several."""
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
        """Say what the picture is called; where it lies concerns the machine that has it."""
        return f"Plot: {Path(self.path).name}"
