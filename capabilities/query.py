"""Model of a typed query over data files: its measure, row filters, and groups."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Aggregate = Literal[
    "rows", "count", "sum", "mean", "median", "min", "max", "std", "percentile", "distinct",
    "missing", "correlation", "slope", "first", "last", "streak", "gaps", "values",
]  # fmt: skip
Order = Literal["highest", "lowest", "group"]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "not in", "missing", "present"]

TIME_UNITS = ("hour", "day", "week", "month", "quarter", "year", "decade")
"""Units of time that divide rows into consecutive groups, such as each month."""
TIME_PARTS = ("weekday", "weekend", "hour_of_day", "month_of_year", "iso_week")
"""Recurring parts of a time that group rows, such as the weekday."""
_VALUELESS_AGGREGATES = ("rows", "streak", "gaps")
_MAX_NAME_LENGTH = 500


class Filter(BaseModel):
    """Condition on a column that selected rows must meet."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    column: str = Field(
        max_length=_MAX_NAME_LENGTH,
        description="Column, arithmetic of columns, 'time', or a part of the time.",
    )
    op: Operator = "="
    value: str | bool | float | int | list[str | bool | float | int] | None = Field(
        default=None, description="A value, or a list for in; a column for <, <=, >, >=."
    )
    unit: str | None = Field(default=None, description="Unit of the value, such as 'kg'.")

    @model_validator(mode="after")
    def _check_value(self) -> Filter:
        if self.op in ("missing", "present"):
            if self.value is not None:
                raise ValueError(f"the operator {self.op!r} must not have a value")
        elif self.value is None:
            raise ValueError(
                f"the operator {self.op!r} requires a value; for empty cells use 'missing'"
            )
        return self


class Query(BaseModel):
    """Typed query over one table, or over two joined tables.

    Columns have the names in the file. ``time`` is a row's time. ``hour`` to ``decade``,
    ``weekday``, ``weekend``, ``hour_of_day``, ``month_of_year``, and ``iso_week`` are parts of the
    time (``time.month`` if a column is named month).

    >>> Query(aggregate="mean", value="temp", group_by=["month"]).limit
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    aggregate: Aggregate = Field(
        description="'values' lists single rows, 'rows' counts them, 'streak' finds the longest"
        " run of rows that pass 'where', 'gaps' counts missing times, 'slope' is a year's change."
    )
    value: str | None = Field(
        default=None,
        max_length=_MAX_NAME_LENGTH,
        description="Column, or arithmetic of columns such as 'tip / total_bill' (names that are"
        " no identifiers in backticks); of two dates in days.",
    )
    by: str | None = Field(
        default=None,
        max_length=_MAX_NAME_LENGTH,
        description="Second column of a correlation; divisor of a ratio of sums.",
    )
    percentile: float | None = Field(default=None, ge=0, le=100)
    where: list[Filter] = Field(default=[], max_length=20)
    periods: list[tuple[datetime | None, datetime | None]] = Field(
        default=[], max_length=24, description="[from, to (excluded)]; several are compared."
    )
    group_by: list[str] = Field(
        default=[],
        max_length=4,
        description="Columns, or of the time: hour, day, week, month, quarter, year, decade,"
        " weekday, weekend, hour_of_day, month_of_year, iso_week.",
    )
    time: str | None = Field(
        default=None, description="The column of dates that counts, where there are several."
    )
    rolling: int | None = Field(
        default=None, ge=2, le=100_000, description="Mean over this many rows, up to each row."
    )
    change: bool = Field(
        default=False,
        description="Change of each group of times against the one before; of later periods"
        " against the first.",
    )
    share: bool = Field(default=False, description="Percent of the total of all rows.")
    having: Filter | None = Field(
        default=None, description="Test of the result; its column is 'value'."
    )
    order: Order = "group"
    limit: int | None = Field(default=None, ge=1, le=100)
    show: list[str] = Field(
        default=[], max_length=12, description="Further columns of the rows that are listed."
    )
    unit: str | None = Field(default=None, description="Unit of the answer.")
    table: str | None = Field(default=None, description="File or table, when there are several.")
    join: str | None = Field(default=None, description="Second table, joined by its key.")

    @field_validator("periods")
    @classmethod
    def _drop_timezones(
        cls, value: list[tuple[datetime | None, datetime | None]]
    ) -> list[tuple[datetime | None, datetime | None]]:
        """Remove time zones from the bounds of periods, because the times in the data are local."""
        return [
            (a.replace(tzinfo=None) if a else None, b.replace(tzinfo=None) if b else None)
            for a, b in value
        ]

    @field_validator("where", "periods", "group_by", "show", mode="before")
    @classmethod
    def _none_to_empty_list(cls, value: Any) -> Any:
        return [] if value is None else value

    @model_validator(mode="after")
    def _check_consistency(self) -> Query:
        problem = None
        if self.aggregate not in _VALUELESS_AGGREGATES and self.value is None:
            problem = f"the aggregate {self.aggregate!r} needs a 'value'"
        elif self.aggregate == "correlation" and self.by is None:
            problem = "the aggregate 'correlation' needs a second column in 'by'"
        elif self.by is not None and self.aggregate not in ("correlation", "sum"):
            problem = "'by' is allowed only with 'correlation' and 'sum'"
        elif (self.aggregate == "percentile") != (self.percentile is not None):
            problem = "the aggregate 'percentile' and the field 'percentile' require each other"
        elif self.having is not None and (
            self.having.op not in ("=", "!=", "<", "<=", ">", ">=")
            or isinstance(self.having.value, str | list)
        ):
            problem = "'having' must compare the result with a number"
        elif self.aggregate == "streak" and not self.where:
            problem = "the aggregate 'streak' needs the condition of its rows in 'where'"
        elif self.aggregate in ("streak", "gaps", "values") and self.group_by:
            problem = (
                f"the aggregate {self.aggregate!r} cannot be grouped; select one group with 'where'"
            )
        if problem:
            raise ValueError(problem)
        return self

    def column_names(self) -> list[str]:
        """Return all names in the query that may be columns.

        The names are used to find the table that contains these columns.
        """
        found = [self.value, self.by, self.time, *self.group_by, *self.show]
        return [name for name in [*found, *(f.column for f in self.where)] if name]
