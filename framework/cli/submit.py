"""Implementation of ``--submit``: hand turns and answers to workers without waiting for results."""

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
    """Submit a turn to the workers, or answer a thread's open questions. Print the turn ID.

    Args:
        question: The user's message.
        shared: Shared options.
        answer: Value of ``--yes/--no``.
        plan: Value of ``--plan``.
        abandon: Value of ``--abandon``.
        user: Value of ``--as``.
        as_json: Value of ``--json``.
    """
    from capgraph.pipeline.run_config import configured_caller

    thread = shared.thread
    if plan is not None and question is not None:
        raise ConfigurationError(
            "A question and --plan cannot be submitted together.", fix="Pass one of them."
        )
    if answer is not None and (question is not None or plan is not None or thread is None):
        raise ConfigurationError(
            "--submit with --yes or --no answers an existing thread, so it requires --thread and "
            "no question or --plan.",
            fix="Pass --thread and omit the question.",
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
            thread_id = check_thread_id(thread) if thread else new_thread_id()
            if abandon and thread:
                await client.stop(thread)
            steps = None
            if plan is not None:
                from capgraph.base import load_execution_plan_from_file

                steps = await asyncio.to_thread(load_execution_plan_from_file, plan)
            turn_id = await _submit(agent, client, thread_id, question, steps, caller)
            if as_json:
                import json

                typer.echo(json.dumps({"turn": turn_id, "thread": thread_id}))
            else:
                typer.echo(turn_id)
                if thread is None:
                    typer.echo(f"thread {thread_id}", err=True)

    asyncio.run(run())


def submit_lines(shared: SharedOptions) -> None:
    """Submit a turn to the workers for each line of standard input, and print the turn IDs."""
    from capgraph.pipeline.run_config import configured_caller

    settings = shared.settings()
    caller = configured_caller(settings)
    thread_id = check_thread_id(shared.thread) if shared.thread else new_thread_id()

    async def run() -> None:
        async with shared.open_client(settings) as (agent, client):
            while line := await asyncio.to_thread(sys.stdin.readline):
                if line.strip() == "/exit":
                    break
                if line.strip():
                    typer.echo(await _submit(agent, client, thread_id, line.strip(), None, caller))
                    sys.stdout.flush()

    if shared.thread is None:
        typer.echo(f"thread {thread_id}", err=True)
    asyncio.run(run())


def submit_answers(shared: SharedOptions) -> None:
    """Ask the user the open approval questions of all threads and submit the answers."""
    from capgraph.cli.questions import ask_all
    from capgraph.pipeline.run_config import configured_caller
    from capgraph.stores import waiting_questions

    settings, console = shared.settings(), make_console()
    caller = configured_caller(settings)
    # Prompts run outside of the event loop, so that Ctrl-C interrupts them.
    with asyncio.Runner() as runner:
        opening = shared.open_client(settings)
        agent, client = runner.run(opening.__aenter__())
        try:
            for thread in runner.run(waiting_questions(agent.saver)):
                questions = runner.run(client.status(thread)).questions
                print_text(f"thread {thread}")
                for name, answer in ask_all(questions, console).items():
                    if not runner.run(client.answer(thread, name, answer, caller)):
                        print_text("Another person has already answered this question.")
        except (EOFError, KeyboardInterrupt):
            raise typer.Exit(ExitCode.WAITING) from None
        finally:
            runner.run(opening.__aexit__(None, None, None))


async def _submit(
    agent: LoadedAgent, client: Client, thread: str, question: str | None, plan: Any, caller: Caller
) -> str:
    if question is None and plan is None:
        raise ConfigurationError(
            "The question is missing.", fix="Pass a question: capgraph ask --submit 'What …?'."
        )
    if question is not None and question.startswith("/"):
        raise ConfigurationError(
            f"The chat command {question!r:.80} cannot be submitted to workers.",
            fix="Omit --submit, or pass a question.",
        )
    context = dict(agent.data) or None
    return await client.submit(thread, question, plan=plan, caller=caller, context=context)


async def _answer(client: Client, thread: str, caller: Caller, *, approve: bool) -> None:
    from capgraph.base.errors import ThreadBusyError
    from capgraph.cli.questions import answer_by_option

    questions = (await client.status(thread)).questions
    if not questions:
        raise ConfigurationError(
            f"The thread {thread!r} has no open question.",
            fix="List open questions: capgraph approvals waiting.",
        )
    answers = answer_by_option(approve=approve)(dict(questions)) or {}
    accepted = [await client.answer(thread, name, answers[name], caller) for name in answers]
    if not any(accepted):
        raise ThreadBusyError(
            f"The open questions of thread {thread!r} have already been answered.",
            fix="Check the thread: capgraph threads show.",
        )
