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

from capgraph.adapters.request import ENDING
from capgraph.adapters.task_graph import TaskGraph, task_graph
from capgraph.base.awaiting import awaited
from capgraph.base.checked import checked
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
)
from capgraph.base.task import TaskOutput
from capgraph.base.values import short_text
from capgraph.engine.as_node import members_of
from capgraph.engine.envelopes import hearing
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import SyncGraph
from capgraph.langgraph_compat import INTERRUPT, Checkpointer
from capgraph.pipeline.job import hear
from capgraph.pipeline.run_config import current_runtime
from capgraph.workflows.inputs import WorkflowNode, check_inputs, hand_over, is_capability, task_of

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


@checked
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

    @checked
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
        given = {"task": task_of(initial_input), "inputs": dict(initial_input)}
        return await self._run(given, context, config)

    async def _run(self, given: Any, context: Any, config: RunnableConfig | None) -> WorkflowResult:
        run_id = uuid4().hex
        if current_runtime() is None:
            config = merge_configs({"configurable": {"thread_id": run_id}}, config)
            run_id = config["configurable"]["thread_id"]
        result = result_of(await self.compile().ainvoke(given, config, context=context))
        result.metadata["execution_id"] = run_id
        if "interrupts" in result.metadata:
            result.error = (
                f"{result.error}, and nothing keeps the question. Fix: compile with a saver."
            )
        return result

    def nested(self, node: WorkflowNode) -> TaskGraph:
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


def result_of(found: Mapping[str, Any]) -> WorkflowResult:
    """Read what a workflow's graph left."""
    asked = [item.value for item in found.get(INTERRUPT) or ()]
    metadata = dict(found.get("metadata") or {})
    outputs = {name: read(plain) for name, plain in (found.get("outputs") or {}).items()}
    if asked:
        told = f"A person is asked: {'; '.join(short_text(one, 200) for one in asked)}"
        metadata["interrupts"] = asked
        return WorkflowResult(outputs, "", success=False, error=told, metadata=metadata)
    return WorkflowResult(
        outputs,
        found.get("output"),
        success=bool(found.get("success")),
        error=found.get("error"),
        metadata=metadata,
    )


def read(plain: Any) -> Any:
    """Return what a node gave, or what each run of it gave."""
    return [NodeResult(**one) for one in plain] if isinstance(plain, list) else NodeResult(**plain)


class Plain(TypedDict):
    """What a node gave, as it stands in a graph's state."""

    output: Any
    success: bool
    error: str | None
    metadata: dict[str, Any]


async def run_node(
    node: WorkflowNode,
    graph: TaskGraph,
    known: Mapping[str, Any],
    labels: Mapping[str, str],
    services: Services | None,
) -> Plain:
    """Give a node what it needs and return what it gave; a failure is what it gave, too.

    Args:
        node: The node.
        graph: Its graph, of :meth:`BaseWorkflow.nested`.
        known: The input of the workflow and what earlier nodes gave, by name.
        labels: Of what reaches it of these.
        services: Those of the workflow.

    Raises:
        GraphBubbleUp: The node asks a person.
        FatalExecutionError: A step failed with severity FATAL.
    """
    try:
        given, context = hand_over(node, graph, known)
        with hearing(labels) as told:
            async with members_of(services, node.node_id):
                found = await graph.ainvoke(given, context=context)
        # What a capability gives has the labels that its step says.
        hear(told if is_capability(node.agent) else {**labels, **told})
        output = found.get("output")
        success = found.get("success")
        more = {k: v for k, v in found.items() if k not in TaskOutput.__annotations__}
        mapped = {
            name: _field(node, source, output, more) for source, name in node.outputs_map.items()
        }
    except ENDING:
        raise
    except Exception as exc:
        return failed(str(exc) or type(exc).__name__)
    metadata: dict[str, Any] = {**node.metadata, **({"mapped": mapped} if mapped else {})}
    return {
        "output": output,
        "success": success is None or bool(success),
        "error": found.get("error"),
        "metadata": metadata,
    }


def failed(error: str) -> Plain:
    """Return what a node gave that failed."""
    return {"output": None, "success": False, "error": error, "metadata": {}}


def given_by(node_id: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what others find of a node: its output under its name, or what it maps."""
    mapped = found["metadata"].get("mapped")
    return dict(mapped) if mapped else {node_id: found["output"]}


def _field(node: WorkflowNode, name: str, output: Any, more: Mapping[str, Any]) -> Any:
    if name == "output":
        return output
    for place in (output, more):
        if isinstance(place, Mapping) and name in place:
            return place[name]
    raise CapgraphError(
        f"{node.node_id!r} gave no {name!r} but {short_text(output, 200)}.",
        fix="Name a field of its output in outputs_map, or 'output'.",
    )


async def holds(condition: Callable[[NodeResult], Any] | None, found: Mapping[str, Any]) -> bool:
    """Ask a condition about what a node gave.

    Raises:
        CapgraphError: The condition raised.
    """
    if condition is None:
        return True
    try:
        return bool(await awaited(condition(NodeResult(**found))))
    except GraphBubbleUp:
        raise
    except Exception as exc:
        told = f"The condition {getattr(condition, '__name__', condition)!r} failed: {exc}"
        raise CapgraphError(told, fix="A condition takes a NodeResult and says yes or no.") from exc
