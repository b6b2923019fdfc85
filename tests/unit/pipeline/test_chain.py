"""The stages of a capability: those without work are left out, and the others keep their order."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

import capgraph
from capgraph import build_graph, capability_node
from capgraph.configs.settings import Settings
from capgraph.pipeline.step_execution import current_execution

PACKAGE = str(Path(capgraph.__file__).resolve().parent)
MOST_FRAMES = 14  # lower it whenever it falls; it never rises


def files_of_frames() -> list[str]:
    found, frame = [], sys._getframe(1)
    while frame is not None:
        found.append(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    return found


async def test_a_plain_step_passes_few_frames_of_ours() -> None:
    files: list[str] = []

    @capability_node(examples=["how full is the tank?"])
    async def tank_level() -> float:
        """Read the water level of the tank, in metres."""
        files.extend(files_of_frames())
        return 2.5

    graph = build_graph([tank_level], settings=Settings())
    await graph.ainvoke({"messages": [("user", "How full is the tank today?")]})
    own = [file for file in files if str(Path(file).resolve()).startswith(PACKAGE)]
    assert 0 < len(own) <= MOST_FRAMES, own


async def test_a_middleware_that_asks_for_approval_stops_a_step_that_asks_nobody_by_itself() -> (
    None
):
    ran: list[int] = []

    class Ask:
        stage = "validate"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            return await call_next(replace(attempt, approval_reasons=("It is late.",)))

    @capability_node(examples=["how full is the tank?"])
    async def tank_level() -> float:
        """Read the water level of the tank, in metres."""
        ran.append(1)
        return 2.5

    graph = build_graph(
        [tank_level], behaviors=[Ask()], checkpointer=InMemorySaver(), settings=Settings()
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    out = await graph.ainvoke({"messages": [("user", "How full is the tank today?")]}, config)
    assert out["__interrupt__"]
    assert ran == []


async def test_each_try_begins_with_nothing_of_the_last_one() -> None:
    seen: list[tuple[Any, Any]] = []

    @capability_node(examples=["how full is the tank?"], max_attempts=2, delay_seconds=0)
    async def tank_level() -> float:
        """Read the water level of the tank, in metres."""
        job = current_execution()
        assert job is not None
        seen.append((job.attempt_state.body_result, job.attempt_state.failure))
        if len(seen) == 1:
            raise ConnectionError("The sensor does not answer.")
        return 2.5

    graph = build_graph([tank_level], settings=Settings())
    await graph.ainvoke({"messages": [("user", "How full is the tank today?")]})
    assert seen == [(None, None), (None, None)]
