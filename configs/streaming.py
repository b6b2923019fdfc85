"""Events on LangGraph's custom stream, without secrets; silent outside a run."""

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
    """Say which step of the plan runs inside a ``with`` block, for the events sent from there.

    The state cannot tell: steps run side by side, and it knows of one index only.

    >>> with use_step_position(2, 5):
    ...     _position("weather", {})
    {'step': 3, 'total_steps': 5, 'phase': 'Execution'}
    """
    return override_run_context(step_position=(index, total))


class _Taker:
    """Takes the events of one run; which one that is, its writer tells."""

    __slots__ = ("take", "writer")

    def __init__(self, take: Callable[[Event], None]) -> None:
        self.take = take
        self.writer: Callable[[Event], None] | None = None


def capture_events(handler: Callable[[Event], None]) -> AbstractContextManager[None]:
    """Have events of the turn that begins inside taken on the spot.

    On LangGraph's stream each of them wakes the loop several times. Those of runs inside the turn's
    own go where they would.

    Args:
        handler: Takes an event, as it would go to the stream; in the thread that sends it.
    """
    return override_run_context(event_handler=_Taker(handler))


def enable_events(enabled: bool) -> AbstractContextManager[None]:
    """Say whether anybody takes up the events of what runs inside; else none is made.

    >>> with enable_events(False):
    ...     stream_writer() is None
    True
    """
    return override_run_context(has_listener=enabled)


def has_listener() -> bool:
    """Tell whether anybody may take up an event that is sent now."""
    return run_context().has_listener


def stream_writer() -> Callable[[Event], None] | None:
    """Return what sends events of the run that calls this, or ``None`` where nobody takes them.

    Outside of a run they go to sinks alone.

    Every event of the project leaves here. It is looked up at every call: a writer that is kept
    would send the events of one run to the stream of another.
    """
    from langgraph.config import get_stream_writer

    context = run_context()
    if not context.has_listener:
        return None
    outlet = context.outlet
    taker: _Taker | None = context.event_handler
    write: Callable[[Event], None] | None = None
    with suppress(RuntimeError, KeyError):
        write = get_stream_writer()
    if write is None and outlet is None:
        return None
    if taker is not None and write is not None:
        # The first to look is the node that begins the turn.
        taker.writer = taker.writer or write
        if write is taker.writer:
            write = taker.take

    def send(event: Event) -> None:
        # A piece of the answer is content, and shows no secret by itself.
        event = event if event.get("event_type") == "answer_token" else mask_data(event)
        event = outlet(event) if outlet is not None else event
        if write is not None:
            write(event)

    return send


def emit(event: Event) -> None:
    """Send one event to the custom stream of the current run, if there is one."""
    send = stream_writer()
    if send is not None:
        send(event)


class Streamer:
    """Sends status events of one component. Made by :func:`get_streamer`."""

    def __init__(self, source: str, component: str, state: Mapping[str, Any] | None) -> None:
        self._base = {"source": source, "component": component, **_position(component, state)}

    def status(self, message: str, **fields: Any) -> None:
        """Say what is being done now."""
        self._send(message, **fields)

    def success(self, message: str, **fields: Any) -> None:
        """Say that the component finished its work."""
        self._send(message, complete=True, **fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Say that something is odd but the work goes on."""
        self._send(message, warning=True, **fields)

    def error(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Say that the work failed."""
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
    """Return a streamer for a component.

    Args:
        source: Where the component belongs, such as ``"framework"``.
        component: The component's name.
        state: The graph's state; tells which step of how many the events belong to.

    >>> get_streamer("framework", "classifier").status("Choosing")  # no run: nothing happens
    """
    return Streamer(source, component, state)


def _position(component: str, state: Mapping[str, Any] | None) -> dict[str, Any]:
    if component in _PREPARATION:
        return {"step": _PREPARATION[component], "total_steps": 3, "phase": "Task Preparation"}
    if (running := run_context().step_position) is not None:
        return {"step": running[0] + 1, "total_steps": running[1], "phase": "Execution"}
    plan = (state or {}).get("planning_execution_plan")
    # A caller may have brought anything as a plan; it is refused elsewhere, not here.
    steps = plan.get("steps") if isinstance(plan, Mapping) else None
    if not isinstance(steps, list) or not steps:
        return {"phase": "Execution"}
    index = (state or {}).get("planning_current_step_index")
    if not isinstance(index, int) or index < 0:
        index = 0
    return {"step": min(index + 1, len(steps)), "total_steps": len(steps), "phase": "Execution"}
