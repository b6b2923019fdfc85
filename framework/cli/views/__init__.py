"""How a run is shown: redrawn on a terminal, line by line in a pipe, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.cli.progress import Progress
    from framework.cli.turn import TurnEnd
    from framework.telemetry import Event


class View:
    """Shows one turn; this one shows nothing."""

    def begin(self, question: str | None, thread_id: str, progress: Progress) -> None:
        """Show what is asked, and what of it is done already."""

    def event(self, event: Event, progress: Progress) -> None:
        """Show the next event; ``progress`` has taken it in."""

    def end(self, end: TurnEnd, progress: Progress) -> None:
        """Show how the turn ended."""

    def close(self) -> None:
        """Leave the terminal as it was; harmless when called again."""


def make_view(
    *, as_json: bool = False, plain: bool = False, quiet: bool = False, heading: bool = True
) -> View:
    """Return the view that suits standard output.

    Args:
        as_json: One event per line as JSON, and the result as the last line.
        plain: Lines even on a terminal.
        quiet: Only the answer.
        heading: Name the thread first.
    """
    from framework.cli.terminal import make_console

    if as_json:
        from framework.cli.views.json_lines import JsonLines

        return JsonLines()
    console = make_console()
    if quiet:
        from framework.cli.views.plain import AnswerOnly

        return AnswerOnly(console)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        from framework.cli.views.plain import PlainLines

        return PlainLines(console, heading=heading)
    from framework.cli.views.live import LiveView

    return LiveView(console, heading=heading)
