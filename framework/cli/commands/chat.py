"""``capgraph chat``: an interactive conversation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import (
    is_interactive,
    make_console,
    one_line,
    print_error,
    print_wrapped,
    to_printable,
)
from capgraph.configs.errors import CapgraphError

if TYPE_CHECKING:
    from rich.console import Console

    from capgraph.cli.session import Session

app: typer.Typer = typer.Typer()
_SHOWN_MESSAGES = 6
_PROMPT = "you> "


@app.command("chat", epilog=EXIT_CODES_HELP)
@with_shared_options(
    "thread", "data", "config", "model", "db", "submit", "engine", "temporal", "plain"
)
def chat(shared: SharedOptions) -> None:
    """Chat with the agent; '/help' lists the commands."""
    from capgraph.cli.session import open_session
    from capgraph.cli.views import make_view

    if shared.submit:
        from capgraph.cli.submit import submit_lines

        submit_lines(shared)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing and history, where available
    view = make_view(plain=shared.plain, heading=False)
    code = ExitCode.ANSWERED
    with open_session(view, ("capgraph", "chat"), shared) as session:
        talk = _Chat(session, make_console())
        try:
            talk.welcome()
            talk.continue_turn()
            while talk.handle_line():
                pass
        except KeyboardInterrupt:
            talk.console.print()
            code = ExitCode.INTERRUPTED
        talk.goodbye()
    raise typer.Exit(code)


@dataclass
class _Chat:
    """Interactive chat session: reads lines, runs turns, and asks for approvals."""

    session: Session
    console: Console

    def handle_line(self) -> bool:
        """Read and handle one line of the chat. Return False when the user exits."""
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            self.console.print()
            return False
        if not line:
            if self.session.state().interrupts:
                self._run_turn(None)
            return True
        try:
            prepared = self.session.prepare(line)
        except CapgraphError as exc:
            print_error(exc)
            return True
        for key, value in prepared.switches.items():
            self.console.print(f"{key} = {str(value).lower()}", style="dim")
        for command in prepared.commands:
            if command == "exit":
                return False
            self._run_command(command)
        graph_input = prepared.input
        if prepared.is_resume and is_interactive() and self._is_new_message(line):
            if not self._confirms("This message cancels the open request. Send it? [y/N] "):
                return True
            graph_input = {"messages": [("user", line)]}
        if graph_input is not None:
            self._run_turn(
                self.session.add_data(graph_input) if isinstance(graph_input, dict) else graph_input
            )
        return True

    def _run_turn(self, graph_input: Any) -> None:
        from capgraph.cli.questions import ask_all

        ask = (lambda questions: ask_all(questions, self.console)) if is_interactive() else None
        end = self.session.run_turn(graph_input, None, ask)
        if end.status == "cancelled":
            if end.questions:
                self.console.print(
                    "\nThe request stays open. Press Enter to answer it.",
                    style="yellow",
                )
            else:
                self.continue_turn()

    def welcome(self) -> None:
        """Print the agent's name, the thread ID, and the latest messages of the thread."""
        name = one_line(self.session.agent.settings.name)
        self.console.print(f"{name}, thread {one_line(self.session.thread_id)}", style="bold")
        self.console.print(
            "Type a question; '/help' lists the commands, '/exit' quits.", style="dim"
        )
        messages = self.session.state().values.get("messages") or []
        for message in messages[-_SHOWN_MESSAGES:]:
            speaker = "you" if message.type == "human" else "agent"
            print_wrapped(self.console, f"{speaker}> {to_printable(message.text)}", "dim")

    def continue_turn(self) -> None:
        """Resume the thread's unfinished turn.

        A turn that was interrupted without an open question is resumed only if the user agrees.
        """
        state = self.session.state()
        if state.interrupts:
            self._run_turn(None)
        elif state.tasks:
            self.console.print("The last turn of this thread is unfinished.", style="yellow")
            if self._confirms("Resume it? [Y/n] ", is_default=True):
                self._run_turn(None)

    def _is_new_message(self, line: str) -> bool:
        from capgraph.cli.questions import is_decision

        return not is_decision(line, [item.value for item in self.session.state().interrupts])

    def _confirms(self, prompt: str, *, is_default: bool = False) -> bool:
        try:
            typed = input(prompt).strip().lower()
        except EOFError:
            self.console.print()
            return False
        return typed in {"y", "yes"} or (is_default and not typed)

    def _run_command(self, command: str) -> None:
        if command == "help":
            for name, meaning in self.session.gateway.HELP.items():
                self.console.print(f"  {name:<15} {meaning}")
        elif command == "clear":
            from capgraph.cli.agent import new_thread_id

            self.goodbye()
            self.session.thread_id = new_thread_id()
            self.console.print(f"thread {self.session.thread_id}", style="bold")
        elif command == "capabilities":
            print_wrapped(self.console, to_printable(self.session.agent.registry.describe()))
        elif command == "status":
            for line in self._status_lines():
                self.console.print(one_line(line, 1000))

    def _status_lines(self) -> Iterator[str]:
        values = self.session.state().values
        turns = (values.get("runtime_info") or {}).get("turn", 0)
        yield f"thread {self.session.thread_id}: {turns} turn(s)"
        for name, value in sorted((values.get("agent_control") or {}).items()):
            yield f"switch {name} = {str(value).lower()}"
        for kind, entries in sorted((values.get("capability_context_data") or {}).items()):
            yield f"context {kind}: {', '.join(entries)}"
        if outcome := values.get("execution_outcome"):
            yield f"last turn: {outcome.get('status')}"

    def goodbye(self) -> None:
        """Print the command that resumes the thread."""
        if self.session.state().values:
            command = one_line(self.session.resume_command(), 4000)
            print_wrapped(self.console, f"resume with: {command}", is_copied=True)
