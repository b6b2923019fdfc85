"""``--submit``: what is asked or answered is handed to workers, and nobody waits here."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from capgraph.cli.agent import LoadedAgent, check_thread_id, new_thread_id
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions
from capgraph.cli.terminal import make_console, print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.base.ports import Caller
    from capgraph.scale import Client


def submit_one(
    question: str | None,
    shared: SharedOptions,
    *,
    answer: bool | None,
    plan: Path | None,
    abandon: bool,
    user: str | None,
    as_json: bool,
) -> None:
    """Ask for one turn, or answer what a thread asks; prints the turn's id.

    Args:
        question: What is asked.
        shared: The options.
        answer: What ``--yes/--no`` says.
        plan: What ``--plan`` says.
        abandon: What ``--abandon`` says.
        user: What ``--as`` says.
        as_json: What ``--json`` says.
    """
    from capgraph.pipeline.run_config import configured_caller

    thread = shared.thread
    if plan is not None and question is not None:
        raise ConfigurationError(
            "A question and a plan are given.", fix="With --submit, give one of them."
        )
    if answer is not None and (question is not None or plan is not None or thread is None):
        raise ConfigurationError(
            "With --submit, --yes and --no answer what a thread asks.",
            fix="Name the thread with --thread, and leave the question out.",
        )
    settings = shared.settings()
    settings.user = user or settings.user
    caller = configured_caller(settings)

    async def run() -> None:
        async with shared.open_client(settings) as (agent, client):
            if answer is not None:
                assert thread is not None
                await _answer(client, thread, caller, approve=answer)
                return
            named = check_thread_id(thread) if thread else new_thread_id()
            if abandon and thread:
                await client.stop(thread)
            steps = None
            if plan is not None:
                from capgraph.base import load_execution_plan_from_file

                steps = await asyncio.to_thread(load_execution_plan_from_file, plan)
            turn = await _submit(agent, client, named, question, steps, caller)
            if as_json:
                import json

                typer.echo(json.dumps({"turn": turn, "thread": named}))
            else:
                typer.echo(turn)
                if thread is None:
                    typer.echo(f"thread {named}", err=True)

    asyncio.run(run())


def submit_lines(shared: SharedOptions) -> None:
    """Ask for a turn for each line that is typed; prints the turns' ids."""
    from capgraph.pipeline.run_config import configured_caller

    settings = shared.settings()
    caller = configured_caller(settings)
    named = check_thread_id(shared.thread) if shared.thread else new_thread_id()

    async def run() -> None:
        async with shared.open_client(settings) as (agent, client):
            while line := await asyncio.to_thread(sys.stdin.readline):
                if line.strip() == "/exit":
                    break
                if line.strip():
                    typer.echo(await _submit(agent, client, named, line.strip(), None, caller))
                    sys.stdout.flush()

    if shared.thread is None:
        typer.echo(f"thread {named}", err=True)
    asyncio.run(run())


def submit_answers(shared: SharedOptions) -> None:
    """Ask a person what threads wait for, one after the other; workers go on with the answers."""
    from capgraph.cli.questions import ask_all
    from capgraph.pipeline.run_config import configured_caller
    from capgraph.stores import waiting_questions

    settings, console = shared.settings(), make_console()
    caller = configured_caller(settings)
    # A person thinks outside of the loop, so that Ctrl-C ends what is asked.
    with asyncio.Runner() as runner:
        opening = shared.open_client(settings)
        agent, client = runner.run(opening.__aenter__())
        try:
            for thread in runner.run(waiting_questions(agent.saver)):
                asked = runner.run(client.status(thread)).questions
                print_text(f"thread {thread}")
                for name, answer in ask_all(asked, console).items():
                    if not runner.run(client.answer(thread, name, answer, caller)):
                        print_text("Somebody else has answered it.")
        except (EOFError, KeyboardInterrupt):
            raise typer.Exit(ExitCode.WAITING) from None
        finally:
            runner.run(opening.__aexit__(None, None, None))


async def _submit(
    agent: LoadedAgent, client: Client, thread: str, question: str | None, plan: Any, caller: Caller
) -> str:
    if question is None and plan is None:
        raise ConfigurationError(
            "There is no question.", fix="Write the question: capgraph ask --submit 'What …?'."
        )
    if question is not None and question.startswith("/"):
        raise ConfigurationError(
            f"{question!r:.80} is a command for a turn that runs here.",
            fix="Leave --submit out, or write a question.",
        )
    context = dict(agent.data) or None
    return await client.submit(thread, question, plan=plan, caller=caller, context=context)


async def _answer(client: Client, thread: str, caller: Caller, *, approve: bool) -> None:
    from capgraph.base.errors import ThreadBusyError
    from capgraph.cli.questions import answer_by_option

    asked = (await client.status(thread)).questions
    if not asked:
        raise ConfigurationError(
            f"The thread {thread!r} asks nothing.", fix="See 'capgraph approvals waiting'."
        )
    given = answer_by_option(approve=approve)(dict(asked)) or {}
    taken = [await client.answer(thread, name, given[name], caller) for name in given]
    if not any(taken):
        raise ThreadBusyError(
            f"The thread {thread!r} was answered by somebody else.",
            fix="Look how it goes on: capgraph threads show.",
        )
