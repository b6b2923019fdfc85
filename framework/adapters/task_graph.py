"""One shape for all that works on a task: a compiled graph from ``task`` to ``output``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime

from capgraph.adapters.request import output_of, refusal_of, request_of, services_for
from capgraph.adapters.tools import tool_capability
from capgraph.base.awaiting import awaited
from capgraph.base.capability import BaseCapability
from capgraph.base.checked import checked
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Agent
from capgraph.base.spec import CapabilitySpec
from capgraph.base.task import NamedInputs, TaskOutput
from capgraph.base.threads import in_thread, is_sync
from capgraph.engine.as_node import run_request
from capgraph.engine.run_scope import compiled_inside, services_around
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import compiled, one_node
from capgraph.langgraph_compat import keys_of
from capgraph.planning.parameters import required_parameters
from capgraph.planning.request_values import read_parameters
from capgraph.planning.schemas import Shape

TaskGraph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]
Work = Callable[[Mapping[str, Any], Runtime[Any]], Awaitable[Mapping[str, Any]]]


class _TaskState(NamedInputs, TaskOutput):
    """All keys of a graph that works on a task."""


@checked
def task_graph(
    thing: Any, *, services: Services | None = None, name: str | None = None
) -> TaskGraph:
    """Turn anything that can work on a task into a graph that does.

    The graph takes ``{"task": …}`` and leaves ``output``, ``success`` and ``error``. That of a
    capability or a function also takes ``inputs``: values for parameters by name. It has no
    saver of its own: inside another graph it keeps its steps in that one's thread, its questions
    and its stream come out there, and ``context`` reaches it. What goes wrong in an unforeseen way
    is raised.

    Args:
        thing: A capability or a LangChain tool (the task may be an object of parameters and
            inputs, see :func:`~capgraph.adapters.request.request_of`); a compiled graph with a
            key ``task`` or ``messages``; anything with ``compile()``; an object with ``async
            execute(task, context)``; a function of the task, also a synchronous one.
        services: What a capability, or a tool, runs with; without, the rules of unbound
            capabilities hold.
        name: Name of the graph; the thing's own when not given.

    Raises:
        ConfigurationError: It is none of these; a graph has static breakpoints; or a capability
            declares what needs ``services``.

    >>> import asyncio
    >>> async def shout(task: str) -> str:
    ...     return task.upper()
    >>> asyncio.run(task_graph(shout).ainvoke({"task": "hello"}))
    {'output': 'HELLO', 'success': True, 'error': None}
    """
    if isinstance(thing, BaseTool):
        thing = _registered(thing.name, services) or tool_capability(thing)
    spec = getattr(thing, "capability_spec", None)
    if isinstance(spec, CapabilitySpec):
        bound = services_for(thing, services)
        # Without services of its own, the runs around each run of it decide.
        return _one_node(_capability(spec, services and bound), name or spec.name)
    if isinstance(thing, Pregel):
        refuse_breakpoints(thing, f"The graph {thing.name!r}")
        return _graph(thing, name)
    if not isinstance(thing, type):
        named = (getattr(thing, attribute, None) for attribute in ("agent_id", "name", "__name__"))
        own = name or next((found for found in named if found), type(thing).__name__)
        if callable(getattr(thing, "compile", None)):
            with compiled_inside(services):
                return task_graph(thing.compile(), name=own)
        if isinstance(thing, Agent):
            return _one_node(_agent(thing), own)
        if callable(thing):
            return _one_node(_function(thing), own)
    raise ConfigurationError(
        f"{thing!r} cannot work on a task.",
        fix="Give a capability, a tool, a compiled graph with a key 'task' or 'messages', something"
        " with compile(), an object with 'async execute(task, context)', or a function of the task.",
    )


def refuse_breakpoints(graph: Pregel[Any, Any, Any, Any], what: str) -> None:
    """Refuse a graph that stops at static breakpoints, its subgraphs included.

    A breakpoint ends the graph without a question, so a step that runs it would end with half the
    work, and the next call would do the rest without a person.

    Args:
        graph: The compiled graph.
        what: The subject of the message.

    Raises:
        ConfigurationError: It has one.
    """
    for path, one in [("", graph), *graph.get_subgraphs(recurse=True)]:
        for option in ("interrupt_before", "interrupt_after"):
            nodes: Any = getattr(one, f"{option}_nodes", ())
            if nodes:
                named = "every node" if nodes == "*" else ", ".join(map(repr, nodes))
                place = f" in its subgraph {path!r}" if path else ""
                raise ConfigurationError(
                    f"{what} stops at static breakpoints ({option} of {named}{place}), which ask"
                    " nobody inside a step.",
                    fix=f"Compile it without {option}, and call interrupt() in the node.",
                )


def _registered(name: str, services: Services | None) -> Any:
    """Return the capability of that name, if services are given and register one."""
    spec = services.registry.capabilities.get(name) if services is not None else None
    return None if spec is None else spec.cls


def _one_node(work: Work, name: str) -> TaskGraph:
    async def node(state: _TaskState, runtime: Runtime[Any]) -> Mapping[str, Any]:
        return {"success": True, "error": None, **await work(state, runtime)}

    builder = one_node(name, node, _TaskState, takes=NamedInputs, gives=TaskOutput)
    return compiled(builder, name=name)


def _capability(declared: CapabilitySpec, bound: Services | None) -> Work:
    async def work(state: Mapping[str, Any], _: Runtime[Any]) -> Mapping[str, Any]:
        task, inputs = state["task"], state.get("inputs") or {}
        services = bound or services_around(declared)
        spec = services.registry.capabilities[declared.name] if services else declared
        values = task if isinstance(task, Mapping) else _read(spec, task, inputs)
        step, contexts = request_of(spec, values)
        if not isinstance(task, Mapping):
            step["task_objective"] = str(task)
        record = await run_request(spec, step, contexts, services)
        refused = refusal_of(record)
        return {"output": output_of(record), "success": refused is None, "error": refused}

    return work


def _read(spec: CapabilitySpec, task: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the other parameters from a task; where one text is all that is needed, it is the task."""
    needed = [name for name in required_parameters(spec.parameters) if name not in inputs]
    own = getattr(spec.cls, "parameters_from", None) is not BaseCapability.parameters_from
    if len(needed) == 1 and spec.parameters is not None and not own:
        only = Shape.of(spec.parameters, "validation").at((needed[0],))
        if only is not None and only.kind == "string":
            return {**inputs, needed[0]: str(task)}
    return read_parameters(spec, str(task), inputs)


def _graph(graph: Pregel[Any, Any, Any, Any], name: str | None) -> TaskGraph:
    takes, _ = keys_of(graph) or ([], [])
    if "task" in takes and isinstance(graph, CompiledStateGraph):
        return graph
    if "messages" not in takes:
        raise ConfigurationError(
            f"The graph {graph.name!r} takes {sorted(takes)}, neither 'task' nor 'messages'.",
            fix="Give its state a key 'task' and a key 'output'; or call it in a function of the"
            " task.",
        )

    async def work(state: Mapping[str, Any], _: Runtime[Any]) -> Mapping[str, Any]:
        return _said(await graph.ainvoke({"messages": [HumanMessage(str(state["task"]))]}))

    return _one_node(work, name or graph.name)


def _said(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read what a graph of messages left: its structured answer, else its last message."""
    ended = found.get("execution_outcome") or {}
    if ended.get("status", "completed") != "completed":
        said = str(found["messages"][-1].text)
        return {"output": said, "success": False, "error": str(ended.get("reason") or said)}
    answer = found.get("structured_response", found.get("execution_answer"))
    if answer is None:
        return {"output": str(found["messages"][-1].text)}
    return {"output": answer.model_dump(mode="json") if hasattr(answer, "model_dump") else answer}


def _agent(agent: Agent) -> Work:
    async def work(state: Mapping[str, Any], runtime: Runtime[Any]) -> Mapping[str, Any]:
        given = (state["task"], runtime.context)
        sync = is_sync(agent.execute)
        found: Any = await in_thread(agent.execute, *given) if sync else agent.execute(*given)
        return _outcome(await awaited(found))

    return work


def _function(function: Callable[..., Any]) -> Work:
    called: Any = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]
    sync = is_sync(function) and is_sync(called)

    async def work(state: Mapping[str, Any], _: Runtime[Any]) -> Mapping[str, Any]:
        task, inputs = state["task"], state.get("inputs") or {}
        found = await in_thread(function, task, **inputs) if sync else function(task, **inputs)
        return _outcome(await awaited(found))

    return work


def _outcome(found: Any) -> Mapping[str, Any]:
    """Read what an agent or a function gave; what says nothing of success is the output itself."""
    if isinstance(found, Mapping) and "output" in found:
        return {name: found[name] for name in TaskOutput.__annotations__ if name in found}
    if hasattr(found, "output") and hasattr(found, "success"):
        error = getattr(found, "error", None)
        return {"output": found.output, "success": bool(found.success), "error": error}
    return {"output": found}
