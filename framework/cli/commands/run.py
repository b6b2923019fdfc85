"""``capgraph run``: run a workflow from a file."""

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
    workflow: Annotated[Path, typer.Argument(help="Workflow file (YAML).")],
    task: Annotated[
        str | None, typer.Argument(help="Task of the workflow; omit it to resume --thread.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option("--answer", help="Answer to the question of --thread: JSON or text."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the complete result as JSON.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the output.")] = False,
) -> None:
    """Run a workflow from a YAML file.

    Its nodes can use the configured capabilities by name.

    With the option --thread, the run is stored in the database. Omit the task to resume an
    unfinished run. To resume a run that is waiting for an answer, use the option --answer.
    """
    settings = shared.settings()

    async def run_once() -> WorkflowResult:
        from langgraph.errors import EmptyInputError
        from langgraph.types import Command

        from capgraph.engine.thread_lease import hold_lease
        from capgraph.workflows import load_workflow
        from capgraph.workflows.nodes import to_workflow_result

        async with shared.open_agent(settings) as agent:
            agent_graph: Any = agent.graph
            services = agent_graph.services
            capabilities = {name: spec.cls for name, spec in agent.registry.capabilities.items()}
            loaded = await asyncio.to_thread(
                load_workflow, workflow, capabilities, services=services
            )
            graph_input: Any = None if task is None else {"task": task}
            if answer is not None:
                graph_input = Command(resume=parse_value(answer))
            graph = loaded.compile(agent.saver)
            thread = shared.thread or new_thread_id()
            config = thread_config(settings, thread)
            async with hold_lease(agent_graph.persistence, config):
                try:
                    return to_workflow_result(await graph.ainvoke(graph_input, config))
                except EmptyInputError:
                    raise ConfigurationError(
                        f"The thread {thread!r} has no unfinished run.",
                        fix="Pass a task, or the --thread of an unfinished run.",
                    ) from None

    result = asyncio.run(run_once())
    shown = result.final_output
    if as_json:
        document = {
            "outputs": {
                name: _to_plain(node_result) for name, node_result in result.outputs.items()
            },
            "final_output": shown,
            "success": result.success,
            "error": result.error,
            "metadata": result.metadata,
        }
        print_text(json.dumps(document, ensure_ascii=False, default=str))
    else:
        for name, node_result in {} if quiet else result.outputs.items():
            for one in node_result if isinstance(node_result, list) else [node_result]:
                print_text(f"{name}: {one.output if one.success else f'failed: {one.error}'}")
        text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        print_text(text if quiet else f"\n{text}")
    if result.error is not None and not as_json:
        has_question = "interrupts" in result.metadata
        print_error(
            CapgraphError(result.error, fix="Answer with --answer." if has_question else None)
        )
    raise typer.Exit(ExitCode.of_status(_outcome_status(result)))


def _outcome_status(result: WorkflowResult) -> str:
    if result.metadata.get("interrupts"):
        return "waiting"
    return "completed" if result.success else "failed"


def _to_plain(result: object) -> object:
    from dataclasses import asdict

    return [asdict(one) for one in result] if isinstance(result, list) else asdict(result)  # type: ignore[call-overload]
