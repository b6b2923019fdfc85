"""A workflow of events: each is handled, and what its handlers give is handled next."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NotRequired

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
    failed_output,
    run_node,
)


@validate_arguments
@dataclass
class WorkflowEvent:
    """Something that happened.

    Attributes:
        name: What; handlers are found by it.
        payload: With which values; JSON-able.
        source: ``external``, or the event whose handler gave it.
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
    """Handlers of events; the handlers of one event run side by side.

    Each run has a queue of its own. A handler that fails is a result: what else there is to do is
    done, and the workflow is no success. It ends when nothing is left to handle, with the terminal
    event (whose payload's ``output`` is the output), or, without success, at the cap.

    Args:
        max_events: How many events a run may handle.
        terminal_event: Name of the event that ends a run.
        services: What capabilities and tools among the handlers run with.
        name: Name of the graph.

    Raises:
        ConfigurationError: The cap is below 1.

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
            raise ConfigurationError(f"max_events is {max_events!r}.", fix="Give at least 1.")
        self._max_events = max_events
        self._terminal_event = terminal_event
        self._handlers: dict[str, list[tuple[Any, str | None]]] = {}

    @validate_arguments
    def on(self, event_name: str, handler: Any, *, gives: str | None = None) -> None:
        """Have events of a name handled.

        Args:
            event_name: The name.
            handler: An async function of the event, which may give an event, or several, to be
                handled next; or an agent, graph, tool or capability, whose task is the payload's.
            gives: Name of the event that follows when an agent has done its task; its payload has
                ``output``, and as ``task`` the same as text. A function so named is an agent.
        """
        self._handlers.setdefault(event_name, []).append((handler, gives))

    async def run(
        self,
        initial_input: Mapping[str, Any],
        *,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> WorkflowResult:
        """Run the workflow once; see :meth:`BaseWorkflow.run`.

        Args:
            initial_input: ``event``, or ``events``: what happened, as
                :class:`WorkflowEvent` or its fields; a ``task`` alone is the event ``task``.
            context: As for every workflow.
            config: As for every workflow.

        Raises:
            ValidationError: Something is no event.
        """
        told = to_task(initial_input)
        events = [asdict(event) for event in _parse_events(initial_input)]
        given = {"task": told, "inputs": {"events": events}}
        return await self._run_graph(given, context, config)

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Return the workflow as a graph; see :meth:`BaseWorkflow.compile`."""
        handlers = {
            name: [self._build_handler(name, place, *one) for place, one in enumerate(found)]
            for name, found in self._handlers.items()
        }

        async def run(state: Any) -> dict[str, Any]:
            known = {**state, **(state.get("inputs") or {})}
            known.pop("inputs", None)
            to_task(known)
            with label_scope({}) as told:
                left = await self._handle_all(_parse_events(known), handlers)
            propagate_labels(told)
            return left

        builder = single_node_graph(
            "events", run, WorkflowOutput, input_schema=_EventInput, output_schema=WorkflowOutput
        )
        return compile_graph(builder, checkpointer=checkpointer, name=self.name, **options)

    def _build_handler(
        self, name: str, index: int, handler: Any, gives: str | None
    ) -> Callable[[WorkflowEvent], Any]:
        kinds = ("capability_spec", "compile", "execute", "ainvoke")
        works = any(hasattr(handler, kind) for kind in kinds)
        if gives is None and callable(handler) and not works:
            return lambda event: _call_handler(handler, event, self.services)
        node = WorkflowNode(f"{name}_{index}", handler)
        graph = self.compile_node(node)

        async def work(event: WorkflowEvent) -> NodeOutput:
            found = await run_node(node, graph, event.payload, {}, self.services)
            if found["success"] and gives is not None:
                output = found["output"]
                payload = {"output": output, "task": to_task({"task": output})}
                found["metadata"]["events"] = [asdict(WorkflowEvent(gives, payload))]
            return found

        return work

    async def _handle_all(
        self, events: list[WorkflowEvent], handlers: Mapping[str, list[Any]]
    ) -> dict[str, Any]:
        queue = deque(events)
        outputs: dict[str, list[NodeOutput]] = {}
        wrong: list[str] = []
        handled, output = 0, ""
        while queue:
            event = queue.popleft()
            if event.name == self._terminal_event:
                output = event.payload.get("output", event.payload)
                break
            if handled >= self._max_events:
                wrong.append(f"max_events={self._max_events} reached; {event.name!r} would be next")
                break
            handled += 1
            if event.name not in handlers:
                get_logger("framework", "workflow").warning("Nobody handles %r.", event.name)
                if handled <= len(events):  # what was asked for is not done
                    wrong.append(f"nobody handles {event.name!r}")
            begun = [
                run_as_task(event.name, partial(h, event)) for h in handlers.get(event.name, ())
            ]
            for found in await gather_tasks(begun):
                following = found["metadata"].pop("events", [])
                outputs.setdefault(event.name, []).append(found)
                if not found["success"]:
                    wrong.append(f"{event.name}: {found['error']}")
                queue.extend(replace(WorkflowEvent(**one), source=event.name) for one in following)
        return {
            "output": output,
            "success": not wrong,
            "error": "; ".join(wrong) or None,
            "outputs": outputs,
            "metadata": {"events_processed": handled},
        }


async def _call_handler(
    handler: Handler, event: WorkflowEvent, services: Services | None
) -> NodeOutput:
    try:
        async with member_scope(services, event.name):
            gave: Any = await maybe_await(handler(replace(event, payload=dict(event.payload))))
        several = isinstance(gave, (list, tuple))
        events = list(gave) if several else [gave] if gave is not None else []
        if odd := [one for one in events if not isinstance(one, WorkflowEvent)]:
            return failed_output(f"a handler gave {odd[0]!r}, which is no WorkflowEvent")
    except RUN_ENDING_ERRORS:
        raise
    except Exception as exc:
        return failed_output(str(exc) or type(exc).__name__)
    output = events[0].payload.get("output") if len(events) == 1 else None
    told = {"events": [asdict(one) for one in events]}
    return {"output": output, "success": True, "error": None, "metadata": told}


def _parse_events(inputs: Mapping[str, Any]) -> list[WorkflowEvent]:
    found = inputs.get("events")
    if found is None:
        found = [inputs["event"]] if "event" in inputs else None
    if found is None:
        return [WorkflowEvent("task", dict(inputs))]
    try:
        return [one if isinstance(one, WorkflowEvent) else WorkflowEvent(**one) for one in found]
    except TypeError as exc:
        raise ValidationError(
            f"{found!r} are no events: {exc}.", fix='An event is {"name": …, "payload": {…}}.'
        ) from exc
