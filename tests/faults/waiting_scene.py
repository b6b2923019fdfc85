"""A turn that waits, and the signal for it, killed at each instant at which something is written.

Run as a program it imports everything once and forks a child for each life of a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from langgraph.types import Command
from pydantic import BaseModel

from capgraph import BaseCapability, build_graph, capability_node
from capgraph import signal as send
from capgraph.planning.waits import is_wait_interrupt
from capgraph.stores import Persistence, open_saver

CONFIG: Any = {"configurable": {"thread_id": ""}}
FATAL, PASSED, FOLDER, URL = 0, 0, Path(), sys.argv[1] if len(sys.argv) > 1 else ""


def instant() -> None:
    """Pass an instant; the process ends at the fatal one."""
    global PASSED
    PASSED += 1
    if PASSED == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)


def watched(owner: Any, name: str) -> None:
    """Make an instant of the moment before and of the moment after each call of a method."""
    method = getattr(owner, name)

    async def call(*args: Any, **kwargs: Any) -> Any:
        instant()
        found = await method(*args, **kwargs)
        instant()
        return found

    setattr(owner, name, call)


@capability_node
class Act(BaseCapability):
    name = "act"
    description = "Acts on the folder."
    effect = "once"

    class Parameters(BaseModel):
        value: int = 0

    async def execute(self) -> dict[str, Any]:
        instant()
        with (FOLDER / "done").open("a") as log:
            log.write(f"{self.step['context_key']} {self.parameters.value}\n")
        instant()
        return {}


@capability_node
async def events() -> list[str]:
    """Name two events."""
    return ["one", "two"]


ENDED = ["each[0] 1", "each[1] 2", "first 0", "paid 5"]


def done() -> list[str]:
    path = FOLDER / "done"
    return path.read_text().splitlines() if path.exists() else []


async def live() -> None:
    """Begin the turn or go on with it, and send the signal, as a sender does that had no answer."""
    async with open_saver(URL.format(folder=FOLDER)) as saver:
        assert saver is not None
        for name in ("aput", "aput_writes"):
            watched(saver, name)
        watched(Persistence.of(saver).tables, "run")
        graph = build_graph([Act, events], checkpointer=saver)
        first = {"context_key": "first", "capability": "act"}
        value = {"value": {"$from": "signal"}}
        paid = {"context_key": "paid", "capability": "act", "wait_for": "paid", "parameters": value}
        over = {"for_each": {"of": "events"}, "wait_for": {"$from": "item"}, "parameters": value}
        each = {"context_key": "each", "capability": "act", **over}
        named = {"context_key": "events", "capability": "events"}
        plan = {"steps": [first, paid, named, each]}
        begun = await saver.aget_tuple(CONFIG)
        given = {"messages": [("user", "Go")], "planning_execution_plan": plan}
        await answered(graph, None if begun else given)
        for event, sent in (("two", 2), ("paid", 5), ("one", 1)):
            await send(graph, FOLDER.name, event, sent)
            out = await answered(graph, None)
        (FOLDER / "end").write_text(json.dumps([out["execution_outcome"]["status"], PASSED]))


async def answered(graph: Any, given: Any) -> Any:
    """Run the turn, saying of each effect that may have happened whether it did."""
    while True:
        out = await graph.ainvoke(given, CONFIG, durability="sync")
        asked = [i.value for i in out.get("__interrupt__", ()) if not is_wait_interrupt(i.value)]
        if not asked:
            return out
        keys = [step["context_key"] for step in asked[0]["steps"]]
        was = {line.split()[0] for line in done()}
        given = Command(resume={key: "done" if key in was else "rerun" for key in keys})


def life(folder: Path, fatal: int) -> None:
    """Live once, in a child, until the end or the fatal instant."""
    global FATAL, FOLDER
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    FATAL, FOLDER = fatal, folder
    CONFIG["configurable"]["thread_id"] = folder.name
    asyncio.run(live())
    os._exit(0)


def sweep(folder: Path, every: int) -> dict[str, Any]:
    """Kill at each of the instants; return what was wrong."""
    whole = folder / "whole"
    whole.mkdir()
    life(whole, 0)
    _, instants = json.loads((whole / "end").read_text())
    wrong = []
    for fatal in range(1, instants + 1, every):
        place = folder / str(fatal)
        place.mkdir()
        life(place, fatal)
        life(place, 0)
        end = place / "end"
        status = json.loads(end.read_text())[0] if end.exists() else "none"
        acted = sorted((place / "done").read_text().splitlines())
        if status != "completed" or acted != ENDED:
            wrong.append([fatal, status, acted])
    return {"instants": instants, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(sweep(Path(sys.argv[2]), int(sys.argv[3]))))
