"""Workers of a queue as processes that die, or freeze, at a named instant of a step.

They are forked from a process that has imported everything, so that one costs little. It reads a
line of JSON for each: the database, the engine, where to write, and what is to happen when.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base.context import CapabilityContext
from capgraph.configs.settings import Settings
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.scale import Worker, open_engine
from capgraph.scale.remote import RemoteSteps
from capgraph.stores import open_saver
from capgraph.stores.leases import Leases
from capgraph.stores.step_results import StepResults

TTL = 1.2
LOG = Path("log")
_INSTANTS: dict[str, tuple[Any, str]] = {
    "begin": (StepResults, "claim"),
    "claim": (EffectLedger, "claim"),
    "effect": (EffectLedger, "begin_effect"),
    "written": (EffectLedger, "end_effect"),
    "result": (StepResults, "finish"),
    "release": (Leases, "release"),
    "open": (StepResults, "create"),
    "order": (RemoteSteps, "_enqueue_if_needed"),
    "read": (StepResults, "get_status"),
}
INSTANTS = [
    *("begin<", "begin>", "claim>", "effect<", "effect>", "work<", "work>"),
    *("written<", "written>", "result<", "result>", "release<"),
]
"""A name with what stands before (``<``) or after (``>``) it, in the order of a step with an effect."""
TURNS_INSTANTS = ["open<", "open>", "order>", "read>"]
"""The same of the worker that runs the turn."""


class Frame(CapabilityContext):
    CONTEXT_TYPE = "FRAME"
    number: int


class Mask(CapabilityContext):
    CONTEXT_TYPE = "MASK"
    of: int


def note(line: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{line} {os.getpid()}\n")


def notes(line: str) -> list[str]:
    found = LOG.read_text().splitlines() if LOG.exists() else []
    return [one for one in found if one.startswith(line)]


@capability_node
async def grab() -> Frame:
    """Grab a frame."""
    return Frame(number=7)


def capabilities(effect: str) -> list[Any]:
    class Segment(BaseCapability):
        name, description, queue = "segment", "Segment a frame", "gpu"
        requires, provides = [Frame], [Mask]

        async def execute(self) -> Mask:
            await reach("work<")
            note("acted")
            await reach("work>")
            return Mask(of=self.inputs["FRAME"].number)

    Segment.effect = effect  # type: ignore[assignment]
    return [grab, capability_node(Segment)]


async def reach(instant: str) -> None:
    """Do at an instant what was said for it, once."""
    how = _WHEN.pop(instant, None)
    if how is not None:
        note(f"{how} at {instant}")
        if how == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                note("let go")
        os.kill(os.getpid(), getattr(signal, how))
        await asyncio.sleep(0)


_WHEN: dict[str, str] = {}


def arm(instant: str, how: str) -> None:
    _WHEN[instant] = how
    cls, name = _INSTANTS.get(instant[:-1], (None, ""))
    if cls is None:
        return
    method: Callable[..., Any] = getattr(cls, name)

    async def armed(self: Any, *args: Any, **more: Any) -> Any:
        if isinstance(self, Leases) and not args[0].thread_id.startswith("capgraph-step/"):
            return await method(self, *args, **more)
        await reach(f"{instant[:-1]}<")
        found = await method(self, *args, **more)
        if name != "get_status" or found.result is not None:
            await reach(f"{instant[:-1]}>")
        return found

    setattr(cls, name, armed)


def settings() -> Settings:
    return Settings(infrastructure=[], scale={"lease_seconds": TTL, "heartbeat_seconds": TTL / 4})


async def _work(said: dict[str, Any]) -> None:
    async with open_saver(said["url"]) as saver:
        graph = build_graph(capabilities(said["effect"]), checkpointer=saver, settings=settings())
        options = {"engine": said["engine"], "temporal": said["address"]}
        async with open_engine(said["url"], graph=graph, **options) as client:
            worker = Worker(client, [said["queue"]], concurrency=4)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
            if said["instant"]:
                arm(said["instant"], said["how"])
            await worker.run()


def _main() -> None:
    global LOG
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        said = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(2, 1)  # what a library prints is no answer to who asked for the process
            LOG = Path(said["log"])
            os.environ["CAPGRAPH_MACHINE"] = said["machine"]
            try:
                asyncio.run(_work(said))
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    _main()
