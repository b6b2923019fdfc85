"""Functions that create capabilities from compiled graphs and agents."""

from __future__ import annotations

from typing import Any

from langgraph.pregel import Pregel

from capgraph.adapters.external_text import task_with_inputs
from capgraph.adapters.schema_capability import ResultWithState, capability_from_schema
from capgraph.adapters.task_graph import reject_breakpoints, task_graph
from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.errors import CapabilityError, ConfigurationError
from capgraph.base.step_context import StepContext
from capgraph.base.task_schemas import TaskOutput
from capgraph.configs.run_context import override_run_context
from capgraph.engine.capability_node import member_scope
from capgraph.engine.dialogues import (
    CONVERSATION,
    DIALOGUE_KEY,
    HandoffRequest,
    dialogue_update,
    handoff_plan,
    read_messages,
)
from capgraph.engine.services import Services
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import graph_keys
from capgraph.pipeline.result_normalization import PLAN_KEY
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.state import TurnView


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
    """Create a capability that runs a compiled LangGraph graph as a step.

    The input's fields become the graph's initial state. The output's fields are read from its
    final state and validated. The graph runs inside the step:

    - Its checkpoints belong to the turn's thread, in a namespace of the step, even if the
      graph was compiled with a different checkpointer. Completed nodes do not run again after
      a crash, a retry, or an interrupt.
    - Its ``interrupt()`` interrupts the step.
    - Its stream is part of the outer stream with ``subgraphs=True``.
    - It receives the run's ``context``.

    Args:
        graph: Compiled graph.
        input: Context type that the capability requires.
        output: Context type that the capability provides.
        name: Name of the capability. Defaults to the name of the graph.
        description: Description for planners.
        **options: Keyword arguments for
            :func:`~capgraph.adapters.schema_capability.capability_from_schema`.

    Raises:
        ConfigurationError: The argument is not a compiled graph, it has static breakpoints, or
            a field of ``input`` or ``output`` is not a key of its state.

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
    name = name or _get_default_name(graph, output)
    check_names(f"graph_capability({name!r})", options, accepted_names("graph"))
    inner = _as_subgraph(graph, f"The graph {name!r}")
    needed = [field for field, info in output.model_fields.items() if info.is_required()]
    if (keys := graph_keys(inner)) is not None:
        _check_keys(keys[0], [*input.model_fields], name, "input")
        _check_keys(keys[1], needed, name, "output")

    async def call(_: dict[str, Any], step: StepContext) -> Any:
        final_state = await inner.ainvoke(dict(step.inputs[input.CONTEXT_TYPE]))
        output_data = {
            field: final_state[field] for field in output.model_fields if field in final_state
        }
        if missing := [field for field in needed if field not in output_data]:
            raise CapabilityError(
                f"The graph {name!r} ended without the state keys {', '.join(missing)}, which"
                f" {output.__name__} requires.",
                fix="Write these keys on every path through the graph, or give them defaults.",
            )
        return output_data

    text = description or f"Runs the graph {name}: from {input.__name__} to {output.__name__}."
    return capability_from_schema(
        name, text, None, call, provides=output, requires=[input], **options
    )


@validate_arguments
def agent_capability(
    agent: Any,
    name: str | None = None,
    *,
    description: str | None = None,
    provides: ContextType | None = None,
    services: Services | None = None,
    keeps_dialogue: bool = False,
    **options: Any,
) -> type[BaseCapability]:
    """Create a capability that delegates a task to an agent, workflow, team, graph, or function.

    The task is the step's ``task_objective``, followed by the values of the step's inputs. The
    result is stored under ``output``. If the agent reports that it did not succeed, the step
    fails. The agent runs inside the step like the graph of :func:`graph_capability`.

    Args:
        agent: Any object that :func:`~capgraph.adapters.task_graph.task_graph` accepts, such as
            a graph of ``create_agent`` or ``build_graph``.
        name: Name of the capability. Defaults to the name of the agent or its graph.
        description: Description for planners.
        provides: Context type of the result. Defaults to a type named after the capability.
        services: Services for the agent's own capabilities. Defaults to those of the enclosing
            run.
        keeps_dialogue: True to pass later messages in the thread to the agent, until a tool
            created by :func:`~capgraph.agents.handoffs.handoff_tool` ends the dialogue. The
            agent receives the messages of its dialogue.
        **options: Keyword arguments for
            :func:`~capgraph.adapters.schema_capability.capability_from_schema`, such as
            ``requires``.

    Raises:
        ConfigurationError: The agent cannot perform a task, or it keeps a dialogue but has no
            conversation.

    >>> async def poet(task: str) -> str:
    ...     return f"{task}: roses are red."
    >>> agent_capability(poet).capability_spec.provides
    ('POET_RESULT',)
    """
    with override_run_context(is_compiling_step=True):
        inner = task_graph(agent, services=services)
    name = name or inner.name
    check_names(f"agent_capability({name!r})", options, accepted_names("agent"))
    inner = _as_subgraph(inner, f"The agent {name!r}")
    if keeps_dialogue and CONVERSATION not in inner.channels:
        raise ConfigurationError(
            f"The agent {name!r} cannot keep a dialogue because its graph does not store a "
            "conversation.",
            fix="Pass an agent of capgraph.agents, or a graph with a key 'messages'.",
        )

    async def call(_: dict[str, Any], step: StepContext) -> Any:
        # Outside a turn, such as in another agent, there are no later messages.
        in_dialogue = keeps_dialogue and bool(step.state.get("control_turn"))
        earlier = read_messages(step.state, name) if in_dialogue else []
        graph_input = {
            "task": task_with_inputs(step),
            **({CONVERSATION: earlier} if earlier else {}),
        }
        try:
            async with member_scope(services, name):
                keys = [*TaskOutput.__annotations__, *([CONVERSATION] if in_dialogue else [])]
                outcome = await inner.ainvoke(graph_input, output_keys=keys)
        except HandoffRequest as request:
            return _hand_off(request, name, step, in_dialogue=in_dialogue)
        if not outcome.get("success", True):
            raise CapabilityError(
                f"The agent {name!r} failed: {outcome.get('error') or 'no reason was given'}",
                fix="Check its steps in the thread, then change its task, tools, or limits.",
            )
        result = {"output": outcome.get("output")}
        if not in_dialogue:
            return result
        return ResultWithState(result, dialogue_update(step, outcome.get(CONVERSATION), result))

    text = description or getattr(agent, "description", None) or f"Has the agent {name} do a task."
    return capability_from_schema(name, text, None, call, provides=provides, **options)


def _hand_off(
    request: HandoffRequest, name: str, step: StepContext, *, in_dialogue: bool
) -> ResultWithState:
    """Build the result of a step whose agent handed the request over.

    The recipient is another agent or the planner.
    """
    if not in_dialogue:
        raise CapabilityError(
            f"The agent {name!r} cannot hand over to {request.to or 'the planner'!r}: it keeps no"
            " dialogue.",
            fix="Pass keeps_dialogue=True to agent_capability, and plan the capability.",
        )
    propagate_labels(request.labels)
    plan = handoff_plan(TurnView(step.state), step.planned_step["context_key"], request)
    text = f"Handed over to {request.to or 'the planner'}: {request.task or step.task}"
    return ResultWithState({"output": text}, {DIALOGUE_KEY: None, PLAN_KEY: plan})


def _get_default_name(graph: Any, output: type[CapabilityContext]) -> str:
    graph_name = getattr(graph, "name", None)
    return (
        graph_name
        if graph_name not in (None, "LangGraph")
        else f"{output.CONTEXT_TYPE.lower()}_graph"
    )


def _as_subgraph(graph: Any, subject: str) -> Any:
    """Return a copy of a graph that stores its checkpoints in the thread of the current step."""
    if not isinstance(graph, Pregel):
        raise ConfigurationError(
            f"{subject} is a {type(graph).__name__}, not a compiled graph.",
            fix="Pass builder.compile().",
        )
    reject_breakpoints(graph, subject)
    return graph.copy({"checkpointer": None})


def _check_keys(state_keys: list[str], fields: list[str], name: str, direction: str) -> None:
    if missing := [field for field in fields if field not in state_keys]:
        raise ConfigurationError(
            f"The graph {name!r} has no {direction} key {', '.join(map(repr, missing))}. Its "
            f"{direction} keys are {sorted(state_keys)}.",
            fix="Use context types whose fields are keys of the graph's state.",
        )
