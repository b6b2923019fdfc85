"""Capabilities backed by compiled graphs and agents."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.adapters import agent_capability, graph_capability
from capgraph.adapters.task_graph import task_graph
from capgraph.base.errors import ConfigurationError
from capgraph.testing import FakeClock, ScriptedModel

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Order(CapabilityContext):
    amount: int


class Price(CapabilityContext):
    total: int
    payer: str = "nobody"


class State(TypedDict, total=False):
    amount: int
    total: int
    payer: str


@capability_node
async def order(amount: int = 3) -> Order:
    """Order something."""
    return Order(amount=amount)


class Pricing:
    """A graph of three nodes: it counts its runs, asks in the middle, and may fail at the end."""

    def __init__(self, *, asks: bool = True, failures: int = 0, **options: Any) -> None:
        self.ran: Counter[str] = Counter()
        self.failures = failures

        def add(state: State) -> State:
            self.ran["add"] += 1
            return {"total": state["amount"] * 2}

        def ask(state: State) -> State:
            self.ran["ask"] += 1
            return {"payer": interrupt(f"who pays {state['total']}?") if asks else "Ada"}

        def end(state: State) -> State:
            self.ran["end"] += 1
            if self.failures:
                self.failures -= 1
                raise ConnectionError("away")
            return {}

        builder = StateGraph(State).add_sequence([("add", add), ("ask", ask), ("end", end)])
        self.graph = builder.add_edge(START, "add").compile(name="pricing", **options)
        self.capability = graph_capability(self.graph, input=Order, output=Price)


def plan(*amounts: int, of: str = "pricing") -> dict[str, Any]:
    steps: list[Any] = []
    for number, amount in enumerate(amounts):
        orders = {"context_key": f"o{number}", "capability": "order"}
        steps.append({**orders, "parameters": {"amount": amount}})
        steps.append(
            {"context_key": f"p{number}", "capability": of, "inputs": [{"ORDER": f"o{number}"}]}
        )
    return {"messages": [("user", "go")], "planning_execution_plan": {"steps": steps}}


def asked(out: Any) -> list[Any]:
    return [question.value for question in out.get("__interrupt__", ())]


@pytest.mark.parametrize("saver", [None, True, False, InMemorySaver()])
async def test_interrupt_inside_a_graph_interrupts_the_step(saver: Any) -> None:
    pricing = Pricing(checkpointer=saver)
    graph = build_graph([order, pricing.capability], checkpointer=InMemorySaver())
    assert asked(await graph.ainvoke(plan(3), CONFIG)) == ["who pays 6?"]
    out = await graph.ainvoke(Command(resume="Ada"), CONFIG)
    assert out["capability_context_data"]["PRICE"] == {"p0": {"total": 6, "payer": "Ada"}}
    assert pricing.ran == {"add": 1, "ask": 2, "end": 1}


async def test_steps_are_resumed_by_key_in_any_order() -> None:
    pricing = Pricing()
    graph = build_graph([order, pricing.capability], checkpointer=InMemorySaver())
    assert asked(await graph.ainvoke(plan(3, 5), CONFIG)) == ["who pays 6?", "who pays 10?"]
    # Each has a namespace of its own, below that of its step.
    spaces = {
        str(found.config["configurable"]["checkpoint_ns"])
        for found in graph.checkpointer.list({"configurable": {"thread_id": "1"}})  # type: ignore[union-attr]
    }
    assert len([space for space in spaces if "|pricing:" in space]) == 2
    assert asked(await graph.ainvoke(Command(resume={"p1": "Bob"}), CONFIG)) == ["who pays 6?"]
    out = await graph.ainvoke(Command(resume={"p0": "Ada"}), CONFIG)
    found = out["capability_context_data"]["PRICE"]
    assert {key: data["payer"] for key, data in found.items()} == {"p0": "Ada", "p1": "Bob"}
    assert pricing.ran["add"] == 2
    assert asked(await graph.ainvoke(plan(3, 5), CONFIG)) == ["who pays 6?", "who pays 10?"]
    out = await graph.ainvoke(Command(resume={"p0": "Cid", "p1": "Dan"}), CONFIG)
    found = out["capability_context_data"]["PRICE"]
    assert {key: data["payer"] for key, data in found.items()} == {"p0": "Cid", "p1": "Dan"}


async def test_dictionary_answer_is_passed_unchanged() -> None:
    pricing = Pricing()
    graph = build_graph([order, pricing.capability], checkpointer=InMemorySaver())
    await graph.ainvoke(plan(3), CONFIG)
    out = await graph.ainvoke(Command(resume={"p7": "Ada"}), CONFIG)
    assert "payer" in str(out["execution_step_results"]["p0"]["error"])


async def test_retry_resumes_at_the_failed_node() -> None:
    pricing = Pricing(asks=False, failures=2)
    graph = build_graph(
        [order, pricing.capability], checkpointer=InMemorySaver(), clock=FakeClock()
    )
    out = await graph.ainvoke(plan(3), CONFIG)
    assert out["capability_context_data"]["PRICE"]["p0"] == {"total": 6, "payer": "Ada"}
    assert pricing.ran == {"add": 1, "ask": 1, "end": 3}


async def test_graph_stream_is_part_of_the_step() -> None:
    graph = build_graph([order, Pricing(asks=False).capability], checkpointer=InMemorySaver())
    seen = []
    async for space, _, part in graph.astream(
        plan(3), CONFIG, stream_mode=["updates"], subgraphs=True
    ):
        if len(space) == 2 and space[1].startswith("pricing:"):
            seen += [*part]
    assert seen == ["add", "ask", "end"]


async def test_graph_runs_without_checkpointer_and_with_run_context() -> None:
    def node(state: State, runtime: Runtime[Any]) -> State:
        return {"total": state["amount"], "payer": runtime.context["user"]}

    inner = StateGraph(State, context_schema=dict).add_sequence([("node", node)])
    capability = graph_capability(
        inner.add_edge(START, "node").compile(), input=Order, output=Price, name="pay"
    )
    graph = build_graph([order, capability], context_schema=dict)
    out = await graph.ainvoke(plan(3, of="pay"), context={"user": "Ada"})
    assert out["capability_context_data"]["PRICE"]["p0"] == {"total": 3, "payer": "Ada"}


def test_missing_state_keys_are_reported_at_creation() -> None:
    class Other(CapabilityContext):
        colour: str

    graph = Pricing().graph
    with pytest.raises(ConfigurationError, match="no input key 'colour'"):
        graph_capability(graph, input=Other, output=Price)
    with pytest.raises(ConfigurationError, match="no output key 'colour'"):
        graph_capability(graph, input=Order, output=Other)
    with pytest.raises(ConfigurationError, match=r"builder\.compile"):
        graph_capability(StateGraph(State), input=Order, output=Price)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "said"),
    [({}, "ended without the state keys total"), ({"total": "much"}, "not a valid Price: total")],
)
async def test_missing_output_key_fails_the_step(left: Any, said: str) -> None:
    inner = StateGraph(State).add_sequence([("node", lambda state: left)])
    capability = graph_capability(
        inner.add_edge(START, "node").compile(name="bad"), input=Order, output=Price
    )
    out = await build_graph([order, capability]).ainvoke(plan(3, of="bad"))
    assert said in out["execution_step_results"]["p0"]["error"]


# --- agents -------------------------------------------------------------------------------------


def tasks(*capabilities: str) -> dict[str, Any]:
    steps = [
        {"context_key": f"k{n}", "capability": name, "task_objective": f"Task {n}"}
        for n, name in enumerate(capabilities)
    ]
    return {"messages": [("user", "go")], "planning_execution_plan": {"steps": steps}}


async def test_the_task_of_an_agent_is_the_objective_of_its_step() -> None:
    class Own:
        agent_id = "own"

        async def execute(self, task: str, context: Any = None) -> Any:
            return SimpleNamespace(output=f"{task} for {context}", success=True, error=None)

    made = agent_capability(Own())
    out = await build_graph([made]).ainvoke(tasks("own"), context="Ada")
    assert made.capability_spec.provides == ("OWN_RESULT",)
    assert out["capability_context_data"]["OWN_RESULT"]["k0"] == {"output": "Task 0 for Ada"}


async def test_unsuccessful_agent_fails_the_step() -> None:
    async def limited(task: str) -> Any:
        return {"output": "half", "success": False, "error": "max_steps (3) reached"}

    out = await build_graph([agent_capability(limited)]).ainvoke(tasks("limited"))
    assert out["execution_outcome"]["status"] == "failed"
    assert "max_steps (3) reached" in out["execution_step_results"]["k0"]["error"]
    assert "LIMITED_RESULT" not in out["capability_context_data"]


async def test_message_graphs_and_built_graphs_are_agents() -> None:
    model = ScriptedModel(responses=lambda call: f"You said {call.messages[-1].text}")
    talker = agent_capability(create_agent(model, []), name="talker")
    inner = agent_capability(build_graph([order]), name="inner")
    graph = build_graph([talker, inner], checkpointer=InMemorySaver())
    out = await graph.ainvoke(tasks("talker", "talker", "inner"), CONFIG)
    found = out["capability_context_data"]["TALKER_RESULT"]
    assert {key: data["output"] for key, data in found.items()} == {
        "k0": "You said Task 0",
        "k1": "You said Task 1",
    }
    assert len(model.calls) == 2
    assert out["control_budget"]["model_calls"] == 2


async def test_inputs_follow_the_task() -> None:
    async def repeat(task: str) -> str:
        return task

    made = agent_capability(repeat, requires=[Order])
    out = await build_graph([order, made]).ainvoke(plan(3, of="repeat"))
    said = out["capability_context_data"]["REPEAT_RESULT"]["p0"]["output"]
    assert said.endswith('{"ORDER": {"amount": 3}}')


async def test_resumed_agent_repeats_no_model_call() -> None:
    def ask(question: str) -> str:
        """Ask a person."""
        return str(interrupt(question))

    call = AIMessage("", tool_calls=[{"name": "ask", "args": {"question": "Red?"}, "id": "1"}])
    model = ScriptedModel(responses=[call, "It is done."])
    made = agent_capability(create_agent(model, [ask]), name="asker")
    graph = build_graph([made], checkpointer=InMemorySaver())
    assert asked(await graph.ainvoke(tasks("asker"), CONFIG)) == ["Red?"]
    out = await graph.ainvoke(Command(resume={"k0": "yes"}), CONFIG)
    assert out["capability_context_data"]["ASKER_RESULT"]["k0"] == {"output": "It is done."}
    assert len(model.calls) == 2
    assert model.calls[1].messages[-1].text == "yes"


@pytest.mark.parametrize("option", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("nodes", [["ask"], "*"])
def test_static_breakpoints_are_refused_with_the_fix(option: str, nodes: Any) -> None:
    pricing = Pricing(asks=False).graph
    stopping = Pricing.__new__(Pricing)
    with pytest.raises(ConfigurationError, match=rf"{option}.*Fix: .*interrupt\(\)"):
        stopping.__init__(asks=False, **{option: nodes})  # type: ignore[misc]

    def add(state: State) -> State:
        return {"total": state["amount"]}

    builder = StateGraph(State).add_node("ask", add).add_edge(START, "ask")
    inner = builder.compile(name="inner", **{option: nodes})
    outer: Any = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    with pytest.raises(ConfigurationError, match="subgraph 'inner'"):
        graph_capability(outer, input=Order, output=Price)

    agent = create_agent(ScriptedModel(responses=["Done."]), [], **{option: ["model"]})
    for refused in (lambda: agent_capability(agent, name="clerk"), lambda: task_graph(agent)):
        with pytest.raises(ConfigurationError, match=option):
            refused()
    assert graph_capability(pricing, input=Order, output=Price)
