"""A workflow that goes from state to state, as what each gave says."""

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
    published_values,
    run_node,
)

Guard = Callable[[NodeResult], Any]


class _State(NamedInputs, WorkflowOutput):
    """What a run has done so far."""

    path: NotRequired[Annotated[list[str], lambda old, new: new]]
    heard: NotRequired[dict[str, str]]


class StateMachineWorkflow(BaseWorkflow):
    """States, and rules that say which comes next.

    Each state is a node of the graph: a thread stands where its last run stopped, and a new run
    starts at the start. The agent of a state is given the task, and in its context
    ``last_output`` and the outputs of earlier states by name. Of a state that failed only a rule
    with a guard leads on. The run is done in a terminal state, or in one
    without rules; the cap, and a state none of whose rules fits, end it without success.

    Args:
        states: Who works in each state; a ``WorkflowNode`` maps inputs and outputs.
        transitions: The rules of each state, asked in order: a guard, which is told what the state
            gave (``None`` for always), and the next state.
        initial_state: Where it starts.
        terminal_states: Where it ends; nobody works there.
        state_store: Told where each run stands, under ``workflow:<name>:<execution_id>``: an
            object with ``async set(key, value)``.
        max_transitions: How often it may go on.
        services: What capabilities and tools among the states run with.
        name: Name of the graph.

    Raises:
        ConfigurationError: A rule leads to a state that there is not; the cap is below 1.

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
        self._states = {state: _as_node(state, agent) for state, agent in states.items()}
        named = [[*node.outputs_map.values()] or [name] for name, node in self._states.items()]
        self._published_names = {LAST_OUTPUT, *(name for names in named for name in names)}
        self._transitions = {state: list(rules) for state, rules in transitions.items()}
        self._initial_state = initial_state
        self._terminal_states = frozenset(terminal_states)
        self._store = state_store
        self._max_transitions = max_transitions
        if max_transitions < 1:
            raise ConfigurationError(
                f"max_transitions is {max_transitions!r}.", fix="Give at least 1."
            )
        self._check_transitions()

    def _check_transitions(self) -> None:
        known = {*self._states, *self._terminal_states}
        if odd := [state for state in self._states if not is_valid_node_name(state)]:
            raise ConfigurationError(
                f"No node of a graph can be called {', '.join(map(repr, odd))}.",
                fix="Use letters, digits and underscores, and no '__' around them.",
            )
        named = [("the initial state", self._initial_state)]
        named += [("a rule's own state", state) for state in self._transitions]
        for state, rules in self._transitions.items():
            named += [(f"a rule of {state!r}", following) for _, following in rules]
        for where, state in named:
            if state not in known:
                raise ConfigurationError(
                    f"There is no state {state!r}, which is {where}.",
                    fix=f"The states are {', '.join(sorted(known))}.",
                )

    @validate_arguments
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Return the workflow as a graph; see :meth:`BaseWorkflow.compile`."""
        builder = StateGraph(_State, input_schema=NamedInputs, output_schema=WorkflowOutput)
        first = "__begin__" if "start" in self._states else "start"
        builder.add_node(
            first, self._start_run, destinations=(self._node_name(self._initial_state),)
        )
        builder.add_edge(START, first)
        for state, node in self._states.items():
            if state in self._terminal_states:
                continue
            ways = dict.fromkeys(
                self._node_name(after) for _, after in self._transitions.get(state, ())
            )
            builder.add_node(state, self._build_node(node), destinations=(*ways, END))
        return compile_graph(builder, checkpointer=checkpointer, name=self.name, **options)

    def _node_name(self, state: str) -> str:
        return END if state in self._terminal_states else state

    async def _start_run(self, state: _State) -> Command[Any]:
        # A thread may hold what an earlier run left.
        fresh = {
            "output": "",
            "success": True,
            "error": None,
            "outputs": {},
            "path": [self._initial_state],
            "heard": {},
        }
        return Command(
            update={**fresh, "metadata": self._progress([self._initial_state])},
            goto=self._node_name(self._initial_state),
        )

    def _progress(self, path: list[str]) -> dict[str, Any]:
        return {"state": path[-1], "path": path, "transitions": len(path) - 1}

    def _build_node(self, node: WorkflowNode) -> Any:
        graph = self.compile_node(node)

        async def run(state: _State) -> Command[Any]:
            outputs = dict(state.get("outputs") or {})
            known = {**(state.get("inputs") or {}), "task": state["task"]}
            # A state that comes round finds its mapped inputs empty the first time.
            known |= dict.fromkeys({*node.inputs_map.values()} & self._published_names)
            for name, found in outputs.items():
                known |= published_values(name, found)
            if len(state["path"]) > 1:
                known[LAST_OUTPUT] = state["output"]
            before = state.get("heard") or {}
            more = {*find_used_names(node, graph, known)} - {"task"}
            with label_scope({}) as told:
                labels = before if more else {}
                found = await run_node(node, graph, known, labels, self.services)
            heard = {**before, **told}
            propagate_labels(heard)
            following, error = await self._choose_next(node.node_id, found, len(state["path"]) - 1)
            path = [*state["path"], *([following] if following else [])]
            update: dict[str, Any] = {
                "output": found["output"] if found["success"] else state["output"],
                "outputs": {**outputs, node.node_id: found},
                "path": path,
                "heard": heard,
                "metadata": self._progress(path),
                "success": error is None,
                "error": error,
            }
            if self._store is not None:
                run_id = current_configurable().get("thread_id")
                await self._store.set(f"workflow:{self.name}:{run_id}", update["metadata"])
            return Command(
                update=update, goto=END if following is None else self._node_name(following)
            )

        return run

    async def _choose_next(
        self, state: str, output: NodeOutput, transition_count: int
    ) -> tuple[str | None, str | None]:
        """Return the next state, and why the run ends without success."""
        rules = self._transitions.get(state, [])
        why = None if output["success"] else f"{state}: {output['error']}"
        try:
            for guard, following in rules:
                if (guard is None and why) or not await evaluate_condition(guard, output):
                    continue
                if (
                    transition_count + 1 >= self._max_transitions
                    and following not in self._terminal_states
                ):
                    told = f"max_transitions={self._max_transitions} reached in {state!r}"
                    return None, f"{told}; {following!r} would be next."
                return following, None
        except CapgraphError as exc:
            return None, why or f"{state}: {exc}"
        if why or not rules:
            return None, why
        return None, f"{state}: none of its rules fits."


def _as_node(state: str, agent: Any) -> WorkflowNode:
    """Return the node of a state.

    Raises:
        ConfigurationError: It is a node of another name.
    """
    node = agent if isinstance(agent, WorkflowNode) else WorkflowNode(state, agent)
    if node.node_id != state:
        raise ConfigurationError(
            f"The state {state!r} is a node called {node.node_id!r}.",
            fix=f"Write WorkflowNode({state!r}, …).",
        )
    return node
