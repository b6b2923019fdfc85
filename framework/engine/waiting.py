"""A turn of which all that is left waits for moments and events: it ends its run, and is woken."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.config import get_config
from langgraph.types import interrupt

from capgraph.engine.services import Services
from capgraph.pipeline.waiting import over, wake_at
from capgraph.planning.waits import WAIT, told_wait
from capgraph.state import TurnView
from capgraph.state.turn_view import WOKEN
from capgraph.stores.persistence import Persistence
from capgraph.stores.waits import Due
from capgraph.telemetry import TurnSuspended, emit
from capgraph.telemetry.audit import note


def waits_in(view: TurnView) -> dict[str, Any]:
    """Return what steps of a turn wait for, by context key."""
    return {key: asked["shown"] for key, asked in view.pending.items() if asked.get("kind") == WAIT}


def going_on(view: TurnView, keys: Collection[str]) -> dict[str, Any]:
    """Return the update by which steps, or copies of them, go on; other copies wait, or ask, still.

    Args:
        view: The turn.
        keys: What goes on.
    """
    info = view.state.get("runtime_info") or {}
    return {
        "execution_pending_approvals": {k: a for k, a in view.pending.items() if k not in keys},
        "runtime_info": {**info, WOKEN: sorted({*view.woken, *keys})},
    }


async def waits_over(view: TurnView, services: Services) -> set[str]:
    """Name the steps whose wait is over."""
    journal, now = services.journal(), services.clock.now()
    waits = waits_in(view).items()
    return {key for key, shown in waits if await over(shown, journal, view.turn_id, now)}


async def wake(view: TurnView, services: Services) -> dict[str, Any]:
    """Return the update by which steps go on whose wait is over; empty for none.

    It is for a checkpoint before they do, so that whoever resumes calls the same steps, whatever
    comes meanwhile.
    """
    if not (ended := await waits_over(view, services)):
        return {}
    update, now = going_on(view, ended), services.clock.now()
    info = update["runtime_info"]
    waited = now - info.pop("waits_since", now) + (view.waited_seconds or 0.0)
    return {**update, "execution_outcome": None, "runtime_info": {**info, "waited_seconds": waited}}


async def stands(view: TurnView, services: Services) -> dict[str, Any]:
    """Say beside the checkpoints that the thread waits; return how it goes on where it need not.

    What comes later than this is found by whoever brings it; what came before is found here.
    """
    persistence, thread = Persistence.of_run(get_config(), services.persistence), view.thread_id
    if persistence is not None and thread is not None:
        now = services.clock.now()
        moment = min(wake_at(shown, now) for shown in waits_in(view).values())
        await persistence.waits.put(Due(thread, moment, view.caller))
    return await wake(view, services)


async def waits_no_more(services: Services) -> None:
    """Say beside the checkpoints that the running thread waits no more."""
    config = get_config()
    persistence = Persistence.of_run(config, services.persistence)
    if persistence is None:
        return
    known = await persistence.waits.of(str(config["configurable"].get("thread_id")))
    if known is not None:
        await persistence.waits.drop(known)


def waits_shown(view: TurnView) -> list[dict[str, Any]]:
    """Return what an interrupt says of the steps that wait."""
    return [
        {"context_key": key, "capability": view.pending[key]["capability"], **shown}
        for key, shown in waits_in(view).items()
    ]


def wait_here(view: TurnView) -> None:
    """End the run. No answer ends the wait: a signal does, or time."""
    waits = waits_shown(view)
    told = "; ".join(f"{wait['context_key']} waits {told_wait(wait)}" for wait in waits)
    emit(TurnSuspended(waits=waits))
    note("waits", steps=[wait["context_key"] for wait in waits])
    while True:
        interrupt({"type": WAIT, "version": 1, "waits": waits, "reason": f"{told}."})
