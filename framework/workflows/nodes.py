"""Base class of workflows, and functions that run their nodes."""

from __future__ import annotations

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
from capgraph.base.errors import CapgraphError, ConfigurationError
from capgraph.base.task_schemas import NamedInputs, TaskOutput
from capgraph.engine.capability_node import member_scope
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import label_scope
from capgraph.engine.sync_graph import SyncGraph, compile_graph, single_node_graph
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
    """Result of running one workflow node.

    Attributes:
        output: Output of the node.
        success: True if the node succeeded.
        error: Reason why the node failed, or None if it succeeded.
        metadata: Additional output values of the node's graph.
    """

    output: Any = None
    success: bool = True
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@validate_arguments
@dataclass
class WorkflowEdge:
    """Edge from one workflow node to another, with an optional condition.

    Attributes:
        source: ID of the source node.
        target: ID of the target node.
        condition: Sync or async function that receives the result of the source node and
            returns True to follow the edge. If None, the edge is always followed.
    """

    source: str
    target: str
    condition: Callable[[NodeResult], Any] | None = None


@dataclass
class WorkflowResult:
    """Result of a workflow run.

    Attributes:
        outputs: Results by node ID, including results from before a failure.
        final_output: Output of the last node, or a dictionary of outputs by node name if there
            are several final nodes.
        success: True if all required nodes succeeded. Reaching a limit is not a success.
        error: Reason why the run failed, or None if it succeeded.
        metadata: ``execution_id`` and additional entries from the workflow.
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    final_output: Any = ""
    success: bool = True
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class WorkflowOutput(TaskOutput):
    """Output of a workflow graph, with ``outputs`` by node and ``metadata``."""

    outputs: NotRequired[dict[str, Any]]
    metadata: NotRequired[dict[str, Any]]


class BaseWorkflow:
    """Base class for workflows, which run nodes in a defined order as a LangGraph graph.

    A custom workflow overrides ``compile``, or overrides ``run``, whose result becomes the
    output of the graph.

    Args:
        services: Services for nodes that are capabilities or tools.
        name: Name of the graph.

    Raises:
        ConfigurationError: The class overrides neither ``run`` nor ``compile``.

    >>> import asyncio
    >>> class Shout(BaseWorkflow):
    ...     async def run(self, initial_input):
    ...         return WorkflowResult(final_output=initial_input["task"].upper())
    >>> asyncio.run(Shout().run({"task": "hello"})).final_output
    'HELLO'
    >>> asyncio.run(Shout().compile().ainvoke({"task": "hello"}))["output"]
    'HELLO'
    """

    @validate_arguments
    def __init__(self, *, services: Services | None = None, name: str | None = None) -> None:
        if type(self).run is BaseWorkflow.run and type(self).compile is BaseWorkflow.compile:
            raise ConfigurationError(
                f"{type(self).__name__} has nothing to run: it overrides neither 'run' nor"
                " 'compile'.",
                fix="Add 'async def run(self, initial_input)'.",
            )
        self.services = services
        self.name: str = name or type(self).__name__

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Compile the workflow to a LangGraph graph with input ``task`` and output ``output``.

        Args:
            checkpointer: Checkpointer for the graph. A workflow inside an outer graph uses the
                outer graph's checkpointer.
            **options: Additional arguments for LangGraph's ``compile``.

        Raises:
            ConfigurationError: The nodes are incompatible with each other.
        """

        async def run(state: Any) -> dict[str, Any]:
            inputs = {**(state.get("inputs") or {}), "task": state["task"]}
            with label_scope({}) as labels:
                result = await self.run(inputs)
            propagate_labels(labels)
            return {
                "output": result.final_output,
                "success": result.success,
                "error": result.error,
                "outputs": {name: _to_node_output(item) for name, item in result.outputs.items()},
                "metadata": result.metadata,
            }

        builder = single_node_graph(
            "run", run, WorkflowOutput, input_schema=NamedInputs, output_schema=WorkflowOutput
        )
        return compile_graph(builder, checkpointer=checkpointer, name=self.name, **options)

    async def run(
        self,
        initial_input: Mapping[str, Any],
        *,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> WorkflowResult:
        """Run the workflow once from the start and return its result.

        To resume an interrupted run in a different process, compile the workflow with a
        checkpointer and invoke the graph.

        Args:
            initial_input: Mapping with ``task`` or ``query``, and additional values for the nodes.
            context: Value of ``Runtime.context`` for graphs and tools.
            config: LangChain config for the run, such as callbacks.

        Raises:
            ConfigurationError: The nodes are incompatible with each other.
            ValidationError: The input contains no task.
        """
        graph_input = {"task": to_task(initial_input), "inputs": dict(initial_input)}
        return await self._run_graph(graph_input, context, config)

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
                f"{result.error}, but the run is not stored. Fix: compile with a checkpointer."
            )
        return result

    def compile_node(self, node: WorkflowNode) -> TaskGraph:
        """Compile the graph of one workflow node.

        Raises:
            ConfigurationError: The node cannot run a task, or it does not accept a mapped input.
        """
        try:
            graph = task_graph(node.agent, services=self.services, name=node.node_id)
        except ConfigurationError as exc:
            message = f"Invalid node {node.node_id!r}: {exc.message}"
            raise ConfigurationError(message, fix=exc.fix) from exc
        check_inputs(node, graph)
        return graph


def to_workflow_result(graph_output: Mapping[str, Any]) -> WorkflowResult:
    """Convert the output of a workflow graph to a ``WorkflowResult``."""
    questions = [item.value for item in graph_output.get(INTERRUPT) or ()]
    metadata = dict(graph_output.get("metadata") or {})
    outputs = {
        name: to_node_result(plain) for name, plain in (graph_output.get("outputs") or {}).items()
    }
    if questions:
        error = "The run waits for a person: " + "; ".join(
            short_text(question, 200) for question in questions
        )
        metadata["interrupts"] = questions
        return WorkflowResult(outputs, "", success=False, error=error, metadata=metadata)
    return WorkflowResult(
        outputs,
        graph_output.get("output"),
        success=bool(graph_output.get("success")),
        error=graph_output.get("error"),
        metadata=metadata,
    )


def to_node_result(output: Any) -> Any:
    """Convert stored node output to a result, or to a list if the node ran several times."""
    return (
        [NodeResult(**one) for one in output] if isinstance(output, list) else NodeResult(**output)
    )


class NodeOutput(TypedDict):
    """Output of a workflow node as plain data, as stored in the state of a graph."""

    output: Any
    success: bool
    error: str | None
    metadata: dict[str, Any]


def _to_node_output(item: Any) -> NodeOutput:
    """Convert an output of a custom workflow, which may be any value, to plain data."""
    if not hasattr(item, "success"):
        return {"output": item, "success": True, "error": None, "metadata": {}}
    details = dict(item.metadata)
    return {
        "output": item.output,
        "success": item.success,
        "error": item.error,
        "metadata": details,
    }


async def run_node(
    node: WorkflowNode,
    graph: TaskGraph,
    available: Mapping[str, Any],
    labels: Mapping[str, str],
    services: Services | None,
) -> NodeOutput:
    """Run a workflow node. Ordinary failures are returned as part of the output, not raised.

    Args:
        node: Node to run.
        graph: Graph of the node, compiled by :meth:`BaseWorkflow.compile_node`.
        available: Input of the workflow and outputs of earlier nodes, by name.
        labels: Provenance labels of the values that reach the node.
        services: Services of the workflow.

    Raises:
        GraphBubbleUp: The node interrupts the run.
        FatalExecutionError: A step failed with severity FATAL.
    """
    try:
        node_input, context = prepare_input(node, graph, available)
        with label_scope(labels) as new_labels:
            async with member_scope(services, node.node_id):
                result = await graph.ainvoke(node_input, context=context)
        # The step of a capability determines the labels of its output.
        propagate_labels(new_labels if is_capability(node.agent) else {**labels, **new_labels})
        output = result.get("output")
        success = result.get("success")
        other_values = {k: v for k, v in result.items() if k not in TaskOutput.__annotations__}
        mapped = {
            name: _read_field(node, source, output, other_values)
            for source, name in node.outputs_map.items()
        }
    except RUN_ENDING_ERRORS:
        raise
    except Exception as exc:
        return create_failed_output(str(exc) or type(exc).__name__)
    metadata: dict[str, Any] = {**node.metadata, **({"mapped": mapped} if mapped else {})}
    return {
        "output": output,
        "success": success is None or bool(success),
        "error": result.get("error"),
        "metadata": metadata,
    }


def create_failed_output(error: str) -> NodeOutput:
    """Return the output of a failed node."""
    return {"output": None, "success": False, "error": error, "metadata": {}}


def get_published_values(node_id: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a node provides to other nodes.

    These are the mapped outputs, or else the whole output under the ID of the node.
    """
    mapped = output["metadata"].get("mapped")
    return dict(mapped) if mapped else {node_id: output["output"]}


def _read_field(node: WorkflowNode, name: str, output: Any, other_values: Mapping[str, Any]) -> Any:
    if name == "output":
        return output
    for source in (output, other_values):
        if isinstance(source, Mapping) and name in source:
            return source[name]
    raise CapgraphError(
        f"The output of node {node.node_id!r} has no field {name!r}: {short_text(output, 200)}.",
        fix="Use a field of the output in outputs_map, or 'output'.",
    )


async def evaluate_condition(
    condition: Callable[[NodeResult], Any] | None, output: Mapping[str, Any]
) -> bool:
    """Evaluate the condition of an edge against the output of its source node.

    Raises:
        CapgraphError: The condition raised an exception.
    """
    if condition is None:
        return True
    try:
        return bool(await maybe_await(condition(NodeResult(**output))))
    except GraphBubbleUp:
        raise
    except Exception as exc:
        message = f"The condition {getattr(condition, '__name__', condition)!r} failed: {exc}"
        raise CapgraphError(message, fix="Use a condition that accepts a NodeResult.") from exc
