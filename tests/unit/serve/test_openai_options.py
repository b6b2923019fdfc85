"""Options, histories, formats, and failures of OpenAI's API, sent by OpenAI's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from capgraph import capability_node
from capgraph.base.errors import CapabilityError
from capgraph.testing import ScriptedModel
from tests.support.listening import listening
from tests.support.served import READ, read_level, served
from tests.unit.serve.test_openai import ASK, openai_client

MODEL = "capgraph"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HISTORY: list[Any] = [
    {"role": "user", "content": "How warm is it in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "31 degrees"},
    {"role": "assistant", "content": "It is warm."},
]


class Report(BaseModel):
    """Report about a tank."""

    litres: float
    comment: str = ""


def answer(call: Any) -> Any:
    """Return what a scripted model answers: a task, a plan, a report, or a text."""
    if call.schema is None:
        return "It is at 7."
    if call.schema == "answer":
        return {"litres": 7, "comment": "Half full."}
    return READ if "steps" in call.prompt else {"task": "read the level of the tank"}


@capability_node(examples=["measure the pressure"])
async def measure_pressure() -> str:
    """Measure the pressure."""
    raise CapabilityError("The sensor is broken.")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("stop", ["\n"]),
        ("max_tokens", 10),
        ("max_completion_tokens", 10),
        ("n", 2),
        ("logprobs", True),
        ("temperature", 0.2),
        ("seed", 1),
        ("tempature", 1),
        ("stream", "yes"),
        ("stream_options.include_usag", True),
    ],
)
async def test_unsupported_options_are_refused_by_name(option: str, value: Any) -> None:
    async with served() as serving:
        client = await openai_client(serving)
        *parents, name = option.split(".")
        body: Any = {name: value}
        for parent in parents:
            body = {parent: body}
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(model=MODEL, messages=ASK, extra_body=body)
        assert refusal.value.param == option
        assert refusal.value.type == "invalid_request_error"
        assert (await (await serving("ann")).get("/api/threads")).json()["items"] == []


async def test_options_without_effect_are_accepted() -> None:
    async with served() as serving:
        client = await openai_client(serving)
        completion = await client.chat.completions.create(
            model=MODEL,
            messages=ASK,
            n=1,
            temperature=1,
            logprobs=False,
            stop=None,
            tool_choice="none",
            tools=[TOOL],  # type: ignore[list-item]
            response_format={"type": "text"},
            user="someone",
        )
    assert completion.choices[0].finish_reason == "stop"


async def test_failed_turn_is_an_error_that_clients_do_not_repeat() -> None:
    async with served(measure_pressure) as serving:
        http = await serving("ann")
        client = openai.AsyncOpenAI(
            api_key="unused", base_url="http://127.0.0.1/v1", http_client=http
        )
        messages: Any = [{"role": "user", "content": "measure the pressure"}]
        with pytest.raises(openai.UnprocessableEntityError, match="The sensor is broken"):
            await client.chat.completions.create(model=MODEL, messages=messages)
        with pytest.raises(openai.UnprocessableEntityError, match="The sensor is broken"):
            await client.responses.create(model=MODEL, input="measure the pressure")
        assert len((await http.get("/api/threads")).json()["items"]) == 2
        stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        with pytest.raises(openai.APIError, match="The sensor is broken"):
            _ = [chunk async for chunk in stream]
        failed = [
            event
            async for event in await client.responses.create(
                model=MODEL, input="measure the pressure", stream=True
            )
        ][-1]
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert "The sensor is broken" in failed.response.error.message


async def test_history_with_tool_calls_reaches_the_model() -> None:
    model = ScriptedModel(responses=answer)
    async with served(read_level, model=model) as serving:
        client = await openai_client(serving)
        await client.chat.completions.create(model=MODEL, messages=[*HISTORY, *ASK])
        first_calls = len(model.calls)
        items: Any = [
            {"role": "user", "content": "How warm is it in Oslo?"},
            {
                "type": "function_call",
                "call_id": "c2",
                "name": "weather",
                "arguments": '{"city": "Oslo"}',
            },
            {"type": "function_call_output", "call_id": "c2", "output": "9 degrees"},
            {"role": "user", "content": [{"type": "input_text", "text": "How full is the tank?"}]},
        ]
        await client.responses.create(model=MODEL, input=items, instructions="Answer in verse.")
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=[HISTORY[2], *ASK])
    first = "\n".join(call.prompt for call in model.calls[:first_calls])
    second = "\n".join(call.prompt for call in model.calls[first_calls:])
    assert "weather" in first
    assert "31 degrees" in first
    assert "9 degrees" in second
    assert "Answer in verse." in second


async def test_instructions_apply_to_one_request() -> None:
    model = ScriptedModel(responses=answer)

    def last_prompts(count: int) -> str:
        return "\n".join(call.prompt for call in model.calls[count:])

    async with served(read_level, model=model) as serving:
        client = await openai_client(serving)
        text = "read the level of the tank"
        first = await client.responses.create(model=MODEL, input=text, instructions="Use verse.")
        assert "Use verse." in last_prompts(0)
        assert first.metadata is not None
        thread = {"thread_id": first.metadata["thread_id"]}
        system: Any = {"role": "system", "content": "Use rhyme."}
        count = len(model.calls)
        await client.chat.completions.create(model=MODEL, messages=[system, *ASK], metadata=thread)
        assert "Use rhyme." in last_prompts(count)
        assert "Use verse." not in last_prompts(count)
        count = len(model.calls)
        await client.responses.create(model=MODEL, input=text, previous_response_id=first.id)
        assert "Use verse." in last_prompts(0)
        assert "Use" not in last_prompts(count)


async def test_instructions_without_a_model_are_refused() -> None:
    async with served() as serving:
        client = await openai_client(serving)
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model=MODEL, input="read", instructions="Use verse.")
        assert refusal.value.param == "instructions"
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "system", "content": "Use verse."}, *ASK]
            )
        assert refusal.value.param == "messages"


async def test_json_schema_is_the_answer_type_of_one_request() -> None:
    async with served(read_level, model=ScriptedModel(responses=answer)) as serving:
        client = await openai_client(serving)
        completion = await client.chat.completions.parse(
            model=MODEL, messages=ASK, response_format=Report
        )
        response = await client.responses.parse(
            model=MODEL, input="read the level of the tank", text_format=Report
        )
        text = await client.chat.completions.create(model=MODEL, messages=ASK)
    assert completion.choices[0].message.parsed == Report(litres=7, comment="Half full.")
    assert response.output_parsed == Report(litres=7, comment="Half full.")
    assert text.choices[0].message.content == "It is at 7."


async def test_json_schema_without_a_model_is_refused() -> None:
    async with served() as serving:
        client = await openai_client(serving)
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Report)
        assert refusal.value.param == "response_format"
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.parse(model=MODEL, input="read", text_format=Report)
        assert refusal.value.param == "text.format"


async def test_responses_continue_a_thread_and_stream() -> None:
    async with served() as serving:
        client = await openai_client(serving)
        first = await client.responses.create(model=MODEL, input="read the level of the tank")
        assert "7" in first.output_text
        assert first.metadata is not None
        events = [
            event
            async for event in await client.responses.create(
                model=MODEL,
                input="read the level of the tank",
                previous_response_id=first.id,
                stream=True,
            )
        ]
        last = events[-1]
        assert last.type == "response.completed"
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert last.response.output_text == text
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert last.response.metadata["thread_id"] == first.metadata["thread_id"]
        assert (await client.responses.retrieve(first.id)).output_text == first.output_text
        eve = await openai_client(serving, "eve")
        with pytest.raises(openai.NotFoundError):
            await eve.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model=MODEL, input="read", max_output_tokens=5)
        assert refusal.value.param == "max_output_tokens"
        for text in ({"verbosity": "low"}, {"verbos": "low"}):
            with pytest.raises(openai.BadRequestError) as refusal:
                await client.responses.create(model=MODEL, input="read", extra_body={"text": text})
            assert refusal.value.param == f"text.{next(iter(text))}"


@pytest.mark.parametrize("stops", [True, False])
async def test_closed_stream_stops_the_run_if_configured(stops: bool) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @capability_node(examples=["wait for the tide"])
    async def wait_for_tide() -> str:
        """Wait for the tide."""
        started.set()
        await asyncio.sleep(1)
        ended.set()
        return "high"

    async with (
        listening(wait_for_tide, openai={"stop_on_disconnect": stops}) as url,
        httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http,
    ):
        body = {"messages": [{"role": "user", "content": "wait for the tide"}], "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body):
            await asyncio.wait_for(started.wait(), 20)
        await asyncio.sleep(1.5)
        (thread,) = (await http.get("/api/threads")).json()["items"]
    assert ended.is_set() is not stops
    assert thread["outcome"] == ("stopped" if stops else "completed")


async def test_langchain_client() -> None:
    async with served(read_level, model=ScriptedModel(responses=answer)) as serving:
        http = await serving("ann")
        chat = ChatOpenAI(
            model=MODEL,
            api_key="unused",  # type: ignore[arg-type]
            base_url="http://127.0.0.1/v1",
            http_async_client=http,
            max_retries=0,
        )
        assert (await chat.ainvoke("read the level of the tank")).text == "It is at 7."
        typed = await chat.with_structured_output(Report).ainvoke("read the level of the tank")
        assert typed == Report(litres=7, comment="Half full.")
        by_responses = chat.model_copy(update={"use_responses_api": True})
        assert "7" in (await by_responses.ainvoke("read the level of the tank")).text
