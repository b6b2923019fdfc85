"""A workflow that goes from state to state, as what each gave says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NotRequired

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from capgraph.base.checked import checked
from capgraph.base.errors import CapgraphError, ConfigurationError
from capgraph.base.ports import KeyValueStore
from capgraph.base.spec import can_name_a_node
from capgraph.base.task import NamedInputs
from capgraph.engine.envelopes import hearing
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import compiled
from capgraph.langgraph_compat import Checkpointer
from capgraph.pipeline.job import hear
from capgraph.pipeline.run_config import configurable
from capgraph.workflows.inputs import LAST_OUTPUT, WorkflowNode, names_used
from capgraph.workflows.nodes import (
    BaseWorkflow,
    NodeResult,
    Plain,
    WorkflowGraph,
    WorkflowOutput,
    given_by,
    holds,
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

    @checked
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
        self._gives = {LAST_OUTPUT, *(name for names in named for name in names)}
        self._rules = {state: list(rules) for state, rules in transitions.items()}
        self._start = initial_state
        self._terminal = frozenset(terminal_states)
        self._store = state_store
        self._max = max_transitions
        if max_transitions < 1:
            raise ConfigurationError(
                f"max_transitions is {max_transitions!r}.", fix="Give at least 1."
            )
        self._check()

    def _check(self) -> None:
        known = {*self._states, *self._terminal}
        if odd := [state for state in self._states if not can_name_a_node(state)]:
            raise ConfigurationError(
                f"No node of a graph can be called {', '.join(map(repr, odd))}.",
                fix="Use letters, digits and underscores, and no '__' around them.",
            )
        named = [("the initial state", self._start)]
        named += [("a rule's own state", state) for state in self._rules]
        for state, rules in self._rules.items():
            named += [(f"a rule of {state!r}", following) for _, following in rules]
        for where, state in named:
            if state not in known:
                raise ConfigurationError(
                    f"There is no state {state!r}, which is {where}.",
                    fix=f"The states are {', '.join(sorted(known))}.",
                )

    @checked
    def compile(self, checkpointer: Checkpointer = None, **options: Any) -> WorkflowGraph:
        """Return the workflow as a graph; see :meth:`BaseWorkflow.compile`."""
        builder = StateGraph(_State, input_schema=NamedInputs, output_schema=WorkflowOutput)
        first = "__begin__" if "start" in self._states else "start"
        builder.add_node(first, self._begin, destinations=(self._entry(self._start),))
        builder.add_edge(START, first)
        for state, node in self._states.items():
            if state in self._terminal:
                continue
            ways = dict.fromkeys(self._entry(after) for _, after in self._rules.get(state, ()))
            builder.add_node(state, self._node(node), destinations=(*ways, END))
        return compiled(builder, checkpointer=checkpointer, name=self.name, **options)

    def _entry(self, state: str) -> str:
        return END if state in self._terminal else state

    async def _begin(self, state: _State) -> Command[Any]:
        # A thread may hold what an earlier run left.
        fresh = {
            "output": "",
            "success": True,
            "error": None,
            "outputs": {},
            "path": [self._start],
            "heard": {},
        }
        return Command(
            update={**fresh, "metadata": self._told([self._start])}, goto=self._entry(self._start)
        )

    def _told(self, path: list[str]) -> dict[str, Any]:
        return {"state": path[-1], "path": path, "transitions": len(path) - 1}

    def _node(self, node: WorkflowNode) -> Any:
        graph = self.nested(node)

        async def run(state: _State) -> Command[Any]:
            outputs = dict(state.get("outputs") or {})
            known = {**(state.get("inputs") or {}), "task": state["task"]}
            # A state that comes round finds its mapped inputs empty the first time.
            known |= dict.fromkeys({*node.inputs_map.values()} & self._gives)
            for name, found in outputs.items():
                known |= given_by(name, found)
            if len(state["path"]) > 1:
                known[LAST_OUTPUT] = state["output"]
            before = state.get("heard") or {}
            more = {*names_used(node, graph, known)} - {"task"}
            with hearing({}) as told:
                labels = before if more else {}
                found = await run_node(node, graph, known, labels, self.services)
            heard = {**before, **told}
            hear(heard)
            following, error = await self._next(node.node_id, found, len(state["path"]) - 1)
            path = [*state["path"], *([following] if following else [])]
            update: dict[str, Any] = {
                "output": found["output"] if found["success"] else state["output"],
                "outputs": {**outputs, node.node_id: found},
                "path": path,
                "heard": heard,
                "metadata": self._told(path),
                "success": error is None,
                "error": error,
            }
            if self._store is not None:
                run_id = configurable().get("thread_id")
                await self._store.set(f"workflow:{self.name}:{run_id}", update["metadata"])
            return Command(update=update, goto=END if following is None else self._entry(following))

        return run

    async def _next(self, state: str, found: Plain, gone: int) -> tuple[str | None, str | None]:
        """Return the next state, and why the run ends without success."""
        rules = self._rules.get(state, [])
        why = None if found["success"] else f"{state}: {found['error']}"
        try:
            for guard, following in rules:
                if (guard is None and why) or not await holds(guard, found):
                    continue
                if gone + 1 >= self._max and following not in self._terminal:
                    told = f"max_transitions={self._max} reached in {state!r}"
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
