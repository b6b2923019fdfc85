"""Timeline of a turn's steps as an SVG image."""

from __future__ import annotations

import io
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from capgraph import telemetry as events
from capgraph.cli.terminal import one_line, write_file

if TYPE_CHECKING:
    from rich.table import Table


class Timeline:
    """Recorder of step attempts that draws each attempt as a bar of an SVG timeline."""

    def __init__(self) -> None:
        self._bars: list[tuple[str, float, float, str]] = []

    def record(self, event: events.Event) -> None:
        """Record a finished or failed step attempt as a bar. Other events are ignored."""
        if isinstance(event, events.StepFinished | events.StepFailed):
            end = datetime.fromisoformat(event.timestamp).timestamp()
            colour = "green" if isinstance(event, events.StepFinished) else "red"
            name = f"{event.context_key} ({event.capability})"
            self._bars.append((name, end - event.duration, end, colour))

    def to_svg(self, title: str) -> str:
        """Return the timeline as an SVG image, with attempts ordered by start time.

        Untrusted text is escaped.

        Args:
            title: Title of the image.

        >>> "<svg" in Timeline().to_svg("nothing yet")
        True
        """
        from rich.console import Console

        console = Console(record=True, width=110, file=io.StringIO(), legacy_windows=False)
        console.print(self._table())
        svg = console.export_svg(title=one_line(title, 90))
        # Remove web fonts, so that the image loads nothing from the network.
        return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)

    def write(self, path: Path, title: str) -> None:
        """Write the timeline to an SVG file.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        write_file(path, self.to_svg(title))

    def _table(self) -> Table:
        from rich.bar import Bar
        from rich.table import Table
        from rich.text import Text

        bars = sorted(self._bars, key=lambda bar: bar[1])
        first = min((start for _, start, _, _ in bars), default=0.0)
        total = max((end for _, _, end, _ in bars), default=1.0) - first
        table = Table.grid("", "", "", padding=(0, 1), expand=True)
        table.columns[1].ratio = 1
        for name, start, end, colour in bars:
            bar = Bar(total, start - first, end - first, color=colour)
            table.add_row(Text(one_line(name, 40)), bar, Text(f"{end - start:.2f} s"))
        return table
