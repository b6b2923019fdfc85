"""Suspension and resumption of a turn in which only waiting steps are left."""

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
    """Return the details of each pending wait, by the context key of the waiting step.

    A wait ends at a certain time or when an event arrives.
    """
    return {
        key: request["shown"]
        for key, request in view.pending_approvals.items()
        if request.get("kind") == WAIT_TYPE
    }


def create_resume_update(view: TurnView, keys: Collection[str]) -> dict[str, Any]:
    """Create the state update that resumes suspended steps or single ``for_each`` copies.

    Args:
        view: Current state of the turn.
        keys: Context keys to resume.
    """
    info = view.state.get("runtime_info") or {}
    return {
        "execution_pending_approvals": {
            k: a for k, a in view.pending_approvals.items() if k not in keys
        },
        "runtime_info": {**info, RESUMED_KEY: sorted({*view.resumed_keys, *keys})},
    }


async def find_ended_waits(view: TurnView, services: Services) -> set[str]:
    """Return the keys of steps whose wait for a time or an event has ended."""
    journal, now = services.journal(), services.clock.now()
    waits = pending_waits(view).items()
    return {key for key, shown in waits if await is_wait_over(shown, journal, view.turn_id, now)}


async def create_wake_update(view: TurnView, services: Services) -> dict[str, Any]:
    """Create the state update that resumes steps whose wait has ended.

    Return an empty dictionary if no wait has ended. The update is saved in a checkpoint before
    the steps run, so that a resumed run calls the same steps even if more events arrive.
    """
    if not (ended := await find_ended_waits(view, services)):
        return {}
    update, now = create_resume_update(view, ended), services.clock.now()
    info = update["runtime_info"]
    waited = now - info.pop("waits_since", now) + (view.waited_seconds or 0.0)
    return {**update, "execution_outcome": None, "runtime_info": {**info, "waited_seconds": waited}}


async def register_wait(view: TurnView, services: Services) -> dict[str, Any]:
    """Record that the current thread is suspended until a step's wait ends.

    If a wait has already ended, the returned state update resumes its step immediately.
    Otherwise, the sender of a later event resumes the thread.
    """
    persistence, thread = Persistence.for_run(get_config(), services.persistence), view.thread_id
    if persistence is not None and thread is not None:
        now = services.clock.now()
        moment = min(next_wake_time(shown, now) for shown in pending_waits(view).values())
        await persistence.waits.add(SuspendedThread(thread, moment, view.caller))
    return await create_wake_update(view, services)


async def clear_wait(services: Services) -> None:
    """Delete the record that marks the current thread as suspended."""
    config = get_config()
    persistence = Persistence.for_run(config, services.persistence)
    if persistence is None:
        return
    suspended = await persistence.waits.get(str(config["configurable"].get("thread_id")))
    if suspended is not None:
        await persistence.waits.drop(suspended)


def list_wait_details(view: TurnView) -> list[dict[str, Any]]:
    """Return the details of all pending waits for the payload of an interrupt."""
    return [
        {"context_key": key, "capability": view.pending_approvals[key]["capability"], **shown}
        for key, shown in pending_waits(view).items()
    ]


def suspend_turn(view: TurnView) -> None:
    """Interrupt the run until a signal arrives or a wait time ends.

    An answer from a person does not end the interrupt.
    """
    waits = list_wait_details(view)
    reasons = "; ".join(f"{wait['context_key']} waits {describe_wait(wait)}" for wait in waits)
    emit(TurnSuspended(waits=waits))
    record_later("waits", steps=[wait["context_key"] for wait in waits])
    while True:
        interrupt({"type": WAIT_TYPE, "version": 1, "waits": waits, "reason": f"{reasons}."})
