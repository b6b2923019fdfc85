"""Doing what the log asks of a thread, while its database comes and goes."""

from __future__ import annotations

from itertools import count
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph, capability_node
from capgraph.base.errors import PersistenceError
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import advance, graph_input
from capgraph.stores.persistence import Persistence
from capgraph.stores.run_log import LoggedRun


@capability_node(examples=["open the valve"], requires_approval=True)
def open_valve() -> str:
    """Open the valve."""
    return "open"


class _Saver(InMemorySaver):
    """Reads so many times, and then not once."""

    reads = -1

    async def aget_tuple(self, config: Any) -> Any:
        self.reads -= 1
        if self.reads == -1:
            raise PersistenceError("The database was away.", fix="Bring it back.")
        return await super().aget_tuple(config)


async def test_run_with_unreadable_outcome_is_not_ended() -> None:
    saver = _Saver()
    graph = build_graph([open_valve], checkpointer=saver)
    log = Persistence.of(saver).open_run_log()
    request = {"message": "Open the valve", "caller": {}}
    await log.create(LoggedRun("r", "t", "", request=request, status="running"))
    # Its process ended when the thread had been saved, and before the log had a word of it.
    config: Any = {"configurable": {"thread_id": "t"}, "metadata": {"run_id": "r"}}
    await graph.ainvoke(graph_input(request), config)
    for reads in count():
        saver.reads = reads
        try:
            report = await advance(graph, TurnJob("t", "r"), log=log)
        except PersistenceError:
            continue
        assert report.statuses == {"r": "waiting"}
        assert reads >= 3
        break
