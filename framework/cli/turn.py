"""Runs one turn of a graph, hands its events on, and ends it in an orderly way on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from configs.errors import CapgraphError

if TYPE_CHECKING:
    from langgraph.runtime import RunControl

    from framework.cli.agent import Agent
    from framework.state import ContextTypes
    from framework.telemetry import Event

DRAIN_SECONDS = 20.0
"""How long running steps may go on after SIGTERM before they are cancelled."""


@dataclass(slots=True)
class TurnEnd:
    """How a turn ended.

    Attributes:
        thread_id: The thread.
        status: ``completed``, ``partial``, ``failed``, ``stopped``, ``waiting``, ``cancelled``
            or ``drained``.
        outcome: What the graph wrote about it.
        answer: The final message; empty when there is none.
        files: Paths of files that the turn made.
        questions: Open questions, by the id that an answer needs.
        error: What was raised.
        seconds: How long it took.
        resume_command: Command that goes on, when the turn is not over.
    """

    thread_id: str
    status: str
    outcome: Mapping[str, Any] = field(default_factory=dict)
    answer: str = ""
    files: list[str] = field(default_factory=list)
    questions: dict[str, Any] = field(default_factory=dict)
    error: CapgraphError | None = None
    seconds: float = 0.0
    resume_command: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return plain data: what programs read as the last line."""
        always = ("thread_id", "status", "outcome", "answer", "files")
        data = {name: getattr(self, name) for name in always}
        data["seconds"] = round(self.seconds, 3)
        if self.error is not None:
            told = {name: getattr(self.error, name) for name in ("code", "message", "fix")}
            data["error"] = told
        sometimes = {"questions": self.questions, "resume_command": self.resume_command}
        return data | {name: value for name, value in sometimes.items() if value}


async def run_turn(
    agent: Agent,
    given: Any,
    thread_id: str,
    on_event: Callable[[Event], None],
    *,
    drain_seconds: float = DRAIN_SECONDS,
) -> TurnEnd:
    """Run a turn to its end, to a question, or to a signal.

    After SIGINT (running steps are cancelled) and SIGTERM (running steps may end) the thread can be
    resumed: what had finished is saved.

    Args:
        agent: An agent whose graph has a checkpointer.
        given: Input, ``Command(resume=…)``, or ``None`` to go on with an unfinished turn.
        thread_id: The thread.
        on_event: Receives each event.
        drain_seconds: How long running steps may go on after SIGTERM.
    """
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl
    from pydantic import ValidationError

    from framework.cli.terminal import OutputClosedError
    from framework.telemetry import parse_event

    config: Any = {"configurable": {"thread_id": thread_id}}
    control = RunControl()
    began = time.monotonic()

    async def stream() -> None:
        events: Any = agent.graph.astream(
            given, config, stream_mode=["custom"], version="v2", durability="sync", control=control
        )
        # Closed at once when a view fails, so that the run ends before its database does.
        async with contextlib.aclosing(events):
            async for part in events:
                try:
                    event = parse_event(part["data"])
                except ValidationError:  # a capability may write events of its own
                    continue
                on_event(event)

    task = asyncio.create_task(stream())
    error: CapgraphError | None = None
    stopped: Literal["cancelled", "drained"] | None = None
    with _signals(task, control, drain_seconds) as seen:
        try:
            await task
        except GraphDrained:
            stopped = "drained"
        except asyncio.CancelledError:
            if not seen:
                raise
            stopped = "cancelled" if signal.SIGINT in seen else "drained"
        except OutputClosedError:
            raise
        except CapgraphError as exc:
            error = exc
        except Exception as exc:
            error = _unexpected(exc)
    end = await _end_of_turn(agent, config, thread_id, stopped, error)
    end.seconds = time.monotonic() - began
    return end


@contextlib.contextmanager
def _signals(
    task: asyncio.Task[None], control: RunControl, drain_seconds: float
) -> Iterator[set[signal.Signals]]:
    """Cancel on SIGINT, drain on SIGTERM; a second SIGINT ends the process at once."""
    loop = asyncio.get_running_loop()
    seen: set[signal.Signals] = set()
    timers: list[asyncio.TimerHandle] = []

    def interrupt() -> None:
        if signal.SIGINT in seen:
            # All that is finished is on disk already; only a step that cannot be cancelled waits.
            sys.stdout.flush()
            os._exit(130)
        seen.add(signal.SIGINT)
        task.cancel()

    def drain() -> None:
        seen.add(signal.SIGTERM)
        control.request_drain("SIGTERM")
        timers.append(loop.call_later(drain_seconds, task.cancel))

    handled: list[signal.Signals] = []
    try:
        for number, action in ((signal.SIGINT, interrupt), (signal.SIGTERM, drain)):
            # Without signals in the loop (Windows, threads) Ctrl-C cancels the main task instead.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, action)
                handled.append(number)
        yield seen
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        for timer in timers:
            timer.cancel()


def _unexpected(exc: Exception) -> CapgraphError:
    from configs.logger import get_logger, mask_secrets
    from framework.base import InfrastructureError

    get_logger("cli", "turn").debug("The run raised", exc_info=exc)
    error = InfrastructureError(
        mask_secrets(f"The run raised {type(exc).__name__}: {exc}"),
        fix="Run it again with --debug before the command to see where it comes from.",
    )
    error.__cause__ = exc
    return error


async def _end_of_turn(
    agent: Agent,
    config: Any,
    thread_id: str,
    stopped: str | None,
    error: CapgraphError | None,
) -> TurnEnd:
    try:
        snapshot = await agent.graph.aget_state(config)
    except Exception as exc:
        # The database is what failed: say so, and do not hide what was raised first.
        return TurnEnd(thread_id, "failed", error=error or _unexpected(exc))
    values: Mapping[str, Any] = snapshot.values
    questions = {item.id: item.value for item in snapshot.interrupts}
    outcome = dict(values.get("execution_outcome") or {})
    if error is not None:
        status = "failed"
    elif stopped and snapshot.tasks:
        status = stopped
    elif questions:
        status = "waiting"
    else:
        status = outcome.get("status", "failed")
    outcome["status"] = status
    over = not snapshot.tasks and error is None
    return TurnEnd(
        thread_id,
        status,
        outcome=outcome,
        answer=last_answer(values) if over else "",
        files=files_made(agent.registry.context_types, values),
        questions=questions,
        error=error,
    )


def last_answer(values: Mapping[str, Any]) -> str:
    """Return the text of the message that ended the last turn."""
    from langchain_core.messages import AIMessage

    messages = values.get("messages") or []
    last = messages[-1] if messages else None
    return str(last.text) if isinstance(last, AIMessage) else ""


def files_made(types: ContextTypes, values: Mapping[str, Any]) -> list[str]:
    """Return the paths that the plan's finished steps name in contexts of category ARTIFACT."""
    data = values.get("capability_context_data") or {}
    found: list[str] = []
    for record in (values.get("execution_step_results") or {}).values():
        for kind, key in (record.get("outputs") or {}).items():
            cls = types.get(kind)
            if cls is None or cls.CONTEXT_CATEGORY != "ARTIFACT":
                continue
            entry = (data.get(kind) or {}).get(key) or {}
            paths = [entry.get("path"), *(entry.get("paths") or [])]
            found += [path for path in paths if isinstance(path, str) and path]
    return list(dict.fromkeys(found))
