"""Functions that emit events on LangGraph's custom stream, with secrets masked.

Outside a run, events are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any

from capgraph.configs.run_context import override_run_context, run_context
from capgraph.configs.safe_text import mask_data

Event = dict[str, Any]
_PREPARATION = {"task_extraction": 1, "classifier": 2, "orchestrator": 3}


def use_step_position(index: int, total: int) -> AbstractContextManager[None]:
    """Context manager that adds a step's position in the plan to emitted events.

    The graph state cannot provide the position, because steps run in parallel and the state has
    only one step index.

    Args:
        index: Zero-based index of the step.
        total: Number of steps in the plan.

    >>> with use_step_position(2, 5):
    ...     _get_progress("weather", {})
    {'step': 3, 'total_steps': 5, 'phase': 'Execution'}
    """
    return override_run_context(step_position=(index, total))


class _EventHandler:
    """Event handler for one run, which is identified by LangGraph's stream writer."""

    __slots__ = ("handle", "writer")

    def __init__(self, handle: Callable[[Event], None]) -> None:
        self.handle = handle
        self.writer: Callable[[Event], None] | None = None


def capture_events(handler: Callable[[Event], None]) -> AbstractContextManager[None]:
    """Context manager that passes the events of a turn directly to a handler.

    The handler receives the events of the turn that starts inside the block. It is called
    directly because LangGraph's stream wakes the event loop several times per event. Events of
    nested runs still go to their own streams.

    Args:
        handler: Function that receives each event, in the thread that emits it.
    """
    return override_run_context(event_handler=_EventHandler(handler))


def has_listener() -> bool:
    """Return True if events of the current run may have a consumer."""
    return run_context().has_listener


def stream_writer() -> Callable[[Event], None] | None:
    """Return the function that sends events of the current run, or None if nothing consumes them.

    Outside a run, the function sends events only to the event sinks. Do not store the function,
    because it belongs to the current run.
    """
    from langgraph.config import get_stream_writer

    context = run_context()
    if not context.has_listener:
        return None
    outlet = context.outlet
    taker: _EventHandler | None = context.event_handler
    write: Callable[[Event], None] | None = None
    with suppress(RuntimeError, KeyError):
        write = get_stream_writer()
    if write is None and outlet is None:
        return None
    if taker is not None and write is not None:
        # The first caller is the node that starts the turn.
        taker.writer = taker.writer or write
        if write is taker.writer:
            write = taker.handle

    def send(event: Event) -> None:
        # Answer tokens are content. A single token cannot be recognized as a secret.
        event = event if event.get("event_type") == "answer_token" else mask_data(event)
        event = outlet(event) if outlet is not None else event
        if write is not None:
            write(event)

    return send


def emit(event: Event) -> None:
    """Send an event to the custom stream of the current run, or drop it outside a run."""
    send = stream_writer()
    if send is not None:
        send(event)


class Streamer:
    """Emitter for the status events of one component. Use :func:`get_streamer` to create it."""

    def __init__(self, source: str, component: str, state: Mapping[str, Any] | None) -> None:
        self._base = {"source": source, "component": component, **_get_progress(component, state)}

    def status(self, message: str, **fields: Any) -> None:
        """Emit a status event that describes what the component is doing."""
        self._send(message, **fields)

    def success(self, message: str, **fields: Any) -> None:
        """Emit a status event that reports the successful completion of the component."""
        self._send(message, complete=True, **fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Emit a status event for a problem that does not stop the component."""
        self._send(message, warning=True, **fields)

    def error(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Emit a status event that reports the failure of the component."""
        self._send(message, error=True, data=dict(data) if data else None)

    def _send(self, message: str, **fields: Any) -> None:
        event = {
            "event_type": "status",
            "message": message,
            "timestamp": datetime.now(UTC).isoformat(),
            **self._base,
            **fields,
        }
        emit({key: value for key, value in event.items() if value is not None})


def get_streamer(source: str, component: str, state: Mapping[str, Any] | None = None) -> Streamer:
    """Create an emitter for the status events of a component.

    Args:
        source: Package or application that contains the component, such as ``"framework"``.
        component: Name of the component.
        state: Graph state, which contains the step's position in the plan.

    >>> get_streamer("framework", "classifier").status("Choosing")  # no run: nothing happens
    """
    return Streamer(source, component, state)


def _get_progress(component: str, state: Mapping[str, Any] | None) -> dict[str, Any]:
    if component in _PREPARATION:
        return {"step": _PREPARATION[component], "total_steps": 3, "phase": "Task Preparation"}
    if (running := run_context().step_position) is not None:
        return {"step": running[0] + 1, "total_steps": running[1], "phase": "Execution"}
    plan = (state or {}).get("planning_execution_plan")
    # The caller's plan may have any form. It is validated elsewhere.
    steps = plan.get("steps") if isinstance(plan, Mapping) else None
    if not isinstance(steps, list) or not steps:
        return {"phase": "Execution"}
    index = (state or {}).get("planning_current_step_index")
    if not isinstance(index, int) or index < 0:
        index = 0
    return {"step": min(index + 1, len(steps)), "total_steps": len(steps), "phase": "Execution"}
