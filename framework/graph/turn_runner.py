"""Runner of single turns, used by the command line and the server."""

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
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Interrupt

    from capgraph.registry import Registry
    from capgraph.state import ContextTypes

_OVER = frozenset({"completed", "partial", "failed", "stopped"})
"""Outcomes of a turn that is over, so that its approval requests are closed."""
DRAIN_SECONDS = 20.0
"""Seconds for which running steps may continue after SIGTERM before they are canceled."""


@dataclass(slots=True)
class TurnResult:
    """Result of a turn.

    Attributes:
        thread_id: ID of the thread.
        status: ``completed``, ``partial``, ``failed``, ``stopped``, ``waiting``, ``cancelled``, or
            ``drained``.
        outcome: Value of ``execution_outcome`` in the state.
        answer: Text of the final message. Empty if there is no final message.
        files: Paths of files that the turn created.
        questions: Open questions, by interrupt ID.
        error: Error that ended the turn, if any.
        seconds: Duration in seconds.
        resume_command: Command line that continues an unfinished turn.
        model_calls: Number of chat model calls.
        input_tokens: Number of tokens sent to chat models.
        output_tokens: Number of tokens received from chat models.
        labels: Labels of all data that steps of the thread produced, with their sources.
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
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Convert the turn result to plain data.

        Commands print this data as the last line of their JSON output.
        """
        always = ("thread_id", "status", "outcome", "answer", "files")
        data = {name: getattr(self, name) for name in always}
        data["seconds"] = round(self.seconds, 3)
        if self.error is not None:
            data["error"] = {name: getattr(self.error, name) for name in ("code", "message", "fix")}
        optional = {"questions": self.questions, "resume_command": self.resume_command}
        return data | {name: value for name, value in optional.items() if value}


class TurnRunner:
    """Runner of a single turn, which can be stopped or drained while it runs.

    Finished steps remain stored in both cases, so that the thread can be resumed.

    Attributes:
        graph: Graph that runs the turn. It can be replaced before the turn runs.

    Args:
        graph: Graph that ``build_graph`` returned, with a saver.
        config: Configuration with the thread ID and the caller.
    """

    def __init__(
        self, graph: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig
    ) -> None:
        from langgraph.runtime import RunControl

        self.graph: Any = graph
        self._config = config
        self._control = RunControl()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._end_status, self._finished = "", False
        self._values: Mapping[str, Any] | None = None
        self._handler_error: Exception | None = None
        self._on_values: Callable[[Mapping[str, Any]], Any] | None = None

    def stop(self) -> None:
        """Cancel the running steps of the turn and end the turn."""
        self._end_status = "cancelled"
        if self._task is not None:
            self._task.cancel()

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Stop starting new steps of the turn, and cancel running steps after a timeout.

        Args:
            seconds: Time in which running steps may finish, in seconds.
        """
        self._end_status = self._end_status or "drained"
        self._control.request_drain("drain")
        if self._task is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)

    async def run(
        self,
        graph_input: Any,
        on_event: Callable[[dict[str, Any]], Any],
        on_values: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> TurnResult:
        """Run the turn until it ends or must wait for a decision, and return the result.

        Args:
            graph_input: Input of the graph. ``None`` continues an unfinished turn.
            on_event: Callback that receives each event as plain data.
            on_values: Callback that receives the state after each superstep.
        """
        self._on_values = on_values
        began = time.monotonic()
        end = TurnResult(str(self._config["configurable"]["thread_id"]))
        stopped = await self._run_until_stopped(graph_input, on_event, end)
        if self._finished and self._values is not None and not stopped and end.error is None:
            # The turn finished, so the last streamed values are the final state.
            self._update_result(self._values, (), False, stopped, end)
        else:
            await self._read_state(end, stopped)
        end.seconds = time.monotonic() - began
        return end

    async def read(self) -> TurnResult:
        """Read the result of the thread's last turn without running any step."""
        end = TurnResult(str(self._config["configurable"]["thread_id"]))
        await self._read_state(end, "")
        return end

    async def _read_state(self, end: TurnResult, stopped: str) -> None:
        try:
            snapshot = await self.graph.aget_state(self._config)
        except Exception as exc:
            # The database failed. Report this, unless an earlier error exists.
            end.error = end.error or _as_capgraph_error(exc)
        else:
            self._update_result(
                snapshot.values, snapshot.interrupts, bool(snapshot.tasks), stopped, end
            )

    async def _run_until_stopped(
        self, graph_input: Any, on_event: Callable[[dict[str, Any]], Any], end: TurnResult
    ) -> str:
        from langgraph.errors import GraphDrained

        self._task = asyncio.create_task(self._consume_stream(graph_input, on_event, end))
        if self._end_status == "cancelled":
            self._task.cancel()
        try:
            await self._task
        except GraphDrained:
            return "drained"
        except asyncio.CancelledError:
            if self._handler_error is not None:
                end.error = _as_capgraph_error(self._handler_error)
                return ""
            if not self._end_status:
                raise
            return self._end_status
        except Exception as exc:
            end.error = _as_capgraph_error(exc)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return ""

    async def _consume_stream(
        self, graph_input: Any, on_event: Callable[[dict[str, Any]], Any], end: TurnResult
    ) -> None:
        loop, context, thread = asyncio.get_running_loop(), copy_context(), threading.get_ident()

        def handle(event: dict[str, Any]) -> None:
            try:
                self._handle_event(event, on_event, end)
            except Exception as exc:
                # The event handler failed, not the step. End the run before its database closes.
                self._handler_error = exc
                self._task.cancel()  # type: ignore[union-attr]

        def dispatch(event: dict[str, Any]) -> None:
            if threading.get_ident() == thread:
                context.run(handle, event)
            else:
                loop.call_soon_threadsafe(handle, event, context=context)

        # In a resumed turn any node may emit the first event, so capturing is not possible.
        begins = (
            isinstance(graph_input, Mapping) and getattr(self.graph, "services", None) is not None
        )
        with capture_events(dispatch) if begins else contextlib.nullcontext():
            events: Any = self.graph.astream(
                graph_input,
                self._config,
                stream_mode=["custom", "values"],
                version="v2",
                durability="sync",
                control=self._control,
            )
            # Close the stream at once if the handler fails, so that the run ends before its database.
            async with contextlib.aclosing(events):
                async for part in events:
                    if part["type"] == "values":
                        self._values = part["data"]
                        if self._on_values is not None:
                            self._on_values(part["data"])
                    elif isinstance(part["data"], dict):
                        self._handle_event(part["data"], on_event, end)
        if self._handler_error is not None:
            raise self._handler_error

    def _handle_event(
        self, event: dict[str, Any], on_event: Callable[[dict[str, Any]], Any], end: TurnResult
    ) -> None:
        if event.get("event_type") == "usage":
            end.model_calls += 1
            end.input_tokens += event.get("input_tokens", 0)
            end.output_tokens += event.get("output_tokens", 0)
        self._finished |= event.get("event_type") == "turn_finished"
        on_event(event)

    def _update_result(
        self,
        values: Mapping[str, Any],
        interrupts: Sequence[Interrupt],
        unfinished: bool,
        stopped: str,
        end: TurnResult,
    ) -> None:
        """Update a turn result with the questions, outcome, files, and status of the turn."""
        from capgraph.planning.waits import is_wait_interrupt

        asked = [item for item in interrupts if not is_wait_interrupt(item.value)]
        end.questions = {item.id: item.value for item in asked}
        end.labels = dict(values.get("control_labels") or {})
        end.outcome = dict(values.get("execution_outcome") or {})
        services = getattr(self.graph, "services", None)
        if services is not None:
            end.files = created_files(services.registry.context_types, values)
        if end.error is None:
            cut = stopped if unfinished or not self._finished else ""
            left = cut or ("waiting" if interrupts else "")
            end.status = left or end.outcome.get("status", "failed")
            end.answer = "" if unfinished else last_answer(values)
        end.outcome["status"] = end.status


def _as_capgraph_error(exc: Exception) -> CapgraphError:
    """Convert an exception to a ``CapgraphError``, wrapping it in an ``InfrastructureError``.

    A ``CapgraphError`` is returned unchanged.
    """
    if isinstance(exc, CapgraphError):
        return exc
    get_logger("framework", "turn").debug("The run raised", exc_info=exc)
    error = InfrastructureError(
        mask_secrets(f"The run raised {type(exc).__name__}: {exc}", MAX_MESSAGE_CHARS),
        fix="Run the command again with 'capgraph --debug' to see the traceback.",
    )
    error.__cause__ = exc
    return error


async def load_thread_values(
    graph: CompiledStateGraph[Any, Any, Any, Any], thread_id: str
) -> dict[str, Any]:
    """Load the state of a thread, including step results that are not in a checkpoint yet.

    LangGraph saves each result when its step ends, but adds the result to the state only when
    the superstep ends.

    Args:
        graph: Graph that ``build_graph`` returned, with a saver.
        thread_id: ID of the thread.
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
    """Return the status of each plan step in a thread, by context key.

    >>> plan = {"steps": [{"context_key": "a", "capability": "look"}]}
    >>> step_states({"planning_execution_plan": plan})
    {'a': 'pending'}
    """
    outcome = (values.get("execution_outcome") or {}).get("status")
    # A rejected step keeps its request in state, so that it does not start. The request is closed.
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
    """Return the text of a thread's last message if the message is from the agent.

    Otherwise, return an empty string.
    """
    from langchain_core.messages import AIMessage

    messages = values.get("messages") or []
    last = messages[-1] if messages else None
    return str(last.text) if isinstance(last, AIMessage) else ""


def created_files(types: ContextTypes, values: Mapping[str, Any]) -> list[str]:
    """Return the paths of the files that the finished steps of a turn created."""
    data = values.get("capability_context_data") or {}
    found: list[str] = []
    for record in (values.get("execution_step_results") or {}).values():
        for kind, key in (record.get("outputs") or {}).items():
            for context in load_contexts(types, kind, key, (data.get(kind) or {}).get(key)):
                found += context.get_files()
    return list(dict.fromkeys(found))


def load_contexts(types: ContextTypes, kind: str, key: str, entry: Any) -> list[CapabilityContext]:
    """Convert stored context data to context objects.

    Return an empty list if no registered class matches the data.
    """
    from capgraph.state import load_context

    found: Any = None
    if kind in types and entry is not None:
        with contextlib.suppress(ValidationError):
            found = load_context(kind, key, entry, types)
    return [one for one in _as_list(found) if isinstance(one, CapabilityContext)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def file_contexts(registry: Registry, files: Sequence[str]) -> dict[str, Any]:
    """Create the context data that passes data files to a graph as input.

    An entry is created for each provided context type with a ``files`` field.

    Args:
        registry: Registry of the agent.
        files: Paths of the files.

    Raises:
        ConfigurationError: No provided context type has a field ``files``.
    """
    types = registry.context_types
    kinds = [
        kind
        for kind in registry.provided_types
        if kind in types and "files" in types[kind].model_fields
    ]
    if files and not kinds:
        raise ConfigurationError(
            f"The data files {list(files)} cannot be passed to the graph: no provided context type"
            " has a field 'files'.",
            fix="Add such a type to 'provided_types', for example DATA_SOURCE, and add"
            " capgraph.capabilities.contexts and capgraph.capabilities.query_data to 'modules'.",
        )
    return {kind: {"data": {"files": list(files)}} for kind in kinds} if files else {}
