"""Plans as Mermaid flowcharts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from capgraph.planning.catalog import TERMINAL_STEPS
from capgraph.planning.conditions import describe_condition
from capgraph.planning.plan_access import plan_steps, step_capability, step_key
from capgraph.planning.problems import preview
from capgraph.planning.references import StepRead, step_reads
from capgraph.planning.schedule import recorded_order
from capgraph.planning.waits import WAIT_FIELDS

StepStatus = Literal["pending", "running", "done", "failed", "skipped", "not needed"]

_STYLES: dict[str, str] = {
    "pending": "fill:#f4f4f4,stroke:#8a8a8a,color:#222",
    "running": "fill:#fff4cc,stroke:#b58900,color:#222",
    "done": "fill:#dff2e1,stroke:#2e7d32,color:#222",
    "failed": "fill:#fde0dc,stroke:#c62828,color:#222",
    "skipped": "fill:#eee,stroke:#aaa,color:#666,stroke-dasharray:4 3",
    "not needed": "fill:#fff,stroke:#aaa,color:#888,stroke-dasharray:1 3",
}
_SIGNS = {"running": "▶ ", "done": "✓ ", "failed": "✗ ", "skipped": "⊘ ", "not needed": "⊘ "}
_PLAIN = re.compile(r"[^\w .,:;/()+=?!%'°·→–-]")
_LONGEST = 60


def plan_mermaid(plan: Mapping[str, Any], status: Mapping[str, str] | None = None) -> str:
    """Render a plan as a Mermaid flowchart with its steps, data flow, and step statuses.

    Stored contexts that the plan reads are drawn as cylinders. All text is escaped.

    Args:
        plan: Plan to draw. Malformed parts are skipped.
        status: Status of each step, by context key. The default is ``pending``.

    >>> print(plan_mermaid({"steps": [{"context_key": "a", "capability": "fetch"}]}, {"a": "done"}))
    flowchart TD
        s0["✓ a<br/>fetch"]
        class s0 done
        classDef done fill:#dff2e1,stroke:#2e7d32,color:#222
    """
    steps = [step if isinstance(step, dict) else {} for step in plan_steps(plan)]
    keys = [step_key(step, index) for index, step in enumerate(steps)]
    nodes: list[str] = []
    arrows: list[str] = []
    states: list[str] = []
    stored: dict[StepRead, str] = {}
    read: set[int] = set()
    order = recorded_order(plan)
    for index, step in enumerate(steps):
        name, state = step_capability(step), (status or {}).get(keys[index], "pending")
        states.append(state if state in _STYLES else "pending")
        sign = _SIGNS.get(state, "")
        lines = [f"{sign}{escape_label(keys[index])}", escape_label(name or "?")]
        label = "<br/>".join([*lines, *map(escape_label, step_notes(step))])
        left, right = ('(["', '"])') if name in TERMINAL_STEPS else ('["', '"]')
        nodes += [f"    s{index}{left}{label}{right}"]
        nodes += [f"    class s{index} {_status_class(states[-1])}"]
        for step_read in step_reads(step, keys):
            before = [place for place in range(index) if keys[place] == step_read.key]
            read.update(before[-1:])
            place = (
                stored.setdefault(step_read._replace(path=()), f"c{len(stored)}")
                if not before
                else ""
            )
            source = f"s{before[-1]}" if before else place
            label = (
                step_read.label
                if step_read.path[0] in ("inputs", "parameters")
                else str(step_read.path[0])
            )
            arrows.append(f'    {source} -->|"{escape_label(label)}"| s{index}')
        earlier = [keys.index(key) for key in order.get(keys[index], ()) if key in keys[:index]]
        drawn = {keys.index(one.key) for one in step_reads(step, keys) if one.key in keys[:index]}
        arrows += [f"    s{place} -.-> s{index}" for place in earlier if place not in drawn]
        read.update(earlier)
        if name in TERMINAL_STEPS:
            arrows += [f"    s{place} -.-> s{index}" for place in range(index) if place not in read]
    cylinders = [
        f'    {node}[("{escape_label(step_read.key)}")]' for step_read, node in stored.items()
    ]
    styles = [f"    classDef {_status_class(s)} {_STYLES[s]}" for s in _STYLES if s in states]
    return "\n".join(["flowchart TD", *cylinders, *nodes, *arrows, *styles])


def _status_class(state: str) -> str:
    return state.replace(" ", "_")


def step_notes(step: Mapping[str, Any]) -> list[str]:
    """List notes about a planned step: its condition, list, waits, and failure mode.

    >>> step_notes({"when": {"of": "sky.wind", "is": ">", "than": 12}, "optional": True})
    ['if sky.wind > 12', 'optional']
    """
    notes = []
    if step.get("when") is not None:
        notes.append(f"if {describe_condition(step['when'])}")
    if isinstance(each := step.get("for_each"), dict):
        notes.append(f"for each of {each.get('of')}")
    notes += [
        f"{name.replace('_', ' ')} {preview(step[name])}" for name in WAIT_FIELDS if step.get(name)
    ]
    labels = {"optional": "optional", "look_again": "looked at again"}
    return [*notes, *(text for name, text in labels.items() if step.get(name) is True)]


def escape_label(text: object, limit: int = _LONGEST) -> str:
    """Escape text for use inside a quoted Mermaid label.

    >>> escape_label('a "b" <i>')
    'a #34;b#34; #60;i#62;'
    """
    flat = " ".join(str(text).split())
    if len(flat) > limit:
        flat = flat[: limit - 1] + "…"
    # In a quoted label, Mermaid reads #code; as the character with that code.
    return _PLAIN.sub(
        lambda match: "?" if 0xD800 <= ord(match[0]) < 0xE000 else f"#{ord(match[0])};", flat
    )
