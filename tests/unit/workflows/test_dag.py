"""Directed acyclic workflows: order, conditions, names, failures, going on."""

import asyncio
import typing
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from capgraph import bind, capability_node
from capgraph.base import ConfigurationError, ValidationError
from capgraph.workflows import DAGWorkflow, WorkflowEdge, WorkflowNode


class Worker:
    """An agent of somebody else: it notes what it was given."""

    def __init__(self, name, *, fails=False):
        self.name, self.fails, self.calls = name, fails, []

    async def execute(self, task, context=None):
        self.calls.append((task, context))
        if self.fails == "raises":
            raise RuntimeError(f"{self.name} broke")
        return SimpleNamespace(
            output=f"{self.name}({task})",
            success=not self.fails,
            error="no" if self.fails else None,
        )


def flow(*workers, edges=(), **maps):
    nodes = [WorkflowNode(w.name, w, maps.get(w.name, {})) for w in workers]
    return DAGWorkflow(nodes, [WorkflowEdge(*edge) for edge in edges])


async def test_outputs_follow_the_maps_and_the_last_is_the_result():
    a, b, c = (Worker(name) for name in "abc")
    found = await flow(a, b, c, edges=[("a", "b"), ("b", "c")], b={"task": "a"}).run({"task": "x"})
    assert found.success, found.error
    assert {name: one.output for name, one in found.outputs.items()} == {
        "a": "a(x)",
        "b": "b(a(x))",
        "c": "c(x)",
    }
    assert found.final_output == "c(x)"
    assert c.calls[0][1] == {"task": "x", "a": "a(x)", "b": "b(a(x))"}


@pytest.mark.row("G32")
async def test_a_node_waits_only_for_its_predecessors():
    # In waves, c would wait for slow, which waits for c: it would hang.
    ready, order = asyncio.Event(), []

    async def slow(task):
        await ready.wait()
        order.append("slow")
        return "slow"

    async def quick(task):
        return "quick"

    async def after_quick(task):
        order.append("after")
        ready.set()
        return "after"

    nodes = [WorkflowNode(f.__name__, f) for f in (slow, quick, after_quick)]
    found = await DAGWorkflow(nodes, [WorkflowEdge("quick", "after_quick")]).run({"task": ""})
    assert order == ["after", "slow"]
    assert found.final_output == {"slow": "slow", "after_quick": "after"}


@pytest.mark.row("G32")
@pytest.mark.parametrize("fails", [True, "raises"])
async def test_a_failure_stops_only_dependent_nodes(fails):
    a, bad, c, d = Worker("a"), Worker("bad", fails=fails), Worker("c"), Worker("d")
    edges = [("a", "bad"), ("bad", "c"), ("c", "d"), ("a", "other")]
    other = Worker("other")
    found = await flow(a, bad, c, d, other, edges=edges).run({"task": "x"})
    assert not found.success
    assert "bad:" in found.error
    assert "not run: c (depends on bad), d (depends on c)" in found.error
    assert [name for name, one in found.outputs.items() if one.success] == ["a", "other"]
    assert found.metadata["not_run"] == {"c": "bad", "d": "c"}
    assert c.calls == d.calls == []


@pytest.mark.row("G32")
async def test_conditions_decide_which_edges_are_followed():
    async def odd(result):
        return len(result.output) % 2 == 1

    a, b, c, d = (Worker(name) for name in "abcd")
    edges = [("a", "b", odd), ("a", "c", lambda r: r.output == "a(x)"), ("b", "d"), ("c", "d")]
    found = await flow(a, b, c, d, edges=edges).run({"task": "x"})
    assert found.success
    assert found.metadata["not_needed"] == ["b"]
    assert [len(w.calls) for w in (a, b, c, d)] == [1, 0, 1, 1]

    none = flow(a, b, edges=[("a", "b", lambda r: False)])
    b.calls.clear()
    found = await none.run({"task": "x"})
    assert found.success
    assert found.metadata["not_needed"] == ["b"]
    assert b.calls == []


async def test_a_failed_condition_fails_its_target():
    a, b = Worker("a"), Worker("b")
    found = await flow(a, b, edges=[("a", "b", lambda r: r.output["x"])]).run({"task": "x"})
    assert not found.success
    assert "condition" in found.error
    assert found.outputs["a"].success
    assert b.calls == []


@pytest.mark.row("G32")
def test_invalid_workflows_are_refused_at_compile():
    a, b = Worker("a"), Worker("b")
    with pytest.raises(ConfigurationError, match=r"has a cycle.*a.*b"):
        flow(a, b, edges=[("a", "b"), ("b", "a")]).compile()
    with pytest.raises(ConfigurationError, match="'nobody'"):
        flow(a, edges=[("a", "nobody")]).compile()
    with pytest.raises(ConfigurationError, match="does not depend on 'a'"):
        flow(a, b, b={"task": "a"}).compile()
    with pytest.raises(ConfigurationError, match="The node ID 'a' is not unique"):
        flow(a, a)
    with pytest.raises(ConfigurationError, match="no nodes"):
        DAGWorkflow().compile()
    with pytest.raises(ConfigurationError, match="node 'odd'"):
        DAGWorkflow([WorkflowNode("odd", 7)]).compile()
    twice = [WorkflowNode("a", a, {}, {"output": "x"}), WorkflowNode("b", b, {}, {"output": "x"})]
    with pytest.raises(ConfigurationError, match="The output name 'x' is not unique"):
        DAGWorkflow(twice).compile()


async def test_outputs_are_mapped_by_field_and_a_missing_field_fails():
    async def measure(task):
        return {"output": {"level": 7, "unit": "m"}}

    def half(task):
        return f"half of {task}"

    def made(field):
        nodes = [
            WorkflowNode("measure", measure, {}, {field: "level"}),
            WorkflowNode("half", half, {"task": "level"}),
        ]
        return DAGWorkflow(nodes, [WorkflowEdge("measure", "half")])

    assert (await made("level").run({"task": ""})).final_output == "half of 7"
    found = await made("depth").run({"task": ""})
    assert not found.success
    assert "no field 'depth'" in found.error


async def test_capabilities_receive_named_values_and_keep_their_declarations():
    @capability_node(effect="once", requires_approval=True)
    async def pour(litres: int) -> str:
        """Pours."""
        return f"{litres} l"

    def litres(task):
        return 5

    nodes = [WorkflowNode("litres", litres), WorkflowNode("pour", pour, {"litres": "litres"})]
    edges = [WorkflowEdge("litres", "pour")]
    with pytest.raises(ConfigurationError, match="not bound"):
        DAGWorkflow(nodes, edges).compile()
    graph = DAGWorkflow(nodes, edges, services=bind([pour])).compile(InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"task": "Pour"}, thread)
    assert out["__interrupt__"]
    out = await graph.ainvoke(Command(resume="yes"), thread)
    assert out["output"] == "5 l"
    assert out["success"]


async def test_parallel_interrupts_are_merged_and_finished_nodes_not_repeated():
    runs = []

    def quick(task):
        runs.append("quick")
        return "quick"

    class State(TypedDict):
        task: str
        output: str

    def asking(name):
        builder = StateGraph(State)

        def before(state):
            runs.append(name)
            return {}

        builder.add_node("before", before)
        builder.add_node("ask", lambda state: {"output": f"{name}: {interrupt(name)}"})
        builder.add_edge("__start__", "before")
        builder.add_edge("before", "ask")
        return builder.compile(name=name)

    nodes = [
        WorkflowNode("quick", quick),
        *(WorkflowNode(name, asking(name)) for name in ("left", "right")),
        WorkflowNode("end", lambda task: task, {"task": "left"}),
    ]
    edges = [("quick", "left"), ("quick", "right"), ("left", "end"), ("right", "end")]
    graph = DAGWorkflow(nodes, [WorkflowEdge(*e) for e in edges]).compile(InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"task": "go"}, thread)
    asked = {item.value: item.id for item in out["__interrupt__"]}
    assert set(asked) == {"left", "right"}
    out = await graph.ainvoke(Command(resume={asked["right"]: "R"}), thread)
    assert [item.value for item in out["__interrupt__"]] == ["left"]
    out = await graph.ainvoke(Command(resume={asked["left"]: "L"}), thread)
    assert out["output"] == "left: L"
    assert out["outputs"]["right"]["output"] == "right: R"
    assert sorted(runs) == ["left", "quick", "right"]


async def test_the_drawing_has_the_nodes():
    drawn = flow(
        Worker("a"), Worker("b"), Worker("c"), edges=[("a", "b"), ("a", "c", lambda r: True)]
    )
    text = drawn.compile().get_graph().draw_mermaid()
    assert "a --> b" in text
    assert "a -.-> c" in text


@pytest.mark.row("G32")
@settings(max_examples=40, deadline=None)
@given(data=st.data(), size=st.integers(1, 7))
def test_random_workflows_match_a_reference_implementation(data, size):
    names = [f"n{i}" for i in range(size)]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    taken = {pair: data.draw(st.booleans()) for pair in chosen}
    broken = set(data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2)))

    status = {}
    for name in names:
        into = [pair for pair in chosen if pair[1] == name]
        if any(status[a] in ("failed", "not run") for a, _ in into):
            status[name] = "not run"
        elif into and not any(status[a] == "done" and taken[a, name] for a, _ in into):
            status[name] = "not needed"
        else:
            status[name] = "failed" if name in broken else "done"

    workers = [Worker(name, fails=name in broken) for name in names]
    edges = [(a, b, lambda r, gone=gone: gone) for (a, b), gone in taken.items()]
    found = asyncio.run(flow(*workers, edges=edges).run({"task": "x"}))
    seen = {name: "done" if one.success else "failed" for name, one in found.outputs.items()}
    seen |= dict.fromkeys(found.metadata["not_run"], "not run")
    seen |= dict.fromkeys(found.metadata["not_needed"], "not needed")
    assert seen == status
    assert found.success == (not broken & {n for n, s in status.items() if s == "failed"})
    assert all(len(w.calls) == (status[w.name] in ("done", "failed")) for w in workers)


@pytest.mark.row("G32")
async def test_a_graph_with_a_standard_library_typed_dict_is_a_node():
    class State(typing.TypedDict, total=False):  # what LangGraph's pages write
        task: str
        output: str

    builder = StateGraph(State)
    builder.add_node("up", lambda given: {"output": given["task"].upper()})
    builder.add_edge("__start__", "up")
    found = await DAGWorkflow([WorkflowNode("a", builder.compile())]).run({"task": "x"})
    assert (found.final_output, found.success) == ("X", True)


@pytest.mark.parametrize("given", [None, "x", {"task": None}])
async def test_a_missing_task_is_refused(given):
    with pytest.raises(ValidationError, match="must be a mapping with a task"):
        await DAGWorkflow([WorkflowNode("a", Worker("a"))]).run(given)
