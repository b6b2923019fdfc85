"""Pictures of plans, as Mermaid flowcharts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from framework.base import ExecutionPlan
from framework.planning.catalog import CLOSING
from framework.planning.reading import capability_of, step_key, steps_of
from framework.planning.references import reads_of
from framework.planning.replan import PlanVersion

StepStatus = Literal["pending", "running", "done", "failed", "skipped"]

_STYLES: dict[str, str] = {
    "pending": "fill:#f4f4f4,stroke:#8a8a8a,color:#222",
    "running": "fill:#fff4cc,stroke:#b58900,color:#222",
    "done": "fill:#dff2e1,stroke:#2e7d32,color:#222",
    "failed": "fill:#fde0dc,stroke:#c62828,color:#222",
    "skipped": "fill:#eee,stroke:#aaa,color:#666,stroke-dasharray:4 3",
}
_SIGNS = {"running": "▶ ", "done": "✓ ", "failed": "✗ ", "skipped": "⊘ "}
_PLAIN = re.compile(r"[^\w .,:;/()+=?!%'°·→–-]")
_LONGEST = 60


def plan_mermaid(plan: ExecutionPlan, status: Mapping[str, str] | None = None) -> str:
    """Draw a plan as a Mermaid flowchart: steps, data flow and what became of each step.

    Stored contexts that the plan reads are drawn as cylinders. Text of any origin is escaped.

    Args:
        plan: The plan; anything that can be read of it is drawn.
        status: What became of each step, by context key; ``pending`` when it is not named.

    >>> print(plan_mermaid({"steps": [{"context_key": "a", "capability": "fetch"}]}, {"a": "done"}))
    flowchart TD
        s0["✓ a<br/>fetch"]
        class s0 done
        classDef done fill:#dff2e1,stroke:#2e7d32,color:#222
    """
    lines, used = _draw(plan, status or {}, "")
    return "\n".join(["flowchart TD", *lines, *_styles(used)])


def versions_mermaid(
    history: Sequence[PlanVersion], status: Mapping[str, str] | None = None
) -> str:
    """Draw every version of a run's plan, each in its box with what its steps had come to.

    Args:
        history: The plan history, oldest version first.
        status: What became of the last version's steps, by context key.
    """
    lines = ["flowchart TD"]
    used: set[str] = set()
    for place, entry in enumerate(history):
        last = place == len(history) - 1
        states = (status or {}) if last else history[place + 1]["outcome"]
        body, drawn = _draw(entry["plan"], states, f"v{entry['version']}")
        title = f"version {entry['version']}, {entry['author']}: {entry['reason']}"
        lines.append(f'    subgraph v{entry["version"]}["{escape_label(title)}"]')
        lines += [f"    {line}" for line in body]
        lines.append("    end")
        used |= drawn
        if place:
            names = {
                key: f"v{history[place - 1]['version']}s{index}"
                for index, key in enumerate(_keys(history[place - 1]["plan"]))
            }
            for index, key in enumerate(_keys(entry["plan"])):
                source = names.get(entry["kept"].get(key, ""))
                if source is not None:
                    lines.append(f'    {source} -. "kept" .-> v{entry["version"]}s{index}')
    return "\n".join([*lines, *_styles(used)])


def escape_label(text: object, limit: int = _LONGEST) -> str:
    """Make any text safe inside a quoted Mermaid label.

    >>> escape_label('a "b" <i>')
    'a #34;b#34; #60;i#62;'
    """
    flat = " ".join(str(text).split())
    if len(flat) > limit:
        flat = flat[: limit - 1] + "…"
    # Mermaid writes any character as #code; and reads nothing else in a quoted label.
    return _PLAIN.sub(
        lambda match: "?" if 0xD800 <= ord(match[0]) < 0xE000 else f"#{ord(match[0])};", flat
    )


def _keys(plan: ExecutionPlan) -> list[str]:
    return [
        step_key(step, index) if isinstance(step, dict) else str(index)
        for index, step in enumerate(steps_of(plan))
    ]


def _draw(
    plan: ExecutionPlan, status: Mapping[str, str], prefix: str
) -> tuple[list[str], set[str]]:
    steps = [step if isinstance(step, dict) else {} for step in steps_of(plan)]
    keys = _keys(plan)
    lines: list[str] = []
    arrows: list[str] = []
    used: set[str] = set()
    stored: dict[tuple[str, str], str] = {}
    read: set[int] = set()
    for index, step in enumerate(steps):
        node = f"{prefix}s{index}"
        name, state = capability_of(step), status.get(keys[index], "pending")
        state = state if state in _STYLES else "pending"
        label = (
            f"{_SIGNS.get(state, '')}{escape_label(keys[index])}<br/>{escape_label(name or '?')}"
        )
        left, right = ('(["', '"])') if name in CLOSING else ('["', '"]')
        lines += [f"    {node}{left}{label}{right}", f"    class {node} {state}"]
        used.add(state)
        for _, kind, key in reads_of(step, keys):
            before = [place for place in range(index) if keys[place] == key]
            if before:
                read.add(before[-1])
                source = f"{prefix}s{before[-1]}"
            else:
                source = stored.setdefault((kind, key), f"{prefix}c{len(stored)}")
            arrows.append(f'    {source} -->|"{escape_label(kind)}"| {node}')
        if name in CLOSING:
            arrows += [
                f"    {prefix}s{place} -.-> {node}" for place in range(index) if place not in read
            ]
    cylinders = [f'    {node}[("{escape_label(key)}")]' for (_, key), node in stored.items()]
    return [*cylinders, *lines, *arrows], used


def _styles(used: set[str]) -> list[str]:
    return [f"    classDef {state} {style}" for state, style in _STYLES.items() if state in used]
