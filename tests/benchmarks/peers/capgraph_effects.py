"""capgraph, with steps that act on the world: no step starts before the last one is on disk."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from capgraph import capability_node
from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, capgraph
from tests.benchmarks.peers.capgraph import Value


@capability_node(name=TOOL, description=DESCRIPTION, effect="once")
async def advance(value: Value | None = None) -> Value:
    """Return the number that follows a number, as if that were an effect."""
    return Value(number=(value.number if value else 0) + 1)


def prepare(work: Work, folder: Path | None) -> AbstractAsyncContextManager[Run]:
    """Build the same agent over the other capability."""
    return capgraph.prepare(work, folder, advance)
