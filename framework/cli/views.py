"""Views of a turn: a live view on a terminal, lines in a pipe, or JSON.

:func:`event_lines` and :func:`ending_lines` contain all texts; the views decide where to print
them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from capgraph import telemetry as events
from capgraph.base.plan import plan_key
from capgraph.cli.questions import question_lines
from capgraph.cli.terminal import (
    make_console,
    one_line,
    print_wrapped,
    render_markdown,
    split_complete_blocks,
    to_printable,
)
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
_COPIED = ("resume with:", "file:")
_WIDE_COLUMNS = 100
_MAX_NOTE = 160
STATE_SIGNS = {
    "pending": ("·", "dim"),
    "running": ("▶", "yellow"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("⊘", "dim"),
    "not needed": ("⊘", "dim"),
    "waiting": ("?", "magenta"),
}


class View:
    """Base class of views; shows nothing."""

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Show the user's question at the start of a turn.

        ``values`` is the saved state of a turn that is resumed.
        """

    def show_event(self, event: events.Event) -> None:
        """Show one event of the turn."""

    def show_end(self, end: TurnResult, *, was_asked: bool = False) -> None:
        """Show the answer and the outcome of a finished turn.

        Args:
            end: Result of the turn.
            was_asked: True if the user has already seen the open questions.
        """

    def close(self) -> None:
        """Restore the terminal. Can be called repeatedly."""


class AnswerView(View):
    """View that prints only the answer, with its Markdown rendered on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show_end(self, end: TurnResult, *, was_asked: bool = False) -> None:
        """Print only the answer of a finished turn."""
        if end.answer and self._console.is_terminal:
            self._console.print(render_markdown(end.answer))
        elif end.answer:
            self._console.print(to_printable(end.answer), soft_wrap=True)


class JsonView(View):
    """View that prints each event of a turn as one line of JSON; the last line is the result.

    The output is pure ASCII, so an answer cannot send control sequences to the terminal.

    Args:
        file: Output file; standard output by default.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Print the thread ID first, so that the thread can be resumed even if the turn fails."""
        self._write({"event_type": "turn_began", "thread_id": thread_id, "question": question})

    def show_event(self, event: events.Event) -> None:
        """Print an event as one line of JSON."""
        self._write(event.model_dump(mode="json", exclude_none=True))

    def show_end(self, end: TurnResult, *, was_asked: bool = False) -> None:
        """Print the result of the turn as one line of JSON."""
        self._write({"event_type": "result", **end.to_dict()})

    def _write(self, data: object) -> None:
        self._file.write(json.dumps(data, default=str) + "\n")
        self._file.flush()


class PlainView(View):
    """View that prints one line per event with the elapsed seconds, followed by the answer.

    Args:
        console: Output console.
        heading: True to print the thread ID first.
    """

    def __init__(self, console: Console, *, heading: bool = True) -> None:
        self._console = console
        self._heading_shown = not heading
        self._started_at = time.monotonic()

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Print the thread ID, the question, and the steps that were completed before a resume."""
        if not self._heading_shown:
            self._print(f"thread: {one_line(thread_id)}", "dim")
            self._heading_shown = True
        if not values:  # a resumed turn continues its clock
            self._started_at = time.monotonic()
        if question:
            self._print(f"question: {one_line(question)}", "bold")
        from capgraph.graph.turn_runner import step_states

        done = [key for key, state in step_states(values).items() if state == "done"]
        if done:
            self._print(f"already done: {one_line(', '.join(done))}", "dim")

    def show_event(self, event: events.Event) -> None:
        """Print the lines that describe an event. Streamed answer tokens are skipped."""
        for line in event_lines(event):
            self._print(f"[{time.monotonic() - self._started_at:7.2f}] {line}")

    def show_end(self, end: TurnResult, *, was_asked: bool = False) -> None:
        """Print the answer, the created files, and the outcome of a finished turn."""
        if end.answer:
            self._print(f"answer:\n{to_printable(end.answer)}")
        for line in ending_lines(end, was_asked=was_asked):
            self._print(line)

    def _print(self, text: str, style: str | None = None) -> None:
        print_wrapped(self._console, text, style, is_copied=text.startswith(_COPIED))


@dataclass(slots=True)
class _Row:
    """Row of the plan table: one step."""

    capability: str
    inputs: str
    state: str = "pending"
    started: float | None = None
    seconds: float | None = None
    note: str = ""
    ended: int = 0


class LiveView(PlainView):
    """View that updates the plan as a table and streams the answer with its Markdown rendered.

    Args:
        console: Console of a terminal.
        heading: True to print the thread ID first.
    """

    def __init__(self, console: Console, *, heading: bool = True) -> None:
        super().__init__(console, heading=heading)
        self._live: Live | None = None
        self._rows: dict[str, _Row] = {}
        self._title = self._phase = self._streamed = self._open_block = ""
        self._is_answering = False

    def start_turn(self, question: str | None, thread_id: str, values: Mapping[str, Any]) -> None:
        """Print the question and draw the plan of a turn that is resumed."""
        self._end_answer()
        super().start_turn(question, thread_id, values)
        from capgraph.graph.turn_runner import step_states

        self._rows, self._is_answering = {}, False
        self._set_plan(values.get("planning_execution_plan") or {}, step_states(values))
        self._start_live()

    def show_event(self, event: events.Event) -> None:
        """Update the plan table, or print the event above or below the table."""
        match event:
            case events.AnswerToken():
                if event.resets:
                    self._print_above(["the answer starts over"])
                self._stream_answer(event.text)
                return
            case events.Status():
                self._phase = next(iter(event_lines(event)), self._phase)
            case (
                events.StepStarted()
                | events.StepProgress()
                | events.StepFinished()
                | events.StepFailed()
                | events.StepSkipped()
            ):
                self._update_step(event)
            case events.Retry() if event.context_key in self._rows:
                row = self._rows[event.context_key]
                row.state, row.note = "pending", _retry_text(event)
            case events.ApprovalRequested() | events.TurnSuspended():
                self._mark_waiting(
                    event.steps if isinstance(event, events.ApprovalRequested) else event.waits
                )
            case events.PlanMade():
                self._title, self._is_answering = f"plan {event.version}", False
                self._set_plan(event.plan, {})
                self._print_above(
                    [f"repaired: {one_line(repair, 400)}" for repair in event.repairs]
                )
            case _:
                if isinstance(event, events.Replan | events.Reclassify):
                    self.close()  # keep the failed plan on screen; the next one is drawn below it
                self._print_above(event_lines(event))
        self._start_live()

    def show_end(self, end: TurnResult, *, was_asked: bool = False) -> None:
        """Print the rest of the answer that was not streamed, then the files and the outcome."""
        for row in self._rows.values():
            if row.state == "running":
                row.state, row.note = "pending", "interrupted"
        self.close()
        answer, streamed = end.answer.replace("\r", "").strip(), self._streamed.strip()
        # Print only what has not been streamed, or all of it if the streamed text differs.
        if streamed and not answer.startswith(streamed):
            self._end_answer()
            streamed = ""
        if rest := answer.removeprefix(streamed):
            self._open_block = self._open_block.rstrip() + rest if streamed else rest
        if answer or streamed:
            self._end_answer()
            self._console.print()
        for line in ending_lines(end, was_asked=was_asked):
            style = {"error": "red", "file": "cyan", "outcome": "bold"}.get(line.split(":")[0])
            self._print(line, style)

    def close(self) -> None:
        """Stop updating the plan table, and leave its last state on the screen."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _set_plan(self, plan: Mapping[str, Any], states: Mapping[str, str]) -> None:
        before, self._rows = self._rows, {}
        for step in _steps(plan):
            key = str(step.get("context_key"))
            row = _Row(str(step.get("capability")), _step_summary(step))
            row.state = states.get(key, "pending")
            previous = before.get(key)
            is_same = previous and (previous.capability, previous.inputs) == (
                row.capability,
                row.inputs,
            )
            self._rows[key] = previous if previous and is_same and previous.state == "done" else row

    def _update_step(
        self,
        event: events.StepStarted
        | events.StepProgress
        | events.StepFinished
        | events.StepFailed
        | events.StepSkipped,
    ) -> None:
        row = self._rows.setdefault(plan_key(event.context_key), _Row(event.capability, ""))
        if event.element is not None:
            row.ended += isinstance(event, events.StepFinished)
            row.note = f"{row.ended} of {event.elements}"
            return
        match event:
            case events.StepStarted():
                row.state, row.started, row.seconds, row.note = "running", time.time(), None, ""
            case events.StepProgress():
                row.note = _progress_text(event)
            case events.StepFinished():
                row.state, row.seconds, row.note = "done", event.duration, ""
            case events.StepFailed():
                row.state, row.seconds, row.note = "failed", event.duration, event.message
            case events.StepSkipped():
                row.state = "not needed" if event.not_needed else "skipped"
                row.note = event.reason

    def _mark_waiting(self, entries: Sequence[Mapping[str, Any]]) -> None:
        for entry in entries:
            row = self._rows.get(str(entry.get("context_key")))
            if row is not None:
                row.state, row.note = "waiting", describe_wait(entry) or row.note

    def _stream_answer(self, text: str) -> None:
        """Print the complete blocks of the answer below the plan table, and update the open block."""
        if not self._is_answering:
            self.close()  # the plan table is no longer updated
            self._is_answering = True
        piece = text.replace("\r", "")
        self._streamed += piece
        complete, self._open_block = split_complete_blocks(self._open_block + piece)
        if complete:
            self._console.print(render_markdown(complete), end="\n\n")
        self._start_live()

    def _end_answer(self) -> None:
        """Print the open block of a streamed answer."""
        self.close()
        if self._open_block.strip():
            self._console.print(render_markdown(self._open_block))
        self._streamed = self._open_block = ""

    def _print_above(self, lines: list[str]) -> None:
        if lines and self._streamed:
            self._end_answer()
        for line in lines:
            self._print(line, "yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        print_wrapped(self._console, text, style, is_copied=text.startswith(_COPIED))

    def _start_live(self) -> None:
        if self._live is None:
            from rich.live import Live

            render = self._render_open_block if self._is_answering else self._render
            self._live = Live(
                get_renderable=render,
                console=self._console,
                refresh_per_second=8,
                transient=self._is_answering,
            )
            self._live.start(refresh=True)

    def _render_open_block(self) -> RenderableType:
        return render_markdown(self._open_block)

    def _render(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        if not self._rows:
            return Spinner("dots", Text(self._phase, style="dim")) if self._live else Text()
        max_rows = max(3, self._console.height - 8)
        shown = list(self._rows.items())
        if len(shown) > max_rows:
            done = sum(row.state == "done" for row in self._rows.values())
            caption = f"{done} of {len(shown)} steps done"
            quiet_states = ("done", "pending", "skipped", "not needed")
            shown = [pair for pair in shown if pair[1].note or pair[1].state not in quiet_states][
                :max_rows
            ]
        else:
            caption = None
        is_wide = self._console.width >= _WIDE_COLUMNS
        table = Table.grid(padding=(0, 2))
        table.title, table.title_justify, table.caption = self._title, "left", caption
        table.add_column(width=1)
        table.add_column(no_wrap=True, max_width=30)
        if is_wide:  # a narrow terminal has no room for capability and inputs
            table.add_column(no_wrap=True)
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=8, justify="right")
        table.add_column(overflow="fold")
        for key, row in shown:
            sign, style = STATE_SIGNS[row.state]
            seconds = row.seconds
            if row.state == "running" and row.started is not None:
                seconds = time.time() - row.started
            duration = "" if seconds is None else f"{seconds:.2f} s"
            details = (row.capability, row.inputs) if is_wide else ()
            cells = [Text(one_line(cell, 60)) for cell in (key, *details, duration)]
            note = Text(one_line(row.note, _MAX_NOTE))
            table.add_row(Text(sign, style=style), *cells, note, style=style)
        return table


def make_view(
    *, as_json: bool = False, plain: bool = False, quiet: bool = False, heading: bool = True
) -> View:
    """Create the view that prints turns to standard output.

    Args:
        as_json: Print JSON lines.
        plain: Print lines even on a terminal.
        quiet: Print only the answer.
        heading: Print the thread ID first.
    """
    if as_json:
        return JsonView()
    console = make_console()
    if quiet:
        return AnswerView(console)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainView(console, heading=heading)
    return LiveView(console, heading=heading)


def _approval_line(event: events.ApprovalRequested | events.ApprovalDecided) -> str:
    if isinstance(event, events.ApprovalRequested):
        keys = ", ".join(str(step.get("context_key")) for step in event.steps)
        return f"approval requested for: {keys}"
    lost = f" (not counted: {event.refused})" if event.refused else ""
    return f"{event.by or 'unknown user'}: {event.decision} {event.context_key}{lost}"


def _wait_lines(event: events.Event) -> Iterator[str]:
    if isinstance(event, events.TurnSuspended):
        for wait in event.waits:
            yield one_line(f"step {wait.get('context_key')} waits {describe_wait(wait)}", 1000)
    elif isinstance(event, events.StepResumed):
        cause = f"received {event.key!r}" if event.by == "signal" else "its wait is over"
        yield one_line(f"step {event.context_key} resumes: {cause}", 1000)


def event_lines(event: events.Event) -> list[str]:
    """Format an event as lines of text. The list is empty for events that are not displayed."""
    match event:
        case events.StepStarted() | events.StepFinished() if event.element is not None:
            return []  # reported by the events of the whole step
        case events.Status() if getattr(event, "source", None) == "framework" and event.message:
            line = event.message
        case events.CapabilitiesSelected():
            line = f"capabilities: {', '.join(event.capabilities) or 'none'}. {event.reason}"
        case events.PlanMade():
            return list(_plan_lines(event))
        case events.StepStarted():
            attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
            line = f"step {event.context_key} ({event.capability}) started{attempt}"
        case events.StepProgress():
            line = f"step {event.context_key}: {_progress_text(event)}"
        case events.StepFinished() | events.StepFailed() | events.StepSkipped():
            line = f"step {event.context_key} ({event.capability}) {_step_end_text(event)}"
        case events.Retry():
            line = f"retry {event.context_key or event.name}: {_retry_text(event)}"
        case events.Replan():
            line = f"planning again: {event.reason}"
        case events.Reclassify():
            line = f"choosing capabilities again: {event.reason}"
        case events.ApprovalRequested() | events.ApprovalDecided():
            line = _approval_line(event)
        case _:
            return list(_wait_lines(event))
    return [one_line(line, 1000)]


def ending_lines(end: TurnResult, *, was_asked: bool = False) -> list[str]:
    """Return the lines printed after a turn: files, open questions, unfinished steps, and notes.

    Args:
        end: Result of the turn.
        was_asked: True if the user has already seen the open questions.
    """
    lines = [f"file: {one_line(path, 4000)}" for path in end.files]
    if end.status in {"waiting", "cancelled"}:
        questions = () if was_asked else end.questions.values()
        lines += [line for question in questions for line in question_lines(question)]
        waits = (end.outcome.get("waiting") or {}).items()
        lines += [one_line(f"{key} waits {describe_wait(wait)}", 1000) for key, wait in waits]
    missing = end.outcome.get("missing") or []
    if missing and end.status != "completed":
        lines.append(one_line(f"not done: {', '.join(missing)}", 1000))
    if unneeded := end.outcome.get("not_needed"):
        lines.append(one_line(f"not needed: {', '.join(unneeded)}", 1000))
    lines += [one_line(f"note: {note}", 1000) for note in end.outcome.get("notes") or ()]
    if end.model_calls:
        tokens = f"{end.input_tokens:,} tokens sent, {end.output_tokens:,} received"
        lines.append(f"models: {end.model_calls} call(s), {tokens}")
    if end.error is not None:
        lines.append(f"error: {to_printable(end.error)}")
    outcome = _OUTCOME_TEXTS.get(end.status, end.status)
    if end.status == "waiting" and not end.questions:
        outcome = "waiting for an event or a time"
    lines.append(f"outcome: {outcome} in {end.seconds:.1f} s")
    if end.resume_command:
        lines.append(f"resume with: {one_line(end.resume_command, 4000)}")
    return lines


def _plan_lines(event: events.PlanMade) -> Iterator[str]:
    steps = _steps(event.plan)
    yield f"plan {event.version}: {len(steps)} step(s)"
    for number, step in enumerate(steps, start=1):
        summary = _step_summary(step)
        text = f"{number}. {step.get('context_key')} = {step.get('capability')}{summary and ' ' + summary}"
        yield "  " + one_line(text)
    for repair in event.repairs:
        yield "  " + one_line(f"repaired: {repair}", 400)


def _steps(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of a plan, except terminal steps such as the final answer."""
    return [
        step for step in plan.get("steps") or [] if step.get("capability") not in TERMINAL_STEPS
    ]


def _step_end_text(event: events.StepFinished | events.StepFailed | events.StepSkipped) -> str:
    match event:
        case events.StepFinished():
            outputs = f": {', '.join(event.outputs)}" if event.outputs else ""
            return f"finished in {event.duration:.2f} s{outputs}"
        case events.StepFailed():
            return f"failed after {event.duration:.2f} s, {event.severity}: {event.message}"
    result = "is not needed" if event.not_needed else "is skipped"
    return f"{result}: {event.reason}"


def _step_summary(step: Mapping[str, Any]) -> str:
    needs = [key for entry in step.get("inputs") or [] for key in entry.values()]
    source = [f"from {', '.join(needs)}"] if needs else []
    return ", ".join([*source, *step_notes(step)])


def _progress_text(event: events.StepProgress) -> str:
    percent = "" if event.progress is None else f" ({event.progress:.0%})"
    return f"{event.message}{percent}"


def _retry_text(event: events.Retry) -> str:
    text = f"attempt {event.attempt} of {event.max_attempts} in {event.delay:.1f} s"
    return f"{text}: {event.message}" if event.message else text
