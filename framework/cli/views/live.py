"""A run on a terminal: the plan redrawn in place, then the answer as it comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from framework.cli.terminal import one_line, safe
from framework.cli.views import View
from framework.cli.views.endings import ending_lines
from framework.cli.views.plain import event_lines
from framework.telemetry import PlanMade, Reclassify, Replan, Retry

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from framework.cli.progress import Progress, Step
    from framework.cli.turn import TurnEnd
    from framework.telemetry import Event

_SIGNS = {
    "pending": ("·", "dim"),
    "running": ("▶", "yellow"),
    "retrying": ("↻", "yellow"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("⊘", "dim"),
    "waiting": ("?", "magenta"),
}
_OUTCOME_STYLES = {"completed": "green", "partial": "yellow", "waiting": "magenta"}
_MOST_ROWS = 40


class LiveView(View):
    """Redraws the plan with the state and time of each step; the answer grows below it.

    Args:
        console: A terminal.
        heading: Whether to name the thread first.
    """

    def __init__(self, console: Console, *, heading: bool = True) -> None:
        self._console = console
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._replanning = False
        self._named = not heading

    def begin(self, question: str | None, thread_id: str, progress: Progress) -> None:
        """Show the question and start to redraw."""
        from rich.text import Text

        self._progress = progress
        if question:
            self._console.print(Text(safe(question), style="bold"))
        if not self._named:
            self._console.print(Text(f"thread {one_line(thread_id)}", style="dim"))
            self._named = True
        self._start()

    def event(self, event: Event, progress: Progress) -> None:
        """Redraw, or print what belongs above or below the plan."""
        if isinstance(event, Replan | Reclassify):
            self.close()  # the plan that failed stays on the screen; the next is drawn below it
            self._replanning = True
            self._above(event_lines(event, progress))
        elif isinstance(event, Retry) and progress.step(event.context_key) is None:
            self._above(event_lines(event, progress))
        if isinstance(event, PlanMade):
            self._replanning = False
            self._above([f"repaired: {one_line(repair, 400)}" for repair in event.repairs])
        if self._live is None:
            self._start()

    def end(self, end: TurnEnd, progress: Progress) -> None:
        """Show what the answer lacks: files, outcome, how to go on."""
        from rich.text import Text

        self.close()
        if answer := end.answer or progress.answer:
            self._console.print(Text(safe(answer)), end="\n\n")
        *lines, outcome = ending_lines(end, progress)
        if end.resume_command:
            resume, outcome = outcome, lines.pop()
        for line in lines:
            style = "red" if line.startswith("error:") else "cyan" if line[:5] == "file:" else ""
            self._console.print(Text(line, style=style), soft_wrap=True)
        self._console.print(Text(outcome, style=_OUTCOME_STYLES.get(end.status, "red")))
        if end.resume_command:
            self._console.print(Text(resume), soft_wrap=True)

    def close(self) -> None:
        """Stop redrawing; what was drawn last stays, but for the answer, which follows whole."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _start(self) -> None:
        from rich.live import Live

        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=8,
            vertical_overflow="ellipsis",
        )
        self._live.start(refresh=True)

    def _above(self, lines: list[str]) -> None:
        from rich.text import Text

        for line in lines:
            self._console.print(Text(line, style="yellow"))

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        progress = self._progress
        if progress is None:
            return Text("")
        parts: list[Any] = []
        if progress.selected:
            names = Text(one_line(" · ".join(progress.selected), 1000), style="cyan")
            parts.append(Text.assemble(("capabilities  ", "bold"), names))
        room = max(3, self._console.height - 10)
        answer = progress.answer if self._live is not None else ""
        if progress.steps and not self._replanning:
            parts.append(self._table(progress, room // 2 if answer else room))
        elif progress.phase and progress.outcome is None:
            from rich.spinner import Spinner

            parts.append(Spinner("dots", Text(one_line(progress.phase), style="dim")))
        if answer:
            lines = Text(safe(answer)).wrap(self._console, self._console.width)
            parts += [Text(), *lines[-max(2, room // 2) :]]
        return Group(*parts)

    def _table(self, progress: Progress, room: int) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        steps = list(progress.steps)
        shown = visible_steps(steps, min(_MOST_ROWS, room))
        table = Table(
            box=SIMPLE_HEAD,
            title=Text(f"plan {progress.version}", style="bold"),
            title_justify="left",
            pad_edge=False,
            show_edge=False,
        )
        table.add_column("", width=1)
        table.add_column("step", no_wrap=True)
        table.add_column("capability", no_wrap=True, style="cyan")
        table.add_column("from", no_wrap=True, style="dim", max_width=28)
        table.add_column("time", justify="right", no_wrap=True, min_width=7)
        table.add_column("", no_wrap=True, ratio=1)
        now = time.time()
        for step in shown:
            sign, style = _SIGNS[step.state]
            table.add_row(
                Text(sign, style=style),
                Text(one_line(step.key, 60), style=style if step.state != "done" else ""),
                Text(one_line(step.capability, 60)),
                Text(one_line(", ".join(step.needs), 60)),
                Text(time_of(step, now), style=style),
                Text(one_line(step.note, 300), style="dim" if step.state != "failed" else "red"),
            )
        if len(shown) < len(steps):
            table.caption = Text(hidden_words(steps, shown), style="dim")
        return table


def visible_steps(steps: list[Step], room: int) -> list[Step]:
    """Return the steps to show when not all fit: what runs or failed first, in plan order.

    Args:
        steps: All steps of the plan.
        room: How many fit.
    """
    if len(steps) <= room:
        return steps
    weight = {"running": 0, "retrying": 0, "waiting": 0, "failed": 1, "pending": 2}
    order = sorted(range(len(steps)), key=lambda n: (weight.get(steps[n].state, 3), n))
    return [steps[n] for n in sorted(order[:room])]


def hidden_words(steps: list[Step], shown: list[Step]) -> str:
    """Say what is not shown, by state."""
    visible = {step.key for step in shown}
    counts: dict[str, int] = {}
    for step in steps:
        if step.key not in visible:
            counts[step.state] = counts.get(step.state, 0) + 1
    return "and " + ", ".join(f"{count} {state}" for state, count in counts.items())


def time_of(step: Step, now: float) -> str:
    """Return how long a step took, or has been running."""
    if step.seconds is not None:
        return f"{step.seconds:.2f} s"
    if step.state == "running" and step.started is not None:
        return f"{max(0.0, now - step.started):.1f} s"
    return ""
