"""What a request costs: model calls and tokens, with few and with many tools, beside peers.

Every program does the same work on a scripted model that counts; a token is four characters of
whatever was sent or written, tools and forms included. The time to the first call of the tool is
taken beside it, with a model that thinks for no time at all: what the program itself takes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks import markdown
from tests.benchmarks.peers import MOMENTS, PEERS, Tally, Work

PROGRAMS = ("capgraph", "LangChain create_agent", "pydantic-ai", "Microsoft agent")
STEPS = (0, 1, 2, 10)
TOOLS = (2, 20, 1000)
COLUMNS = (
    "request",
    "tools",
    "program",
    "model calls",
    "prompt tokens",
    "answer tokens",
    "time to first step",
)
LOOP = "LangChain create_agent"
ROUNDS = 9


async def cost(program: str, steps: int, tools: int) -> Tally:
    """Let a program do one request, and return what its model was asked and wrote.

    Args:
        program: Its name among the peers.
        steps: Dependent steps; 0 for small talk.
        tools: How many tools there are, the one that is needed included.
    """
    peer = next(peer for peer in PEERS if peer.name == program)
    work = Work(steps, Tally(), tools - 1)
    async with peer.prepare(work, None) as run:
        value = await run()
    assert value == steps, f"{program} came to {value}, not {steps}."
    assert work.tally is not None
    return work.tally


async def seconds(programs: Sequence[str], steps: int, tools: int) -> dict[str, float]:
    """Return the least seconds that programs take to the first step, measured in turns.

    They wait for nothing, so the time of the process is what they take on a machine that is idle.
    """
    spent: dict[str, list[float]] = {program: [] for program in programs}
    async with AsyncExitStack() as stack:
        runs = {}
        for peer in PEERS:
            if peer.name in spent:
                work = Work(steps, others=tools - 1)
                runs[peer.name] = await stack.enter_async_context(peer.prepare(work, None))
        for round_ in range(ROUNDS + 1):
            for name, run in runs.items():
                MOMENTS.clear()
                started = time.process_time()
                await run()
                if round_:  # the first one warms up
                    spent[name].append(MOMENTS[0] - started)
    return {name: min(found) for name, found in spent.items()}


async def costs() -> list[dict[str, Any]]:
    """Return a row for every request and program that is installed."""
    rows = []
    for tools in TOOLS:
        for steps in STEPS:
            versions = {p.name: p.version() for p in PEERS if p.name in PROGRAMS and p.version()}
            waited = await seconds(list(versions), steps, tools) if steps else {}
            for program in PROGRAMS:
                if program in versions:
                    tally = await cost(program, steps, tools)
                    rows.append(
                        {
                            "steps": steps,
                            "tools": tools,
                            "program": f"{program} {versions[program]}",
                            "model_calls": tally.calls,
                            "prompt_tokens": tally.prompt_chars // 4,
                            "answer_tokens": tally.answer_chars // 4,
                            "time": waited[program] / waited[LOOP] if LOOP in waited else None,
                        }
                    )
    return rows


def table_rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Turn the figures into rows."""
    return [
        (
            f"{row['steps']} step{'s' if row['steps'] > 1 else ''}" if row["steps"] else "hello",
            f"{row['tools']:,}",
            row["program"],
            *(f"{row[name]:,}" for name in ("model_calls", "prompt_tokens", "answer_tokens")),
            "" if row["time"] is None else f"{row['time']:.2f}",
        )
        for row in found
    ]


def main() -> int:
    """Count, print the table, and put it into a page where one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown file")
    options = parser.parse_args()
    logging.getLogger("capgraph").setLevel(logging.ERROR)
    text = markdown.table(COLUMNS, table_rows(asyncio.run(costs())))
    print(text)
    if options.docs is not None:
        markdown.replace_results(options.docs, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
