"""Whatever is given to a public constructor, function or method: what does not fit is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from capgraph import (
    BaseInfrastructureNode,
    CapabilityContext,
    Registry,
    bind,
    build_graph,
    capability_node,
    infrastructure_node,
    signal,
)
from capgraph import adapters as a
from capgraph import agents as g
from capgraph import selection as r
from capgraph import stores as s
from capgraph import workflows as w
from capgraph.base.errors import CapgraphError, ConfigurationError, ValidationError
from capgraph.graph import wake
from capgraph.planning import Plan, Recipe, check_plan
from capgraph.testing import ScriptedModel

ODD: list[Any] = [
    None,
    5,
    -1,
    0.5,
    float("nan"),
    True,
    "",
    "x",
    b"x",
    [],
    ["x"],
    {},
    {"a": 1},
    object(),
]


class Into(CapabilityContext):
    n: int


class Given(TypedDict):
    n: int


@capability_node
async def cap(n: int = 1) -> Into:
    """Give a number."""
    return Into(n=n)


class Monitor(BaseInfrastructureNode):
    name = "monitoring"
    description = "Monitor"

    @staticmethod
    async def execute(state: Any) -> dict[str, Any]:
        return {}


def add(n: int) -> int:
    """Add."""
    return n


async def up(task: str) -> str:
    return task.upper()


async def embed(text: str) -> list[float]:
    return [1.0, 0.5]


async def found() -> Any:
    return {"a": up}, {"a": "x"}


def model(*said: Any) -> ScriptedModel:
    return ScriptedModel(responses=list(said or ["It is 4."] * 9))


def registry() -> Registry:
    made = Registry()
    made.register(cap)
    return made


def team() -> Any:
    return g.SupervisorOrchestrator(model(), {"a": up})


def node(**more: Any) -> Any:
    return w.DAGWorkflow([w.WorkflowNode(**{"node_id": "a", "agent": up, **more})]).run(
        {"task": "x"}
    )


def edge(**more: Any) -> Any:
    nodes = [w.WorkflowNode("a", up), w.WorkflowNode("b", up)]
    made = w.DAGWorkflow(nodes, [w.WorkflowEdge(**{"source": "a", "target": "b", **more})])
    return made.run({"task": "x"})


def states(**more: Any) -> Any:
    given = {"states": {"a": up}, "transitions": {"a": [(None, "z")]}, "initial_state": "a"}
    return w.StateMachineWorkflow(**{**given, "terminal_states": {"z"}, **more}).run({"task": "x"})


def events(name: Any = "task", handler: Any = up, gives: Any = None, **more: Any) -> Any:
    flow = w.EventDrivenWorkflow(**more)
    flow.on(name, handler, gives=gives)
    return flow.run({"task": "x"})


def agent(kind: Any, **more: Any) -> Any:
    return kind(**more).execute("go")


async def discovery(fn: Any = found, interval: Any = 30, supervisor: Any = None) -> None:
    made = g.AgentDiscoveryBehavior(fn, interval)
    await made.start(team() if supervisor is None else supervisor)
    try:
        await made.refresh_once()
    finally:
        await made.stop()


async def stored(kind: Any, **more: Any) -> None:
    async with kind(**more) as store:
        await store.set("k", 1)


async def saved(store: Any, **more: Any) -> None:
    await s.CheckpointManager(store).save(**{"agent_id": "a", "state": {}, **more})


async def looked(store: Any, name: str, *given: Any) -> None:
    await getattr(s.CheckpointManager(store), name)(*given)


async def resumed(manager: Any, **more: Any) -> None:
    made = g.ReActAgent(model(), checkpoint_manager=manager)
    run = (await made.execute("go")).metadata["execution_id"]
    await made.resume_from(**{"execution_id": run, **more})


async def routed(router: Any, request: Any = None, **more: Any) -> None:
    known = {"input": "x", "available_agents": ["a", "b"], **more}
    if isinstance(router, r.SemanticRouter):
        await router.add_route("a", "d")
    await router.route(r.RoutingRequest(**known) if request is None else request)


async def near(name: Any = "a", description: Any = "d", **more: Any) -> None:
    router = r.SemanticRouter(**{"embed_fn": embed, **more})
    await router.add_route(name, description)
    await routed(router)


def ruled(condition: Any, target: Any) -> Any:
    router = r.RuleBasedRouter()
    router.add_rule(condition, target)
    return routed(router)


def graph() -> Any:
    return (
        StateGraph(Given).add_node("n", lambda _: {"n": 1}).add_edge(START, "n").compile(name="g")
    )


CHOICE = {"done": True, "member": "", "task": "", "answer": "x"}
AROUND = ("tools", "behaviors", "services", "checkpoint_manager", "state_store", "agent_id")
OPERATOR = ("behaviors", "policies", "permissions", "budget", "prices", "answer_gate", "sinks", "audit", "capacity", "system_prompt", "embeddings", "clock", "selector", "extractor", "planner", "answerer", "answer_type")  # fmt: skip
TEAM = (*AROUND[1:], "router")


def write(**more: Any) -> Any:
    known = {"key": "k", "value": 1, "author": "me", **more}
    return g.Blackboard(s.InMemoryStateStore()).write(**known)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = {
    # what is called; what it is given; what else is given oddly
    "tool_capability": (a.tool_capability, {"tool": add}, ("provides", "effect", "permission", "name")),
    "graph_capability": (a.graph_capability, {"graph": graph(), "input": Into, "output": Into}, ("name",)),
    "agent_capability": (a.agent_capability, {"agent": up}, ("name", "description", "services")),
    "remote_capability": (a.remote_capability, {"agent": "http://x.example"}, ("name", "headers")),
    "mcp_capabilities": (a.mcp_capabilities, {}, ("server",)),
    "as_tool": (a.as_tool, {"capability": cap}, ("services",)),
    "as_mcp_server": (a.as_mcp_server, {"capabilities": [cap]}, ("name", "checkpointer")),
    "react": (lambda **k: agent(g.ReActAgent, **{"model": model(), **k}), {}, (*AROUND, "model", "max_steps", "system_prompt", "response_format", "memory")),
    "plan": (lambda **k: agent(g.PlanExecuteAgent, **{"model": model(), **k}), {}, (*AROUND, "model", "max_plan_steps", "max_tool_calls_per_step")),
    "thought": (lambda **k: agent(g.ChainOfThoughtAgent, **{"model": model(), **k}), {}, (*AROUND[1:], "model", "system_prompt")),
    "reflexion": (lambda **k: agent(g.ReflexionAgent, **{"inner_agent": g.ReActAgent(model()), **k}), {}, ("inner_agent", "max_reflections", *AROUND[1:])),
    "execute": (lambda task: g.ReActAgent(model()).execute(task), {"task": "x"}, ()),
    "stream": (lambda task: g.ReActAgent(model()).stream_execute(task), {"task": "x"}, ()),
    "compile": (lambda saver: g.ReActAgent(model()).compile(saver), {"saver": None}, ()),
    "resume by saver": (lambda **k: resumed(InMemorySaver(), **k), {}, ("execution_id", "from_step")),
    "resume by store": (lambda **k: resumed(s.CheckpointManager(s.InMemoryStateStore()), **k), {}, ("execution_id", "from_step")),
    "memory": (g.Memory, {}, ("window", "max_tokens", "max_facts")),
    "handoff": (g.handoff, {"to": "a"}, ("update",)),
    "agent_card": (a.agent_card, {}, ("url",)),
    "due": (s.list_suspended_threads, {"saver": InMemorySaver()}, ("now",)),
    "wake": (wake, {"graph": build_graph([cap], checkpointer=InMemorySaver()), "thread": "1"}, ()),
    "signal": (signal, {"graph": build_graph([cap], checkpointer=InMemorySaver()), "thread": "1", "key": "k"}, ("value",)),
    "from_turn": (Recipe.from_turn, {"values": {}, "name": "x", "catalog": registry()}, ("parameters",)),
    "supervisor": (lambda **k: agent(g.SupervisorOrchestrator, **{"model": model(), "agents": {"a": up}, **k}), {}, ("model", "agents", "agent_descriptions", *TEAM)),
    "row": (lambda **k: agent(g.PipelineOrchestrator, **{"agents": [up], **k}), {}, ("agents", "pass_context", *TEAM)),
    "debate": (lambda **k: agent(g.DebateOrchestrator, **{"agents": [up], "synthesis_gateway": model(), **k}), {}, ("agents", "debate_rounds", "synthesis_gateway", *TEAM)),
    "swarm": (lambda **k: agent(g.SwarmOrchestrator, **{"model": model(CHOICE, CHOICE), "agents": {"a": up}, **k}), {}, ("model", "agents", "max_rounds", *TEAM)),
    "discovery": (discovery, {}, ("fn", "interval", "supervisor")),
    "discovered": (lambda gave: discovery(lambda: gave), {"gave": ({}, {})}, ()),
    "board": (lambda **k: g.Blackboard(**{"store": s.InMemoryStateStore(), **k}).keys(), {}, ("store", "namespace", "ttl")),
    "write": (write, {}, ("key", "value", "author")),
    **{f"board.{name}": (lambda key, name=name: getattr(g.Blackboard(s.InMemoryStateStore()), name)(key), {"key": "k"}, ()) for name in ("read", "read_entry", "delete")},
    "memory store": (lambda **k: stored(s.InMemoryStateStore, **k), {}, ("key_prefix", "clock")),
    "postgres": (s.PostgresStateStore, {"url": "postgresql://x/y"}, ()),
    "redis": (s.RedisStateStore, {"url": "redis://x"}, ()),
    "factory": (s.StateStoreFactory.create, {"backend": "memory"}, ()),
    "manager": (s.CheckpointManager, {"store": InMemorySaver()}, ("default_ttl",)),
    **{f"{kind}.save": (lambda make=make, **k: saved(make(), **k), {}, ("agent_id", "state", "execution_id", "metadata", "ttl")) for kind, make in (("saver", InMemorySaver), ("store", s.InMemoryStateStore))},
    **{f"{kind}.{name}": (lambda given, make=make, name=name: looked(make(), name, given), {"given": "x"}, ()) for name in ("load", "list", "list_by_execution", "load_latest_for_execution") for kind, make in (("saver", InMemorySaver), ("store", s.InMemoryStateStore))},
    "from_dict": (s.ConversationState.from_dict, {"data": {"session_id": "1"}}, ()),
    "message": (lambda **k: s.ConversationState("1").add_message(**{"role": "user", "content": "x", **k}), {}, ("role", "content")),
    "weights": (lambda **k: routed(r.LoadBalancingRouter(**k)), {}, ("agent_weights", "load")),
    "weight": (lambda weight: routed(r.LoadBalancingRouter({"a": weight})), {"weight": 1}, ()),
    "load": (lambda gives: routed(r.LoadBalancingRouter(load=lambda _: gives)), {"gives": 1}, ()),
    "chooser": (lambda **k: routed(r.LLMRouter(**{"model": model({"target": "q"}), **k})), {}, ("model", "agent_descriptions", "fallback_target")),
    "near": (near, {}, ("name", "description", "embed_fn", "fallback_target", "similarity_threshold")),
    "embedded": (lambda gives: near(embed_fn=lambda _: gives), {"gives": [1.0]}, ()),
    "rules": (lambda rules: routed(r.RuleBasedRouter(rules)), {"rules": []}, ()),
    "rule": (ruled, {"condition": lambda _: True, "target": "a"}, ()),
    "request": (lambda **k: routed(r.RuleBasedRouter(), **k), {}, ("request", "input", "available_agents")),
    "dag": (lambda **k: w.DAGWorkflow(**{"nodes": [w.WorkflowNode("a", up)], **k}).run({"task": "x"}), {}, ("nodes", "edges", "services", "name")),
    "node": (node, {}, ("node_id", "agent", "inputs_map", "outputs_map")),
    "edge": (edge, {}, ("source", "target", "condition")),
    "run": (lambda given: w.DAGWorkflow([w.WorkflowNode("a", up)]).run(given), {"given": {"task": "x"}}, ()),
    "states": (states, {}, ("states", "transitions", "initial_state", "terminal_states", "state_store", "max_transitions", "services", "name")),
    "rules of a state": (lambda rule: states(transitions={"a": [rule]}), {"rule": (None, "z")}, ()),
    "events": (events, {}, ("name", "handler", "gives", "max_events", "terminal_event", "services")),
    "event": (lambda event: w.EventDrivenWorkflow().run({"event": event}), {"event": {"name": "x"}}, ()),
    "load_workflow": (w.load_workflow, {}, ("file",)),
    "step": (lambda **k: Plan().step(**{"capability": cap, **k}).to_dict(), {}, ("capability", "key", "parameters", "inputs")),
    "for_each": (lambda of: Plan().step(cap).for_each(of), {"of": "a.b"}, ()),
    "when": (lambda condition: Plan().step(cap).when(condition), {"condition": {"of": "a"}}, ()),
    "check": (lambda plan: check_plan(plan, registry()), {"plan": {"steps": []}}, ()),
    **{name: (lambda capabilities, make=make, **k: make(capabilities, **k), {"capabilities": [cap]}, ("model", "settings", "checkpointer", "state_schema", *OPERATOR, *more)) for name, make, more in (("build_graph", build_graph, ("store", "context_schema")), ("bind", bind, ()))},
    "registry": (Registry, {}, ("infrastructure", "provided_types")),
    **{f"registry.{name}": (lambda given, name=name: getattr(registry(), name)(given), {"given": "x"}, ()) for name in ("register", "discover", "unregister", "capability", "with_", "declare_provided")},
    "registry.configure": (lambda **k: registry().configure(**k), {}, ("include", "exclude", "override")),
    "without": (lambda without: registry().with_(without=without), {"without": ()}, ()),
    "services.node": (lambda capability: bind([cap]).node(capability), {"capability": cap}, ()),
    "command": (lambda **k: build_graph([cap]).ainvoke(Command(**k)), {}, ("update", "goto", "graph")),
    "capability_node": (capability_node, {"target": cap}, ()),
    "infrastructure_node": (lambda cls: infrastructure_node(cls=cls), {"cls": Monitor}, ()),
    "node's behaviors": (lambda behaviors: infrastructure_node(type("Odd", (Monitor,), {"behaviors": behaviors})), {"behaviors": ()}, ()),
    "check a step": (lambda step: check_plan({"steps": [step]}, registry()), {"step": {}}, ()),
}  # fmt: skip


async def ended(made: Any) -> None:
    if inspect.isawaitable(made):
        await made
    elif inspect.isasyncgen(made):
        async for _ in made:
            pass


@pytest.mark.parametrize("name", CALLS)
async def test_what_does_not_fit_is_told(name: str) -> None:
    call, given, more = CALLS[name]
    bare = []
    for argument in dict.fromkeys((*given, *more)):
        for odd in ODD:
            try:
                await ended(call(**{**given, argument: odd}))
            except CapgraphError as exc:
                assert str(exc).strip(), (argument, odd)  # noqa: PT017
            except ValueError as exc:
                if "Fix:" not in str(exc):
                    bare.append((argument, odd, repr(exc)[:200]))
            except Exception as exc:
                bare.append((argument, odd, repr(exc)[:200]))
    assert not bare, bare


def test_what_is_wrong_is_named_with_what_to_give_instead() -> None:
    for make, told in (
        (
            lambda: w.DAGWorkflow(5),
            r"DAGWorkflow: nodes is 5, .*Fix: Pass Iterable\[WorkflowNode\]",
        ),  # type: ignore[arg-type]
        (lambda: capability_node(print), "is not a function"),
        (lambda: g.ReActAgent(model(), services=5), "services is 5, not Services"),
        (lambda: a.as_mcp_server(5), "capabilities is 5"),  # type: ignore[arg-type]
        (lambda: r.LoadBalancingRouter({"a": "x"}), r"\{'a': 'x'\}, not Mapping\[str, float\]"),  # type: ignore[dict-item]
    ):
        with pytest.raises(CapgraphError, match=told):
            make()


STATE = ("get_state", "get_state_history", "update_state")


@pytest.mark.parametrize("config", [None, {}, {"configurable": None}, {"configurable": {}}])
@pytest.mark.parametrize("name", [*STATE, *(f"a{name}" for name in STATE)])
@pytest.mark.may_block
async def test_a_state_without_a_thread_is_told(name: str, config: Any) -> None:
    graph: Any = build_graph([cap], checkpointer=InMemorySaver())
    more = ({"messages": []},) if "update" in name else ()
    with pytest.raises(CapgraphError, match="thread_id is missing"):
        await ended(getattr(graph, name)(config, *more))
    mine = graph.with_config({"configurable": {"thread_id": "1"}})
    await ended(getattr(mine, name)(config, *more))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"messages": [("user", "half \ud800 of one")]}, "Invalid messages.*surrogates"),
        (Command(resume={}), "does not identify a question"),
        (Command(resume={1: "approve"}), "does not identify a question"),
    ],
)
async def test_what_cannot_be_kept_or_names_nothing_is_told(given: Any, told: str) -> None:
    graph: Any = build_graph([cap], checkpointer=InMemorySaver())
    with pytest.raises(ValidationError, match=told):
        await graph.ainvoke(given, {"configurable": {"thread_id": "1"}})


@pytest.mark.parametrize("given", [None, Command(resume="yes"), {"messages": [("user", "Go")]}])
async def test_a_run_without_a_thread_is_told(given: Any) -> None:
    graph: Any = build_graph([cap], checkpointer=InMemorySaver())
    with pytest.raises(CapgraphError, match="thread_id is missing"):
        await graph.ainvoke(given)


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (
            {"control_budget": {"plans": "x"}},
            "control_budget.plans: Input should be a valid integer",
        ),
        ({"control_budget": 5}, "control_budget"),
        ({"capability_context_data": {"W": 5}}, "capability_context_data.W"),
        ({"messages": [5]}, "Invalid messages"),
        ({"nope": 1}, r"unknown state keys \['nope'\]"),
        ({"planning_accepted": "0" * 32}, "planning_accepted"),
        ({"control_goto": "cap"}, "control_goto"),
    ],
)
async def test_what_update_state_cannot_write_is_told_and_changes_nothing(
    update: Any, told: str
) -> None:
    graph: Any = build_graph([cap], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    await graph.ainvoke({"messages": [("user", "Go")]}, config)
    before = (await graph.aget_state(config)).values
    for node in (None, "orchestrator"):
        with pytest.raises(CapgraphError, match=told):
            await graph.aupdate_state(config, update, as_node=node)
    assert (await graph.aget_state(config)).values == before


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
async def test_what_is_no_server_is_told_before_anything_is_asked_of_it(odd: Any) -> None:
    pytest.importorskip("mcp")
    pytest.importorskip("a2a")
    with pytest.raises(ConfigurationError, match="is not an MCP server"):
        await a.mcp_capabilities(odd)
    with pytest.raises(ConfigurationError, match="is not a remote agent"):
        a.remote_capability(odd)
