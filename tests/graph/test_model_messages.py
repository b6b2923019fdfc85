"""What an application tells its models, what a caller sends them, and the form they answer in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, assert_type

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from pydantic import BaseModel

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base import ConfigurationError, ValidationError
from capgraph.configs.settings import load_settings
from capgraph.models.prompt import split_conversation
from capgraph.state import TurnView
from capgraph.telemetry import AnswerPart, parse_event
from capgraph.testing import ModelCall, ScriptedModel
from tests.support.readings import sensor_registry

READ = {"steps": [{"capability": "read_sensor"}]}
ASKED: dict[str, Any] = {"messages": [("user", "What does the sensor say?")]}
IMAGE = {"type": "image", "url": "https://example.org/tank.png"}


class Report(BaseModel):
    value: float
    comment: str = ""


@dataclass
class Deps:
    place: str


def graph_of(*responses: Any, **options: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(responses=list(responses))
    settings = load_settings(**options.pop("settings", {}))
    return build_graph(sensor_registry(), model, settings=settings, **options), model


def systems(model: ScriptedModel) -> list[str]:
    return [str(call.messages[0].text) for call in model.calls]


async def test_a_system_prompt_reaches_those_who_plan_and_answer() -> None:
    graph, model = graph_of(READ, "It reads 3.5.", system_prompt="Speak like a pirate.")
    await graph.ainvoke(ASKED)
    assert all(text.endswith("Speak like a pirate.") for text in systems(model))
    assert len(model.calls) == 2


async def test_a_system_prompt_may_be_a_function_of_the_turn() -> None:
    async def prompt(view: TurnView) -> str:
        return f"It is turn {view.turn_number}; the task is {view.task!r}."

    graph, model = graph_of(READ, "It reads 3.5.", system_prompt=prompt)
    await graph.ainvoke(ASKED)
    told = "It is turn 1; the task is 'What does the sensor say?'."
    assert all(text.endswith(told) for text in systems(model))


@pytest.mark.parametrize(
    ("given", "told"),
    [(KeyError("place"), "failed: KeyError: 'place'"), (5, "returned 5")],
)
async def test_a_system_prompt_that_gives_no_text_is_named(given: Any, told: str) -> None:
    def prompt(view: TurnView) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    graph, _ = graph_of(READ, system_prompt=prompt)
    out = await graph.ainvoke(ASKED)
    reason = out["execution_outcome"]["reason"]
    assert "system_prompt" in reason
    assert told in reason


def test_a_system_prompt_that_no_model_reads_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    build_graph([], system_prompt="Speak like a pirate.")
    assert "No chat model uses the system_prompt" in caplog.text


async def test_past_the_budget_small_talk_is_answered_by_who_knows_the_system_prompt() -> None:
    choice = {"reason": "small talk", "capabilities": [], "answer": "Hello!"}
    graph, model = graph_of(
        choice,
        "Ahoy!",
        system_prompt="Speak like a pirate.",
        settings={"selection": {"max_catalog_tokens": 10}},
    )
    out = await graph.ainvoke({"messages": [("user", "hello")]})
    assert out["messages"][-1].content == "Ahoy!"
    assert systems(model)[-1].endswith("Speak like a pirate.")


async def test_system_messages_and_images_of_the_input_reach_the_models() -> None:
    graph, model = graph_of(READ, "It reads 3.5.")
    question = HumanMessage([{"type": "text", "text": "How full is it?"}, IMAGE])
    await graph.ainvoke({"messages": [SystemMessage("Answer in Latin."), question]})
    for call in model.calls:
        assert str(call.messages[0].text).endswith("Answer in Latin.")
        assert IMAGE in call.messages[-1].content


async def test_a_picture_alone_is_a_request() -> None:
    graph, model = graph_of(READ, "It reads 3.5.")
    await graph.ainvoke({"messages": [HumanMessage([IMAGE])]})
    for call in model.calls:
        assert "See what is attached." in str(call.messages[-1].text)
        assert IMAGE in call.messages[-1].content


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (SystemMessage("Answer in Latin."), "a system message"),
        (HumanMessage([{"type": "text", "text": "Look"}, IMAGE]), "a block of the type 'image'"),
    ],
)
async def test_what_only_a_model_could_read_is_refused_by_name_without_one(
    message: Any, named: str
) -> None:
    graph = build_graph(sensor_registry(), settings=load_settings())
    out = await graph.ainvoke({"messages": [message, HumanMessage("Read the sensor")][-2:]})
    assert named in out["messages"][-1].content
    assert out["execution_outcome"]["status"] == "failed"


async def test_an_answer_has_the_form_that_was_asked_for() -> None:
    model = ScriptedModel(responses=[READ, {"value": 3.5, "comment": "calm"}])
    graph = build_graph(
        sensor_registry(),
        model,
        settings=load_settings(),
        context_schema=Deps,
        answer_type=Report,
    )
    out = await graph.ainvoke(ASKED, context=Deps("Rome"))
    assert out["execution_answer"] == {"value": 3.5, "comment": "calm"}
    assert json.loads(out["messages"][-1].content) == out["execution_answer"]
    report = graph.answer_of(out)
    assert_type(report, Report)
    assert report == Report(value=3.5, comment="calm")
    assert model.calls[-1].schema == "Report"


async def test_the_form_comes_in_parts() -> None:
    graph, _ = graph_of(READ, {"value": 3.5, "comment": "calm sea"}, answer_type=Report)
    parts = []
    async for event in graph.astream(ASKED, stream_mode="custom"):
        if event.get("event_type") == "answer_part":
            found = parse_event(event)
            assert isinstance(found, AnswerPart)
            parts.append(found.value)
    assert parts[-1] == {"value": 3.5, "comment": "calm sea"}
    assert {"value": 3.5, "comment": "calm "} in parts
    assert len(parts) > 2


async def test_the_arguments_of_a_call_come_in_parts_too() -> None:
    class Calls(ScriptedModel):
        async def _astream(self, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("scripted_schema"):
                async for chunk in super()._astream(*args, **kwargs):
                    yield chunk
                return
            self._next_message(args[0], kwargs)
            for number, text in enumerate(('{"value": 3.5,', ' "comment": "ca', 'lm"}')):
                call = {
                    "name": "Report" if number == 0 else None,
                    "args": text,
                    "id": "1" if number == 0 else None,
                    "index": 0,
                    "type": "tool_call_chunk",
                }
                yield ChatGenerationChunk(
                    message=AIMessageChunk(content="", tool_call_chunks=[call])
                )

    planner, answers = ScriptedModel(responses=[READ]), Calls(responses=[{}])
    graph = build_graph(
        sensor_registry(),
        {"default": planner, "answer": answers},
        settings=load_settings(),
        answer_type=Report,
    )
    parts = []
    async for event in graph.astream(ASKED, stream_mode="custom"):
        if event.get("event_type") == "answer_part":
            parts.append(event["value"])
    assert parts == [
        {"value": 3.5},
        {"value": 3.5, "comment": "ca"},
        {"value": 3.5, "comment": "calm"},
    ]


async def test_an_answer_of_another_form_is_asked_for_again_and_then_an_error() -> None:
    wrong = {"value": "warm"}
    graph, model = graph_of(READ, wrong, {"value": 3.5}, answer_type=Report)
    out = await graph.ainvoke(ASKED)
    assert graph.answer_of(out) == Report(value=3.5)
    assert len(model.calls) == 3
    assert "value: Input should be a valid number" in model.calls[2].prompt
    half = AIMessage('{"value": 3.5, "comm', response_metadata={"finish_reason": "length"})
    graph, _ = graph_of(READ, half, answer_type=Report)
    out = await graph.ainvoke(ASKED)
    assert out["execution_outcome"]["status"] == "failed"
    with pytest.raises(ValidationError, match="no typed answer"):
        graph.answer_of(out)


async def test_small_talk_has_the_form_too() -> None:
    hello = {"steps": [], "answer": "Hello!"}
    graph, _ = graph_of(hello, {"value": 0, "comment": "Hello!"}, answer_type=Report)
    out = await graph.ainvoke({"messages": [("user", "hello")]})
    assert graph.answer_of(out).comment == "Hello!"


def test_a_form_without_a_model_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(ConfigurationError, match=r"is <class 'str'>, not type\[BaseModel\]"):
        build_graph([], answer_type=str)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="answer_type"):
        build_graph(sensor_registry(), settings=load_settings(), answer_type=Report)


def test_a_long_thread_enters_a_prompt_bounded_and_with_a_summary() -> None:
    said: list[Any] = []
    for number in range(300):
        said += [HumanMessage(f"question {number} " + "x" * 9_000), AIMessage("y" * 9_000)]
    earlier, last = split_conversation([*said, HumanMessage("And now?")])
    assert last == "And now?"
    assert sum(len(str(message.text)) for message in earlier) < 50_000
    summary = str(earlier[0].text)
    assert "question 290 " in summary
    assert "earlier messages are left out" in summary
    # The window moves in blocks, so the beginning of the prompt stays the same in between.
    before, _ = split_conversation(said[:-2])
    assert before[:5] == earlier[:5]


async def test_a_model_plans_from_the_task_and_answers_with_the_conversation() -> None:
    def answer(call: ModelCall) -> Any:
        refers = "What was that" in call.prompt
        task = {"task": "t", "depends_on_chat_history": refers, "depends_on_user_memory": False}
        return {"ExecutionPlan": READ, "Task": task}.get(call.schema or "", "It reads 3.5.")

    for message in ("What was that again?", "Read it once more"):
        model = ScriptedModel(responses=answer)
        graph = build_graph(sensor_registry(), model, settings=load_settings())
        said = [HumanMessage("Is it warm?"), AIMessage("Quite."), HumanMessage(message)]
        await graph.ainvoke({"messages": said})
        plan = next(call for call in model.calls if call.schema == "ExecutionPlan")
        assert "Quite." not in plan.prompt
        assert "Quite." in model.calls[-1].prompt


async def test_warming_up_leaves_nothing_for_the_first_request() -> None:
    graph = build_graph(sensor_registry(), settings=load_settings())
    assert graph.services is not None
    await graph.warm_up()
    selector: Any = graph.services.selector
    fitted = dict(selector._fits)
    assert fitted
    await graph.ainvoke({"messages": [("user", "Read the sensor")]})
    assert dict(selector._fits) == fitted


async def test_what_capabilities_note_stays_within_the_budget_of_tokens() -> None:
    class Noting(BaseCapability):
        name = "noting"
        description = "Notes much."

        @staticmethod
        async def planning_notes(state: Any, config: Any) -> str:
            return "column " * 10_000

        async def execute(self) -> dict[str, Any]:
            return {}

    model = ScriptedModel(responses=[{"steps": [], "answer": "Hello!"}])
    settings = load_settings(selection={"max_catalog_tokens": 600})
    graph = build_graph([capability_node(Noting)], model, settings=settings)
    await graph.ainvoke({"messages": [("user", "hello")]})
    prompt = model.calls[0].prompt
    assert "column column" in prompt
    assert "more characters)" in prompt
    assert len(prompt) < 4 * (600 + 500), "the rules of a plan take less than 500 tokens"
