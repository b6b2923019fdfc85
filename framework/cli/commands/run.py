"""``capgraph run``: one run of a workflow that stands in a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import new_thread_id, thread_config
from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.options import SharedOptions, parse_value, with_shared_options
from capgraph.cli.terminal import print_error, print_text
from capgraph.configs.errors import CapgraphError, ConfigurationError

if TYPE_CHECKING:
    from capgraph.workflows import WorkflowResult

app: typer.Typer = typer.Typer()


@app.command("run", epilog=EXIT_CODES_HELP)
@with_shared_options("config", "model", "thread", "db")
def run(
    shared: SharedOptions,
    workflow: Annotated[Path, typer.Argument(help="Workflow, a YAML file.")],
    task: Annotated[
        str | None, typer.Argument(help="What is to be done; leave it out to go on with --thread.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option("--answer", help="Answer what the run of --thread asks: JSON or text."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the output.")] = False,
) -> None:
    """Run a workflow; its nodes may be the configuration's capabilities, by name.

    A run with --thread is kept in the database. One that was cut short goes on when no task is
    given; one that asks goes on with --answer.
    """
    settings = shared.settings()

    async def once() -> WorkflowResult:
        from langgraph.errors import EmptyInputError
        from langgraph.types import Command

        from capgraph.engine.thread_lease import hold_lease
        from capgraph.workflows import load_workflow
        from capgraph.workflows.nodes import to_workflow_result

        async with shared.open_agent(settings) as agent:
            built: Any = agent.graph
            services = built.services
            known = {name: spec.cls for name, spec in agent.registry.capabilities.items()}
            loaded = await asyncio.to_thread(load_workflow, workflow, known, services=services)
            given: Any = None if task is None else {"task": task}
            if answer is not None:
                given = Command(resume=parse_value(answer))
            graph = loaded.compile(agent.saver)
            thread = shared.thread or new_thread_id()
            config = thread_config(settings, thread)
            async with hold_lease(built.persistence, config):
                try:
                    return to_workflow_result(await graph.ainvoke(given, config))
                except EmptyInputError:
                    raise ConfigurationError(
                        f"There is no run to go on with in the thread {thread!r}.",
                        fix="Give a task, or the --thread of a run that was cut short.",
                    ) from None

    result = asyncio.run(once())
    shown = result.final_output
    if as_json:
        whole = {
            "outputs": {name: _to_plain(found) for name, found in result.outputs.items()},
            "final_output": shown,
            "success": result.success,
            "error": result.error,
            "metadata": result.metadata,
        }
        print_text(json.dumps(whole, ensure_ascii=False, default=str))
    else:
        for name, found in {} if quiet else result.outputs.items():
            for one in found if isinstance(found, list) else [found]:
                print_text(f"{name}: {one.output if one.success else f'failed: {one.error}'}")
        text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        print_text(text if quiet else f"\n{text}")
    if result.error is not None and not as_json:
        asks = "interrupts" in result.metadata
        print_error(CapgraphError(result.error, fix="Answer with --answer." if asks else None))
    raise typer.Exit(ExitCode.of_status(_outcome_status(result)))


def _outcome_status(result: WorkflowResult) -> str:
    if result.metadata.get("interrupts"):
        return "waiting"
    return "completed" if result.success else "failed"


def _to_plain(result: object) -> object:
    from dataclasses import asdict

    return [asdict(one) for one in result] if isinstance(result, list) else asdict(result)  # type: ignore[call-overload]
