"""Line by line, for pipes and logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from framework import telemetry as told
from framework.cli.progress import retry_text
from framework.cli.terminal import one_line, safe
from framework.cli.views import View
from framework.cli.views.endings import ending_lines

if TYPE_CHECKING:
    from rich.console import Console

    from framework.cli.progress import Progress
    from framework.cli.turn import TurnEnd


class PlainLines(View):
    """Writes one line per event with the seconds since the beginning, then the answer.

    Args:
        console: Where to write.
        heading: Whether to name the thread first.
    """

    def __init__(self, console: Console, *, heading: bool = True) -> None:
        self._console = console
        self._named = not heading
        self._began = time.monotonic()

    def begin(self, question: str | None, thread_id: str, progress: Progress) -> None:
        """Say what is asked in which thread."""
        self._began = time.monotonic()
        if not self._named:
            self._print(f"thread: {one_line(thread_id)}")
            self._named = True
        if question:
            self._print(f"question: {one_line(question)}")
        done = [step.key for step in progress.steps if step.state == "done"]
        if done:
            self._print(f"already done: {one_line(', '.join(done))}")

    def event(self, event: told.Event, progress: Progress) -> None:
        """Write what the event says; pieces of the answer wait for its end."""
        for line in event_lines(event, progress):
            self._print(f"[{time.monotonic() - self._began:7.2f}] {line}")

    def end(self, end: TurnEnd, progress: Progress) -> None:
        """Write answer, files and outcome."""
        if end.answer:
            self._print(f"answer:\n{safe(end.answer)}")
        for line in ending_lines(end, progress):
            self._print(line)

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


class AnswerOnly(View):
    """Writes the answer and nothing else.

    Args:
        console: Where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def end(self, end: TurnEnd, progress: Progress) -> None:
        """Write the answer."""
        if end.answer:
            self._console.print(safe(end.answer), soft_wrap=True)


def event_lines(event: told.Event, progress: Progress) -> list[str]:
    """Say in lines what an event tells a person; most events have one, some none."""
    match event:
        case told.Status() if getattr(event, "source", None) == "framework" and event.message:
            return [one_line(event.message)]
        case told.CapabilitiesSelected():
            names = ", ".join(event.capabilities) or "none"
            return [one_line(f"capabilities: {names}. {event.reason}", 400)]
        case told.PlanMade():
            return _plan_lines(event, progress)
        case told.StepStarted():
            attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return [one_line(f"step {event.context_key} ({event.capability}) started{attempt}")]
        case told.StepProgress():
            percent = "" if event.progress is None else f" ({event.progress:.0%})"
            return [one_line(f"step {event.context_key}: {event.message}{percent}", 400)]
        case told.StepFinished():
            gave = f": {', '.join(event.outputs)}" if event.outputs else ""
            name = f"{event.context_key} ({event.capability})"
            return [one_line(f"step {name} finished in {event.duration:.2f} s{gave}")]
        case told.StepFailed():
            name = f"{event.context_key} ({event.capability})"
            head = f"step {name} failed after {event.duration:.2f} s, {event.severity}"
            return [one_line(f"{head}: {event.message}", 1000)]
        case _:
            return _turn_lines(event)


def _turn_lines(event: told.Event) -> list[str]:
    match event:
        case told.Retry():
            return [one_line(f"retry {event.context_key or event.name}: {retry_text(event)}", 1000)]
        case told.Replan():
            return [one_line(f"planning again: {event.reason}", 1000)]
        case told.Reclassify():
            return [one_line(f"choosing capabilities again: {event.reason}", 1000)]
        case told.ApprovalAsked():
            keys = ", ".join(str(step.get("context_key")) for step in event.steps)
            return [one_line(f"approval asked for: {keys}")]
        case _:
            return []


def _plan_lines(event: told.PlanMade, progress: Progress) -> list[str]:
    lines = [f"plan {event.version}: {len(progress.steps)} step(s)"]
    for number, step in enumerate(progress.steps, start=1):
        source = f" from {', '.join(step.needs)}" if step.needs else ""
        kept = ", done already" if step.state == "done" else ""
        lines.append("  " + one_line(f"{number}. {step.key} = {step.capability}{source}{kept}"))
    lines += ["  " + one_line(f"repaired: {repair}", 400) for repair in event.repairs]
    return lines
