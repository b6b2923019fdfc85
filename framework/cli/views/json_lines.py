"""One event per line, as JSON; the last line is the result."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, TextIO

from framework.cli.views import View

if TYPE_CHECKING:
    from framework.cli.progress import Progress
    from framework.cli.turn import TurnEnd
    from framework.telemetry import Event


class JsonLines(View):
    """Writes the typed events for programs.

    Only ASCII is written, so no character of an answer can act on a terminal.

    Args:
        file: Where to write; standard output when not given.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout

    def begin(self, question: str | None, thread_id: str, progress: Progress) -> None:
        """Name the thread, so that a reader can resume it whatever happens next."""
        self._write({"event_type": "turn_began", "thread_id": thread_id, "question": question})

    def event(self, event: Event, progress: Progress) -> None:
        """Write the event."""
        self._write(event.model_dump(mode="json", exclude_none=True))

    def end(self, end: TurnEnd, progress: Progress) -> None:
        """Write the result."""
        self._write({"event_type": "result", **end.as_data()})

    def _write(self, data: object) -> None:
        self._file.write(json.dumps(data, default=str) + "\n")
        self._file.flush()
