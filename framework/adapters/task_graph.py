"""Conversion of agents, capabilities, and functions to graphs that perform a task."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NotRequired, TypeAlias

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime

from capgraph.adapters.request import failure_message, parse_request, record_output, services_for
from capgraph.adapters.tools import tool_capability
from capgraph.base.capability import BaseCapability
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Agent
from capgraph.base.spec import CapabilitySpec
from capgraph.base.task_schemas import NamedInputs, TaskOutput
from capgraph.engine.capability_node import run_standalone_step
from capgraph.engine.run_scope import compile_scope, find_services
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import compile_graph, single_node_graph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.threads import is_sync, run_in_thread
from capgraph.langgraph_compat import graph_keys
from capgraph.planning.parameters import required_parameters
from capgraph.planning.request_values import read_parameters
from capgraph.planning.schema_shapes import Shape

TaskGraph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]
TaskFunction = Callable[[Mapping[str, Any], Runtime[Any]], Awaitable[Mapping[str, Any]]]


class _TaskState(NamedInputs, TaskOutput):
    """State of a graph that runs one task and returns its output."""


class _ConversationState(_TaskState):
    """State of a graph that runs a task as part of a conversation.

    Each run replaces the stored conversation.
    """

    conversation: NotRequired[list[AnyMessage]]


@validate_arguments
def task_graph(
    target: Any, *, services: Services | None = None, name: str | None = None
) -> TaskGraph:
    """Return a graph that runs an agent, capability, graph, or function on a task.

    The graph's input is ``{"task": …}`` and its output has ``output``, ``success``, and ``error``.
    The graph of a capability or function also accepts ``inputs``, which are parameter values by
    name. The graph has no checkpointer. Inside another graph it uses that graph's thread, its
    interrupts and stream are part of the outer run, and it receives ``context``. Unexpected errors
    are raised.

    Args:
        target: One of:

            - a capability or LangChain tool. The task may be an object of parameters and inputs;
              see :func:`~capgraph.adapters.request.parse_request`.
            - a compiled graph with a key ``task`` or ``messages``.
            - an object with ``compile()``.
            - an object with ``async execute(task, context)``.
            - a function of the task, synchronous or asynchronous.
        services: Services for a capability or tool. Defaults to unbound services with default
            limits.
        name: Name of the graph. Defaults to the target's own name.

    Raises:
        ConfigurationError: The type of the target is not supported, the graph has static
            breakpoints, or the declaration of the capability requires ``services``.

    >>> import asyncio
    >>> async def shout(task: str) -> str:
    ...     return task.upper()
    >>> asyncio.run(task_graph(shout).ainvoke({"task": "hello"}))
    {'output': 'HELLO', 'success': True, 'error': None}
    """
    if isinstance(target, BaseTool):
        target = _find_registered(target.name, services) or tool_capability(target)
    spec = getattr(target, "capability_spec", None)
    if isinstance(spec, CapabilitySpec):
        bound = services_for(target, services)
        # Without explicit services, each run uses those of the enclosing run.
        return _build_graph(_create_capability_task(spec, services and bound), name or spec.name)
    if isinstance(target, Pregel):
        reject_breakpoints(target, f"The graph {target.name!r}")
        return _adapt_graph(target, name)
    if not isinstance(target, type):
        own_name = name or target_name(target)
        if callable(getattr(target, "compile", None)):
            with compile_scope(services):
                return task_graph(target.compile(), name=own_name)
        if isinstance(target, Agent):
            return _build_graph(_create_agent_task(target), own_name)
        if callable(target):
            return _build_graph(_create_function_task(target), own_name)
    raise ConfigurationError(
        f"{target!r} cannot perform a task: its type is not supported.",
        fix="Pass a capability, a tool, a compiled graph with a key 'task' or 'messages', an object"
        " with compile() or 'async execute(task, context)', or a function of the task.",
    )


def target_name(target: Any) -> str:
    """Return the name of an agent, graph, or function.

    An object without a name is named after its class.
    """
    attributes = ("graph_name", "agent_id", "name", "__name__")
    names = (getattr(target, attribute, None) for attribute in attributes)
    return str(next((name for name in names if name), type(target).__name__))


def reject_breakpoints(graph: Pregel[Any, Any, Any, Any], subject: str) -> None:
    """Raise an error if a graph or one of its subgraphs has static breakpoints.

    A static breakpoint ends the graph without an interrupt. The step would end before the work is
    complete, and the next call would do the rest without an approval.

    Args:
        graph: Compiled graph.
        subject: Description of the graph, for the message.

    Raises:
        ConfigurationError: The graph has a static breakpoint.
    """
    for path, subgraph in [("", graph), *graph.get_subgraphs(recurse=True)]:
        for option in ("interrupt_before", "interrupt_after"):
            nodes: Any = getattr(subgraph, f"{option}_nodes", ())
            if nodes:
                node_names = "every node" if nodes == "*" else ", ".join(map(repr, nodes))
                position = f" in its subgraph {path!r}" if path else ""
                raise ConfigurationError(
                    f"{subject} has static breakpoints ({option} of {node_names}{position}), "
                    "which are not supported because they do not interrupt the step.",
                    fix=f"Compile it without {option}, and call interrupt() in the node.",
                )


def _find_registered(name: str, services: Services | None) -> Any:
    """Look up a capability by name in the services' registry.

    Return None if the capability is not registered or there are no services.
    """
    spec = services.registry.capabilities.get(name) if services is not None else None
    return None if spec is None else spec.cls


def _build_graph(
    work: TaskFunction, name: str, state_schema: type[_TaskState] = _TaskState
) -> TaskGraph:
    async def node(state: Mapping[str, Any], runtime: Runtime[Any]) -> Mapping[str, Any]:
        return {"success": True, "error": None, **await work(state, runtime)}

    has_conversation = state_schema is _ConversationState
    builder = single_node_graph(
        name,
        node,
        state_schema,
        input_schema=state_schema if has_conversation else NamedInputs,
        output_schema=TaskOutput,
    )
    return compile_graph(builder, name=name)


def _create_capability_task(declared_spec: CapabilitySpec, bound: Services | None) -> TaskFunction:
    async def work(state: Mapping[str, Any], _: Runtime[Any]) -> Mapping[str, Any]:
        task, inputs = state["task"], state.get("inputs") or {}
        services = bound or find_services(declared_spec)
        spec = services.registry.capabilities[declared_spec.name] if services else declared_spec
        values = task if isinstance(task, Mapping) else _read_parameters(spec, task, inputs)
        step, contexts = parse_request(spec, values)
        if not isinstance(task, Mapping):
            step["task_objective"] = str(task)
        record = await run_standalone_step(spec, step, contexts, services)
        refused = failure_message(record)
        return {"output": record_output(record), "success": refused is None, "error": refused}

    return work


def _read_parameters(
    spec: CapabilitySpec, task: Any, inputs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Extract a capability's parameters from the text of a task.

    If exactly one required parameter is missing and it is a string, it receives the whole text.
    This does not apply to capabilities that define their own ``parameters_from``.
    """
    required = [name for name in required_parameters(spec.parameters) if name not in inputs]
    has_own_reader = (
        getattr(spec.cls, "parameters_from", None) is not BaseCapability.parameters_from
    )
    if len(required) == 1 and spec.parameters is not None and not has_own_reader:
        only = Shape.from_model(spec.parameters, "validation").at_path((required[0],))
        if only is not None and only.json_type == "string":
            return {**inputs, required[0]: str(task)}
    return read_parameters(spec, str(task), inputs)


def _adapt_graph(graph: Pregel[Any, Any, Any, Any], name: str | None) -> TaskGraph:
    takes, _ = graph_keys(graph) or ([], [])
    if "task" in takes and isinstance(graph, CompiledStateGraph):
        return graph
    if "messages" not in takes:
        raise ConfigurationError(
            f"The graph {graph.name!r} has the input keys {sorted(takes)}, but neither 'task' nor"
            " 'messages'.",
            fix="Add the keys 'task' and 'output' to its state, or call it in a function of the task.",
        )

    async def work(state: Mapping[str, Any], _: Runtime[Any]) -> Mapping[str, Any]:
        messages = [*(state.get("conversation") or ()), HumanMessage(str(state["task"]))]
        final_state = await graph.ainvoke({"messages": messages})
        return {**_read_final_state(final_state), "conversation": final_state["messages"]}

    return _build_graph(work, name or graph.name, _ConversationState)


def _read_final_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Extract the task output from the final state of a message-based graph.

    The output is the structured response, or the text of the last message if there is none.
    """
    outcome = state.get("execution_outcome") or {}
    if outcome.get("status", "completed") != "completed":
        text = str(state["messages"][-1].text)
        return {"output": text, "success": False, "error": str(outcome.get("reason") or text)}
    answer = state.get("structured_response", state.get("execution_answer"))
    if answer is None:
        return {"output": str(state["messages"][-1].text)}
    return {"output": answer.model_dump(mode="json") if hasattr(answer, "model_dump") else answer}


def _create_agent_task(agent: Agent) -> TaskFunction:
    async def work(state: Mapping[str, Any], runtime: Runtime[Any]) -> Mapping[str, Any]:
        arguments = (state["task"], runtime.context)
        sync = is_sync(agent.execute)
        result: Any = (
            await run_in_thread(agent.execute, *arguments) if sync else agent.execute(*arguments)
        )
        return _read_outcome(await maybe_await(result))

    return work


def _create_function_task(function: Callable[..., Any]) -> TaskFunction:
    function_called: Any = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]
    sync = is_sync(function) and is_sync(function_called)
    first, takes_task_by_name = task_parameter(function)

    async def work(state: Mapping[str, Any], _: Runtime[Any]) -> Mapping[str, Any]:
        task, inputs = state["task"], state.get("inputs") or {}
        arguments = () if first is None or first in inputs else (task,)
        if takes_task_by_name and (first != "task" or not arguments):
            inputs = {"task": task, **inputs}
        call = partial(function, *arguments, **inputs)
        return _read_outcome(await maybe_await(await run_in_thread(call) if sync else call()))

    return work


def task_parameter(function: Callable[..., Any]) -> tuple[str | None, bool]:
    """Return how a function receives its task.

    The first value is the name of the positional parameter that receives the task unless an input
    has the same name. It is empty if the parameter has no usable name, and None if the function
    has no positional parameter. The second value is True if the function also accepts the task by
    name.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function
        return "", False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    has_task = any(one.name == "task" and one.kind in by_name for one in parameters)
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return None, has_task
    first = parameters[0]
    if first.kind is inspect.Parameter.VAR_KEYWORD:
        return None, True
    named = first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return first.name if named else "", has_task


def _read_outcome(result: Any) -> Mapping[str, Any]:
    """Normalize the return value of an agent or function to a task outcome.

    A value that is not already an outcome becomes ``output``.
    """
    if isinstance(result, Mapping) and "output" in result:
        return {name: result[name] for name in TaskOutput.__annotations__ if name in result}
    if hasattr(result, "output") and hasattr(result, "success"):
        error = getattr(result, "error", None)
        return {"output": result.output, "success": bool(result.success), "error": error}
    return {"output": result}
