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
    from framework.cli.agent import Agent
    from framework.cli.progress import Progress, Span
    from framework.cli.turn import TurnEnd
    from framework.cli.views import View
    from framework.telemetry import Event


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

    def resume_command(self, thread_id: str) -> str:
        """Return the command that goes on with a thread of this command."""
        words = ["capgraph", "ask", "--thread", thread_id]
        for option, value in (
            ("--db", self.db),
            ("--config", self.config),
            ("--model", self.model),
        ):
            words += [option, str(value)] if value else []
        return shlex.join(words)


@contextlib.contextmanager
def opened(options: AskOptions) -> Iterator[tuple[asyncio.Runner, Agent, str]]:
    """Open the agent of a command line: what runs it, itself, and the thread to talk in."""
    from framework.cli.agent import check_thread_id, new_thread_id, open_agent, read_settings

    thread_id = check_thread_id(options.thread) if options.thread else new_thread_id()
    settings = read_settings(options.config)
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        opening = open_agent(settings, model=options.model, db=options.db, data=options.data)
        agent = runner.run(opening.__aenter__())
        stack.callback(lambda: runner.run(opening.__aexit__(None, None, None)))
        yield runner, agent, thread_id


@dataclass(slots=True)
class Asking:
    """One run of the command: turns follow each other while a person is asked.

    Attributes:
        options: What the command line says.
        view: How it is shown.
        ask_person: Asks a person; ``None`` when there is nobody.
        resume_command: Names the command that goes on with a thread; ``ask`` by default.
    """

    options: AskOptions
    view: View
    ask_person: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    resume_command: Callable[[str], str] | None = None

    def run(self) -> TurnEnd:
        """Run to the end of the turn, or to a question that nobody here answers."""
        options = self.options
        with opened(options) as (runner, agent, thread_id), contextlib.closing(self.view):
            given = runner.run(self._first_input(agent, thread_id))
            end, spans = converse(runner, agent, given, thread_id, options.question, self)
        if options.timeline is not None:
            from framework.cli.timeline import write_timeline

            write_timeline(spans, options.timeline, title=options.question or thread_id)
        return end

    def answers(self, end: TurnEnd) -> dict[str, Any] | None:
        """Return the answers to open questions, or ``None`` when nobody here gives them."""
        from framework.cli.questions import answer_all

        if self.options.answer is not None:
            stuck = any(q.get("problems") for q in end.questions.values() if isinstance(q, dict))
            return None if stuck else answer_all(end.questions, approve=self.options.answer)
        if self.ask_person is None:
            return None
        try:
            return self.ask_person(end.questions)
        except EOFError:
            return None
        except KeyboardInterrupt:
            end.status = "cancelled"
            return None

    async def _first_input(self, agent: Agent, thread_id: str) -> Any:
        """Return what the graph begins with.

        Raises:
            ConfigurationError: There is nothing to do, or a turn is unfinished.
        """
        options = self.options
        pending, questions = await unfinished(agent, thread_id)
        new = options.question is not None or options.plan is not None
        if questions and not options.abandon:
            return await self._answer_of_question(agent, thread_id, questions)
        if pending and not new:
            return None
        if pending and not options.abandon:
            raise ConfigurationError(
                f"The thread {thread_id!r} has an unfinished turn.",
                fix=f"Finish it with '{options.resume_command(thread_id)}',"
                " or add --abandon to ask something new.",
            )
        if not new:
            raise ConfigurationError(
                f"There is no question, and the thread {thread_id!r} has nothing unfinished.",
                fix="Write the question: capgraph ask 'What …?'.",
            )
        return await new_input(agent, thread_id, options)

    async def _answer_of_question(
        self, agent: Agent, thread_id: str, questions: dict[str, Any]
    ) -> Any:
        from langgraph.types import Command

        if self.options.question is not None:
            from framework.cli.gateway import gateway_of

            config: Any = {"configurable": {"thread_id": thread_id}}
            text = self.options.question
            prepared = await gateway_of(agent.settings).prepare(agent.graph, text, config)
            return prepared.input
        if self.options.answer is not None:
            from framework.cli.questions import answer_all

            answers = answer_all(questions, approve=self.options.answer)
            if answers is not None:
                return Command(resume=answers)
        # Without an answer the graph asks again, and the question reaches the view.
        return None


async def unfinished(agent: Agent, thread_id: str) -> tuple[bool, dict[str, Any]]:
    """Return whether a thread has an unfinished turn, and its open questions."""
    config: Any = {"configurable": {"thread_id": thread_id}}
    snapshot = await agent.graph.aget_state(config)
    return bool(snapshot.tasks), {item.id: item.value for item in snapshot.interrupts}


async def new_input(agent: Agent, thread_id: str, options: AskOptions) -> dict[str, Any]:
    """Return the input of a new turn."""
    from framework.base import load_execution_plan_from_file
    from framework.cli.gateway import gateway_of

    given: dict[str, Any] = {}
    if options.question is not None:
        config: Any = {"configurable": {"thread_id": thread_id}}
        gateway = gateway_of(agent.settings)
        if options.question.lstrip().startswith("/"):
            prepared = await gateway.prepare(agent.graph, options.question, config)
            if not isinstance(prepared.input, dict):
                raise ConfigurationError(
                    f"{options.question!r} is a command without a question.",
                    fix="Use it in 'capgraph chat', or write a question after it.",
                )
            given = dict(prepared.input)
        else:
            given["messages"] = [("user", options.question)]
    if options.plan is not None:
        given["planning_execution_plan"] = await asyncio.to_thread(
            load_execution_plan_from_file, options.plan
        )
    if agent.data:
        given["capability_context_data"] = dict(agent.data)
    return given


def converse(
    runner: asyncio.Runner,
    agent: Agent,
    given: Any,
    thread_id: str,
    question: str | None,
    asking: Asking,
) -> tuple[TurnEnd, list[Span]]:
    """Run a turn, and on through its questions as long as somebody answers them.

    Args:
        runner: Runs the turns; questions are asked between them, outside of the event loop.
        agent: The agent.
        given: What the graph begins with.
        thread_id: The thread.
        question: What the person asked, for the view.
        asking: Shows the turn and answers its questions.

    Returns:
        The end of the turn and what took time.
    """
    from langgraph.types import Command

    spans: list[Span] = []
    while True:
        end, progress = runner.run(_show_turn(agent, given, thread_id, question, asking.view))
        spans += progress.spans
        asking.view.close()
        answers = asking.answers(end) if end.status == "waiting" else None
        if answers is None:
            if end.status in {"waiting", "cancelled", "drained"}:
                name = asking.resume_command or asking.options.resume_command
                end.resume_command = name(thread_id)
            asking.view.end(end, progress)
            return end, spans
        given, question = Command(resume=answers), None


async def _show_turn(
    agent: Agent, given: Any, thread_id: str, question: str | None, view: View
) -> tuple[TurnEnd, Progress]:
    from langgraph.types import Command

    from framework.cli.agent import thread_values
    from framework.cli.progress import Progress
    from framework.cli.turn import run_turn

    progress = Progress()
    if given is None or isinstance(given, Command):
        progress = Progress.of_state(await thread_values(agent, thread_id))
    view.begin(question, thread_id, progress)

    def on_event(event: Event) -> None:
        progress.apply(event)
        view.event(event, progress)

    end = await run_turn(agent, given, thread_id, on_event)
    progress.settle(end.status)
    return end, progress
