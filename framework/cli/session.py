"""An open agent with one thread, for commands that run turns."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capgraph.cli.agent import LoadedAgent, check_thread_id, new_thread_id, thread_config
from capgraph.cli.options import SharedOptions
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.types import StateSnapshot

    from capgraph.cli.views import View
    from capgraph.graph.turn_runner import TurnResult, TurnRunner
    from capgraph.telemetry import Event

AnswerProvider = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Function that answers open questions; returns ``None`` to leave them open."""


@dataclass(slots=True)
class Session:
    """Command-line session that runs the turns of one thread and displays their events.

    Attributes:
        runner: Runner of the event loop. Questions are asked between turns, outside the event
            loop.
        agent: The opened agent.
        thread_id: ID of the thread.
        resume_arguments: Command that resumes the thread, without the thread ID.
        view: View that displays the turns.
        watchers: Additional event listeners.
    """

    runner: asyncio.Runner
    agent: LoadedAgent
    thread_id: str
    resume_arguments: Sequence[str]
    view: View
    watchers: list[Callable[[Event], None]] = field(default_factory=list)

    @property
    def config(self) -> Any:
        """LangGraph run config with the thread ID and the caller."""
        return thread_config(self.agent.settings, self.thread_id)

    @property
    def gateway(self) -> Any:
        """``gateway`` module of the first configured infrastructure package that contains one."""
        modules = self.agent.settings.infrastructure
        packages = [part for name in modules for part in (name, name.rpartition(".")[0]) if part]
        for package in dict.fromkeys(packages):
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(f"{package}.gateway")
        raise ConfigurationError(
            f"None of the infrastructure modules {modules} provides a gateway module.",
            fix="Add 'capgraph.infrastructure' to the list, or a module 'gateway' to your package.",
        )

    def state(self) -> StateSnapshot:
        """Return the current state of the thread."""
        return self.runner.run(self.agent.graph.aget_state(self.config))

    def prepare(self, text: str) -> Any:
        """Parse the user's input into the graph input for the next turn."""
        return self.runner.run(self.gateway.prepare_input(self.agent.graph, text, self.config))

    def add_data(self, graph_input: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the graph input that includes the data of the ``--data`` files."""
        data = dict(self.agent.data)
        return {**graph_input, "capability_context_data": data} if data else graph_input

    def resume_command(self) -> str:
        """Return the command that resumes the thread."""
        program, command, *options = self.resume_arguments
        return shlex.join([program, command, "--thread", self.thread_id, *options])

    def run_turn(
        self, graph_input: Any, question: str | None, answers: AnswerProvider | None
    ) -> TurnResult:
        """Run a turn, and resume it whenever ``answers`` provides an answer to its open questions.

        Args:
            graph_input: Input of the graph; ``None`` resumes an unfinished turn.
            question: The user's question, for display.
            answers: Callback that answers questions; ``None`` leaves questions open.
        """
        from langgraph.types import Command

        while True:
            end = self.runner.run(self._run_once(graph_input, question))
            self.view.close()
            answer, was_asked = None, False
            if end.status == "waiting" and end.questions and answers is not None:
                try:
                    answer = answers(end.questions)
                except (EOFError, KeyboardInterrupt) as exc:
                    was_asked = True
                    sys.stdout.write("\n")  # end the line of the prompt
                    if isinstance(exc, KeyboardInterrupt):
                        end.status = "cancelled"
            if answer is None:
                if end.status in {"waiting", "cancelled", "drained"}:
                    end.resume_command = self.resume_command()
                self.view.show_end(end, was_asked=was_asked)
                return end
            graph_input, question = Command(resume=answer), None

    async def _run_once(self, graph_input: Any, question: str | None) -> TurnResult:
        from langgraph.types import Command
        from pydantic import ValidationError

        from capgraph.cli.terminal import OutputClosedError
        from capgraph.graph.turn_runner import TurnRunner, load_thread_values
        from capgraph.telemetry import parse_event

        is_continuation = graph_input is None or isinstance(graph_input, Command)
        graph = self.agent.graph
        self.view.start_turn(
            question,
            self.thread_id,
            await load_thread_values(graph, self.thread_id) if is_continuation else {},
        )

        def handle_event(data: dict[str, Any]) -> None:
            try:
                event = parse_event(data)
            except ValidationError:  # an event of a capability
                return
            for watch in (self.view.show_event, *self.watchers):
                watch(event)

        turn = TurnRunner(graph, self.config)
        with _handle_signals(turn):
            end = await turn.run(graph_input, handle_event)
        if end.error is not None and isinstance(end.error.__cause__, OutputClosedError):
            raise end.error.__cause__
        return end


@contextlib.contextmanager
def open_session(
    view: View, resume_arguments: Sequence[str], shared: SharedOptions, *, user: str | None = None
) -> Iterator[Session]:
    """Open a command-line session with the agent and thread that the options select.

    Args:
        view: View of the turns.
        resume_arguments: Command that resumes a thread.
        shared: Shared options. Without ``--thread``, a new thread is created.
        user: Value of ``--as``; defaults to the user in the settings.
    """
    thread_id = check_thread_id(shared.thread) if shared.thread else new_thread_id()
    words = [*resume_arguments, *shared.to_arguments("db", "config", "model")]
    settings = shared.settings()
    settings.user = user or settings.user
    with asyncio.Runner() as runner, contextlib.closing(view):
        opening = shared.open_agent(settings)
        agent = runner.run(opening.__aenter__())
        try:
            yield Session(runner, agent, thread_id, words, view)
        finally:
            runner.run(opening.__aexit__(None, None, None))


@contextlib.contextmanager
def _handle_signals(turn: TurnRunner) -> Iterator[None]:
    """Cancel a turn on SIGINT, and drain the turn on SIGTERM.

    A second SIGINT exits the process immediately.
    """
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            # Finished work is on disk; only a step that cannot be cancelled is still running.
            sys.stdout.flush()
            os._exit(130)
        interrupted = True
        turn.stop()

    installed: list[signal.Signals] = []
    try:
        for number, action in ((signal.SIGINT, interrupt), (signal.SIGTERM, turn.drain)):
            # Without signal handlers (Windows, threads), Ctrl-C cancels the main task instead.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, action)
                installed.append(number)
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
