"""``capgraph ask``: ask one question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import is_interactive, make_console, print_error
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.cli.session import AnswerProvider, Session

app: typer.Typer = typer.Typer()


@app.command("ask", epilog=EXIT_CODES_HELP)
@with_shared_options(
    "data", "config", "model", "thread", "db", "submit", "engine", "temporal", "plain"
)
def ask(
    shared: SharedOptions,
    question: Annotated[
        str | None,
        typer.Argument(help="Your question; omit it to resume --thread."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON event per line; the last line is the result."),
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", help="Write a timeline of the steps to this SVG file."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Run the plan in this file instead of generating one."),
    ] = None,
    answer: Annotated[
        bool | None,
        typer.Option("--yes/--no", help="Approve or reject all approval requests."),
    ] = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Abandon an unfinished turn of the thread.")
    ] = False,
    user: Annotated[
        str | None,
        typer.Option("--as", help="User who asks or answers (default: the logged-in user)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
) -> None:
    """Ask a question and watch how the agent answers it."""
    from capgraph.cli.session import open_session
    from capgraph.cli.timeline import Timeline
    from capgraph.cli.views import make_view

    if shared.submit:
        from capgraph.cli.submit import submit_one

        submit_one(
            question, shared, answer=answer, plan=plan, abandon=abandon, user=user, as_json=as_json
        )
        return
    view = make_view(as_json=as_json, plain=shared.plain, quiet=quiet)
    timeline_recorder = Timeline()
    with open_session(view, ("capgraph", "ask"), shared, user=user) as session:
        session.watchers.append(timeline_recorder.record)
        answers = _choose_answer_provider(answer, as_json)
        graph_input = _make_graph_input(
            session, question, plan, abandon, answers if answer is not None else None
        )
        end = session.run_turn(graph_input, question, answers)
    if timeline is not None:
        timeline_recorder.write(timeline, title=question or end.thread_id)
    if quiet and end.error is not None:
        print_error(end.error)
    raise typer.Exit(ExitCode.of_status(end.status))


def _choose_answer_provider(approval: bool | None, as_json: bool) -> AnswerProvider | None:
    """Return the function that answers approval requests during a turn.

    The ``--yes`` or ``--no`` option takes precedence over prompting in the terminal. Return
    ``None`` if neither is possible.
    """
    from capgraph.cli.questions import answer_by_option, ask_all

    if approval is not None:
        return answer_by_option(approve=approval)
    if is_interactive() and not as_json:
        return lambda questions: ask_all(questions, make_console())
    return None


def _make_graph_input(
    session: Session,
    question: str | None,
    plan: Path | None,
    abandon: bool,
    answers: AnswerProvider | None,
) -> Any:
    """Return the graph input for the first run of the ``ask`` command.

    The input is ``None`` to resume an unfinished turn.
    """
    from capgraph.planning.waits import is_wait_interrupt

    state = session.state()
    questions = {
        item.id: item.value for item in state.interrupts if not is_wait_interrupt(item.value)
    }
    if questions and not abandon:
        from langgraph.types import Command

        if question is not None:
            return session.prepare(question).input
        answer = answers(questions) if answers is not None else None
        # Without an answer, the graph asks again, so that the user can answer.
        return None if answer is None else Command(resume=answer)
    if question is None and plan is None:
        if state.tasks:
            return None
        raise ConfigurationError(
            f"The question is missing, and the thread {session.thread_id!r} has no unfinished turn.",
            fix="Pass a question: capgraph ask 'What …?'.",
        )
    if state.tasks and not abandon:
        raise ConfigurationError(
            f"The thread {session.thread_id!r} has an unfinished turn.",
            fix=f"Finish it with '{session.resume_command()}',"
            " or pass --abandon to ask something new.",
        )
    first: dict[str, Any] = {}
    if question is not None and question.lstrip().startswith("/"):
        prepared = session.prepare(question).input
        if not isinstance(prepared, dict):
            raise ConfigurationError(
                f"The command {question!r} has no question.",
                fix="Use it in 'capgraph chat', or add a question after it.",
            )
        first = dict(prepared)
    elif question is not None:
        first["messages"] = [("user", question)]
    if plan is not None:
        from capgraph.base import load_execution_plan_from_file

        first["planning_execution_plan"] = load_execution_plan_from_file(plan)
    return session.add_data(first)
