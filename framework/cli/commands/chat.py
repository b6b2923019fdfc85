"""``capgraph chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import is_interactive, make_console, one_line, print_error, to_printable
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
    """Talk with the agent; '/help' shows the commands."""
    from capgraph.cli.session import open_session
    from capgraph.cli.views import make_view

    if shared.submit:
        from capgraph.cli.submit import submit_lines

        submit_lines(shared)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited and recalled, where the platform has it
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
    """Reads lines, runs turns, asks for approvals, and leaves a thread that can be resumed."""

    session: Session
    console: Console

    def handle_line(self) -> bool:
        """Read a line and do what it says; returns whether to go on."""
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            self.console.print()
            return False
        if not line:
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
        given = prepared.input
        if given is not None:
            self._run_turn(self.session.add_data(given) if isinstance(given, dict) else given)
        return True

    def _run_turn(self, graph_input: Any) -> None:
        from capgraph.cli.questions import ask_all

        asks = (lambda asked: ask_all(asked, self.console)) if is_interactive() else None
        end = self.session.run_turn(graph_input, None, asks)
        if end.status == "cancelled":
            if end.questions:
                raise KeyboardInterrupt
            self.continue_turn()

    def welcome(self) -> None:
        """Name the agent and show what was said last."""
        name = one_line(self.session.agent.settings.name)
        self.console.print(f"{name}, thread {one_line(self.session.thread_id)}", style="bold")
        self.console.print(
            "Write a question; '/help' shows the commands, '/exit' leaves.", style="dim"
        )
        messages = self.session.state().values.get("messages") or []
        for message in messages[-_SHOWN_MESSAGES:]:
            who = "you" if message.type == "human" else "agent"
            self.console.print(f"{who}> {to_printable(message.text)}", style="dim", soft_wrap=True)

    def continue_turn(self) -> None:
        """Go on with an unfinished turn, if the person wants to."""
        state = self.session.state()
        if state.interrupts:
            self._run_turn(None)
        elif state.tasks:
            self.console.print("The last turn of this thread is unfinished.", style="yellow")
            with contextlib.suppress(EOFError):
                if input("Go on with it? [Y/n] ").strip().lower() in {"", "y", "yes"}:
                    self._run_turn(None)

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
            self.console.print(to_printable(self.session.agent.registry.describe()), soft_wrap=True)
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
        """Say how the thread can be taken up again."""
        if self.session.state().values:
            command = one_line(self.session.resume_command(), 4000)
            self.console.print(f"resume with: {command}", soft_wrap=True)
