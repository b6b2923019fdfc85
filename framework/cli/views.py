"""How a turn is shown: redrawn on a terminal, line by line in a pipe, or as JSON.

What an event tells a person is said in one place, :func:`event_lines`, and how a turn ended in
:func:`ending_lines`; the views only decide where it stands.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from capgraph import telemetry as told
from capgraph.base.plan import plan_key
from capgraph.cli.questions import question_lines
from capgraph.cli.terminal import make_console, one_line, to_printable
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.diagram import step_notes
from capgraph.planning.waits import describe_wait

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from capgraph.graph.turn_runner import TurnResult

_OUTCOME_TEXTS = {
    "partial": "partial answer",
    "stopped": "stopped by a limit",
    "waiting": "waiting for a person",
    "cancelled": "interrupted",
}
_STATE_SIGNS = {
    "pending": ("·", "dim"),
    "running": ("▶", "yellow"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("⊘", "dim"),
    "not needed": ("⊘", "dim"),
    "waiting": ("?", "magenta"),
}


class View:
    """Shows one turn after the other; this one shows nothing."""

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Show what is asked; ``values`` is the state of a turn that goes on."""

    def show_event(self, event: told.Event) -> None:
        """Show the next event."""

    def show_end(self, end: TurnResult) -> None:
        """Show how the turn ended."""

    def close(self) -> None:
        """Leave the terminal as it was; harmless when called again."""


class AnswerView(View):
    """Writes the answer and nothing else."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show_end(self, end: TurnResult) -> None:
        """Write the answer."""
        if end.answer:
            self._console.print(to_printable(end.answer), soft_wrap=True)


class JsonView(View):
    """Writes the typed events for programs, one a line; the last line is the result.

    Only ASCII is written, so no character of an answer can act on a terminal.

    Args:
        file: Where to write; standard output when not given.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Name the thread, so that a reader can resume it whatever happens next."""
        self._write({"event_type": "turn_began", "thread_id": thread_id, "question": question})

    def show_event(self, event: told.Event) -> None:
        """Write the event."""
        self._write(event.model_dump(mode="json", exclude_none=True))

    def show_end(self, end: TurnResult) -> None:
        """Write the result."""
        self._write({"event_type": "result", **end.to_dict()})

    def _write(self, data: object) -> None:
        self._file.write(json.dumps(data, default=str) + "\n")
        self._file.flush()


class PlainView(View):
    """Writes one line per event with the seconds since the beginning, then the answer.

    Args:
        console: Where to write.
        heading: Whether to name the thread first.
    """

    def __init__(self, console: Console, *, heading: bool = True) -> None:
        self._console = console
        self._heading_shown = not heading
        self._started_at = time.monotonic()

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Say what is asked in which thread, and what of it is done already."""
        self._started_at = time.monotonic()
        if not self._heading_shown:
            self._print(f"thread: {one_line(thread_id)}", "dim")
            self._heading_shown = True
        if question:
            self._print(f"question: {one_line(question)}", "bold")
        from capgraph.graph.turn_runner import step_states

        done = [key for key, state in step_states(values).items() if state == "done"]
        if done:
            self._print(f"already done: {one_line(', '.join(done))}", "dim")

    def show_event(self, event: told.Event) -> None:
        """Write what the event says; pieces of the answer wait for its end."""
        for line in event_lines(event):
            self._print(f"[{time.monotonic() - self._started_at:7.2f}] {line}")

    def show_end(self, end: TurnResult) -> None:
        """Write answer, files and outcome."""
        if end.answer:
            self._print(f"answer:\n{to_printable(end.answer)}")
        for line in ending_lines(end):
            self._print(line)

    def _print(self, text: str, style: str | None = None) -> None:
        style = style if self._console.is_terminal else None
        self._console.print(text, style=style, soft_wrap=True)


@dataclass(slots=True)
class _Row:
    """A step of the plan in force, as the table shows it."""

    capability: str
    inputs: str
    state: str = "pending"
    started: float | None = None
    seconds: float | None = None
    note: str = ""
    ended: int = 0


class LiveView(PlainView):
    """Redraws the plan in place of lines about its steps; the answer is written as it comes.

    Args:
        console: A terminal.
        heading: Whether to name the thread first.
    """

    def __init__(self, console: Console, *, heading: bool = True) -> None:
        super().__init__(console, heading=heading)
        self._live: Live | None = None
        self._rows: dict[str, _Row] = {}
        self._title = self._phase = self._printed = ""
        self._is_answering = False

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Say what is asked, and draw the plan of a turn that goes on."""
        super().start_turn(question, thread_id, values)
        from capgraph.graph.turn_runner import step_states

        self._rows, self._printed, self._is_answering = {}, "", False
        self._set_plan(values.get("planning_execution_plan") or {}, step_states(values))
        self._start_live()

    def show_event(self, event: told.Event) -> None:
        """Redraw, or write what stands above or below the plan."""
        match event:
            case told.AnswerToken():
                if event.resets:
                    self._print_above(["the answer begins anew"])
                self._print_answer(event.text)
                return
            case told.Status():
                self._phase = next(iter(event_lines(event)), self._phase)
            case (
                told.StepStarted()
                | told.StepProgress()
                | told.StepFinished()
                | told.StepFailed()
                | told.StepSkipped()
            ):
                self._update_step(event)
            case told.Retry() if event.context_key in self._rows:
                row = self._rows[event.context_key]
                row.state, row.note = "pending", _retry_text(event)
            case told.ApprovalRequested() | told.TurnSuspended():
                self._mark_waiting(
                    event.steps if isinstance(event, told.ApprovalRequested) else event.waits
                )
            case told.PlanMade():
                self._title, self._is_answering = f"plan {event.version}", False
                self._set_plan(event.plan, {})
                self._print_above(
                    [f"repaired: {one_line(repair, 400)}" for repair in event.repairs]
                )
            case _:
                if isinstance(event, told.Replan | told.Reclassify):
                    self.close()  # the plan that failed stays; the next is drawn below it
                self._print_above(event_lines(event))
        self._start_live()

    def show_end(self, end: TurnResult) -> None:
        """Show what the answer lacks: files, outcome, how to go on."""
        for row in self._rows.values():
            if row.state == "running":
                row.state, row.note = "pending", "interrupted"
        self.close()
        answer, written = to_printable(end.answer).strip(), self._printed.strip()
        # What was written as it came is not written again, unless it was not the answer.
        rest = answer.removeprefix(written)
        lead = "\n" if written and rest == answer else ""
        if answer or written:
            self._console.print(f"{lead}{rest}", end="\n\n", soft_wrap=True)
        for line in ending_lines(end):
            style = {"error": "red", "file": "cyan", "outcome": "bold"}.get(line.split(":")[0])
            self._print(line, style)

    def close(self) -> None:
        """Stop redrawing; what was drawn last stays."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _set_plan(self, plan: Mapping[str, Any], states: Mapping[str, str]) -> None:
        before, self._rows = self._rows, {}
        for step in _steps(plan):
            key = str(step.get("context_key"))
            row = _Row(str(step.get("capability")), _step_summary(step))
            row.state = states.get(key, "pending")
            kept = before.get(key)
            same = kept and (kept.capability, kept.inputs) == (row.capability, row.inputs)
            self._rows[key] = kept if kept and same and kept.state == "done" else row

    def _update_step(
        self,
        event: told.StepStarted
        | told.StepProgress
        | told.StepFinished
        | told.StepFailed
        | told.StepSkipped,
    ) -> None:
        row = self._rows.setdefault(plan_key(event.context_key), _Row(event.capability, ""))
        if event.element is not None:
            row.ended += isinstance(event, told.StepFinished)
            row.note = f"{row.ended} of {event.elements}"
            return
        match event:
            case told.StepStarted():
                row.state, row.started, row.seconds, row.note = "running", time.time(), None, ""
            case told.StepProgress():
                row.note = _progress_text(event)
            case told.StepFinished():
                row.state, row.seconds, row.note = "done", event.duration, ""
            case told.StepFailed():
                row.state, row.seconds, row.note = "failed", event.duration, event.message
            case told.StepSkipped():
                row.state = "not needed" if event.not_needed else "skipped"
                row.note = event.reason

    def _mark_waiting(self, entries: Sequence[Mapping[str, Any]]) -> None:
        for entry in entries:
            row = self._rows.get(str(entry.get("context_key")))
            if row is not None:
                row.state, row.note = "waiting", describe_wait(entry) or row.note

    def _print_answer(self, text: str) -> None:
        """Write a piece of the answer below the plan, which is not redrawn any more."""
        self.close()
        self._is_answering = True
        piece = to_printable(text.replace("\r", ""))
        self._printed += piece
        self._console.print(piece, end="", soft_wrap=True)

    def _print_above(self, lines: list[str]) -> None:
        if lines and self._printed:
            self._console.print()
            self._printed = ""
        for line in lines:
            self._print(line, "yellow")

    def _start_live(self) -> None:
        if self._live is None and not self._is_answering:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=8
            )
            self._live.start(refresh=True)

    def _render(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        if not self._rows:
            return Spinner("dots", Text(self._phase, style="dim")) if self._live else Text()
        room = max(3, self._console.height - 8)
        shown = list(self._rows.items())
        if len(shown) > room:
            done = sum(row.state == "done" for row in self._rows.values())
            caption = f"{done} of {len(shown)} steps done"
            quiet = ("done", "pending", "skipped", "not needed")
            shown = [pair for pair in shown if pair[1].note or pair[1].state not in quiet][:room]
        else:
            caption = None
        table = Table.grid("", "", "", "", "", "", padding=(0, 2))
        table.title, table.title_justify, table.caption = self._title, "left", caption
        for column in table.columns:
            column.no_wrap = True
        for key, row in shown:
            sign, style = _STATE_SIGNS[row.state]
            seconds = row.seconds
            if row.state == "running" and row.started is not None:
                seconds = time.time() - row.started
            took = "" if seconds is None else f"{seconds:.2f} s"
            cells = (key, row.capability, row.inputs, took, row.note)
            table.add_row(
                Text(sign, style=style), *(Text(one_line(cell, 60)) for cell in cells), style=style
            )
        return table


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
    if as_json:
        return JsonView()
    console = make_console()
    if quiet:
        return AnswerView(console)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainView(console, heading=heading)
    return LiveView(console, heading=heading)


def _approval_line(event: told.ApprovalRequested | told.ApprovalDecided) -> str:
    if isinstance(event, told.ApprovalRequested):
        keys = ", ".join(str(step.get("context_key")) for step in event.steps)
        return f"approval asked for: {keys}"
    lost = f" (does not count: {event.refused})" if event.refused else ""
    return f"{event.by or 'somebody'}: {event.decision} {event.context_key}{lost}"


def _wait_lines(event: told.Event) -> Iterator[str]:
    if isinstance(event, told.TurnSuspended):
        for wait in event.waits:
            yield one_line(f"step {wait.get('context_key')} waits {describe_wait(wait)}", 1000)
    elif isinstance(event, told.StepResumed):
        came = f"{event.key!r} came" if event.by == "signal" else "its moment has come"
        yield one_line(f"step {event.context_key} goes on: {came}", 1000)


def event_lines(event: told.Event) -> list[str]:
    """Say in lines what an event tells a person; most events have one, some none."""
    match event:
        case told.StepStarted() | told.StepFinished() if event.element is not None:
            return []  # the step itself begins and ends
        case told.Status() if getattr(event, "source", None) == "framework" and event.message:
            line = event.message
        case told.CapabilitiesSelected():
            line = f"capabilities: {', '.join(event.capabilities) or 'none'}. {event.reason}"
        case told.PlanMade():
            return list(_plan_lines(event))
        case told.StepStarted():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            line = f"step {event.context_key} ({event.capability}) started{again}"
        case told.StepProgress():
            line = f"step {event.context_key}: {_progress_text(event)}"
        case told.StepFinished() | told.StepFailed() | told.StepSkipped():
            line = f"step {event.context_key} ({event.capability}) {_step_end_text(event)}"
        case told.Retry():
            line = f"retry {event.context_key or event.name}: {_retry_text(event)}"
        case told.Replan():
            line = f"planning again: {event.reason}"
        case told.Reclassify():
            line = f"choosing capabilities again: {event.reason}"
        case told.ApprovalRequested() | told.ApprovalDecided():
            line = _approval_line(event)
        case _:
            return list(_wait_lines(event))
    return [one_line(line, 1000)]


def ending_lines(end: TurnResult) -> list[str]:
    """Return the lines that close a turn, in a fixed order."""
    lines = [f"file: {one_line(path, 4000)}" for path in end.files]
    if end.status in {"waiting", "cancelled"}:
        lines += [line for asked in end.questions.values() for line in question_lines(asked)]
        waits = (end.outcome.get("waiting") or {}).items()
        lines += [one_line(f"{key} waits {describe_wait(wait)}", 1000) for key, wait in waits]
    missing = end.outcome.get("missing") or []
    if missing and end.status != "completed":
        lines.append(one_line(f"not done: {', '.join(missing)}", 1000))
    if idle := end.outcome.get("not_needed"):
        lines.append(one_line(f"not needed: {', '.join(idle)}", 1000))
    lines += [one_line(f"note: {note}", 1000) for note in end.outcome.get("notes") or ()]
    if end.model_calls:
        tokens = f"{end.input_tokens:,} tokens sent, {end.output_tokens:,} received"
        lines.append(f"models: {end.model_calls} call(s), {tokens}")
    if end.error is not None:
        lines.append(f"error: {to_printable(end.error)}")
    told_end = _OUTCOME_TEXTS.get(end.status, end.status)
    if end.status == "waiting" and not end.questions:
        told_end = "waiting for an event or a moment"
    lines.append(f"outcome: {told_end} in {end.seconds:.1f} s")
    if end.resume_command:
        lines.append(f"resume with: {one_line(end.resume_command, 4000)}")
    return lines


def _plan_lines(event: told.PlanMade) -> Iterator[str]:
    steps = _steps(event.plan)
    yield f"plan {event.version}: {len(steps)} step(s)"
    for number, step in enumerate(steps, start=1):
        said = _step_summary(step)
        text = (
            f"{number}. {step.get('context_key')} = {step.get('capability')}{said and ' ' + said}"
        )
        yield "  " + one_line(text)
    for repair in event.repairs:
        yield "  " + one_line(f"repaired: {repair}", 400)


def _steps(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of a plan, without the one that only answers."""
    return [
        step for step in plan.get("steps") or [] if step.get("capability") not in TERMINAL_STEPS
    ]


def _step_end_text(event: told.StepFinished | told.StepFailed | told.StepSkipped) -> str:
    match event:
        case told.StepFinished():
            gave = f": {', '.join(event.outputs)}" if event.outputs else ""
            return f"finished in {event.duration:.2f} s{gave}"
        case told.StepFailed():
            return f"failed after {event.duration:.2f} s, {event.severity}: {event.message}"
    how = "is not needed" if event.not_needed else "is passed over"
    return f"{how}: {event.reason}"


def _step_summary(step: Mapping[str, Any]) -> str:
    needs = [key for entry in step.get("inputs") or [] for key in entry.values()]
    source = [f"from {', '.join(needs)}"] if needs else []
    return ", ".join([*source, *step_notes(step)])


def _progress_text(event: told.StepProgress) -> str:
    percent = "" if event.progress is None else f" ({event.progress:.0%})"
    return f"{event.message}{percent}"


def _retry_text(event: told.Retry) -> str:
    text = f"attempt {event.attempt} of {event.max_attempts} in {event.delay:.1f} s"
    return f"{text}: {event.message}" if event.message else text
