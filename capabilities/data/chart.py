"""Functions that draw charts of answers: bars for groups, and lines over time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from capgraph.base import CapabilityError, ValidationError, require_extra
from capgraph.capabilities.contexts import Plot, QueryAnswer, QueryResult
from capgraph.capabilities.data.query_engine import compute_query
from capgraph.capabilities.data.query_scope import choose_table
from capgraph.capabilities.data.schema import read_tables
from capgraph.capabilities.data.session import DataSession, open_session
from capgraph.capabilities.data.words import fold
from capgraph.capabilities.formatting import date_text, value_text
from capgraph.capabilities.query import Query

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito palette: distinguishable for people with color blindness.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#444444"]
_ACCENT, _GRID, _TEXT = "#C0392B", "#E3E6EA", "#2B2F36"
_MAX_POINTS, _MAX_SERIES, _MAX_BARS = 2000, 8, 40
_MAX_TITLE_CHARS, _MAX_NAME_CHARS = 110, 40  # longer texts slow the layout down
_UNIT_SECONDS = (("hour", 3600.0), ("day", 86400.0), ("week", 604800.0), ("month", 2629800.0))


class PlottingParameters(BaseModel):
    """Parameters of a ``plotting`` step.

    Attributes:
        title: Title of the chart.
        kind: ``line`` for values over time, or ``bar`` for groups.
        file_format: File format of the chart.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    title: str | None = Field(default=None, description="Title of the picture.")
    kind: Literal["line", "bar"] | None = Field(default=None, description="Lines or bars.")
    file_format: Literal["png", "svg"] | None = Field(default=None, description="File format.")


@dataclass
class Curve:
    """Points of one line in a chart."""

    name: str
    times: list[datetime]
    values: list[float]


def draw_chart(
    result: QueryResult, parameters: PlottingParameters, settings: Mapping[str, Any]
) -> Plot:
    """Draw a chart of a query result and write the chart to a new file.

    Args:
        result: Query result to draw. The chart shows the last answer that has groups. If no
            answer has groups, the chart shows the values behind the first answer.
        parameters: Title, chart type, and file format. The answer determines missing values.
        settings: Settings of the ``query_data`` and ``plotting`` capabilities.

    Raises:
        ValidationError: The answer contains nothing to draw.
        CapabilityError: The output folder is not writable.
    """
    require_extra("matplotlib", "data")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = float(settings.get("width") or 10.0), float(settings.get("height") or 5.2)
    figure = Figure(figsize=size, dpi=int(settings.get("dpi") or 144), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _style_axes(axes)
    compared = [a for a in result.answers if 2 <= len(_list_bars(a)) <= _MAX_BARS]
    extremes = [a for a in result.answers if a.rows and a.rows[0].time and not a.rows[0].group]
    if compared and parameters.kind != "line" and not (extremes and parameters.kind is None):
        answer = compared[-1]
        _draw_bars(axes, answer)
    else:
        answer = (extremes or result.answers)[0]
        with open_session(settings) as session:
            _draw_time_series(axes, session, answer, result, settings)
    title = _truncate(parameters.title or chart_title(answer), _MAX_TITLE_CHARS)
    figure.suptitle(
        _escape_mathtext(title), x=0.012, ha="left", fontsize=14, fontweight="bold", color=_TEXT
    )
    kind = parameters.file_format or "png"
    folder = Path(settings.get("output_dir") or "capgraph-output")
    width, height = map(round, figure.bbox.size)
    return Plot(
        path=str(_save_figure(figure, folder, kind, title)),
        title=title,
        media_type="image/svg+xml" if kind == "svg" else "image/png",
        width=width,
        height=height,
    )


def readable_name(name: str) -> str:
    """Convert a column name to readable text for chart titles and labels.

    >>> readable_name("net_generation")
    'Net generation'
    """
    text = name.replace("_", " ").strip()
    return text[:1].upper() + text[1:] if text.islower() else text


def chart_title(answer: QueryAnswer) -> str:
    """Return a chart title that names the plotted value, its groups, and the time periods."""
    query = answer.query
    title = readable_name(query.value or "Number of rows")
    if query.group_by:
        title += f" by {', '.join(name.replace('_', ' ') for name in query.group_by)}"
    values = [str(f.value) for f in query.where if f.op == "="]
    title += "".join(f", {value}" for value in values[:4])
    periods = list(dict.fromkeys(row.period for row in answer.rows if row.period))
    title += f", {' and '.join(periods[:3])}" if periods else ""
    return _truncate(title, _MAX_TITLE_CHARS)


def _truncate(text: str, max_chars: int) -> str:
    text = " ".join(text[: 4 * max_chars].split())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _escape_mathtext(text: str) -> str:
    """Escape dollar signs so that matplotlib does not render the text as a formula."""
    return text.replace("$", r"\$")


def _style_axes(axes: Axes) -> None:
    axes.grid(visible=True, axis="y", color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#9AA1AB")
    axes.tick_params(colors=_TEXT, length=0, labelsize=10)
    axes.xaxis.label.set_color(_TEXT)
    axes.yaxis.label.set_color(_TEXT)


def _list_bars(answer: QueryAnswer) -> list[tuple[str, float]]:
    """Return the label and height of each bar, with one bar per group or else per period."""
    return [
        (
            ", ".join([*row.group, *([row.period] if row.period and not row.group else [])]),
            row.value,
        )
        for row in answer.rows
        if (row.group or row.period) and isinstance(row.value, int | float)
    ]


def _format_axis_label(answer: QueryAnswer) -> str:
    name = answer.query.value or "number of rows"
    label = readable_name(name) + (
        f" ({answer.unit})" if answer.unit and answer.unit not in name else ""
    )
    return _escape_mathtext(_truncate(label, 2 * _MAX_NAME_CHARS))


def _draw_bars(axes: Any, answer: QueryAnswer) -> None:
    bars = _list_bars(answer)
    names = [_escape_mathtext(_truncate(name, _MAX_NAME_CHARS)) for name, _ in bars]
    values = [value for _, value in bars]
    top = values.index(max(values))
    colors = [_ACCENT if index == top else _COLORS[0] for index in range(len(bars))]
    axes.bar(range(len(bars)), values, color=colors, width=0.72)
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    crowded = len(bars) > 13 or (len(bars) > 4 and max(map(len, names)) > 10)
    axes.set_xticks(range(len(bars)), names, **(slanted if crowded else {}))
    axes.set_ylabel(_format_axis_label(answer))
    low, high = min(values), max(values)
    if low > 0.6 * high > 0:
        # With a zero baseline, nearly equal bars would hide their difference.
        margin = high - low or high
        axes.set_ylim(bottom=low - 0.35 * margin, top=high + 0.12 * margin)
        axes.set_ylabel(axes.get_ylabel() + ", axis cut")


def _draw_time_series(
    axes: Any,
    session: DataSession,
    answer: QueryAnswer,
    result: QueryResult,
    settings: Mapping[str, Any],
) -> None:
    """Draw the underlying values of an answer as a time series."""
    query = answer.query
    profiles = read_tables(session, result.files, settings)
    profile = choose_table(profiles, query.model_copy(update={"table": answer.table}))
    if query.value is None or profile.first is None or profile.last is None:
        raise _create_empty_error(answer)
    filtered = {row_filter.column for row_filter in query.where}
    series = [name for name in profile.series if name not in filtered][:1]
    unit = "time"  # with too many points, the mean of each hour, day, and so on
    if profile.rows > _MAX_POINTS * (_MAX_SERIES if series else 1):
        seconds = (profile.last - profile.first).total_seconds() / _MAX_POINTS
        unit = next((unit for unit, length in _UNIT_SECONDS if length >= seconds), "year")
    spans = query.periods or [(None, None)]
    curves: list[Curve] = []
    for start, end in spans[:_MAX_SERIES]:
        point_query = Query(
            aggregate="mean",
            value=query.value,
            # The chart shows all values, including those that the answer filters out.
            where=[row_filter for row_filter in query.where if row_filter.column != query.value],
            periods=[(start, end)] if start or end else [],
            group_by=[unit, *series],
            unit=query.unit,
            table=answer.table,
            join=query.join,
        )
        rows = compute_query(
            session, profiles, point_query, max_groups=_MAX_SERIES * profile.rows
        ).rows
        # Shift all periods to the first one, so that their lines overlap.
        shift = start - spans[0][0] if start and spans[0][0] else timedelta(0)
        for name, _ in Counter(row.group[-1] if series else "" for row in rows).most_common(8):
            curve_rows = [r for r in rows if r.time and (not series or r.group[-1] == name)]
            label = ", ".join(
                p for p in (name, curve_rows[0].period if len(spans) > 1 else "") if p
            )
            times = [row.time - shift for row in curve_rows if row.time]
            curves.append(Curve(label, times, [float(row.value or 0) for row in curve_rows]))
    if not any(len(curve.times) > 1 for curve in curves):
        raise _create_empty_error(answer)
    few = max(len(curve.times) for curve in curves) <= 40
    for color, curve in zip(_COLORS, curves, strict=False):
        axes.plot(curve.times, curve.values, color=color, linewidth=1.7, label=_escape_mathtext(_truncate(curve.name, _MAX_NAME_CHARS)) or None,
                  marker="o" if few else None, markersize=4, solid_capstyle="round")  # fmt: skip
    axes.set_ylabel(_format_axis_label(answer))
    axes.margins(x=0.015, y=0.14)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=10, ncols=min(4, len(curves)), labelcolor=_TEXT)
    _annotate_extremes(axes, answer)
    _format_time_axis(axes)


def _create_empty_error(answer: QueryAnswer) -> ValidationError:
    return ValidationError(
        f"The answer about {answer.table} contains nothing to plot.",
        fix="Ask for values over time or by group.",
    )


def _annotate_extremes(axes: Any, answer: QueryAnswer) -> None:
    """Annotate the highest and lowest values that an answer mentions."""
    if answer.query.group_by or len(answer.query.periods) > 1:
        return
    for row in answer.rows[:6]:
        if row.time is None or not isinstance(row.value, int | float) or row.until:
            continue
        up = row.value >= sum(axes.get_ylim()) / 2
        axes.plot([row.time], [row.value], marker="o", markersize=8, color=_ACCENT,
                  markeredgecolor="white", markeredgewidth=1.4, zorder=5)  # fmt: skip
        text = f"{date_text(row.time, answer.frequency)}: {value_text(row.value, 1, answer.unit)}"
        axes.annotate(
            _escape_mathtext(text), (row.time, row.value), xytext=(0, 12 if up else -18),
            textcoords="offset points", ha="center", fontsize=10, fontweight="bold",
            color=_ACCENT, zorder=6,
        )  # fmt: skip


def _format_time_axis(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _save_figure(figure: Figure, folder: Path, kind: str, title: str) -> Path:
    slug = re.sub(r"[^a-z0-9]+", "-", fold(title)).strip("-")[:60] or "plot"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            name = slug if number == 1 else f"{slug}-{number}"
            path = folder / f"{name}.{kind}"
            try:
                # Exclusive creation: concurrent runs never use the same name.
                file = path.open("xb")
            except FileExistsError:
                continue
            try:
                with file:
                    figure.savefig(file, format=kind, facecolor="white")
            except BaseException:
                path.unlink()
                raise
            return path.resolve()
    except OSError as exc:
        raise CapabilityError(
            f"The plot cannot be written to {str(folder)!r}: {exc.strerror or exc}.",
            fix="Set 'output_dir' of plotting to a writable folder.",
        ) from exc
    raise CapabilityError(
        f"The folder {str(folder)!r} contains too many plots with the same name.",
        fix="Move old plots to another folder.",
    )
