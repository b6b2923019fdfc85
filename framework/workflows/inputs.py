"""A node and its inputs: the values that a workflow knows, in the form that each kind of node takes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.tools import BaseTool

from capgraph.adapters.task_graph import TaskGraph
from capgraph.base.errors import CapgraphError, ConfigurationError, ValidationError
from capgraph.base.ports import Agent
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import graph_keys
from capgraph.pipeline.run_config import current_runtime

NodeKind = Literal["capability", "function", "agent", "model_agent", "messages", "graph"]
LAST_OUTPUT = "last_output"
"""Name by which a state finds the output of the state before it."""


@validate_arguments
@dataclass
class WorkflowNode:
    """One node of a workflow.

    Attributes:
        node_id: Its name.
        agent: Who works there: a capability, tool, agent, graph, workflow, team or function.
        inputs_map: Names of the node's own inputs, each with the name of its value: an input of
            the workflow or the output of an earlier node. ``{"task": "draft"}`` makes the output
            of ``draft`` its task. See :func:`hand_over` for how each kind of node gets them.
        outputs_map: Under which names others find what it gives: ``output`` for the whole, else a
            field of it. Without, the whole stands under the node's own name.
        metadata: Notes of the application.
    """

    node_id: str
    agent: Any
    inputs_map: dict[str, str] = field(default_factory=dict)
    outputs_map: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def kind_of(node: WorkflowNode) -> NodeKind:
    """Return how a node takes its inputs.

    An ``agent`` reads its context in its own ``execute``. The model of a ``model_agent`` reads
    only the task.
    """
    thing = node.agent
    if is_capability(thing) or isinstance(thing, BaseTool):
        return "capability"
    if hasattr(thing, "compile") and not hasattr(thing, "ainvoke"):
        own = getattr(thing, "reads_context", None)
        return "graph" if own is None else "agent" if own else "model_agent"
    if isinstance(thing, Agent):
        return "agent"
    if hasattr(thing, "ainvoke"):
        taken, _ = graph_keys(thing) or ([], [])
        return "messages" if "messages" in taken and "task" not in taken else "graph"
    return "function"


def prepare_input(
    node: WorkflowNode, graph: TaskGraph, available: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return the input of a node's graph, and the context of an agent.

    ======================  ====================================================================
    a function              arguments by name, and all values as ``context``
    a capability, a tool    parameters and inputs by name
    an agent with its own   ``context``: all values; with ``inputs_map`` the mapped ones
    ``execute``
    another agent of ours   the same as the ``Runtime.context`` of its tools. Its model reads the
                            task, and after it the mapped values, or else ``last_output``
    a graph of messages     the task, and after it the same values
    a workflow              ``inputs``
    another graph           keys of its state by name
    ======================  ====================================================================

    Args:
        node: The node.
        graph: Its graph.
        available: The input of the workflow and what earlier nodes gave, by name.

    Raises:
        CapgraphError: A mapped value does not exist.
    """
    if missing := sorted({name for name in node.inputs_map.values() if name not in available}):
        raise CapgraphError(
            f"{node.node_id!r} needs {missing}, which nobody gave.",
            fix=f"There is {sorted(available)}; give the rest to the workflow.",
        )
    mapped = {own: available[name] for own, name in node.inputs_map.items()}
    values, kind = mapped or dict(available), kind_of(node)
    if kind == "capability":
        if mapped and set(mapped) != {"task"}:
            return {"task": mapped}, None
        named = {name: values[name] for name in _capability_fields(node.agent) if name in values}
        return {"task": to_task(values), "inputs": {} if mapped else named}, None
    if kind == "function":
        named = _function_arguments(node, mapped, available)
        by_name = set(mapped) <= set(named)
        return {"task": to_task(available if by_name else values), "inputs": named}, None
    task = to_task(values)
    if kind in ("messages", "model_agent"):
        task = _append_values(task, mapped, available)
    if kind in ("agent", "model_agent"):
        return {"task": task}, _agent_context(values, reads_context=kind == "agent")
    taken = _accepted_keys(graph)
    further = {name: value for name, value in values.items() if name in taken}
    if "inputs" in taken and "inputs" not in values:
        further["inputs"] = values
    return {**further, "task": task}, None


def find_used_names(
    node: WorkflowNode, graph: TaskGraph, available: Mapping[str, Any]
) -> Collection[str]:
    """Return which of the known values reach a node."""
    kind = kind_of(node)
    if node.inputs_map:
        return node.inputs_map.values()
    if kind == "capability":
        return available.keys() & {"task", *_capability_fields(node.agent)}
    if kind == "function":
        used = _function_arguments(node, {}, available)
        return available.keys() if "context" in used else available.keys() & {"task", *used}
    if kind in ("agent", "model_agent") or "inputs" in _accepted_keys(graph):
        return available.keys()
    return available.keys() & {"task", LAST_OUTPUT, *_accepted_keys(graph)}


def check_inputs(node: WorkflowNode, graph: TaskGraph) -> None:
    """Refuse a mapped input that the node has no place for.

    Raises:
        ConfigurationError: There is one.
    """
    if "task" not in node.inputs_map:
        return  # then all of them are the task
    kind = kind_of(node)
    if kind == "function":
        names, takes_all = _function_parameters(node.agent)
        taken: Collection[str] = node.inputs_map if takes_all else {*names, "context"}
        if "context" in names:
            return
    elif kind == "graph":
        taken = _accepted_keys(graph)
        if "inputs" in taken:
            return
    else:
        return
    if lost := sorted({*node.inputs_map} - {"task", *taken}):
        raise ConfigurationError(
            f"The inputs {', '.join(lost)} of the node {node.node_id!r} would be lost: it does not"
            " take them.",
            fix="Give it parameters, or keys of its state, of these names, or map only 'task'.",
        )


def to_task(inputs: Mapping[str, Any]) -> str:
    """Return the task that named values stand for: ``task``, ``query``, else all of them as JSON.

    Raises:
        ValidationError: They are none, or the task says nothing.
    """
    if not isinstance(inputs, Mapping) or (inputs and all(v is None for v in inputs.values())):
        raise ValidationError(f"{inputs!r} is no task.", fix='Give {"task": …}.')
    for name in ("task", "query"):
        if inputs.get(name) is not None:
            return inputs[name] if isinstance(inputs[name], str) else _to_json(inputs[name])
    return _to_json(dict(inputs))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _accepted_keys(graph: TaskGraph) -> Collection[str]:
    takes, _ = graph_keys(graph) or ([], [])
    return takes


def is_capability(value: Any) -> bool:
    """Return True for a decorated capability."""
    return isinstance(getattr(value, "capability_spec", None), CapabilitySpec)


def _capability_fields(capability: Any) -> list[str]:
    if isinstance(capability, BaseTool):
        return list(capability.args)
    spec: CapabilitySpec = capability.capability_spec
    own = spec.parameters.model_fields if spec.parameters is not None else ()
    return [*own, *(need.label for need in spec.requires)]


def _agent_context(values: Mapping[str, Any], *, reads_context: bool) -> Any:
    """Return the context of an agent; an object of the caller's stays what its tools find."""
    runtime = current_runtime()
    around = runtime.context if runtime is not None else None
    if isinstance(around, Mapping):
        return {**around, **values}
    return dict(values) if reads_context or around is None else None


def _append_values(task: str, mapped: Mapping[str, Any], available: Mapping[str, Any]) -> str:
    """Return a task with the values behind it that a model has to read."""
    if mapped and not {"task", "query"} & set(mapped):
        return task  # it holds all of them
    names = [name for name in mapped if name != "task"] if mapped else [LAST_OUTPUT]
    values = mapped or available
    shown = {name: values[name] for name in names if values.get(name) is not None}
    return f"{task}\n\n{_to_json(shown)}" if shown else task


def _function_parameters(function: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return a function's parameters behind the task, and whether it takes any name."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in one
        return {}, False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {one.name: one for one in found[1:] if one.kind in by_name}
    return named, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found)


def _function_arguments(
    node: WorkflowNode, mapped: Mapping[str, Any], available: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a function beside the task.

    A parameter that has a default of its own is filled only by a mapped input, or by the output of
    the state before: many functions bind a value that way.
    """
    parameters, takes_all = _function_parameters(node.agent)
    found = {name: mapped[name] for name in mapped if name != "task" and takes_all}
    for name, parameter in parameters.items():
        if name in mapped:
            found[name] = mapped[name]
        elif name == "context":
            found[name] = dict(mapped or available)
        elif name == LAST_OUTPUT:
            found[name] = available.get(name)
        elif parameter.default is inspect.Parameter.empty and name in available and not mapped:
            found[name] = available[name]
    return found
