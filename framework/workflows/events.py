"""Event-driven workflows, in which handlers process events and may return further events."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, NotRequired

from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict

from capgraph.adapters.request import RUN_ENDING_ERRORS
from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.configs.logger import get_logger
from capgraph.engine.capability_node import member_scope
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import gather_tasks, label_scope, run_as_task
from capgraph.engine.sync_graph import compile_graph, single_node_graph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.async_calls import maybe_await
from capgraph.langgraph_compat import Checkpointer
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.workflows.inputs import WorkflowNode, to_task
from capgraph.workflows.nodes import (
    BaseWorkflow,
    NodeOutput,
    WorkflowGraph,
    WorkflowOutput,
    WorkflowResult,
    create_failed_output,
    run_node,
)


@validate_arguments
@dataclass
class WorkflowEvent:
    """Event that triggers the handlers of an event-driven workflow.

    Attributes:
        name: Name of the event, which selects its handlers.
        payload: JSON-serializable values that are passed to the handlers.
        source: ``external``, or the name of the event whose handler returned this event.
    """

    name: str
    payload: dict[str, Any] = field(default_factory=dict)
    source: str = "external"


class _EventInput(TypedDict):
    task: NotRequired[str]
    event: NotRequired[Any]
    events: NotRequired[list[Any]]
    inputs: NotRequired[dict[str, Any]]


Handler = Callable[[WorkflowEvent], Awaitable[WorkflowEvent | list[WorkflowEvent] | None]]


class EventDrivenWorkflow(BaseWorkflow):
    """Workflow of event handlers. The handlers of one event run in parallel.

    Each run has its own queue. A failed handler does not stop the others, but the workflow is not
    successful. The run ends when the queue is empty, or at the terminal event, whose payload field
    ``output`` becomes the output. A run that reaches ``max_events`` fails.

    Args:
        max_events: Maximum number of events per run.
        terminal_event: Name of the event that ends a run.
        services: Services for the capabilities and tools among the handlers.
        name: Name of the graph.

    Raises:
        ConfigurationError: ``max_events`` is below 1.

    >>> import asyncio
    >>> flow = EventDrivenWorkflow(terminal_event="done")
    >>> async def count(event):
    ...     return WorkflowEvent("done", {"output": len(event.payload["text"])})
    >>> flow.on("written", count)
    >>> event = {"name": "written", "payload": {"text": "abc"}}
    >>> asyncio.run(flow.run({"event": event})).final_output
    3
    """

    @validate_arguments
    def __init__(
        self,
        max_events: int = 100,
        terminal_event: str | None = None,
        *,
        services: Services | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(services=services, name=name)
        if max_events < 1:
            raise ConfigurationError(
                f"max_events is {max_events!r}: it must be at least 1.", fix="Pass 1 or more."
            )
        self._max_events = max_events
        self._terminal_event = terminal_event
        self._handlers: dict[str, list[tuple[Any, str | None]]] = {}

    @validate_arguments
    def on(self, event_name: str, handler: Any, *, gives: str | None = None) -> None:
        """Register a handler for a workflow event.

        Args:
            event_name: Name of the event.
            handler: Async function that receives the event and may return one or more new events.
                Alternatively, an agent, graph, tool, or capability, which receives the task in the
                payload.
            gives: Name of the event to emit when an agent has finished. The payload contains
                ``output``, and ``task`` with the output as a string. If this argument is set, a
                function is treated as an agent.
        """
        self._handlers.setdefault(event_name, []).append((handler, gives))

    def emit(self, event: Any) -> NoReturn:
        """Raise an error, because events can be emitted only during a run.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"{self.name} cannot emit an event outside of a run because each run has its own "
            "event queue.",
            fix="Return the event from a handler, or pass run({'events': [event]}).",
        )

    async def run(
        self,
        initial_input: Mapping[str, Any],
        *,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> WorkflowResult:
        """Run the workflow once for the given events. See :meth:`BaseWorkflow.run`.

        Args:
            initial_input: Mapping with ``event`` or ``events``, given as :class:`WorkflowEvent`
                objects or their fields. A mapping with only ``task`` is treated as an event named
                ``task``.
            context: Value of ``Runtime.context`` for graphs and tools.
            config: LangChain config for the run, such as callbacks.

        Raises:
            ValidationError: An event is invalid.
        """
        task = to_task(initial_input)
        events = [asdict(event) for event in _parse_events(initial_input)]
        graph_input = {"task": task, "inputs": {"events": events}}
        return await self._run_graph(graph_input, context, config)

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Compile the workflow to a LangGraph graph. See :meth:`BaseWorkflow.compile`."""
        handlers = {
            name: [
                self._build_handler(name, index, *registration)
                for index, registration in enumerate(registrations)
            ]
            for name, registrations in self._handlers.items()
        }

        async def run(state: Any) -> dict[str, Any]:
            inputs = {**state, **(state.get("inputs") or {})}
            inputs.pop("inputs", None)
            to_task(inputs)
            with label_scope({}) as labels:
                output = await self._handle_all(_parse_events(inputs), handlers)
            propagate_labels(labels)
            return output

        builder = single_node_graph(
            "events", run, WorkflowOutput, input_schema=_EventInput, output_schema=WorkflowOutput
        )
        return compile_graph(builder, checkpointer=checkpointer, name=self.name, **options)

    def _build_handler(
        self, name: str, index: int, handler: Any, gives: str | None
    ) -> Callable[[WorkflowEvent], Any]:
        kinds = ("capability_spec", "compile", "execute", "ainvoke")
        is_agent = any(hasattr(handler, kind) for kind in kinds)
        if gives is None and callable(handler) and not is_agent:
            return lambda event: _call_handler(handler, event, self.services)
        node = WorkflowNode(f"{name}_{index}", handler)
        graph = self.compile_node(node)

        async def work(event: WorkflowEvent) -> NodeOutput:
            node_output = await run_node(node, graph, event.payload, {}, self.services)
            if node_output["success"] and gives is not None:
                output = node_output["output"]
                payload = {"output": output, "task": to_task({"task": output})}
                node_output["metadata"]["events"] = [asdict(WorkflowEvent(gives, payload))]
            return node_output

        return work

    async def _handle_all(
        self, events: list[WorkflowEvent], handlers: Mapping[str, list[Any]]
    ) -> dict[str, Any]:
        queue = deque(events)
        outputs: dict[str, list[NodeOutput]] = {}
        errors: list[str] = []
        handled, output = 0, ""
        while queue:
            event = queue.popleft()
            if event.name == self._terminal_event:
                output = event.payload.get("output", event.payload)
                break
            if handled >= self._max_events:
                errors.append(f"max_events={self._max_events} reached before {event.name!r}")
                break
            handled += 1
            if event.name not in handlers:
                get_logger("framework", "workflow").warning(
                    "No handler for the event %r.", event.name
                )
                if handled <= len(events):  # an event of the caller was not handled
                    errors.append(f"no handler for {event.name!r}")
            calls = [
                run_as_task(event.name, partial(h, event)) for h in handlers.get(event.name, ())
            ]
            for result in await gather_tasks(calls):
                new_events = result["metadata"].pop("events", [])
                outputs.setdefault(event.name, []).append(result)
                if not result["success"]:
                    errors.append(f"{event.name}: {result['error']}")
                queue.extend(replace(WorkflowEvent(**one), source=event.name) for one in new_events)
        return {
            "output": output,
            "success": not errors,
            "error": "; ".join(errors) or None,
            "outputs": outputs,
            "metadata": {"events_processed": handled},
        }


async def _call_handler(
    handler: Handler, event: WorkflowEvent, services: Services | None
) -> NodeOutput:
    try:
        async with member_scope(services, event.name):
            returned: Any = await maybe_await(handler(replace(event, payload=dict(event.payload))))
        is_sequence = isinstance(returned, (list, tuple))
        events = list(returned) if is_sequence else [returned] if returned is not None else []
        if invalid := [
            event_item for event_item in events if not isinstance(event_item, WorkflowEvent)
        ]:
            return create_failed_output(
                f"a handler returned {invalid[0]!r}, which is not a WorkflowEvent"
            )
    except RUN_ENDING_ERRORS:
        raise
    except Exception as exc:
        return create_failed_output(str(exc) or type(exc).__name__)
    output = events[0].payload.get("output") if len(events) == 1 else None
    metadata = {"events": [asdict(event_item) for event_item in events]}
    return {"output": output, "success": True, "error": None, "metadata": metadata}


def _parse_events(inputs: Mapping[str, Any]) -> list[WorkflowEvent]:
    events = inputs.get("events")
    if events is None:
        events = [inputs["event"]] if "event" in inputs else None
    if events is None:
        return [WorkflowEvent("task", dict(inputs))]
    try:
        return [
            event if isinstance(event, WorkflowEvent) else WorkflowEvent(**event)
            for event in events
        ]
    except TypeError as exc:
        raise ValidationError(
            f"The events {events!r} are invalid: {exc}.", fix='Pass {"name": …, "payload": {…}}.'
        ) from exc
