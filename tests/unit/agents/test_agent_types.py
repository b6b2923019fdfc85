"""What each kind of agent does besides the loop."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from capgraph.agents import (
    AgentResult,
    ChainOfThoughtAgent,
    Memory,
    PlanExecuteAgent,
    ReActAgent,
    ReflexionAgent,
)
from capgraph.base.errors import ConfigurationError, ModelError
from capgraph.behaviors import BaseBehavior
from capgraph.testing import ScriptedModel
from tests.support.agents import add, call, calls


def scripted(*answers: Any) -> ScriptedModel:
    return ScriptedModel(responses=list(answers))


# --- plan-execute -------------------------------------------------------------------------------


@pytest.mark.row("G22")
@pytest.mark.parametrize(
    "plan", ['["Add", "Double"]', 'Here:\n```json\n["Add", "Double"]\n```', "1. Add\n2) Double"]
)
async def test_a_plan_is_an_array_or_lines(plan: str) -> None:
    model = scripted(plan, calls(call("add", a=2, b=2)), "4", "8")
    result = await PlanExecuteAgent(model, tools=[add]).execute("Twice 2 + 2?")
    assert result.output == "8"
    assert result.metadata["plan"] == ["Add", "Double"]
    assert [(s.action_input["step"], s.observation) for s in result.steps] == [
        ("Add", "4"),
        ("Double", "8"),
    ]
    assert result.steps[0].metadata["steps"][0]["observation"] == "4"
    assert "1. 4" in model.calls[3].prompt, "the second step is told the result of the first"


@pytest.mark.row("G22")
async def test_a_failed_step_is_replanned_once() -> None:
    over = calls(call("add", "1", a=1, b=1), call("add", "2", a=1, b=1))
    model = scripted('["a", "b"]', "one", over, '["c"]', "three")
    agent = PlanExecuteAgent(model, tools=[add], max_tool_calls_per_step=1)
    result = await agent.execute("Go.")
    assert (result.output, result.success) == ("three", True)
    assert "max_tool_calls_per_step=1" in result.metadata["replanned"]
    assert result.metadata["plan"] == ["a", "c"]
    assert [step.action for step in result.steps] == [
        "plan_step",
        "plan_step",
        "replan",
        "plan_step",
    ]
    assert "1. one" in model.calls[3].prompt
    assert "max_tool_calls_per_step" in model.calls[3].prompt

    model = scripted('["a"]', over, '["b"]', over)
    result = await PlanExecuteAgent(model, tools=[add], max_tool_calls_per_step=1).execute("Go.")
    assert not result.success
    assert "already been replaced once" in str(result.error)
    model = scripted('["a"]', over, ModelError("away"))
    result = await PlanExecuteAgent(model, tools=[add], max_tool_calls_per_step=1).execute("Go.")
    assert "max_tool_calls_per_step=1" in str(result.error)
    assert "away" in str(result.error)


@pytest.mark.row("G22")
async def test_zero_tool_calls_disable_tools() -> None:
    model = scripted('["a"]', "one")
    result = await PlanExecuteAgent(model, tools=[add], max_tool_calls_per_step=0).execute("Go.")
    assert result.output == "one"
    assert model.calls[1].tools == ()


async def test_a_plan_without_steps_is_a_failure() -> None:
    result = await PlanExecuteAgent(scripted("[]")).execute("Go.")
    assert (result.success, result.error) == (False, "The model returned no plan: '[]'.")


async def test_a_plan_resumes_after_a_step() -> None:
    saver = InMemorySaver()
    model = scripted('["a", "b"]', "one", "two", "another two")
    agent = PlanExecuteAgent(model, checkpoint_manager=saver)
    name = (await agent.execute("Go.")).metadata["execution_id"]
    result = await agent.resume_from(name, from_step=0)
    assert [step.observation for step in result.steps] == ["one", "another two"]


# --- reflexion -----------------------------------------------------------------------------------


@pytest.mark.row("G23")
async def test_a_critique_enters_the_prompt_and_steps_accumulate() -> None:
    model = scripted("<thinking>a</thinking>5", "No - too much.", "4", "Yes!")
    result = await ReflexionAgent(ChainOfThoughtAgent(model)).execute("2 + 2?")
    assert (result.output, result.metadata["critiques"]) == ("4", ["too much."])
    assert [s.action for s in result.steps] == [
        "chain_of_thought",
        "critique",
        "chain_of_thought",
        "Final Answer",
    ]
    assert "too much." in model.calls[2].prompt
    assert "2 + 2?" in model.calls[2].prompt


@pytest.mark.row("G23")
async def test_each_round_and_critique_is_streamed() -> None:
    model = scripted("5", "No - too much.", "4", "YES")
    agent = ReflexionAgent(ChainOfThoughtAgent(model))
    assert [step.action async for step in agent.stream_execute("2 + 2?")] == [
        "chain_of_thought",
        "critique",
        "chain_of_thought",
        "Final Answer",
    ]


@pytest.mark.row("G23")
async def test_a_qualified_yes_is_a_rejection() -> None:
    model = scripted("5", "Yes, but it is wrong.", "4", "YES")
    result = await ReflexionAgent(ChainOfThoughtAgent(model)).execute("2 + 2?")
    assert (result.output, result.metadata["critiques"]) == ("4", ["Yes, but it is wrong."])


async def test_a_yes_may_have_a_reason() -> None:
    model = scripted("4", "YES: all of it is there.")
    assert (await ReflexionAgent(ChainOfThoughtAgent(model)).execute("2 + 2?")).success


@pytest.mark.row("G23")
async def test_an_inner_failure_is_a_critique_of_its_own() -> None:
    endless = calls(call("add", a=1, b=1))
    model = scripted(endless, "4", "YES")
    inner = ReActAgent(model, tools=[add], max_steps=1)
    result = await ReflexionAgent(inner).execute("2 + 2?")
    assert result.output == "4"
    assert "max_steps=1" in result.metadata["critiques"][0]


async def test_a_critique_needs_a_model() -> None:
    async def poet(task: str) -> str:
        return "Roses are red."

    with pytest.raises(ConfigurationError, match="model"):
        ReflexionAgent(poet)
    assert (
        await ReflexionAgent(poet, model=scripted("YES")).execute("?")
    ).output == "Roses are red."


# --- chain of thought -----------------------------------------------------------------------------


@pytest.mark.row("G24")
async def test_reasoning_is_a_step_and_not_part_of_the_answer() -> None:
    result = await ChainOfThoughtAgent(scripted("<Thinking>a\nb</Thinking>\n4")).execute("2 + 2?")
    [step] = result.steps
    assert (step.thought, step.action, step.observation) == ("a\nb", "chain_of_thought", "4")
    assert (result.output, result.metadata["thinking"]) == ("4", "a\nb")


@pytest.mark.row("G24")
async def test_reasoning_without_an_answer_is_corrected_and_then_fails() -> None:
    model = scripted("<thinking>hm", "4")
    assert (await ChainOfThoughtAgent(model).execute("?")).output == "4"
    result = await ChainOfThoughtAgent(scripted(*["<thinking>hm"] * 3)).execute("?")
    assert (result.success, result.output) == (False, None)
    assert "3 attempts" in str(result.error)


@pytest.mark.row("G24")
def test_tools_are_refused_by_an_agent_without_tool_calls() -> None:
    with pytest.raises(ConfigurationError, match="does not call tools"):
        ChainOfThoughtAgent(scripted(), tools=[add])


# --- memory ----------------------------------------------------------------------------------------


async def _talk(memory: Memory, *answers: Any, turns: int = 3, **options: Any) -> ScriptedModel:
    model = scripted(*answers)
    graph = ReActAgent(model, memory=memory, **options).compile(InMemorySaver())
    for n in range(turns):
        await graph.ainvoke({"task": f"task {n}"}, {"configurable": {"thread_id": "1"}})
    return model


@pytest.mark.row("T33")
async def test_a_window_includes_the_task_and_the_newest_messages() -> None:
    model = await _talk(Memory(window=3), "zero", "one", "two")
    assert [m.text for m in model.calls[-1].messages] == ["task 1", "one", "task 2"]
    model = await _talk(Memory(max_tokens=12), "zero", "one", "two")
    assert [m.text for m in model.calls[-1].messages][-1] == "task 2"
    assert len(model.calls[-1].messages) < 5


@pytest.mark.row("T33")
async def test_a_call_and_its_observation_stay_together() -> None:
    asks = [calls(call("add", str(n), a=n, b=0)) for n in range(3)]
    model = scripted(*asks, "done")
    agent = ReActAgent(model, tools=[add], memory=Memory(window=3))
    assert (await agent.execute("Count.")).output == "done"
    assert [m.type for m in model.calls[-1].messages] == ["human", "ai", "tool"]
    assert model.calls[-1].messages[-1].text == "2"


@pytest.mark.row("T33")
async def test_omitted_messages_are_summarized_once() -> None:
    memory = Memory(window=3, summarize=True)
    model = await _talk(memory, "zero", "one", "Ann said zero.", "two")
    assert "task 0" in model.calls[2].prompt
    assert "Ann said zero." in model.calls[3].messages[0].text
    assert [m.text for m in model.calls[3].messages][1:] == ["task 1", "one", "task 2"]


@pytest.mark.parametrize("around", [[], [BaseBehavior()]], ids=["bare", "with a behaviour"])
async def test_a_summary_persists_across_runs(around: list[Any]) -> None:
    memory = Memory(window=3, summarize=True)
    ask = calls(call("add", a=1, b=1))
    answers = ["zero", "one", "SUM 1", "two", "SUM 2", ask, "SUM 3", "three", "four"]
    options: Any = {"tools": [add], "behaviors": around}
    model = await _talk(memory, *answers, turns=5, **options)
    summaries = [c.messages[-1].text for c in model.calls if "Write down" in c.prompt]
    covered = [[f"task {n}" for n in range(5) if f"task {n}" in text] for text in summaries]
    assert covered == [["task 0"], ["task 1"], ["task 2"]], "each is summed up once"
    assert "SUM 3" in model.calls[-1].messages[0].text
    assert [m.text for m in model.calls[-1].messages[1:]] == ["task 3", "three", "task 4"]


@pytest.mark.row("T33")
async def test_facts_persist_across_threads() -> None:
    store, memory = InMemoryStore(), Memory(facts=("ann", "facts"))
    model = scripted(calls(call("remember", fact="Ann likes tea.")), "Kept.", "Tea.")
    for thread, around in (("1", []), ("2", [BaseBehavior()])):
        agent = ReActAgent(model, memory=memory, behaviors=around)
        graph = agent.compile(InMemorySaver(), store=store)
        out = await graph.ainvoke({"task": "What?"}, {"configurable": {"thread_id": thread}})
    assert out["output"] == "Tea."
    assert "Ann likes tea." in model.calls[2].messages[0].text
    with pytest.raises(ConfigurationError, match="no store"):
        await ReActAgent(scripted("x"), memory=memory).execute("What?")


def test_memory_limits_are_validated() -> None:
    with pytest.raises(ConfigurationError, match="window 0"):
        Memory(window=0)


@pytest.mark.row("G17")
def test_a_result_is_coerced_from_equivalent_values() -> None:
    class Outcome:
        output, success, error = "x", False, "why"

    assert AgentResult.coerce(Outcome()) == AgentResult("x", success=False, error="why")
    assert AgentResult.coerce({"output": 1, "success": None}).success
    assert AgentResult.coerce("text").output == "text"
