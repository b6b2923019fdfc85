"""A run as a picture: one bar for everything that took time, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from configs.errors import ConfigurationError
from framework.cli.progress import Span
from framework.cli.terminal import one_line

_ROW = 26
_LEFT = 230
_WIDTH = 720
_RIGHT = 90
_TOP = 64
_COLOURS = {
    "framework": "#b9c2cf",
    "done": "#4c9f70",
    "failed": "#c8553d",
    "running": "#d9a441",
}
_FONT = "font-family='system-ui,-apple-system,Segoe UI,sans-serif'"


def timeline_svg(spans: Sequence[Span], title: str) -> str:
    """Draw what took time as an SVG picture: rows from top to bottom in order of their start.

    Attempts of one step share a row. Text of any origin is escaped.

    Args:
        spans: What took time.
        title: What the picture shows.

    >>> svg = timeline_svg([Span("look", 10.0, 11.5, "done", "camera")], "<b>")
    >>> "&lt;b&gt;" in svg and "1.50 s" in svg
    True
    """
    ordered = sorted(spans, key=lambda span: span.start)
    start = ordered[0].start if ordered else 0.0
    end = max((span.end or span.start for span in ordered), default=0.0)
    total = max(end - start, 1e-3)
    rows = list(dict.fromkeys((span.kind == "framework", span.label) for span in ordered))
    place = {row: index for index, row in enumerate(rows)}
    height = _TOP + _ROW * len(rows) + 16
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_LEFT + _WIDTH + _RIGHT}'"
        f" height='{height}' role='img' {_FONT} font-size='12'>",
        f"<title>{_text(title)}</title>",
        "<rect width='100%' height='100%' fill='#ffffff'/>",
        f"<text x='16' y='26' font-size='15' font-weight='600' fill='#222'>{_text(title, 110)}</text>",
        *_axis(total, len(rows)),
    ]
    for index, (is_framework, label) in enumerate(rows):
        y = _TOP + _ROW * index + 17
        fill = "#8a929c" if is_framework else "#222"
        parts.append(
            f"<text x='{_LEFT - 10}' y='{y}' text-anchor='end' fill='{fill}'>{_text(label, 32)}</text>"
        )
    parts += [
        _bar(span, start, total, place[span.kind == "framework", span.label], end)
        for span in ordered
    ]
    return "\n".join([*parts, "</svg>", ""])


def write_timeline(spans: Sequence[Span], path: Path, title: str) -> None:
    """Write the picture of a run.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(timeline_svg(spans, title), encoding="utf-8")
    except OSError as exc:
        raise ConfigurationError(
            f"The timeline {str(path)!r} cannot be written: {exc.strerror or exc}.",
            fix="Give a file in a folder that you may write to with --timeline.",
        ) from exc


def _axis(total: float, rows: int) -> list[str]:
    step = next(
        unit * 10**power
        for power in range(-4, 9)
        for unit in (1, 2, 5)
        if total / (unit * 10**power) <= 8
    )
    bottom = _TOP + _ROW * rows
    lines = []
    for number in range(int(total / step) + 1):
        x = _LEFT + _WIDTH * number * step / total
        lines.append(
            f"<line x1='{x:.1f}' y1='{_TOP - 8}' x2='{x:.1f}' y2='{bottom}' stroke='#e6e9ee'/>"
            f"<text x='{x:.1f}' y='{_TOP - 14}' text-anchor='middle' fill='#8a929c'>"
            f"{number * step:g} s</text>"
        )
    return lines


def _bar(span: Span, start: float, total: float, row: int, end: float) -> str:
    last = span.end if span.end is not None else end
    x = _LEFT + _WIDTH * (span.start - start) / total
    width = max(2.0, _WIDTH * (last - span.start) / total)
    y = _TOP + _ROW * row + 4
    took = f"{last - span.start:.2f} s"
    about = f"{span.label}: {span.detail}, {took}" if span.detail else f"{span.label}: {took}"
    return (
        f"<g><title>{_text(about)}</title>"
        f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{_ROW - 8}' rx='3'"
        f" fill='{_COLOURS.get(span.kind, '#b9c2cf')}'/>"
        f"<text x='{x + width + 5:.1f}' y='{y + 13}' fill='#5b6470' font-size='11'>{took}</text></g>"
    )


def _text(value: str, limit: int = 200) -> str:
    # Control characters are no XML at all, escaped or not; one_line makes them visible.
    line = one_line(value, limit).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")
    return escape(line, {"'": "&apos;", '"': "&quot;"})
