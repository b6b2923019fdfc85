"""``make bench``: one command, one table, one JSON file.

Only ratios and counts mean anything: every time is set against the same work on bare LangGraph,
measured in turns with it in one process. The second table sets the same request beside other
frameworks; those that are not installed say how to get them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks import markdown, measure
from tests.benchmarks.peers.rounds import compare

PEER_STEPS = 50
PACKAGES = ("capgraph", "langgraph", "langgraph-checkpoint-sqlite", "langchain-core", "pydantic")


def rows_of(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Turn the figures into rows: what, capgraph, bare LangGraph, target."""
    rows: list[tuple[str, str, str, str]] = []
    for title, key in (("no saver", "per_step"), ("SQLite saver", "per_step_saved")):
        part = found[key]
        base = part["by hand"]["median"]
        for name in ("capgraph", "capgraph, chain"):
            if name in part:
                rows.append(
                    (
                        f"time per step, {title}{', chain' if 'chain' in name else ''}",
                        f"{part[name]['ratio']:.2f} ({_range(part[name], base)})",
                        "1.00",
                        "at most 0.8" if key == "per_step" else "at most 0.5",
                    )
                )
    sizes = found["per_step_saved"]["bytes_per_step"]
    rows.append(
        (
            "bytes on disk per step of 1 kB (SQLite, 200 steps)",
            f"{sizes['capgraph']:,.0f}",
            f"{sizes['by hand']:,.0f}",
            "",
        )
    )
    span = found["makespan"]
    rows.append(
        (
            "makespan / critical path, 20 random plans",
            f"{span['median']:.3f} (worst {span['worst']:.3f})",
            "waves: 1.05 to 1.57",
            "at most 1.05",
        )
    )
    each = found["for_each"]
    what = f"for_each, {each['elements']:,} elements"
    rows += [
        (f"{what}, makespan / bound, limit 16", f"{each['makespan']:.3f}", "", "at most 1.05"),
        (f"{what}, time per element / plain step", f"{each['per_element']:.2f}", "", "at most 1.2"),
    ]
    imports = found["cold_import"]
    rows += [
        (
            f"cold import of {name} / langgraph.graph",
            f"{imports[name]['ratio']:.2f}",
            "1.00",
            "1.15",
        )
        for name in ("capgraph", "capgraph.graph")
    ]
    first = found["cold_start"]["first step"]["ratio"]
    rows.append(
        (
            "capgraph ask to the demo's first step / import langgraph.graph",
            f"{first:.2f}",
            "1.00",
            "1.5",
        )
    )
    build = found["build"]
    rows.append(("build_graph, 1,000 capabilities", f"{build['seconds']:.2f} s", "", "under 1 s"))
    for name, label in (("flat_1k", "1 kB"), ("flat_100k", "100 kB")):
        flat = found[name]
        rows.append(
            (
                f"step 1,000 / step 10, results of {label}",
                f"time {flat['time_ratio']:.2f}, bytes {flat['bytes_ratio']:.2f}",
                "",
                "time at most 1.3, bytes 1",
            )
        )
    lengths = found["plan_length"]
    rows.append(
        (
            f"time per step, plan of {lengths['long']} / plan of {lengths['short']} steps",
            f"{lengths['ratio']:.2f}",
            "",
            "at most 1.15",
        )
    )
    length = found["thread_length"]
    by_hand = length["by_hand"]
    rows.append(
        (
            f"turn of a thread of {length['turns']} to {length['until']} turns / of 2 turns"
            " (SQLite, full history)",
            f"time {length['time']:.2f}, bytes {length['bytes']:.2f}",
            f"time {by_hand['time']:.2f}, bytes {by_hand['bytes']:.1f}",
            "at most 1.3",
        )
    )
    many = found["threads"]
    rows.append(
        (
            f"{many['threads']:,} concurrent threads, 5 steps each",
            f"{many['complete']:,.0f} complete, {many['turns_per_second']:.0f} turns/s,"
            f" {many['bytes_per_thread'] / 1000:.0f} kB each",
            "",
            "all complete",
        )
    )
    return rows


def _range(part: dict[str, float], base: float) -> str:
    return f"{part['low'] / base:.2f} to {part['high'] / base:.2f}"


_STAGE_COLUMNS = ("stage", "relative to no middleware")
PEER_COLUMNS = (
    "program", "stored on disk", "ms per step", "relative to capgraph",
    "model calls", "prompt tokens", "answer tokens", "bytes per step",
)  # fmt: skip


def peer_rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Turn the peers' figures into rows; each against capgraph with or without a saver."""
    base = {
        bool(row["keeps"]): row["median"]
        for row in found
        if row["name"] == "capgraph" and "median" in row
    }
    rows: list[tuple[str, ...]] = []
    for row in sorted(found, key=lambda item: bool(item.get("keeps"))):
        if "missing" in row:
            rows.append((row["name"], row["missing"], *[""] * 6))
            continue
        against = base.get(bool(row["keeps"]))
        low, middle, high = (1000 * row[name] for name in ("low", "median", "high"))
        rows.append(
            (
                f"{row['name']} {row['version']}",
                row["keeps"] or "nothing",
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                f"{row['median'] / against:.2f}" if against else "",
                f"{row['model_calls']}",
                f"{row['prompt_tokens']:,}",
                f"{row['answer_tokens']:,}",
                f"{row['bytes_per_step']:,.0f}" if "bytes_per_step" in row else "",
            )
        )
    return rows


async def collect(quick: bool, only: str) -> dict[str, Any]:
    """Measure everything, or one part."""
    rounds = 2 if quick else 7
    steps = 200 if quick else 1000
    found: dict[str, Any] = {}
    if only in ("all", "langgraph"):
        found |= {
            "per_step": await measure.per_step(rounds=rounds),
            "per_step_saved": await measure.per_step_saved(rounds=rounds),
            "per_stage": await measure.per_stage(rounds=2 if quick else 5),
            "per_adapter": await measure.per_adapter(rounds=rounds),
            "per_behavior": await measure.per_behavior(rounds=2 if quick else 5),
            "react_turn": await measure.react_turn(rounds=rounds),
            "plan_length": await measure.plan_length(rounds=2 if quick else 5),
            "makespan": await measure.makespan(plans=8 if quick else 20),
            "for_each": await measure.for_each(rounds=2 if quick else 5),
            "flat_1k": await measure.flatness(1_000, steps),
            "flat_100k": await measure.flatness(100_000, steps),
            "threads": await measure.many_threads(100 if quick else 1000),
            "thread_length": await measure.thread_length(rounds=10 if quick else 100),
            "build": measure.build_seconds(),
            "cold_import": measure.cold_import(3 if quick else 10),
            "cold_start": measure.cold_start(3 if quick else 10),
        }
    if only in ("all", "peers"):
        found["peers"] = await compare(steps=20 if quick else PEER_STEPS, rounds=rounds)
    return found


def versions() -> dict[str, str]:
    """Versions of what was measured."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def tables(found: dict[str, Any], quick: bool) -> list[tuple[str, Sequence[str], list[Any]]]:
    """Return title, heading and rows of each table."""
    made: list[tuple[str, Sequence[str], list[Any]]] = []
    if "per_step" in found:
        heading = ("measurement", "capgraph", "bare LangGraph", "target")
        made.append(("Compared with bare LangGraph", heading, rows_of(found)))
        staged = [(name, f"{part['ratio']:.2f}") for name, part in found["per_stage"].items()]
        made.append(("A step with a middleware at each stage", _STAGE_COLUMNS, staged))
        heading = (
            "behavior", "relative to no behavior", "additional time in bare LangGraph steps"
        )  # fmt: skip
        parts = found["per_behavior"].items()
        around = [(n, f"{p['ratio']:.2f}", f"{p['bare_steps_more']:.2f}") for n, p in parts]
        made.append(("A step with each built-in behavior", heading, around))
        adapted = [
            (name, f"{found['per_adapter'][name]['ratio']:.2f}", "at most 1.2")
            for name in ("tool", "schema", "tool_thread")
        ]
        heading = ("tool", "relative to a capability", "target")
        made.append(("A step of an adapted tool", heading, adapted))
        loops = [(name, f"{part['ratio']:.2f}") for name, part in found["react_turn"].items()]
        heading = ("agent", "relative to create_agent")
        made.append(("A turn of an agent's loop", heading, loops))
    if "peers" in found:
        steps = 20 if quick else PEER_STEPS
        title = f"One request of {steps} dependent tool steps"
        made.append((title, PEER_COLUMNS, peer_rows(found["peers"])))
    return made


def measured_with(found: dict[str, Any]) -> str:
    """Return date, machine and versions in a line."""
    names = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{found['date']}, {os.cpu_count()} CPUs, {names}"


def main() -> int:
    """Measure, print the tables and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--docs", type=Path, help="put the tables into this Markdown file")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--only", choices=("all", "langgraph", "peers"), default="all")
    options = parser.parse_args()
    found = asyncio.run(collect(options.quick, options.only))
    found["date"] = datetime.now(UTC).date().isoformat()
    found["versions"] = versions()
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    written = [f"Measured {measured_with(found)}."]
    for title, heading, rows in tables(found, options.quick):
        shown = Table(*heading, title=title)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
        written.append(f"{title}:\n\n{markdown.table(heading, rows)}")
    console.print(measured_with(found))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    console.print(f"figures: {options.json}")
    if options.docs is not None:
        markdown.replace_results(options.docs, "\n\n".join(written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
