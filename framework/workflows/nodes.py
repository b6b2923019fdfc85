"""What every workflow has: nodes that work on a task, what they gave, and the way to run it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
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
    ValidationError,
)
from capgraph.base.ports import Agent
from capgraph.base.spec import CapabilitySpec
from capgraph.base.task import TaskInput, TaskOutput
from capgraph.base.values import short_text
from capgraph.engine.as_node import members_of
from capgraph.engine.envelopes import hearing
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import SyncGraph
from capgraph.langgraph_compat import INTERRUPT, Checkpointer, keys_of
from capgraph.pipeline.job import hear
from capgraph.pipeline.run_config import current_runtime

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
class WorkflowNode:
    """One node of a workflow.

    Attributes:
        node_id: Its name.
        agent: Who works there: a capability, tool, agent, graph, workflow, team or function.
        inputs_map: What the node is given by which name, from the input of the workflow and from
            what earlier nodes gave; ``{"task": "draft"}`` makes the output of ``draft`` its task.
            Without, it is given the task of the workflow.
        outputs_map: Under which names others find what it gives: ``output`` for the whole, else a
            field of it. Without, the whole stands under the node's own name.
        metadata: Notes of the application.
    """

    node_id: str
    agent: Any
    inputs_map: dict[str, str] = field(default_factory=dict)
    outputs_map: dict[str, str] = field(default_factory=dict)
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


class WorkflowInput(TaskInput):
    """What a workflow's graph is given; ``inputs`` are further values for its nodes."""

    inputs: NotRequired[dict[str, Any]]


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

    def nested(self, name: str, thing: Any) -> TaskGraph:
        """Return the graph of one node."""
        try:
            return task_graph(thing, services=self.services, name=name)
        except ConfigurationError as exc:
            raise ConfigurationError(f"The node {name!r}: {exc.message}", fix=exc.fix) from exc


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


def task_of(given: Mapping[str, Any]) -> str:
    """Return the task that named values stand for: ``task``, ``query``, else all of them as JSON.

    Raises:
        ValidationError: They are none, or the task says nothing.
    """
    if not isinstance(given, Mapping) or (given and all(v is None for v in given.values())):
        raise ValidationError(f"{given!r} is no task.", fix='Give {"task": …}.')
    for name in ("task", "query"):
        if given.get(name) is not None:
            return given[name] if isinstance(given[name], str) else _text(given[name])
    return _text(dict(given))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


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
        given, context = _given(node, graph, known)
        with hearing(labels) as told:
            async with members_of(services, node.node_id):
                found = await graph.ainvoke(given, context=context)
        # What a capability gives has the labels that its step says.
        hear(told if _is_capability(node) else {**labels, **told})
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


def names_used(node: WorkflowNode, graph: TaskGraph, known: Mapping[str, Any]) -> Collection[str]:
    """Return which of the known values reach a node."""
    if node.inputs_map:
        return node.inputs_map.values()
    if _is_agent(node):
        return known.keys()
    takes, _ = keys_of(graph) or ([], [])
    return known.keys() & {"task", *takes}


def _is_agent(node: WorkflowNode) -> bool:
    graph = hasattr(node.agent, "compile")
    return isinstance(node.agent, Agent) and not graph and not _is_capability(node)


def _is_capability(node: WorkflowNode) -> bool:
    return isinstance(getattr(node.agent, "capability_spec", None), CapabilitySpec)


def _given(
    node: WorkflowNode, graph: TaskGraph, known: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return the input of a node's graph, and the context of an agent that is no graph."""
    if missing := sorted({name for name in node.inputs_map.values() if name not in known}):
        raise CapgraphError(
            f"{node.node_id!r} needs {missing}, which nobody gave.",
            fix=f"There is {sorted(known)}; give the rest to the workflow.",
        )
    values = {own: known[name] for own, name in node.inputs_map.items()} or dict(known)
    if _is_capability(node):
        whole = node.inputs_map and set(values) != {"task"}
        return {"task": values if whole else task_of(values)}, None
    takes, _ = keys_of(graph) or ([], [])
    further = {name: value for name, value in values.items() if name in takes}
    return {**further, "task": task_of(values)}, values if _is_agent(node) else None


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
