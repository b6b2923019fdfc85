"""Directed acyclic workflows, whose nodes run as soon as their inputs exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph import END, START, StateGraph

from capgraph.adapters.task_graph import TaskGraph
from capgraph.base.errors import CapgraphError, ConfigurationError
from capgraph.base.task_schemas import NamedInputs
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import label_scope, merge_interrupts, run_as_task
from capgraph.engine.sync_graph import SyncGraph, compile_graph, copy_graph_as, single_node_graph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import Checkpointer
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.workflows.inputs import WorkflowNode, find_used_names
from capgraph.workflows.nodes import (
    BaseWorkflow,
    NodeOutput,
    WorkflowEdge,
    WorkflowGraph,
    WorkflowOutput,
    create_failed_output,
    evaluate_condition,
    get_published_values,
    run_node,
)


class DAGWorkflow(BaseWorkflow):
    """Workflow of nodes and edges without cycles.

    Each node runs as soon as its predecessors have finished, independently of other nodes. If a
    node fails, the nodes that depend on it do not run (``metadata["not_run"]``). The other nodes
    run, but the workflow is not successful. A node is skipped if no edge to it is followed
    (``metadata["not_needed"]``).

    Args:
        nodes: Nodes of the workflow.
        edges: Edges between the nodes.
        services: Services for the capabilities and tools among the nodes.
        name: Name of the graph.

    >>> async def search(task): return f"notes on {task}"
    >>> async def write(task): return f"A text from {task}."
    >>> flow = DAGWorkflow(
    ...     [WorkflowNode("search", search), WorkflowNode("write", write, {"task": "search"})],
    ...     [WorkflowEdge("search", "write")],
    ... )
    >>> asyncio.run(flow.run({"task": "tides"})).final_output
    'A text from notes on tides.'
    """

    @validate_arguments
    def __init__(
        self,
        nodes: Iterable[WorkflowNode] | None = None,
        edges: Iterable[WorkflowEdge] | None = None,
        *,
        services: Services | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(services=services, name=name)
        self._nodes: dict[str, WorkflowNode] = {}
        self._edges = list(edges or ())
        for node in nodes or ():
            self.add_node(node)

    @validate_arguments
    def add_node(self, node: WorkflowNode) -> None:
        """Add a node to the workflow.

        Raises:
            ConfigurationError: The workflow already has a node with this name.
        """
        if node.node_id in self._nodes:
            raise ConfigurationError(
                f"The node ID {node.node_id!r} is not unique: the workflow already has a node"
                " with this ID.",
                fix="Rename one of the nodes.",
            )
        self._nodes[node.node_id] = node

    @validate_arguments
    def add_edge(self, edge: WorkflowEdge) -> None:
        """Add an edge. The nodes that it connects are checked when the workflow is compiled."""
        self._edges.append(edge)

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Compile the workflow to a LangGraph graph. See :meth:`BaseWorkflow.compile`.

        Raises:
            ConfigurationError: The workflow has no nodes or contains a cycle, an edge refers to an
                unknown node, or a node needs a value that only a later node provides.
        """
        order = self._sort_nodes()
        graphs = {name: self.compile_node(self._nodes[name]) for name in order}
        nodes = {name: self._nodes[name] for name in order}
        edges = tuple(self._edges)

        async def run(state: Any) -> dict[str, Any]:
            available = {**(state.get("inputs") or {}), "task": state["task"]}
            return await _DagRun(nodes, edges, graphs, available, self.services).run()

        builder = single_node_graph(
            "nodes", run, WorkflowOutput, input_schema=NamedInputs, output_schema=WorkflowOutput
        )
        graph = builder.compile(checkpointer=checkpointer, name=self.name, **options)
        return copy_graph_as(_DagGraph, graph, shape=self._build_drawing())

    def _sort_nodes(self) -> list[str]:
        if not self._nodes:
            raise ConfigurationError("The workflow has no nodes.", fix="Add at least one node.")
        predecessors: dict[str, set[str]] = {name: set() for name in self._nodes}
        for edge in self._edges:
            for end in (edge.source, edge.target):
                if end not in predecessors:
                    raise ConfigurationError(
                        f"The edge {edge.source!r} → {edge.target!r} is invalid: there is no"
                        f" node {end!r}.",
                        fix=f"Use one of the nodes {', '.join(sorted(predecessors))}.",
                    )
            predecessors[edge.target].add(edge.source)
        try:
            order = list(TopologicalSorter(predecessors).static_order())
        except CycleError as exc:
            raise ConfigurationError(
                f"The workflow has a cycle: {' → '.join(reversed(exc.args[1]))}.",
                fix="Remove an edge, or use a StateMachineWorkflow, which allows cycles.",
            ) from None
        self._check_required_values(order, predecessors)
        return order

    def _check_required_values(
        self, order: list[str], predecessors: Mapping[str, set[str]]
    ) -> None:
        """Raise an error if a node needs a value that none of its predecessors provides."""
        providers: dict[str, str] = {}
        for name in order:
            for value in self._nodes[name].outputs_map.values() or [name]:
                if value in providers:
                    raise ConfigurationError(
                        f"The output name {value!r} is not unique: {providers[value]!r} and"
                        f" {name!r} provide it.",
                        fix="Use different names in outputs_map.",
                    )
                providers[value] = name
        ancestors: dict[str, set[str]] = {}
        for name in order:
            ancestors[name] = predecessors[name].union(
                *(ancestors[other] for other in predecessors[name])
            )
            for needed in self._nodes[name].inputs_map.values():
                if needed in providers and providers[needed] not in ancestors[name]:
                    raise ConfigurationError(
                        f"The node {name!r} needs the value {needed!r} but does not depend on"
                        f" {providers[needed]!r}, which provides it.",
                        fix=f"Add WorkflowEdge({providers[needed]!r}, {name!r}).",
                    )

    def _build_drawing(self) -> WorkflowGraph:
        """Build a graph that is used only to draw the workflow and is never run."""
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(WorkflowOutput)
        for name in self._nodes:
            builder.add_node(name, lambda state: state)
            if not any(edge.target == name for edge in self._edges):
                builder.add_edge(START, name)
            if not any(edge.source == name for edge in self._edges):
                builder.add_edge(name, END)
        for edge in self._edges:
            if edge.condition is None:
                builder.add_edge(edge.source, edge.target)
        for name in self._nodes:
            targets = [
                e.target for e in self._edges if e.source == name and e.condition is not None
            ]
            if targets:
                builder.add_conditional_edges(name, lambda state: [], list(dict.fromkeys(targets)))
        return compile_graph(builder)


class _DagGraph(SyncGraph[Any]):
    """Graph that is drawn with one node per workflow node.

    The nodes run as tasks of a single LangGraph node, which the drawing hides.
    """

    def __init__(self, *, shape: WorkflowGraph, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.shape = shape

    def get_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Return a graph for drawing, with one node for each node of the workflow."""
        return self.shape.get_graph(*args, **kwargs)


class _DagRun:
    """Run of a workflow whose nodes form a directed acyclic graph.

    Each workflow node runs as a LangGraph task, so finished nodes do not run again after a
    crash. LangGraph derives the ID of a task from the order of the calls. All tasks are
    therefore started at once in a fixed order, and each task waits for its predecessors.
    """

    def __init__(
        self,
        nodes: Mapping[str, WorkflowNode],
        edges: Iterable[WorkflowEdge],
        graphs: Mapping[str, TaskGraph],
        available: dict[str, Any],
        services: Services | None,
    ) -> None:
        self._nodes = nodes
        self._services = services
        self._graphs = graphs
        self._available = available
        self._labels: dict[str, Mapping[str, str]] = {}
        self._incoming: dict[str, list[WorkflowEdge]] = {name: [] for name in nodes}
        for edge in edges:
            self._incoming[edge.target].append(edge)
        self._final_nodes = set(nodes) - {edge.source for edge in edges}
        self._finished = {name: asyncio.Event() for name in nodes}
        self._outputs: dict[str, NodeOutput] = {}
        self._not_run: dict[str, str] = {}
        self._not_needed: list[str] = []
        self._error: BaseException | None = None
        self._signals: dict[str, GraphBubbleUp] = {}

    async def run(self) -> dict[str, Any]:
        tasks = [(name, run_as_task(name, self._create_task(name))) for name in self._nodes]
        await asyncio.gather(*(self._await_node(name, task) for name, task in tasks))
        if self._error is not None:
            raise self._error
        if self._signals:
            raise merge_interrupts([self._signals[n] for n in self._nodes if n in self._signals])
        return self._build_output()

    def _create_task(self, name: str) -> Any:
        async def body() -> NodeOutput | dict[str, Any]:
            for edge in self._incoming[name]:
                await self._finished[edge.source].wait()
            if self._error is not None or any(
                e.source in self._signals for e in self._incoming[name]
            ):
                # A predecessor is interrupted, so this task must not store a result.
                raise GraphInterrupt(())
            if failed_sources := [
                e.source for e in self._incoming[name] if self._has_failed(e.source)
            ]:
                return {"not_run": failed_sources[0]}
            try:
                followed = [e for e in self._incoming[name] if await self._is_followed(e)]
            except CapgraphError as exc:
                return create_failed_output(str(exc))
            if self._incoming[name] and not followed:
                return {"not_needed": True}
            node, graph = self._nodes[name], self._graphs[name]
            used = find_used_names(node, graph, self._available)
            labels = {k: v for n in used for k, v in self._labels.get(n, {}).items()}
            return await run_node(node, graph, self._available, labels, self._services)

        return body

    async def _is_followed(self, edge: WorkflowEdge) -> bool:
        output = self._outputs.get(edge.source)
        return output is not None and await evaluate_condition(edge.condition, output)

    def _has_failed(self, name: str) -> bool:
        return name in self._not_run or not self._outputs.get(name, {"success": True})["success"]

    async def _await_node(self, name: str, task: Any) -> None:
        try:
            with label_scope({}) as labels:
                output = await task
            propagate_labels(labels)
        except GraphBubbleUp as signal:
            self._signals[name] = signal
        except BaseException as exc:
            self._error = self._error or exc
        else:
            if "not_run" in output:
                self._not_run[name] = output["not_run"]
            elif "not_needed" in output:
                self._not_needed.append(name)
            else:
                self._outputs[name] = output
                if output["success"]:
                    values = get_published_values(name, output)
                    self._available |= values
                    self._labels |= dict.fromkeys(values, labels)
        finally:
            self._finished[name].set()

    def _build_output(self) -> dict[str, Any]:
        errors = [f"{n}: {f['error']}" for n, f in self._outputs.items() if not f["success"]]
        last = {
            n: f["output"]
            for n, f in self._outputs.items()
            if n in self._final_nodes and f["success"]
        }
        error = "; ".join(errors)
        if self._not_run:
            not_run = ", ".join(
                f"{name} (depends on {node})" for name, node in self._not_run.items()
            )
            error += f"; not run: {not_run}"
        return {
            "output": next(iter(last.values())) if len(last) == 1 else last or "",
            "success": not errors,
            "error": error or None,
            "outputs": {name: self._outputs[name] for name in self._nodes if name in self._outputs},
            "metadata": {"not_run": self._not_run, "not_needed": sorted(self._not_needed)},
        }
