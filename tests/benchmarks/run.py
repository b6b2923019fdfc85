"""``make bench``: one command, one table, one JSON file.

Only ratios and counts mean anything: every time is set against the same work on bare LangGraph,
measured in turns with it in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks import measure

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
                        "at most 1.5",
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
    imports = found["cold_import"]["framework"]
    rows.append(("cold import / import langgraph.graph", f"{imports['ratio']:.2f}", "1.00", "1.15"))
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
    many = found["threads"]
    rows.append(
        (
            f"{many['threads']:,} threads at once, 5 steps each",
            f"{many['complete']:,.0f} complete, {many['turns_per_second']:.0f} turns/s,"
            f" {many['bytes_per_thread'] / 1000:.0f} kB each",
            "",
            "all complete",
        )
    )
    return rows


def _range(part: dict[str, float], base: float) -> str:
    return f"{part['low'] / base:.2f} to {part['high'] / base:.2f}"


async def collect(quick: bool) -> dict[str, Any]:
    """Measure everything."""
    rounds = 3 if quick else 9
    steps = 200 if quick else 1000
    return {
        "per_step": await measure.per_step(rounds=rounds),
        "per_step_saved": await measure.per_step_saved(rounds=rounds),
        "makespan": await measure.makespan(plans=8 if quick else 20),
        "flat_1k": await measure.flatness(1_000, steps),
        "flat_100k": await measure.flatness(100_000, steps),
        "threads": await measure.many_threads(100 if quick else 1000),
        "build": measure.build_seconds(),
        "cold_import": measure.cold_import(5 if quick else 10),
    }


def versions() -> dict[str, str]:
    """Versions of what was measured."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> int:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    options = parser.parse_args()
    found = asyncio.run(collect(options.quick))
    found["versions"] = versions()
    table = Table("what", "capgraph", "bare LangGraph", "target", title="capgraph benchmarks")
    for row in rows_of(found):
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    console.print(f"figures: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
