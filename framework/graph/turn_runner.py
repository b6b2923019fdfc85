"""One turn of a thread, run to wherever it ends; whoever meets people runs turns this way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    InfrastructureError,
    ValidationError,
)
from capgraph.configs.logger import MAX_MESSAGE_CHARS, get_logger, mask_secrets
from capgraph.configs.streaming import capture_events

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Interrupt

    from capgraph.registry import Registry
    from capgraph.state import ContextTypes

_OVER = frozenset({"completed", "partial", "failed", "stopped"})
"""Outcomes after which a turn asks nobody."""
DRAIN_SECONDS = 20.0
"""How long running steps may go on after SIGTERM before they are cancelled."""


@dataclass(slots=True)
class TurnResult:
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
        model_calls: Calls of chat models.
        input_tokens: Tokens sent to them.
        output_tokens: Tokens received from them.
    """

    thread_id: str
    status: str = "failed"
    outcome: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    files: list[str] = field(default_factory=list)
    questions: dict[str, Any] = field(default_factory=dict)
    error: CapgraphError | None = None
    seconds: float = 0.0
    resume_command: str = ""
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: what programs read as the last line."""
        always = ("thread_id", "status", "outcome", "answer", "files")
        data = {name: getattr(self, name) for name in always}
        data["seconds"] = round(self.seconds, 3)
        if self.error is not None:
            told = {name: getattr(self.error, name) for name in ("code", "message", "fix")}
            data["error"] = told
        sometimes = {"questions": self.questions, "resume_command": self.resume_command}
        return data | {name: value for name, value in sometimes.items() if value}


class TurnRunner:
    """One run of a graph on a thread; it can be stopped and drained while it goes on.

    Either way the thread can be resumed: what had finished is saved.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        config: Names the thread, and who asks.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any], config: Any) -> None:
        from langgraph.runtime import RunControl

        self._graph, self._config = graph, config
        self._control = RunControl()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended_by, self._finished = "", False
        self._values: Mapping[str, Any] | None = None
        self._refused: Exception | None = None

    def stop(self) -> None:
        """Cancel what runs."""
        self._ended_by = "cancelled"
        if self._task is not None:
            self._task.cancel()

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Begin nothing else, and cancel what runs longer than so long."""
        self._ended_by = self._ended_by or "drained"
        self._control.request_drain("drain")
        if self._task is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)

    async def run(self, graph_input: Any, on_event: Callable[[dict[str, Any]], Any]) -> TurnResult:
        """Run the turn until it ends or a person is asked.

        Args:
            graph_input: What the graph begins with; ``None`` goes on with an unfinished turn.
            on_event: Told each event, as plain data.
        """
        began = time.monotonic()
        end = TurnResult(str(self._config["configurable"]["thread_id"]))
        stopped = await self._wait(graph_input, on_event, end)
        if self._finished and self._values is not None and not stopped and end.error is None:
            # It has come to its end, so the thread holds what was streamed last, and no more.
            self._read(self._values, (), False, stopped, end)
        else:
            await self._look(end, stopped)
        end.seconds = time.monotonic() - began
        return end

    async def read(self) -> TurnResult:
        """Return how the turn ended, without running anything."""
        end = TurnResult(str(self._config["configurable"]["thread_id"]))
        await self._look(end, "")
        return end

    async def _look(self, end: TurnResult, stopped: str) -> None:
        try:
            snapshot = await self._graph.aget_state(self._config)
        except Exception as exc:
            # The database is what failed: say so, and do not hide what was raised first.
            end.error = end.error or _told(exc)
        else:
            self._read(snapshot.values, snapshot.interrupts, bool(snapshot.tasks), stopped, end)

    async def _wait(
        self, given: Any, take: Callable[[dict[str, Any]], Any], end: TurnResult
    ) -> str:
        from langgraph.errors import GraphDrained

        self._task = asyncio.create_task(self._stream(given, take, end))
        if self._ended_by == "cancelled":
            self._task.cancel()
        try:
            await self._task
        except GraphDrained:
            return "drained"
        except asyncio.CancelledError:
            if self._refused is not None:
                end.error = _told(self._refused)
                return ""
            if not self._ended_by:
                raise
            return self._ended_by
        except Exception as exc:
            end.error = _told(exc)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return ""

    async def _stream(
        self, given: Any, take: Callable[[dict[str, Any]], Any], end: TurnResult
    ) -> None:
        loop, context, thread = asyncio.get_running_loop(), copy_context(), threading.get_ident()

        def hear(event: dict[str, Any]) -> None:
            try:
                self._hear(event, take, end)
            except Exception as exc:
                # It is not the step's fault: the run ends before its database does.
                self._refused = exc
                self._task.cancel()  # type: ignore[union-attr]

        def here(event: dict[str, Any]) -> None:
            if threading.get_ident() == thread:
                context.run(hear, event)
            else:
                loop.call_soon_threadsafe(hear, event, context=context)

        # Where a turn goes on, the first to send an event may be any node.
        begins = isinstance(given, Mapping) and getattr(self._graph, "services", None) is not None
        with capture_events(here) if begins else contextlib.nullcontext():
            events: Any = self._graph.astream(
                given,
                self._config,
                stream_mode=["custom", "values"],
                version="v2",
                durability="sync",
                control=self._control,
            )
            # Closed at once when a view fails, so that the run ends before its database does.
            async with contextlib.aclosing(events):
                async for part in events:
                    if part["type"] == "values":
                        self._values = part["data"]
                    elif isinstance(part["data"], dict):
                        self._hear(part["data"], take, end)
        if self._refused is not None:
            raise self._refused

    def _hear(
        self, event: dict[str, Any], take: Callable[[dict[str, Any]], Any], end: TurnResult
    ) -> None:
        if event.get("event_type") == "usage":
            end.model_calls += 1
            end.input_tokens += event.get("input_tokens", 0)
            end.output_tokens += event.get("output_tokens", 0)
        self._finished |= event.get("event_type") == "turn_finished"
        take(event)

    def _read(
        self,
        values: Mapping[str, Any],
        interrupts: Sequence[Interrupt],
        unfinished: bool,
        stopped: str,
        end: TurnResult,
    ) -> None:
        """Take what the thread says of its turn into the end of it."""
        from capgraph.planning.waits import is_wait_interrupt

        asked = [item for item in interrupts if not is_wait_interrupt(item.value)]
        end.questions = {item.id: item.value for item in asked}
        end.outcome = dict(values.get("execution_outcome") or {})
        services = getattr(self._graph, "services", None)
        if services is not None:
            end.files = created_files(services.registry.context_types, values)
        if end.error is None:
            cut = stopped if unfinished or not self._finished else ""
            left = cut or ("waiting" if interrupts else "")
            end.status = left or end.outcome.get("status", "failed")
            end.answer = "" if unfinished else last_answer(values)
        end.outcome["status"] = end.status


def _told(exc: Exception) -> CapgraphError:
    """Return an error that can be shown for whatever was raised."""
    if isinstance(exc, CapgraphError):
        return exc
    get_logger("framework", "turn").debug("The run raised", exc_info=exc)
    error = InfrastructureError(
        mask_secrets(f"The run raised {type(exc).__name__}: {exc}", MAX_MESSAGE_CHARS),
        fix="Run it again with --debug before the command to see where it comes from.",
    )
    error.__cause__ = exc
    return error


async def load_thread_values(
    graph: CompiledStateGraph[Any, Any, Any, Any], thread_id: str
) -> dict[str, Any]:
    """Return the state of a thread, with the steps of an unfinished pass that are done already.

    A step's result is saved the moment it ends, beside the checkpoint; it reaches the state when
    the pass over the plan ends.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        thread_id: The thread.
    """
    config: Any = {"configurable": {"thread_id": thread_id}}
    values = dict((await graph.aget_state(config)).values)
    saver: Any = graph.checkpointer
    found = await saver.aget_tuple(config)
    results = dict(values.get("execution_step_results") or {})
    for _, _, value in (found.pending_writes if found else None) or []:
        update = value.get("update") if isinstance(value, Mapping) else None
        if isinstance(update, Mapping):
            results |= update.get("execution_step_results") or {}
    return {**values, "execution_step_results": results}


def step_states(values: Mapping[str, Any]) -> dict[str, str]:
    """Return how far each step of a thread's plan is, by context key.

    >>> plan = {"steps": [{"context_key": "a", "capability": "look"}]}
    >>> step_states({"planning_execution_plan": plan})
    {'a': 'pending'}
    """
    outcome = (values.get("execution_outcome") or {}).get("status")
    # A rejected step keeps its question in state, so that it does not start; nobody is asked anymore.
    waiting = {} if outcome in _OVER else values.get("execution_pending_approvals") or {}
    results = values.get("execution_step_results") or {}
    states = {}
    for step in (values.get("planning_execution_plan") or {}).get("steps") or []:
        key = step["context_key"]
        record = results.get(key)
        if record is None:
            states[key] = "waiting" if key in waiting else "pending"
        elif record.get("skipped"):
            states[key] = "not needed" if "not_needed" in record else "skipped"
        else:
            states[key] = "done" if record.get("success") else "failed"
    return states


def last_answer(values: Mapping[str, Any]) -> str:
    """Return the text of the message that ended the last turn."""
    from langchain_core.messages import AIMessage

    messages = values.get("messages") or []
    last = messages[-1] if messages else None
    return str(last.text) if isinstance(last, AIMessage) else ""


def created_files(types: ContextTypes, values: Mapping[str, Any]) -> list[str]:
    """Return the paths of the files that the plan's finished steps made."""
    data = values.get("capability_context_data") or {}
    found: list[str] = []
    for record in (values.get("execution_step_results") or {}).values():
        for kind, key in (record.get("outputs") or {}).items():
            for context in load_contexts(types, kind, key, (data.get(kind) or {}).get(key)):
                found += context.get_files()
    return list(dict.fromkeys(found))


def load_contexts(types: ContextTypes, kind: str, key: str, entry: Any) -> list[CapabilityContext]:
    """Read an entry of the context data; nothing where no type of the agent fits it any more."""
    from capgraph.state import load_context

    found: Any = None
    if kind in types and entry is not None:
        with contextlib.suppress(ValidationError):
            found = load_context(kind, key, entry, types)
    return [one for one in _listed(found) if isinstance(one, CapabilityContext)]


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def file_contexts(registry: Registry, files: Sequence[str]) -> dict[str, Any]:
    """Return the context data that data files stand for.

    They go to the context types that the caller gives and that have a field ``files``.

    Args:
        registry: What the agent is made of.
        files: Their names.

    Raises:
        ConfigurationError: Nothing here reads data files.
    """
    types = registry.context_types
    kinds = [
        kind
        for kind in registry.provided_types
        if kind in types and "files" in types[kind].model_fields
    ]
    if files and not kinds:
        raise ConfigurationError(
            "There are data files, but no context type of the agent takes files.",
            fix="Name one that has a field 'files' under 'provided_types', such as DATA_SOURCE, and add"
            " capgraph.capabilities.contexts and capgraph.capabilities.query_data to 'modules'.",
        )
    return {kind: {"data": {"files": list(files)}} for kind in kinds} if files else {}
