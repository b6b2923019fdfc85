"""A workflow whose nodes run as soon as what they need is there."""

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
    evaluate_condition,
    failed_output,
    published_values,
    run_node,
)


class DAGWorkflow(BaseWorkflow):
    """Nodes, and edges that say what comes after what.

    Each node runs as soon as those before it have ended, whatever the others do. Of a node that
    fails, what hangs on it does not run (``metadata["not_run"]``), the rest does, and the workflow
    is no success. A node none of whose edges are gone is not needed (``metadata["not_needed"]``).

    Args:
        nodes: The nodes.
        edges: The edges between them.
        services: What capabilities and tools among the nodes run with.
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
        """Add a node.

        Raises:
            ConfigurationError: There is one of that name.
        """
        if node.node_id in self._nodes:
            raise ConfigurationError(
                f"Two nodes are called {node.node_id!r}.", fix="Give each a name of its own."
            )
        self._nodes[node.node_id] = node

    @validate_arguments
    def add_edge(self, edge: WorkflowEdge) -> None:
        """Add an edge; its ends are looked at when the workflow is compiled."""
        self._edges.append(edge)

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Return the workflow as a graph; see :meth:`BaseWorkflow.compile`.

        Raises:
            ConfigurationError: There is no node, a cycle, an edge whose end is unknown, or a node
                that needs what only a later one gives.
        """
        order = self._sort_nodes()
        graphs = {name: self.compile_node(self._nodes[name]) for name in order}
        nodes = {name: self._nodes[name] for name in order}
        edges = tuple(self._edges)

        async def run(state: Any) -> dict[str, Any]:
            known = {**(state.get("inputs") or {}), "task": state["task"]}
            return await _DagRun(nodes, edges, graphs, known, self.services).run()

        builder = single_node_graph(
            "nodes", run, WorkflowOutput, input_schema=NamedInputs, output_schema=WorkflowOutput
        )
        made = builder.compile(checkpointer=checkpointer, name=self.name, **options)
        return copy_graph_as(_DagGraph, made, shape=self._build_drawing())

    def _sort_nodes(self) -> list[str]:
        if not self._nodes:
            raise ConfigurationError("The workflow has no nodes.", fix="Give it at least one.")
        before: dict[str, set[str]] = {name: set() for name in self._nodes}
        for edge in self._edges:
            for end in (edge.source, edge.target):
                if end not in before:
                    raise ConfigurationError(
                        f"The edge {edge.source!r} → {edge.target!r} has an unknown end: {end!r}.",
                        fix=f"The nodes are {', '.join(sorted(before))}.",
                    )
            before[edge.target].add(edge.source)
        try:
            order = list(TopologicalSorter(before).static_order())
        except CycleError as exc:
            raise ConfigurationError(
                f"A cycle detected in the workflow: {' → '.join(reversed(exc.args[1]))}.",
                fix="Take out an edge, or use a StateMachineWorkflow, which may go round.",
            ) from None
        self._check_names(order, before)
        return order

    def _check_names(self, order: list[str], predecessors: Mapping[str, set[str]]) -> None:
        """See to it that what a node is given by another comes from one before it."""
        gives: dict[str, str] = {}
        for name in order:
            for known_as in self._nodes[name].outputs_map.values() or [name]:
                if known_as in gives:
                    raise ConfigurationError(
                        f"{gives[known_as]!r} and {name!r} both give {known_as!r}.",
                        fix="Give each its own name in outputs_map.",
                    )
                gives[known_as] = name
        above: dict[str, set[str]] = {}
        for name in order:
            above[name] = predecessors[name].union(*(above[other] for other in predecessors[name]))
            for needed in self._nodes[name].inputs_map.values():
                if needed in gives and gives[needed] not in above[name]:
                    raise ConfigurationError(
                        f"{name!r} needs {needed!r}, and nothing makes it wait for"
                        f" {gives[needed]!r}, which gives it.",
                        fix=f"Add WorkflowEdge({gives[needed]!r}, {name!r}).",
                    )

    def _build_drawing(self) -> WorkflowGraph:
        """Return a graph that is only drawn."""
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
            gone = [e.target for e in self._edges if e.source == name and e.condition is not None]
            if gone:
                builder.add_conditional_edges(name, lambda state: [], list(dict.fromkeys(gone)))
        return compile_graph(builder)


class _DagGraph(SyncGraph[Any]):
    """Draws the nodes of the workflow, which run as tasks of one node of LangGraph's."""

    def __init__(self, *, shape: WorkflowGraph, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.shape = shape

    def get_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Return what is drawn."""
        return self.shape.get_graph(*args, **kwargs)


class _DagRun:
    """One run. Each node is a LangGraph task, so one that has ended is not run again.

    The identity of a task follows the order of the calls, so all are called at once, in an order
    that no run changes, and wait inside for what they need.
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
        begun = [(name, run_as_task(name, self._node_task(name))) for name in self._nodes]
        await asyncio.gather(*(self._await_node(name, call) for name, call in begun))
        if self._error is not None:
            raise self._error
        if self._signals:
            raise merge_interrupts([self._signals[n] for n in self._nodes if n in self._signals])
        return self._build_output()

    def _node_task(self, name: str) -> Any:
        async def body() -> NodeOutput | dict[str, Any]:
            for edge in self._incoming[name]:
                await self._finished[edge.source].wait()
            if self._error is not None or any(
                e.source in self._signals for e in self._incoming[name]
            ):
                # What this one waits for is still open: nothing is saved of it.
                raise GraphInterrupt(())
            if hung := [e.source for e in self._incoming[name] if self._has_failed(e.source)]:
                return {"not_run": hung[0]}
            try:
                gone = [e for e in self._incoming[name] if await self._is_followed(e)]
            except CapgraphError as exc:
                return failed_output(str(exc))
            if self._incoming[name] and not gone:
                return {"not_needed": True}
            node, graph = self._nodes[name], self._graphs[name]
            used = find_used_names(node, graph, self._available)
            labels = {k: v for n in used for k, v in self._labels.get(n, {}).items()}
            return await run_node(node, graph, self._available, labels, self._services)

        return body

    async def _is_followed(self, edge: WorkflowEdge) -> bool:
        found = self._outputs.get(edge.source)
        return found is not None and await evaluate_condition(edge.condition, found)

    def _has_failed(self, name: str) -> bool:
        return name in self._not_run or not self._outputs.get(name, {"success": True})["success"]

    async def _await_node(self, name: str, task: Any) -> None:
        try:
            with label_scope({}) as told:
                found = await task
            propagate_labels(told)
        except GraphBubbleUp as signal:
            self._signals[name] = signal
        except BaseException as exc:
            self._error = self._error or exc
        else:
            if "not_run" in found:
                self._not_run[name] = found["not_run"]
            elif "not_needed" in found:
                self._not_needed.append(name)
            else:
                self._outputs[name] = found
                if found["success"]:
                    given = published_values(name, found)
                    self._available |= given
                    self._labels |= dict.fromkeys(given, told)
        finally:
            self._finished[name].set()

    def _build_output(self) -> dict[str, Any]:
        wrong = [f"{n}: {f['error']}" for n, f in self._outputs.items() if not f["success"]]
        last = {
            n: f["output"]
            for n, f in self._outputs.items()
            if n in self._final_nodes and f["success"]
        }
        error = "; ".join(wrong)
        if self._not_run:
            told = ", ".join(f"{name} (hangs on {why})" for name, why in self._not_run.items())
            error += f"; not run: {told}"
        return {
            "output": next(iter(last.values())) if len(last) == 1 else last or "",
            "success": not wrong,
            "error": error or None,
            "outputs": {name: self._outputs[name] for name in self._nodes if name in self._outputs},
            "metadata": {"not_run": self._not_run, "not_needed": sorted(self._not_needed)},
        }
