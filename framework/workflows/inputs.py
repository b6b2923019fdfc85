"""Workflow nodes, and functions that prepare the inputs for each kind of node."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.tools import BaseTool

from capgraph.adapters.task_graph import TaskGraph, task_parameter
from capgraph.base.errors import CapgraphError, ConfigurationError, ValidationError
from capgraph.base.ports import Agent
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import graph_keys
from capgraph.pipeline.run_config import current_runtime

NodeKind = Literal["capability", "function", "agent", "model_agent", "messages", "graph"]
LAST_OUTPUT = "last_output"
"""Name of the value that contains the previous state's output."""


@validate_arguments
@dataclass
class WorkflowNode:
    """Node of a workflow: what runs, and how its inputs and outputs are named.

    Attributes:
        node_id: Name of the node.
        agent: Capability, tool, agent, graph, workflow, team, or function that runs.
        inputs_map: Name of the value for each input of the node. A value is an input of the
            workflow or the output of an earlier node. ``{"task": "draft"}`` makes the output of
            ``draft`` the task. :func:`prepare_input` describes how each kind of node receives its
            inputs.
        outputs_map: Name of the value for each field of the output, by which other nodes refer to
            it. The field ``output`` is the whole output. Without a map, the whole output has the
            node's name.
        metadata: Values for the application, which the workflow does not use.
    """

    node_id: str
    agent: Any
    inputs_map: dict[str, str] = field(default_factory=dict)
    outputs_map: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def kind_of(node: WorkflowNode) -> NodeKind:
    """Return the kind of a workflow node, which determines how the node receives its inputs.

    An ``agent`` overrides ``execute`` and reads its context there. A ``model_agent`` passes
    only the task to its model.
    """
    target = node.agent
    if is_capability(target) or isinstance(target, BaseTool):
        return "capability"
    if hasattr(target, "compile") and not hasattr(target, "ainvoke"):
        reads_context = getattr(target, "reads_context", None)
        return "graph" if reads_context is None else "agent" if reads_context else "model_agent"
    if isinstance(target, Agent):
        return "agent"
    if hasattr(target, "ainvoke"):
        accepted, _ = graph_keys(target) or ([], [])
        return "messages" if "messages" in accepted and "task" not in accepted else "graph"
    return "function"


def prepare_input(
    node: WorkflowNode, graph: TaskGraph, available: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Build the input for the graph of a workflow node.

    For an agent, the context is returned as well.

    ======================  ====================================================================
    node                    inputs
    ======================  ====================================================================
    function                arguments by name, and all values as ``context``
    capability, tool        parameters and inputs by name
    agent that overrides    ``context``: all values, or the mapped ones with ``inputs_map``
    ``execute``
    other agent             ``Runtime.context`` of its tools. The model reads the task, followed
                            by the mapped values or else ``last_output``
    graph of messages       the task, followed by the same values
    workflow                ``inputs``
    other graph             keys of its state by name
    ======================  ====================================================================

    Args:
        node: Node of the workflow.
        graph: Compiled graph of the node.
        available: Input of the workflow and outputs of earlier nodes, by name.

    Raises:
        CapgraphError: A value named in ``inputs_map`` does not exist.
    """
    if missing := sorted({name for name in node.inputs_map.values() if name not in available}):
        raise CapgraphError(
            f"The inputs {missing} of the node {node.node_id!r} are missing: no node provides"
            " them.",
            fix=f"Pass them to the workflow, or map one of {sorted(available)}.",
        )
    mapped = {input_name: available[name] for input_name, name in node.inputs_map.items()}
    values, kind = mapped or dict(available), kind_of(node)
    if kind == "capability":
        if mapped and set(mapped) != {"task"}:
            return {"task": mapped}, None
        named = {
            name: values[name] for name in _list_capability_fields(node.agent) if name in values
        }
        return {"task": to_task(values), "inputs": {} if mapped else named}, None
    if kind == "function":
        named = _build_arguments(node, mapped, available)
        is_by_name = set(mapped) <= set(named)
        return {"task": to_task(available if is_by_name else values), "inputs": named}, None
    accepted = _list_accepted_keys(graph)
    if kind == "graph" and not ("inputs" in accepted or mapped.keys() <= {*accepted}):
        task = to_task(values)  # otherwise, the graph would not receive all mapped values
    else:
        task = to_task(mapped if {"task", "query"} & mapped.keys() else available)
    if kind in ("messages", "model_agent"):
        task = _append_values_to_task(task, mapped, available)
    if kind in ("agent", "model_agent"):
        return {"task": task}, _build_agent_context(values, reads_context=kind == "agent")
    other_inputs = {name: value for name, value in values.items() if name in accepted}
    if "inputs" in accepted and "inputs" not in values:
        other_inputs["inputs"] = values
    return {**other_inputs, "task": task}, None


def find_used_names(
    node: WorkflowNode, graph: TaskGraph, available: Mapping[str, Any]
) -> Collection[str]:
    """Return the names of the available values that a workflow node uses."""
    kind = kind_of(node)
    if node.inputs_map:
        return node.inputs_map.values()
    if kind == "capability":
        return available.keys() & {"task", *_list_capability_fields(node.agent)}
    if kind == "function":
        arguments = _build_arguments(node, {}, available)
        return (
            available.keys() if "context" in arguments else available.keys() & {"task", *arguments}
        )
    if kind in ("agent", "model_agent") or "inputs" in _list_accepted_keys(graph):
        return available.keys()
    return available.keys() & {"task", LAST_OUTPUT, *_list_accepted_keys(graph)}


def check_inputs(node: WorkflowNode, graph: TaskGraph) -> None:
    """Raise an error if a workflow node does not accept one of its mapped inputs.

    Raises:
        ConfigurationError: The node does not accept a mapped input.
    """
    kind = kind_of(node)
    if kind == "capability":
        if set(node.inputs_map) == {"task"}:
            return  # the capability reads its parameters from the text of the task
        fields = _list_capability_fields(node.agent)
        if unknown := sorted({*node.inputs_map} - {*fields, "task"}):
            raise ConfigurationError(
                f"Node {node.node_id!r} does not accept the mapped inputs {', '.join(unknown)}.",
                fix=f"Map its parameters and context types: {', '.join(fields) or 'none'}.",
            )
        return
    if "task" not in node.inputs_map:
        return  # a function or graph that accepts no such names receives all values as its task
    if kind == "function":
        names, accepts_all = _list_parameters(node.agent)
        accepted: Collection[str] = node.inputs_map if accepts_all else {*names, "context"}
        if "context" in names:
            return
    elif kind == "graph":
        accepted = _list_accepted_keys(graph)
        if "inputs" in accepted:
            return
    else:
        return
    if unused := sorted({*node.inputs_map} - {"task", *accepted}):
        raise ConfigurationError(
            f"Node {node.node_id!r} does not accept the mapped inputs {', '.join(unused)}.",
            fix="Add parameters or state keys of these names, or map only 'task'.",
        )


def to_task(inputs: Mapping[str, Any]) -> str:
    """Extract the task from named values.

    The task is the value of ``task`` or ``query``, or else all values as JSON.

    Raises:
        ValidationError: The values are not a mapping, or all of them are None.
    """
    if not isinstance(inputs, Mapping) or (inputs and all(v is None for v in inputs.values())):
        raise ValidationError(
            f"The input {inputs!r} is invalid: it must be a mapping with a task.",
            fix='Pass {"task": …}.',
        )
    for name in ("task", "query"):
        if inputs.get(name) is not None:
            return inputs[name] if isinstance(inputs[name], str) else _to_json(inputs[name])
    return _to_json(dict(inputs))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _list_accepted_keys(graph: TaskGraph) -> Collection[str]:
    takes, _ = graph_keys(graph) or ([], [])
    return takes


def is_capability(value: Any) -> bool:
    """Return True if a value was decorated as a capability."""
    return isinstance(getattr(value, "capability_spec", None), CapabilitySpec)


def _list_capability_fields(capability: Any) -> list[str]:
    if isinstance(capability, BaseTool):
        return list(capability.args)
    spec: CapabilitySpec = capability.capability_spec
    own = spec.parameters.model_fields if spec.parameters is not None else ()
    return [*own, *(need.label for need in spec.requires)]


def _build_agent_context(values: Mapping[str, Any], *, reads_context: bool) -> Any:
    """Build the context of an agent from the caller's context and the workflow's values.

    A caller's context that is not a mapping is passed on unchanged, because it cannot be
    merged.

    A caller's context that is not a mapping cannot be merged and is left unchanged.
    """
    runtime = current_runtime()
    caller_context = runtime.context if runtime is not None else None
    if isinstance(caller_context, Mapping):
        return {**caller_context, **values}
    return dict(values) if reads_context or caller_context is None else None


def _append_values_to_task(
    task: str, mapped: Mapping[str, Any], available: Mapping[str, Any]
) -> str:
    """Append the values that a model must read to the text of its task."""
    names = [name for name in mapped if name != "task"] if mapped else [LAST_OUTPUT]
    values = mapped or available
    appended = {name: values[name] for name in names if values.get(name) is not None}
    return f"{task}\n\n{_to_json(appended)}" if appended else task


def _list_parameters(function: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the named parameters of a function, except ``task``.

    Also returns whether the function accepts arbitrary keyword arguments.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function
        return {}, False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_parameter_name = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in by_name and parameter.name != "task"
    }
    return by_parameter_name, any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
    )


def _build_arguments(
    node: WorkflowNode, mapped: Mapping[str, Any], available: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the keyword arguments for a node function, excluding the task.

    A parameter with a default value is set only by a mapped input or by the output of the
    previous state, because many functions use a default to bind a value. If the first parameter
    has no value of its name, it receives the task.
    """
    parameters, accepts_all = _list_parameters(node.agent)
    arguments = {name: mapped[name] for name in mapped if name != "task" and accepts_all}
    task_name, _ = task_parameter(node.agent)
    for name, parameter in parameters.items():
        if name in mapped:
            arguments[name] = mapped[name]
        elif name == task_name and (mapped or name not in available):
            continue
        elif name == "context":
            arguments[name] = dict(mapped or available)
        elif name == LAST_OUTPUT:
            arguments[name] = available.get(name)
        elif parameter.default is inspect.Parameter.empty and name in available and not mapped:
            arguments[name] = available[name]
    return arguments
