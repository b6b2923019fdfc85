"""What every workflow has: nodes that work on a task, what they gave, and the way to run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.errors import GraphBubbleUp
from typing_extensions import TypedDict

from capgraph.adapters.request import RUN_ENDING_ERRORS
from capgraph.adapters.task_graph import TaskGraph, task_graph
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
)
from capgraph.base.task_schemas import TaskOutput
from capgraph.engine.capability_node import member_scope
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import label_scope
from capgraph.engine.sync_graph import SyncGraph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.plain_data import short_text
from capgraph.langgraph_compat import INTERRUPT, Checkpointer
from capgraph.pipeline.run_config import current_runtime
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.workflows.inputs import (
    WorkflowNode,
    check_inputs,
    is_capability,
    prepare_input,
    to_task,
)

WorkflowGraph = SyncGraph[Any]


@dataclass
class NodeResult:
    """What a node of a workflow gave.

    Attributes:
        output: What came of its task.
        success: Whether it was done.
        error: Why it was not.
        metadata: What else its graph left.
    """

    output: Any = None
    success: bool = True
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@validate_arguments
@dataclass
class WorkflowEdge:
    """A way from one node to another.

    Attributes:
        source: Where it begins.
        target: Where it ends.
        condition: Says, of what the source gave, whether it is gone; may be a coroutine function.
            Without, it always is.
    """

    source: str
    target: str
    condition: Callable[[NodeResult], Any] | None = None


@dataclass
class WorkflowResult:
    """What a workflow left behind.

    Attributes:
        outputs: What each node gave that ran, by its name; what there was before a failure too.
        final_output: What the last one gave; by name where several are last.
        success: Whether all that was needed was done; reaching a limit is no success.
        error: Why it was not.
        metadata: ``execution_id``, and what the kind of workflow tells besides.
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    final_output: Any = ""
    success: bool = True
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class WorkflowOutput(TaskOutput):
    """What a workflow's graph leaves: ``outputs`` by node, and ``metadata``."""

    outputs: NotRequired[dict[str, Any]]
    metadata: NotRequired[dict[str, Any]]


class BaseWorkflow(ABC):
    """Something that runs nodes in an order, as a graph.

    Args:
        services: What capabilities and tools among the nodes run with.
        name: Name of the graph.
    """

    @validate_arguments
    def __init__(self, *, services: Services | None = None, name: str | None = None) -> None:
        self.services = services
        self.name: str = name or type(self).__name__

    @abstractmethod
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Return the workflow as a graph that takes ``task`` and leaves ``output``.

        Args:
            checkpointer: Where runs are kept; inside another graph that one's is used.
            **options: What LangGraph's ``compile`` takes besides.

        Raises:
            ConfigurationError: The nodes do not fit together.
        """

    async def run(
        self,
        initial_input: Mapping[str, Any],
        *,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> WorkflowResult:
        """Run the workflow once, from its start.

        One that is to outlive the process is compiled with a saver and run as a graph.

        Args:
            initial_input: ``task`` (or ``query``), and further values for the nodes.
            context: What graphs and tools find as ``Runtime.context``.
            config: For the run, such as callbacks.

        Raises:
            ConfigurationError: The nodes do not fit together.
            ValidationError: There is no task.
        """
        given = {"task": to_task(initial_input), "inputs": dict(initial_input)}
        return await self._run_graph(given, context, config)

    async def _run_graph(
        self, graph_input: Any, context: Any, config: RunnableConfig | None
    ) -> WorkflowResult:
        run_id = uuid4().hex
        if current_runtime() is None:
            config = merge_configs({"configurable": {"thread_id": run_id}}, config)
            run_id = config["configurable"]["thread_id"]
        result = to_workflow_result(
            await self.compile().ainvoke(graph_input, config, context=context)
        )
        result.metadata["execution_id"] = run_id
        if "interrupts" in result.metadata:
            result.error = (
                f"{result.error}, and nothing keeps the question. Fix: compile with a saver."
            )
        return result

    def compile_node(self, node: WorkflowNode) -> TaskGraph:
        """Return the graph of one node.

        Raises:
            ConfigurationError: It cannot work on a task, or a mapped input would be lost.
        """
        try:
            graph = task_graph(node.agent, services=self.services, name=node.node_id)
        except ConfigurationError as exc:
            told = f"The node {node.node_id!r}: {exc.message}"
            raise ConfigurationError(told, fix=exc.fix) from exc
        check_inputs(node, graph)
        return graph


def to_workflow_result(graph_output: Mapping[str, Any]) -> WorkflowResult:
    """Read what a workflow's graph left."""
    asked = [item.value for item in graph_output.get(INTERRUPT) or ()]
    metadata = dict(graph_output.get("metadata") or {})
    outputs = {
        name: to_node_result(plain) for name, plain in (graph_output.get("outputs") or {}).items()
    }
    if asked:
        told = f"A person is asked: {'; '.join(short_text(one, 200) for one in asked)}"
        metadata["interrupts"] = asked
        return WorkflowResult(outputs, "", success=False, error=told, metadata=metadata)
    return WorkflowResult(
        outputs,
        graph_output.get("output"),
        success=bool(graph_output.get("success")),
        error=graph_output.get("error"),
        metadata=metadata,
    )


def to_node_result(output: Any) -> Any:
    """Return what a node gave, or what each run of it gave."""
    return (
        [NodeResult(**one) for one in output] if isinstance(output, list) else NodeResult(**output)
    )


class NodeOutput(TypedDict):
    """What a node gave, as it stands in a graph's state."""

    output: Any
    success: bool
    error: str | None
    metadata: dict[str, Any]


async def run_node(
    node: WorkflowNode,
    graph: TaskGraph,
    available: Mapping[str, Any],
    labels: Mapping[str, str],
    services: Services | None,
) -> NodeOutput:
    """Give a node what it needs and return what it gave; a failure is what it gave, too.

    Args:
        node: The node.
        graph: Its graph, of :meth:`BaseWorkflow.nested`.
        available: The input of the workflow and what earlier nodes gave, by name.
        labels: Of what reaches it of these.
        services: Those of the workflow.

    Raises:
        GraphBubbleUp: The node asks a person.
        FatalExecutionError: A step failed with severity FATAL.
    """
    try:
        given, context = prepare_input(node, graph, available)
        with label_scope(labels) as told:
            async with member_scope(services, node.node_id):
                found = await graph.ainvoke(given, context=context)
        # What a capability gives has the labels that its step says.
        propagate_labels(told if is_capability(node.agent) else {**labels, **told})
        output = found.get("output")
        success = found.get("success")
        more = {k: v for k, v in found.items() if k not in TaskOutput.__annotations__}
        mapped = {
            name: _read_field(node, source, output, more)
            for source, name in node.outputs_map.items()
        }
    except RUN_ENDING_ERRORS:
        raise
    except Exception as exc:
        return failed_output(str(exc) or type(exc).__name__)
    metadata: dict[str, Any] = {**node.metadata, **({"mapped": mapped} if mapped else {})}
    return {
        "output": output,
        "success": success is None or bool(success),
        "error": found.get("error"),
        "metadata": metadata,
    }


def failed_output(error: str) -> NodeOutput:
    """Return what a node gave that failed."""
    return {"output": None, "success": False, "error": error, "metadata": {}}


def published_values(node_id: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return what others find of a node: its output under its name, or what it maps."""
    mapped = output["metadata"].get("mapped")
    return dict(mapped) if mapped else {node_id: output["output"]}


def _read_field(node: WorkflowNode, name: str, output: Any, other_values: Mapping[str, Any]) -> Any:
    if name == "output":
        return output
    for place in (output, other_values):
        if isinstance(place, Mapping) and name in place:
            return place[name]
    raise CapgraphError(
        f"{node.node_id!r} gave no {name!r} but {short_text(output, 200)}.",
        fix="Name a field of its output in outputs_map, or 'output'.",
    )


async def evaluate_condition(
    condition: Callable[[NodeResult], Any] | None, output: Mapping[str, Any]
) -> bool:
    """Ask a condition about what a node gave.

    Raises:
        CapgraphError: The condition raised.
    """
    if condition is None:
        return True
    try:
        return bool(await maybe_await(condition(NodeResult(**output))))
    except GraphBubbleUp:
        raise
    except Exception as exc:
        told = f"The condition {getattr(condition, '__name__', condition)!r} failed: {exc}"
        raise CapgraphError(told, fix="A condition takes a NodeResult and says yes or no.") from exc
