"""An open agent and one of its threads, in which turns follow each other."""

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
"""Given the open questions; returns what to resume with, ``None`` to leave them open."""


@dataclass(slots=True)
class Session:
    """Runs the turns of a thread and shows them.

    Attributes:
        runner: Runs the turns; questions are asked between them, outside of the event loop.
        agent: The agent.
        thread_id: The thread.
        resume_arguments: The words of the command that goes on with the thread, without the thread.
        view: Shows the turns.
        watchers: Also receive each event.
    """

    runner: asyncio.Runner
    agent: LoadedAgent
    thread_id: str
    resume_arguments: Sequence[str]
    view: View
    watchers: list[Callable[[Event], None]] = field(default_factory=list)

    @property
    def config(self) -> Any:
        """What names the thread, and who asks, to the graph."""
        return thread_config(self.agent.settings, self.thread_id)

    @property
    def gateway(self) -> Any:
        """The module that reads what a person types, of the first package that has one."""
        names = self.agent.settings.infrastructure
        packages = [part for name in names for part in (name, name.rpartition(".")[0]) if part]
        for package in dict.fromkeys(packages):
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(f"{package}.gateway")
        raise ConfigurationError(
            f"None of the infrastructure modules {names} has a gateway.",
            fix="Keep 'capgraph.infrastructure' in the list, or add a module called gateway to yours.",
        )

    def state(self) -> StateSnapshot:
        """Return the thread as it stands."""
        return self.runner.run(self.agent.graph.aget_state(self.config))

    def prepare(self, text: str) -> Any:
        """Read what a person typed."""
        return self.runner.run(self.gateway.prepare_input(self.agent.graph, text, self.config))

    def add_data(self, graph_input: dict[str, Any]) -> dict[str, Any]:
        """Return the input of a turn with the files of ``--data``."""
        data = dict(self.agent.data)
        return {**graph_input, "capability_context_data": data} if data else graph_input

    def resume_command(self) -> str:
        """Return the command that goes on with the thread."""
        program, command, *options = self.resume_arguments
        return shlex.join([program, command, "--thread", self.thread_id, *options])

    def run_turn(
        self, graph_input: Any, question: str | None, answers: AnswerProvider | None
    ) -> TurnResult:
        """Run a turn, and on through its questions as long as somebody answers them.

        Args:
            graph_input: What the graph begins with; ``None`` goes on with an unfinished turn.
            question: What the person asked, for the view.
            answers: ``None`` when there is nobody.
        """
        from langgraph.types import Command

        while True:
            end = self.runner.run(self._run_once(graph_input, question))
            self.view.close()
            answer = None
            if end.status == "waiting" and end.questions and answers is not None:
                try:
                    answer = answers(end.questions)
                except EOFError:
                    answer = None
                except KeyboardInterrupt:
                    end.status = "cancelled"
            if answer is None:
                if end.status in {"waiting", "cancelled", "drained"}:
                    end.resume_command = self.resume_command()
                self.view.show_end(end)
                return end
            graph_input, question = Command(resume=answer), None

    async def _run_once(self, graph_input: Any, question: str | None) -> TurnResult:
        from langgraph.types import Command
        from pydantic import ValidationError

        from capgraph.cli.terminal import OutputClosedError
        from capgraph.graph.turn_runner import TurnRunner, load_thread_values
        from capgraph.telemetry import parse_event

        goes_on = graph_input is None or isinstance(graph_input, Command)
        graph = self.agent.graph
        self.view.start_turn(
            question,
            self.thread_id,
            await load_thread_values(graph, self.thread_id) if goes_on else {},
        )

        def take(data: dict[str, Any]) -> None:
            try:
                event = parse_event(data)
            except ValidationError:  # a capability may write events of its own
                return
            for watch in (self.view.show_event, *self.watchers):
                watch(event)

        turn = TurnRunner(graph, self.config)
        with _handle_signals(turn):
            end = await turn.run(graph_input, take)
        if end.error is not None and isinstance(end.error.__cause__, OutputClosedError):
            raise end.error.__cause__
        return end


@contextlib.contextmanager
def open_session(
    view: View, resume_arguments: Sequence[str], shared: SharedOptions, *, user: str | None = None
) -> Iterator[Session]:
    """Open the agent and the thread that the options of a command name.

    Args:
        view: Shows the turns.
        resume_arguments: The words of the command that goes on with a thread.
        shared: The options; a new thread without ``--thread``.
        user: What ``--as`` says; the settings' user without it.
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
    """Cancel on SIGINT, drain on SIGTERM; a second SIGINT ends the process at once."""
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            # All that is finished is on disk already; only a step that cannot be cancelled waits.
            sys.stdout.flush()
            os._exit(130)
        interrupted = True
        turn.stop()

    handled: list[signal.Signals] = []
    try:
        for number, action in ((signal.SIGINT, interrupt), (signal.SIGTERM, turn.drain)):
            # Without signals in the loop (Windows, threads) Ctrl-C cancels the main task instead.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, action)
                handled.append(number)
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
