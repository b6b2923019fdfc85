"""``capgraph chat``: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from configs.errors import CapgraphError
from framework.cli.ask import Asking, AskOptions, converse, opened, unfinished
from framework.cli.exit_codes import ExitCode
from framework.cli.terminal import is_interactive, make_console, one_line, print_error, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from framework.cli.agent import Agent

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
        self._thread_id = ""

    def run(self) -> int:
        """Talk until the person leaves; returns the exit code."""
        code: int = ExitCode.ANSWERED
        with opened(self._options) as (runner, agent, self._thread_id), _line_editing():
            try:
                self._welcome(runner, agent)
                self._go_on(runner, agent)
                while self._one_line(runner, agent):
                    pass
            except KeyboardInterrupt:
                self._console.print()
                code = ExitCode.INTERRUPTED
            self._goodbye(runner, agent)
        return code

    # --- one line -------------------------------------------------------------------------

    def _one_line(self, runner: asyncio.Runner, agent: Agent) -> bool:
        """Read a line and do what it says; returns whether to go on."""
        from framework.cli.gateway import gateway_of

        try:
            line = input(_PROMPT).strip()
        except EOFError:
            self._console.print()
            return False
        if not line:
            return True
        config: Any = {"configurable": {"thread_id": self._thread_id}}
        gateway = gateway_of(agent.settings)
        try:
            prepared = runner.run(gateway.prepare(agent.graph, line, config))
        except CapgraphError as exc:
            print_error(exc)
            return True
        for key, value in prepared.switched.items():
            self._console.print(f"{key} = {str(value).lower()}", style="dim")
        for command in prepared.commands:
            if command == "exit":
                return False
            self._command(command, runner, agent, gateway.HELP)
        if prepared.input is not None:
            given = prepared.input
            if isinstance(given, dict) and agent.data:
                given = {**given, "capability_context_data": dict(agent.data)}
            self._turn(runner, agent, given, None)
        return True

    def _turn(self, runner: asyncio.Runner, agent: Agent, given: Any, question: str | None) -> None:
        from framework.cli.questions import ask_all
        from framework.cli.views import make_view

        options = self._options
        options.thread = self._thread_id
        asks = (lambda asked: ask_all(asked, self._console)) if is_interactive() else None
        asking = Asking(
            options, make_view(plain=options.plain, heading=False), asks, self._resume_command
        )
        end, _ = converse(runner, agent, given, self._thread_id, question, asking)
        if end.status == "cancelled" and end.questions:
            raise KeyboardInterrupt
        if end.status == "cancelled":
            self._go_on(runner, agent)

    # --- what a thread holds -----------------------------------------------------------------

    def _welcome(self, runner: asyncio.Runner, agent: Agent) -> None:
        print_ = self._console.print
        print_(f"{one_line(agent.settings.name)}, thread {one_line(self._thread_id)}", style="bold")
        print_("Write a question; '/help' shows the commands, '/exit' leaves.", style="dim")
        messages = runner.run(self._values(agent)).get("messages") or []
        for message in messages[-_HISTORY_SHOWN:]:
            who = "you" if message.type == "human" else "agent"
            print_(f"{who}> {safe(message.text)}", style="dim", soft_wrap=True)

    def _go_on(self, runner: asyncio.Runner, agent: Agent) -> None:
        """Go on with an unfinished turn, if the person wants to."""
        pending, questions = runner.run(unfinished(agent, self._thread_id))
        if questions:
            self._turn(runner, agent, None, None)
        elif pending:
            self._console.print("The last turn of this thread is unfinished.", style="yellow")
            try:
                answer = input("Go on with it? [Y/n] ").strip().lower()
            except EOFError:
                return
            if answer in {"", "y", "yes"}:
                self._turn(runner, agent, None, None)

    def _command(
        self, command: str, runner: asyncio.Runner, agent: Agent, known: Mapping[str, str]
    ) -> None:
        if command == "help":
            for name, meaning in known.items():
                self._console.print(f"  {name:<15} {meaning}")
        elif command == "clear":
            from framework.cli.agent import new_thread_id

            self._goodbye(runner, agent)
            self._thread_id = new_thread_id()
            self._console.print(f"thread {self._thread_id}", style="bold")
        elif command == "capabilities":
            self._console.print(safe(agent.registry.describe()), soft_wrap=True)
        elif command == "status":
            self._status(runner, agent)

    def _status(self, runner: asyncio.Runner, agent: Agent) -> None:
        values = runner.run(self._values(agent))
        control = values.get("agent_control") or {}
        turns = (values.get("runtime_info") or {}).get("turn", 0)
        self._console.print(f"  thread    {one_line(self._thread_id)}, {turns} turn(s)")
        for name, value in sorted(control.items()):
            self._console.print(one_line(f"  switch    {name} = {str(value).lower()}"))
        for kind, entries in sorted((values.get("capability_context_data") or {}).items()):
            self._console.print(one_line(f"  context   {kind}: {', '.join(entries)}"))
        outcome = values.get("execution_outcome") or {}
        if outcome:
            self._console.print(one_line(f"  last turn {outcome.get('status')}"))

    async def _values(self, agent: Agent) -> Mapping[str, Any]:
        config: Any = {"configurable": {"thread_id": self._thread_id}}
        values: Mapping[str, Any] = (await agent.graph.aget_state(config)).values
        return values

    def _goodbye(self, runner: asyncio.Runner, agent: Agent) -> None:
        if runner.run(self._values(agent)):
            command = self._resume_command(self._thread_id)
            self._console.print(f"resume with: {one_line(command, 4000)}", soft_wrap=True)

    def _resume_command(self, thread_id: str) -> str:
        words = shlex.split(self._options.resume_command(thread_id))
        return shlex.join(["capgraph", "chat", *words[2:]])


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
