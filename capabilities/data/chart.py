"""Pictures of a data set: lines over time, bars for groups, the extremes marked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from capabilities.contexts import Dataset, Mark, Plot, Statistics, TableResult
from capabilities.data.analysis.frame import listed_filters
from capabilities.data.relation import load
from capabilities.data.session import Session, literal, open_session
from capabilities.data.words import fold
from framework.base import CapabilityError, ValidationError, require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["line", "bar"]
# Colours that stay apart for people with colour blindness (Okabe and Ito).
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#444444"]
_ACCENT, _GRID, _TEXT = "#C0392B", "#E3E6EA", "#2B2F36"
_MAX_POINTS, _MAX_SERIES, _MAX_PANELS, _MAX_BARS = 2000, 8, 4, 40


@dataclass(frozen=True)
class Wanted:
    """What the picture should be.

    Attributes:
        folder: Where it goes.
        title: Its title; made from the data when empty.
        kind: Lines or bars; chosen from the data when ``None``.
        file_format: ``png`` or ``svg``.
        width: In inches.
        height: In inches.
        dpi: Dots per inch of a PNG.
    """

    folder: Path
    title: str = ""
    kind: Kind | None = None
    file_format: Literal["png", "svg"] = "png"
    width: float = 10.0
    height: float = 5.2
    dpi: int = 144


@dataclass
class Curve:
    """The points of one line."""

    name: str
    times: list[datetime]
    values: list[float]


def draw(
    dataset: Dataset,
    statistics: Statistics | None,
    wanted: Wanted,
    settings: Mapping[str, Any] | None = None,
) -> Plot:
    """Draw a data set and write the picture to a new file.

    Args:
        dataset: What to draw.
        statistics: Tables that become bars, and extremes that are marked.
        wanted: Folder, title, format and size.
        settings: As for retrieval.

    Raises:
        ValidationError: There is nothing that can be drawn.
        CapabilityError: The folder cannot be written.
    """
    require_extra("matplotlib", "data")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title = wanted.title or title_of(dataset, statistics)
    figure = Figure(figsize=(wanted.width, wanted.height), layout="constrained")
    FigureCanvasAgg(figure)
    table = _table_to_draw(dataset, statistics, wanted.kind)
    if table is not None:
        _draw_bars(figure, table)
    else:
        with open_session(settings) as session:
            load(session, dataset)
            _draw_data(figure, session, dataset, statistics)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=_TEXT)
    path = _save(figure, wanted, title)
    return Plot(
        path=str(path),
        title=title,
        media_type="image/svg+xml" if wanted.file_format == "svg" else "image/png",
        width=round(wanted.width * wanted.dpi),
        height=round(figure.get_figheight() * wanted.dpi),
    )


def readable(name: str) -> str:
    """Write a column name for people.

    >>> readable("net_generation")
    'Net generation'
    """
    text = name.replace("_", " ").strip()
    return text[:1].upper() + text[1:] if text.islower() else text


def title_of(dataset: Dataset, statistics: Statistics | None = None) -> str:
    """Make a title from what is drawn and when."""
    names = [readable(m.label) for m in dataset.measures[:3]]
    what = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    filters = listed_filters(dataset)
    if filters:
        values = [value for item in dataset.parts[0].filters for value in item.values]
        what += f", {', '.join(values[:4])}"
    elif dataset.series_name and dataset.series_name != "file":
        what += f" by {dataset.series_name}"
    if not dataset.time_range.whole:
        label = re.sub(r"\s*\([^)]*\)", "", dataset.time_range.label)
        what += f", {label}"
    elif dataset.first and dataset.last and dataset.last > dataset.first:
        first, last = dataset.first.year, dataset.last.year
        what += f", {first}" + (f"\u2013{last}" if last > first else "")
    return what if len(what) <= 110 else what[:107] + "…"


def _table_to_draw(
    dataset: Dataset, statistics: Statistics | None, kind: Kind | None
) -> TableResult | None:
    """Choose a table of groups when the answer is one; else the data itself is drawn."""
    if statistics is None or kind == "line":
        return None
    tables = [t for t in statistics.tables if 2 <= len(t.rows) <= _MAX_BARS]
    if not tables:
        return None
    over_time = dataset.first is not None and dataset.rows >= 3
    moves = any(finding.kind in ("compare", "trend", "movement") for finding in statistics.findings)
    additive = all(measure.additive for measure in dataset.measures)
    if moves and over_time and kind is None and not (additive and tables[0].group == "period"):
        return None
    return tables[0]


def _style(axes: Axes) -> None:
    axes.grid(visible=True, axis="y", color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#9AA1AB")
    axes.tick_params(colors=_TEXT, length=0, labelsize=10)
    axes.xaxis.label.set_color(_TEXT)
    axes.yaxis.label.set_color(_TEXT)


def _draw_bars(figure: Figure, table: TableResult) -> None:
    axes = figure.add_subplot()
    _style(axes)
    names = [str(row["group"]) for row in table.rows]
    values = [float(row["value"]) for row in table.rows]
    top = max(range(len(values)), key=lambda index: values[index])
    colours = [_COLOURS[0]] * len(values)
    colours[top] = _COLOURS[1]
    long_names = (max(len(name) for name in names) > 10 and len(names) > 4) or len(names) > 13
    if table.group in ("month", "month of the year", "hour of the day"):
        names = [_short_bucket(name) for name in names]
        long_names = len(names) > 18
    axes.bar(range(len(values)), values, color=colours, width=0.72)
    axes.set_xticks(range(len(names)), names)
    if long_names:
        axes.tick_params(axis="x", rotation=45)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    axes.set_xlabel(readable(table.group))
    axes.set_ylabel(readable(table.title) + (f" ({table.unit})" if table.unit else ""))
    low, high = min(values), max(values)
    if low > 0.6 * high:
        # Bars of nearly the same height would hide the difference that was asked for.
        axes.set_ylim(
            bottom=low - 0.35 * (high - low or high), top=high + 0.12 * (high - low or high)
        )
        axes.set_ylabel(axes.get_ylabel() + ", axis cut")
    if len(values) <= 16:
        for index, value in enumerate(values):
            axes.annotate(
                _brief(value), (index, value), xytext=(0, 4 if value >= 0 else -13),
                textcoords="offset points", ha="center", fontsize=9, color=_TEXT,
            )  # fmt: skip


def _short_bucket(name: str) -> str:
    words = name.split()
    if len(words) == 2 and words[1].isdigit() and words[0].isalpha():
        return f"{words[0][:3]} {words[1]}"
    return name[:3] if len(words) == 1 and name.isalpha() else name


def _brief(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return (
        f"{value:.0f}"
        if value == int(value)
        else f"{value:.2f}"
        if abs(value) < 10
        else f"{value:.1f}"
    )


def _draw_data(
    figure: Figure, session: Session, dataset: Dataset, statistics: Statistics | None
) -> None:
    marks = statistics.marks if statistics else []
    measures = list(range(len(dataset.measures)))[: _MAX_PANELS * 2]
    if dataset.first is None:
        _draw_histogram(figure, session, dataset)
        return
    panels = _panels(dataset, measures)
    if len(panels) > 1:
        figure.set_figheight(figure.get_figheight() * (0.55 + 0.45 * len(panels)))
    axes_list = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, numbers in zip(axes_list, panels, strict=True):
        _style(axes)
        curves = [curve for number in numbers for curve in _curves(session, dataset, number)]
        if not curves:
            continue
        _plot_curves(axes, dataset, curves, numbers)
        _annotate(axes, curves, marks, numbers, dataset)
    _label_time(axes_list[-1], dataset)


def _panels(dataset: Dataset, numbers: list[int]) -> list[list[int]]:
    """Put measures of one unit and quantity into one panel."""
    groups: dict[tuple[str | None, str | None, bool], list[int]] = {}
    for number in numbers:
        measure = dataset.measures[number]
        alone = measure.unit is None and measure.quantity is not None
        key = (measure.unit, measure.quantity if alone else None, measure.additive)
        groups.setdefault(key, []).append(number)
    return list(groups.values())[:_MAX_PANELS]


def _curves(session: Session, dataset: Dataset, number: int) -> list[Curve]:
    measure = dataset.measures[number]
    names: list[str | None] = list(dataset.series[:_MAX_SERIES]) if dataset.series else [None]
    periods = dataset.time_range.periods
    curves = []
    for name in names:
        test = f"m = {number}" + (f" AND s = {literal(name)}" if name is not None else "")
        label = name or readable(measure.label)
        if name is not None and len(dataset.measures) > 1:
            label = f"{readable(measure.label)}, {name}"
        if len(periods) > 1 and all(period.start for period in periods):
            first = min(period.start for period in periods if period.start)
            for index, period in enumerate(periods[:_MAX_SERIES]):
                assert period.start is not None
                times, values = _points(
                    session, dataset, f"{test} AND p = {index}", measure.additive
                )
                moved = [time - (period.start - first) for time in times]
                text = re.sub(r"\s*\([^)]*\)", "", period.label)
                curves.append(Curve(text if name is None else f"{name}, {text}", moved, values))
        else:
            curves.append(Curve(label, *_points(session, dataset, test, measure.additive)))
    return [curve for curve in curves if curve.times]


def _points(
    session: Session, dataset: Dataset, test: str, additive: bool
) -> tuple[list[datetime], list[float]]:
    """Return the points of a line; gathered by time where they are too many to see."""
    count, first, last = session.query(f"SELECT count(*), min(t), max(t) FROM d WHERE {test}")[0]  # noqa: S608
    if not count:
        return [], []
    function = "sum(v)" if additive else "avg(v)"
    key = "t"
    if count > _MAX_POINTS:
        seconds = max(1, round((last - first).total_seconds() / _MAX_POINTS * 2))
        key = f"time_bucket(INTERVAL {seconds} SECOND, t)"
        function = "avg(v)"
    rows = session.query(
        f"SELECT {key} AS k, {function} FROM d WHERE {test} GROUP BY k ORDER BY k"  # noqa: S608
    )
    return [row[0] for row in rows], [row[1] for row in rows]


def _plot_curves(axes: Any, dataset: Dataset, curves: list[Curve], numbers: list[int]) -> None:
    measure = dataset.measures[numbers[0]]
    points = max(len(curve.times) for curve in curves)
    as_bars = measure.additive and len(curves) == 1 and points <= 400
    for index, curve in enumerate(curves[: len(_COLOURS)]):
        colour = _COLOURS[index % len(_COLOURS)]
        if as_bars:
            step = min(
                (b - a for a, b in zip(curve.times, curve.times[1:], strict=False)),
                default=timedelta(days=1),
            )
            axes.bar(curve.times, curve.values, width=step * 0.85, color=colour, label=curve.name)
            continue
        marker = "o" if points <= 40 else None
        width = 1.9 if points <= 400 else 1.2
        axes.plot(
            curve.times, curve.values, color=colour, linewidth=width, marker=marker, markersize=4,
            label=curve.name, solid_capstyle="round",
        )  # fmt: skip
    names = [readable(dataset.measures[number].label) for number in numbers]
    label = names[0] if len(names) == 1 else "" if len(curves) > 1 else names[0]
    unit = f"({measure.unit})" if measure.unit else ""
    axes.set_ylabel(
        " ".join(
            part for part in (label or (measure.quantity or "value").capitalize(), unit) if part
        )
    )
    axes.margins(x=0.015, y=0.14)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=10, ncols=min(4, len(curves)), loc="upper left",
                    bbox_to_anchor=(0, 1.0), labelcolor=_TEXT)  # fmt: skip
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.12 * (high - low))


def _annotate(
    axes: Any, curves: list[Curve], marks: list[Mark], numbers: list[int], dataset: Dataset
) -> None:
    labels = {dataset.measures[number].label for number in numbers} | set(dataset.series)
    placed: list[tuple[datetime, float]] = []
    middle = sum(axes.get_ylim()) / 2
    for mark in marks[:6]:
        spot = _on_a_curve(curves, mark)
        if mark.line not in labels or spot is None or spot in placed:
            continue
        placed.append(spot)
        up = spot[1] >= middle
        span = (max(c.times[-1] for c in curves) - min(c.times[0] for c in curves)) or timedelta(1)
        place = (spot[0] - min(c.times[0] for c in curves)) / span
        side = "left" if place < 0.15 else "right" if place > 0.85 else "center"
        axes.plot([spot[0]], [spot[1]], marker="o", markersize=8, color=_ACCENT,
                  markeredgecolor="white", markeredgewidth=1.4, zorder=5)  # fmt: skip
        axes.annotate(
            mark.text, spot, xytext=(0, 12 if up else -18), textcoords="offset points", ha=side,
            fontsize=10, fontweight="bold", color=_ACCENT, zorder=6,
        )  # fmt: skip


def _on_a_curve(curves: list[Curve], mark: Mark) -> tuple[datetime, float] | None:
    """Find the point of a mark; one that the picture does not show is not marked."""
    for curve in curves:
        for time, value in zip(curve.times, curve.values, strict=True):
            if time == mark.time and abs(value - mark.value) <= 1e-9 + abs(mark.value) * 1e-6:
                return time, value
    # Gathered points have no such value; the mark stands at its own place.
    gathered = any(len(curve.times) > _MAX_POINTS // 4 for curve in curves)
    inside = any(curve.times[0] <= mark.time <= curve.times[-1] for curve in curves)
    return (mark.time, mark.value) if gathered and inside else None


def _label_time(axes: Axes, dataset: Dataset) -> None:
    from matplotlib.ticker import FuncFormatter

    dates: Any = require_extra("matplotlib.dates", "data")
    locator = dates.AutoDateLocator(minticks=4, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    if len(dataset.time_range.periods) > 1:
        spans = [p.end - p.start for p in dataset.time_range.periods if p.start and p.end]
        short = max(spans, default=timedelta(days=400)) <= timedelta(days=62)

        def name_day(position: float, _index: int) -> str:
            moment = dates.num2date(position)
            return f"{moment.day} {moment:%b}" if short else f"{moment:%b}"

        axes.xaxis.set_major_formatter(FuncFormatter(name_day))
        axes.set_xlabel("Time in the period")
        return
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    if dataset.parts[0].time is not None:
        axes.set_xlabel(readable(" ".join(dataset.parts[0].time.columns)))


def _draw_histogram(figure: Figure, session: Session, dataset: Dataset) -> None:
    measure = dataset.measures[0]
    low, high = session.query("SELECT min(v), max(v) FROM d WHERE m = 0")[0]
    if not measure.column or low is None or low == high:
        raise ValidationError(
            "There is nothing to plot: the data has no times and no differing values.",
            fix="Ask for a plot of a column with numbers, or by a category.",
        )
    bins = 24
    width = (high - low) / bins
    rows = session.query(
        f"SELECT least({bins - 1}, floor((v - {low!r}) / {width!r})) AS b, count(*) FROM d"  # noqa: S608
        " WHERE m = 0 GROUP BY b ORDER BY b"
    )
    axes = figure.add_subplot()
    _style(axes)
    axes.bar([low + (row[0] + 0.5) * width for row in rows], [row[1] for row in rows],
             width=width * 0.94, color=_COLOURS[0])  # fmt: skip
    axes.set_xlabel(readable(measure.label) + (f" ({measure.unit})" if measure.unit else ""))
    axes.set_ylabel("Number of rows")


def _save(figure: Figure, wanted: Wanted, title: str) -> Path:
    slug = re.sub(r"[^a-z0-9]+", "-", fold(title)).strip("-")[:60] or "plot"
    try:
        wanted.folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            name = slug if number == 1 else f"{slug}-{number}"
            path = wanted.folder / f"{name}.{wanted.file_format}"
            try:
                # Exclusive creation: two runs at once never take the same name.
                with path.open("xb") as file:
                    figure.savefig(
                        file, format=wanted.file_format, dpi=wanted.dpi, facecolor="white"
                    )
            except FileExistsError:
                continue
            return path.resolve()
    except OSError as exc:
        raise CapabilityError(
            f"The plot cannot be written to {str(wanted.folder)!r}: {exc.strerror or exc}.",
            fix="Set 'output_dir' of plotting to a folder that can be written.",
        ) from exc
    raise CapabilityError(
        f"{str(wanted.folder)!r} holds too many plots of this name.", fix="Move old plots away."
    )
