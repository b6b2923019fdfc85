"""A turn of which all that is left waits for moments and events: it ends its run, and is woken."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.config import get_config
from langgraph.types import interrupt

from capgraph.engine.services import Services
from capgraph.pipeline.step_waits import is_wait_over, next_wake_time
from capgraph.planning.waits import WAIT_TYPE, describe_wait
from capgraph.state import TurnView
from capgraph.state.turn_view import RESUMED_KEY
from capgraph.stores.persistence import Persistence
from capgraph.stores.waits import SuspendedThread
from capgraph.telemetry import TurnSuspended, emit
from capgraph.telemetry.audit import record_later


def pending_waits(view: TurnView) -> dict[str, Any]:
    """Return what steps of a turn wait for, by context key."""
    return {
        key: asked["shown"]
        for key, asked in view.pending_approvals.items()
        if asked.get("kind") == WAIT_TYPE
    }


def resume_update(view: TurnView, keys: Collection[str]) -> dict[str, Any]:
    """Return the update by which steps, or copies of them, go on; other copies wait, or ask, still.

    Args:
        view: The turn.
        keys: What goes on.
    """
    info = view.state.get("runtime_info") or {}
    return {
        "execution_pending_approvals": {
            k: a for k, a in view.pending_approvals.items() if k not in keys
        },
        "runtime_info": {**info, RESUMED_KEY: sorted({*view.resumed_keys, *keys})},
    }


async def ended_waits(view: TurnView, services: Services) -> set[str]:
    """Name the steps whose wait is over."""
    journal, now = services.journal(), services.clock.now()
    waits = pending_waits(view).items()
    return {key for key, shown in waits if await is_wait_over(shown, journal, view.turn_id, now)}


async def wake_update(view: TurnView, services: Services) -> dict[str, Any]:
    """Return the update by which steps go on whose wait is over; empty for none.

    It is for a checkpoint before they do, so that whoever resumes calls the same steps, whatever
    comes meanwhile.
    """
    if not (ended := await ended_waits(view, services)):
        return {}
    update, now = resume_update(view, ended), services.clock.now()
    info = update["runtime_info"]
    waited = now - info.pop("waits_since", now) + (view.waited_seconds or 0.0)
    return {**update, "execution_outcome": None, "runtime_info": {**info, "waited_seconds": waited}}


async def register_wait(view: TurnView, services: Services) -> dict[str, Any]:
    """Say beside the checkpoints that the thread waits; return how it goes on where it need not.

    What comes later than this is found by whoever brings it; what came before is found here.
    """
    persistence, thread = Persistence.for_run(get_config(), services.persistence), view.thread_id
    if persistence is not None and thread is not None:
        now = services.clock.now()
        moment = min(next_wake_time(shown, now) for shown in pending_waits(view).values())
        await persistence.waits.put(SuspendedThread(thread, moment, view.caller))
    return await wake_update(view, services)


async def clear_wait(services: Services) -> None:
    """Say beside the checkpoints that the running thread waits no more."""
    config = get_config()
    persistence = Persistence.for_run(config, services.persistence)
    if persistence is None:
        return
    known = await persistence.waits.get(str(config["configurable"].get("thread_id")))
    if known is not None:
        await persistence.waits.drop(known)


def wait_details(view: TurnView) -> list[dict[str, Any]]:
    """Return what an interrupt says of the steps that wait."""
    return [
        {"context_key": key, "capability": view.pending_approvals[key]["capability"], **shown}
        for key, shown in pending_waits(view).items()
    ]


def suspend_turn(view: TurnView) -> None:
    """End the run. No answer ends the wait: a signal does, or time."""
    waits = wait_details(view)
    told = "; ".join(f"{wait['context_key']} waits {describe_wait(wait)}" for wait in waits)
    emit(TurnSuspended(waits=waits))
    record_later("waits", steps=[wait["context_key"] for wait in waits])
    while True:
        interrupt({"type": WAIT_TYPE, "version": 1, "waits": waits, "reason": f"{told}."})
