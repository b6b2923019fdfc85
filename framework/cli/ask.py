"""``capgraph ask``: one question, one answer."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.types import StateSnapshot

    from framework.cli.agent import Agent
    from framework.cli.progress import Progress, Span
    from framework.cli.turn import TurnEnd
    from framework.cli.views import View
    from framework.telemetry import Event


AskPerson = Callable[[dict[str, Any]], dict[str, Any]]
"""Asks a person the open questions; returns what to resume with."""


@dataclass(slots=True)
class AskOptions:
    """What the command line of ``ask`` says.

    Attributes:
        question: What to ask; ``None`` to go on with a thread.
        data: Files of ``--data``.
        config: File of ``--config``.
        model: ``"provider:name"``.
        thread: Thread id; a new one when not given.
        db: Database.
        plan: Plan file to run instead of making a plan.
        timeline: SVG file to write.
        answer: ``True`` for ``--yes``, ``False`` for ``--no``.
        abandon: Whether a new question may end an unfinished turn.
        as_json: Events as JSON lines.
        plain: No redrawing.
        quiet: Only the answer.
    """

    question: str | None = None
    data: Sequence[str] = ()
    config: Path | None = None
    model: str | None = None
    thread: str | None = None
    db: str | None = None
    plan: Path | None = None
    timeline: Path | None = None
    answer: bool | None = None
    abandon: bool = False
    as_json: bool = False
    plain: bool = False
    quiet: bool = False


@dataclass(slots=True)
class Session:
    """An open agent, and the thread in which turns follow each other.

    Attributes:
        options: What the command line says.
        runner: Runs the turns; questions are asked between them, outside of the event loop.
        agent: The agent.
        thread_id: The thread.
        command: The command that goes on with the thread: ``ask`` or ``chat``.
    """

    options: AskOptions
    runner: asyncio.Runner
    agent: Agent
    thread_id: str
    command: str

    @property
    def config(self) -> Any:
        """What names the thread to the graph."""
        return {"configurable": {"thread_id": self.thread_id}}

    @property
    def gateway(self) -> Any:
        """The module that reads what a person types."""
        from framework.cli.gateway import gateway_of

        return gateway_of(self.agent.settings)

    def state(self) -> StateSnapshot:
        """Return the thread as it stands."""
        return self.runner.run(self.agent.graph.aget_state(self.config))

    def prepare(self, text: str) -> Any:
        """Read what a person typed."""
        return self.runner.run(self.gateway.prepare(self.agent.graph, text, self.config))

    def with_data(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the input of a turn with the files of ``--data``."""
        data = dict(self.agent.data)
        return {**given, "capability_context_data": data} if data else given

    def resume_command(self) -> str:
        """Return the command that goes on with the thread."""
        options = self.options
        words = ["capgraph", self.command, "--thread", self.thread_id]
        for option, value in (
            ("--db", options.db),
            ("--config", options.config),
            ("--model", options.model),
        ):
            words += [option, str(value)] if value else []
        return shlex.join(words)

    def turn(
        self, given: Any, question: str | None, view: View, ask_person: AskPerson | None
    ) -> tuple[TurnEnd, list[Span]]:
        """Run a turn, and on through its questions as long as somebody answers them.

        Args:
            given: What the graph begins with.
            question: What the person asked, for the view.
            view: Shows the turn.
            ask_person: ``None`` when there is nobody.

        Returns:
            The end of the turn and what took time.
        """
        from langgraph.types import Command

        spans: list[Span] = []
        while True:
            end, progress = self.runner.run(self._show(given, question, view))
            spans += progress.spans
            view.close()
            answers = self._answers(end, ask_person) if end.status == "waiting" else None
            if answers is None:
                if end.status in {"waiting", "cancelled", "drained"}:
                    end.resume_command = self.resume_command()
                view.end(end, progress)
                return end, spans
            given, question = Command(resume=answers), None

    def _answers(self, end: TurnEnd, ask_person: AskPerson | None) -> dict[str, Any] | None:
        from framework.cli.questions import answer_all

        if self.options.answer is not None:
            stuck = any(q.get("problems") for q in end.questions.values() if isinstance(q, dict))
            return None if stuck else answer_all(end.questions, approve=self.options.answer)
        if ask_person is None:
            return None
        try:
            return ask_person(end.questions)
        except EOFError:
            return None
        except KeyboardInterrupt:
            end.status = "cancelled"
            return None

    async def _show(self, given: Any, question: str | None, view: View) -> tuple[TurnEnd, Progress]:
        from langgraph.types import Command

        from framework.cli.agent import thread_values
        from framework.cli.progress import Progress
        from framework.cli.turn import run_turn

        progress = Progress()
        if given is None or isinstance(given, Command):
            progress = Progress.of_state(await thread_values(self.agent, self.thread_id))
        view.begin(question, self.thread_id, progress)

        def on_event(event: Event) -> None:
            progress.apply(event)
            view.event(event, progress)

        end = await run_turn(self.agent, given, self.thread_id, on_event)
        progress.settle(end.status)
        return end, progress


@contextlib.contextmanager
def opened(options: AskOptions, command: str) -> Iterator[Session]:
    """Open the agent of a command line."""
    from framework.cli.agent import check_thread_id, new_thread_id, open_agent, read_settings

    thread_id = check_thread_id(options.thread) if options.thread else new_thread_id()
    settings = read_settings(options.config)
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        opening = open_agent(settings, model=options.model, db=options.db, data=options.data)
        agent = runner.run(opening.__aenter__())
        stack.callback(lambda: runner.run(opening.__aexit__(None, None, None)))
        yield Session(options, runner, agent, thread_id, command)


def ask_once(options: AskOptions, view: View, ask_person: AskPerson | None) -> TurnEnd:
    """Run to the end of the turn, or to a question that nobody here answers.

    Args:
        options: What the command line says.
        view: How it is shown.
        ask_person: ``None`` when there is nobody.

    Raises:
        ConfigurationError: There is nothing to do, or a turn is unfinished.
    """
    with opened(options, "ask") as session, contextlib.closing(view):
        end, spans = session.turn(_first_input(session), options.question, view, ask_person)
    if options.timeline is not None:
        from framework.cli.timeline import write_timeline

        write_timeline(spans, options.timeline, title=options.question or session.thread_id)
    return end


def _first_input(session: Session) -> Any:
    """Return what the graph begins with."""
    options, state = session.options, session.state()
    new = options.question is not None or options.plan is not None
    if state.interrupts and not options.abandon:
        return _answer(session, {item.id: item.value for item in state.interrupts})
    if state.tasks and not new:
        return None
    if state.tasks and not options.abandon:
        raise ConfigurationError(
            f"The thread {session.thread_id!r} has an unfinished turn.",
            fix=f"Finish it with '{session.resume_command()}',"
            " or add --abandon to ask something new.",
        )
    if not new:
        raise ConfigurationError(
            f"There is no question, and the thread {session.thread_id!r} has nothing unfinished.",
            fix="Write the question: capgraph ask 'What …?'.",
        )
    return _new_input(session)


def _answer(session: Session, questions: dict[str, Any]) -> Any:
    from langgraph.types import Command

    from framework.cli.questions import answer_all

    if session.options.question is not None:
        return session.prepare(session.options.question).input
    answers = None
    if session.options.answer is not None:
        answers = answer_all(questions, approve=session.options.answer)
    # Without an answer the graph asks again, and the question reaches the view.
    return None if answers is None else Command(resume=answers)


def _new_input(session: Session) -> dict[str, Any]:
    from framework.base import load_execution_plan_from_file

    options = session.options
    given: dict[str, Any] = {}
    if options.question is not None and options.question.lstrip().startswith("/"):
        prepared = session.prepare(options.question)
        if not isinstance(prepared.input, dict):
            raise ConfigurationError(
                f"{options.question!r} is a command without a question.",
                fix="Use it in 'capgraph chat', or write a question after it.",
            )
        given = dict(prepared.input)
    elif options.question is not None:
        given["messages"] = [("user", options.question)]
    if options.plan is not None:
        given["planning_execution_plan"] = load_execution_plan_from_file(options.plan)
    return session.with_data(given)
