"""Compiled graphs and agents as capabilities."""

from __future__ import annotations

from typing import Any

from langgraph.pregel import Pregel

from capgraph.adapters.external_text import task_with_inputs
from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.adapters.task_graph import reject_breakpoints, task_graph
from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.errors import CapabilityError, ConfigurationError
from capgraph.base.step_context import StepContext
from capgraph.engine.capability_node import member_scope
from capgraph.engine.services import Services
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import graph_keys


@validate_arguments
def graph_capability(
    graph: Pregel[Any, Any, Any, Any] | Any,
    input: type[CapabilityContext],  # noqa: A002
    output: type[CapabilityContext],
    name: str | None = None,
    *,
    description: str | None = None,
    **options: Any,
) -> type[BaseCapability]:
    """Make a capability of a compiled LangGraph graph.

    The fields of the input are the graph's state at its start; of the state at its end, the fields
    of the output are taken and checked. The graph runs inside the step: its checkpoints are the
    thread's, in a namespace of the step, whatever saver it was compiled with, so that what ended in
    it is not run again after a kill, a retry or a question; its ``interrupt()`` is the step's
    question; its stream comes out with ``subgraphs=True``; it is given the run's ``context``.

    Args:
        graph: The compiled graph.
        input: Context type that it needs.
        output: Context type that it gives.
        name: Name of the capability; the graph's own when not given.
        description: What it does, for whoever plans.
        **options: What :func:`~capgraph.adapters.schema_capability.declare` takes.

    Raises:
        ConfigurationError: It is no compiled graph; it has static breakpoints; or its state has no
            place for a field of the input, or none from which one of the output could come.

    >>> from langgraph.graph import START, StateGraph
    >>> from typing import TypedDict
    >>> class Order(CapabilityContext):
    ...     amount: int
    >>> class Price(CapabilityContext):
    ...     total: int
    >>> class State(TypedDict):
    ...     amount: int
    ...     total: int
    >>> builder = StateGraph(State).add_node("add", lambda state: {"total": state["amount"] * 2})
    >>> graph = builder.add_edge(START, "add").compile(name="pricing")
    >>> graph_capability(graph, input=Order, output=Price).capability_spec.requires
    (Requirement(type='ORDER', cardinality='one'),)
    """
    name = name or _default_name(graph, output)
    check_names(f"graph_capability({name!r})", options, accepted_names("graph"))
    inner = _as_subgraph(graph, f"The graph {name!r}")
    needed = [field for field, info in output.model_fields.items() if info.is_required()]
    if (keys := graph_keys(inner)) is not None:
        _check_keys(keys[0], [*input.model_fields], name, "takes")
        _check_keys(keys[1], needed, name, "leaves")

    async def call(_: dict[str, Any], step: StepContext) -> Any:
        found = await inner.ainvoke(dict(step.inputs[input.CONTEXT_TYPE]))
        left = {field: found[field] for field in output.model_fields if field in found}
        if missing := [field for field in needed if field not in left]:
            raise CapabilityError(
                f"The graph {name!r} ended without {', '.join(missing)}, which {output.__name__}"
                " needs.",
                fix="Write these keys on every way through the graph, or give them defaults.",
            )
        return left

    said = description or f"Runs the graph {name}: from {input.__name__} to {output.__name__}."
    return capability_from_schema(
        name, said, None, call, provides=output, requires=[input], **options
    )


@validate_arguments
def agent_capability(
    agent: Any,
    name: str | None = None,
    *,
    description: str | None = None,
    provides: ContextType | None = None,
    services: Services | None = None,
    **options: Any,
) -> type[BaseCapability]:
    """Make a capability of whatever works on a task: an agent, a workflow, a team, a graph.

    Its task is the step's ``task_objective``, with the values of the step's inputs, where it
    requires some, behind it. What it gives is the data of the context type: ``output``. When it
    says that it did not succeed, the step fails. It runs inside the step as
    :func:`graph_capability` says.

    Args:
        agent: Anything that :func:`~capgraph.adapters.task_graph.task_graph` takes, such as a
            graph of ``create_agent`` or one of ``build_graph``.
        name: Name of the capability; the ``agent_id``, or the graph's name, when not given.
        description: What it does, for whoever plans.
        provides: Context type of its result; one named after the capability when not given.
        services: What the agent's own capabilities run with.
        **options: What :func:`~capgraph.adapters.schema_capability.declare` takes, such as ``requires``.

    Raises:
        ConfigurationError: It cannot work on a task.

    >>> async def poet(task: str) -> str:
    ...     return f"{task}: roses are red."
    >>> agent_capability(poet).capability_spec.provides
    ('POET_RESULT',)
    """
    inner = task_graph(agent, services=services)
    name = name or getattr(agent, "agent_id", None) or inner.name
    check_names(f"agent_capability({name!r})", options, accepted_names("agent"))
    inner = _as_subgraph(inner, f"The agent {name!r}")

    async def call(_: dict[str, Any], step: StepContext) -> Any:
        async with member_scope(services, name):
            found = await inner.ainvoke({"task": task_with_inputs(step)})
        if not found.get("success", True):
            raise CapabilityError(
                f"{name!r} did not do its task: {found.get('error') or 'it does not say why'}",
                fix="Look at its steps in the thread; give it another task, tools or limits.",
            )
        return {"output": found.get("output")}

    said = description or getattr(agent, "description", None) or f"Has the agent {name} do a task."
    return capability_from_schema(name, said, None, call, provides=provides, **options)


def _default_name(graph: Any, output: type[CapabilityContext]) -> str:
    named = getattr(graph, "name", None)
    return named if named not in (None, "LangGraph") else f"{output.CONTEXT_TYPE.lower()}_graph"


def _as_subgraph(graph: Any, subject: str) -> Any:
    """Return the graph as it runs inside a step: kept with the thread, each step by itself."""
    if not isinstance(graph, Pregel):
        raise ConfigurationError(
            f"{subject} is {type(graph).__name__}, not a compiled graph.",
            fix="Give builder.compile().",
        )
    reject_breakpoints(graph, subject)
    return graph.copy({"checkpointer": None})


def _check_keys(state_keys: list[str], fields: list[str], name: str, verb: str) -> None:
    if missing := [field for field in fields if field not in state_keys]:
        raise ConfigurationError(
            f"The graph {name!r} {verb} {sorted(state_keys)}, and no {', '.join(missing)}.",
            fix="Use context types whose fields are keys of the graph's state.",
        )
