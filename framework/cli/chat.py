"""``capgraph chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from configs.errors import CapgraphError
from framework.cli.ask import AskOptions, Session, opened
from framework.cli.exit_codes import ExitCode
from framework.cli.terminal import is_interactive, make_console, one_line, print_error, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

_HISTORY_SHOWN = 6
_HISTORY_KEPT = 1000
_PROMPT = "you> "


class Chat:
    """Reads lines, runs turns, asks for approvals, and leaves a thread that can be resumed.

    Args:
        options: What the command line says.
    """

    def __init__(self, options: AskOptions) -> None:
        self._options = options
        self._console = make_console()

    def run(self) -> int:
        """Talk until the person leaves; returns the exit code."""
        code: int = ExitCode.ANSWERED
        with opened(self._options, "chat") as session, _line_editing():
            try:
                self._welcome(session)
                self._go_on(session)
                while self._one_line(session):
                    pass
            except KeyboardInterrupt:
                self._console.print()
                code = ExitCode.INTERRUPTED
            self._goodbye(session)
        return code

    # --- one line -------------------------------------------------------------------------

    def _one_line(self, session: Session) -> bool:
        """Read a line and do what it says; returns whether to go on."""
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            self._console.print()
            return False
        if not line:
            return True
        try:
            prepared = session.prepare(line)
        except CapgraphError as exc:
            print_error(exc)
            return True
        for key, value in prepared.switched.items():
            self._console.print(f"{key} = {str(value).lower()}", style="dim")
        for command in prepared.commands:
            if command == "exit":
                return False
            self._command(command, session)
        given = prepared.input
        if given is not None:
            self._turn(session, session.with_data(given) if isinstance(given, dict) else given)
        return True

    def _turn(self, session: Session, given: Any) -> None:
        from framework.cli.questions import ask_all
        from framework.cli.views import make_view

        view = make_view(plain=self._options.plain, heading=False)
        asks = (lambda asked: ask_all(asked, self._console)) if is_interactive() else None
        end, _ = session.turn(given, None, view, asks)
        if end.status == "cancelled" and end.questions:
            raise KeyboardInterrupt
        if end.status == "cancelled":
            self._go_on(session)

    # --- what a thread holds -----------------------------------------------------------------

    def _welcome(self, session: Session) -> None:
        print_ = self._console.print
        name = one_line(session.agent.settings.name)
        print_(f"{name}, thread {one_line(session.thread_id)}", style="bold")
        print_("Write a question; '/help' shows the commands, '/exit' leaves.", style="dim")
        messages = session.state().values.get("messages") or []
        for message in messages[-_HISTORY_SHOWN:]:
            who = "you" if message.type == "human" else "agent"
            print_(f"{who}> {safe(message.text)}", style="dim", soft_wrap=True)

    def _go_on(self, session: Session) -> None:
        """Go on with an unfinished turn, if the person wants to."""
        state = session.state()
        if state.interrupts:
            self._turn(session, None)
        elif state.tasks:
            self._console.print("The last turn of this thread is unfinished.", style="yellow")
            try:
                answer = input("Go on with it? [Y/n] ").strip().lower()
            except EOFError:
                return
            if answer in {"", "y", "yes"}:
                self._turn(session, None)

    def _command(self, command: str, session: Session) -> None:
        if command == "help":
            for name, meaning in session.gateway.HELP.items():
                self._console.print(f"  {name:<15} {meaning}")
        elif command == "clear":
            from framework.cli.agent import new_thread_id

            self._goodbye(session)
            session.thread_id = new_thread_id()
            self._console.print(f"thread {session.thread_id}", style="bold")
        elif command == "capabilities":
            self._console.print(safe(session.agent.registry.describe()), soft_wrap=True)
        elif command == "status":
            self._status(session)

    def _status(self, session: Session) -> None:
        values = session.state().values
        control = values.get("agent_control") or {}
        turns = (values.get("runtime_info") or {}).get("turn", 0)
        self._console.print(f"  thread    {one_line(session.thread_id)}, {turns} turn(s)")
        for name, value in sorted(control.items()):
            self._console.print(one_line(f"  switch    {name} = {str(value).lower()}"))
        for kind, entries in sorted((values.get("capability_context_data") or {}).items()):
            self._console.print(one_line(f"  context   {kind}: {', '.join(entries)}"))
        outcome = values.get("execution_outcome") or {}
        if outcome:
            self._console.print(one_line(f"  last turn {outcome.get('status')}"))

    def _goodbye(self, session: Session) -> None:
        if session.state().values:
            command = one_line(session.resume_command(), 4000)
            self._console.print(f"resume with: {command}", soft_wrap=True)


@contextlib.contextmanager
def _line_editing() -> Iterator[None]:
    """Edit lines and recall earlier ones, where the platform has readline."""
    if not is_interactive():
        yield
        return
    try:
        import readline
    except ImportError:
        yield
        return
    import os

    from framework.cli.agent import data_folder

    folder = data_folder()
    file = folder / "chat_history"
    readline.set_history_length(_HISTORY_KEPT)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Made by us first: what a person typed is nobody else's to read.
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(file)
