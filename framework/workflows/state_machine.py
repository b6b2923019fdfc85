"""State machine workflows, whose transitions depend on the output of each state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NotRequired

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from capgraph.base.errors import CapgraphError, ConfigurationError
from capgraph.base.ports import KeyValueStore
from capgraph.base.spec import is_valid_node_name
from capgraph.base.task_schemas import NamedInputs
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import label_scope
from capgraph.engine.sync_graph import compile_graph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import Checkpointer
from capgraph.pipeline.run_config import current_configurable
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.workflows.inputs import LAST_OUTPUT, WorkflowNode, find_used_names
from capgraph.workflows.nodes import (
    BaseWorkflow,
    NodeOutput,
    NodeResult,
    WorkflowGraph,
    WorkflowOutput,
    evaluate_condition,
    get_published_values,
    run_node,
)

Guard = Callable[[NodeResult], Any]


class _State(NamedInputs, WorkflowOutput):
    """State of a state machine's graph."""

    path: NotRequired[Annotated[list[str], lambda old, new: new]]
    heard: NotRequired[dict[str, str]]


class StateMachineWorkflow(BaseWorkflow):
    """Workflow of states and transitions between them.

    Each state is a node of the graph. A resumed thread continues in its last state; a new run
    starts in the initial state. The agent of a state receives the task and, in its context,
    ``last_output`` and the outputs of earlier states by name.

    After a failed state, only transitions with a guard apply. The run succeeds in a terminal state
    or in a state without transitions. It fails at the limit, or if no transition applies.

    Args:
        states: Agent of each state. A ``WorkflowNode`` maps inputs and outputs.
        transitions: Transitions of each state in order: a guard function, which receives the
            state's result (None for always), and the next state.
        initial_state: State in which a run starts.
        terminal_states: States in which a run ends. They have no agent.
        state_store: Store for the current state of each run, under
            ``workflow:<name>:<execution_id>``: an object with ``async set(key, value)``.
        max_transitions: Maximum number of transitions in a run.
        services: Services for the capabilities and tools among the states.
        name: Name of the graph.

    Raises:
        ConfigurationError: A transition names an unknown state, or ``max_transitions`` is below 1.

    >>> import asyncio
    >>> async def draft(task): return "too short"
    >>> async def mend(task): return "long enough"
    >>> flow = StateMachineWorkflow(
    ...     {"draft": draft, "mend": mend},
    ...     {"draft": [(lambda r: "short" in r.output, "mend"), (None, "END")],
    ...      "mend": [(None, "END")]},
    ...     "draft", {"END"},
    ... )
    >>> asyncio.run(flow.run({"task": "Write"})).metadata["path"]
    ['draft', 'mend', 'END']
    """

    @validate_arguments
    def __init__(
        self,
        states: Mapping[str, Any],
        transitions: Mapping[str, Sequence[tuple[Guard | None, str]]],
        initial_state: str,
        terminal_states: Collection[str] = (),
        state_store: KeyValueStore | None = None,
        max_transitions: int = 50,
        *,
        services: Services | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(services=services, name=name)
        self._states = {state: _create_node(state, agent) for state, agent in states.items()}
        named = [[*node.outputs_map.values()] or [name] for name, node in self._states.items()]
        self._published_names = {LAST_OUTPUT, *(name for names in named for name in names)}
        self._transitions = {state: list(rules) for state, rules in transitions.items()}
        self._initial_state = initial_state
        self._terminal_states = frozenset(terminal_states)
        self._store = state_store
        self._max_transitions = max_transitions
        if max_transitions < 1:
            raise ConfigurationError(
                f"max_transitions is {max_transitions!r}: it must be at least 1.",
                fix="Pass 1 or more.",
            )
        self._check_transitions()

    def _check_transitions(self) -> None:
        known = {*self._states, *self._terminal_states}
        if invalid := [state for state in self._states if not is_valid_node_name(state)]:
            raise ConfigurationError(
                f"The state names {', '.join(map(repr, invalid))} are invalid: LangGraph does"
                " not accept them as node names.",
                fix="Use letters, digits, and underscores, without '__' at the start or end.",
            )
        used = [("the initial state", self._initial_state)]
        used += [("a source of transitions", state) for state in self._transitions]
        for state, rules in self._transitions.items():
            used += [(f"a target of {state!r}", target) for _, target in rules]
        for role, state in used:
            if state not in known:
                raise ConfigurationError(
                    f"The state {state!r} is unknown: it is used as {role}.",
                    fix=f"Use one of the states {', '.join(sorted(known))}.",
                )

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Compile the state machine to a LangGraph graph. See :meth:`BaseWorkflow.compile`."""
        builder = StateGraph(_State, input_schema=NamedInputs, output_schema=WorkflowOutput)
        first = "__begin__" if "start" in self._states else "start"
        builder.add_node(
            first, self._start_run, destinations=(self._get_node_name(self._initial_state),)
        )
        builder.add_edge(START, first)
        for state, node in self._states.items():
            if state in self._terminal_states:
                continue
            targets = dict.fromkeys(
                self._get_node_name(target) for _, target in self._transitions.get(state, ())
            )
            builder.add_node(state, self._build_node(node), destinations=(*targets, END))
        return compile_graph(builder, checkpointer=checkpointer, name=self.name, **options)

    def _get_node_name(self, state: str) -> str:
        return END if state in self._terminal_states else state

    async def _start_run(self, state: _State) -> Command[Any]:
        # The thread may contain values of an earlier run.
        defaults = {
            "output": "",
            "success": True,
            "error": None,
            "outputs": {},
            "path": [self._initial_state],
            "heard": {},
        }
        return Command(
            update={**defaults, "metadata": self._create_progress([self._initial_state])},
            goto=self._get_node_name(self._initial_state),
        )

    def _create_progress(self, path: list[str]) -> dict[str, Any]:
        return {"state": path[-1], "path": path, "transitions": len(path) - 1}

    def _build_node(self, node: WorkflowNode) -> Any:
        graph = self.compile_node(node)

        async def run(state: _State) -> Command[Any]:
            outputs = dict(state.get("outputs") or {})
            available = {**(state.get("inputs") or {}), "task": state["task"]}
            # In a cycle, mapped inputs have no value the first time.
            available |= dict.fromkeys({*node.inputs_map.values()} & self._published_names)
            for name, output in outputs.items():
                available |= get_published_values(name, output)
            if len(state["path"]) > 1:
                available[LAST_OUTPUT] = state["output"]
            known_labels = state.get("heard") or {}
            used_names = {*find_used_names(node, graph, available)} - {"task"}
            with label_scope({}) as new_labels:
                labels = known_labels if used_names else {}
                output = await run_node(node, graph, available, labels, self.services)
            all_labels = {**known_labels, **new_labels}
            propagate_labels(all_labels)
            next_state, error = await self._choose_next(
                node.node_id, output, len(state["path"]) - 1
            )
            path = [*state["path"], *([next_state] if next_state else [])]
            update: dict[str, Any] = {
                "output": output["output"] if output["success"] else state["output"],
                "outputs": {**outputs, node.node_id: output},
                "path": path,
                "heard": all_labels,
                "metadata": self._create_progress(path),
                "success": error is None,
                "error": error,
            }
            if self._store is not None:
                run_id = current_configurable().get("thread_id")
                await self._store.set(f"workflow:{self.name}:{run_id}", update["metadata"])
            return Command(
                update=update, goto=END if next_state is None else self._get_node_name(next_state)
            )

        return run

    async def _choose_next(
        self, state: str, output: NodeOutput, transition_count: int
    ) -> tuple[str | None, str | None]:
        """Choose the next state of the state machine.

        Returns None at the end of the run, with the reason if the run did not succeed.

        If there is none, returns None and the reason why the run ends without success.
        """
        rules = self._transitions.get(state, [])
        error = None if output["success"] else f"{state}: {output['error']}"
        try:
            for guard, target in rules:
                if (guard is None and error) or not await evaluate_condition(guard, output):
                    continue
                if (
                    transition_count + 1 >= self._max_transitions
                    and target not in self._terminal_states
                ):
                    message = f"max_transitions={self._max_transitions} reached in {state!r}"
                    return None, f"{message} before {target!r}."
                return target, None
        except CapgraphError as exc:
            return None, error or f"{state}: {exc}"
        if error or not rules:
            return None, error
        return None, f"{state}: none of its transitions applies."


def _create_node(state: str, agent: Any) -> WorkflowNode:
    """Create the workflow node for a state of a state machine.

    Raises:
        ConfigurationError: The ID of the node differs from the name of the state.
    """
    node = agent if isinstance(agent, WorkflowNode) else WorkflowNode(state, agent)
    if node.node_id != state:
        raise ConfigurationError(
            f"The node of the state {state!r} is named {node.node_id!r}, but the names must be"
            " equal.",
            fix=f"Write WorkflowNode({state!r}, …).",
        )
    return node
