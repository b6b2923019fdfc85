"""Trees of the agent, a plan, or a run for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capgraph.cli.terminal import make_console, one_line
from capgraph.cli.views import STATE_SIGNS

if TYPE_CHECKING:
    from rich.tree import Tree

    from capgraph.base import ExecutionPlan
    from capgraph.registry import Registry

_LABEL_CHARACTERS = 60


def print_agent_tree(name: str, registry: Registry) -> None:
    """Print the agent's capabilities as a tree, with inputs, outputs, effects, and approvals."""
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(one_line(name), "bold"))
    for capability, spec in registry.capabilities.items():
        label = Text(one_line(capability), "bold")
        if spec.requires or spec.provides:
            requires = "".join(f"{kind} " for kind in spec.requires)
            label.append("  " + one_line(f"{requires}→ {', '.join(spec.provides)}", None), "cyan")
        if spec.effect != "none":
            label.append(f"  effect: {spec.effect}", "yellow")
        if spec.requires_approval:
            label.append("  needs approval", "magenta")
        tree.add(label).add(Text(one_line(spec.description, None), "dim"))
    make_console().print(tree)


def print_plan_tree(plan: ExecutionPlan, states: Mapping[str, str] | None = None) -> None:
    """Print a plan as a tree, with each step below the last step that it depends on.

    Args:
        plan: A valid plan.
        states: State of each step by context key, as returned by ``step_states``.
    """
    from rich.text import Text
    from rich.tree import Tree

    from capgraph.planning.plan_access import plan_steps, step_key
    from capgraph.planning.schedule import dependencies

    root = Tree(Text("plan", "bold"))
    steps = {step_key(step, index): step for index, step in enumerate(plan_steps(plan))}
    waits_for = dependencies(plan)
    branches: dict[str, Tree] = {}
    for key, step in steps.items():
        earlier = [name for name in branches if name in waits_for[key]]
        parent, others = (branches[earlier[-1]], earlier[:-1]) if earlier else (root, [])
        branches[key] = parent.add(_step_label(key, step, others, states))
    make_console().print(root)


def _step_label(
    key: str, step: Mapping[str, Any], others: list[str], states: Mapping[str, str] | None
) -> Any:
    from rich.text import Text

    label = Text()
    if states is not None:
        sign, style = STATE_SIGNS[states[key]]
        label.append(f"{sign} ", style)
    label.append(one_line(key, _LABEL_CHARACTERS), "bold")
    if step["capability"] != key:
        label.append(f"  {one_line(step['capability'], _LABEL_CHARACTERS)}", "cyan")
    if others:
        label.append(f"  (also after {one_line(', '.join(others), 80)})", "dim")
    return label
