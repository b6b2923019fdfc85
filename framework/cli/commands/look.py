"""``capgraph capabilities`` and ``capgraph graph``: what the agent is, and what a run did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import ConfigurationError
from framework.cli.commands.options import Config, Database, Json

if TYPE_CHECKING:
    from framework.base import CapabilitySpec


_MERMAID = {"running": "pending", "retrying": "pending", "waiting": "pending"}


def capabilities(config: Config = None, as_json: Json = False) -> None:
    """List what the agent can do."""
    from framework.cli.agent import read_settings
    from framework.cli.terminal import show_rows
    from framework.registry import Registry

    registry = Registry.from_settings(read_settings(config))
    rows = [_row(spec) for spec in registry.capabilities.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    show_rows(rows[0] if rows else ["name"], [map(_cell, row.values()) for row in rows])


def graph(
    config: Config = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Draw the plan of this file.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="Draw the last run of this thread.")
    ] = None,
    db: Database = None,
) -> None:
    """Draw the agent, a plan or a run as a Mermaid flowchart."""
    if plan is not None and thread is not None:
        raise ConfigurationError(
            "--plan and --thread cannot be drawn at once.", fix="Give one of them."
        )
    from framework.cli.terminal import say

    if plan is not None:
        from framework.base import load_execution_plan_from_file
        from framework.planning import plan_mermaid

        say(plan_mermaid(load_execution_plan_from_file(plan)))
        return
    from framework.cli.agent import read_settings, without_models

    settings = without_models(read_settings(config))
    if thread is not None:
        import asyncio

        say(asyncio.run(_run_mermaid(settings, thread, db)))
        return
    from framework.graph import build_graph
    from framework.registry import Registry

    built = build_graph(Registry.from_settings(settings), settings=settings)
    say(built.get_graph().draw_mermaid())


def run_statuses(values: Mapping[str, Any], *, over: bool) -> dict[str, str]:
    """Return what became of each step of a thread's plan, by context key.

    Args:
        values: The thread's state.
        over: Whether the turn has ended, so that what did not run never will.

    >>> plan = {"steps": [{"context_key": "a", "capability": "look"}]}
    >>> run_statuses({"planning_execution_plan": plan}, over=False)
    {'a': 'pending'}
    """
    from framework.cli.progress import Progress

    steps = Progress.of_state(values).steps
    found = {step.key: _MERMAID.get(step.state, step.state) for step in steps}
    if over:
        found = {k: "skipped" if state == "pending" else state for k, state in found.items()}
    answered = (values.get("execution_outcome") or {}).get("status") in {"completed", "partial"}
    for step in (values.get("planning_execution_plan") or {}).get("steps") or []:
        found.setdefault(step["context_key"], "done" if answered else "pending")
    return found


async def _run_mermaid(settings: Any, thread: str, db: str | None) -> str:
    from framework.cli.agent import open_agent, thread_values
    from framework.planning import plan_mermaid, versions_mermaid

    async with open_agent(settings, db=db) as agent:
        snapshot = await agent.graph.aget_state({"configurable": {"thread_id": thread}})
        values = await thread_values(agent, thread)
    plan = values.get("planning_execution_plan")
    if not plan:
        raise ConfigurationError(
            f"The thread {thread!r} has no plan to draw.",
            fix="See 'capgraph threads list' for the threads of this database.",
        )
    statuses = run_statuses(values, over=not snapshot.tasks)
    history = values.get("planning_history") or []
    return versions_mermaid(history, statuses) if len(history) > 1 else plan_mermaid(plan, statuses)


def _row(spec: CapabilitySpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "needs": [
            need.type if need.cardinality == "one" else f"{need.type} ({need.cardinality})"
            for need in spec.requires
        ],
        "gives": list(spec.provides),
        "effect": spec.effect,
        "approval": "yes" if spec.requires_approval else "no",
    }


def _cell(value: Any) -> str:
    return (", ".join(value) or "-") if isinstance(value, list) else str(value)
