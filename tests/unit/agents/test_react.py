"""The loop of thinking and calling tools."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel

from capgraph.agents import ReActAgent, handoff
from capgraph.base.errors import ConfigurationError, ModelError
from capgraph.testing import ScriptedModel
from tests.support.agents import SUM, add, call, calls, fail


def scripted(*answers: Any) -> ScriptedModel:
    return ScriptedModel(responses=list(answers))


@pytest.mark.row("G20")
async def test_tools_are_called_until_the_answer() -> None:
    model = scripted(*SUM)
    result = await ReActAgent(model, tools=[add]).execute("What is 2 + 2?")
    assert (result.output, result.success, result.error) == ("It is 4.", True, None)
    assert [(s.thought, s.action, s.action_input, s.observation) for s in result.steps] == [
        ("I add.", "add", {"a": 2, "b": 2}, "4"),
        ("", "Final Answer", {"answer": "It is 4."}, "It is 4."),
    ]
    assert result.metadata["execution_id"]
    assert model.calls[0].tools == ("add",)
    assert [m.type for m in model.calls[1].messages] == ["human", "ai", "tool"]


async def test_tool_registry_is_an_alias_of_tools() -> None:
    result = await ReActAgent(scripted(*SUM), tool_registry=[add]).execute("2 + 2?")
    assert result.success
    with pytest.raises(ConfigurationError, match="tools and tool_registry"):
        ReActAgent(scripted(), tools=[add], tool_registry=[add])


@pytest.mark.row("G20")
async def test_tool_errors_are_observations() -> None:
    asked = calls(call("fail", "1", why="it rains"), call("nix", "2"), call("add", "3", a="x", b=1))
    result = await ReActAgent(scripted(asked, "No."), tools=[add, fail]).execute("Try.")
    first, second, third, _ = result.steps
    assert first.observation == "Tool error: it rains"
    assert "nix is not a valid tool" in second.observation
    assert "valid integer" in third.observation
    assert all(step.metadata == {"error": True} for step in (first, second, third))
    assert result.success, "the model was told, and answered"


async def test_call_ids_may_repeat() -> None:
    both = calls(call("add", "1", a=1, b=1), call("add", "1", a=2, b=2))
    model = scripted(both, calls(call("add", "1", a=3, b=3)), "done")
    result = await ReActAgent(model, tools=[add]).execute("Add.")
    assert [step.observation for step in result.steps] == ["2", "4", "6", "done"]


@pytest.mark.row("T32")
async def test_calls_of_one_message_run_in_parallel_and_keep_their_order() -> None:
    begun: list[int] = []
    all_there = asyncio.Event()

    @tool
    async def wait(number: int) -> str:
        """Wait until all three are there, the first one longest."""
        begun.append(number)
        if len(begun) == 3:
            all_there.set()
        await all_there.wait()
        for _ in range(10 * (3 - number)):
            await asyncio.sleep(0)
        return f"done {number}"

    model = scripted(calls(*(call("wait", str(n), number=n) for n in (0, 1, 2))), "ok")
    result = await ReActAgent(model, tools=[wait]).execute("Wait.")
    assert [step.observation for step in result.steps[:3]] == ["done 0", "done 1", "done 2"]


@pytest.mark.row("G20")
@pytest.mark.parametrize("streamed", [False, True])
async def test_reaching_max_steps_is_a_failure_that_names_it(streamed: bool) -> None:
    model = ScriptedModel(
        responses=lambda asked: calls(call("add", str(len(asked.messages)), a=1, b=1))
    )
    agent = ReActAgent(model, tools=[add], max_steps=3)
    if streamed:
        last = [step async for step in agent.stream_execute("Go on.")][-1]
        assert "max_steps=3" in last.observation
        assert last.metadata["success"] is False
        return
    result = await agent.execute("Go on.")
    assert not result.success
    assert "max_steps=3" in str(result.error)
    assert result.output == "2", "the last observation"
    assert len(model.calls) == len(result.steps) == 3


async def test_an_empty_answer_is_corrected_and_then_fails() -> None:
    result = await ReActAgent(scripted("", "  ", ""), tools=[add]).execute("Say something.")
    assert not result.success
    assert "3 answers" in str(result.error)
    assert (await ReActAgent(scripted("", "Yes.")).execute("Say something.")).output == "Yes."


async def test_invalid_json_arguments_are_corrected() -> None:
    broken = AIMessage(
        "", invalid_tool_calls=[{"name": "add", "args": "{", "id": "1", "error": None}]
    )
    model = scripted(broken, "No idea.")
    result = await ReActAgent(model, tools=[add]).execute("2 + 2?")
    assert result.output == "No idea."
    assert isinstance(model.calls[1].messages[-1], ToolMessage)


async def test_a_truncated_answer_is_an_error() -> None:
    cut = AIMessage("It is", response_metadata={"finish_reason": "length"})
    with pytest.raises(ModelError, match="length limit"):
        await ReActAgent(scripted(cut)).execute("What is it?")


@pytest.mark.row("G20")
async def test_braces_in_a_system_prompt_are_kept() -> None:
    model = scripted("ok")
    prompt = 'Answer as {"a": 1}. Tools:\n{tool_descriptions}'
    await ReActAgent(model, tools=[add], system_prompt=prompt).execute("Go.")
    assert model.calls[0].messages[0].text == 'Answer as {"a": 1}. Tools:\n- add: Add two numbers.'


@dataclass
class Deps:
    unit: str


async def test_tools_receive_the_context() -> None:
    @tool
    def level(tank: int, runtime: ToolRuntime[Deps]) -> str:
        """Read a level."""
        return f"{tank} {runtime.context.unit}"

    agent = ReActAgent(scripted(calls(call("level", tank=7)), "ok"), tools=[level])
    result = await agent.execute("Read.", Deps("litres"))
    assert result.steps[0].observation == "7 litres"


async def test_concurrent_runs_are_independent() -> None:
    def answer(asked: Any) -> Any:
        task = next(m.text for m in asked.messages if m.type == "human")
        if asked.messages[-1].type == "tool":
            return f"{task}: {asked.messages[-1].text}"
        return calls(call("add", a=int(task), b=1))

    agent = ReActAgent(ScriptedModel(responses=answer), tools=[add])
    found = await asyncio.gather(*(agent.execute(str(n)) for n in range(20)))
    assert [r.output for r in found] == [f"{n}: {n + 1}" for n in range(20)]
    assert len({r.metadata["execution_id"] for r in found}) == 20
    assert all(len(r.steps) == 2 for r in found)


async def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_steps 0"):
        ReActAgent(scripted(), max_steps=0)
    with pytest.raises(ConfigurationError, match="chat model"):
        ReActAgent(None)
    with pytest.raises(ConfigurationError, match=r"5 in ReActAgent\.behaviors"):
        await ReActAgent(scripted(), behaviors=[5]).execute("Go")
    with pytest.raises(ConfigurationError, match="must be unique, but 2 tools share the names add"):
        await ReActAgent(scripted(), tools=[add, add]).execute("Go")
    with pytest.raises(ConfigurationError, match="handoff target"):
        handoff("")


# --- a typed answer -----------------------------------------------------------------------


class Sum(BaseModel):
    value: int


@pytest.mark.row("T33")
@pytest.mark.parametrize(
    "answer", [calls(call("Sum", "9", value=4)), {"value": 4}, '```json\n{"value": 4}\n```']
)
async def test_the_output_is_an_instance_of_the_response_format(answer: Any) -> None:
    model = scripted(SUM[0], answer)
    result = await ReActAgent(model, tools=[add], response_format=Sum).execute("2 + 2?")
    assert result.output == Sum(value=4)
    assert model.calls[0].tools == ("add", "Sum")
    out = await ReActAgent(scripted(answer), response_format=Sum).compile().ainvoke({"task": "?"})
    assert out["output"] == {"value": 4}


@pytest.mark.row("T33")
async def test_an_invalid_response_format_is_corrected_and_then_fails() -> None:
    wrong, right = calls(call("Sum", "9", value="x")), calls(call("Sum", "9", value=4))
    model = scripted(wrong, "Four.", right)
    assert (await ReActAgent(model, response_format=Sum).execute("?")).output == Sum(value=4)
    assert "valid integer" in str(model.calls[1].messages[-1].text)
    result = await ReActAgent(scripted(wrong, wrong, wrong), response_format=Sum).execute("?")
    assert not result.success
    assert "3 answers" in str(result.error)
    assert "Sum" in str(result.error)


async def test_a_response_next_to_another_call_is_refused() -> None:
    both = calls(call("add", "1", a=2, b=2), call("Sum", "2", value=5))
    ran = Counter[str]()

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        ran["add"] += 1
        return a + b

    model = scripted(both, {"value": 4})
    result = await ReActAgent(model, tools=[add], response_format=Sum).execute("?")
    assert result.output == Sum(value=4)
    assert ran == Counter(), "both were refused, and the model was told"


# --- models that know no tools -------------------------------------------------------------


class Plain(BaseChatModel):
    """A chat model without ``bind_tools``."""

    answers: list[str]
    asked: list[Any] = []

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> Any:
        self.asked.append(list(messages))
        text = self.answers[len(self.asked) - 1]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


@pytest.mark.row("G20")
async def test_a_model_without_tool_calling_uses_the_text_protocol() -> None:
    model = Plain(
        answers=[
            'Thought: I add.\nAction: add\nAction Input: {"a": 2, "b": 2}\nObservation: 5',
            'Thought: done\nAction: Final Answer\nAction Input: {"answer": "It is 4."}',
        ],
        asked=[],
    )
    result = await ReActAgent(model, tools=[add]).execute("2 + 2?")
    assert result.output == "It is 4."
    assert [(s.thought, s.action, s.observation) for s in result.steps[:1]] == [
        ("I add.", "add", "4")
    ]
    system, task = model.asked[0]
    assert isinstance(system, SystemMessage)
    assert '"a"' in system.text
    assert "Action Input:" in system.text
    assert task.text == "2 + 2?"
    said, seen = [m.text for m in model.asked[1]][-2:]
    assert said.endswith('Action Input: {"a": 2, "b": 2}'), "what it made up is not shown to it"
    assert seen == "Observation: 4"


@pytest.mark.parametrize(
    ("given", "observed"),
    [("hello", "HELLO"), ('"hello"', "HELLO"), ('{"text": "hello"}', "HELLO")],
)
async def test_a_single_argument_need_not_be_an_object(given: str, observed: str) -> None:
    @tool
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    asked = f"Action: shout\nAction Input: {given}"
    model = Plain(answers=[asked, "Final Answer: done"], asked=[])
    result = await ReActAgent(model, tools=[shout]).execute("Shout.")
    assert result.steps[0].observation == observed
    assert result.output == "done"


@pytest.mark.row("G20")
async def test_unreadable_text_is_never_a_success() -> None:
    model = Plain(answers=["I think I would add them."] * 3, asked=[])
    result = await ReActAgent(model, tools=[add]).execute("2 + 2?")
    assert not result.success
    assert result.output is None
    assert "3 answers" in str(result.error)
    assert "neither an action nor a final answer" in model.asked[1][-1].text


async def test_a_model_without_tool_calling_answers_in_json() -> None:
    model = FakeListChatModel(responses=['{"total": 4}'])

    class Sum(BaseModel):
        total: int

    result = await ReActAgent(model, tools=[add], response_format=Sum).execute("2 + 2?")
    assert (result.output, result.success) == (Sum(total=4), True)


async def test_text_after_the_arguments_is_not_an_argument() -> None:
    found: list[str] = []

    @tool
    def find_customer(name: str) -> str:
        """Find a customer."""
        found.append(name)
        return "Ada Lovelace is customer C1."

    asked = (
        "Thought: I look Ada up.\nAction: find_customer\n"
        'Action Input: {"name": "Ada"}\nFinal Answer: {"customer_id": "12345"}\n'
        "Thought: Now I know.\nAction: find_customer\nAction Input: {}"
    )
    model = Plain(answers=[asked, "Final Answer: It is C1."], asked=[])
    result = await ReActAgent(model, tools=[find_customer]).execute("Find Ada.")
    assert found == ["Ada"]
    assert result.output == "It is C1."
    assert "12345" not in "".join(m.text for m in model.asked[1][1:])


@pytest.mark.parametrize(
    "given", ['{"text": "hel', '{"text": "a"', "one\ntwo", 'call {"text": "a"}', "```\nhello"]
)
async def test_unreadable_arguments_are_corrected_and_never_run(given: str) -> None:
    ran: list[str] = []

    @tool
    def shout(text: str) -> str:
        """Shout."""
        ran.append(text)
        return text.upper()

    asked = f"Action: shout\nAction Input: {given}"
    model = Plain(answers=[asked, "Final Answer: I cannot."], asked=[])
    result = await ReActAgent(model, tools=[shout]).execute("Shout.")
    assert ran == []
    assert result.output == "I cannot."
    assert "must be a JSON object" in model.asked[1][-1].text


async def test_an_invalid_action_name_is_corrected_with_the_tool_names() -> None:
    asked = 'Action: {"a": 1, "b": 2}\nAction Input: {"a": 1, "b": 2}\nFinal Answer: 3'
    model = Plain(answers=[asked, "Final Answer: 3"], asked=[])
    result = await ReActAgent(model, tools=[add]).execute("1 + 2?")
    assert result.output == "3"
    assert "add" in model.asked[1][-1].text


FENCED = '```json\n{\n  "name": "add",\n  "arguments": {"a": 2, "b": 2}\n}\n```'


@pytest.mark.parametrize(
    "text",
    [
        FENCED,
        '{"name": "add", "parameters": {"a": 2, "b": 2}}',
        '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 2, \\"b\\": 2}"}\n</tool_call>',
    ],
)
@pytest.mark.parametrize("knows_tools", [True, False])
async def test_a_call_written_as_json_is_run(text: str, knows_tools: bool) -> None:
    answers = [text, "It is 4." if knows_tools else "Final Answer: It is 4."]
    model: Any = scripted(*answers) if knows_tools else Plain(answers=answers, asked=[])
    result = await ReActAgent(model, tools=[add]).execute("2 + 2?")
    assert [(s.action, s.observation) for s in result.steps[:1]] == [("add", "4")]
    assert result.output == "It is 4."


async def test_a_call_among_other_words_is_not_run() -> None:
    text = f"I will call this:\n{FENCED}\nThe result is 5."
    result = await ReActAgent(scripted(*[text] * 3), tools=[add]).execute("2 + 2?")
    assert not result.success
    assert result.steps == []
    assert "support tool calls" in str(result.error)


@pytest.mark.parametrize("knows_tools", [True, False])
async def test_a_call_that_fails_twice_ends_the_run(knows_tools: bool) -> None:
    if knows_tools:
        model: Any = scripted(*[call("fail") for _ in range(5)])
    else:
        model = Plain(answers=["Action: fail\nAction Input: {}"] * 5, asked=[])
    result = await ReActAgent(model, tools=[fail]).execute("Go.")
    assert not result.success
    assert len(result.steps) == 2
    assert "fail" in str(result.error)


async def test_an_invented_observation_stops_generation() -> None:
    stops: list[Any] = []

    class Stopped(Plain):
        def _generate(self, messages: Any, stop: Any = None, *args: Any, **more: Any) -> Any:
            stops.append(stop)
            return super()._generate(messages, stop, *args, **more)

    model = Stopped(answers=["Thought: easy\nFinal Answer: 4"], asked=[])
    result = await ReActAgent(model, tools=[add]).execute("2 + 2?")
    assert result.output == "4"
    assert "\nObservation:" in stops[0]
