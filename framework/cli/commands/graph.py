"""``capgraph graph``: draw the agent, a plan, or a run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import read_registry
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.base import ExecutionPlan

app: typer.Typer = typer.Typer()


@app.command("graph")
@with_shared_options("config", "db")
def graph(
    shared: SharedOptions,
    plan: Annotated[Path | None, typer.Option("--plan", help="Draw the plan in this file.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="Draw the last run of this thread.")
    ] = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a Mermaid flowchart instead of a tree.")
    ] = False,
) -> None:
    """Draw the agent, a plan, or the last run of a thread."""
    if plan is not None and thread is not None:
        raise ConfigurationError(
            "--plan cannot be combined with --thread.", fix="Pass one of them."
        )
    if plan is not None:
        from capgraph.base import load_execution_plan_from_file

        _print_plan(load_execution_plan_from_file(plan), mermaid=mermaid)
        return
    # No model is called, so no API key and no provider package are needed.
    settings = shared.settings().model_copy(update={"model": None, "models": {}})
    if thread is not None:
        shared.require_database()
        _print_plan(*asyncio.run(_load_run(shared, settings, thread)), mermaid=mermaid)
        return
    registry = read_registry(settings)
    if not mermaid:
        from capgraph.cli.trees import print_agent_tree

        print_agent_tree(settings.name, registry)
        return
    from capgraph.graph import build_graph

    print_text(
        build_graph(registry, checkpointer=False, settings=settings).get_graph().draw_mermaid()
    )


def _print_plan(
    plan: ExecutionPlan, states: Mapping[str, str] | None = None, *, mermaid: bool
) -> None:
    if mermaid:
        from capgraph.planning import plan_mermaid

        print_text(plan_mermaid(plan, states))
    else:
        from capgraph.cli.trees import print_plan_tree

        print_plan_tree(plan, states)


async def _load_run(
    shared: SharedOptions, settings: Any, thread: str
) -> tuple[ExecutionPlan, dict[str, str]]:
    from capgraph.graph.turn_runner import load_thread_values, step_states
    from capgraph.planning import TERMINAL_STEPS

    async with shared.open_agent(settings) as agent:
        snapshot = await agent.graph.aget_state({"configurable": {"thread_id": thread}})
        values = await load_thread_values(agent.graph, thread)
    plan = values.get("planning_execution_plan")
    if not plan:
        raise ConfigurationError(
            f"The thread {thread!r} has no plan to draw.",
            fix="List threads with 'capgraph threads list'.",
        )
    states = {key: "pending" if s == "waiting" else s for key, s in step_states(values).items()}
    if not snapshot.tasks:  # the turn has ended, so pending steps will not run
        is_answered = (values.get("execution_outcome") or {}).get("status") in {
            "completed",
            "partial",
        }
        terminal_keys = {
            s["context_key"] for s in plan["steps"] if s["capability"] in TERMINAL_STEPS
        }
        for key, state in states.items():
            if state == "pending":
                states[key] = "done" if is_answered and key in terminal_keys else "skipped"
    return plan, states
