"""State machines: guards, terminal states, the cap, threads."""

from types import SimpleNamespace

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph.base import ConfigurationError
from capgraph.workflows import StateMachineWorkflow


class Worker:
    def __init__(self, *outputs, success=True):
        self.outputs, self.success, self.contexts = list(outputs), success, []

    async def execute(self, task, context=None):
        self.contexts.append(context)
        output = self.outputs[min(len(self.contexts), len(self.outputs)) - 1]
        error = None if self.success else "gave up"
        return SimpleNamespace(output=output, success=self.success, error=error)


class Notes:
    def __init__(self):
        self.kept = {}

    async def set(self, key, value):
        self.kept[key] = value


@pytest.mark.row("G33")
async def test_the_first_matching_transition_is_used_and_each_guard_runs_once():
    asked = []

    def short(result):
        asked.append(result.output)
        return len(result.output) < 5

    draft, mend = Worker("abc"), Worker("abcdef")
    flow = StateMachineWorkflow(
        {"draft": draft, "mend": mend},
        {"draft": [(short, "mend"), (None, "END")], "mend": [(None, "END")]},
        "draft",
        {"END"},
    )
    found = await flow.run({"task": "Write"})
    assert found.success
    assert found.final_output == "abcdef"
    assert found.metadata["path"] == ["draft", "mend", "END"]
    assert found.metadata["state"] == "END"
    assert mend.contexts[0]["last_output"] == "abc"
    assert asked == ["abc"]
    assert {name: one.output for name, one in found.outputs.items()} == {
        "draft": "abc",
        "mend": "abcdef",
    }


@pytest.mark.row("G33")
async def test_reaching_max_transitions_is_not_a_success():
    a, b = Worker("a"), Worker("b")
    rules = {"a": [(None, "b")], "b": [(None, "a")]}
    found = await StateMachineWorkflow({"a": a, "b": b}, rules, "a", max_transitions=4).run({})
    assert not found.success
    assert "max_transitions=4 reached in 'b' before 'a'" in found.error
    assert len(a.contexts) + len(b.contexts) == 4
    assert found.outputs["a"].output == "a"

    to_end = {"a": [(None, "b")], "b": [(None, "END")]}
    whole = StateMachineWorkflow({"a": a, "b": b}, to_end, "a", {"END"}, max_transitions=2)
    assert (await whole.run({})).success


@pytest.mark.row("G33")
async def test_a_failed_state_continues_only_by_a_guard():
    bad, rescue = Worker("?", success=False), Worker("saved")
    always = StateMachineWorkflow(
        {"bad": bad, "next": rescue}, {"bad": [(None, "next")]}, "bad", {"END"}
    )
    found = await always.run({"task": "x"})
    assert (found.success, found.error) == (False, "bad: gave up")
    assert rescue.contexts == []

    guarded = StateMachineWorkflow(
        {"bad": bad, "rescue": rescue},
        {"bad": [(lambda r: not r.success, "rescue")], "rescue": [(None, "END")]},
        "bad",
        {"END"},
    )
    found = await guarded.run({"task": "x"})
    assert found.success
    assert found.final_output == "saved"


async def test_a_run_without_a_matching_transition_is_not_a_success():
    flow = StateMachineWorkflow({"a": Worker("x")}, {"a": [(lambda r: False, "END")]}, "a", {"END"})
    found = await flow.run({"task": ""})
    assert (found.success, found.error) == (False, "a: none of its transitions applies.")
    broken = StateMachineWorkflow(
        {"a": Worker("x")}, {"a": [(lambda r: r.nothing, "END")]}, "a", {"END"}
    )
    found = await broken.run({"task": ""})
    assert "condition" in found.error


def test_unknown_target_states_are_refused():
    with pytest.raises(
        ConfigurationError, match="The state 'z' is unknown: it is used as a target of 'a'"
    ):
        StateMachineWorkflow({"a": Worker("x")}, {"a": [(None, "z")]}, "a")
    with pytest.raises(
        ConfigurationError, match="The state 'b' is unknown: it is used as the initial state"
    ):
        StateMachineWorkflow({"a": Worker("x")}, {}, "b")
    with pytest.raises(ConfigurationError, match="max_transitions is 0"):
        StateMachineWorkflow({"a": Worker("x")}, {}, "a", max_transitions=0)


async def test_a_state_may_be_named_start_but_not_like_a_langgraph_node():
    flow = StateMachineWorkflow(
        {"start": Worker("x")}, {"start": [(None, "END")]}, "start", {"END"}
    )
    assert (await flow.run({"task": "Go"})).success
    with pytest.raises(ConfigurationError, match="state names 'a:b', '__end__'"):
        StateMachineWorkflow({"a:b": Worker("x"), "__end__": Worker("x")}, {}, "a:b")


@pytest.mark.row("G33")
async def test_a_new_run_starts_over_and_an_interrupted_run_resumes():
    asked = []

    def first(task):
        asked.append(task)
        return "first"

    flow = StateMachineWorkflow(
        {"first": first, "ask": lambda task: f"{task}: {interrupt('Go on?')}"},
        {"first": [(None, "ask")], "ask": [(None, "END")]},
        "first",
        {"END"},
        state_store=(notes := Notes()),
        name="asking",
    )
    graph = flow.compile(InMemorySaver())
    thread = {"configurable": {"thread_id": "7"}}
    for task in ("one", "two"):
        out = await graph.ainvoke({"task": task}, thread)
        assert [item.value for item in out["__interrupt__"]] == ["Go on?"]
        assert notes.kept["workflow:asking:7"]["state"] == "ask"
        out = await graph.ainvoke(Command(resume="yes"), thread)
        assert (out["output"], out["success"]) == (f"{task}: yes", True)
        assert out["metadata"]["path"] == ["first", "ask", "END"]
        assert notes.kept["workflow:asking:7"]["state"] == "END"
    assert asked == ["one", "two"]


async def test_concurrent_runs_are_independent():
    import asyncio

    flow = StateMachineWorkflow(
        {"a": lambda task: task, "b": lambda task: task * 2},
        {"a": [(None, "b")], "b": [(None, "END")]},
        "a",
        {"END"},
    )
    found = await asyncio.gather(*(flow.run({"task": f"{n}"}) for n in range(20)))
    assert [one.final_output for one in found] == [f"{n}{n}" for n in range(20)]
    assert len({one.metadata["execution_id"] for one in found}) == 20


def test_the_drawing_has_the_transitions():
    rules = {"a": [(lambda r: True, "b"), (None, "END")], "b": [(None, "a")]}
    flow = StateMachineWorkflow({"a": Worker("x"), "b": Worker("y")}, rules, "a", {"END"})
    text = flow.compile().get_graph().draw_mermaid()
    assert "a -.-> b" in text
    assert "b -.-> a" in text
