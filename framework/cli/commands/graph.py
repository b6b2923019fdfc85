"""``capgraph graph``: the agent, a plan or a run as a picture."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from capgraph.cli.agent import read_registry
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_text
from capgraph.configs.errors import ConfigurationError

app: typer.Typer = typer.Typer()


@app.command("graph")
@with_shared_options("config", "db")
def graph(
    shared: SharedOptions,
    plan: Annotated[Path | None, typer.Option("--plan", help="Draw the plan of this file.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="Draw the last run of this thread.")
    ] = None,
) -> None:
    """Draw the agent, a plan or a run as a Mermaid flowchart."""
    if plan is not None and thread is not None:
        raise ConfigurationError(
            "--plan and --thread cannot be drawn at once.", fix="Give one of them."
        )
    if plan is not None:
        from capgraph.base import load_execution_plan_from_file
        from capgraph.planning import plan_mermaid

        print_text(plan_mermaid(load_execution_plan_from_file(plan)))
        return
    # Nothing is asked here, so no key and no package of a model is needed.
    settings = shared.settings().model_copy(update={"model": None, "models": {}})
    if thread is not None:
        shared.require_database()
        print_text(asyncio.run(_run_mermaid(shared, settings, thread)))
        return
    from capgraph.graph import build_graph

    built = build_graph(read_registry(settings), checkpointer=False, settings=settings)
    print_text(built.get_graph().draw_mermaid())


async def _run_mermaid(shared: SharedOptions, settings: Any, thread: str) -> str:
    from capgraph.graph.turn_runner import load_thread_values, step_states
    from capgraph.planning import TERMINAL_STEPS, plan_mermaid

    async with shared.open_agent(settings) as agent:
        snapshot = await agent.graph.aget_state({"configurable": {"thread_id": thread}})
        values = await load_thread_values(agent.graph, thread)
    plan = values.get("planning_execution_plan")
    if not plan:
        raise ConfigurationError(
            f"The thread {thread!r} has no plan to draw.",
            fix="See 'capgraph threads list' for the threads of this database.",
        )
    states = {key: "pending" if s == "waiting" else s for key, s in step_states(values).items()}
    if not snapshot.tasks:  # the turn is over: what did not run never will
        answered = (values.get("execution_outcome") or {}).get("status") in {"completed", "partial"}
        closing = {s["context_key"] for s in plan["steps"] if s["capability"] in TERMINAL_STEPS}
        for key, state in states.items():
            if state == "pending":
                states[key] = "done" if answered and key in closing else "skipped"
    return plan_mermaid(plan, states)
